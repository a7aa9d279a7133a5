"""No order in which a device runs invocations is taken for a mistake, and where no order can show, none is doubted."""

import logging
import random
import struct
from contextlib import suppress

import pytest

import vyre
from vyre import InOut, Out, atomic_add, gid, u32
from vyre.backends.reference import REGISTRATION as REFERENCE
from vyre.backends.reference import Schedule, run
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard import compile as pipeline
from vyre.driver.verify.shadow import ShadowedPipeline
from vyre.errors import Trap

from ....support.device_backends import IDS, open_or_skip
from ....support.returned_values import random_case

SCHEDULES = ["reversed", "lockstep", *map(Schedule.seeded, range(3))]
BACKENDS = pytest.mark.parametrize("id", ["cpu", *IDS])
TELLING = (30, 1, 2)
"""Seeds of programs. The first one traps in most orders, and on some devices in none."""


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def shadowed(main, program):
    return ShadowedPipeline(pipeline.compile(main, program), pipeline.compile(REFERENCE.open(), program))


def explored(program, inputs, groups=1, output_elements=None):
    compiled = REFERENCE.open().compile_native(program, DEFAULT_CONFIG)
    config = DispatchConfig(grid_override=(groups, 1, 1), output_elements=output_elements)
    return compiled.explore(inputs, config, max_steps=1 << 18)


@vyre.kernel(workgroup=64)
def in_step(c: InOut[u32], out: Out[u32]):
    """Whether invocations take turns at every single atomic."""
    first = atomic_add(c, 0, 1)
    second = atomic_add(c, 0, 1)
    third = atomic_add(c, 0, 1)
    fourth = atomic_add(c, 0, 1)
    even = second - first == third - second and third - second == fourth - third
    out[gid.x] = u32(even and second - first > 1)


@BACKENDS
@pytest.mark.parametrize("groups", [1, 64])
def test_lockstep_is_no_divergence(id, groups):
    both = shadowed(open_or_skip(id), in_step.program)
    sizes = {"out": 64 * groups}
    both.dispatch([words(0)], DispatchConfig(grid_override=(groups, 1, 1), output_elements=sizes))
    assert both.shadow.divergences == 0
    assert both.shadow.samples + both.shadow.skips["order"] == 1


@BACKENDS
def test_no_backend_is_blamed_for_what_atomics_return(id, caplog):
    caplog.set_level(logging.ERROR, "vyre.shadow")
    backend = open_or_skip(id)
    for seed in TELLING:
        program, groups, inputs = random_case(random.Random(seed))
        both = shadowed(backend, program)
        with suppress(Trap):
            both.dispatch(inputs, DispatchConfig(grid_override=(groups, 1, 1)))
        assert both.shadow.divergences == 0
        assert both.shadow.samples + both.shadow.skips["order"] == 1


@pytest.mark.parametrize("seed", range(40))
def test_what_is_not_doubted_is_the_same_in_every_order(seed):
    program, groups, inputs = random_case(random.Random(seed), sizes=(4, 8), most=2)
    told = explored(program, inputs, groups)
    for schedule in SCHEDULES if not (told.reason or told.doubt) else ():
        try:
            found = run(program, inputs, grid=(groups, 1, 1), schedule=schedule).outputs
        except Trap:
            assert isinstance(told.outputs, Trap)
        else:
            assert found == told.outputs


@vyre.kernel(workgroup=8)
def histogram(n: InOut[u32]):
    at = n[gid.x % 2 + 2] % 2
    atomic_add(n, at, 1)


def test_an_atomic_whose_old_value_is_unused_raises_no_doubt():
    assert histogram.program.determinism == "unproved"
    told = explored(histogram.program, [words(0, 0, 4, 5)], groups=2)
    assert (told.outputs, told.reason, told.doubt) == ([words(8, 8, 4, 5)], "", "")


@vyre.kernel(workgroup=8)
def own_counters(n: InOut[u32], out: Out[u32]):
    out[gid.x] = atomic_add(n, n[8] + gid.x, 3) + atomic_add(n, n[8] + gid.x, 3)


def test_old_values_that_no_other_invocation_decides_raise_no_doubt():
    assert own_counters.program.determinism == "unproved"
    told = explored(own_counters.program, [words(*[2] * 8, 0)], output_elements={"out": 8})
    assert (told.outputs[1], told.reason, told.doubt) == (words(*[7] * 8), "", "")


@vyre.kernel(workgroup=4)
def claimed(n: InOut[u32], out: InOut[u32]):
    if atomic_add(n, 0, 1) == 0:
        atomic_add(out, 0, 1)


def test_an_old_value_that_others_decide_is_a_doubt_even_where_tried_orders_agree():
    """The first one counts itself, whichever invocation that is."""
    told = explored(claimed.program, [words(0), words(0)])
    assert (told.outputs, told.reason) == ([words(4), words(1)], "")
    assert told.doubt.startswith("it uses what an atomic returns on n[0]\n  atomic_add by invocation (0, 0, 0) at ")
    assert "if atomic_add(n, 0, 1) == 0:" in told.doubt


@vyre.kernel(workgroup=3)
def raced_for(n: InOut[u32]):
    if gid.x == 0 and n[0] != 1:
        vyre.trap("not one", gid.x)
    if gid.x > 0:
        atomic_add(n, 0, 1)


def test_a_trap_does_not_hide_the_race_for_it():
    """It traps in every order but those in which just one of the others has come by."""
    told = explored(raced_for.program, [words(0)])
    assert told.reason.startswith("race on n[0]")


@vyre.kernel(workgroup=4)
def stopped(n: InOut[u32]):
    atomic_add(n, 0, 1)
    if gid.x == 2:
        vyre.trap("always", gid.x)


def test_a_trap_in_every_order_is_the_outcome():
    told = explored(stopped.program, [words(0)])
    assert (type(told.outputs), told.reason, told.doubt) == (Trap, "", "")
