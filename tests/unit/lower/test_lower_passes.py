"""Improvements change how a kernel computes, never what."""

import random
import struct

import pytest

from vyre.backends.reference import run
from vyre.conform.programs.random import random_program
from vyre.conform.programs.random_values import edge_bits
from vyre.errors import ArgumentValueError
from vyre.foundation.ir.dtypes import bf16, bool_, can_cast, f16, f32, f64, i32, i64, u8, u32, u64
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    BufLen,
    Cast,
    Fma,
    If,
    InvocationId,
    Let,
    Lit,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Store,
    SubgroupReduce,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import BINARY_TYPES, UNARY_TYPES, AtomicOp, BinaryOp, ReduceOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, workgroup
from vyre.lower import PASSES, LowerOptions, improve, lower
from vyre.lower.from_program import build
from vyre.lower.kernel_ir import If as KernelIf
from vyre.lower.kernel_ir import Loop as KernelLoop
from vyre.lower.kernel_ir import show, walk
from vyre.lower.passes import RUN

from ...support.lower_oracle import interpret
from ...support.tiers import first_quick

BLOCK = 30
BLOCKS = 4
SETS = [frozenset(), frozenset(PASSES), *(frozenset(PASSES) - {p} for p in PASSES), *(frozenset({p}) for p in PASSES)]
I = InvocationId(0)  # noqa: E741
A, X, O = read("a", 1, u32), read("x", 2, f32), read_write("o", 3, u32)  # noqa: E741
F = read_write("f", 4, f32)


# ---- all of them ----------------------------------------------------------------------------------------------------


def check(program, inputs, grid, output_elements, soft, off, seed=0):
    found = run(program, inputs, grid=grid, output_elements=output_elements)
    kernel = build(program, soft_flush=soft)
    improve(kernel, off)
    got = interpret(kernel, program, inputs, grid, output_elements, seed)
    assert got == [bytes(o) for o in found.outputs]


def check_seeds(seeds, sets_each=2, **options):
    for seed in seeds:
        case = random_program(random.Random(seed), **options)
        for k in range(sets_each):
            off = SETS[(seed * sets_each + k) % len(SETS)]
            soft = (seed + k) % 3 == 0
            try:
                check(case.program, case.inputs, case.grid, case.output_elements, soft, off, seed)
            except Exception as e:
                e.add_note(f"seed {seed} of random_program without {sorted(off)}, soft {soft}:\n{case.program}")
                raise


@pytest.mark.parametrize("block", first_quick(range(BLOCKS), 1))
def test_improved_kernels_give_the_same_bytes(block):
    check_seeds(range(block * BLOCK, (block + 1) * BLOCK))


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.check
def test_every_improvement_alone_gives_the_same_bytes(name):
    off = frozenset(PASSES) - {name}
    for seed in range(500, 512):
        case = random_program(random.Random(seed))
        check(case.program, case.inputs, case.grid, case.output_elements, seed % 2 == 0, off, seed)


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(20))
def test_improved_kernels_give_the_same_bytes_in_many_programs(block):
    check_seeds(range(20_000 + 200 * block, 20_000 + 200 * (block + 1)), sets_each=4)


def test_the_table_has_every_improvement_in_order():
    assert tuple(RUN) == PASSES


def test_an_unknown_improvement_is_refused():
    with pytest.raises(ArgumentValueError, match=r"no improvement is called 'speed'.*Fix: use names of: turns, fold, "):
        LowerOptions(off=frozenset({"speed"}))


def test_lowering_expands_the_math_library_and_obeys_the_options():
    program = Program([X, F], (4, 1, 1), [Store("f", I, UnOp(UnaryOp.EXP, Load("x", I)))])
    kernel = lower(program, LowerOptions(soft_flush=True, poll=True, off=frozenset(PASSES)))
    assert (kernel.soft_flush, kernel.poll, kernel.check) == (True, True, None)
    better = lower(program)
    assert (better.soft_flush, better.poll) == (False, False)
    assert better.check is not None
    assert len(list(walk(better.body))) < len(list(walk(kernel.body)))


