"""What is decided for such a device: how its blocks are filled and what it records. No byte shows it."""

import pytest

from vyre.backends.cuda.device import CudaDevice
from vyre.driver.counters import decision_counters
from vyre.driver.guard import compile as pipelines
from vyre.driver.policy.geometry import ALONE, JOINED, WIDE
from vyre.driver.policy.launch import NEVER, RECORDED, WHEN_REPEATED
from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Assign, Barrier, InvocationId, Let, Load, Loop, Store, Var, lit
from vyre.foundation.ir.program import Program, read, read_write

from ...support.cpu_kernels import arange
from ...support.emulated_cuda import EmulatedCuda

GID = InvocationId(0)
FIRST = CudaDevice.small_dispatch_costs.first_recorded_run


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    made = EmulatedCuda(tmp_path_factory.mktemp("host"))
    yield made
    made.shutdown()


def program_of(*body, width):
    buffers = [read("a", 0, u32), read_write("c", 1, u32)]
    return Program(buffers, (width, 1, 1), [*body, Store("c", GID, Var("s"))])


def looping(width, *more):
    turns = Loop("k", lit(0), Load("a", GID) & 3, [Assign("s", Var("s") + Load("a", Var("k")))])
    return program_of(Let("s", GID), turns, *more, width=width)


def elementwise(width):
    return program_of(Let("s", Load("a", GID) + lit(1)), width=width)


def told(pipeline, inputs):
    return {d.what: (d.choice, d.reason) for d in pipeline.explain(inputs).decisions}


def grown(before):
    after = decision_counters()
    return {made: n - before.get(made, 0) for made, n in after.items() if n != before.get(made, 0)}


@pytest.mark.parametrize(
    "program, choice, reason, threads",
    [
        (looping(16), JOINED, "workgroups of 16 invocations would leave the device idle", 256),
        (looping(100), JOINED, "workgroups of 100 invocations do not fill steps of 32 threads", 256),
        (looping(64), ALONE, "64 invocations fill the device", None),
        (looping(16, Barrier()), ALONE, "its invocations know of each other", None),
        (elementwise(16), WIDE, "each thread does 4 invocations, with one access for all", None),
    ],
)
def test_how_blocks_are_filled_is_counted_and_explained_and_no_byte_shows_it(backend, program, choice, reason, threads):
    before = decision_counters()
    pipeline = pipelines.compile(backend, program)
    given = [arange(200), arange(200)]
    assert pipeline.dispatch(given) == acquire("reference").dispatch(program, given)
    found, counted = told(pipeline, given), grown(before)
    assert found["block"] == (choice, reason)
    assert counted["block", choice] == 1
    assert found.get("threads", (None,))[0] == (None if threads is None else str(threads))
    assert counted.get(("threads", str(threads)), 0) == (threads is not None)


def test_what_is_recorded_is_counted_and_explained_and_no_byte_shows_it(backend):
    before, given = decision_counters(), [arange(100), arange(100)]
    pipeline, expected = pipelines.compile(backend, looping(128)), acquire("reference").dispatch(looping(128), given)
    for k in range(1, FIRST + 3):
        recording = told(pipeline, given)["recording"]
        if k <= FIRST:
            assert recording == (
                WHEN_REPEATED, f"from run {FIRST} over buffers of these lengths, one call copies and launches"
            )  # fmt: skip
        else:
            assert recording == (RECORDED, "one call copies its inputs, launches it and copies its results")
        assert pipeline.dispatch(given) == expected
    counted = grown(before)
    assert (counted["recording", WHEN_REPEATED], counted["recording", RECORDED]) == (1, 1)
    assert ("recording", NEVER) not in counted
    given = [arange(20_000), arange(20_000)]
    pipeline.dispatch(given)
    assert told(pipeline, given)["recording"] == (
        NEVER, "its buffers have 160000 bytes together, and the copies of more than 65536 take longer"
    )  # fmt: skip
    assert grown(before)["recording", NEVER] == 1
