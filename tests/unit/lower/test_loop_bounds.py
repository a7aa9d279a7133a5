"""The bound on the turns of loops is never exceeded, and it is tight where people would count the turns themselves."""

import json
import random
import struct
from contextlib import suppress
from math import inf

import pytest

import vyre
from vyre import In, InOut, Out, gid, i32, lid, u8, u32
from vyre.conform.programs.divergent import lane_program
from vyre.conform.programs.random import Case, random_program
from vyre.foundation.ir.dtypes import BY_NAME
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
    Select,
    Store,
    UnOp,
    Var,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write
from vyre.lower import PASSES, LowerOptions, lower
from vyre.lower.kernel_ir import Loop as KernelLoop
from vyre.lower.kernel_ir import bodies
from vyre.lower.loop_bounds import most_turns, turns_of

from ...support.lower_oracle import Dispatch, Trapped
from ...support.tiers import first_quick

GID = InvocationId(0)
BARE = LowerOptions(off=frozenset(PASSES))
ENOUGH = 500
"""Turns of one workgroup after which counting stops."""


def bound(program, lengths, word=None, grid=None, options=None):
    """The bound, for lengths by name, from data that went through storage; the same however the kernel was lowered."""
    found = []
    for each in (LowerOptions(), BARE) if options is None else (options,):
        data = json.loads(json.dumps(turns_of(lower(program, each))))
        found.append(most_turns(data, [lengths[b.name] for b in program.bound_buffers], word, grid))
    assert found[0] == found[-1]
    return found[0]


# ---- turns that were counted ----------------------------------------------------------------------------------------


class Enough(Exception):
    pass


class Counted(Dispatch):
    """Counts what a vector of all lanes of a workgroup does: at every loop it takes as many turns as its slowest, and
    one more, in which it goes through the body with no lanes."""

    most = 0

    def group(self, wg):
        self.seen, self.turns = {}, 0
        try:
            super().group(wg)
        finally:
            self.most = max(self.most, self.vector(self.kernel.body))

    def vector(self, body, path=()):
        total, unvisited = 0, list(body)
        while unvisited:
            item = unvisited.pop()
            if isinstance(item, KernelLoop):
                turns = self.seen.get((*path, item), 1)
                total += turns + sum(self.vector(item.body, (*path, item, turn)) for turn in range(turns))
            else:
                unvisited += [s for inner in bodies(item) for s in inner]
        return total

    def count(self, path, turns):
        self.turns += max(0, turns - self.seen.get(path, 0))
        self.seen[path] = max(self.seen.get(path, 0), turns)
        if self.turns > ENOUGH:
            raise Enough

    def run_body(self, body, env):
        for item in body:
            if isinstance(item, KernelLoop):
                path = env["path"] = (*env.get("path", ()), item)
                self.count(path, 1)
                for turn, k in enumerate(range(env[item.start], env[item.stop])):
                    if item.live is not None and not env[item.live]:
                        break
                    self.count(path, turn + 2)
                    env[item], env["path"] = k, (*path, turn)
                    if (yield from self.run_body(item.body, env)):
                        return True
                env["path"] = path[:-1]
            elif (yield from super().run_body([item], env)):
                return True
        return False


def counted(case, options):
    """Turns that were taken, and the bounds without and with what the host knows."""
    kernel = lower(case.program, options)
    run = Counted(kernel, case.program, case.inputs, case.grid, case.output_elements)
    with suppress(Trapped, Enough):
        run.run()
    lengths = [run.memory.buffers[b.name].count for b in case.program.bound_buffers]
    buffers = [b for b in kernel.buffers if not b.shared]

    def word(slot, index):
        b = buffers[slot]
        assert not b.writable
        return run.read(b, run.data[b], index)

    turns = turns_of(kernel)
    return run.most, most_turns(turns, lengths), most_turns(turns, lengths, word, case.grid)


def holds(case, options, seed):
    taken, most, knowing = counted(case, options)
    assert taken <= (inf if most is None else most), f"seed {seed}, {most}:\n{case.program}"
    assert taken <= (inf if knowing is None else knowing), f"seed {seed}, {knowing}:\n{case.program}"
    assert most is None or knowing <= most, seed
    return taken, knowing


@pytest.mark.parametrize("block", first_quick(range(4), 1))
def test_random_programs_take_no_more_turns_than_the_bound(block):
    found = []
    for seed in range(14 * block, 14 * block + 14):
        rng = random.Random(seed)
        case = lane_program(rng, trap=seed % 5 == 0, statements=4) if seed % 2 else random_program(rng)
        found += [holds(case, options, seed) for options in (BARE, LowerOptions())]
    looped = [most for taken, most in found if taken]
    assert len(looped) >= 10
    assert sum(most is not None for most in looped) * 2 > len(looped), "most loops of these programs have a bound"