# ---- one by one -----------------------------------------------------------------------------------------------------


def after(names, body, *buffers, size=(4, 1, 1), soft=False):
    kernel = build(Program(buffers or (A, X, O, F), size, body), soft_flush=soft)
    for name in names.split():
        RUN[name](kernel)
    return kernel


def ops(kernel):
    return [item.op for item in walk(kernel.body)]


def stored_value(kernel):
    (store,) = (item for item in walk(kernel.body) if item.op == "store")
    return store.args[1]


U, Y = Load("a", I), Load("x", I)
S = Cast(i32, U)
T = U > 7
SAME = {
    "u + 0": (U + 0, U), "0 + u": (lit(0) + U, U), "u - 0": (U - 0, U), "u * 1": (U * 1, U), "u // 1": (U // 1, U),
    "u | 0": (U | 0, U), "u ^ 0": (U ^ 0, U), "u << 0": (U << 0, U), "u >> 32": (U >> 32, U),
    "u & ones": (U & 0xFFFFFFFF, U), "max(u, 0)": (BinOp(BinaryOp.MAX, U, lit(0)), U),
    "i + 0": (S + 0, S), "there and back": (Cast(i32, Cast(u32, S)), S),
    "select of a constant": (Select(lit(True), U, U + 1), U), "select of equals": (Select(T, lit(4), lit(4)), lit(4)),
    "y * 1": (Y * 1.0, Y), "1 * y": (lit(1.0) * Y, Y), "y / 1": (Y / 1.0, Y), "y - 0": (Y - 0.0, Y),
    "y + -0": (Y + -lit(0.0), Y), "not not u": (~~U, U),
    "u - 0 * i": (U - 0 * I, U), "u % 1": (U % 1, lit(0)), "u * 0": (U * 0, lit(0)), "u & 0": (U & 0, lit(0)),
    "u | ones": (U | 0xFFFFFFFF, lit(0xFFFFFFFF)), "min(u, 0)": (BinOp(BinaryOp.MIN, U, lit(0)), lit(0)),
    "u < 0": (Cast(u32, U < 0), lit(0)), "u >= 0": (Cast(u32, U >= 0), lit(1)), "0 >> u": (lit(0) >> U, lit(0)),
    "2 + 3": (lit(2) + 3, lit(5)), "7 % 0": (lit(7) % 0, lit(0)), "7 // 0": (lit(7) // 0, lit(0xFFFFFFFF)),
    "1e30 * 1e30": (lit(1e30) * 1e30, lit(float("inf"))), "1e-30 * 1e-30": (lit(1e-30) * 1e-30, lit(0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_fold_knows_what_is_the_same(name):
    found, expected = (
        stored_value(after("fold cse dce", [Store("f" if _is_float(e) else "o", I, e)])) for e in SAME[name]
    )
    assert describe(found) == describe(expected)


def _is_float(e):
    return e.type_hint == f32 or any(x is Y for x in (e, getattr(e, "left", None), getattr(e, "operand", None)))


def describe(ins):
    """A value as nested tuples."""
    attr = getattr(ins.attr, "name", ins.attr)
    return (ins.op, ins.dtype, attr, *map(describe, ins.args))


DIFFERENT = {
    "y + 0": Y + 0.0, "0 - y": lit(0.0) - Y, "y * 0": Y * 0.0, "y - y": Y - Y, "y / y": Y / Y, "y - -0": Y - -lit(0.0),
    "y == y": Cast(f32, Y.eq(Y)), "1 / y": lit(1.0) / Y, "y * -1": Y * -1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_fold_does_no_algebra_with_floats(name):
    program = Program([X, F], (4, 1, 1), [Store("f", I, DIFFERENT[name])])
    values = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x80000001, 0x3F800000)
    inputs = (struct.pack("<8I", *values), bytes(32))
    for off in (frozenset(), frozenset(PASSES)):
        check(program, inputs, (2, 1, 1), {}, False, off)


@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.parametrize("t", [u32, i32, u64, i64, f32, f64, f16, bf16], ids=str)
@pytest.mark.check
def test_fold_computes_constants_as_the_kernel_would(t, soft):
    rng = random.Random(t.name)
    body, buffers = [], []

    def store(result, e):
        if not buffers or buffers[-1].element != result:
            buffers.append(read_write(f"o{len(buffers)}", len(buffers), result))
        body.append(Store(buffers[-1].name, lit(len(body)), e))

    for op in sorted(BinaryOp, key=lambda op: op.rule):
        if not op.is_function and t.name in BINARY_TYPES[op.rule]:
            right = u32 if op.rule == "shift" else t
            for _ in range(25):
                result = bool_ if op.rule in ("compare", "logic") else t
                store(result, BinOp(op, literal(rng, t), literal(rng, right)))
    for op in sorted(UnaryOp, key=lambda op: op.rule):
        if not op.is_function and t.name in UNARY_TYPES[op.rule]:
            for _ in range(9):
                result = bool_ if op.rule in ("float_test", "logic") else u32 if op.rule == "unpack" else t
                store(result, UnOp(op, literal(rng, t)))
    for s in (u32, i32, u64, i64, f32, f64, f16, bf16, bool_, u8):
        for _ in range(9 if can_cast(t, s) else 0):
            store(s, Cast(s, literal(rng, t)))
    program = Program(buffers, (1, 1, 1), body)
    inputs = [bytes(len(body) * b.element.size) for b in buffers]
    for off in (frozenset(), frozenset({"fold"})):
        check(program, inputs, (1, 1, 1), {}, soft, off)
    kernel = build(program, soft_flush=soft)
    RUN["fold"](kernel)
    assert set(ops(kernel)) == {"const", "store"}


def literal(rng, t):
    """An edge of a type, in two steps: literals are canonical floats, and validation knows a literal 0."""
    bits = rng.choice(edge_bits(t))
    if t.name in ("f16", "bf16"):
        return Cast(t, Bitcast(f32, Lit(u32, bits << 16)))
    if t == f32:
        return Bitcast(f32, Lit(u32, bits))
    return Lit(t, bits) if t == f64 else Lit(t, bits) ^ Lit(t, 0)


def test_fold_takes_branches_that_are_known_and_drops_what_comes_after_a_return():
    body = [If(lit(1) < 2, [Store("o", I, lit(1)), Return()], [Store("o", I, lit(2))]), Store("o", I, lit(3))]
    kernel = after("fold dce", body)
    assert ops(kernel).count("store") == 1
    assert stored_value(kernel).attr == 1


def test_fold_drops_loops_that_never_run():
    assert "loop" not in ops(after("fold", [Loop("k", lit(3), lit(3), [Store("o", I, lit(1))])]))
    assert "loop" not in ops(after("fold", [Let("n", BufLen("a")), Loop("k", Var("n"), Var("n"), [Store("o", I, I)])]))
    assert "loop" in ops(after("fold", [Loop("k", lit(3), lit(4), [Store("o", I, lit(1))])]))


def test_fold_knows_the_ids_of_an_axis_of_one():
    kernel = after("fold", [Store("o", InvocationId(1), LocalId(1) + InvocationId(0))])
    assert ops(kernel).count("wid") == 1
    assert "lid" not in ops(kernel)
    assert "gid" in ops(kernel)


def test_fold_sees_through_truth():
    kernel = after("fold dce", [If(Cast(u32, T), [Store("o", I, lit(1))])])
    assert "convert" not in ops(kernel)
    assert stored_value(after("fold dce", [Store("o", I, Cast(u32, Cast(bool_, Cast(u32, T))))])).args[0].op == "gt"


def test_fold_makes_nothing_quiet_that_is_no_nan():
    assert "quiet" not in ops(after("fold dce", [Store("f", I, Cast(f32, U))]))
    assert "quiet" in ops(after("fold dce", [Store("f", I, Y)]))


def test_fold_knows_that_small_elements_are_small():
    body = [Store("b", I, Cast(u8, Cast(u32, Load("b", I))))]
    assert "narrow" not in ops(after("fold dce", body, read_write("b", 0, u8)))


def test_cse_merges_equal_values_whichever_way_round():
    body = [Store("o", I, (U + 3) * (Load("a", I) + 3)), Store("o", I + 1, lit(3) + U)]
    assert ops(after("cse dce", body)).count("load") == 1
    assert ops(after("cse dce", body)).count("add") == 2


def test_cse_keeps_apart_what_does_not_dominate():
    body = [If(T, [Store("o", I, U + 3)], [Store("o", I, U + 3)])]
    assert ops(after("cse dce", body)).count("add") == 2


def test_cse_loads_again_what_may_have_changed():
    def loads(*between):
        body = [Let("p", Load("o", I)), *between, Store("o", I + 9, Var("p") + Load("o", I))]
        return ops(after("cse dce", body, A, X, O, F, workgroup("s", u32, 4))).count("load")

    assert loads() == 1
    assert loads(Store("o", I + 1, lit(1))) == 2
    assert loads(Let("z", Atomic(AtomicOp.ADD, "o", lit(0), lit(1)))) == 2
    assert loads(Barrier()) == 2
    assert loads(If(I > 3, [Store("o", I + 1, lit(1))])) == 2
    assert loads(Store("s", I, lit(1))) == 1


def test_cse_loads_again_in_every_turn_of_a_loop_that_stores():
    body = [Let("p", Load("o", I)), Loop("k", lit(0), U, [Store("o", I, Load("o", I) + Var("p"))])]
    assert ops(after("cse dce", body)).count("load") == 3
    body = [Let("p", Load("o", I)), Loop("k", lit(0), U, [Store("f", I, Cast(f32, Load("o", I) + Var("p")))])]
    assert ops(after("cse dce", body)).count("load") == 2


def test_cse_reads_a_local_where_it_was_set():
    body = [Let("p", U), Assign("p", Var("p") + 1), Store("o", I, Var("p"))]
    kernel = after("cse dce", body)
    assert {"get", "set"}.isdisjoint(ops(kernel))


def test_cse_reads_a_local_again_after_a_branch_or_a_turn_that_sets_it():
    body = [Let("p", U), If(T, [Assign("p", lit(1))]), Store("o", I, Var("p"))]
    assert ops(after("cse dce", body)).count("get") == 1
    body = [Let("p", U), Loop("k", lit(0), U, [Store("o", I, Var("p")), Assign("p", lit(1))])]
    assert ops(after("cse dce", body)).count("get") == 1


def reductions(*between, then=U * 5 + 1, first=U, inside=()):
    """Two locals that a branch on one condition gives the same, the second one with differences."""
    return [
        Let("p", U),
        If(T, [Let("w", U * 5), Assign("p", Var("w") + 1)]),
        *between,
        Let("q", first),
        If(T, [*inside, Assign("q", then)]),
        Store("o", I, Var("p") * 3 + Var("q")),
    ]


APART = {
    "another value": reductions(then=U * 5 + 2),
    "another value before": reductions(first=U + 1),
    "nothing known before": reductions(first=Load("o", I)),
    "the first local changes": reductions(Assign("p", Var("p") + 1)),
    "the first local may change": reductions(If(U > 9, [Assign("p", lit(2))])),
    "the first local changes in a turn": reductions(Loop("k", lit(0), U & 3, [Assign("p", Var("p") + Var("k"))])),
    "it stores": reductions(inside=[Store("f", I, lit(4.0))]),
}


@pytest.mark.parametrize("name", APART)
def test_cse_keeps_a_branch_that_does_not_repeat_another(name):
    assert branches(APART[name]) == branches(APART[name], "") > 1


@pytest.mark.parametrize(
    "body",
    [
        reductions(),
        reductions(Store("f", I, Cast(f32, Var("p")))),
        reductions(If(U > 9, [Store("f", I, Cast(f32, Var("p")))])),
        reductions(inside=[Let("unused", U * 5)]),
    ],
)
def test_cse_drops_a_branch_that_repeats_another(body):
    assert branches(body) == branches(body, "") - 1


def branches(body, names="cse dce"):
    """How many are left; what they compute is what the program says."""
    program = Program((A, X, O, F), (4, 1, 1), body)
    inputs = [struct.pack("<4I", 3, 8, 12, 0xFFFFFFFF), bytes(16), bytes(32), bytes(16)]
    check(program, inputs, (1, 1, 1), None, False, frozenset(PASSES) - set(names.split()))
    return sum(isinstance(item, KernelIf) for item in walk(after(names, body).body))


@pytest.mark.parametrize("functions", [(UnaryOp.SIN, UnaryOp.COS), (UnaryOp.COS, UnaryOp.TAN, UnaryOp.SIN)])
def test_functions_of_one_angle_reduce_it_once(functions):
    body = [Let("y", Y), *(Store("f", I * 3 + k, UnOp(op, Var("y"))) for k, op in enumerate(functions))]
    kernel = lower(Program([X, F], (4, 1, 1), body))
    assert ops(kernel).count("clz") == 1


def test_a_branch_is_not_taken_for_one_of_another_scope():
    then = [If(T, [Assign("p", U * 5)])]
    body = [Let("p", U), If(U > 9, then), Let("q", U), If(T, [Assign("q", U * 5)]), Store("o", I, Var("p") + Var("q"))]
    assert branches(body) == 3


def loop_body(kernel):
    (loop,) = (item for item in walk(kernel.body) if isinstance(item, KernelLoop))
    return [item.op for item in walk(loop.body)]


def test_licm_moves_what_does_not_change():
    kernel = after("licm", [Loop("k", lit(0), U, [Store("o", Var("k"), U * 5 + BufLen("a"))])])
    assert loop_body(kernel) == ["index", "store"]


def test_licm_leaves_what_changes():
    turn = [Store("o", Var("k"), Load("o", I) + Var("k") * 2 + Var("p")), Assign("p", Var("p") + 1)]
    kernel = after("licm", [Let("p", lit(0)), Loop("k", lit(0), U, turn)])
    inside = loop_body(kernel)
    assert inside.count("load") == 1
    assert inside.count("get") == 2
    assert inside.count("mul") == 1


def test_licm_moves_out_of_several_loops_and_leaves_branches_alone():
    inner = Loop("j", lit(0), U, [Store("o", Var("j"), U * 5), If(T, [Store("o", I, U // 7)])])
    kernel = after("licm", [Loop("k", lit(0), U, [inner])])
    outer = next(item for item in kernel.body if isinstance(item, KernelLoop))
    assert [item.op for item in outer.body] == ["index", "loop"]
    assert "div" in ops(kernel)[ops(kernel).index("if") :]


def test_dce_drops_what_nobody_sees():
    body = [
        Let("unused", U * 3),
        Let("p", U),
        Loop("k", lit(0), U, [Assign("p", Var("p") + 1)]),
        If(T, [Let("z", SubgroupReduce(ReduceOp.ADD, U))]),
        Store("o", I, lit(1)),
    ]
    assert sorted(ops(after("dce", body))) == ["const", "gid", "store"]


def test_dce_keeps_a_loop_that_ends_by_its_local():
    turn = If(Var("go"), [Assign("go", T), Store("o", I, Var("k"))])
    kernel = after("dce", [Let("go", lit(True)), Loop("k", lit(0), lit(9), [turn])])
    assert ops(kernel).count("set") == 2


def test_dce_says_whether_the_old_value_of_an_atomic_is_used():
    body = [
        Let("p", Atomic(AtomicOp.ADD, "o", I, lit(1))),
        Let("q", Atomic(AtomicOp.ADD, "o", I, lit(1))),
        Store("o", I + 1, Var("q")),
    ]
    kernel = after("dce", body)
    assert [item.used for item in walk(kernel.body) if item.op == "atomic"] == [False, True]


@pytest.mark.check
def test_deep_nesting_needs_no_stack():
    body = [Store("o", lit(0), lit(1))]
    for k in range(3_000):
        body = [If(BufLen("a") > k, body)] if k % 2 else [Loop(f"k{k}", lit(0), BufLen("a"), body)]
    kernel = after("fold licm cse dce bounds_checks flush privatize_atomics", body)
    assert ops(kernel).count("if") == 1_500
    chain = U
    for k in range(3_000):
        chain = Load("a", chain * 3 + k)
    kernel = after("fold licm cse dce bounds_checks flush privatize_atomics", [Store("o", I, chain)])
    assert ops(kernel).count("load") == 3_001


# ---- flushes --------------------------------------------------------------------------------------------------------

Z = Load("z", I)
GOES = {
    "product": Y * Z, "double": Y + Y, "square": Y * Y, "reciprocal": lit(1.0) / Y, "quotient": Y / Z,
    "times two": Y * 2.0, "plus one": Y + 1.0, "conversion": Cast(f32, Cast(i32, Y)), "fma": Fma(Y, Z, Z),
}  # fmt: skip
STAYS = {
    "copy": Y, "minimum": BinOp(BinaryOp.MIN, Y, lit(1.0)), "select": Select(T, Y, lit(1.0)), "negation": -Y,
    "size": UnOp(UnaryOp.ABS, Y), "floor": UnOp(UnaryOp.FLOOR, Y), "bits": Cast(f32, Bitcast(u32, Y)),
    "minus what may be zero": Y - Z, "times what may be one": Y * Cast(f32, I), "times minus one": Y * -1.0,
    "times one in a local": Y * Var("one"), "plus two of three": (Y * 2.0) + BinOp(BinaryOp.MAX, Y, lit(0.0)),
    "times one out of bounds": Y * (Z + 1.0), "plus what may be zero": Y + Z, "plus zero": Y + 0.0,
    "comparison": Cast(f32, Y < Z), "root": UnOp(UnaryOp.SQRT, Y),
    "sum with a known product": Fma(lit(2.0), lit(0.0), Y),
}  # fmt: skip


@pytest.mark.parametrize("name", [*GOES, *STAYS])
def test_a_flush_goes_where_the_next_step_makes_it_anyway(name):
    body = [
        Let("one", lit(1.0)),
        If(I > 1, [Assign("one", Load("z", lit(0)))]),
        Store("f", I, (GOES | STAYS)[name]),
    ]
    buffers = (A, X, read("z", 5, f32), F)
    kernel = after("cse flush dce", body, *buffers)
    flushed = {item.args[0].attr.name for item in walk(kernel.body) if item.op == "flush"}
    assert ("x" in flushed) == (name in STAYS)
    program = Program(buffers, (4, 1, 1), body)
    edges = (0, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x807FFFFF)
    a, x, z = (struct.pack("<8I", *words) for words in (range(4, 12), edges, edges[::-1]))
    inputs = (a, x, bytes(32), z)
    check(program, inputs, (3, 1, 1), {}, False, frozenset())


FIRM = (
    "minus what may be zero", "times what may be one", "times minus one", "times one in a local", "plus zero", "root",
    "plus what may be zero", "sum with a known product", "times one out of bounds",
)  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_before_a_step_that_nobody_takes_away_no_flush_stays(name):
    body = [Let("one", lit(1.0)), If(I > 1, [Assign("one", Load("z", lit(0)))]), Store("f", I, STAYS[name])]
    kernel = lower(Program((A, X, read("z", 5, f32), F), (4, 1, 1), body), LowerOptions(firm=True))
    flushed = {item.args[0].attr.name for item in walk(kernel.body) if item.op == "flush"}
    assert ("x" in flushed) == (name not in FIRM)


def test_a_number_made_of_integers_is_flushed_before_every_step():
    """A compiler may know its bits, and then computes by rules of its own."""
    body = [Store("f", I, Bitcast(f32, Load("a", I)) * Bitcast(f32, Load("a", I + 1)) + Cast(f32, Load("h", I)))]
    kernel = after("fold cse flush dce", body, A, read("h", 5, bf16), F)
    assert ops(kernel).count("flush") == 3
    firm = lower(Program((A, read("h", 5, bf16), F), (4, 1, 1), body), LowerOptions(firm=True))
    assert "flush" not in ops(firm)


def test_a_flush_goes_in_a_loop_whose_first_turn_is_not_neutral():
    def flushes(first, step):
        turn = Assign("total", step(Var("total"), Load("x", Var("k"))))
        body = [Let("total", first), Loop("k", lit(0), U, [turn]), Store("f", I, Var("total"))]
        return ops(after("fold licm cse flush dce", body)).count("flush")

    assert flushes(lit(0.0), lambda total, x: total + x) == 1
    assert flushes(lit(0.0), lambda total, x: total + x * 0.5) == 0
    assert flushes(-lit(0.0), lambda total, x: total + x) == 1
    assert flushes(lit(1.0), lambda total, x: total * x) == 1
    assert flushes(lit(3.0), lambda total, x: total + x * 0.5) == 0


def test_no_flush_goes_where_the_machine_keeps_subnormals():
    kernel = after("cse flush dce", [Store("f", I, Y * Y)], soft=True)
    assert "flush" in ops(kernel)


def test_f64_keeps_its_subnormals():
    program = Program(
        [read("d", 0, f64), read_write("e", 1, f64)],
        (1, 1, 1),
        [Store("e", I, Load("d", I) * lit(1.0, f64) + -lit(0.0, f64))],
    )
    inputs = (struct.pack("<4Q", 1, 1 << 63, 0x7FF8000000000000, 0x000FFFFFFFFFFFFF), bytes(32))
    check(program, inputs, (4, 1, 1), {}, True, frozenset())


# ---- private copies -------------------------------------------------------------------------------------------------


def is_private(*accesses, buffer=O):
    kernel = after("dce privatize_atomics", list(accesses), A, buffer, F)
    return next(b.private for b in kernel.buffers if b.name == buffer.name)


def bump(op=AtomicOp.ADD, name="p", buffer="o"):
    return Let(name, Atomic(op, buffer, U, lit(1)))


def test_buffers_that_are_only_added_to_are_private():
    assert is_private(bump(), bump(name="q"))
    assert is_private(bump(AtomicOp.MAX))
    assert not is_private(bump(), bump(AtomicOp.MAX, "q"))
    assert not is_private(bump(AtomicOp.EXCHANGE))
    assert not is_private(bump(), Store("o", I, lit(1)))
    assert not is_private(bump(), Store("f", I, Cast(f32, Load("o", I))))
    assert not is_private(bump(), Store("f", I, Cast(f32, Var("p"))))
    assert not is_private(Store("f", I, lit(1.0)))
    assert not is_private(bump(buffer="s"), buffer=workgroup("s", u32, 8))


@pytest.mark.parametrize("op", [op for op in AtomicOp if op.order_free])
def test_private_copies_join_to_the_same_bytes(op):
    program = Program([A, O], (4, 1, 1), [Let("p", Atomic(op, "o", U % 5, U * 77))])
    inputs = (struct.pack("<12I", *range(12)), struct.pack("<4I", 3, 0, 0xFFFFFFFF, 99))
    check(program, inputs, (3, 1, 1), {}, False, frozenset())
    assert "atomic" in show(after("dce privatize_atomics", program.entry, A, O))
