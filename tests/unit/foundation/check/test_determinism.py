"""A proof of determinism is never wrong, and the kernels people write get one."""

import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from vyre.backends.reference import Schedule, run
from vyre.conform.programs.strategies import valid_programs
from vyre.driver.plan.grid import why_workgroup_is_fixed
from vyre.foundation.check.determinism import Determinism, determinism
from vyre.foundation.check.linear import linear
from vyre.foundation.check.validate import Capabilities, validate
from vyre.foundation.ir.dtypes import f32, i32, u8, u32
from vyre.foundation.ir.nodes import (
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncWait,
    Atomic,
    Barrier,
    BinOp,
    Bitcast,
    Block,
    BufLen,
    Cast,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Select,
    Span,
    Store,
    Trap,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, CollectiveOp, Ordering, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, uniform, workgroup
from vyre.foundation.ir.visit import rewrite

G, L, W = InvocationId(0), LocalId(0), WorkgroupId(0)
GY, GZ = InvocationId(1), InvocationId(2)
WIDE = 1 << 32
ONE_LAYER = "proved for grids with one workgroup along z"
ONE_ROW = "proved for grids with one workgroup along y and z"
SYNC = Barrier(Ordering.GRID_SYNC)
ONE = lit(1)
BUFFERS = (
    read_write("out", 0, u32),
    read("x", 1, u32),
    read_write("c", 2, u32),
    uniform("n", 3, u32, 1),
    workgroup("tile", u32, 256),
)


def x(i):
    return Load("x", i)


def tile(i):
    return Load("tile", i)


def out(i):
    return Load("out", i)


def store(index, value=ONE, buffer="out"):
    return Store(buffer, index, value)


def atomic(op, index, value=ONE, buffer="c", name="_", **rest):
    return Let(name, Atomic(op, buffer, index, value, **rest))


def program(*body, size=(256, 1, 1)):
    return Program(BUFFERS, size, body)


def reduction(barrier=True, stride=lambda s: s, guard=lambda s: s):
    t = Var("t")
    body = [Let("t", L), store(t, x(G), "tile"), Barrier()]
    for s in (128, 64, 32, 16, 8, 4, 2, 1):
        body.append(If(t < guard(s), (store(t, tile(t) + tile(t + stride(s)), "tile"),)))
        body += [Barrier()] if barrier else []
    return program(*body, If(t.eq(0), (store(W, tile(lit(0))),)))


PROVED = {
    "a copy": program(store(G, x(G))),
    "a guarded copy": program(Let("i", G), If(Var("i") < BufLen("out"), (store(Var("i"), x(Var("i"))),))),
    "an offset": program(store(G + 7)),
    "an offset that wraps": program(store(G - 1)),
    "backwards": program(store(47 - G)),
    "backwards by negation": program(store(-G)),
    "a signed index": program(store(Cast(u32, Cast(i32, G) + lit(-3, i32)))),
    "a stencil": program(store(G, x(G - 1) + x(G) + x(G + 1))),
    "in place": program(store(G, out(G) * 2)),
    "two of a stride": program(store(G * 2), store(G * 2 + 1)),
    "a stride by shift": program(store(G << 2), store((G << 2) + 3)),
    "a stride in a loop": program(Loop("k", lit(0), lit(4), (store(G * 4 + Var("k")),))),
    "a loop over what others wrote before": program(store(G), SYNC, store(G, out(G + 1), "c")),
    "an offset that all share": program(store(G + BufLen("x")), store(G + BufLen("x"), out(G + BufLen("x")))),
    "an offset from a uniform": program(store(G + Load("n", lit(0)), out(G + Load("n", lit(0))))),
    "the id in parts": program(store(W * 256 + L, out(G))),
    "rows of known width": program(If(G < 600, (store(GY * 600 + G),)), size=(16, 16, 1)),
    "rows behind a named guard": program(Let("ok", (G < 600)), If(Var("ok"), (store(GY * 600 + G),)), size=(16, 16, 1)),
    "rows behind two guards": program(
        If(BinOp(BinaryOp.AND, GY < 9, G <= 599), (store(GY * 600 + G),)), size=(16, 16, 1)
    ),
    "rows behind a refused guard": program(
        If(BinOp(BinaryOp.OR, GY > 9, G >= 600), (), (store(GY * 600 + G),)), size=(16, 16, 1)
    ),
    "rows behind a negated guard": program(
        If(UnOp(UnaryOp.LOGICAL_NOT, lit(600) <= G), (store(GY * 600 + G),)), size=(16, 16, 1)
    ),
    "one invocation of all": program(If(G.eq(0), (store(lit(0)), store(lit(0), out(lit(0)))))),
    "one invocation of all, refused": program(If(G.ne(0), (), (store(lit(0)),))),
    "one invocation per workgroup": program(If(L.eq(0), (store(W),))),
    "one invocation per workgroup, turned": program(If(lit(1) > L, (store(W),))),
    "a histogram": program(atomic(AtomicOp.ADD, x(G))),
    "a histogram in workgroup memory": program(
        store(L, lit(0), "tile"),
        Barrier(),
        atomic(AtomicOp.ADD, x(G), buffer="tile"),
        Barrier(),
        atomic(AtomicOp.ADD, L, tile(L), name="_2"),
    ),
    "an exchange with oneself": program(atomic(AtomicOp.EXCHANGE, G, name="old"), store(G, Var("old"))),
    "an old value of one's own": program(atomic(AtomicOp.ADD, G, name="old"), store(G, Var("old"))),
    "different atomics on what one owns": program(atomic(AtomicOp.ADD, G), atomic(AtomicOp.MAX, G, name="_2")),
    "a reduction": reduction(),
    "tiles in a loop": program(
        Loop("k", lit(0), Load("n", lit(0)), (store(L, x(G), "tile"), Barrier(), store(G, tile(L + 1)), Barrier()))
    ),
    "writes after a loop of reads": program(
        store(L, x(G), "tile"), Barrier(), Loop("k", lit(0), lit(9), (store(G, tile(Var("k"))),)), Barrier(),
        store(L, lit(0), "tile"),
    ),
    "reads only": program(Let("v", out(lit(0))), Let("w", tile(lit(0)))),
    "nothing": program(),
    "dead code": program(If(G < 0, (store(lit(0)),))),
}  # fmt: skip
UNPROVED = {
    "a slot from a counter": program(atomic(AtomicOp.ADD, lit(0), name="slot"), store(Var("slot"))),
    "an old value used": program(atomic(AtomicOp.ADD, lit(0), name="old"), store(G, Var("old"))),
    "one place for all": program(store(lit(0))),
    "one place per workgroup": program(store(W)),
    "one place per lane": program(store(L)),
    "the neighbour's place": program(store(G), store(G, out(G + 1), "c")),
    "the neighbour's place in workgroup memory": program(store(L, ONE, "tile"), store(G, tile(L + 1))),
    "another workgroup's place behind a barrier": program(store(G), Barrier(), store(G, out(G + 1), "c")),
    "an exchange": program(atomic(AtomicOp.EXCHANGE, lit(0))),
    "a compare-exchange": program(atomic(AtomicOp.COMPARE_EXCHANGE, lit(0), expected=ONE)),
    "two atomics": program(atomic(AtomicOp.ADD, x(G)), atomic(AtomicOp.MAX, x(G), name="_2")),
    "a load among atomics": program(atomic(AtomicOp.ADD, lit(0)), store(G, Load("c", lit(0)))),
    "a store among atomics": program(atomic(AtomicOp.ADD, lit(0)), If(G.eq(0), (store(lit(0), ONE, "c"),))),
    "a data-dependent place": program(store(x(G))),
    "a place behind a variable": program(Let("i", G), Assign("i", lit(0)), store(Var("i"))),
    "an overlapping stride": program(store(G * 2), store(G * 2 + 2)),
    "a loop one too long": program(Loop("k", lit(0), lit(5), (store(G * 4 + Var("k")),))),
    "rows of unknown width": program(If(Load("n", lit(0)) > G, (store(GY * Load("n", lit(0)) + G),)), size=(16, 16, 1)),
    "one column of two axes": program(store(G), size=(16, 16, 1)),
    "half the id": program(store(G >> 1)),
    "a wrong reduction": reduction(stride=lambda s: s - 1 or 1),
    "a reduction with a loose guard": reduction(guard=lambda s: s + 1),
    "a reduction without barriers": reduction(barrier=False),
    "tiles without the second barrier": program(
        Loop("k", lit(0), Load("n", lit(0)), (store(L, x(G), "tile"), Barrier(), store(G, tile(L + 1))))
    ),
    "a barrier in one branch": program(
        store(L, x(G), "tile"), If(Load("n", lit(0)) > 1, (Barrier(),)), store(G, tile(L + 1))
    ),
    "a barrier in a loop that may not run": program(
        store(L, x(G), "tile"), Loop("k", lit(0), Load("n", lit(0)), (Barrier(),)), store(G, tile(L + 1))
    ),
    "a trap": program(Trap(G, "why")),
    "an asynchronous copy": program(AsyncLoad("x", "tile", lit(0), lit(4), "t"), AsyncWait("t")),
    "a collective": program(AllReduce("out", CollectiveOp.SUM, 0)),
    "not a valid program": program(store(Var("nowhere"))),
}


SOME = {
    "a copy": (PROVED["a copy"], ONE_ROW, (WIDE, 1, 1)),
    "the value of another axis": (program(store(G, GY)), ONE_ROW, (WIDE, 1, 1)),
    "an id that is 0": (program(store(G, LocalId(1))), ONE_ROW, (WIDE, 1, 1)),
    "behind one guard of two": (program(If(GY.eq(0), (store(G),))), ONE_LAYER, (WIDE, WIDE, 1)),
    "behind both": (program(If(BinOp(BinaryOp.AND, GY.eq(0), lit(1) > GZ), (store(G),))), "proved", (WIDE, WIDE, WIDE)),
    "column": (program(store(GY), size=(1, 9, 1)), "proved for grids with one workgroup along x and z", (1, WIDE, 1)),
    "depth": (program(store(GZ), size=(1, 1, 4)), "proved for grids with one workgroup along x and y", (1, 1, WIDE)),
    "a stride": (
        PROVED["a stride by shift"],
        "proved for grids with at most 2**30 invocations along x, one workgroup along y and z",
        (1 << 30, 1, 1),
    ),
    "rows of a workgroup": (
        program(store(G * 2 + LocalId(1)), size=(4, 2, 1)),
        "proved for grids with at most 2**30 invocations along x, one workgroup along y and z",
        (1 << 30, 2, 1),
    ),
    "rows of known width": (
        PROVED["rows of known width"],
        "proved for grids with at most 2**22 invocations along x and y, one workgroup along z",
        (1 << 22, 1 << 22, 1),
    ),
    "rows of known width and height": (
        PROVED["rows behind two guards"],
        ONE_LAYER,
        (WIDE, WIDE, 1),
    ),
    **{
        what: (
            program(If(guard, (store(GY * 600 + G),)), size=(16, 16, 1)),
            "proved for grids with at most 2**24 invocations along y, one workgroup along x and z",
            (16, 1 << 24, 1),
        )
        for what, guard in {
            "rows without a guard": BufLen("out") > 0,
            "rows behind a loose guard": G < 601,
            "rows behind a signed guard": Cast(i32, G) < lit(600, i32),
        }.items()
    },
    "no access": (program(size=(1, 1, 1)), "proved", (WIDE, WIDE, WIDE)),
    "one place for all": (program(store(lit(0)), size=(1, 1, 1)), "unproved", (0, 0, 0)),
    "half of the ids": (program(store(BinOp(BinaryOp.BIT_AND, G, lit(63)))), "unproved", (0, 0, 0)),
    "every second id alike": (program(store(G * (1 << 31))), "unproved", (0, 0, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", PROVED)
def test_deterministic_kernels_are_proved(what):
    """For as many axes as their workgroup has."""
    p = PROVED[what]
    found = determinism(p)
    assert found.covers((1 << 20, 1 << 20 if p.workgroup_size[1] > 1 else 1, 1))
    assert p.determinism == found.verdict
    assert found.verdict.startswith("proved")


@pytest.mark.parametrize("what", UNPROVED)
def test_other_kernels_are_not(what):
    found = determinism(UNPROVED[what])
    assert found.verdict == "unproved"
    assert what == "not a valid program" or "not valid" not in found.reasons[0]
    assert not found.covers((1, 1, 1))
    assert UNPROVED[what].determinism == "unproved"


@pytest.mark.parametrize("what", SOME)
def test_a_verdict_names_the_grids_that_it_holds_for(what):
    p, verdict, extent = SOME[what]
    found = determinism(p)
    assert (found.verdict, found.extent) == (verdict, extent)
    assert bool(found.reasons) == (verdict != "proved")
    assert all(r.startswith("on other grids, ") == (verdict != "unproved") for r in found.reasons)


def test_a_row_that_is_repeated_is_no_longer_proved():
    """Sixteen invocations read, change and write one element, and each order gives other bytes."""
    p = program(store(G, out(G) * 3 + 1), size=(4, 1, 1))
    assert p.determinism == ONE_ROW
    assert determinism(p, (2, 1, 1)).verdict == "proved"
    for grid in ((2, 16, 1), (2, 1, 16)):
        assert determinism(p, grid) == Determinism(
            "unproved",
            tuple(
                f"{one} and {two} of two invocations may meet in 'out'"
                for one, two in (("load", "store"), ("store", "store"))
            ),
        )
        seen = run(p, [bytes(32), bytes(4), bytes(4), bytes(4)], grid=grid, detect_races=True)
        assert {race.buffer for race in seen.races} == {"out"}


def test_a_workgroup_of_another_size_has_another_proof():
    p = program(store(G))
    assert determinism(p, (2, 1, 1)).verdict == "proved"
    assert determinism(p, (2, 1, 1), (8, 1, 1)).verdict == "proved"
    assert determinism(p, (2, 1, 1), (8, 8, 1)).verdict == "unproved"


def test_reasons_name_the_lines_of_a_program_that_has_a_source():
    first, second = (Span("k.py", line) for line in (3, 7))
    store, load = Store("c", lit(0), G, span=first), Let("v", Load("c", lit(0)), span=second)
    assert determinism(program(store)).reasons == (
        "store and store of two invocations may meet in 'c', at k.py:3",
    )  # fmt: skip
    assert determinism(program(store, load)).reasons == (
        "store and store of two invocations may meet in 'c', at k.py:3",
        "store and load of two invocations may meet in 'c', at k.py:3 and k.py:7",
    )


def test_reasons_name_the_buffer_and_both_accesses():
    assert determinism(UNPROVED["the neighbour's place"]).reasons == (
        "store and load of two invocations may meet in 'out'",
    )
    assert determinism(UNPROVED["an exchange"]).reasons == (
        "atomic_exchange and atomic_exchange of two invocations may meet in 'c'",
    )
    assert determinism(program(store(G * BufLen("out")), size=(4, 4, 1))).reasons == (
        "store and store of two invocations may meet in 'out', as an index is not a sum of ids times numbers that the "
        "text has",
    )
    assert "V066" in determinism(UNPROVED["not a valid program"]).reasons[0]


def test_a_proof_covers_what_does_not_wrap():
    plain, strided = determinism(PROVED["a copy"]), determinism(PROVED["a stride by shift"])
    assert plain.extent == (1 << 32, 1, 1)
    assert strided.extent == (1 << 30, 1, 1)
    assert strided.covers((1 << 30, 1, 1))
    assert not strided.covers(((1 << 30) + 256, 1, 1))
    assert not strided.covers((256, 2, 1))


def test_a_known_grid_proves_more():
    p = program(store(GY * 512 + G))
    assert determinism(p).verdict == ONE_ROW
    assert determinism(p, (2, 9, 1)) == Determinism("proved", (), (512, 9, 1))
    assert determinism(p, (3, 9, 1)).verdict == "unproved"
    assert determinism(program(store(lit(0)), size=(1, 1, 1)), (1, 1, 1)).verdict == "proved"


def test_too_many_places_or_barriers_are_not_compared():
    p = program(*(store(G * 512 + i, x(G)) for i in range(301)))
    assert determinism(p).reasons == ("'out' is accessed in too many places to compare",)
    assert determinism(program(*(Barrier() for _ in range(1001)))).reasons == ("too many barriers to analyse",)


def test_accesses_that_differ_alike_are_compared_once(monkeypatch):
    monkeypatch.setattr("vyre.foundation.check.determinism.MOST_COMPARISONS", 1000)
    assert determinism(program(*(store(G * 256 + i, x(G)) for i in range(200)), size=(64, 1, 1))).verdict.startswith(
        "proved"
    )


def test_the_pairs_and_comparisons_of_all_buffers_together_are_bounded(monkeypatch):
    buffers = [read_write(f"b{i}", i, u32) for i in range(9)]
    p = Program(buffers, (64, 1, 1), [Store(f"b{i}", G * 8 + k, ONE) for i in range(9) for k in range(8)])
    assert determinism(p).verdict.startswith("proved")
    for limit, enough, too_few in (("MOST_PAIRS", 9 * 64, 9 * 64 - 1), ("MOST_COMPARISONS", 16, 15)):
        monkeypatch.setattr(f"vyre.foundation.check.determinism.{limit}", enough)
        assert determinism(p).verdict.startswith("proved")
        monkeypatch.setattr(f"vyre.foundation.check.determinism.{limit}", too_few)
        assert "memory is accessed in too many places to compare" in determinism(p).reasons
        monkeypatch.undo()


def test_a_condition_that_repeats_itself_is_known_once():
    steps = [Let("c0", G < 4), *(Let(f"c{k + 1}", BinOp(BinaryOp.AND, Var(f"c{k}"), Var(f"c{k}"))) for k in range(60))]
    p = program(*steps, If(Var("c60"), [store(G)]))
    assert determinism(p).verdict.startswith("proved")


def test_an_index_of_too_many_terms_is_unknown():
    buffers = [uniform(f"u{k}", k, u32, 1) for k in range(65)]
    out = read_write("o", 65, u32)

    def indexed(terms: int) -> Program:
        steps = [Let("s0", Load("u0", lit(0)))]
        steps += [Let(f"s{k}", Var(f"s{k - 1}") + Load(f"u{k}", lit(0))) for k in range(1, terms)]
        return Program([*buffers, out], (4, 1, 1), [*steps, Store("o", Var(f"s{terms - 1}") + G, ONE)])

    assert determinism(indexed(63)).verdict.startswith("proved")
    assert determinism(indexed(65)).verdict == "unproved"


def test_reasons_are_few():
    buffers = [read_write(f"b{i}", i, u32) for i in range(30)]
    p = Program(buffers, (64, 1, 1), [Store(f"b{i}", lit(0), ONE) for i in range(30)])
    assert len(determinism(p).reasons) == 10


@pytest.mark.parametrize(
    "e, known",
    [
        (G * 3 + 4, True),
        (4 + 3 * G, True),
        (BinOp(BinaryOp.WRAPPING_SUB, G, BinOp(BinaryOp.WRAPPING_ADD, L, lit(1))), True),
        (Bitcast(i32, G), True),
        (Load("n", lit(0)), True),
        (Load("n", G), False),
        (Load("raw", lit(0)), False),
        (lit(1.5), False),
        (Cast(u8, G), False),
        (Bitcast(f32, G), False),
        (G * L, False),
        (G // 2, False),
        (G << L, False),
        (Select(G < 1, G, L), False),
        (Var("i"), True),
        (Var("j"), False),
    ],
)
def test_which_expressions_have_a_linear_form(e, known):
    names = {"i": linear(G, {}, frozenset()), "j": None}
    assert (linear(e, names, frozenset(("n",))) is not None) == known


def test_equal_values_have_equal_forms():
    none = frozenset()
    assert linear((G + 1) * 2 - L, {}, none) == linear(2 * G - (L - 2), {}, none)
    assert linear(G - G, {}, none) == linear(lit(0), {}, none)
    assert linear(G * 0xFFFFFFFF, {}, none) == linear(-G, {}, none)


def test_a_long_chain_of_lets_needs_no_stack():
    lets = [Let("x0", G)] + [Let(f"x{i}", Var(f"x{i - 1}") + 1) for i in range(1, 3000)]
    assert determinism(program(*lets, store(Var("x2999")))).verdict == ONE_ROW


# ---- soundness ------------------------------------------------------------------------------------------------------

SMALL = (
    read_write("out", 0, u32, 24),
    read_write("c", 1, u32, 6),
    read("x", 2, u32, 8),
    workgroup("tile", u32, 12),
)
IDS = [kind(axis) for kind in (InvocationId, LocalId, WorkgroupId) for axis in range(3)]
ATOMS = st.sampled_from([G, G, GY, *IDS, Var("k"), lit(0), lit(1), lit(3)])


@st.composite
def indices(draw):
    e = draw(ATOMS)
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.sampled_from("+-*s<&")):
            case "+":
                e = e + draw(ATOMS)
            case "-":
                e = draw(ATOMS) - e
            case "*":
                e = e * draw(st.sampled_from([2, 3, 4, 6, 8, 12, 1 << 30, 1 << 31, WIDE // 3, WIDE - 1]))
            case "<":
                op = draw(st.sampled_from([BinaryOp.SHL, BinaryOp.SHR]))
                e = BinOp(op, e, lit(draw(st.sampled_from([1, 2, 30, 31, 32, 33]))))
            case "&":
                op = draw(st.sampled_from([BinaryOp.BIT_AND, BinaryOp.MOD, BinaryOp.BIT_OR]))
                e = BinOp(op, e, lit(draw(st.sampled_from([1, 3, 4]))))
            case _:
                e = e + draw(st.integers(0, 5))
    return e


@st.composite
def values(draw):
    match draw(st.sampled_from("1xoct")):
        case "1":
            return G * 7 + L + 1
        case "x":
            return x(draw(indices()))
        case "o":
            return out(draw(indices()))
        case "c":
            return Load("c", draw(indices()))
        case _:
            return tile(draw(indices()))


@st.composite
def statements(draw, depth=2):
    kind = draw(
        st.sampled_from(["out", "out", "tile", "c", "atomic", "old", "bar", "sync", "if", "if", "loop", "block"])
    )
    index = draw(indices())
    match kind:
        case "out" | "tile" | "c":
            return Store(kind, index, draw(values()))
        case "atomic":
            op = draw(st.sampled_from([AtomicOp.ADD, AtomicOp.ADD, AtomicOp.XOR, AtomicOp.MAX, AtomicOp.EXCHANGE]))
            return Let("_", Atomic(op, draw(st.sampled_from(["c", "tile"])), index, draw(values())))
        case "old":
            old = Let("old", Atomic(AtomicOp.ADD, "c", index, ONE))
            return Block((old, Store("out", draw(indices()), Var("old"))))
        case "bar":
            return Barrier()
        case "sync" if depth == 2:
            return SYNC
    if depth == 0:
        return Store("out", index, ONE)
    body = tuple(Block((n,)) for n in draw(st.lists(statements(depth=depth - 1), max_size=3)))
    match kind:
        case "if":
            compare = draw(
                st.sampled_from([BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE, BinaryOp.EQ, BinaryOp.NE])
            )
            sides = draw(ATOMS), lit(draw(st.integers(0, 4)))
            left, right = sides if draw(st.booleans()) else sides[::-1]
            condition = BinOp(compare, left, right)
            return If(condition, body) if draw(st.booleans()) else If(condition, (), body)
        case "loop":
            low = draw(st.integers(0, 2))
            return Loop("k", lit(low), lit(low + draw(st.integers(0, 3))), body)
    return Block(body)


def _rename(body, name):
    """Loops inside one another need names of their own, and `k` outside of all is something else."""
    counter = iter(range(1000))

    def change(node):
        if isinstance(node, Loop):
            new = f"{name}{next(counter)}"
            inner = rewrite(node.body, expr=lambda e: Var(new) if e == Var("k") else e)
            return node.replace(var=new, body=inner)
        return node

    done = rewrite(body, node=change)
    return rewrite(done, expr=lambda e: G if e == Var("k") else e)


SIZES = st.sampled_from([(4, 1, 1), (3, 1, 1), (1, 1, 1), (2, 2, 1), (1, 3, 1), (1, 1, 2), (2, 1, 2), (2, 2, 2)])
GRIDS = st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 3)
SCHEDULES = ["forward", "reversed", "lockstep", Schedule.seeded(1), Schedule.seeded(2)]


def attack(body, size, grid):
    """Whatever is said to be proved about a program is held against the reference's schedules and race detector."""
    p = Program(SMALL, size, _rename([n if n == SYNC else Block((n,)) for n in body], "k"))
    assume(all(i.severity != "error" for i in validate(p, Capabilities.everything())))
    verdict = determinism(p, grid).verdict
    event(verdict)
    whole = determinism(p)
    covered = whole.covers(invocations(size, grid))
    assert verdict == "proved" or not covered
    assert (whole.verdict == "proved") == whole.covers((WIDE, WIDE, WIDE))
    if verdict == "proved":
        require_one_result(p, grid)
    if why_workgroup_is_fixed(p) is None:
        for other in ((1, 1, 1), (2, 2, 1), (1, 2, 2)):
            if whole.covers(invocations(other, grid)) or determinism(p, grid, other).verdict == "proved":
                require_one_result(Program(SMALL, other, p.entry), grid)


def invocations(size, grid):
    return tuple(a * b for a, b in zip(size, grid, strict=True))


def require_one_result(p, grid):
    data = [bytes(range(1, 97)), bytes(24), bytes(range(32))]
    results = [run(p, data, grid=grid, schedule=s, detect_races=True) for s in SCHEDULES]
    assert all(r.races == () for r in results)
    assert all(r.outputs == results[0].outputs for r in results)


ATTACK = given(st.lists(statements(), min_size=1, max_size=5), SIZES, GRIDS)
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@settings(deadline=None, max_examples=300, suppress_health_check=SLOW)
@ATTACK
@example([store(G * (1 << 30))], (4, 1, 1), (3, 1, 1))
@example([store(GY * (WIDE - 1) + G)], (2, 2, 1), (1, 1, 1))
@example([store(G << 33), store(G + 8, out(G << 1))], (4, 1, 1), (1, 1, 1))
@example([store(G, out(G) * 3)], (2, 1, 1), (2, 3, 1))
def test_a_proved_dispatch_has_no_race_and_one_result(body, size, grid):
    attack(body, size, grid)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@settings(deadline=None, max_examples=5000, suppress_health_check=SLOW)
@ATTACK
def test_no_proof_falls_to_a_long_attack(body, size, grid):
    attack(body, size, grid)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(valid_programs())
def test_generated_dispatches_are_proved(case):
    assert determinism(case.program, case.grid).verdict == "proved"
