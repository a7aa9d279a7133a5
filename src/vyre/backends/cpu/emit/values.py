"""What does an instruction compute for a block of lanes? Values in the cheapest of their forms, and new locals.

Locals are values too: `env` has the latest of each, and one that only some lanes set keeps the others' by a select.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....lower.kernel_ir import Buffer, Ins, Kernel, Local
from . import access, subgroups
from .barrier_phases import Phases
from .instructions import literal, pure, ty
from .tile_check import Block, Taken, unused
from .uniformity import EACH, ROW, SAME, WIDE, Val, each_once
from .writer import FunctionWriter

LEFT = Local("", "bool")
"""The lanes that have not returned yet, kept like a local."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """How one version of a kernel's body is written: the function that it becomes, and which facts it may rely on.

    A block is `parts` vectors of `width` lanes. A `flat` one runs the invocations x0 <= gid.x < x1 of the rows of one
    workgroup, others the workgroups x0 <= wid.x < x1. `fast` leaves out the tests that the kernel's check makes
    unnecessary, knows the truth of `held` conditions (by identity), has the loads of the check from its caller, and is
    given whole blocks; those that pass the test of `inside` run a copy of the body in which more is known. With `rows`
    the vectors of a block stand one above the other. The stores of `streamed` go past the cache where they can.
    """

    name: str
    width: int
    parts: int
    flat: bool
    fast: bool
    taken: Taken
    rows: bool = False
    held: Mapping[int, bool] = field(default_factory=dict)
    inside: Block | None = None
    streamed: frozenset[Ins] = frozenset()


class LaneValues(FunctionWriter):
    """A function that is being written, as its instructions see it."""

    def __init__(self, kernel: Kernel, phases: Phases, version: Version) -> None:
        super().__init__(kernel, phases)
        self.flat, self.fast, self.rows, self.held = version.flat, version.fast, version.rows, version.held
        self.streamed, self.taken, self.steering = version.streamed, version.taken, version.taken.steering
        self.given = version.taken.given if version.fast else {}
        self.past: dict[Buffer, int] = {}
        """Buffers with stores that went past the cache, and to how many bytes their elements must be aligned."""
        self.unused = unused(kernel, self.held, {}) if self.fast else frozenset()
        self.strided: set[Ins] = set()
        """Accesses to elements that lie apart, which are vectors and shuffles."""
        self.counters: dict[int, Val] = {}
        self.mask: tuple[str, ...] | None = None
        self.region = 0
        self.dead = False
        """The rest of the body is not reached: its lanes have returned."""
        self.lane_end = ""
        self.ids: dict[tuple[str, int], tuple[str, ...]] = {}

    def instruction(self, ins: Ins) -> None:
        """Write one instruction, and remember its value."""
        if id(ins) in self.unused:
            return
        match ins.op:
            case "set":
                self._set(ins)
            case "store":
                access.store(self, ins)
            case "trap":
                access.trap(self, ins)
            case "return":
                self._return()
            case "barrier":
                pass
            case _:
                val = self._compute(ins)
                self.know(id(ins), val)
                if id(ins) in self.phases.spilled:
                    self.keep(self.phases.spilled[id(ins)], ins.dtype, val)

    def value(self, ins: Ins) -> Val:
        """The value of an instruction: known here, kept in memory by an earlier stretch, or cheap to compute again."""
        found = self.known.get(id(ins))
        if found is not None:
            return found
        if id(ins) in self.phases.spilled:
            return self.know(id(ins), self.kept(self.phases.spilled[id(ins)], ins.dtype))
        return self.know(id(ins), self._compute(ins))

    def _compute(self, ins: Ins) -> Val:
        if (one := self.variance.chosen(ins)) is not ins:
            return self.value(one)
        match ins.op:
            case "const":
                return Val(SAME, (self.number(ins.attr) if ins.dtype == "f32" else literal(ins.dtype, ins.attr),))
            case "load":
                found = access.load(self, ins)
                return self.number_of(found) if ins.attr.element.name == "f16" else found
            case "atomic":
                return access.atomic(self, ins)
            case "get":
                return self.env[ins.attr]
            case "index":
                return self.counters[id(ins.attr)]
            case "len":
                return Val(SAME, (self.length(ins.attr),))
            case "gid" | "wid" | "lid":
                return self.id(ins.op, ins.attr)
            case "gid_lo" | "gid_hi":
                return Val(SAME, self.ids[ins.op, ins.attr])
            case "lane":
                return self._subgroup_lane()
            case "subgroup":
                return subgroups.in_block(self, ins)
        vals = [self.value(a) for a in ins.args]
        if ins.op == "flush" and not self.kernel.soft_flush:
            return self.number_of(vals[0])
        if ins.op == "convert" and ins.dtype == "f32":
            return self.number_of(self._pure(ins, vals))
        return self._pure(ins, vals)

    def number_of(self, val: Val) -> Val:
        """An f32 that was made of integers, as one that comes out of arithmetic: the product with a 1 that the compiler
        does not know. The machine flushes it, and the compiler's facts about the integers do not carry over."""
        if self.kernel.soft_flush:
            return val
        x = Ins("get", "f32")
        return self._pure(Ins("mul", "f32", (x, x)), [val, Val(SAME, (self.number(0x3F800000),))])

    def _pure(self, ins: Ins, vals: list[Val]) -> Val:
        kinds = {val.kind for val in vals}
        if kinds == {SAME}:
            return Val(SAME, (pure(self.w, ins, [val.parts[0] for val in vals], 1),))
        if ROW in kinds and (row := self._row(ins, vals)) is not None:
            return row
        width, kind = self.width, WIDE
        if kinds <= {SAME, EACH}:
            width, kind = 1, EACH
            columns = [val.parts if val.kind == EACH else val.parts * self.parts for val in vals]
        else:
            columns = [self.wide(val, a.dtype) for val, a in zip(vals, ins.args, strict=True)]
        return Val(kind, each_once(zip(*columns, strict=True), lambda args: pure(self.w, ins, args, width)))

    def _row(self, ins: Ins, vals: list[Val]) -> Val | None:
        """A row that moved is a row."""
        kinds = tuple(val.kind for val in vals)
        if kinds[0] == ROW and self.variance.is_one(ins):
            return Val(SAME, (pure(self.w, ins, [vals[0].parts[0], vals[1].parts[0]], 1),))
        if kinds[0] == ROW and self.variance.cuts_rows(ins):
            parts = tuple(pure(self.w, ins, [base, vals[1].parts[0]], 1) for base in vals[0].parts)
            return Val(ROW if ins.op in ("rem", "and") else EACH, parts)
        if ins.op == "convert" and ins.dtype in ("u32", "i32"):
            return vals[0]
        if ins.dtype not in ("u32", "i32") or ins.op not in ("add", "sub"):
            return None
        if (kinds[0] == ROW and kinds[1] in (SAME, EACH)) or (ins.op == "add" and kinds[1] == ROW and kinds[0] != WIDE):
            if kinds == (ROW, ROW):
                return None
            a, b = (val.parts if val.kind != SAME else val.parts * self.parts for val in vals)
            pairs = zip(a, b, strict=True)
            return Val(ROW, each_once(pairs, lambda xy: self.w.new(f"{ins.op} i32 {xy[0]}, {xy[1]}")))
        return None

    def id(self, op: str, axis: int) -> Val:
        """A global, workgroup or local id."""
        w, sizes = self.w, self.kernel.workgroup
        size, row = sizes[axis], self.variance.row
        if op == "lid" and size == 1:
            return Val(SAME, ("0",))
        if self.flat:
            if axis:
                found = self.ids[op, axis]
                return Val(SAME if len(found) == 1 else EACH, found)
            if op == "gid" or size == 1:
                return Val(row, self.at)
            if op == "lid":
                return Val(row, tuple(w.new(f"urem i32 {at}, {size}") for at in self.at))
            return Val(SAME, (w.new(f"udiv i32 {self.at[0]}, {size}"),))
        if op == "wid":
            return Val(SAME, self.ids[op, axis])
        if op == "gid":
            (first,) = self.ids["first", axis]
            if size == 1:
                return Val(SAME, (first,))
            local = self.id("lid", axis)
            width = self.width if local.kind == WIDE else 1
            offset = self.splat(first, "i32") if width > 1 else first
            return Val(local.kind, tuple(w.new(f"add {ty('u32', width)} {x}, {offset}") for x in local.parts))
        return self._local_id(axis, row)

    def _local_id(self, axis: int, row: int) -> Val:
        w, sizes = self.w, self.kernel.workgroup
        if axis == 0 and sizes[0] == self.kernel.lanes:
            return Val(row, self.at)
        below = (1, sizes[0], sizes[0] * sizes[1])[axis]
        level = self.variance.id_level("lid", axis)
        if axis == 0 and sizes[0] % self.width == 0:
            return Val(row, tuple(w.new(f"urem i32 {at}, {sizes[0]}") for at in self.at))
        kind = ty("u32", self.width if level == WIDE else 1)
        number = (lambda n: f"splat (i32 {n})") if level == WIDE and self.width > 1 else str
        source = self.at if level == EACH else self.at[:1] if level == SAME else self.wide(Val(row, self.at), "u32")
        found = []
        for x in source:
            quotient = x if below == 1 else w.new(f"udiv {kind} {x}, {number(below)}")
            top = below * sizes[axis] == self.kernel.lanes
            found.append(quotient if top else w.new(f"urem {kind} {quotient}, {number(sizes[axis])}"))
        return Val(level, tuple(found))

    def _subgroup_lane(self) -> Val:
        return Val(self.variance.row, tuple(self.w.new(f"and i32 {at}, 31") for at in self.at))

    def _set(self, ins: Ins) -> None:
        local = ins.attr
        level = self.variance.local(local)
        val = self.coerce(self.value(ins.args[0]), level, local.dtype)
        old = self.env.get(local)
        if self.mask is not None and level == WIDE and old is not None and self.variance.keeps(local, self.region):
            kind, flags = ty(local.dtype, self.width), ty("bool", self.width)
            new = (
                self.w.new(f"select {flags} {m}, {kind} {x}, {kind} {y}")
                for m, x, y in zip(self.mask, val.parts, old.parts, strict=True)
            )
            val = Val(WIDE, tuple(new))
        self.env[local] = val

    def _return(self) -> None:
        if self.region == 0:
            if self.phases.left is not None:
                zero = "false" if self.width == 1 else "zeroinitializer"
                self.keep(self.phases.left, "bool", Val(WIDE, (zero,) * self.parts))
            self.jump(self.lane_end)
            return
        assert self.mask is not None
        flags = ty("bool", self.width)
        gone = (self.w.new(f"xor {flags} {m}, {self.ones()[0]}") for m in self.mask)
        self.env[LEFT] = Val(WIDE, self.both(self.env[LEFT].parts, tuple(gone)))
        self.dead = True