def loops(rng):
    """A program of nested loops that run between values of every shape."""
    made = 0

    def value(depth, names):
        """A u32."""

        def deep():
            return value(depth - 1, names)

        def signed():
            return Cast(BY_NAME["i32"], deep())

        leaves = [
            lambda: lit(rng.choice((0, 1, 2, 3, 7, 40, 0xFFFFFFFF, 0xFFFFFFFD, 0x80000000))),
            lambda: BufLen(rng.choice(("a", "n", "out"))),
            lambda: rng.choice((GID, LocalId(0), WorkgroupId(0))),
            lambda: Load("n", lit(rng.randrange(5))),
            lambda: Cast(BY_NAME["u32"], Load("few", rng.choice((GID, lit(0), lit(2))))),
            lambda: Load("a", GID),
            *[lambda: Var(rng.choice(names))] * (3 * bool(names)),
        ]
        if depth <= 0 or rng.random() < 0.2:
            return rng.choice(leaves)()
        ops = [op for op in BinaryOp if op.rule in ("arith", "wrapping", "mod", "bits", "shift", "saturating")]
        ways = [
            *[lambda: BinOp(rng.choice(ops), deep(), rng.choice((deep, lambda: Load("n", lit(1))))())] * 4,
            *[lambda: BinOp(rng.choice((BinaryOp.MIN, BinaryOp.BIT_AND)), deep(), lit(rng.choice((3, 5, 9))))] * 3,
            *[lambda: Select(condition(depth - 1, names), deep(), deep())] * 3,
            lambda: Cast(BY_NAME["u32"], BinOp(rng.choice(ops[:6]), signed(), signed())),
            lambda: UnOp(rng.choice((UnaryOp.POPCOUNT, UnaryOp.CLZ, UnaryOp.BIT_NOT)), deep()),
            lambda: Cast(BY_NAME["u32"], Cast(BY_NAME[rng.choice(("u8", "u64", "i16"))], deep())),
        ]
        return rng.choice(ways)()

    def condition(depth, names):
        op = rng.choice([op for op in BinaryOp if op.rule == "compare"])
        a, b = value(depth, names), value(depth, names)
        if rng.random() < 0.3:
            a, b = Cast(BY_NAME["i32"], a), Cast(BY_NAME["i32"], b)
        found = BinOp(op, a, b)
        if rng.random() < 0.3 and depth > 0:
            found = BinOp(rng.choice((BinaryOp.AND, BinaryOp.OR)), found, condition(depth - 1, names))
        return UnOp(UnaryOp.LOGICAL_NOT, found) if rng.random() < 0.2 else found

    def statements(depth, names, mutable):
        nonlocal made
        out, names, mutable = [], list(names), list(mutable)
        for _ in range(rng.randint(1, 3)):
            made += 1
            match rng.randrange(6):
                case 0:
                    out.append(Let(f"v{made}", value(2, names)))
                    names.append(f"v{made}")
                    mutable.append(f"v{made}")
                case 1 if mutable:
                    out.append(Assign(rng.choice(mutable), value(2, names)))
                case 2 if depth:
                    inner = [statements(depth - 1, names, mutable) for _ in range(2)]
                    out.append(If(condition(1, names), tuple(inner[0]), tuple(inner[1])))
                case _ if depth:
                    start, stop = value(1, names), value(2, names)
                    if rng.random() < 0.3:  # a part that starts where the lane says
                        start = rng.choice((GID * 4, GID << 2, Load("a", GID), value(1, names)))
                        stop = rng.choice((start + 4, (GID + 1) * 4, start + value(1, names)))
                        stop = rng.choice((stop, BinOp(BinaryOp.MIN, stop, BufLen("a"))))
                    if rng.random() < 0.3:  # as `range` with a step is written
                        span = Select(start < stop, stop - start, lit(0))
                        start, stop = lit(0), Select(span.eq(0), lit(0), (span - 1) // rng.randint(1, 3) + 1)
                    index = f"k{made}"
                    out.append(Loop(index, start, stop, tuple(statements(depth - 1, [*names, index], mutable))))
        return out or [Store("out", GID, lit(1))]

    n = rng.choice((0, 1, 2, 3, 6))
    buffers = [read("a", 0, BY_NAME["u32"]), read("n", 1, BY_NAME["u32"]), read("few", 2, BY_NAME["u8"]),
               read_write("out", 3, BY_NAME["u32"], 4)]  # fmt: skip
    program = Program(buffers, (2, 1, 1), [*statements(3, [], []), Store("out", GID, GID)])
    edges = (0, 1, 2, 3, 5, 8, 0xFFFFFFFF, 0x7FFFFFFF)
    words = [struct.pack(f"<{k}I", *(rng.choice(edges[:6] if rng.random() < 0.8 else edges) for _ in range(k)))
             for k in (n, 4)]  # fmt: skip
    return Case(program, (*words, bytes((3, 0, 7)), bytes(16)), (2, 1, 1), {})


@pytest.mark.parametrize("block", first_quick(range(5), 1))
def test_loops_between_values_of_every_shape_take_no_more_turns_than_the_bound(block):
    found = []
    for seed in range(60 * block, 60 * block + 60):
        rng = random.Random(seed)
        case = loops(rng)
        found += [(*holds(case, options, seed), seed) for options in (BARE, LowerOptions())]
    bounds = [(taken, most) for taken, most, _ in found if most is not None and taken]
    assert len(bounds) > 20
    assert sum(taken == most for taken, most in bounds) * 8 > len(bounds), "many bounds are exact"


# ---- bounds that people would give ----------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def straight(x: In[u32], out: Out[u32]):
    out[gid.x] = x[gid.x] + 1


@vyre.kernel(workgroup=64)
def literal(x: In[u32], out: Out[u32]):
    for k in range(10):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def whole_length(x: In[u32], out: Out[u32]):
    for k in range(len(x)):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def clamped(x: In[u32], out: Out[u32]):
    for k in range(min(x[gid.x], 20)):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def masked(x: In[u32], out: Out[u32]):
    for k in range(x[gid.x] & 7):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def from_data(x: In[u32], out: Out[u32]):
    for k in range(x[gid.x]):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def from_bytes(x: In[u8], out: Out[u32]):
    for k in range(u32(x[gid.x])):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def nested(x: In[u32], out: Out[u32]):
    for i in range(len(x)):
        for j in range(10):
            out[gid.x] = x[i + j]
        for j in range(3):
            out[gid.x] = x[i * j]


@vyre.kernel(workgroup=64)
def triangle(x: In[u32], out: Out[u32]):
    for i in range(len(x)):
        for j in range(i):
            out[gid.x] = x[i + j]


@vyre.kernel(workgroup=64)
def both_branches(x: In[u32], out: Out[u32]):
    if x[gid.x] > 3:
        for k in range(40):
            out[gid.x] = k
    else:
        for k in range(60):
            out[gid.x] = k


@vyre.kernel(workgroup=64)
def stepped(x: In[u32], out: Out[u32]):
    for k in range(lid.x, len(x), 64):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def stepped_by_lane(x: In[u32], out: Out[u32]):
    for k in range(gid.x, len(x), 64):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def backwards(x: In[i32], out: Out[i32]):
    for k in range(i32(len(x)) - 1, -1, -1):
        out[gid.x] = x[u32(k)]


@vyre.kernel(workgroup=64)
def own_part(x: In[u32], out: Out[u32]):
    for k in range(gid.x * 16, gid.x * 16 + 16):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def own_part_cut(x: In[u32], out: Out[u32]):
    for k in range(gid.x * 16, min((gid.x + 1) * 16, len(x))):
        out[gid.x] = x[k]


@vyre.kernel(workgroup=64)
def rows(x: In[u32], out: Out[u32]):
    for k in range(x[gid.x], x[gid.x + 1]):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def guarded_loop(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    if n <= 30:
        for k in range(n):
            out[gid.x] = k


@vyre.kernel(workgroup=64)
def changed(x: In[u32], out: Out[u32]):
    n = len(x)
    if x[gid.x] > 3:
        n = n // 2
    for k in range(n):
        out[gid.x] = k


@vyre.kernel(workgroup=64)
def grown(x: In[u32], out: Out[u32]):
    n = u32(1)
    for _k in range(20):
        for j in range(n):
            out[gid.x] = j
        n = n * 2


@vyre.kernel(workgroup=64)
def endless(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    while n > 1:
        n = n // 2
    out[gid.x] = n


@vyre.kernel(workgroup=64)
def below_own(x: In[u32], out: Out[u32]):
    for k in range(gid.x):
        out[gid.x] = x[k]


@pytest.mark.parametrize(
    "kernel, length, expected",
    [
        (straight, 9, 0),
        (literal, 0, 10 + 1),
        (whole_length, 0, 0 + 1),
        (whole_length, 1000, 1000 + 1),
        (clamped, 9, 20 + 1),
        (masked, 9, 7 + 1),
        (from_data, 9, None),
        (from_data, 0, 1),  # what is out of bounds reads as zero
        (from_bytes, 9, 255 + 1),
        (nested, 0, 1 + 1 + 1),
        (nested, 7, (7 + 1) + (7 * (10 + 1) + 1) + (7 * (3 + 1) + 1)),
        (triangle, 7, (7 + 1) + (7 * (6 + 1) + 1)),
        (both_branches, 9, (40 + 1) + (60 + 1)),
        (stepped, 640, 10 + 1),
        (stepped, 641, 11 + 1),
        (stepped_by_lane, 641, 11 + 1),
        (backwards, 12, 12 + 1),
        (backwards, 0, 0 + 1),
        (own_part, 5, 16 + 1),
        (own_part_cut, 500, 16 + 1),
        (own_part_cut, 5, 5 + 1),
        (rows, 9, None),
        (guarded_loop, 9, 30 + 1),
        (changed, 40, 40 + 1),
        (grown, 9, None),
        (endless, 9, None),
        (below_own, 9, None),
    ],
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_a_bound_is_what_one_would_count(kernel, length, expected):
    assert bound(kernel.program, {"x": length, "out": 9}) == expected


def test_a_loop_from_zero_to_the_own_id_is_bounded_by_the_grid():
    assert bound(below_own.program, {"x": 9, "out": 9}, grid=(3, 1, 1)) == 191 + 1


@vyre.kernel(workgroup=64)
def told(n: In[u32], x: In[i32], out: Out[u32]):
    for k in range(n[1]):
        for _j in range(x[0], x[1]):
            out[gid.x] = k


def test_a_number_that_the_host_passes_bounds_a_loop():
    asked = []

    def word(slot, index):
        asked.append((slot, index))
        return {(0, 1): 50, (1, 0): -3, (1, 1): 4}[slot, index]

    lengths = {"n": 2, "x": 2, "out": 9}
    assert bound(told.program, lengths) is None
    assert bound(told.program, lengths, word) == (50 + 1) + (50 * (7 + 1) + 1)
    assert set(asked) == {(0, 1), (1, 0), (1, 1)}
    assert bound(told.program, lengths, lambda slot, index: None) is None
    assert bound(told.program, lengths | {"n": 1}, word) == 1 + 1, "what is out of bounds is zero and never asked for"


def test_a_number_that_the_kernel_may_write_bounds_nothing():
    @vyre.kernel(workgroup=64)
    def kernel(n: InOut[u32], out: Out[u32]):
        for k in range(n[0]):
            out[gid.x] = k

    assert bound(kernel.program, {"n": 1, "out": 9}, lambda slot, index: 4) is None


def test_an_unbounded_loop_inside_one_that_never_runs_does_not_matter():
    loop = Loop("k", lit(0), BufLen("a"), (Loop("j", lit(0), Load("a", GID), (Store("a", GID, lit(1)),)),))
    program = Program([read_write("a", 0, BY_NAME["u32"])], (4, 1, 1), [loop])
    assert bound(program, {"a": 0}) == 1 + 1
    assert bound(program, {"a": 1}) is None


@pytest.mark.parametrize("depth, turns", [(1, 3), (2, 6), (3, 10), (4, 15)])
def test_loops_in_loops_of_one_turn_add_up(depth, turns):
    """As lavapipe was seen to count: its limit of 65,535 was met at 21,845, 10,923, 6,554 and 4,369 turns outside."""
    body = (Store("a", GID, lit(1)),)
    for k in range(depth):
        body = (Loop(f"k{k}", lit(0), lit(1), body),)
    program = Program([read_write("a", 0, BY_NAME["u32"])], (4, 1, 1), [Loop("n", lit(0), lit(5000), body)])
    assert bound(program, {"a": 4}) == 5000 * turns + depth + 1


def test_a_branch_that_lengths_rule_out_does_not_count():
    loop = Loop("k", lit(0), Load("a", GID), (Store("a", GID, lit(1)),))
    program = Program([read_write("a", 0, BY_NAME["u32"])], (4, 1, 1), [If(BufLen("a") > 100, (loop,))])
    assert bound(program, {"a": 100}) == 1
    assert bound(program, {"a": 101}) is None


def test_depth_is_no_matter():
    stop = BufLen("a")
    for _ in range(20_000):
        stop = BinOp(BinaryOp.MIN, stop, BufLen("a"))
    body = (Store("a", GID, lit(1)),)
    for k in range(300):
        body = (If(Load("a", lit(k)) > 2, body),)
    program = Program([read_write("a", 0, BY_NAME["u32"])], (4, 1, 1), [Loop("k", lit(0), stop, body)])
    assert bound(program, {"a": 30}, options=BARE) == 31
    chain = [Let("v0", BufLen("a"))]
    chain += [node for k in range(1, 200) for node in (Let(f"v{k}", Var(f"v{k - 1}")), Assign(f"v{k}", lit(3)))]
    program = Program([read_write("a", 0, BY_NAME["u32"])], (4, 1, 1), [*chain, Loop("k", lit(0), Var("v199"), body)])
    assert bound(program, {"a": 2}, options=BARE) in (4, None)
