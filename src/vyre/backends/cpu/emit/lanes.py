"""One body of a kernel as a function over many lanes: values, locals, branches and loops.

Where lanes disagree about a branch, both sides run under masks and a side that nobody takes is jumped over; loops run
while a lane is left. Locals are values too: where paths meet, a phi chooses.

Block by block is one loop where the kernel has no barriers; otherwise one loop for each stretch between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from ....errors import UnsupportedFeature
from ....lower.kernel_ir import PURE, Body, Buffer, If, Ins, Kernel, Local, Loop, walk
from . import access, subgroups, unroll
from .barrier_phases import PAD, Phases
from .hoisted_conditions import unused, without
from .instructions import literal, pure, ty
from .steering import Taken
from .uniformity import EACH, ROW, SAME, WIDE, Val, Variance, assigned, each_once
from .writer import FunctionWriter

LEFT = Local("", "bool")
"""The lanes that have not returned yet, kept like a local."""
NOTHING: Mapping[int, bool] = MappingProxyType({})
FREE = frozenset(("const", "gid", "wid", "lid", "lane", "index", "flush"))
"""Instructions that cost nothing, or next to nothing beside the load that they go with."""
SCATTERED = {"load": 10, "store": 56, "atomic": 32}
_ROW_GAIN, _WORK_GAIN = 7, 4
"""Cycles that a vector of 16 lanes loses by accesses all over memory, and gains by others and by instructions (about,
as measured)."""
_SLOW = frozenset(("div", "rem", "sqrt", "round_f16"))
_MOST_RETURNS = 200
_SHORT = 16
"""A masked body of at most so many simple instructions is computed without asking whether a lane needs it."""


class Lanes(FunctionWriter):
    """Writes one function: `i1 name(shared, worker, i64 x0, i64 x1, i32 wy, i32 wz, taken...)`, true when everything
    must stop.

    A `flat` one runs the invocations x0 <= gid.x < x1 of the rows of one workgroup, others the workgroups x0 <= wid.x
    < x1. `fast` leaves out the tests that the kernel's check makes unnecessary, knows the truth of `held` conditions
    (by identity), has the loads of the check from its caller, and is given whole blocks. With `rows` the vectors of a
    block stand one above the other. The stores of `streamed` go past the cache where they can.
    """

    def __init__(
        self,
        kernel: Kernel,
        phases: Phases,
        *,
        name: str,
        width: int,
        parts: int,
        flat: bool,
        fast: bool,
        taken: Taken,
        rows: bool = False,
        held: Mapping[int, bool] = NOTHING,
        streamed: frozenset[Ins] = frozenset(),
    ) -> None:
        super().__init__(kernel, phases)
        self.name, self.flat, self.fast, self.rows, self.held = name, flat, fast, rows, held
        self.streamed, self.taken, self.steering = streamed, taken, taken.steering
        self.given = taken.given if fast else {}
        self.past: dict[Buffer, int] = {}
        """Buffers with stores that went past the cache, and to how many bytes their elements must be aligned."""
        self.body = without(kernel.body, held)
        self.unused = unused(kernel, held) if held else frozenset()
        self.counters: dict[int, Val] = {}
        self.mask: tuple[str, ...] | None = None
        self.region = self.returns = 0
        self.dead = False
        """The rest of the body is not reached: its lanes have returned."""
        self.lane_end = self.group_end = ""
        self.span = "%x0", "%x1"
        self.ids: dict[tuple[str, int], tuple[str, ...]] = {}
        self.shapes: dict[tuple[int, int], Variance] = {}
        self.most = width, parts
        self.cut(width, parts)

    # ---- the function

    def text(self) -> str:
        """The whole function."""
        self.w.label("start")
        if self.flat:
            self._rows()
        else:
            self._groups()
        self.w.line("ret i1 false")
        given = "".join(f", {ty(load.dtype)} {name}" for load, name in self.taken.names.items())
        fixed = f"ptr %shared, ptr %worker, i64 %x0, i64 %x1, i32 %wy, i32 %wz{given}"
        head = f"define internal i1 @{self.name}({fixed}) #0 {{"
        return "\n".join((head, "entry:", *self.first, "  br label %start", *self.w.lines, "}"))

    def cut(self, width: int, parts: int) -> None:
        """From here on, blocks are `parts` vectors of `width` lanes."""
        self.width, self.parts, self.shape = width, parts, self.shape_of(width, parts)

    def shape_of(self, width: int, parts: int) -> Variance:
        if (width, parts) not in self.shapes:
            memory, spilled = frozenset(self.phases.memory), frozenset(self.phases.spilled)
            self.shapes[width, parts] = Variance(
                self.kernel, width, parts, self.flat, self.rows, memory, spilled, self.held
            )
        return self.shapes[width, parts]

    def _rows(self) -> None:
        """Every invocation from x0 to x1 in all rows of a workgroup; block after block in a row, or row after row in a
        block where `parts` rows are computed side by side."""
        _, sy, sz = self.kernel.workgroup
        for axis, group in ((1, "%wy"), (2, "%wz")):
            self.ids["wid", axis] = (group,)
        with self._each(sz) as z:
            self._place(2, z)
            if self.rows:
                rest = self._hoist(self.body)
                self.cut(*self._best(rest))
                with self.blocks(), self._each(sy // self.parts, ends=True) as y:
                    self._place(1, y)
                    self._lane(rest)
                return
            with self._strips(sy > 1 and self._best(self.body)[0] < self.most[0]), self._each(sy) as y:
                self._place(1, y)
                self._stretch(self.body)

    @contextmanager
    def _strips(self, narrow: bool) -> Iterator[None]:
        """A loop over strips as wide as a workgroup: what goes all over memory comes back to the same lines soon."""
        if not narrow:
            yield
            return
        self.most = 1, 1  # a strip need not be a multiple of a vector
        w, size = self.w, self.kernel.workgroup[0]
        label, done, before = w.fresh("strip"), w.fresh("strip"), self.block
        x = f"%{w.fresh('x')}"
        self.jump(label)
        self.start(label)
        at = self.hole()
        last = w.call("i64", "llvm.umin.i64", ("i64", w.new(f"add i64 {x}, {size}")), ("i64", "%x1"))
        self.span = x, last
        yield
        w.lines[at] = f"  {x} = phi i64 [ %x0, %{before} ], [ {last}, %{self.block} ]"
        self.branch(w.new(f"icmp ult i64 {last}, %x1"), label, done)
        self.start(done)

    def _place(self, axis: int, k: str) -> None:
        """Ids along an axis of the row (or rows) with number k."""
        w, size, (group,) = self.w, self.kernel.workgroup[axis], self.ids["wid", axis]
        local: tuple[str, ...] = (k,)
        here: tuple[str, ...] = (group,)
        if size > 1:
            if self.rows and axis == 1:
                first = w.new(f"mul i32 {k}, {self.parts}")
                local = (first, *(w.new(f"add i32 {first}, {p}") for p in range(1, self.parts)))
            base = w.new(f"mul i32 {group}, {size}")
            here = tuple(w.new(f"add i32 {base}, {x}") for x in local)
        self.ids["lid", axis], self.ids["gid", axis] = local, here

    @contextmanager
    def _each(self, count: int, ends: bool = False) -> Iterator[str]:
        """A loop over 0 .. count - 1, around what is written inside. `ends`: one iteration is a block of lanes."""
        if count == 1:
            yield "0"
            return
        w, label, latch, done, before = (
            self.w,
            self.w.fresh("row"),
            self.w.fresh("row"),
            self.w.fresh("row"),
            self.block,
        )
        k, after = f"%{w.fresh('k')}", f"%{w.fresh('k')}"
        outer = self.lane_end, self.mask, len(self.trail)
        self.lane_end = latch if ends else self.lane_end
        self.jump(label)
        self.start(label)
        w.line(f"{k} = phi i32 [ 0, %{before} ], [ {after}, %{latch} ]")
        yield k
        self.jump(latch)
        self.start(latch)
        w.line(f"{after} = add i32 {k}, 1")
        self.branch(w.new(f"icmp ult i32 {after}, {count}"), label, done)
        self.start(done)
        self.lane_end, self.mask = outer[:2]
        self.leave(outer[2])

    def _groups(self) -> None:
        w = self.w
        label, self.group_end, done = w.fresh("group"), w.fresh("group"), w.fresh("group")
        x, after = "%x", "%xn"
        self.jump(label)
        self.start(label)
        w.line(f"{x} = phi i64 [ %x0, %start ], [ {after}, %{self.group_end} ]")
        for axis, wid in enumerate((w.new(f"trunc i64 {x} to i32"), "%wy", "%wz")):
            self.ids["wid", axis] = (wid,)
            size = self.kernel.workgroup[axis]
            self.ids["first", axis] = (wid if size == 1 else w.new(f"mul i32 {wid}, {size}"),)
        if self.kernel.poll:
            self.look()
        if self.phases.shared_bytes:
            self._fill(0, 0, self.phases.shared_bytes)
        if self.phases.left is not None:
            lanes = self.kernel.lanes
            self._fill(self.phases.left, 1, lanes)
            self._fill(self.phases.left + lanes, 0, -lanes % PAD)
        self.group(self.body)
        self.jump(self.group_end)
        self.start(self.group_end)
        w.line(f"{after} = add i64 {x}, 1")
        self.branch(w.new(f"icmp ult i64 {after}, %x1"), label, done)
        self.start(done)

    def _fill(self, offset: int, byte: int, count: int) -> None:
        if count:
            at = self.scratch(offset)
            self.w.call(
                "void", "llvm.memset.p0.i64", ("ptr", at), ("i8", str(byte)), ("i64", str(count)), ("i1", "false")
            )

    # ---- once for a workgroup

    def group(self, body: Body) -> None:
        """A body whose control flow the whole workgroup shares."""
        for piece in self.phases.pieces(body):
            if not self.open:
                return
            if isinstance(piece, list):
                self._stretch(piece)
            elif isinstance(piece, If):
                self._branches(piece, self.group)
            elif isinstance(piece, Loop):
                self._loop(piece, self.group)
            elif piece.op == "subgroup":
                subgroups.emit(self, piece)
            elif piece.op == "return":
                self.jump(self.group_end)

    def _stretch(self, body: Body) -> None:
        """Every lane runs `body`. What no lane changes is computed once, before them."""
        rest = self._hoist(body)
        if not rest:
            return
        env, mark = self.env, len(self.trail)
        self.env = env.fork()
        shared = self._exports(rest)
        self.cut(*self._best(rest))
        if self.phases.left is None:
            with self.blocks():
                self._lane(rest)
                inner, values = self.env, [(i, self.known.get(id(i))) for i in shared[1]]
            self.env = env
            env.own.update((local, inner[local]) for local in shared[0] if local in inner)
            self.leave(mark)
            for ins, val in values:
                if val is not None:
                    self.know(id(ins), val)
            return
        # lanes may be gone: what the others computed last is kept on the stack
        slots = {item: self.slot(ty(item.dtype)) for group in shared for item in group}
        with self.blocks():
            self._lane(rest)
            if self.open:
                for local in shared[0]:
                    self.w.line(f"store {ty(local.dtype)} {self.env[local].parts[0]}, ptr {slots[local]}")
                for ins in shared[1]:
                    self.w.line(f"store {ty(ins.dtype)} {self.value(ins).parts[0]}, ptr {slots[ins]}")
        self.env = env
        self.leave(mark)
        for item, slot in slots.items():
            val = Val(SAME, (self.w.new(f"load {ty(item.dtype)}, ptr {slot}"),))
            if isinstance(item, Local):
                self.env[item] = val
            else:
                self.know(id(item), val)

    def _best(self, body: Body) -> tuple[int, int]:
        """How to cut a stretch: vectors side by side where there are loops; lane by lane where it mostly goes all over
        memory, for a gather costs about as much as its loads and a scatter far more."""
        width, parts = self.most
        inside = list(walk(body))
        loops = [i for i in inside if isinstance(i, Loop)]
        if not loops and not self.flat:
            parts = 1
        if width == 1:
            return width, parts
        shape = self.shape_of(width, parts)
        gain = 0
        for i in [i for loop in loops for i in walk(loop.body)] or inside:
            if not isinstance(i, Ins) or i.op in FREE:
                continue
            if i.op in SCATTERED:
                level = shape.level(i.args[0])
                far = level == WIDE and not shape.is_row(i.args[0])
                gain += SCATTERED[i.op] if far else -_ROW_GAIN * (level == WIDE)
            elif i.op in PURE and shape.level(i) == WIDE:
                gain -= _WORK_GAIN
        return (1, parts if loops else 1) if gain > 0 else (width, parts)

    def _exports(self, body: Body) -> tuple[list[Local], list[Ins]]:
        """Locals and values of a stretch that all lanes share and somebody else uses."""
        changed = assigned(body)
        locals_ = [local for local in _touched(body) if local in changed and local in self.phases.shared_locals]
        return locals_, [i for i in body if isinstance(i, Ins) and id(i) in self.phases.exported]

    def _hoist(self, body: Body) -> Body:
        """Write the instructions of a body that are the same for all lanes; the others."""
        rest: Body = []
        steady: set[int] = set()
        read: set[Local] = set()
        written: set[Local] = set()
        left = self.phases.left is not None  # lanes may have returned, so that what follows is not safe for all
        for item in body:
            if isinstance(item, Ins) and left and item.op == "load" and not access.tested(self, item):
                rest.append(item)
                continue
            if isinstance(item, Ins) and self._steady(item, steady, read, written):
                steady.add(id(item))
                self.instruction(item)
                continue
            rest.append(item)
            for inner in walk([item]):
                left |= inner.op == "return"
                if isinstance(inner, Loop) and inner.live is not None:
                    read.add(inner.live)
                if isinstance(inner, Ins) and inner.op in ("get", "set"):
                    (read if inner.op == "get" else written).add(inner.attr)
        return rest

    def _steady(self, ins: Ins, steady: set[int], read: set[Local], written: set[Local]) -> bool:
        """Whether lanes need not compute this. `read` and `written` are the locals that lanes have used before it."""
        if ins.op in ("get", "set"):
            if self.flat or not ins.attr.uniform or ins.attr in written:
                return False
            return ins.op == "get" or (ins.attr not in read and id(ins.args[0]) in self.known)
        if ins.op not in PURE and not (ins.op == "load" and not ins.attr.writable):
            return False
        if ins.op in ("gid", "wid", "lid"):
            if not self.flat:
                return ins.uniform
            return ins.attr > (self.rows and ins.op != "wid") or (self.kernel.workgroup[0] == 1 and ins.op == "lid")
        if ins.op == "lane":
            return False
        return all(id(a) in steady or id(a) in self.known for a in ins.args)

    # ---- block by block

    @contextmanager
    def blocks(self) -> Iterator[None]:
        """A loop over all blocks of lanes, around what is written inside."""
        w = self.w
        label, self.lane_end, done = w.fresh("block"), w.fresh("block"), w.fresh("block")
        before, kind = self.block, "i64" if self.flat else "i32"
        first, last = self.span if self.flat else ("0", str(self.kernel.lanes))
        at, after = f"%{w.fresh('at')}", f"%{w.fresh('at')}"
        step = self.shape.step
        self.jump(label)
        self.start(label)
        w.line(f"{at} = phi {kind} [ {first}, %{before} ], [ {after}, %{self.lane_end} ]")
        begin = w.new(f"trunc i64 {at} to i32") if self.flat else at
        across = 0 if self.rows else self.width
        self.at = (begin, *(w.new(f"add i32 {begin}, {p * across}") if across else begin for p in range(1, self.parts)))
        self.mask = self._present(at, last)
        self.region = 0
        yield
        self.jump(self.lane_end)
        self.start(self.lane_end)
        self.mask = None
        w.line(f"{after} = add {kind} {at}, {step}")
        self.branch(w.new(f"icmp ult {kind} {after}, {last}"), label, done)
        self.start(done)

    def _present(self, at: str, last: str) -> tuple[str, ...] | None:
        """The lanes of this block that there are, unless it is sure to be whole."""
        if self.shape.block == 1 or (self.fast if self.flat else self.kernel.lanes % self.shape.block == 0):
            return None
        w, kind = self.w, "i64" if self.flat else "i32"
        count = w.new(f"sub {kind} {last}, {at}")
        if self.flat:
            count = w.call("i64", "llvm.umin.i64", ("i64", count), ("i64", str(self.shape.block)))
            count = w.new(f"trunc i64 {count} to i32")
        lanes = self.splat(count, "i32")
        wide, flags = self.iota(), []
        for p in range(self.parts):
            base = wide if p == 0 else w.new(f"add {ty('u32', self.width)} {wide}, splat (i32 {p * self.width})")
            flags.append(w.new(f"icmp ult {ty('u32', self.width)} {base}, {lanes}"))
        return tuple(flags)

    def _lane(self, body: Body) -> None:
        """One block from its first statement to its last."""
        phases = self.phases
        written = assigned(body)
        if phases.left is not None:
            self._remaining(phases.left)
        leaves = any(id(item) in self.shape.leaves for item in body)
        if leaves or phases.left is not None:
            self.env[LEFT] = Val(WIDE, self.mask or self.ones())
        kept = [local for local in _touched(body) if local in phases.memory]
        for local in kept:
            self.env[local] = self.kept(phases.memory[local], local.dtype)
        self.lanes(body)
        if self.open:
            for local in kept:
                if local in written:
                    self.keep(phases.memory[local], local.dtype, self.env[local])

    def _remaining(self, offset: int) -> None:
        found = self.kept(offset, "bool")
        cont = self.w.fresh("go")
        self.branch(self.any(found.parts), cont, self.lane_end)
        self.start(cont)
        self.mask = None if self.shape.block == 1 else found.parts

    def lanes(self, body: Sequence[Ins | If | Loop]) -> None:
        """A body that lanes run, as many as the mask says."""
        for k, item in enumerate(body):
            if isinstance(item, If):
                if self.shape.parting(item):
                    self._parted(item)
                else:
                    self._branches(item, self.lanes)
            elif isinstance(item, Loop):
                self._loop(item, self.lanes)
            else:
                self.instruction(item)
            if not self.open or self.dead:
                return None
            if id(item) in self.shape.leaves:
                left = self.env[LEFT].parts
                if self.region:
                    self.mask = self.both(self.mask, left)
                    return self._rest(body[k + 1 :])
                self.mask = left
                if self.phases.left is not None:
                    self.keep(self.phases.left, "bool", self.env[LEFT])
                cont = self.w.fresh("go")
                self.branch(self.any(left), cont, self.lane_end)
                self.start(cont)
        return None

    def _rest(self, body: Sequence[Ins | If | Loop]) -> None:
        """What follows a return inside a branch, for the lanes that are left: a branch inside the one before."""
        self.returns += 1
        if self.returns > _MOST_RETURNS:
            raise UnsupportedFeature(
                f"more than {_MOST_RETURNS} returns follow each other inside a branch or loop",
                fix="return once: set a local where it is to end, and test that",
                name="returns",
            )
        self._masked(self.mask or self.ones(), body, self.region)
        self.returns -= 1

    def _parted(self, item: If) -> None:
        condition = self.wide(self.value(item.condition), "bool")
        mask = self.mask
        self._masked(self.both(mask, condition), item.then, self.shape.region(item.then))
        if item.orelse and self.open:
            flags = ty("bool", self.width)
            other = tuple(self.w.new(f"xor {flags} {c}, {self.ones()[0]}") for c in dict.fromkeys(condition))
            other = other if len(other) == self.parts else other * self.parts
            self.mask = mask
            self._masked(self.both(mask, other), item.orelse, self.shape.region(item.orelse))
        self.mask = mask

    def _masked(self, mask: tuple[str, ...], body: Sequence[Ins | If | Loop], region: int) -> None:
        """Run a body for the lanes of `mask`, if there is one."""
        if not body:
            return
        mark, outer = len(self.trail), (self.mask, self.region)
        base = self.env
        if _short(body):
            self.env = base.fork()
            self.mask, self.region = mask, region
            self.lanes(body)
            base.own.update((local, val) for local, val in self.env.own.items() if local in base)
            self.env = base
        else:
            inside, after = self.w.fresh("some"), self.w.fresh("none")
            self.branch(self.any(mask), inside, after)
            arms = [(self.block, base)]
            self.env = base.fork()
            self.start(inside)
            self.mask, self.region = mask, region
            self.lanes(body)
            if self.open:
                arms.append((self.block, self.env))
                self.jump(after)
            self.join(after, base, arms)
        self.dead = False
        self.leave(mark)
        self.mask, self.region = outer

    # ---- control flow that does not part

    def _branches(self, item: If, run: Callable[[Body], None]) -> None:
        condition = self.value(item.condition).parts[0]
        w, before, block = self.w, self.env, self.block
        then, other, after = w.fresh("then"), w.fresh("else"), w.fresh("end")
        mask = self.mask
        self.branch(condition, then, other if item.orelse else after)
        arms = [] if item.orelse else [(block, before)]
        for label, body in ((then, item.then), (other, item.orelse)):
            if label is other and not body:
                continue
            mark = len(self.trail)
            self.start(label)
            self.env = before.fork()
            run(body)
            self.mask, self.dead = mask, False
            if self.open:
                arms.append((self.block, self.env))
                self.jump(after)
            self.leave(mark)
        self.join(after, before, arms)

    def _loop(self, loop: Loop, run: Callable[[Body], None]) -> None:
        w = self.w
        mine = run == self.lanes
        parted = mine and self.shape.parting(loop)
        leaving = mine and id(loop) in self.shape.leaves
        level = max(self.shape.level(loop.start), SAME) if mine else SAME
        start, stop = self.coerce(self.value(loop.start), level, "u32"), self.value(loop.stop)
        changed = assigned(loop.body)
        if leaving:
            changed[LEFT] = None
        carried = [local for local in changed if local in self.env]
        outer, before, mark = (self.mask, self.region), self.block, len(self.trail)
        head, inside, done = w.fresh("loop"), w.fresh("loop"), w.fresh("loop")
        counted = start.kind == stop.kind == SAME
        if counted:
            start, stop = (Val(SAME, (self.far(x.parts[0]),)) for x in (start, stop))
            if mine and not parted and not leaving:
                start = unroll.unrolled(self, loop, start, stop)
                before = self.block
        self.jump(head)
        self.start(head)
        index, index_at = self.phis(start)
        phis = {local: self.phis(self.env[local]) for local in carried}
        entry = self.env
        header = self.env = entry.fork()
        header.own.update((local, val) for local, (val, _) in phis.items())
        active: Val | None = None
        if parted:
            active, active_at = self.phis(Val(WIDE, outer[0] or self.ones()))
        mask = active.parts if active else outer[0]
        if leaving and not parted:
            mask = self.both(mask, self.env[LEFT].parts)
        condition, mask = self._goes_on(loop, index, stop, mask, parted, leaving)
        self.branch(condition, inside, done)
        self.start(inside)
        self.env = header.fork()
        self.mask, self.region = mask, self.shape.region(loop.body) if mine else 0
        self.counters[id(loop)] = Val(SAME, (self.near(index.parts[0]),)) if counted else index
        run(loop.body)
        self.dead = False
        arrivals = [(before, start, entry, outer[0] or (self.ones() if parted else ()))]
        if self.open:
            if self.kernel.poll:
                self.poll()
            kind = "i64" if counted else ty("u32", self.width if index.kind == WIDE else 1)
            one = "splat (i32 1)" if index.kind == WIDE and self.width > 1 else "1"
            after = Val(index.kind, tuple(w.new(f"add {kind} {i}, {one}") for i in index.parts))
            rest = mask
            if parted and leaving:
                rest = self.both(mask, self.env[LEFT].parts)
            arrivals.append((self.block, after, self.env, rest or ()))
            self.jump(head)
        self.fill_phis("u64" if counted else "u32", index, index_at, [(block, val) for block, val, _, _ in arrivals])
        for local, (val, at) in phis.items():
            self.fill_phis(local.dtype, val, at, [(block, env[local]) for block, _, env, _ in arrivals])
        if active:
            self.fill_phis("bool", active, active_at, [(block, Val(WIDE, m)) for block, _, _, m in arrivals])
        self.leave(mark)
        self.start(done)
        entry.own.update(header.own)
        self.env = entry
        self.mask, self.region = outer

    def _goes_on(
        self, loop: Loop, index: Val, stop: Val, mask: tuple[str, ...] | None, parted: bool, leaving: bool
    ) -> tuple[str, tuple[str, ...] | None]:
        """Whether an iteration begins, and for which lanes."""
        w = self.w
        scalar: str | None = None
        if loop.endless:
            pass
        elif index.kind == stop.kind == SAME:
            scalar = w.new(f"icmp ult i64 {index.parts[0]}, {stop.parts[0]}")
        else:
            a, b = self.wide(index, "u32"), self.wide(stop, "u32")
            word = ty("u32", self.width)
            below = (w.new(f"icmp ult {word} {x}, {y}") for x, y in zip(a, b, strict=True))
            mask = self.both(mask, tuple(below))
        if loop.live is not None:
            live, t = self.env[loop.live], loop.live.dtype
            width = self.width if live.kind == WIDE else 1
            flags = live.parts
            if t != "bool":
                zero = literal(t, 0, width)
                flags = tuple(w.new(f"icmp ne {ty(t, width)} {x}, {zero}") for x in flags)
            if live.kind == SAME:
                scalar = flags[0] if scalar is None else w.new(f"and i1 {scalar}, {flags[0]}")
            else:
                mask = self.both(mask, self.wide(Val(live.kind, flags), "bool"))
        if (parted or leaving) and mask is not None:
            some = self.any(mask)
            scalar = some if scalar is None else w.new(f"and i1 {scalar}, {some}")
        assert scalar is not None
        return scalar, mask

    # ---- instructions

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
        vals = [self.value(a) for a in ins.args]
        if ins.op == "flush" and not self.kernel.soft_flush:
            return self.number_of(vals[0])
        if ins.op == "convert" and ins.dtype == "f32":
            return self.number_of(self._pure(ins, vals))
        return self._pure(ins, vals)

    def number_of(self, val: Val) -> Val:
        """An f32 that was made of integers, as one that comes out of arithmetic: the product with a 1 that the compiler
        does not know. The machine flushes it, and whatever is known of the integers, nothing is of the product."""
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
        size, row = sizes[axis], self.shape.row
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
        level = self.shape.id_level("lid", axis)
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
        return Val(self.shape.row, tuple(self.w.new(f"and i32 {at}, 31") for at in self.at))

    def _set(self, ins: Ins) -> None:
        local = ins.attr
        level = self.shape.local(local)
        val = self.coerce(self.value(ins.args[0]), level, local.dtype)
        old = self.env.get(local)
        if self.mask is not None and level == WIDE and old is not None and self.shape.keeps(local, self.region):
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


def _short(body: Sequence[Ins | If | Loop]) -> bool:
    return len(body) <= _SHORT and all(
        isinstance(i, Ins) and (i.op in PURE or i.op in ("get", "set")) and i.op not in _SLOW for i in body
    )


def _touched(body: Body) -> list[Local]:
    """Locals of a body in the order of their first use."""
    found: dict[Local, None] = {}
    for item in walk(body):
        if isinstance(item, Ins) and item.op in ("get", "set"):
            found[item.attr] = None
        elif isinstance(item, Loop) and item.live is not None:
            found[item.live] = None
    return list(found)
