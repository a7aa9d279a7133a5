"""The cpu backend as its callers meet it: whose memory is written, what a pool never shows, and how dispatches end."""

import gc
import os
import random
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, LONG, NUMBER, TRAP, unwords, words

from vyre.backends.cpu import REGISTRATION, CpuBackend, Switches, exactness
from vyre.backends.cpu.build import ObjectCode
from vyre.backends.cpu.devices import host, unavailable
from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.driver.admission.program import why_not
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.pipeline import attach_store
from vyre.driver.selection import registry
from vyre.errors import (
    BackendError,
    DeadlineExceeded,
    DispatchFailed,
    InvalidProgram,
    KernelCompileFailed,
    Trap,
    UnsupportedFeature,
)
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import AsyncWait, IndirectDispatch, InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read_write, write_only
from vyre.lower.options import PASSES
from vyre.runtime import float_probe as canon

from ...support.busy_devices import under_way
from ...support.cpu_kernels import (
    LARGE,
    ROUNDS,
    arange,
    bump,
    compiled,
    histogram,
    largest,
    scaled,
    scaled_wide,
    stirred,
)
from ...support.kept_code import KeptCode

GID = InvocationId(0)


@pytest.fixture(scope="module")
def backend():
    made = CpuBackend(threads=3)
    yield made
    made.shutdown()


# ---- opening --------------------------------------------------------------------------------------------------------


def test_it_is_registered_behind_its_guard_and_opens_without_threads():
    before = threading.active_count()
    with registry.isolated(REGISTRATION):
        opened = registry.acquire("cpu")
        assert opened.id == "cpu"
        assert threading.active_count() == before
        assert opened.dispatch(COUNT, [words(1)]) == [words(2)]
        assert registry.select(ADD).backend.id == "cpu"
        opened.shutdown()


