"""Which accesses go without a test: never one that can be out of bounds, and all that are plainly in.

The interpreter refuses an access that is neither tested nor in bounds, so running a kernel is the property.
"""

import random
import struct
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vyre.foundation.ir.dtypes import f32, i32, u8, u32
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    BinOp,
    BufLen,
    Cast,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Select,
    Store,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup, write_only
from vyre.lower import improve
from vyre.lower.from_program import build
from vyre.lower.kernel_ir import walk

from ...support.lower_oracle import Dispatch, interpret

I, J = InvocationId(0), InvocationId(1)  # noqa: E741
A, B, OUT, P = read("a", 1, u32), read("b", 2, u32), read_write("out", 3, u32), read("p", 4, u32)


def lowered(body, *buffers, size=(8, 1, 1)):
    program = Program(buffers or (A, B, OUT, P), size, body)
    kernel = build(program)
    improve(kernel)
    return program, kernel


def states(kernel, name):
    """How each access to a buffer is tested."""
    found = []
    for item in walk(kernel.body):
        if item.op in ("load", "store", "atomic"):
            buffer = item.attr[1] if item.op == "atomic" else item.attr
            if buffer.name == name:
                found.append("tested" if item.guarded and not item.covered else "checked" if item.guarded else "free")
    return found


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def check_of(kernel, program, lengths, grid):
    """Whether the check lets a whole dispatch go without tests."""
    inputs = [words(*([3] * lengths.get(b.name, 0))) for b in program.host_inputs]
    tile = list(product(*map(range, grid)))
    return Dispatch(kernel, program, inputs, grid).check(tile)


# ---- plainly in bounds ----------------------------------------------------------------------------------------------

N = BufLen("a")
FREE = {
    "inside a test of the length": [If(I < N, [Store("out", I, Load("a", I))])],
    "the other way round": [If(N > I, [Store("out", I, Load("a", I))])],
    "behind a return": [If(I >= N, [Return()]), Store("out", I, Load("a", I))],
    "behind a return in the else": [If(I < N, [Store("out", I, lit(1))], [Return()]), Store("out", I, Load("a", I))],
    "one of two conditions": [
        If(BinOp(BinaryOp.AND, I < N, J < 3), [Store("out", I, Load("a", I))]),
    ],
    "not of a condition": [If(UnOp(UnaryOp.LOGICAL_NOT, I >= N), [Store("out", I, Load("a", I))])],
    "in the else of an or": [
        If(BinOp(BinaryOp.OR, I >= N, J > 3), [Store("out", I, lit(0))], [Store("out", I, Load("a", I))])
    ],
    "through a name": [Let("n", N), Let("i", I + 0), If(Var("i") < Var("n"), [Store("out", I, Load("a", Var("i")))])],
    "by a smaller bound": [If(BinOp(BinaryOp.MIN, N, BufLen("b")) > I, [Store("out", I, Load("a", I))])],
    "by two steps": [If(I < J, [If(J < N, [Store("out", I, Load("a", I))])])],
    "of a loop": [Loop("k", lit(0), N, [Store("out", Var("k"), Load("a", Var("k")))])],
    "of half an index": [If(I < N, [Store("out", I, Load("a", I >> 1))])],
    "of a remainder": [If(I < N, [Store("out", I, Load("a", I % 5))])],
    "of a predecessor": [If(I < N, [If(I > 0, [Store("out", I, Load("a", I - 1))])])],
    "of an equal index": [If(I < N, [If(J.eq(I), [Store("out", I, Load("a", J))])])],
    "of a while": [
        Let("i", I),
        Let("go", lit(True)),
        Loop(
            "k",
            lit(0),
            lit(0xFFFFFFFF),
            [
                If(
                    Var("go"),
                    [
                        Assign("go", Var("i") < N),
                        If(Var("go"), [Store("out", I, Load("a", Var("i"))), Assign("i", Var("i") + 64)]),
                    ],
                )
            ],
        ),
    ],
}


