"""Which lanes run which statement? Branches, loops and returns of a body.

Where lanes disagree about a branch, both sides run under masks and a side that no lane takes is jumped over; loops run
while a lane is left. Where paths meet, a phi chooses the value of each local. Short loops are written several
iterations at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....errors import UnsupportedFeature
from ....lower.kernel_ir import PURE, Body, If, Ins, Loop
from .instructions import literal, ty
from .uniformity import SAME, WIDE, Val, assigned
from .values import LEFT, LaneValues

_SLOW = frozenset(("div", "rem", "sqrt", "round_f16"))
_MOST_RETURNS = 200
_SHORT = 16
"""A masked body of at most so many simple instructions is computed without asking whether a lane needs it."""
_UNROLLED_WORK = 48
"""Instructions of an unrolled body, about."""
_MOST_COPIES = 8
_FREE = frozenset(("const", "index", "get", "set", "flush"))


class LaneFlow(LaneValues):
    """A function that is being written, as its statements see it."""

    returns = 0
    """How many of them the body that is being written follows, each inside the branch of the one before."""
    sure: If | None = None
    """A branch that all lanes take which are there."""

    # ---- control flow where lanes may part

    def lanes(self, body: Sequence[Ins | If | Loop]) -> None:
        """A body that lanes run, as many as the mask says."""
        for k, item in enumerate(body):
            if isinstance(item, If):
                if (one := self.variance.side(item)) is not None:
                    self.lanes(one)
                elif item is self.sure:
                    outer, self.region = self.region, self.variance.region(item.then)
                    self.lanes(item.then)
                    self.region = outer
                elif self.variance.parting(item):
                    self._parted(item)
                else:
                    self._branches(item, self.lanes)
            elif isinstance(item, Loop):
                self._loop(item, self.lanes)
            else:
                self.instruction(item)
            if not self.open or self.dead:
                return None
            if id(item) in self.variance.leaves:
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
        self._masked(self.both(mask, condition), item.then, self.variance.region(item.then))
        if item.orelse and self.open:
            flags = ty("bool", self.width)
            other = tuple(self.w.new(f"xor {flags} {c}, {self.ones()[0]}") for c in dict.fromkeys(condition))
            other = other if len(other) == self.parts else other * self.parts
            self.mask = mask
            self._masked(self.both(mask, other), item.orelse, self.variance.region(item.orelse))
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
        parted = mine and self.variance.parting(loop)
        leaving = mine and id(loop) in self.variance.leaves
        level = max(self.variance.level(loop.start), SAME) if mine else SAME
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
                start = self._iterations_in_groups(loop, start, stop)
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
        self.mask, self.region = mask, self.variance.region(loop.body) if mine else 0
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

    # ---- short loops

    def _iterations_in_groups(self, loop: Loop, start: Val, stop: Val) -> Val:
        """Write a loop over as many iterations as go in groups, where that pays; the counter from which to go on.

        All lanes share the counter, which is given in 64 bits. Less than a group of iterations is left.
        """
        copies = self._copies(loop)
        if copies < 2:
            return start
        w, before, entry = self.w, self.block, self.env
        head, inside, done = w.fresh("turns"), w.fresh("turns"), w.fresh("turns")
        self.jump(head)
        self.start(head)
        changed = assigned(loop.body)
        index, index_at = self.phis(start)
        phis = {local: self.phis(entry[local]) for local in changed if local in entry}
        header = entry.fork()
        header.own.update((local, val) for local, (val, _) in phis.items())
        after = Val(SAME, (w.new(f"add i64 {index.parts[0]}, {copies}"),))
        self.branch(w.new(f"icmp ule i64 {after.parts[0]}, {stop.parts[0]}"), inside, done)
        self.start(inside)
        self.env = header.fork()
        for k in range(copies):
            mark = len(self.trail)
            here = w.new(f"add i64 {index.parts[0]}, {k}") if k else index.parts[0]
            self.counters[id(loop)] = Val(SAME, (self.near(here),))
            self.lanes(loop.body)
            self.leave(mark)
        last, latch = self.env, self.block
        self.jump(head)
        self.fill_phis("u64", index, index_at, [(before, start), (latch, after)])
        for local, (val, at) in phis.items():
            self.fill_phis(local.dtype, val, at, [(before, entry[local]), (latch, last[local])])
        self.start(done)
        entry.own.update(header.own)
        self.env = entry
        return index

    def _copies(self, loop: Loop) -> int:
        """How many iterations to write side by side. Loops of a known length are the compiler's business."""
        if not self.fast or loop.live is not None or self.kernel.poll or loop.stop.op == loop.start.op == "const":
            return 1
        work = 1
        for item in loop.body:
            if not isinstance(item, Ins) or item.op in ("atomic", "trap", "return"):
                return 1
            if item.op not in _FREE:
                work += 1 if self.variance.level(item) == SAME else self.parts
        return min(_MOST_COPIES, 1 << (max(_UNROLLED_WORK // work, 1)).bit_length() - 1)


def _short(body: Sequence[Ins | If | Loop]) -> bool:
    return len(body) <= _SHORT and all(
        isinstance(i, Ins) and (i.op in PURE or i.op in ("get", "set")) and i.op not in _SLOW for i in body
    )
