"""Random valid programs whose result does not depend on the schedule, with inputs to match.

Plain Python over one `random.Random`, so that a long run needs a seed and nothing else. Determinism is built in: an
invocation plainly writes only slots it owns, reads of shared memory are separated from writes by barriers, atomics on
one buffer are one order-free operation whose result is unused, and barriers and subgroup operations stand in uniform
flow before any early return. Between grid-wide barriers the same holds for memory that the whole grid shares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...foundation.ir.dtypes import DataType, bf16, bool_, can_cast, f16, f32, f64, i32, i64, u32, u64
from ...foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    Block,
    BufLen,
    Cast,
    Expr,
    If,
    InvocationId,
    Let,
    Load,
    Loop,
    Node,
    Region,
    Return,
    Store,
    SubgroupBallot,
    SubgroupReduce,
    SubgroupShuffle,
    Var,
    lit,
)
from ...foundation.ir.ops import AtomicOp, BinaryOp, Ordering, ReduceOp
from ...foundation.ir.program import Access, BufferDecl, Hints, Locality, Program
from .random_exprs import (
    NARROW,
    STEPS,
    WORDS,
    OwnedSlots,
    ProgramExpressions,
    SharedBuffer,
)
from .random_values import random_bytes

DEPTH = 3
"""How deep statements nest below a region."""

ORDER_FREE = tuple(op for op in AtomicOp if op.order_free)
ATOMIC_ORDERINGS = tuple(o for o in Ordering if o is not Ordering.GRID_SYNC)


@dataclass(frozen=True)
class Case:
    """A program, its inputs in the order of `program.host_inputs`, the grid in workgroups, and the lengths of outputs
    that are sized at dispatch."""

    program: Program
    inputs: tuple[bytes, ...]
    grid: tuple[int, int, int]
    output_elements: dict[str, int]


def random_program(
    rng: random.Random,
    *,
    floats: bool = True,
    wide: bool = True,
    atomics: bool = True,
    shared: bool = True,
    barriers: bool = True,
    subgroups: bool = True,
    grid_barriers: bool = False,
    functions: bool = False,
    endless: bool = True,
    max_statements: int = 16,
    without: Collection[DataType] = (),
) -> Case:
    """One case. `wide` adds the types that not every device has (u64 i64 f16 bf16 f64), less those `without`; `shared`
    without `barriers` leaves workgroup memory private to its owner's slots; with `grid_barriers`, workgroups exchange
    data; `functions` adds those of the math library; without `endless` loops, those that end by a condition end after a
    fixed number of turns as well. Validation may warn (narrowing casts), never refuse."""
    types = [u32, i32, bool_, *NARROW]
    if floats:
        types.append(f32)
    if wide:
        types += [u64, i64]
        if floats:
            types += [f16, bf16, f64]
        types = [t for t in types if t not in without]
    turns = 0xFFFFFFFF if endless else 8
    maker = _Maker(
        rng, types, atomics=atomics, barriers=barriers, subgroups=subgroups, functions=functions, turns=turns
    )
    maker.declare(shared=shared, exchange=grid_barriers)
    return maker.case(maker.segments(max_statements) if grid_barriers else maker.regions(max_statements))


# ---- values ---------------------------------------------------------------------------------------------------------

# ---- the generator --------------------------------------------------------------------------------------------------


class _Maker(ProgramExpressions):
    """The buffers and statements of a program."""

    # -- buffers

    def declare(self, *, shared: bool, exchange: bool) -> None:
        rng, slot = self.rng, 0
        slots = rng.sample(range(24), 16)  # neither dense nor in order of declaration

        def bound(name: str, access: Access, t: DataType, length: int, static: bool, **more: Any) -> BufferDecl:
            nonlocal slot
            decl = BufferDecl(name, slots[slot], access, t, length if static else 0, **more)
            if rng.random() < 0.1:
                decl = decl.replace(hints=Hints(0, 16, rng.choice(tuple(Locality))))
            slot += 1
            self.lengths[name] = length
            return decl

        for k in range(rng.randint(1, 4)):
            t = rng.choice(self.types)
            if rng.random() < 0.2:
                self.readable.append(bound(f"uni{k}", Access.UNIFORM, t, rng.randint(1, 4), True))
            else:
                length = rng.choice((self.count, self.count, rng.randint(1, self.count + 5), 0))
                self.readable.append(bound(f"in{k}", Access.READ_ONLY, t, length, length > 0 and rng.random() < 0.5))
        single = rng.random() < 0.5  # whether one output is the declared result
        for k in range(rng.randint(1, 3)):
            stride = rng.choice((1, 1, 2))
            length = rng.choice((self.count * stride, self.count * stride, rng.randint(1, self.count * stride + 3)))
            t = rng.choice(self.types)
            static = rng.random() < 0.6
            if single and k == 0:
                decl = bound("out0", Access.READ_WRITE, t, length, True, is_output=True, live_out=True)
                if rng.random() < 0.2:
                    size = t.size or 0
                    start = rng.randint(0, length - 1)
                    decl = decl.replace(output_byte_range=(start * size, rng.randint(start, length) * size))
            else:
                access = rng.choice((Access.READ_WRITE, Access.WRITE_ONLY))
                live = access is Access.READ_WRITE and static and rng.random() < 0.3
                decl = bound(f"out{k}", access, t, length, static, live_out=live)
            self.outputs.append(OwnedSlots(decl, stride, rng.random() < 0.2))
        if self.atomics:
            for k in range(rng.randint(0, 2)):
                length = rng.randint(1, 9)
                decl = bound(f"bins{k}", Access.READ_WRITE, rng.choice(WORDS), length, rng.random() < 0.5)
                self.bins.append((decl, rng.choice(ORDER_FREE)))
        if shared:
            for k in range(rng.randint(0, 2)):
                length = rng.choice((self.lanes, self.lanes, self.lanes + 3, max(1, self.lanes - 1)))
                decl = BufferDecl(f"sh{k}", 0, Access.WORKGROUP, rng.choice(self.types), length)
                self.lengths[decl.name] = length
                self.shared.append(SharedBuffer(decl))
        if exchange:
            for k in range(rng.randint(1, 2)):
                length = rng.choice((self.count, self.count, self.count + 3, max(1, self.count - 2)))
                t, static = rng.choice(self.types), rng.random() < 0.5
                decl = bound(f"grid{k}", Access.READ_WRITE, t, length, static, live_out=static and rng.random() < 0.3)
                self.shared.append(SharedBuffer(decl, whole_grid=True))

    def regions(self, max_statements: int) -> list[Node]:
        """A part in which all invocations go together, one in which they do not, and one with early returns."""
        rng = self.rng
        in_step = rng.randint(0, max_statements)
        apart = rng.randint(0, max_statements - in_step)
        regions: list[Region] = []
        for k, quota in enumerate((in_step, apart, max_statements - in_step - apart)):  # the last has early returns
            body: list[Node] = []
            self.left, self.uniform, self.may_return = quota, k == 0, k == 2
            with self.scope():
                self.own = self.linear_id(InvocationId, self.extent)
                if rng.random() < 0.5:
                    name = self.bind(u32, mutable=False)
                    body.append(Let(name, self.own))
                    self.own = Var(name)
                body += self.statements(DEPTH, quota)
                if k == 2:
                    body += [self.store(out) for out in self.outputs]
                    if rng.random() < 0.1:
                        body.append(Return())
            if body:
                regions.append(Region(f"part{k}", tuple(body)))
        entry: list[Node] = list(regions)
        if rng.random() < 0.3:
            entry = [Region("test.case", tuple(Block(r.body) if rng.random() < 0.5 else r for r in regions))]
        return entry

    def segments(self, max_statements: int) -> list[Node]:
        """Parts with grid-wide barriers between them; the barriers may stand inside wrappers of several parts."""
        rng = self.rng
        count = rng.randint(2, 4)
        local = [s for s in self.shared if not s.whole_grid]
        home = {id(s): rng.randrange(count) for s in local}  # workgroup memory does not outlive its segment
        wide = [s for s in self.shared if s.whole_grid]
        parts: list[list[Node]] = []
        with self.scope():
            self.own = self.linear_id(InvocationId, self.extent)
            head = self.carried_lets()
            for k in range(count):
                self.shared = wide + [s for s in local if home[id(s)] == k]
                for s in wide if k else ():
                    s.phase = self.any_phase(s)
                self.left = quota = max_statements // count
                last = k == count - 1
                self.may_return = last and rng.random() < 0.5
                self.uniform = not self.may_return
                with self.scope():
                    body = [self.exchange(s) for s in wide if rng.random() < 0.9]
                    body += self.statements(DEPTH, quota)
                    body += [self.store(out) for out in self.outputs if last or rng.random() < 0.3]
                parts.append([Block(tuple(body))] if rng.random() < 0.3 else body)
            self.shared = wide + local
        while len(parts) > 1:  # join neighbours around their barrier, some of them in a wrapper
            k = rng.randrange(len(parts) - 1)
            joined = [*parts[k], Barrier(Ordering.GRID_SYNC), *parts.pop(k + 1)]
            wrapper = rng.choice((Block(tuple(joined)), Region("wrap", tuple(joined))))
            parts[k] = [wrapper] if rng.random() < 0.4 else joined
        return [Region("test.segments", (*head, *parts[0]))]

    def exchange(self, s: SharedBuffer) -> Node:
        """Use memory of the whole grid as the present segment allows: leave something for others, or take theirs."""
        name, t = s.decl.name, s.decl.element
        others = self.rng.choice((BufLen(name) - 1 - self.own, self.own + self.lanes, self.index(s.decl)))
        if isinstance(s.phase, AtomicOp):
            self.fresh += 1
            return Let(f"old{self.fresh}", Atomic(s.phase, name, others, self.expr(t)))
        if s.phase == "own":
            return Store(name, self.own, self.expr(t))
        takers = [o for o in self.outputs if o.decl.element == t or can_cast(t, o.decl.element)]
        if not takers:
            return Let(self.bind(t), Load(name, others))
        out = self.rng.choice(takers)
        value = Load(name, others) if out.decl.element == t else Cast(out.decl.element, Load(name, others))
        return Store(out.decl.name, self.slot(out), value)

    def carried_lets(self) -> list[Node]:
        """Names that every segment may use: their values do not change."""
        out: list[Node] = []
        self.lasting = True
        if self.rng.random() < 0.5:
            name = self.bind(u32, mutable=False)
            out.append(Let(name, self.own))
            self.own = Var(name)
        for _ in range(self.rng.randint(0, 3)):
            t = self.rng.choice(self.types)
            value = self.expr(t)
            out.append(Let(self.bind(t, mutable=False), value))
        self.lasting = False
        return out

    def case(self, entry: list[Node]) -> Case:
        rng = self.rng
        decls = [
            *self.readable, *(o.decl for o in self.outputs), *(b for b, _ in self.bins), *(s.decl for s in self.shared),
        ]  # fmt: skip
        rng.shuffle(decls)
        program = Program(decls, self.workgroup, entry)
        fill = random.Random(rng.getrandbits(32))  # one draw, however long the inputs are
        inputs = tuple(random_bytes(fill, b.element, self.lengths[b.name]) for b in program.host_inputs)
        sized = {b.name: self.lengths[b.name] for b in program.host_outputs if not b.count and not b.is_host_input}
        return Case(program, inputs, self.grid, sized)

    # -- statements

    def statements(self, depth: int, most: int) -> list[Node]:
        """Up to `most` statements in the present scope. A Return can only be the last."""
        out: list[Node] = []
        for _ in range(most):
            if self.left <= 0 or self.steps * self.count > STEPS:
                break
            self.left -= 1
            makers: list[Callable[[int], list[Node]]] = [self.let, self.let, self.let, self.own_store, self.own_store]
            if self.locals(mutable=True):
                makers += [self.assign] * 2
            if self.bins or any(isinstance(s.phase, AtomicOp) for s in self.shared):
                makers += [self.atomic] * 2
            if depth > 0:
                makers += [self.branch] * 3 + [self.block]
                if self.trips <= 8:
                    makers += [self.loop] * 2 + [self.while_loop]
            if self.uniform and self.barriers:
                makers += [self.barrier] * 3
            if self.uniform and self.subgroups:
                makers += [self.subgroup] * 2
            out += self.rng.choice(makers)(depth - 1)
        if self.may_return and depth < DEPTH and self.rng.random() < 0.2:
            out.append(Return())
        return out

    def body(self, depth: int, *, uniform: bool = False, trips: int = 1) -> tuple[Node, ...]:
        """A nested sequence. Shared memory is in the same phase after it as before, so it may run any number of times,
        and statements of the last epoch inside may meet those of the first."""
        outer, phases = (self.uniform, self.trips), [s.phase for s in self.shared]
        self.uniform, self.trips = self.uniform and uniform, self.trips * trips
        with self.scope():
            out = self.statements(depth, self.rng.randint(1, 4))
        self.uniform, self.trips = outer
        if phases != [s.phase for s in self.shared]:
            out.append(Barrier())
            for s, phase in zip(self.shared, phases, strict=True):
                s.phase = phase
        return tuple(out)

    def let(self, depth: int) -> list[Node]:
        t = self.rng.choice(self.types)
        value = self.expr(t)
        return [Let(self.bind(t), value)]

    def assign(self, depth: int) -> list[Node]:
        target = self.rng.choice(self.locals(mutable=True))
        return [Assign(target.name, self.expr(target.type))]

    def store(self, out: OwnedSlots) -> Node:
        return Store(out.decl.name, self.slot(out), self.expr(out.decl.element))

    def own_store(self, depth: int) -> list[Node]:
        private = [s for s in self.shared if s.phase == "own"]
        if private and self.rng.random() < 0.6:
            s = self.rng.choice(private)
            return [Store(s.decl.name, self.own_index(s), self.expr(s.decl.element))]
        return [self.store(self.rng.choice(self.outputs))]

    def atomic(self, depth: int) -> list[Node]:
        """For its effect: the old value is bound to a name that is never read."""
        here = self.bins + [(s.decl, s.phase) for s in self.shared if isinstance(s.phase, AtomicOp)]
        decl, op = self.rng.choice(here)
        ordering = self.rng.choice(ATOMIC_ORDERINGS)
        value = Atomic(op, decl.name, self.index(decl), self.expr(decl.element), None, ordering)
        self.fresh += 1
        return [Let(f"old{self.fresh}", value)]

    def branch(self, depth: int) -> list[Node]:
        uniform = self.uniform and self.rng.random() < 0.5
        if uniform:
            ops = (BinaryOp.LT, BinaryOp.EQ, BinaryOp.GE)
            condition: Expr = BinOp(self.rng.choice(ops), self.uniform_word(), self.uniform_word())
        else:
            condition = self.condition(2)
        then = self.body(depth, uniform=uniform)
        return [If(condition, then, self.body(depth, uniform=uniform) if self.rng.random() < 0.5 else ())]

    def block(self, depth: int) -> list[Node]:
        self.fresh += 1
        body = self.body(depth, uniform=True)
        ends = bool(body) and isinstance(body[-1], Return)  # a block may not hide a return before statements
        return [Region(f"block{self.fresh}", body) if ends or self.rng.random() < 0.5 else Block(body)]

    def loop(self, depth: int) -> list[Node]:
        rng = self.rng
        uniform = self.uniform and rng.random() < 0.6
        first = rng.choice((0, 0, 1, 3, 0xFFFFFFFC))
        start, stop = lit(first), lit(min(first + rng.randint(0, 4), 0xFFFFFFFF))
        if rng.random() < 0.5:
            bound = self.uniform_word() if uniform else self.expr(u32, 2)
            start, stop = lit(rng.randrange(2)), BinOp(BinaryOp.MOD, bound, lit(rng.randint(1, 5)))
        with self.scope():
            var = self.bind(u32, mutable=False, prefix="k")
            return [Loop(var, start, stop, self.body(depth, uniform=uniform, trips=4))]

    def while_loop(self, depth: int) -> list[Node]:
        """The shape that a `while` takes: the loop has no end of its own, and leaves once `go` is false."""
        rng = self.rng
        self.fresh += 1
        go, var, turns = Var(f"go{self.fresh}"), f"w{self.fresh}", Var(self.bind(u32, mutable=False, prefix="n"))
        again: Expr = turns < rng.randint(0, 4)
        if rng.random() < 0.5:
            again = BinOp(BinaryOp.AND, again, self.condition(1))
        with self.scope():
            body: tuple[Node, ...] = (Assign(turns.name, turns + 1), *self.body(depth, trips=4))
            if rng.random() < 0.5 and not isinstance(body[-1], Return):
                leave: tuple[Node, ...] = (If(self.condition(1), (Assign(go.name, lit(False)),)),)
                body += (*leave, If(go, self.body(depth, trips=4)))
        inner = If(go, (Assign(go.name, again), If(go, body)))
        return [Let(turns.name, lit(0)), Let(go.name, lit(True)), Loop(var, lit(0), lit(self.turns), (inner,))]

    def barrier(self, depth: int) -> list[Node]:
        """A new epoch, in which shared memory may serve another purpose."""
        for s in self.shared:
            if not s.whole_grid:
                s.phase = self.any_phase(s)
        return [Barrier(self.rng.choice((Ordering.SEQ_CST, Ordering.ACQ_REL)))]

    def any_phase(self, s: SharedBuffer) -> str | AtomicOp:
        phases: list[str | AtomicOp] = ["own", "read"]
        atomic = s.decl.element in WORDS and (self.atomics or not s.whole_grid)
        return self.rng.choice(phases + [self.rng.choice(ORDER_FREE)] * atomic)

    def subgroup(self, depth: int) -> list[Node]:
        rng = self.rng
        t = rng.choice([t for t in (u32, i32, f32) if t in self.types])
        kind = rng.randrange(3)
        value: Expr
        if kind == 0:
            t, value = u32, SubgroupBallot(self.condition(2))
        elif kind == 1:
            value = SubgroupShuffle(self.expr(t), self.expr(u32, 1))
        else:
            bitwise = (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
            op = rng.choice([op for op in ReduceOp if t != f32 or op not in bitwise])
            value = SubgroupReduce(op, self.expr(t))
        return [Let(self.bind(t), value)]
