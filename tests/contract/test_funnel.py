"""The doubles through the driver: what a pipeline over them counts, reuses and refuses."""

import pytest

from vyre.driver import counters
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.plan.outputs import OutputSlot, replace_output_buffers_preserving_slots
from vyre.errors import DeviceLost
from vyre.foundation.ir.dtypes import u8
from vyre.foundation.ir.nodes import Return
from vyre.foundation.ir.program import Program, read, write_only

from .doubles import FullBackend, MockBackend, echo

TWO_OUTPUTS = Program(
    [read("x", 0, u8, 3), write_only("a", 1, u8, 2), write_only("b", 2, u8, 2)], (1, 1, 1), [Return()]
)
ECHO = Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])

ONE_GROUP = DispatchConfig(grid_override=(1, 1, 1))  # the most that a minimal backend launches


def grown(before):
    return {name: n - before[name] for name, n in counters.counters().items() if n != before[name]}


@pytest.mark.row("A-BE-7")
def test_a_dispatch_is_counted_and_its_outputs_go_into_the_slots_that_fit():
    class Fixed(MockBackend):
        def dispatch(self, program, inputs, config=None, *, out=None):
            return [bytearray(b"ab"), bytearray(b"cd")]

    pipeline = pipelines.compile(Fixed(), TWO_OUTPUTS, ONE_GROUP)
    pipeline.dispatch([b"xyz"])
    before, slots = counters.counters(), [OutputSlot(4), OutputSlot(1)]
    first, second = slots
    stats = replace_output_buffers_preserving_slots(pipeline.dispatch([b"xyz"]), slots)
    assert grown(before) == {"plain_dispatches": 1, "input_bytes": 3, "output_bytes": 4}
    assert (stats.slots.total_slots, stats.slots.reused_slots, stats.slots.moved_slots) == (2, 1, 1)
    assert (bytes(first), bytes(second)) == (b"ab", b"cd")
    assert slots[0] is first
    assert slots[1] is second


@pytest.mark.row("A-CP-4")
def test_a_dispatch_into_the_callers_buffers_is_counted_too():
    pipeline, out = pipelines.compile(MockBackend(), ECHO, ONE_GROUP), bytearray(3)
    before = counters.counters()
    (same,) = pipeline.dispatch([b"abc"], out=[out])
    assert same is out
    assert out == b"abc"
    counted = grown(before)
    assert (counted["plain_dispatches"], counted["input_bytes"], counted["output_bytes"]) == (1, 3, 3)


@pytest.mark.row("A-BE-14")
def test_a_recovered_backend_runs_again_and_pipelines_from_before_do_not():
    backend = FullBackend()
    program = Program([read("x", 0, u8), write_only("out", 1, u8)], (1, 1, 1), [Return()])
    stale = pipelines.compile(backend, program)
    assert stale.dispatch([b"a"]) == [b"a"]
    backend.lost = True
    assert backend.device_lost()
    backend.try_recover()
    assert not backend.device_lost()
    assert backend.dispatch(program, [b"a"]) == [b"a"]
    with pytest.raises(DeviceLost, match=r"shut down or recovered after this pipeline was compiled.*Fix: compile"):
        stale.dispatch([b"a"])
    assert pipelines.compile(backend, program).dispatch([b"b"]) == [b"b"]


@pytest.mark.row("A-BE-3")
def test_a_full_backends_own_pipeline_is_used():
    backend = FullBackend()
    pipeline = pipelines.compile(backend, ECHO)
    backend.calls.clear()
    assert pipeline.dispatch([b"a"]) == [b"a"]
    assert pipeline.dispatch_timed([b"a"]).device_ns == 5
    assert pipeline.dispatch_async([b"a"]).result() == [b"a"]
    assert pipeline.dispatch_resident([]) == []
    assert backend.calls["dispatch"] == 0
    for name in ("dispatch", "dispatch_timed", "dispatch_async", "dispatch_resident"):
        assert backend.calls[f"pipeline.{name}"] == 1


@pytest.mark.row("A-BE-4", "A-BE-6")
def test_a_minimal_backend_is_reached_by_every_dispatch_of_its_pipeline():
    class Counting(MockBackend):
        seen = 0

        def dispatch(self, program, inputs, config=None, *, out=None):
            self.seen += 1
            return echo(inputs, out)

    backend = Counting()
    pipeline = pipelines.compile(backend, ECHO)
    assert pipeline.id.startswith("mock:")
    for k in range(10):
        assert pipeline.dispatch([bytes([k])]) == [bytes([k])]
    assert backend.seen == 10