def test_importing_the_package_loads_no_compiler():
    script = (
        "import sys, vyre.backends.cpu as cpu; cpu.REGISTRATION; assert not {'llvmlite', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("package", ["llvmlite", "_cffi_backend"])
def test_what_is_missing_is_said(monkeypatch, package):
    assert unavailable() is None
    monkeypatch.setattr("vyre.backends.cpu.devices.find_spec", lambda name: None if name == package else object())
    assert "is not installed: pip install" in unavailable()


def test_unknown_names_of_the_package_are_unknown():
    import vyre.backends.cpu as cpu

    with pytest.raises(AttributeError, match="nothing"):
        cpu.nothing  # noqa: B018


def test_the_capability_names_what_code_depends_on(backend):
    found = backend.capability
    assert found.extras["processor"] == host().name
    others = [
        CpuBackend(Switches(scalar=True)),
        CpuBackend(Switches(soft_flush=True)),
        CpuBackend(Switches(off=frozenset(("cse",)))),
    ]
    assert len({found.digest(), *(o.capability.digest() for o in others)}) == 4
    keys = {pipelines.compile(b, ADD).key for b in (backend, *others)}
    assert len(keys) == 4


def test_the_profile_names_the_processor(backend):
    profile = backend.device_profile()
    assert (profile.backend, profile.device, profile.compute_units) == ("cpu", host().name, 3)


def test_a_statement_that_is_not_lowered_is_not_admitted(backend):
    program = Program([read_write("n", 0, u32_type)], (1, 1, 1), [AsyncWait("copy")])
    assert why_not(program, backend) is not None
    with pytest.raises((UnsupportedFeature, BackendError), match="Fix: "):
        backend.dispatch(program, [words(1)])


# ---- the exactness probe --------------------------------------------------------------------------------------------


@pytest.fixture
def probe_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_digests_of_the_probe_are_those_of_the_reference():
    program = canon.probe_program()
    columns = [struct.pack(f"<{len(canon.TRIPLES)}I", *c) for c in zip(*canon.TRIPLES, strict=True)]
    (out,) = run(program, columns, grid=(-(-len(canon.TRIPLES) // 64), 1, 1), engine="numpy").outputs
    assert canon.differing(bytes(out)) == ()
    for k, name in enumerate(canon.CANONICAL):
        wrong = bytearray(out)
        wrong[4 * k] ^= 1
        assert canon.differing(bytes(wrong)) == (name,)


@pytest.mark.parametrize(
    "switches", [Switches(), Switches(scalar=True), Switches(soft_flush=True), Switches(soft_flush=True, scalar=True)]
)
def test_this_processor_passes_the_probe_in_every_mode(switches):
    from vyre.backends.cpu.build import build

    assert canon.differing(exactness.run_probe(build(canon.probe_program(), host(), switches))) == ()


@pytest.mark.skipif(not host().x86, reason="asks about the flushing of x86")
def test_a_processor_that_fails_the_probe_flushes_in_software_and_says_why(probe_dir, monkeypatch):
    asked = []

    def wrong(built):
        asked.append(1)
        out = bytearray(exactness.run_probe(built))
        out[8] ^= 1
        return bytes(out)

    monkeypatch.setattr(exactness.why_not_hardware, "__defaults__", (wrong,))
    opened = [CpuBackend(), CpuBackend()]
    assert asked == [1]  # and remembered
    for b in opened:
        assert b.switches.soft_flush
        assert b.capability.exactness["flushed_by"] == "software: results differ in: multiply"
    x = np.array([2.0**-126, 1.0], np.float32)
    assert opened[0].dispatch(scaled.program, [x])[0] == np.array([0.0, 0.5], np.float32).tobytes()


# ---- results --------------------------------------------------------------------------------------------------------

MODES = {
    "vectors": Switches(),
    "lane by lane": Switches(scalar=True),
    "software flush": Switches(soft_flush=True),
    "nothing improved": Switches(off=frozenset(PASSES)),
}


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_mean_what_the_reference_says(mode):
    backend = CpuBackend(MODES[mode], threads=2)
    ran = 0
    for seed in range(1000, 1025):
        case = random_program(random.Random(seed), max_statements=10)
        if why_not(case.program, backend):
            continue
        ran += 1
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        expected = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
        found = [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)]
        assert found == expected, f"seed {seed}, grid {case.grid}:\n{case.program}"
    assert ran > 15


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 100, 300_000])
def test_order_free_atomics_count_everything_on_any_number_of_threads(threads, n):
    backend = CpuBackend(threads=threads)
    rng = np.random.default_rng(7)
    x, start = rng.integers(0, 256, n, np.uint8), np.arange(256, dtype=np.uint32)
    pipeline = compiled(backend, histogram.program)
    for _ in range(2):
        (out,) = pipeline.dispatch([x, start])
        assert np.array_equal(np.frombuffer(out, np.uint32), start + np.bincount(x, minlength=256).astype(np.uint32))
    y = rng.integers(-1000, -1, n, np.int32)
    assert backend.dispatch(largest.program, [y, np.int32([-2000])]) == [np.int32([y.max()]).tobytes()]
    backend.shutdown()


def test_iterations_see_the_memory_and_the_grid_of_the_last_one(backend):
    """Each pass adds one for every invocation, and writes the grid of the next pass."""
    program = Program(
        [read_write("grid", 0, u32_type), read_write("n", 1, u32_type)],
        (4, 1, 1),
        [
            IndirectDispatch("grid", 0),
            Store("n", GID, Load("n", GID) + lit(1)),
            Store("grid", lit(0), Load("grid", lit(3))),
        ],
    )
    grid, n = words(1, 1, 1, 2), words(*[0] * 8)
    for k, expected in ((1, [1] * 4 + [0] * 4), (2, [2] * 4 + [1] * 4), (3, [3] * 4 + [2] * 4)):
        outputs = backend.dispatch(program, [grid, n], DispatchConfig(fixpoint_iterations=k))
        assert unwords(outputs[1]) == expected
        assert unwords(outputs[0]) == [2, 1, 1, 2]
    stopped = backend.dispatch(program, [words(1, 1, 1, 0), n], DispatchConfig(fixpoint_iterations=5))
    assert unwords(stopped[1]) == [1] * 4 + [0] * 4


def test_a_grid_that_the_buffer_cannot_hold_is_refused(backend):
    program = Program(
        [write_only("grid", 0, u32_type), read_write("n", 1, u32_type)],
        (4, 1, 1),
        [IndirectDispatch("grid", 4), Store("n", GID, lit(1))],
    )
    for elements in (4, 3):
        config = DispatchConfig(output_elements={"grid": elements})
        if elements == 4:
            assert unwords(backend.dispatch(program, [words(5)], config)[1]) == [5]  # zeros: nothing runs
        else:
            with pytest.raises(InvalidProgram, match=r"no grid in buffer 'grid'.*Fix: bind at least 16 bytes"):
                backend.dispatch(program, [words(5)], config)


def test_a_trap_says_where_and_nothing_is_written(backend):
    target = bytearray(b"\xa5" * 4)
    for _ in range(2):
        with pytest.raises(Trap, match=r"seven.*Fix: ") as e:
            backend.dispatch(TRAP, [words(0)], out=[target])
        assert e.value.context["tag"] == "seven"
        assert e.value.context["invocation"] == (0, 0, 0)
        assert target == b"\xa5" * 4


# ---- floats outside -------------------------------------------------------------------------------------------------

TINY = np.array([1e-40, -3e-42], np.float32)


def numpy_keeps_subnormals():
    return bool((TINY * np.float32(0.5) != 0).all())


def test_the_floats_of_the_process_stay_as_they_are(backend):
    pipelines.compile(backend, LONG, DispatchConfig(timeout=60))
    assert numpy_keeps_subnormals()
    backend.dispatch(scaled.program, [TINY])
    assert numpy_keeps_subnormals()
    with pytest.raises(Trap):
        backend.dispatch(TRAP, [words(0)])
    assert numpy_keeps_subnormals()
    with pytest.raises(DeadlineExceeded):
        backend.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.05))
    assert numpy_keeps_subnormals()
    found = []
    task = backend.pool.start(lambda: found.append(numpy_keeps_subnormals()))  # where a kernel ran before
    assert task.wait(10)
    assert found == [True]


