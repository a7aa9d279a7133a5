"""Random programs that use what atomics return, most often so that only rare orders of invocations show."""

import struct

from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import (
    Atomic,
    Barrier,
    BinOp,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Select,
    Store,
    Trap,
    Var,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp
from vyre.foundation.ir.program import Program, read_write, workgroup, write_only

GID, LID = InvocationId(0), LocalId(0)
PLACES = 4
"""Elements that invocations share, of memory and of each workgroup."""
OPS = (AtomicOp.ADD,) * 6 + (AtomicOp.OR, AtomicOp.XOR, AtomicOp.AND, AtomicOp.MIN, AtomicOp.MAX, AtomicOp.EXCHANGE)


def random_case(rng, *, sizes=(4, 8, 16, 32, 64, 64, 128), most=17):
    """A program, how many workgroups to run, and its inputs: the words of `n`. Its outputs are those and `out`."""
    size, groups = rng.choice(sizes), min(rng.choice((1, 1, 2, 3, 17)), most)
    program = _Maker(rng, size).program(size * groups)
    return program, groups, [struct.pack(f"<{PLACES}I", *(rng.choice((0, 0, 5)) for _ in range(PLACES)))]


class _Maker:
    def __init__(self, rng, size):
        self.rng, self.size, self.count = rng, size, 0

    def program(self, elements):
        rng = self.rng
        body, olds = [], []
        for _ in range(rng.randint(1, 3)):
            body += self.statements(olds)
        if rng.random() < 0.1:
            body.append(If(self.condition(olds), [Trap(GID, "seen")]))
        value = rng.choice([lambda: self.flag(olds), lambda: self.flag(olds), lambda: self.mixed(olds), lambda: lit(7)])
        body.append(Store("out", GID, value()))
        buffers = [read_write("n", 0, u32, PLACES), write_only("out", 1, u32, elements), workgroup("t", u32, PLACES)]
        return Program(buffers, (self.size, 1, 1), body)

    def statements(self, olds):
        rng = self.rng
        match rng.randrange(7):
            case 0:
                return [Barrier()]
            case 1:
                inner = []
                bumps = self.bumps(inner, rng.randint(1, 2))
                self.count += 1
                then = [Let(f"seen{self.count}", Atomic(AtomicOp.ADD, "n", lit(3), self.flag(inner)))]
                return [Loop(f"k{self.count}", lit(0), lit(rng.randint(1, 3)), [*bumps, *then])]
            case 2 if olds:
                self.count += 1
                return [
                    If(self.condition(olds), [Let(f"in{self.count}", Atomic(rng.choice(OPS), "n", lit(2), lit(1)))])
                ]
            case _:
                return self.bumps(olds, rng.randint(1, 4))

    def bumps(self, olds, times):
        """The same atomic several times over: the distances of what it returns tell how invocations take turns."""
        rng = self.rng
        op, where = rng.choice(OPS), rng.choice(("n", "n", "t"))
        at = rng.choice([lit(0), lit(1), GID % lit(PLACES), LID % lit(2), LID // lit(8) % lit(PLACES)])
        by = rng.choice([lit(1), lit(1), GID, lit(rng.randrange(1, 9))])
        made = []
        for _ in range(times):
            self.count += 1
            made.append(Let(f"old{self.count}", Atomic(op, where, at, by)))
            if rng.random() < 0.85:
                olds.append(Var(f"old{self.count}"))
        return made

    def condition(self, olds):
        """True in few orders, or in few others."""
        rng = self.rng
        if not olds:
            return Load("n", lit(0)).eq(lit(rng.randrange(3))) if rng.random() < 0.2 else GID.eq(lit(3))
        a, b, c, d = (rng.choice(olds) for _ in range(4))
        return rng.choice(
            [
                BinOp(BinaryOp.AND, (b - a).eq(d - c), (b - a) > lit(1)),
                (b - a).eq(lit(rng.choice((1, 4, 8, 16, 32, self.size)))),
                ((b - a) < lit(rng.choice((2, 9, 33, self.size + 1)))),
                a.eq(lit(rng.randrange(4))),
                (a % lit(8)).eq(GID % lit(8)),
                (a > lit(rng.choice((500, 1 << 20)))),
            ]
        )

    def flag(self, olds):
        return Select(self.condition(olds), lit(1), lit(0))

    def mixed(self, olds):
        return self.rng.choice(olds) % lit(self.rng.choice((1, 2, 64))) if olds else GID
