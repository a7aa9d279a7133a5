"""Conditions and clamps of borders: blocks of lanes that all take one way have code of their own, and none of it may be
seen in the bytes, wherever a border lies in a block."""

import random

import numpy as np
import pytest

import vyre
from vyre import D2, In, Out, barrier, f32, gid, i32, lid, shared, subgroup_add, subgroup_local_id, u32, wg
from vyre.foundation.ir import dtypes as t
from vyre.foundation.ir.nodes import (
    Assign,
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
    Var,
    lit,
)
from vyre.foundation.ir.ops import BinaryOp as Op
from vyre.foundation.ir.program import Program, read, write_only
from vyre.lower import LowerOptions, lower

from .test_cpu_emit import Launched, agree, case_of, expected

RANDOM = np.random.default_rng(7)


def either(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if i < height and j < width:
        at = i * width + j
        if i > 0 and i < height - 1 and j > 0 and j < width - 1:
            out[at] = f32(0.2) * (x[at] + x[at - 1] + x[at + 1] + x[at - width] + x[at + width])
        else:
            out[at] = x[at]


def one_of(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if i >= height or j >= width:
        return
    at = i * width + j
    if i == 0 or j == 0 or i == height - 1 or j == width - 1:
        out[at] = -x[at]
    else:
        out[at] = x[at - 1] - x[at + 1] + x[at - width] - x[at + width]


def ranked(height: u32, width: u32, x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.y, gid.x
    if i > 0 and i < x.shape[0] - 1 and j > 0 and j < x.shape[1] - 1:
        out[i, j] = x[i, j - 1] + x[i, j + 1] + x[i - 1, j] + x[i + 1, j]
    elif i < x.shape[0] and j < x.shape[1]:
        out[i, j] = x[i, j]


def signed(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = i32(gid.x), i32(gid.y)
    if i < i32(height) and j < i32(width):
        total = f32(0)
        for dj in range(-2, 3):
            if j + dj >= 0 and j + dj < i32(width):
                total += x[u32(i * i32(width) + j + dj)]
        out[u32(i * i32(width) + j)] = total


def clamped(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if j < width and i < height:
        total = f32(0)
        for di in range(-1, 2):
            for dj in range(-2, 2):
                row = min(max(i32(i) + di, 0), i32(height) - 1)
                column = max(min(i32(j) + dj, i32(width) - 1), 0)
                total += f32(dj + 3) * x[u32(row) * width + u32(column)]
        out[i * width + j] = total


def around(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if i < height and j < width:
        before = j - 1 if j > 0 else width - 1
        out[i * width + j] = x[i * width + before] - x[i * width + (j + 1) % width]


def halves(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    at = i * width + j
    if j < width and i < height:
        if j < width // 2:
            total = x[at] + 1
            out[at] = total
        else:
            total = x[at] - 1
            out[at] = total * 3
        if j + i < 20:
            out[at] = total * 2


def places(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    j, i = gid.x, gid.y
    if i < height and j < width:
        if j > 2 and lid.x > 0 and wg.x < 2:
            out[i * width + j] = x[i * width + j - 3] * f32(lid.y)
        else:
            out[i * width + j] = f32(lid.x)


def counted(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    """Loops and changing locals, with a return inside."""
    j, i = gid.x, gid.y
    total = f32(1)
    for k in range(3):
        if j > k and j < width:
            total += x[i * width + j - k]
            if total > 5:
                if i < height:
                    out[i * width + j] = total
                return
    if i < height and j < width:
        out[i * width + j] = total


def columns(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    """What lies side by side in memory lies along y."""
    i, j = gid.x, gid.y
    if i < height and j < width:
        if j > 0 and j < width - 1 and i > 0:
            out[i * width + j] = x[i * width + j - 1] + x[i * width + j + 1] - x[(i - 1) * width + j]
        else:
            out[i * width + j] = f32(lid.x + 2 * lid.y + 3 * wg.x + 5 * wg.y)


def columns_of_ranked(height: u32, width: u32, x: In[f32, D2], out: Out[f32, D2]) -> None:
    i, j = gid.x, gid.y
    if i < height and j < width:
        out[i, j] = x[i, j] + f32(i)


def scattered(height: u32, width: u32, x: In[f32], out: Out[f32]) -> None:
    if gid.x < width:
        out[gid.x * height] = x[gid.x * height] * f32(2)


BODIES = (either, one_of, ranked, signed, clamped, around, halves, places, counted, columns, columns_of_ranked)


def same(kernel, height, width, columns, rows, **arrays):
    """A domain of so many columns and rows, on cpu and on the reference."""
    x = RANDOM.uniform(-2, 2, height * width).astype(np.float32)
    x = x.reshape(height, width) if "ranked" in kernel.__name__ else x
    results = [
        kernel.on(b)(height, width, x, sizes={"out": x.shape}, domain=(columns, rows)) for b in ("cpu", "reference")
    ]
    np.testing.assert_array_equal(*(np.asarray(r).view(np.uint32) for r in results))


@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_a_border_is_where_it_is_in_every_block(body):
    for size in ((16, 4), (5, 3)):
        kernel = vyre.kernel(workgroup=size)(body)
        for width in (1, 15, 16, 17, 33, 64):
            same(kernel, 5, width, width, 5)


@pytest.mark.check
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_a_border_is_where_it_is_in_every_grid(body):
    for size in ((16, 16), (256, 1), (8, 8), (1, 4), (48, 2), (17, 1)):
        kernel = vyre.kernel(workgroup=size)(body)
        for height, width in ((1, 1), (1, 40), (2, 31), (3, 32), (9, 49), (17, 130)):
            for columns, rows in ((width, height), (width + 70, height + 5), (max(width // 2, 1), max(height - 1, 1))):
                same(kernel, height, width, columns, rows)


def choice(body, size=(16, 4)):
    kernel = vyre.kernel(workgroup=size)(body).on("cpu")
    shape = (20, 33) if "ranked" in body.__name__ else (660,)
    told = kernel.explain(20, 33, np.zeros(shape, np.float32), sizes={"out": shape}, domain=(33, 20))
    return told.choice("lanes")


def test_lanes_run_along_what_lies_side_by_side_in_memory():
    assert {choice(b) for b in (either, ranked, clamped, around)} == {"along x"}
    assert {choice(columns, (4, 16)), choice(columns_of_ranked), choice(columns, (1, 64))} == {"along y"}
    assert choice(scattered) == "along x"  # along y nothing lies side by side either
    assert choice(places, (5, 3)) == "in workgroups"  # whose local ids no vector of neighbours has


@vyre.kernel(workgroup=(8, 8))
def refusing(at: u32, x: In[f32], out: Out[f32]) -> None:
    i, j = gid.x, gid.y
    if i < 20 and j < 33:
        if j > 2:
            assert i * 33 + j != at, "here"
        out[i * 33 + j] = x[i * 33 + j]


@pytest.mark.parametrize("at", [3, 18, 33 * 7 + 16, 659, 660])
def test_a_trap_names_the_invocation_that_the_program_means(at):
    x = np.arange(660, dtype=np.float32)
    found = []
    for backend in ("cpu", "reference"):
        try:
            found.append(refusing.on(backend)(at, x, sizes={"out": 660}, domain=(20, 33)).tolist())
        except vyre.errors.VyreError as e:
            found.append((type(e), e.context.get("invocation")))
    assert found[0] == found[1]
    assert (at < 660) == isinstance(found[0], tuple)


# ---- workgroups whose invocations meet -------------------------------------------------------------------------------


def slow(*values):
    return [pytest.param(value, marks=pytest.mark.check) for value in values]


def rows_of_lanes(x: In[u32], out: Out[u32]) -> None:
    """Numbers of lanes, divided by what a vector lies within and by what it does not."""
    i, lane = gid.x, subgroup_local_id()
    found = x[i // 32] + 3 * x[i >> 4] + 5 * x[i % 48] + 7 * x[i & 31] + 11 * x[lane // 16] + 13 * x[i // 48]
    found += x[lid.x // 8] + x[(lid.x & 47) + i // 16] + x[i % 12] + x[lane & 7]
    total = subgroup_add(found + lane)
    for k in range(x[i // 32] % 5 + lane % 32, x[i // 32 + 1] % 77, 32):
        total += x[k + i // 64]
    if lane == 0 or i % 3 == 1:
        out[i] = total
    else:
        out[i] = found


@pytest.mark.parametrize("size", [40, 128, *slow(16, 32, 48, 96)])
def test_rows_of_lanes_are_what_they_are_in_every_workgroup(size):
    kernel = vyre.kernel(workgroup=size)(rows_of_lanes)
    x = RANDOM.integers(0, 2**32, 400, dtype=np.uint32)
    agree(case_of(kernel.program, [x], (3, 1, 1), out=3 * size), (1, 4, 16))


def tree(n: u32, x: In[u32], out: Out[u32], firsts: Out[u32]) -> None:
    """Branches for the first lanes, in most ways to write them; some keep a value for later."""
    s = shared(u32, 64)
    t = lid.x
    kept = u32(7)
    s[t] = x[gid.x]
    d = u32(32)
    while d > 0:
        barrier()
        if t < d and t + d < 64:
            s[t] = s[t] * 3 + s[t + d]
        d = d // 2
    barrier()
    if t <= n:
        s[t] = s[t] + t // 2
    barrier()
    if t < n:
        kept = s[t] + 1
    barrier()
    if t == n:
        firsts[wg.x] = s[0] + n
    barrier()
    if t == 0:
        s[1] = s[0] + s[2]
    barrier()
    out[gid.x] = s[t] ^ kept


@pytest.mark.parametrize("n", [7, 2**32 - 1, *slow(0, 1, 30, 31, 32, 63, 64)])
def test_a_branch_for_the_first_lanes_is_one(n):
    kernel = vyre.kernel(workgroup=64)(tree)
    x = RANDOM.integers(0, 2**32, 192, dtype=np.uint32)
    agree(case_of(kernel.program, [np.array([n], np.uint32), x], (3, 1, 1), out=192, firsts=3), (1, 4, 16))


# ---- random borders --------------------------------------------------------------------------------------------------

COMPARE = (Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE)
SIZES = ((16, 2, 1), (32, 1, 1), (24, 2, 1), (3, 5, 1), (1, 16, 1), (64, 1, 1), (8, 4, 2))


class Border:
    """A program whose every invocation stores in places of its own what it reads near them, if it is within borders."""

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.size, self.turned = rng.choice(SIZES), rng.random() < 0.3
        self.grid = rng.choice(((3, 2, 1), (1, 3, 1), (5, 1, 1), (2, 4, 2)))
        self.x, self.y = (InvocationId(k) for k in ((1, 0) if self.turned else (0, 1)))
        self.width = rng.choice((15, 16, 17, 31, 33, 48, 70))
        self.loops = 0
        at = self.y * Load("p", lit(0)) + self.x
        within = BinOp(Op.AND, BinOp(Op.LT, self.x, Load("p", lit(0))), BinOp(Op.LT, self.y, Load("p", lit(1))))
        inside = [Let("at", at), Let("sum", lit(0)), *self.statements(3), Store("out", Var("at"), Var("sum"))]
        body = [If(within, inside)]
        if rng.random() < 0.3:
            body = [
                If(BinOp(Op.GE, self.x, Load("p", lit(0))), [Return()]),
                If(BinOp(Op.LT, self.y, Load("p", lit(1))), inside),
            ]
        buffers = [read("a", 1, t.u32), read("b", 2, t.u8), read("p", 3, t.u32), write_only("out", 4, t.u32)]
        self.program = Program(buffers, self.size, body)

    def number(self):
        r = self.rng
        number = lambda: lit(r.choice((0, 1, 2, 3, 14, 15, 16, 17, 18, 31, 32, 33, 40)))  # noqa: E731
        return r.choice(
            (number, number, lambda: Load("p", lit(0)) - lit(r.randrange(4)), lambda: Load("p", lit(r.randrange(2))))
        )()

    def place(self):
        r = self.rng
        base = r.choice((self.x, self.x, self.x, self.y, LocalId(0)))
        return base if r.random() < 0.5 else BinOp(r.choice((Op.ADD, Op.SUB)), base, lit(r.randrange(4)))

    def signed(self):
        one = lit(self.rng.randrange(-3, 4), t.i32)
        return BinOp(Op.ADD, Cast(t.i32, self.rng.choice((self.x, self.x, self.y))), one)

    def condition(self, depth=2):
        r = self.rng
        if depth and r.random() < 0.5:
            return BinOp(r.choice((Op.AND, Op.OR)), self.condition(depth - 1), self.condition(depth - 1))
        if r.random() < 0.3:
            return BinOp(r.choice(COMPARE), self.signed(), r.choice((lit(0, t.i32), Cast(t.i32, self.number()))))
        pair = self.place(), self.number()
        return BinOp(r.choice(COMPARE), *(pair if r.random() < 0.7 else pair[::-1]))

    def column(self):
        """Near x, and bent at the borders in one way or another."""
        r, width = self.rng, Load("p", lit(0))
        last = BinOp(Op.SUB, Cast(t.i32, width), lit(1, t.i32))
        ways = (
            self.place,
            lambda: Cast(t.u32, BinOp(Op.MAX, BinOp(Op.MIN, self.signed(), last), lit(0, t.i32))),
            lambda: Cast(t.u32, BinOp(Op.MIN, BinOp(Op.MAX, self.signed(), lit(0, t.i32)), last)),
            lambda: BinOp(Op.MIN, self.place(), width - lit(1)),
            lambda: BinOp(Op.MOD, self.place(), BinOp(Op.MAX, width, lit(1))),
            lambda: Select(self.condition(0), self.place(), self.number()),
        )
        return r.choice(ways)()

    def statements(self, depth):
        r, out = self.rng, []
        for _ in range(r.randint(1, 3)):
            roll = r.random()
            if roll < 0.5 or not depth:
                buffer = r.choice("aab")
                found = Load(buffer, BinOp(Op.ADD, self.y * Load("p", lit(0)), self.column()))
                found = found if buffer == "a" else Cast(t.u32, found)
                out.append(Assign("sum", BinOp(Op.ADD, Var("sum") * lit(3), found)))
            elif roll < 0.9:
                other = self.statements(depth - 1) if r.random() < 0.5 else []
                inside = self.statements(depth - 1)
                if r.random() < 0.3:
                    inside.append(Store("out", Var("at") + BufLen("a"), Var("sum")))
                if r.random() < 0.1:
                    inside.append(Return())
                out.append(If(self.condition(), inside, other))
            else:
                self.loops += 1
                out.append(Loop(f"k{self.loops}", lit(0), lit(r.randrange(4)), self.statements(depth - 1)))
        return out

    def check(self, widths):
        rows = self.rng.choice((1, 3, 10))
        n = self.width * rows
        a, b = (np.arange(n, dtype=np.uint32) * np.uint32(2654435761)) >> 3, np.arange(n, dtype=np.uint8) * 37
        case = case_of(self.program, [a, b, np.array([self.width, rows], np.uint32)], self.grid, out=2 * n)
        options = LowerOptions(soft_flush=self.rng.random() < 0.2, poll=self.rng.random() < 0.2)
        kernel, want = lower(self.program, options), expected(case)
        for width in widths:
            launched = Launched(kernel, case, width, chunk=self.rng.choice((1, 3, 100)))
            assert launched.outputs == want, f"width {width}\n{self.program}"
        return launched.text


@pytest.mark.parametrize("block", range(2))
def test_random_borders_give_the_bytes_of_the_reference(block):
    texts = [Border(seed).check((16,)) for seed in range(block * 8, block * 8 + 8)]
    assert sum("inside" in text for text in texts) > 0


@pytest.mark.check
@pytest.mark.parametrize("block", range(4))
def test_more_random_borders_give_the_bytes_of_the_reference(block):
    for seed in range(100 + block * 25, 125 + block * 25):
        Border(seed).check((4, 8, 16))


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(40))
def test_many_random_borders_give_the_bytes_of_the_reference(block):
    for seed in range(1000 + block * 100, 1100 + block * 100):
        Border(seed).check((4, 8, 16))