def test_f32_flushes_and_f64_underflows_gradually(backend):
    assert backend.dispatch(scaled.program, [TINY])[0] == np.array([0.0, -0.0], np.float32).tobytes()
    x = np.array([5e-324, 3e-310, 2.3e-308], np.float64)
    assert backend.dispatch(scaled_wide.program, [x])[0] == (x * 0.5).tobytes()
    assert (x * 0.5).tolist()[1] != 0


# ---- deadlines, signals, asynchronous dispatch ----------------------------------------------------------------------


def test_a_program_that_never_ends_ends_at_its_deadline(backend):
    pipelines.compile(backend, LONG, DispatchConfig(timeout=60))
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"in time.*Fix: "):
        backend.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.2))
    assert time.monotonic() - start >= 0.2
    assert backend.dispatch(COUNT, [words(1)]) == [words(2)]


def test_a_deadline_in_good_time_changes_nothing(backend):
    x, config = arange(LARGE), DispatchConfig(timeout=60)
    expected = backend.dispatch(stirred.program, [x, words(10)])
    assert backend.dispatch(stirred.program, [x, words(10)], config) == expected
    target = bytearray(4 * LARGE)
    assert backend.dispatch(stirred.program, [x, words(10)], config, out=[target]) == expected


CTRL_C = """
import os, signal, threading
from tests.contract.programs import LONG, words
from vyre.backends.cpu import CpuBackend
from vyre.driver.guard import compile as pipeline
compiled = pipeline.compile(CpuBackend(), LONG)
threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    compiled.dispatch([words(0)])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_ctrl_c_ends_hours_of_work():
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "interrupted\n"


def test_a_started_dispatch_goes_on_by_itself(backend):
    pipeline = compiled(backend, stirred.program)

    def start(rounds):
        inputs = [arange(64), words(rounds)]
        return pipeline.dispatch_async(inputs), inputs

    pending, inputs = under_way(start, ROUNDS)
    inputs[0][:] = 0
    assert pending.result() == pipeline.dispatch([arange(64), inputs[1]])
    assert pending.is_ready()


def test_started_dispatches_are_under_way_together(backend):
    pipeline = compiled(backend, stirred.program)

    def start(rounds):
        inputs = [arange(64), words(rounds)]
        first, second = pipeline.dispatch_async(inputs), pipeline.dispatch_async([arange(64), words(1)])
        second.result()
        return first, inputs

    first, inputs = under_way(start, ROUNDS)  # the later one has overtaken it
    assert first.result() == pipeline.dispatch(inputs)


def test_a_started_dispatch_that_fails_says_so_with_its_label(backend):
    pending = backend.dispatch_async(TRAP, [words(0)], DispatchConfig(label="step 4"))
    with pytest.raises(Trap, match="seven") as e:
        pending.result()
    assert e.value.context["label"] == "step 4"


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_shutdown_waits_for_what_was_started_and_refuses_the_rest():
    backend = CpuBackend(threads=2)
    pipeline = compiled(backend, bump.program)
    native = pipeline.native
    pipeline.dispatch([arange(64)])
    pending = native.dispatch_async([arange(LARGE)])
    backend.shutdown()
    backend.shutdown()
    assert pending.result() == [(2 * arange(LARGE) + 1).tobytes()]
    for use in (
        lambda: native.dispatch([arange(64)]),
        lambda: native.dispatch_async([arange(64)]),
        lambda: backend.dispatch(COUNT, [words(1)]),
        lambda: backend.compile_native(COUNT, DispatchConfig()),
        lambda: backend.load_native(COUNT, DispatchConfig(), native.serialize()),
    ):
        with pytest.raises(BackendError, match=r"shut down .*Fix: "):
            use()


def test_a_closed_pipeline_refuses(backend):
    native = backend.compile_native(bump.program, DispatchConfig())
    native.dispatch([arange(64)])
    native.close()
    native.close()
    for use in (native.dispatch, native.dispatch_async):
        with pytest.raises(DispatchFailed, match=r"the pipeline is closed .*Fix: "):
            use([arange(64)])


def test_code_outlives_its_pipeline_while_it_runs(backend):
    native = backend.compile_native(stirred.program, DispatchConfig())

    def start(rounds):
        inputs = [arange(64), words(rounds)]
        return native.dispatch_async(inputs), inputs

    pending, inputs = under_way(start, ROUNDS)
    native.close()
    gc.collect()
    assert pending.result() == backend.dispatch(stirred.program, inputs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_told_to_open_its_own(backend):
    script = """
