"""Programs compiled before they are needed: several at once, all of them or as many as there was time for."""

import os
import signal
import threading

import numpy as np
import pytest

import vyre
from vyre import In, Out, const, f32, gid
from vyre.driver.guard.prewarm import prewarm_all
from vyre.errors import ArgumentTypeError, ArgumentValueError, KernelCompileFailed

from ....support.device_backends import registration_or_skip

WAIT_S = 60


@vyre.kernel(workgroup=64)
def times(x: In[f32], out: Out[f32], *, k: const = 1):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * f32(k)


def programs(n, first=0):
    return [times.specialize(k=k) for k in range(first, first + n)]


@pytest.fixture
def guard(tmp_path, monkeypatch):
    """A cpu backend with nothing in memory or on disk, and what it is asked to compile."""
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path / "cache"))
    found = vyre.acquire("cpu")
    found.asked = []
    yield found
    found.shutdown()


@pytest.fixture
def compiling(guard, monkeypatch):
    """Sets what happens before each compilation."""
    compile_native, hook = guard.inner.compile_native, [lambda program: None]

    def compiles(program, config):
        guard.asked.append(program.fingerprint)
        hook[0](program)
        return compile_native(program, config)

    monkeypatch.setattr(guard.inner, "compile_native", compiles)

    def put(what):
        hook[0] = what

    return put


@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu", "cuda"])
def test_what_was_compiled_ahead_is_in_memory_for_calls(backend, monkeypatch, tmp_path):
    registration_or_skip(backend)
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    vyre.driver.selection.registry.refresh()
    wanted, seen = programs(3, 40), []
    found = vyre.prewarm(wanted, backend=backend, progress=lambda *counts: seen.append(counts))
    assert [report.tier for report in found] == ["compiled"] * 3
    assert [report.manifest.program_digest for report in found] == [program.fingerprint for program in wanted]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [report.tier for report in vyre.prewarm(wanted, backend=backend)] == ["memory"] * 3
    from vyre.front.compile import open_backend

    monkeypatch.setattr(open_backend(backend).inner, "compile_native", None)  # which no call asks for any more
    x = np.arange(5, dtype=np.float32)
    assert times.on(backend)(x, k=41).tobytes() == (x * 41).tobytes()
    vyre.driver.selection.registry.refresh()
    assert [report.tier for report in vyre.prewarm(wanted, backend=backend)] == ["disk"] * 3


def test_several_are_compiled_at_once(guard, compiling):
    together = threading.Barrier(3, timeout=WAIT_S)
    compiling(lambda program: together.wait())  # which one at a time would never pass
    found = vyre.prewarm(programs(3), backend=guard, threads=3)
    assert [report.cache_hit for report in found] == [False] * 3


def test_equal_programs_are_compiled_once(guard, compiling):
    vyre.prewarm(programs(1) * 5 + programs(2), backend=guard, threads=4)
    assert sorted(guard.asked) == sorted(program.fingerprint for program in programs(2))


def test_one_that_fails_keeps_none_of_the_others_from_being_compiled(guard, compiling):
    bad = programs(4)[1].fingerprint

    def fail(program):
        if program.fingerprint == bad:
            raise KernelCompileFailed("no", fix="do")

    compiling(fail)
    with pytest.raises(KernelCompileFailed):
        vyre.prewarm(programs(4), backend=guard, threads=2)
    assert sorted(guard.asked) == sorted(program.fingerprint for program in programs(4))
    compiling(lambda program: None)
    good = [program for program in programs(4) if program.fingerprint != bad]
    assert [report.tier for report in vyre.prewarm(good, backend=guard)] == ["memory"] * 3
    ended = prewarm_all([(guard, program) for program in programs(2)])
    assert [type(one.error) for one in ended] == [type(None), KernelCompileFailed]
    assert all(one.took_s >= 0 for one in ended)


@pytest.mark.skipif(os.name != "posix", reason="no signal can be sent to a process here")
def test_an_interrupt_ends_the_wait_and_what_was_begun_is_kept(guard, compiling):
    go, main = threading.Event(), threading.main_thread().ident

    def wait(program):
        signal.pthread_kill(main, signal.SIGINT)
        go.wait(WAIT_S)

    compiling(wait)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            vyre.prewarm(programs(5), backend=guard, threads=1)
    finally:
        go.set()
        signal.signal(signal.SIGINT, before)
    for thread in threading.enumerate():
        if thread.name.startswith("vyre-prewarm"):
            thread.join(WAIT_S)
    compiling(lambda program: None)
    assert guard.asked == [programs(1)[0].fingerprint]
    assert [report.tier for report in vyre.prewarm(programs(2), backend=guard)] == ["memory", "compiled"]


def test_one_that_no_backend_runs_keeps_none_of_the_others_from_being_compiled(guard, compiling, monkeypatch):
    from vyre.front import compile as front

    def backend_for(name, program):
        if program is wanted[0]:
            raise KernelCompileFailed("no", fix="do")
        return guard

    wanted, seen = programs(3), []
    monkeypatch.setattr(front, "backend_for", backend_for)
    with pytest.raises(KernelCompileFailed):
        vyre.prewarm(wanted, progress=lambda *counts: seen.append(counts))
    assert sorted(guard.asked) == sorted(program.fingerprint for program in wanted[1:])
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_an_error_of_progress_ends_it(guard):
    def fail(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        vyre.prewarm(programs(3), backend=guard, progress=fail)


def test_the_code_is_that_of_a_call_with_the_same_config(guard, compiling):
    config = vyre.DispatchConfig(timeout=30.0)
    vyre.prewarm(programs(1), backend=guard, config=config)
    assert vyre.prewarm(programs(1), backend=guard, config=config.with_(timeout=9.0))[0].tier == "memory"
    assert vyre.prewarm(programs(1), backend=guard)[0].tier == "compiled"


def test_no_programs_are_no_work(guard):
    assert vyre.prewarm([], backend=guard) == []


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: vyre.prewarm(times.program), ArgumentTypeError, "got a Program, not programs"),
        (lambda: vyre.prewarm(7), ArgumentTypeError, "got a int, not programs"),
        (lambda: vyre.prewarm([times]), ArgumentTypeError, "got a Kernel among the programs"),
        (lambda: vyre.prewarm([times.program], threads=0), ArgumentValueError, "threads=0 compile nothing"),
        (lambda: vyre.prewarm([times.program], threads="2"), ArgumentTypeError, "threads is a str"),
        (lambda: vyre.prewarm([times.program], progress=1), ArgumentTypeError, "progress is a int"),
        (lambda: vyre.prewarm([times.program], backend=7), ArgumentTypeError, "backend is int, not a VyreBackend"),
        (lambda: vyre.prewarm([times.program], config=7), ArgumentTypeError, "config is int"),
    ],
)
def test_what_is_no_program_or_number_of_threads_is_refused(call, error, words):
    with pytest.raises(error, match=f"{words}.* Fix: "):
        call()
