"""No compiler takes the flush of subnormals away: every source of an f32 with every operator, against the reference."""

from functools import cache

import pytest

from vyre.backends.cpu import CpuBackend, Switches
from vyre.backends.cpu.devices import unavailable
from vyre.backends.reference import run
from vyre.conform.float_sweep import EDGES, KNOWN, LANES, TEMPTING, WAYS, expressions, full_cases, name_of, quick_case
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.foundation.ir.visit import walk
from vyre.lower import PASSES

from ..support.device_backends import IDS, lacking, open_or_skip

CPU = {
    "cpu": Switches(),
    "cpu scalar": Switches(scalar=True),
    "cpu without improvements": Switches(off=frozenset(PASSES)),
    "cpu software flush": Switches(soft_flush=True),
}
NAMES = [name_of(*way) for way in WAYS]


@cache
def backend_of(id):
    if id not in CPU:
        return guarded(open_or_skip(id))
    if (why := unavailable()) is not None:
        pytest.skip(why)
    return guarded(CpuBackend(CPU[id], threads=1))


def differences(backend, case):
    if case.types.intersection(lacking(backend)):
        pytest.skip("a type of this program is not here")
    found = []
    for one in case.runs:
        expected = [bytes(o) for o in run(one.program, one.inputs, grid=one.grid).outputs]
        outputs = backend.dispatch(one.program, one.inputs, DispatchConfig(grid_override=one.grid))
        found += case.differences([bytes(o) for o in outputs], expected)
    return found


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_the_flush_survives_on_the_processor(way):
    assert differences(backend_of("cpu"), quick_case(*way)) == []


@pytest.mark.parametrize(
    "id, way",
    [(id, way) for k, id in enumerate(IDS) for way in WAYS[k::5]],
    ids=lambda x: x if x in IDS else name_of(*x),
)
def test_the_flush_survives_on_a_device(id, way):
    assert differences(backend_of(id), quick_case(*way)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
@pytest.mark.parametrize("id", [*CPU, *IDS])
def test_the_flush_survives_everywhere(id, way):
    found = []
    for case in full_cases(*way):
        found += differences(backend_of(id), case)
    assert found == []


# ---- the sweep itself -----------------------------------------------------------------------------------------------


def test_over_all_sources_every_expression_occurs():
    labels = [label for label, *_ in expressions()]
    assert len(labels) == len(set(labels))
    assert set(labels) >= TEMPTING
    assert {label for way in WAYS for label in quick_case(*way).labels} == set(labels)
    assert [label for case in full_cases("load", True) for label in case.labels] == labels


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_an_expression_reads_what_no_other_reads(way):
    """Or all of them would be flushed for the sake of one."""
    case = quick_case(*way)
    program = case.runs[0].program
    if way[0] not in ("literal", "uniform"):
        whole, short = (one.inputs[0] for one in case.runs)
        assert len(whole) % (len(case.labels) * LANES) == 0 < len(whole) - len(short)
    elif way[0] == "uniform":
        assert len(case.runs) == len(EDGES)
    assert {b.name for b in program.host_outputs} == {"numbers", "words"}
    assert program.workgroup_size == (1 if way in [(k, True) for k in KNOWN] else 64, 1, 1)
    assert any(True for _ in walk(program.entry))


def test_a_difference_is_told_with_its_expression_and_its_operands():
    case = quick_case("load", False)
    good = [bytes(o) for o in run(case.runs[0].program, case.runs[0].inputs, grid=case.runs[0].grid).outputs]
    assert case.differences(good, good) == []
    wrong = bytearray(good[0])
    at = 4 * (2 * LANES + 25)
    wrong[at] ^= 1
    (line,) = case.differences([bytes(wrong), good[1]], good)
    assert line.startswith(
        f"load, in groups of 64: {case.labels[2]} as f32 differs in 1 of {LANES}, first in 25, where"
    )
    assert f"made of {EDGES[1]:08x} and {EDGES[2]:08x}: " in line
