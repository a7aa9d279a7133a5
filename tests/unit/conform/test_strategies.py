"""The programs that everything else is tested with: that they reach every corner, and keep what they promise."""

import random
from functools import cache
from math import prod

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.conform.programs.random_exprs import MAX_INVOCATIONS
from vyre.conform.programs.random_values import edge_bits, random_bytes
from vyre.conform.programs.strategies import (
    arbitrary_programs,
    buffers,
    cast_types,
    element_types,
    predicates,
    valid_programs,
)
from vyre.foundation.check.gridsync import contains_grid_sync, is_sync, segments
from vyre.foundation.check.validate import Capabilities, validate
from vyre.foundation.formats.text import PREDICATES
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import ARRAY_TAG, BY_NAME, LIVE_TAGS, OPAQUE_TAG, QUANTIZED_TAG, VEC_TAG, f32, i8, u32
from vyre.foundation.ir.nodes import Atomic, Barrier, Cast, Expr, If, Loop, Node, Region, Return, Var, lit
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Access, LinearType, Locality, MemoryKind, Program
from vyre.foundation.ir.visit import bodies, children, rewrite, walk

pytestmark = pytest.mark.check

CASES, GRID_CASES = 400, 120
SLOW = [HealthCheck.too_slow]
ANYTHING = {c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, Expr | Node)} - {Expr, Node}


@cache
def case_of(seed, grid_barriers=False):
    return random_program(random.Random(seed), grid_barriers=grid_barriers)


def cases(count=CASES):
    return [case_of(seed) for seed in range(count)]


def grid_cases(count=GRID_CASES):
    return [case_of(seed, True) for seed in range(count)]


def named(cases, grid_cases):
    """Seeds of both kinds; a case is made by the test that needs it."""
    return [(seed, False) for seed in range(cases)] + [(seed, True) for seed in range(grid_cases)]


def things(program):
    return list(walk(program.entry))


# ---- programs of every shape ----------------------------------------------------------------------------------------


QUICK = settings(derandomize=True, database=None, deadline=None, suppress_health_check=SLOW, phases=[Phase.generate])
PARAMETRIC = {ARRAY_TAG, QUANTIZED_TAG, OPAQUE_TAG}


def reaches(strategy, facts, wanted, max_examples=2000):
    """Draw until every wanted fact was seen, or `find` gives up."""
    missing = set(wanted)

    def seen_all(value):
        missing.difference_update(facts(value))
        return not missing

    find(strategy, seen_all, settings=settings(QUICK, max_examples=max_examples))


def test_arbitrary_programs_reach_every_class():
    reaches(arbitrary_programs(), lambda p: {type(x) for x in things(p)}, ANYTHING)


def test_arbitrary_programs_reach_every_table_of_operators():
    tables = {BinaryOp, UnaryOp, AtomicOp, ReduceOp, CollectiveOp, OpaqueOp}
    reaches(arbitrary_programs(), lambda p: {type(x.op) for x in things(p) if hasattr(x, "op")}, tables)


def test_arbitrary_programs_reach_wrapped_bare_and_empty_entries():
    def facts(p):
        regions = [isinstance(n, Region) for n in p.entry]
        yield ("no", "one", "several")[min(len(regions), 2)], all(regions)
        yield "exclusive", p.exclusive
        yield "id", p.entry_op_id is None

    entries = {("no", True), ("one", True), ("one", False), ("several", True), ("several", False)}
    flags = {(name, value) for name in ("exclusive", "id") for value in (True, False)}
    reaches(arbitrary_programs(), facts, entries | flags)


def test_types_reach_every_tag_where_the_wire_form_can_hold_it():
    simple = {t.tag for t in BY_NAME.values()}
    reaches(element_types, lambda t: {t.tag}, simple | PARAMETRIC)
    reaches(cast_types, lambda t: {t.tag}, simple | PARAMETRIC | {VEC_TAG})
    with pytest.raises(NoSuchExample):
        reaches(element_types, lambda t: {t.tag}, {VEC_TAG}, max_examples=200)


def test_predicates_reach_every_kind():
    reaches(predicates, lambda p: {p.kind}, PREDICATES)


