"""Workgroups that wait for each other in one launch, and shared memory beyond what a compiler lays out."""

# ruff: noqa: F811 - fixtures are imported by their names

import re
from dataclasses import replace

import numpy as np
import pytest
from tests.contract.programs import ADD, COUNT, words

import vyre
from vyre import In, InOut, barrier, cos, f32, gid, grid_sync, lid, shared, sin, trap, u8, u32
from vyre.backends.cuda.build import build, kernel_code
from vyre.backends.cuda.emit.coarsen import cuda_code
from vyre.backends.cuda.emit.text import dynamic_bytes, dynamic_places
from vyre.backends.reference import run
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.counters import counters
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.errors import CooperativeResidencyExceeded, InvalidProgram, Trap
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import Barrier, BufLen, InvocationId, Load, Store
from vyre.foundation.ir.ops import Ordering
from vyre.foundation.ir.program import Program, read_write
from vyre.lower import LowerOptions, lower
from vyre.runtime.device import Artifact, LaunchFacts

from ...support.cuda_host import Code
from ...support.device_backends import open_or_skip
from .test_cuda_graphs import add_one, arange, backend, counted, cuda, got, put, step  # noqa: F401

GID = InvocationId(0)


# ---- workgroups that wait for each other ----------------------------------------------------------------------------

STEPS = 5


def relay(lanes=64):
    """Each step adds the values of other workgroups, so that a barrier that lets one through early is seen."""
    far = (GID * 97 + 1) % BufLen("a")
    body = []
    for k in range(STEPS):
        source, target = ("a", "b") if k % 2 == 0 else ("b", "a")
        body += [Barrier(Ordering.GRID_SYNC)] * (k > 0)
        body.append(Store(target, GID, Load(source, GID) * 3 + Load(source, far) + k))
    return Program([read_write("a", 0, u32_type), read_write("b", 1, u32_type)], (lanes, 1, 1), body)


def relayed(a, b):
    n = len(a)
    far = (np.arange(n, dtype=np.uint32) * 97 + 1) % n
    memory = {"a": a.copy(), "b": b.copy()}
    for k in range(STEPS):
        source, target = ("a", "b") if k % 2 == 0 else ("b", "a")
        memory[target] = memory[source] * np.uint32(3) + memory[source][far] + np.uint32(k)
    return memory["a"], memory["b"]


def test_a_barrier_of_the_grid_is_in_the_text_where_the_emitter_has_one():
    program = relay()
    kernel = lower(program, LowerOptions(grid_sync=True))
    text = cuda_code(kernel).text
    assert kernel.whole
    assert text.count("    grid_barrier(arrived);") == STEPS - 1
    assert re.search(r"__threadfence\(\);\s+const uint turn = atomicAdd\(arrived, 1u\)", text)
    with pytest.raises(InvalidProgram, match="cannot be inside one launch"):
        lower(program, LowerOptions())
    assert not lower(add_one.program, LowerOptions(grid_sync=True)).whole


@vyre.kernel(workgroup=64)
def waves(x: In[f32], y: InOut[f32], z: InOut[f32]):
    far = sin(x[gid.x] * 1.0e6)
    y[gid.x] = far
    grid_sync()
    z[gid.x] = far + cos(y[63 - gid.x])


def test_values_that_a_launch_keeps_across_a_barrier_of_the_grid_are_those_of_the_reference(tmp_path):
    x = np.linspace(-50, 50, 64, dtype=np.float32)
    inputs = [x.tobytes(), bytes(256), bytes(256)]
    kernel, code, _ = kernel_code(waves.program)
    assert kernel.whole
    found = Code(kernel, tmp_path, code).run(inputs, [64] * 3, (1, 1, 1))
    assert found[1:] == [bytes(o) for o in run(waves.program, inputs, grid=(1, 1, 1)).outputs]


def test_such_values_are_the_same_on_the_device(cuda):
    x = np.linspace(-50, 50, 64, dtype=np.float32)
    inputs = [x.tobytes(), bytes(256), bytes(256)]
    expected = [bytes(o) for o in run(waves.program, inputs, grid=(1, 1, 1)).outputs]
    assert [bytes(o) for o in cuda.dispatch(waves.program, inputs, DispatchConfig(cooperative=True))] == expected