@pytest.mark.parametrize("name", FREE)
def test_an_access_below_the_length_needs_no_test(name):
    program, kernel = lowered(FREE[name])
    assert states(kernel, "a") == ["free"]
    for length in (0, 1, 7, 8, 20):
        interpret(kernel, program, (words(*range(length)), words(1, 2), bytes(40), b""), (2, 2, 1))


TESTED = {
    "no condition at all": [Store("out", I, Load("a", Load("b", I)))],
    "a test of another length": [If(Load("b", I) < BufLen("out"), [Store("out", I, Load("a", Load("b", I)))])],
    "one of two alternatives": [
        If(BinOp(BinaryOp.OR, Load("b", I) < N, J < 3), [Store("out", I, Load("a", Load("b", I)))])
    ],
    "the wrong side": [Let("x", Load("b", I)), If(Var("x") < N, [], [Store("out", I, Load("a", Var("x")))])],
    "after the condition": [Let("x", Load("b", I)), If(Var("x") < N, []), Store("out", I, Load("a", Var("x")))],
    "a bound that is reached": [Let("x", Load("b", I)), If(Var("x") <= N, [Store("out", I, Load("a", Var("x")))])],
    "a value that changed since": [
        Let("x", Load("b", I)),
        If(Var("x") < N, [Assign("x", Var("x") + 1), Store("out", I, Load("a", Var("x")))]),
    ],
    "a return that may not happen": [
        Let("x", Load("b", I)),
        If(Var("x") >= N, [If(J > 0, [Return()])]),
        Store("out", I, Load("a", Var("x"))),
    ],
    "a difference that may wrap": [
        Let("x", Load("b", I)),
        If(Var("x") < N, [Store("out", I, Load("a", Var("x") - 1))]),
    ],
}


@pytest.mark.parametrize("name", TESTED)
def test_an_access_that_can_be_out_of_bounds_is_tested(name):
    program, kernel = lowered(TESTED[name])
    assert "free" not in states(kernel, "a")
    for values in ((0, 1, 2, 3), (7, 0xFFFFFFFF, 4, 5)):
        interpret(kernel, program, (words(1, 2, 3, 4), words(*values), bytes(40), b""), (1, 2, 1))


def test_shared_memory_has_a_length_that_is_known_now():
    buffers = (A, OUT, workgroup("s", u32, 32))
    body = [
        Store("s", LocalId(0) * 4 + 3, I),
        Store("s", LocalId(0) * 4 + 4, I),
        Store("s", Load("a", I) & 31, I),
        Store("s", Load("a", I) % 33, I),
        Store("s", lit(31), I),
    ]
    assert states(lowered(body, *buffers)[1], "s") == ["free", "tested", "free", "tested", "free"]


def test_small_types_bound_an_index_by_themselves():
    buffers = (read("t", 0, u8), OUT, workgroup("s", u32, 256), workgroup("small", u32, 255))
    body = [Store("s", Cast(u32, Load("t", I)), I), Store("small", Cast(u32, Load("t", I)), I)]
    kernel = lowered(body, *buffers)[1]
    assert states(kernel, "s") == ["free"]
    assert states(kernel, "small") == ["tested"]


# ---- in bounds when the check says so -------------------------------------------------------------------------------

