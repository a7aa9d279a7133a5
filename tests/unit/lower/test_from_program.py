"""Program -> kernel form: the form, run by a slow interpreter of its own, gives the reference's bytes."""

import random
from itertools import product

import pytest

from vyre.backends.reference import run
from vyre.conform.programs.random import Case, random_program
from vyre.conform.programs.random_values import edge_bits
from vyre.errors import InvalidProgram, UnsupportedFeature
from vyre.foundation.ir.dtypes import BY_NAME, LIVE_TAGS, bf16, bool_, can_cast, f16, f32, f64, i32, i64, u8, u32, u64
from vyre.foundation.ir.nodes import (
    AllReduce,
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    BufLen,
    Call,
    Cast,
    Fma,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Opaque,
    OpaqueNode,
    Return,
    Select,
    Store,
    SubgroupReduce,
    Trap,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import (
    BINARY_TYPES,
    UNARY_TYPES,
    AtomicOp,
    BinaryOp,
    CollectiveOp,
    Ordering,
    ReduceOp,
    UnaryOp,
)
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup
from vyre.lower.from_program import build
from vyre.lower.kernel_ir import If as KernelIf
from vyre.lower.kernel_ir import Loop as KernelLoop
from vyre.lower.kernel_ir import show, walk
from vyre.lower.uniformity import mark_uniform

from ...support.lower_oracle import Trapped, interpret
from ...support.tiers import first_quick

BLOCK = 40
BLOCKS = 4
LIVE = sorted((t for t in BY_NAME.values() if t.tag in LIVE_TAGS), key=lambda t: t.name)
MODES = pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
I = InvocationId(0)  # noqa: E741


def expected(case):
    found = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in found.outputs]


def check(case, soft, seed=0):
    kernel = build(case.program, soft_flush=soft)
    mark_uniform(kernel)
    assert interpret(kernel, case.program, case.inputs, case.grid, case.output_elements, seed) == expected(case)


def check_seeds(seeds, soft, **options):
    for seed in seeds:
        case = random_program(random.Random(seed), **options)
        try:
            check(case, soft, seed)
        except Exception as e:
            e.add_note(f"seed {seed} of random_program, on a grid of {case.grid}:\n{case.program}")
            raise


@MODES
@pytest.mark.parametrize("block", first_quick(range(BLOCKS), 1))
def test_the_form_of_a_random_program_means_the_program(block, soft):
    check_seeds(range(block * BLOCK, (block + 1) * BLOCK), soft)


# ---- every operator, at the edges -----------------------------------------------------------------------------------