@vyre.kernel(workgroup=64)
def checked(a: In[u32], b: InOut[u32], c: InOut[u32]):
    if a[gid.x] == 77:
        trap("seventy-seven")
    b[gid.x] = a[gid.x]
    grid_sync()
    c[gid.x] = b[len(b) - 1 - gid.x]


def test_a_trap_before_a_barrier_of_the_grid_lets_the_others_through(backend):
    a, zeros = arange(6400), np.zeros(6400, np.uint32)
    for timeout in (None, 30.0):
        with pytest.raises(Trap, match="seventy-seven"):
            backend.dispatch(checked.program, [a, zeros, zeros], DispatchConfig(timeout=timeout))
        found = backend.dispatch(checked.program, [a + 100, zeros, zeros], DispatchConfig(timeout=timeout))
        assert bytes(found[1]) == (a[::-1] + 100).tobytes()


def test_code_whose_workgroups_wait_for_each_other_is_not_launched_where_they_cannot(backend, monkeypatch):
    """Here a record that says so; what really waits is refused by the lowering, or runs on hardware that can."""
    made = open_or_skip(backend.id)
    native = made.compile_native(COUNT, DispatchConfig())
    monkeypatch.setattr(type(made.session().device), "most_together", lambda self, code: 0)
    assert native.holds((1, 1, 1))
    native.built = replace(native.built, facts=replace(native.built.facts, whole=True))
    assert not native.holds((1, 1, 1))
    with pytest.raises(CooperativeResidencyExceeded, match=r"1 workgroups wait for each other, and 0 run .*Fix: use a"):
        native.dispatch([words(1)])
    made.shutdown()


def test_a_grid_that_does_not_run_at_once_is_split_unless_it_must_not_be(monkeypatch):
    guard = guarded(open_or_skip("reference"))
    a, b = arange(128), arange(128) * 5
    wanted = [m.tobytes() for m in relayed(a, b)]
    for most, config, splits in (
        (2, DispatchConfig(), 0),
        (1, DispatchConfig(), 1),
        (1, DispatchConfig(cooperative=True), 0),
    ):
        pipe = pipelines.compile(guard, relay(), config)
        monkeypatch.setattr(type(pipe.native), "holds", lambda self, grid, most=most: grid[0] <= most)
        before = counters()["split_dispatches"]
        assert [bytes(o) for o in pipe.dispatch([a, b])] == wanted
        assert counters()["split_dispatches"] - before == splits
        monkeypatch.undo()
        guard.device_state.pipelines.clear()
    assert "launch: cooperative" in str(pipelines.compile(guard, relay()).explain([a, b]))
    guard.shutdown()


def test_facts_of_older_stored_code_have_no_barrier_of_the_grid():
    built = Artifact("text", b"image", LaunchFacts((64, 1, 1), whole=True))
    assert Artifact.from_bytes(built.to_bytes()).facts.whole
    assert not LaunchFacts((64, 1, 1)).whole


@pytest.mark.parametrize("groups", [1, 2, 37, 132, 1000])
def test_workgroups_that_all_run_at_once_wait_for_each_other_in_one_launch(counted, groups):
    backend, counts = counted
    n = 64 * groups
    a, b = arange(n), arange(n) * 5
    wanted = [m.tobytes() for m in relayed(a, b)]
    before = counters()["split_dispatches"]
    for _ in range(3):
        counts.clear()
        assert [bytes(o) for o in backend.dispatch(relay(), [a, b])] == wanted
        assert counts["cuLaunchCooperativeKernel"] == 1
        assert counts["cuLaunchKernel"] == 0
    assert counters()["split_dispatches"] == before
    pending = [backend.dispatch_async(relay(), [a, b]) for _ in range(6)]
    assert all([bytes(o) for o in p.result()] == wanted for p in pending)
    assert [bytes(o) for o in backend.dispatch(relay(), [a, b], DispatchConfig(timeout=30.0))] == wanted
    x, y = put(backend, a), put(backend, b)
    for _ in range(2):
        pipelines.compile(backend, relay()).dispatch_resident([x, y])
    twice = relayed(*relayed(a, b))
    assert np.array_equal(got(backend, x), twice[0])
    assert np.array_equal(got(backend, y), twice[1])


