"""One body of a kernel as a function over many lanes: which of them it runs together, and in which order.

Block by block is one loop where the kernel has no barriers; otherwise one loop for each stretch between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ....lower.kernel_ir import PURE, Body, If, Ins, Kernel, Local, Loop, Statement, bodies, walk
from . import access, subgroups
from .barrier_phases import PAD, Phases
from .control_flow import LaneFlow
from .instructions import literal, ty
from .tile_check import Block, unused, without
from .uniformity import ROW, SAME, WIDE, Val, Variance, assigned
from .values import LEFT, Version

FREE = frozenset(("const", "gid", "wid", "lid", "lane", "index", "flush"))
"""Instructions that cost nothing, or next to nothing beside the load that they go with."""
SCATTERED = {"load": 10, "store": 56, "atomic": 32}
_LINE = 64
"""Bytes that a cache moves together."""
_MOST_RESIDENT = 16
"""Vectors that stay in registers from one stretch to the next."""
_ROW_GAIN, _WORK_GAIN = 7, 4
"""Cycles that a vector of 16 lanes loses by accesses all over memory, and gains by others and by instructions (about,
as measured)."""


class Lanes(LaneFlow):
    """Writes one function: `i1 name(shared, worker, i64 x0, i64 x1, i32 wy, i32 wz, taken...)`, true when everything
    must stop."""

    def __init__(self, kernel: Kernel, phases: Phases, version: Version) -> None:
        super().__init__(kernel, phases, version)
        self.name, self.body = version.name, without(kernel.body, version.held)
        self.group_end = ""
        self.span = "%x0", "%x1"
        self.inside = version.inside
        self.label, self.done = "", ""
        """Where the loop over blocks begins, and what follows it."""
        self.resume: list[tuple[str, str]] = []
        """With which lane that loop goes on, and from where."""
        self.variances: dict[tuple[int, int, bool], Variance] = {}
        self.present = kernel.lanes
        """How many lanes there are, in this stretch."""
        self.most = version.width, version.parts
        self.cut(*self.most)
        one = self.phases.left is None and self.variance.block == kernel.lanes and not version.flat
        few = one and len(self.phases.memory) * version.parts <= _MOST_RESIDENT
        self.resident = frozenset(self.phases.memory) if few else frozenset()
        """Locals that stay in registers from stretch to stretch: one block is the whole workgroup."""

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

    def numbers(self) -> dict[str, int]:
        """How many accesses became vectors and shuffles, and locals stay in registers across barriers."""
        return {"strided": len(self.strided), "resident": len(self.resident)}

    def cut(self, width: int, parts: int) -> None:
        """From here on, blocks are `parts` vectors of `width` lanes."""
        self.width, self.parts, self.variance = width, parts, self.variance_of(width, parts)

    def variance_of(self, width: int, parts: int, inside: bool = False) -> Variance:
        """`inside`: for blocks that pass the test."""
        key = width, parts, inside
        if key not in self.variances:
            memory, spilled = frozenset(self.phases.memory), frozenset(self.phases.spilled)
            held, picks = (self.inside.held, self.inside.picks) if inside and self.inside else (self.held, None)
            self.variances[key] = Variance(
                self.kernel, width, parts, self.flat, self.rows, memory, spilled, held, self.fast, picks
            )
        return self.variances[key]

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
                with self.blocks() as last, self._each(sy // self.parts, ends=True) as y:
                    self._place(1, y)
                    self._block_of(rest, last)
                return
            with self._strips(sy > 1 and self._best(self.body)[0] < self.most[0]), self._each(sy) as y:
                self._place(1, y)
                self._stretch(self.body)

    @contextmanager
    def _strips(self, narrow: bool) -> Iterator[None]:
        """A loop over strips as wide as a workgroup: accesses all over memory come back to the same lines soon."""
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
            self.sure, self.present = None, self.kernel.lanes
            self.cut(*self.most)

    def _stretch(self, body: Body) -> None:
        """Every lane runs `body`. Values that no lane changes are computed once, before them."""
        rest = self._hoist(body)
        if not rest:
            return
        env, mark = self.env, len(self.trail)
        self.env = env.fork()
        shared = self._exports(rest)
        until = self._lanes_wanted(rest) if self.phases.left is None else None
        if self.resident.isdisjoint(_touched(rest)):
            self.cut(*self._best(rest))
        if self.phases.left is None:
            with self.blocks(until) as last:
                self._block_of(rest, last)
                inner, values = self.env, [(i, self.known.get(id(i))) for i in shared[1]]
            self.env = env
            env.own.update((local, inner[local]) for local in shared[0] if local in inner)
            self.leave(mark)
            for ins, val in values:
                if val is not None:
                    self.know(id(ins), val)
            return
        # lanes may be gone: the last values of the others are kept on the stack
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

    def _lanes_wanted(self, body: Body) -> str | None:
        """The number of lanes that do anything, where a stretch is a branch for the first ones: a tree of steps through
        shared memory has fewer of them each time. If it is known before, those lanes do not ask."""
        branches = [item for item in body if not isinstance(item, Ins)]
        only = branches[0] if len(branches) == 1 else None
        if self.flat or self.kernel.workgroup[0] != self.kernel.lanes or not isinstance(only, If) or only.orelse:
            return None
        for item in body:
            if isinstance(item, Ins) and (item.op not in PURE or id(item) in self.phases.spilled):
                same = item.op == "get" or (item.op == "set" and item.attr in self.phases.shared_locals)
                if not same or not item.attr.uniform:
                    return None
        if any(local in self.phases.memory for local in _touched(body)):
            return None
        unvisited = [only.condition]
        while unvisited:
            c = unvisited.pop()
            if c.op == "and" and c.dtype == "bool":
                unvisited += c.args
            elif c.op in ("lt", "le", "eq") and c.args[0].op == "lid" and c.args[0].attr == 0:
                most = self.value(c.args[1]) if id(c.args[1]) in self.known else None
                if most is not None and most.kind == SAME:
                    more = int(c.op != "lt")
                    if not most.parts[0].startswith("%"):
                        number = int(most.parts[0]) % (1 << 32)
                        count = min(number + more, self.kernel.lanes)
                        same = c is only.condition and (c.op != "eq" or number == 0)
                        if count and same and all(i.op != "return" for i in walk(only.then)):
                            self.sure, self.present = only, count
                        return str(max(count, 1))
                    least = ("i32", most.parts[0]), ("i32", str(self.kernel.lanes - more))
                    below = self.w.call("i32", "llvm.umin.i32", *least)
                    return self.w.new(f"add i32 {below}, 1") if more else below
        return None

    def _best(self, body: Body) -> tuple[int, int]:
        """How to cut a stretch: vectors side by side where there are loops; lane by lane where it mostly goes all over
        memory, for a gather costs about as much as its loads and a scatter far more."""
        width, parts = self.most
        if self.phases.whole:
            return self.most
        inside = list(walk(body))
        loops = [i for i in inside if isinstance(i, Loop)]
        if not loops and not self.flat:
            parts = 1
        if width == 1:
            return width, parts
        if self.sure is not None and 2 * self.present <= width:
            return 1, 1
        variance = self.variance_of(width, parts, self.inside is not None)
        masked = self._masked_parts(body, variance)
        gain = 0
        for i in [i for loop in loops for i in walk(loop.body)] or inside:
            if not isinstance(i, Ins) or i.op in FREE:
                continue
            if i.op in SCATTERED:
                level = variance.level(i.args[0])
                far = level == WIDE and not variance.is_row(i.args[0])
                if far and i.op != "atomic" and i not in masked and not access.tested(self, i):
                    stride = variance.stride(i.args[0])
                    gain += 2 * stride - _ROW_GAIN if stride else SCATTERED[i.op]
                else:
                    gain += SCATTERED[i.op] if far else -_ROW_GAIN * (level == WIDE)
            elif i.op in PURE and variance.level(i) == WIDE:
                gain -= _WORK_GAIN
        return (1, parts if loops else 1) if gain > 0 else (width, parts)

    def _masked_parts(self, body: Body, variance: Variance) -> set[Statement]:
        """What only some lanes of a block may run."""
        if not self.flat and self.present % variance.block:
            return set(walk(body))
        found: set[Statement] = set()
        unvisited = [body]
        while unvisited:
            for item in unvisited.pop():
                if isinstance(item, Ins):
                    continue
                if item is not self.sure and variance.side(item) is None and variance.parting(item):
                    found.update(walk([item]))
                else:
                    unvisited += bodies(item)
        return found

    def _exports(self, body: Body) -> tuple[list[Local], list[Ins]]:
        """Locals and values of a stretch that another one finds in registers: all lanes share most of them."""
        changed, stay = assigned(body), self.resident.union(self.phases.shared_locals)
        locals_ = [local for local in _touched(body) if local in changed and local in stay]
        return locals_, [i for i in body if isinstance(i, Ins) and id(i) in self.phases.exported]

    def _hoist(self, body: Body) -> Body:
        """Write the instructions of a body that are the same for all lanes; the others."""
        rest: Body = []
        steady: set[int] = set()
        read: set[Local] = set()
        written: set[Local] = set()
        left = self.phases.left is not None  # lanes may have returned, so that the rest is not safe for all
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
    def blocks(self, until: str | None = None) -> Iterator[str]:
        """A loop over all blocks of lanes, or the first one and those that begin before `until`, around what is written
        inside; that is given the last lane's successor."""
        w = self.w
        self.label, self.lane_end, self.done = w.fresh("block"), w.fresh("block"), w.fresh("block")
        kind = "i64" if self.flat else "i32"
        first, last = self.span if self.flat else ("0", until or str(self.kernel.lanes))
        if self.inside is not None and self.tests_blocks:
            first = self._even_start(self.inside)
        at, after = f"%{w.fresh('at')}", f"%{w.fresh('at')}"
        self.resume = [(first, self.block), (after, self.lane_end)]
        self.jump(self.label)
        self.start(self.label)
        hole = self.hole()
        self._begin(at)
        self.mask = None if self.tests_blocks else self._present(at, last)
        self.region = 0
        yield last
        self.jump(self.lane_end)
        self.start(self.lane_end)
        self.mask = None
        w.line(f"{after} = add {kind} {at}, {self.variance.step}")
        self.branch(w.new(f"icmp {'slt' if self.flat else 'ult'} {kind} {after}, {last}"), self.label, self.done)
        w.lines[hole] = f"  {at} = phi {kind} " + ", ".join(f"[ {x}, %{block} ]" for x, block in self.resume)
        self.start(self.done)

    def _begin(self, at: str) -> None:
        """A block begins here."""
        w = self.w
        begin = self.near(at) if self.flat else at
        across = 0 if self.rows else self.width
        self.at = (begin, *(w.new(f"add i32 {begin}, {p * across}") if across else begin for p in range(1, self.parts)))

    def _present(self, at: str, last: str) -> tuple[str, ...] | None:
        """The lanes of this block that there are, unless it is sure to be whole."""
        if self.variance.block == 1 or (self.fast if self.flat else self.present % self.variance.block == 0):
            return None
        w, kind = self.w, "i64" if self.flat else "i32"
        count = w.new(f"sub {kind} {last}, {at}")
        if self.flat:
            count = w.call("i64", "llvm.umin.i64", ("i64", count), ("i64", str(self.variance.block)))
            count = w.new(f"trunc i64 {count} to i32")
        lanes = self.splat(count, "i32")
        wide, flags = self.iota(), []
        for p in range(self.parts):
            base = wide if p == 0 else w.new(f"add {ty('u32', self.width)} {wide}, splat (i32 {p * self.width})")
            flags.append(w.new(f"icmp ult {ty('u32', self.width)} {base}, {lanes}"))
        return tuple(flags)

    def _block_of(self, body: Body, last: str) -> None:
        """One block, in the way that it may take: whole and all lanes alike, or not. Those that are, all the way to
        the end of the row that they have in common, make a loop of their own."""
        inside = self.inside
        if inside is None or not self.tests_blocks:
            self._lane(body)
            return
        w, outer = self.w, (self.at, self.lane_end)
        yes, latch, no, on = (w.fresh(label) for label in ("inside", "inside", "border", "beyond"))
        ok, until = self._passes(inside, last)
        before = self.block
        self.branch(ok, yes, no)
        self.start(yes)
        along = inside.along and not self.rows
        if along:
            self.lane_end = latch
            at, after = f"%{w.fresh('at')}", f"%{w.fresh('at')}"
            w.line(f"{at} = phi i64 [ {self.far(self.at[0])}, %{before} ], [ {after}, %{latch} ]")
            self._begin(at)
        with self._known_inside(inside):
            self._lane([i for i in without(self.kernel.body, inside.held) if id(i) not in self.known])
            self.jump(self.lane_end)
        if along:
            self.start(latch)
            w.line(f"{after} = add i64 {at}, {self.variance.step}")
            self.branch(w.new(f"icmp slt i64 {after}, {until}"), yes, on)
            self.start(on)
            self.resume.append((after, on))
            self.branch(w.new(f"icmp ult i64 {after}, {last}"), self.label, self.done)
        self.region, self.dead, (self.at, self.lane_end) = 0, False, outer
        self.start(no)
        self.mask = self._between(last)
        self._lane(body)

    @contextmanager
    def _known_inside(self, inside: Block) -> Iterator[None]:
        """What is written inside is for blocks that pass the test."""
        outer, mark = (self.env, self.variance, self.unused), len(self.trail)
        self.env = self.env.fork()
        self.variance = self.variance_of(self.width, self.parts, inside=True)
        self.unused = unused(self.kernel, inside.held, inside.picks)
        yield
        self.env, self.variance, self.unused = outer
        self.leave(mark)

    @property
    def tests_blocks(self) -> bool:
        """Whether blocks run in one of two ways, and need not be whole."""
        return self.inside is not None and self.width > 1

    def _passes(self, inside: Block, last: str) -> tuple[str, str]:
        """Whether a block is whole and passes the test, and from where on blocks of its row do not."""
        w, first, step = self.w, self.far(self.at[0]), self.variance.step
        self.ids["gid_lo", 0], self.ids["gid_hi", 0] = (first,), (w.new(f"add i64 {first}, {step - 1}"),)
        for axis in (1, 2):
            here = self.ids["gid", axis]
            self.ids["gid_lo", axis], self.ids["gid_hi", axis] = (self.far(here[0]),), (self.far(here[-1]),)
        for item in inside.code:
            self.instruction(item)
        ok, least, most = (self.value(x).parts[0] for x in (inside.ok, inside.least, inside.most))
        least = w.call("i64", "llvm.smax.i64", ("i64", self.span[0]), ("i64", least))
        most = w.call("i64", "llvm.smin.i64", ("i64", w.new(f"sub i64 {last}, 1")), ("i64", most))
        until = w.new(f"sub i64 {most}, {step - 2}")
        begins, ends = w.new(f"icmp sge i64 {first}, {least}"), w.new(f"icmp slt i64 {first}, {until}")
        return w.new(f"and i1 {ok}, {w.new(f'and i1 {begins}, {ends}')}"), until

    def _between(self, last: str) -> tuple[str, ...]:
        """The lanes of this block that lie in the span."""
        w, kind, flags = self.w, ty("u32", self.width), []
        before, count = (w.new(f"sub i64 {x}, {self.span[0]}") for x in (self.far(self.at[0]), last))
        lanes = self.splat(self.near(count), "i32")
        for p in range(self.parts):
            across = 0 if self.rows else p * self.width
            here = w.new(f"add i64 {before}, {across}") if across else before
            flags.append(w.new(f"icmp ult {kind} {self.wide(Val(ROW, (self.near(here),)), 'u32')[0]}, {lanes}"))
        return tuple(flags)

    def _even_start(self, inside: Block) -> str:
        """Where the blocks of a row begin: before its first lane, if the vectors that it mostly reads or writes then
        begin where a line of the cache does. One that lies in two of them takes twice as long."""
        w, (first, _) = self.w, self.span
        if (
            self.rows
            or self.streamed
            or any(i.op in ("lid", "wid") and i.attr == 0 for i in walk(self.kernel.body) if isinstance(i, Ins))
        ):
            return first
        with self._known_inside(inside):
            body = [i for i in walk(without(self.kernel.body, inside.held)) if isinstance(i, Ins)]
            rows = [i for i in body if i.op in ("load", "store") and self._is_whole_line(i)]
            if not rows:
                return first
            most = Counter(i.attr for i in rows).most_common(1)[0][0]
            stored = {i.args[0] for i in rows if i.op == "store"}
            ins = max((i for i in rows if i.attr is most), key=lambda i: i.args[0] in stored)
            self.at = (self.near(first),) * self.parts
            at = access.address(self, most, self.far(self.value(ins.args[0]).parts[0]))
            beyond = w.new(f"and i64 {w.new(f'ptrtoint ptr {at} to i64')}, {_LINE - 1}")
            return w.new(f"sub i64 {first}, {w.new(f'udiv i64 {beyond}, {most.element.size}')}")

    def _is_whole_line(self, ins: Ins) -> bool:
        """Whether an access is to neighbours that fill a line, and its index can be computed before the blocks are."""
        if self.width * (ins.attr.element.size or 0) != _LINE:
            return False
        unvisited = [ins.args[0]]
        while unvisited:
            value = self.variance.chosen(unvisited.pop())
            if id(value) not in self.known:
                if value.op not in PURE or value.op == "index":
                    return False
                unvisited += value.args
        return self.variance.is_row(ins.args[0])

    def _lane(self, body: Body) -> None:
        """One block from its first statement to its last."""
        phases = self.phases
        written = assigned(body)
        if phases.left is not None:
            self._remaining(phases.left)
        leaves = any(id(item) in self.variance.leaves for item in body)
        if leaves or phases.left is not None:
            self.env[LEFT] = Val(WIDE, self.mask or self.ones())
        touched = [local for local in _touched(body) if local in phases.memory]
        for local in touched:
            if local in self.resident and local not in self.env:
                self.env[local] = Val(WIDE, (literal(local.dtype, 0, self.width),) * self.parts)
        kept = [local for local in touched if local not in self.resident]
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
        self.mask = None if self.variance.block == 1 else found.parts


def _touched(body: Body) -> list[Local]:
    """Locals of a body in the order of their first use."""
    found: dict[Local, None] = {}
    for item in walk(body):
        if isinstance(item, Ins) and item.op in ("get", "set"):
            found[item.attr] = None
        elif isinstance(item, Loop) and item.live is not None:
            found[item.live] = None
    return list(found)