def columns(types, rows, seed=0):
    """Rows of edges as one packed buffer per type."""
    rng = random.Random(seed)
    pools = [[bits & (1 << t.bits) - 1 for bits in edge_bits(t)] for t in types]
    every = list(product(*pools))
    rng.shuffle(every)
    picked = every[:rows] + [tuple(rng.getrandbits(t.bits) for t in types) for _ in range(rows // 4)]
    return [b"".join(row[k].to_bytes(t.size, "little") for row in picked) for k, t in enumerate(types)], len(picked)


def table(types, expressions, rows=500):
    """A program that computes every expression of the loaded operands, one output each."""
    inputs, count = columns(types, rows)
    operands = [Load(f"in{k}", I) for k in range(len(types))]
    made = [f(*operands) for f, _ in expressions]
    buffers = [read(f"in{k}", k, t) for k, t in enumerate(types)]
    buffers += [read_write(f"out{k}", 32 + k, t) for k, (_, t) in enumerate(expressions)]
    body = [Store(f"out{k}", I, e) for k, e in enumerate(made)]
    sizes = [bytes(count * t.size) for _, t in expressions]
    return Case(Program(buffers, (1, 1, 1), body), (*inputs, *sizes), (count, 1, 1), {})


def binary_of(op):
    return lambda a, b: BinOp(op, a, b)


def unary_of(op):
    return lambda a: UnOp(op, a)


@MODES
@pytest.mark.parametrize("t", LIVE, ids=str)
def test_binary_operators_at_the_edges(t, soft):
    ops = [op for op in BinaryOp if not op.is_function and t.name in BINARY_TYPES[op.rule]]
    plain, shifts = [], []
    for op in ops:
        if t == bool_ and op in (BinaryOp.LT, BinaryOp.GT, BinaryOp.LE, BinaryOp.GE):
            continue
        result = bool_ if op.rule in ("compare", "logic") else t
        (shifts if op.rule == "shift" else plain).append((binary_of(op), result))
    if plain:
        check(table((t, t), plain, rows=2500 if t == f32 else 300), soft)
    if shifts:
        check(table((t, u32), shifts, rows=150), soft)


@MODES
@pytest.mark.parametrize("t", LIVE, ids=str)
def test_unary_operators_casts_and_selects_at_the_edges(t, soft):
    made = [(lambda a: Select(BinOp(BinaryOp.EQ, a, a), a, a), t)]
    for op in UnaryOp:
        if op.is_function or t.name not in UNARY_TYPES[op.rule]:
            continue
        made.append((unary_of(op), bool_ if op.rule in ("float_test", "logic") else u32 if op.rule == "unpack" else t))
    made += [(lambda a, s=s: Cast(s, a), s) for s in LIVE if can_cast(t, s)]
    words = (u32, i32, f32)
    made += [(lambda a, s=s: Bitcast(s, a), s) for s in words if t in words]
    check(table((t,), made, rows=400), soft)


@MODES
def test_fma_at_the_edges(soft):
    check(table((f32, f32, f32), [(Fma, f32)], rows=4000), soft)


@MODES
@pytest.mark.parametrize("op", list(ReduceOp))
def test_subgroup_reductions_of_partial_subgroups(op, soft):
    t = u32 if op in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR) else f32
    inputs, count = columns((t,), 60)
    program = Program(
        [read("a", 0, t), read_write("o", 1, t)], (count, 1, 1), [Store("o", I, SubgroupReduce(op, Load("a", I)))]
    )
    check(Case(program, (*inputs, bytes(len(inputs[0]))), (1, 1, 1), {}), soft)


# ---- shapes ---------------------------------------------------------------------------------------------------------


def kernel_of(body, *buffers, size=(1, 1, 1)):
    kernel = build(Program([output("o", 0, u32, 8), *buffers], size, body))
    mark_uniform(kernel)
    return kernel


def ops_of(kernel):
    return [item.op for item in walk(kernel.body)]


def test_a_let_that_nobody_changes_is_a_value():
    kernel = kernel_of([Let("x", lit(3)), Store("o", lit(0), Var("x"))])
    assert "set" not in ops_of(kernel)
    assert "get" not in ops_of(kernel)


def test_a_let_that_is_assigned_in_an_inner_scope_is_a_local():
    body = [Let("x", lit(3)), Block([Assign("x", Var("x") + 1)]), Store("o", lit(0), Var("x"))]
    assert ops_of(kernel_of(body)).count("set") == 2


def test_an_assignment_to_an_inner_name_leaves_the_outer_one_a_value():
    body = [Block([Let("x", lit(1)), Assign("x", lit(2))]), Let("x", lit(3)), Store("o", lit(0), Var("x"))]
    kernel = kernel_of(body)
    assert ops_of(kernel).count("set") == 2
    assert "get" not in ops_of(kernel)


def test_a_while_leaves_its_loop():
    turn = If(Var("go"), [Assign("go", lit(False)), Store("o", Var("k"), lit(1))])
    kernel = kernel_of([Let("go", lit(True)), Loop("k", lit(0), lit(0xFFFFFFFF), [turn])])
    (loop,) = (item for item in kernel.body if isinstance(item, KernelLoop))
    assert loop.live is not None
    assert loop.live.name == "go"
    assert not any(isinstance(item, KernelIf) for item in loop.body)


def test_a_loop_under_a_condition_that_never_changes_is_tested_once():
    turn = If(Var("go"), [Store("o", Var("k"), lit(1))])
    kernel = kernel_of([Let("go", BufLen("o") > 2), Loop("k", lit(0), lit(4), [turn])])
    (branch,) = (item for item in kernel.body if isinstance(item, KernelIf))
    assert isinstance(branch.then[-1], KernelLoop)
    assert branch.then[-1].live is None


def test_the_length_of_shared_memory_is_a_constant():
    kernel = kernel_of([Store("o", lit(0), BufLen("s"))], workgroup("s", u32, 7))
    assert "len" not in ops_of(kernel)
    assert [b.slot for b in kernel.buffers] == [0, 1]


def test_traps_are_numbered_in_order_of_appearance():
    program = Program([output("o", 0, u32, 4)], (1, 1, 1), [If(I > 1, [Trap(I + 5, "b")]), Trap(I, "a")])
    kernel = build(program)
    assert kernel.traps == ("b", "a")
    with pytest.raises(Trapped) as e:
        interpret(kernel, program, (), (4, 1, 1))
    assert e.value.args == (1, 0, (0, 0, 0))


def test_indirect_grids_and_collectives_of_one_rank_leave_nothing():
    body = [IndirectDispatch("n", 0), AllReduce("o", CollectiveOp.SUM, 0)]
    assert kernel_of(body, read("n", 1, u32)).body == []


@pytest.mark.parametrize(
    "body, words",
    [
        ([OpaqueNode("x.y", b"")], "OpaqueNode statements"),
        ([AllReduce("o", CollectiveOp.SUM, 1)], "AllReduce statements"),
        ([Let("x", Call("x.y", ()))], "Call expressions"),
        ([Let("x", Opaque("x.y", b""))], "Opaque expressions"),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_a_fix(body, words):
    with pytest.raises(UnsupportedFeature, match=f"compiled backends do not run {words}.*Fix: "):
        kernel_of(body)


def test_a_function_has_no_machine_step():
    with pytest.raises(UnsupportedFeature, match=r"pow has no machine step.*Fix: expand the math library"):
        kernel_of([Let("x", lit(1.0) ** lit(2.0))])
    with pytest.raises(UnsupportedFeature, match=r"sin has no machine step.*Fix: expand the math library"):
        kernel_of([Let("x", UnOp(UnaryOp.SIN, lit(1.0)))])


def test_a_grid_wide_barrier_is_refused():
    with pytest.raises(InvalidProgram, match=r"a grid-wide barrier cannot be inside one launch.*Fix: split"):
        kernel_of([Barrier(Ordering.GRID_SYNC)])


def test_deep_nesting_needs_no_stack():
    depth = 3_000  # three times what Python's stack holds
    body = [Store("o", lit(0), lit(1))]
    for k in range(depth):
        body = [If(BufLen("o") > k, body)] if k % 2 else [Loop(f"k{k}", lit(0), lit(1), body)]
    kernel = kernel_of(body)
    assert ops_of(kernel).count("if") == depth // 2
    assert len(show(kernel)) > depth
    chain = lit(1)
    for _ in range(depth):
        chain = Load("o", chain)
    assert ops_of(kernel_of([Store("o", lit(0), chain)])).count("load") == depth


# ---- what is the same in every lane ---------------------------------------------------------------------------------


def uniform_of(body, op, *buffers, size=(4, 1, 1)):
    kernel = kernel_of(body, *buffers, size=size)
    return [item.uniform for item in walk(kernel.body) if item.op == op]


def test_ids_are_uniform_along_an_axis_of_one():
    body = [Store("o", lit(0), InvocationId(0) + InvocationId(1))]
    assert uniform_of(body, "gid") == [False, True]


def test_loads_are_uniform_from_memory_that_nobody_writes():
    body = [Store("o", lit(0), Load("a", lit(0)) + Load("o", lit(0)))]
    assert uniform_of(body, "load", read("a", 1, u32)) == [True, False]


def test_atomics_are_never_uniform():
    assert uniform_of([Let("x", Atomic(AtomicOp.ADD, "o", lit(0), lit(1)))], "atomic") == [False]


def test_a_local_set_where_lanes_part_is_not_uniform_even_in_an_earlier_iteration():
    def body(condition):
        turn = [Store("o", Var("x"), lit(1)), If(condition, [Assign("x", lit(2))])]
        return [Let("x", lit(0)), Loop("k", lit(0), lit(3), turn)]

    assert uniform_of(body(I > 1), "get") == [False]
    assert uniform_of(body(BufLen("o") > 1), "get") == [True]


def test_a_loop_is_uniform_while_its_local_is():
    def body(again):
        turn = If(Var("go"), [Assign("go", again), Store("o", lit(0), Var("k"))])
        return [Let("go", lit(True)), Loop("k", lit(0), lit(9), [turn])]

    assert uniform_of(body(BufLen("o") > 9), "loop") == [True]
    assert uniform_of(body(I > 9), "loop") == [False]


def test_lanes_that_are_left_after_a_return_stay_together():
    body = [Let("x", lit(0)), If(I > 1, [Return()]), Assign("x", lit(1)), Store("o", I, Var("x"))]
    assert uniform_of(body, "get") == [True]


def test_the_form_prints_as_text():
    body = [Loop("k", lit(0), lit(2), [If(Var("k") < I, [Store("o", I, Var("k"))], [Barrier()])])]
    text = show(kernel_of(body))
    assert "loop uniform %" in text
    assert "else" in text
    assert "store[o] %" in text
    assert "guarded" in text
    assert "f64" not in text


def test_values_of_every_register_type_survive_a_local():
    body = []
    buffers = []
    for k, t in enumerate((u8, i64, u64, f16, bf16, f64, bool_)):
        buffers += [read(f"a{k}", 2 * k + 1, t), read_write(f"b{k}", 2 * k + 2, t)]
        body += [Let(f"x{k}", Load(f"a{k}", I)), If(I > 2, [Assign(f"x{k}", Load(f"a{k}", lit(0)))])]
        body += [Store(f"b{k}", I, Var(f"x{k}"))]
    program = Program([output("o", 0, u32, 8), *buffers], (2, 1, 1), body)
    rng = random.Random(1)
    inputs = tuple(
        b"".join(rng.choice(edge_bits(b.element)).to_bytes(b.element.size, "little") for _ in range(7)) for b in buffers
    )
    check(Case(program, inputs, (4, 1, 1), {}), False)