def test_buffers_reach_every_access_kind_and_flag():
    def facts(b):
        yield from (b.access, b.kind, b.linear_type, b.hints.locality)
        yield from (f for f in flags if getattr(b, f))

    flags = {"is_output", "live_out", "bytes_extraction", "output_byte_range", "shape_predicate"}
    reaches(buffers(), facts, {*Access, *MemoryKind, *LinearType, *Locality} | flags)


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(arbitrary_programs())
def test_arbitrary_programs_are_encodable_and_less_than_60_deep(program):
    assert depth(program) < 60
    assert Program.from_wire(program.to_wire()) == program


def depth(program):
    """Statements and expressions counted together."""
    deepest, stack = 0, [(x, 1) for x in program.entry]
    while stack:
        item, level = stack.pop()
        deepest = max(deepest, level)
        inner = children(item) + (tuple(n for body in bodies(item) for n in body) if isinstance(item, Node) else ())
        stack.extend((x, level + 1) for x in inner)
    return deepest


# ---- valid programs -------------------------------------------------------------------------------------------------


def errors(program):
    return [i for i in validate(program, capabilities=Capabilities.everything()) if i.severity == "error"]


def test_a_seed_names_one_case():
    assert random_program(random.Random(7)) == random_program(random.Random(7)) != random_program(random.Random(8))


@pytest.mark.parametrize("seed, grid_barriers", named(CASES, GRID_CASES))
def test_a_random_case_is_valid_and_its_inputs_fit(seed, grid_barriers):
    case = case_of(seed, grid_barriers)
    assert errors(case.program) == []
    assert 1 <= prod(case.grid) * prod(case.program.workgroup_size) <= MAX_INVOCATIONS
    for decl, data in zip(case.program.host_inputs, case.inputs, strict=True):
        assert len(data) % decl.element.size == 0
        assert decl.nbytes in (None, len(data))
    unsized = {b.name for b in case.program.host_outputs if not b.count and not b.is_host_input}
    assert case.output_elements.keys() == unsized


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(valid_programs(max_statements=8))
def test_a_drawn_case_is_valid(case):
    assert errors(case.program) == []


@pytest.mark.parametrize("seed, grid_barriers", named(80, 60))
def test_a_random_case_has_no_race_and_one_result(seed, grid_barriers):
    assert_one_result(case_of(seed, grid_barriers))


def assert_one_result(case):
    options = {"grid": case.grid, "output_elements": case.output_elements, "engine": "scalar"}
    forward = run(case.program, case.inputs, detect_races=True, **options)
    backward = run(case.program, case.inputs, schedule="reversed", **options)
    assert forward.races == ()
    assert forward.outputs == backward.outputs


@pytest.mark.soak
@pytest.mark.parametrize("block", range(16))
def test_random_cases_have_no_race_and_one_result_for_long(block):
    for seed in range(block, 40_000, 16):
        assert_one_result(case_of(seed, grid_barriers=seed % 5 == 0))


def test_random_cases_reach_every_operator_type_and_statement():
    items = [x for case in cases() for x in things(case.program)]
    ops = {x.op for x in items if hasattr(x, "op")}
    assert ops >= {op for op in BinaryOp if op.rule != "wave" and not op.is_function}
    assert ops >= {op for op in UnaryOp if not op.is_function}
    assert ops >= {op for op in AtomicOp if op.order_free} | set(ReduceOp)
    decls = [b for case in cases() for b in case.program.buffers]
    for access in Access:
        assert {b.element.tag for b in decls if b.access is access} == LIVE_TAGS, access
    names = {
        *("Let", "Assign", "Store", "If", "Loop", "Return", "Block", "Barrier", "Region", "Select", "Fma", "Bitcast"),
        *("SubgroupShuffle", "SubgroupBallot", "SubgroupReduce", "SubgroupLocalId", "SubgroupSize", "BufLen"),
    }
    assert {type(x).__name__ for x in items} >= names
    workgroups = {case.program.workgroup_size for case in cases()}
    assert workgroups >= {(1, 1, 1), (7, 1, 1), (32, 1, 1), (33, 1, 1), (64, 1, 1), (4, 4, 1), (2, 3, 4)}
    assert {1, 2, 3} <= {prod(case.grid) for case in cases()}


def test_random_cases_have_loops_that_end_by_a_flag_and_returns_inside_branches():
    def leaves_by_flag(x):
        return isinstance(x, Loop) and len(x.body) == 1 and isinstance(x.body[0], If) and x.stop == lit(0xFFFFFFFF)

    items = [x for case in cases() for x in things(case.program)]
    assert sum(map(leaves_by_flag, items)) > 20
    assert sum(isinstance(x, If) and bool(x.then) and isinstance(x.then[-1], Return) for x in items) > 20