import os, sys
from tests.contract.programs import COUNT, words
from tests.support.cpu_kernels import arange, stirred
from vyre.backends.cpu import CpuBackend
from vyre.errors import DispatchFailed
backend = CpuBackend(threads=2)
native = backend.compile_native(COUNT, __import__("vyre").DispatchConfig())
assert native.dispatch([words(1)]) == [words(2)]
on_threads = stirred.program, [arange(5000), words(10)]
expected = backend.dispatch(*on_threads)
child = os.fork()
if not child:
    for use in (lambda: native.dispatch([words(1)]), lambda: backend.dispatch(COUNT, [words(1)])):
        try:
            use()
        except DispatchFailed as e:
            assert "spawn" in str(e), e
        else:
            os._exit(3)
    backend.flush()
    backend.shutdown()
    assert CpuBackend(threads=2).dispatch(COUNT, [words(1)]) == [words(2)]
    assert CpuBackend(threads=2).dispatch(*on_threads) == expected
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert native.dispatch([words(1)]) == [words(2)]
assert backend.dispatch(*on_threads) == expected
"""
    root = Path(__file__).parents[3]
    options = ["-W", "ignore::DeprecationWarning"]  # of fork beside threads, which this is about
    subprocess.run([sys.executable, *options, "-c", script], cwd=root, check=True, timeout=60)


def test_dispatches_from_many_threads_equal_the_serial_ones(backend):
    pipeline = compiled(backend, bump.program)
    sizes = [64, 65, 1000, LARGE]
    expected = {n: (2 * arange(n) + 1).tobytes() for n in sizes}
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(50):
            n = rng.choice(sizes)
            if pipeline.dispatch([arange(n)])[0] != expected[n]:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- code that is kept ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program", [COUNT, TRAP, histogram.program, stirred.program], ids=["count", "trap", "atomics", "loop"]
)
def test_stored_code_is_used_by_the_next_backend(program):
    store = KeptCode()
    made, found = CpuBackend(threads=2), CpuBackend(threads=2)
    for b in (made, found):
        attach_store(b, store)
    first = pipelines.compile(made, program)
    second = pipelines.compile_with_telemetry(found, program)
    assert second.cache_hit
    assert (found.metrics()["compiled_programs"], found.metrics()["loaded_programs"]) == (0, 1)
    assert second.pipeline.native.built == first.native.built


def test_stored_code_runs(backend):
    native = backend.compile_native(histogram.program, DispatchConfig())
    again = backend.load_native(histogram.program, DispatchConfig(), native.serialize())
    x = np.arange(100_000, dtype=np.uint32).astype(np.uint8)
    inputs = [x, np.zeros(256, np.uint32)]
    assert again.dispatch(inputs) == native.dispatch(inputs)


def test_damaged_code_is_refused(backend):
    payload = backend.compile_native(COUNT, DispatchConfig()).serialize()
    for damaged in (b"", b"vcpu", payload[:20], b"x" + payload[1:], payload.replace(b'"format": ', b'"format": 9')):
        with pytest.raises(KernelCompileFailed, match=r"the stored code is damaged.*Fix: "):
            ObjectCode.from_bytes(damaged)
    with pytest.raises(KernelCompileFailed, match="could not be loaded"):
        backend.load_native(COUNT, DispatchConfig(), payload[:-1000])


def test_many_shapes_and_configs_are_forgotten_in_time(backend):
    native = backend.compile_native(bump.program, DispatchConfig())
    for n in range(1, 200):
        assert native.dispatch([arange(n)])[0] == (2 * arange(n) + 1).tobytes()
    for k in range(200):
        for _ in range(2):
            config = DispatchConfig(grid_override=(1 + k % 3, 1, 1))  # often at the address of an earlier one
            found = native.dispatch([np.zeros(200, np.uint32)], config)[0]
            assert np.count_nonzero(np.frombuffer(found, np.uint32)) == 64 * (1 + k % 3)
    assert len(native._planned) <= 64


@pytest.mark.soak
def test_memory_does_not_grow_with_the_number_of_programs():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    backend = CpuBackend(threads=2)
    after = {}
    for k in range(10_000):
        program = Program([read_write("n", 0, u32_type)], (4, 1, 1), [Store("n", GID, Load("n", GID) + lit(k))])
        assert unwords(backend.dispatch(program, [words(1)])[0]) == [1 + k]
        if k + 1 in (1_000, 10_000):
            gc.collect()
            after[k + 1] = resident()
    assert after[10_000] <= after[1_000] + (64 << 20)


def test_number_is_what_the_contract_says(backend):
    assert unwords(backend.dispatch(NUMBER, [], DispatchConfig(output_elements={"out": 3}))[0]) == [1, 2, 3]