W = Load("p", lit(0))
CHECKED = {
    "the global id": ([Store("out", I, Load("a", I))], "a", {"a": 16, "out": 16}, {"a": 15}),
    "an offset": ([Store("out", I, Load("a", I + 5))], "a", {"a": 21, "out": 16}, {"a": 20}),
    "a multiple": ([Store("out", I, Load("a", I * 3 + 2))], "a", {"a": 48, "out": 16}, {"a": 47}),
    "a shift": ([Store("out", I, Load("a", I << 2))], "a", {"a": 61, "out": 16}, {"a": 60}),
    "workgroup and local id": (
        [Store("out", I, Load("a", WorkgroupId(0) * 8 + LocalId(0)))],
        "a",
        {"a": 16, "out": 16},
        {"a": 15},
    ),
    "another length": (
        [If(BufLen("b") > I, [Store("out", I, Load("a", I))])],
        "a",
        {"a": 9, "b": 9},
        {"a": 9, "b": 10},
    ),
    "a table": ([Store("out", I, Load("a", Load("b", I) & 7))], "a", {"a": 8, "b": 16, "out": 16}, {"a": 7}),
    "a loop over a parameter": (
        [Loop("k", lit(0), W, [Store("out", I, Load("a", I * W + Var("k")))])],
        "a",
        {"a": 48, "out": 16, "p": 1},
        {"a": 47},
    ),
    "a row and a column": (
        [If(BinOp(BinaryOp.AND, I < W, J < W), [Store("out", I, Load("a", J * W + I))])],
        "a",
        {"a": 9, "out": 16, "p": 1},
        {"a": 8},
    ),
    "neighbours": (
        [If(BinOp(BinaryOp.AND, I > 0, BufLen("b") > I + 1), [Store("out", I, Load("a", I))])],
        "a",
        {"a": 3, "b": 4},
        {"a": 2},
    ),
    "the end of the grid": ([Store("out", I, Load("a", lit(20) - I))], "a", {"a": 21, "out": 16}, {"a": 20}),
    "a division by a parameter": ([Store("out", I, Load("a", I // W))], "a", {"a": 6, "p": 1, "out": 16}, {"a": 5}),
    "a choice": (
        [Store("out", I, Load("a", Select(Load("b", I) > 3, I, lit(17))))],
        "a",
        {"a": 18, "b": 16, "out": 16},
        {"a": 17},
    ),
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_check_tells_whether_a_tile_fits(name):
    body, buffer, fits, too_short = CHECKED[name]
    program, kernel = lowered(body)
    assert set(states(kernel, buffer)) == {"checked"}
    everything = {"a": 99, "b": 99, "out": 99, "p": 1}
    assert check_of(kernel, program, everything | fits, (2, 4, 1))
    assert not check_of(kernel, program, everything | fits | too_short, (2, 4, 1))


def test_a_wrapping_index_fails_the_check_instead_of_wrapping_with_it():
    program, kernel = lowered([Store("out", I, Load("a", I * 0x10000000))])
    assert states(kernel, "a") == ["checked"]
    sizes = {"a": 9, "b": 9, "out": 99}
    assert not check_of(kernel, program, sizes, (4, 1, 1))
    program, kernel = lowered([Store("out", I, Load("a", (I * W + 1) * 0x10001 * W))])
    assert not check_of(kernel, program, sizes | {"p": 1}, (4, 1, 1))


def test_a_tile_in_the_middle_goes_free_where_the_first_and_the_last_do_not():
    program, kernel = lowered([Store("out", I, Load("a", I - 1) + Load("a", I + 1))])
    inputs = (words(*range(40)), b"", bytes(160), b"")
    interpret(kernel, program, inputs, (5, 1, 1))
    run = Dispatch(kernel, program, inputs, (5, 1, 1))
    assert [run.check([(k, 0, 0)]) for k in range(5)] == [False, True, True, True, False]


def test_a_check_does_not_grow_without_end():
    body = [Store("out", I, Load("a", I * (k + 3))) for k in range(200)]
    kernel = lowered(body)[1]
    assert {"checked", "tested"} == set(states(kernel, "a"))
    assert len(kernel.check.body) < 400


def test_atomics_are_covered_as_well():
    kernel = lowered([Let("x", Atomic(AtomicOp.ADD, "out", I, lit(1)))])[1]
    assert states(kernel, "out") == ["checked"]


# ---- outputs that are filled ----------------------------------------------------------------------------------------

M = BufLen("o")


def _share(size, start=0, step=None, value=1):
    """A loop over one share of `o`."""
    return Loop("k", lit(start), size, [Store("o", I * (size if step is None else lit(step)) + Var("k"), lit(value))])


FILLED = {
    "always": [Store("o", I, lit(1))],
    "below its length": [If(I < M, [Store("o", I, lit(1))])],
    "behind a return": [If(I >= M, [Return()]), Store("o", I, lit(1))],
    "on both ways": [If(Load("a", I) > 3, [Store("o", I, lit(1))], [Store("o", I, lit(2))])],
    "before a return": [Store("o", I, lit(1)), If(Load("a", I) > 3, [Return()]), Store("o", I, lit(2))],
    "after a loop": [Let("x", lit(0)), Loop("k", lit(0), I, [Assign("x", Var("x") + 1)]), Store("o", I, Var("x"))],
    "a share in a loop": [_share(lit(3))],
    "a share that follows a length": [_share(BufLen("a") // 4)],
    "a share on both ways": [If(Load("a", I) > 3, [_share(lit(3))], [_share(lit(3), value=2)])],
    "below another length that is no shorter": [If(BufLen("a") > I, [Store("o", I, lit(1))])],
    "below two lengths": [If(BufLen("a") > I, [If(I < M, [Store("o", I, lit(1))])])],
    "behind a return beyond what follows from lengths": [If(BufLen("a") // 2 <= I, [Return()]), Store("o", I, lit(1))],
    "a share below another length": [If(BufLen("a") > I, [_share(lit(3))])],
    "below another length and else": [If(BufLen("a") > I, [Store("o", I, lit(1))], [Store("o", I, lit(2))])],
    "in a branch of a branch": [If(M > I, [If(Load("a", I) > 3, [Store("o", I, lit(1))], [Store("o", I, lit(0))])])],
}
NOT_FILLED = {
    "a share that is read from memory": [_share(Load("a", lit(2)))],
    "all of a share but its first": [_share(lit(3), start=1)],
    "other shares than the step": [_share(lit(3), step=4)],
    "a share now and then": [
        Loop("k", lit(0), lit(3), [If(Load("a", Var("k")) > 0, [Store("o", I * 3 + Var("k"), lit(1))])])
    ],
    "two shares": [If(Load("a", I) > 3, [_share(lit(3))], [_share(lit(2))])],
    "a share or one": [If(Load("a", I) > 3, [_share(lit(3))], [Store("o", I, lit(1))])],
    "a share until a return": [
        Loop("k", lit(0), lit(3), [If(Load("a", I) > 3, [Return()]), Store("o", I * 3 + Var("k"), lit(1))])
    ],
    "under a condition": [If(Load("a", I) > 3, [Store("o", I, lit(1))])],
    "below a length from memory": [If(Load("a", lit(0)) > I, [Store("o", I, lit(1))])],
    "in a loop": [Loop("k", lit(0), Load("a", I), [Store("o", I, lit(1))])],
    "elsewhere": [Store("o", I + 1, lit(1))],
    "behind a return that others take": [If(Load("a", I) > 3, [Return()]), Store("o", I, lit(1))],
    "behind a return in a loop": [Loop("k", lit(0), Load("a", I), [Return()]), Store("o", I, lit(1))],
    "the wrong way": [If(I < M, [Let("x", lit(0))], [Store("o", I, lit(1))])],
    "along another axis": [Store("o", J, lit(1))],
}


@pytest.mark.parametrize("size", [(4, 1, 1), (1, 1, 1)], ids=["4", "1"])
@pytest.mark.parametrize("name", [*FILLED, *NOT_FILLED])
def test_outputs_that_every_invocation_stores_are_named(name, size):
    program, kernel = lowered((FILLED | NOT_FILLED)[name], A, write_only("o", 0, u32), size=size)
    assert set(kernel.stored) == ({"o"} if name in FILLED else set())
    grid = (12 // size[0], 1, 1)
    for length in (0, 3, 11, 12, 13):
        expected = None
        for seed in range(2):
            found = interpret(kernel, program, (words(*range(8)),), grid, {"o": length}, seed)
            expected = expected or found
            assert found == expected
            assert b"\xa5" not in found[0]


def test_an_output_that_is_read_is_not_filled():
    body = [Store("o", I, lit(1)), Store("b", I, Load("o", I + 1))]
    assert lowered(body, read_write("o", 0, u32), read_write("b", 1, u32))[1].stored.keys() == {"b"}
    body = [Store("o", I, lit(1)), Let("x", Atomic(AtomicOp.ADD, "o", lit(0), lit(1)))]
    assert lowered(body, read_write("o", 0, u32))[1].stored == {}


# ---- random kernels -------------------------------------------------------------------------------------------------

EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 15, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
OPS = (
    BinaryOp.ADD, BinaryOp.ADD, BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MOD,
    BinaryOp.BIT_AND, BinaryOp.BIT_OR, BinaryOp.BIT_XOR, BinaryOp.SHL, BinaryOp.SHR, BinaryOp.MIN, BinaryOp.MAX,
)  # fmt: skip
COMPARE = (BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE, BinaryOp.EQ, BinaryOp.NE)


class _Maker:
    """Kernels full of indices and of conditions about them."""

    def __init__(self, rng):
        self.rng = rng
        self.names = []
        self.fresh = 0

    def leaf(self):
        rng = self.rng
        makers = [
            lambda: I, lambda: I, lambda: J, lambda: LocalId(0), lambda: WorkgroupId(0), lambda: BufLen("a"),
            lambda: BufLen("out"), lambda: lit(rng.choice(EDGES[:8])), lambda: Load("p", lit(rng.randrange(5))),
            lambda: Load("a", I), lambda: lit(rng.choice(EDGES)),
        ]  # fmt: skip
        if self.names:
            makers += [lambda: Var(rng.choice(self.names))] * 6
        return rng.choice(makers)()

    def expr(self, depth=2):
        rng = self.rng
        if depth == 0 or rng.random() < 0.35:
            return self.leaf()
        if rng.random() < 0.15:
            return Cast(u32, self.signed(depth))
        if rng.random() < 0.1:
            return Select(self.condition(0), self.expr(depth - 1), self.expr(depth - 1))
        right = lit(rng.choice(EDGES[:8])) if rng.random() < 0.4 else self.expr(depth - 1)
        return BinOp(rng.choice(OPS), self.expr(depth - 1), right)

    def signed(self, depth):
        """Neighbours of a place and clamps of them, as people write them, and sums of anything."""
        rng = self.rng
        if not depth or rng.random() < 0.3:
            return rng.choice((Cast(i32, self.leaf()), lit(rng.choice((-2, -1, 0, 1, 2, 7, -(1 << 31))), i32)))
        op = rng.choice((BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.MIN, BinaryOp.MAX))
        made = BinOp(op, self.signed(depth - 1), self.signed(depth - 1))
        if rng.random() < 0.5:
            last = BinOp(BinaryOp.SUB, Cast(i32, BufLen(rng.choice(("a", "out")))), lit(1, i32))
            made = BinOp(BinaryOp.MAX, BinOp(BinaryOp.MIN, made, last), lit(0, i32))
        return made

    def condition(self, depth=1):
        rng = self.rng
        roll = rng.random()
        if roll > 0.9:
            return BinOp(rng.choice(COMPARE), self.signed(1), self.signed(1))
        if depth and roll < 0.3:
            op = rng.choice((BinaryOp.AND, BinaryOp.OR))
            return BinOp(op, self.condition(depth - 1), self.condition(depth - 1))
        if depth and roll < 0.4:
            return UnOp(UnaryOp.LOGICAL_NOT, self.condition(depth - 1))
        return BinOp(rng.choice(COMPARE), self.expr(1), self.expr(1))

    def statements(self, depth):
        out = []
        names = len(self.names)
        for _ in range(self.rng.randint(1, 4)):
            out += self.statement(depth)
        del self.names[names:]
        return out

    def statement(self, depth):
        rng = self.rng
        roll = rng.random()
        if roll < 0.25:
            self.fresh += 1
            made = Let(f"v{self.fresh}", self.expr())
            self.names.append(made.name)
            return [made]
        if roll < 0.5 or not depth:
            buffer = rng.choice(("out", "s"))
            return [Store(buffer, self.expr(), Load(rng.choice(("a", "s", "out")), self.expr()))]
        if roll < 0.55 and self.names:
            return [Assign(rng.choice(self.names), self.expr())] if rng.random() < 0.3 else []
        if roll < 0.85:
            orelse = self.statements(depth - 1) if rng.random() < 0.3 else []
            if rng.random() < 0.25:
                return [If(self.condition(), [Return()], orelse)]
            return [If(self.condition(), self.statements(depth - 1), orelse)]
        self.fresh += 1
        var = f"k{self.fresh}"
        start, stop = self.expr(1), self.expr(1)
        if rng.random() < 0.9:
            stop = BinOp(BinaryOp.MIN, stop, start + rng.randrange(4))
        else:
            start, stop = lit(rng.randrange(2)), BinOp(BinaryOp.MOD, stop, lit(5))
        self.names.append(var)
        body = self.statements(depth - 1)
        self.names.remove(var)
        return [Loop(var, start, stop, [n for n in body if not (isinstance(n, Assign) and n.name == var)])]


def random_kernel(rng):
    size = rng.choice(((1, 1, 1), (4, 1, 1), (3, 2, 1)))
    maker = _Maker(rng)
    body = maker.statements(3)
    buffers = [A, P, OUT, workgroup("s", u32, rng.choice((1, 4, 8)))]
    return Program(buffers, size, body)


def is_valid(program):
    return not any(issue.severity == "error" for issue in program.validate())


def random_run(rng, program):
    a, out = (rng.choice((0, 1, 2, 5, 8, 12, 24)) for _ in range(2))
    parameters = words(*(rng.choice(EDGES) for _ in range(rng.choice((0, 3, 5)))))
    inputs = {"a": words(*(rng.choice(EDGES) for _ in range(a))), "p": parameters, "out": bytes(4 * out)}
    grid = rng.choice(((1, 1, 1), (2, 1, 1), (5, 1, 1), (2, 2, 1)))
    return [inputs[b.name] for b in program.host_inputs], grid


def examine(seed):
    """Run a random kernel on a few sizes; how its accesses were tested."""
    rng = random.Random(seed)
    program = random_kernel(rng)
    if not is_valid(program):
        return []
    kernel = build(program)
    improve(kernel)
    for _ in range(3):
        inputs, grid = random_run(rng, program)
        interpret(kernel, program, inputs, grid, seed=seed)
    return [state for name in ("a", "out", "s") for state in states(kernel, name)]


def one_access(maker, depth):
    """A load of `out`, under conditions and in loops."""
    rng = maker.rng
    if not depth:
        return [Store("s", lit(0), Load("out", maker.expr(3)))]
    maker.fresh += 1
    name, roll = f"n{maker.fresh}", rng.random()
    if roll < 0.3:
        start, stop = lit(rng.randrange(3)), lit(rng.randrange(6))
        if rng.random() < 0.5:
            start = maker.expr(1)
            stop = BinOp(BinaryOp.MIN, maker.expr(1), start + rng.randrange(5))
        maker.names.append(name)
        return [Loop(name, start, stop, one_access(maker, depth - 1))]
    if roll < 0.5:
        value = maker.expr()
        maker.names.append(name)
        return [Let(name, value), *one_access(maker, depth - 1)]
    condition = maker.condition()
    if roll < 0.7:
        return [If(condition, [Return()]), *one_access(maker, depth - 1)]
    return [If(condition, one_access(maker, depth - 1))]


def examine_one(seed):
    """Run a kernel of one access with a buffer that it just fits, and with longer and shorter ones.

    How often the access was not tested.
    """
    rng = random.Random(seed)
    body = one_access(_Maker(rng), rng.randrange(4))
    program = Program([A, P, OUT, workgroup("s", u32, 1)], rng.choice(((1, 1, 1), (4, 1, 1), (3, 2, 1))), body)
    a, p = (words(*(rng.choice(EDGES[:10]) for _ in range(n))) for n in (6, 5))
    grid = rng.choice(((1, 1, 1), (3, 1, 1), (2, 2, 1)))

    def dispatch(kernel, length):
        found = Dispatch(kernel, program, [a, bytes(4 * length), p], grid, seed=seed)
        found.run()
        return found

    reached = dispatch(build(program), 6).reached.get("out", 0)
    kernel = build(program)
    improve(kernel)
    lengths = {max(reached + k, 0) for k in (0, 1, 2)} if reached < 5000 else {5}
    return sum(dispatch(kernel, length).untested > 0 for length in lengths)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_no_untested_access_of_a_random_kernel_is_out_of_bounds(seed):
    examine(seed)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_no_untested_access_at_the_edge_of_a_buffer_is_out_of_bounds(seed):
    examine_one(seed)


def test_random_kernels_have_accesses_of_every_kind():
    found = [state for seed in range(150) for state in examine(seed)]
    assert min(found.count(state) for state in ("free", "checked", "tested")) > 20
    assert sum(map(examine_one, range(200))) > 100


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(40))
def test_no_untested_access_in_many_random_kernels(block):
    for seed in range(10_000 + 1000 * block, 10_000 + 1000 * (block + 1)):
        examine_one(seed)
        if seed % 4 == 0:
            examine(seed)


def test_floats_are_no_indices_but_pass_through():
    program, kernel = lowered(
        [If(I < M, [Store("o", I, Load("x", I))])], read("x", 1, f32), output("o", 0, f32, 4), size=(4, 1, 1)
    )
    assert states(kernel, "o") == ["free"]
    assert kernel.stored.keys() == {"o"}
    interpret(kernel, program, (bytes(8),), (1, 1, 1))


# ---- numbers with a sign ---------------------------------------------------------------------------------------------

S = Cast(i32, I)
LAST = BinOp(BinaryOp.SUB, Cast(i32, BufLen("a")), lit(1, i32))


def clamp(value, low=0):
    return Cast(u32, BinOp(BinaryOp.MAX, BinOp(BinaryOp.MIN, value, LAST), lit(low, i32)))


@pytest.mark.parametrize(
    "index, state",
    [
        (clamp(S - lit(1, i32)), "checked"),
        (clamp(lit(3, i32) - S * lit(2, i32)), "checked"),
        (clamp(S * S), "checked"),  # while the product does not wrap
        (Cast(u32, BinOp(BinaryOp.MAX, S, lit(0, i32))), "checked"),
        (Cast(u32, Cast(i32, Load("p", I))), "tested"),
    ],
)
def test_a_clamped_index_is_checked_before_a_tile(index, state):
    _, kernel = lowered([If(I < N, [Store("out", I, Load("a", index))])])
    assert states(kernel, "a") == [state]


def test_a_check_of_signed_numbers_fails_where_they_wrap():
    program, kernel = lowered([Store("out", I, Load("a", clamp(S * lit(1 << 20, i32))))], size=(64, 1, 1))
    lengths = {"a": 8, "out": 1 << 14}
    assert check_of(kernel, program, lengths, (2, 1, 1))
    assert not check_of(kernel, program, lengths, (33, 1, 1))  # 64 * 32 * 2^20 is 2^31
    assert not check_of(kernel, program, lengths | {"a": 0}, (2, 1, 1))