def test_random_cases_with_grid_wide_barriers_need_them():
    """Most exchange data between workgroups: with barriers of the workgroup alone they would race."""
    segmented = [segments(case.program) for case in grid_cases()]
    assert {len(parts) for parts in segmented} == {2, 3, 4}
    assert sum(any(part.live_in for part in parts) for parts in segmented) > 60
    racing = 0
    for case in grid_cases(60):
        entry = rewrite(case.program.entry, node=lambda n: Barrier() if is_sync(n) else n)
        narrow = case.program.replace(entry=entry)
        result = run(narrow, case.inputs, grid=case.grid, output_elements=case.output_elements, detect_races=True)
        racing += bool(result.races)
    assert racing > 20
    assert not any(contains_grid_sync(case.program) for case in cases())


def test_grid_wide_exchange_is_by_owner_by_reading_and_by_atomics():
    found = set()
    for case in grid_cases():
        for part in segments(case.program):
            for item in things(part.program):
                if getattr(item, "buffer", "").startswith("grid"):
                    found.add(type(item).__name__)
    assert found >= {"Load", "Store", "Atomic"}
    without = [random_program(random.Random(s), grid_barriers=True, atomics=False).program for s in range(60)]
    assert not any(isinstance(x, Atomic) and p.buffer(x.buffer).binding for p in without for x in things(p))


def test_random_cases_read_inside_and_outside_buffers_and_write_something():
    loads = written = 0
    for case in cases(60):
        result = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
        loads += result.oob.loads > 0
        written += any(any(out) for out in result.outputs)
    assert loads > 15
    assert written > 40


@pytest.mark.parametrize(
    "option, absent",
    [
        ("floats", lambda p: any(b.element.is_float for b in p.buffers)),
        ("wide", lambda p: {b.element.name for b in p.buffers} & {"u64", "i64", "f64", "f16", "bf16"}),
        ("atomics", lambda p: any(isinstance(x, Atomic) and p.buffer(x.buffer).binding for x in things(p))),
        ("shared", lambda p: any(b.is_workgroup for b in p.buffers)),
        ("barriers", lambda p: any(isinstance(x, Barrier) for x in things(p))),
        ("subgroups", lambda p: any(type(x).__name__.startswith("Subgroup") for x in things(p))),
    ],
)
def test_an_option_switches_a_feature_off(option, absent):
    with_it = [random_program(random.Random(seed)).program for seed in range(30)]
    without = [random_program(random.Random(seed), **{option: False}).program for seed in range(30)]
    assert any(absent(p) for p in with_it)
    assert not any(absent(p) for p in without)
    assert all(errors(p) == [] for p in without)


def test_without_floats_and_wide_types_no_expression_has_one():
    for seed in range(60):
        program = random_program(random.Random(seed), floats=False, wide=False).program
        used = {x.target.name for x in things(program) if isinstance(x, Cast)}
        assert used <= {"u32", "i32", "bool", "u8", "u16", "i8", "i16"}


def test_fewer_statements_make_smaller_programs():
    small = [len(things(random_program(random.Random(s), max_statements=2).program)) for s in range(60)]
    large = [len(things(random_program(random.Random(s), max_statements=30).program)) for s in range(60)]
    assert sum(small) * 2 < sum(large)
    assert random_program(random.Random(0), max_statements=0).program.entry


def test_bytes_are_mostly_edges():
    data = random_bytes(random.Random(0), f32, 1000)
    found = [int.from_bytes(data[k : k + 4], "little") for k in range(0, 4000, 4)]
    assert set(edge_bits(f32)) <= set(found)
    assert len(random_bytes(random.Random(0), i8, 5)) == 5
    assert {0, 1, 2**31, 2**32 - 1} <= set(edge_bits(u32))


def test_owned_slots_are_the_only_ones_written():
    """Outputs are stored to at an index that moves with the invocation, never at a constant one."""
    for case in cases(100):
        for x in things(case.program):
            if isinstance(x, ir.Store):
                assert any(isinstance(e, ir.InvocationId | ir.LocalId | Var) for e in walk(x.index)), x