def test_more_workgroups_than_run_at_once_are_split_with_the_same_bytes(counted):
    backend, counts = counted
    program = relay(1024)
    native = pipelines.compile(backend, program).native
    most = backend.inner.session().device.most_together(native.require_open())
    assert 100 <= most <= 1000
    before = counters()["split_dispatches"]
    for groups, splits in ((most, 0), (most + 1, 1), (4 * most, 1)):
        n = 1024 * groups
        a, b = arange(n), arange(n) * 5
        counts.clear()
        assert native.holds((groups, 1, 1)) is not splits
        found = backend.dispatch(program, [a, b])
        assert [bytes(o) for o in found] == [m.tobytes() for m in relayed(a, b)]
        assert counts["cuLaunchCooperativeKernel"] == 1 - splits
        assert counters()["split_dispatches"] == before + splits
        before += splits
    with pytest.raises(CooperativeResidencyExceeded, match=rf"run at the same time.*limit={most}.*Fix: use a smaller"):
        backend.dispatch(program, [a, b], DispatchConfig(cooperative=True))
    x, y = put(backend, a), put(backend, b)
    with pytest.raises(CooperativeResidencyExceeded, match="wait for each other"):
        pipelines.compile(backend, program).dispatch_resident([x, y])
    assert backend.dispatch(ADD, [arange(), arange()])


# ---- much shared memory ---------------------------------------------------------------------------------------------


BIG = 50_000
"""Words; four times what the compiler lays out by itself."""


@vyre.kernel(workgroup=64)
def turned(x: In[u32], out: InOut[u32]):
    tail = shared(u8, 16)
    words = shared(u32, 50_000)
    for k in range(782):
        at = u32(k) * 64 + lid.x
        if at < 50_000:
            words[49_999 - at] = x[at]
    if lid.x < 16:
        tail[lid.x] = u8(lid.x)
    barrier()
    for k in range(782):
        at = u32(k) * 64 + lid.x
        if at < 50_000:
            out[at] = words[at] + u32(tail[7])


@vyre.kernel(workgroup=64)
def little(x: In[u32], out: InOut[u32]):
    words = shared(u32, 64)
    words[63 - lid.x] = x[lid.x]
    barrier()
    out[lid.x] = words[lid.x]


def test_shared_memory_that_is_too_much_for_the_compiler_is_asked_for_by_the_launch():
    kernel, code, _ = kernel_code(turned.program)
    assert dynamic_bytes(kernel) == 4 * BIG + 16
    assert "extern __shared__" in code.text
    assert sorted(dynamic_places(kernel).values()) == [0, 4 * BIG]
    assert build(turned.program, "sm_90").facts.extra["shared"] == 4 * BIG + 16
    kernel, code, _ = kernel_code(little.program)
    assert dynamic_bytes(kernel) == 0
    assert "extern __shared__" not in code.text
    assert re.search(r"__shared__ uint \w+\[64\];", code.text)


def test_the_text_with_much_shared_memory_means_the_same(tmp_path):
    x = arange(BIG)
    kernel, code, _ = kernel_code(turned.program)
    _, found = Code(kernel, tmp_path, code).run([x.tobytes(), bytes(4 * BIG)], [BIG, BIG], (1, 1, 1))
    assert np.array_equal(np.frombuffer(found, np.uint32), x[::-1] + 7)


def test_a_kernel_uses_all_shared_memory_that_the_device_has(cuda):
    assert cuda.capability.max_shared_bytes >= 99 << 10
    if cuda.capability.max_shared_bytes < 4 * BIG + 16:
        pytest.skip("this device has less shared memory")
    x = arange(BIG)
    (found,) = cuda.dispatch(turned.program, [x, np.zeros_like(x)])
    assert np.array_equal(np.frombuffer(found, np.uint32), x[::-1] + 7)
    given, out = put(cuda, x), put(cuda, np.zeros_like(x))
    pipe = pipelines.compile(cuda, turned.program, DispatchConfig(grid_override=(1, 1, 1)))
    steps = (step(turned, given, out, grid_override=(1, 1, 1)),) * 2
    for again in (lambda: pipe.dispatch_resident([given, out]), lambda: cuda.dispatch_resident(steps)):
        for _ in range(2):
            cuda.upload_resident([(out, 0, bytes(4 * BIG))])
            again()
            assert np.array_equal(got(cuda, out), x[::-1] + 7)
