"""The race detector: two accesses to one element by two invocations, with no order between them and a result that
depends on it. Only loads, or only the same order-free atomic, do not depend on it.

What orders two accesses: being made by the same invocation; a barrier between them, inside one workgroup; a grid-wide
barrier between them, everywhere. Atomics order nothing. The verdict follows from the barriers passed, not from which
access came first.

Where the same order-free atomic meets itself the memory does not depend on the order, but the old value that it returns
does. That is not a race; a detector reports it apart, as a place that shows the order. A run without either is the
same under every schedule: no value that an invocation gets could have been another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ....errors import RaceDetected
from ....foundation.formats.text import print_expr
from ....foundation.ir import nodes as ir
from ....foundation.ir.ops import AtomicOp

InvocationIdTuple = tuple[int, int, int]
_COMMUTES = frozenset(("load", *(op.text for op in AtomicOp if op.order_free)))
"""Kinds of access that may meet their own kind in any order."""


@dataclass(frozen=True, slots=True)
class Site:
    """A statement of a program. `path` is its way down from the entry."""

    node: ir.Node
    path: str

    @property
    def place(self) -> str:
        """`file:line` of the source, or the path where the program has no source."""
        span = self.node.span
        return self.path if span is None else f"{span.file}:{span.line}"

    @property
    def text(self) -> str:
        """The source line, or the statement itself without what is nested in it."""
        if self.node.span is not None and self.node.span.text:
            return self.node.span.text.strip()
        match self.node:
            case ir.Let(name=name, value=value) | ir.Assign(name=name, value=value):
                return f"{name} = {print_expr(value)}"
            case ir.Store(buffer=buffer, index=index, value=value):
                return f"{buffer}[{print_expr(index)}] = {print_expr(value)}"
            case ir.If(condition=condition):
                return f"if {print_expr(condition)}"
            case ir.Loop(var=var, start=start, stop=stop):
                return f"for {var} in {print_expr(start)}..{print_expr(stop)}"
            case node:
                return repr(node)


@dataclass(frozen=True, slots=True)
class Access:
    """One of the two sides of a race. `kind` is load, store, or the name of an atomic operation."""

    kind: str
    invocation: InvocationIdTuple
    site: Site

    def __str__(self) -> str:
        return f"{self.kind} by invocation {self.invocation} at {self.site.place}: {self.site.text}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to one element with no order between them, of which the result depends on the order."""

    buffer: str
    index: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return f"race on {self.sides}"

    @property
    def sides(self) -> str:
        """The element, and both accesses."""
        return f"{self.buffer}[{self.index}]\n  {self.first}\n  {self.second}"


def race_detected(races: Sequence[Race]) -> RaceDetected:
    """The error of a run in which the order shows: its first race has both places."""
    return RaceDetected(
        str(races[0]),
        fix="put a barrier between the two accesses, use an atomic, or let one invocation own the element",
        races=len(races),
    )


class _Group(Protocol):
    index: int
    epoch: int


class Who(Protocol):
    """The invocation that makes an access: the barriers its workgroup has passed are counted in `group.epoch`."""

    gid: InvocationIdTuple

    @property
    def group(self) -> _Group: ...


class _Recent:
    """Accesses of one workgroup to one element since its last barrier, by two different invocations at most.

    Two are enough: the next invocation differs from one of them.
    """

    __slots__ = ("accesses", "epoch")

    def __init__(self, epoch: int, access: Access) -> None:
        self.epoch = epoch
        self.accesses = [access]


class Location:
    """One element since the last grid-wide barrier: its accesses by kind and whether it uses an old value, then by
    workgroup."""

    __slots__ = ("grid_epoch", "kinds")

    def __init__(self, grid_epoch: int) -> None:
        self.grid_epoch = grid_epoch
        self.kinds: dict[tuple[str, bool], dict[int, _Recent]] = {}


class Detector:
    """Watches the accesses of one dispatch. Each pair of statements is reported once per buffer.

    `seen` is the first pair of atomics that do not race and of which one uses the old value: it tells their order.
    """

    def __init__(self) -> None:
        self.races: list[Race] = []
        self.seen: Race | None = None
        self.grid_epoch = 0
        self._reported: set[tuple[object, ...]] = set()

    def touch(
        self,
        locations: dict[int, Location],
        buffer: str,
        index: int,
        who: Who,
        kind: str,
        site: Site,
        uses_old: bool = False,
    ) -> None:
        """Note one access. `locations` belongs to the buffer; each workgroup's shared memory has its own.

        `uses_old`: it is an atomic, and something reads what it returns.
        """
        location = locations.get(index)
        if location is None or location.grid_epoch != self.grid_epoch:
            location = locations[index] = Location(self.grid_epoch)
        access = Access(kind, who.gid, site)
        for (other, used), table in location.kinds.items():
            commutes = kind == other and kind in _COMMUTES
            if commutes and (self.seen is not None or not (used or uses_old)):
                continue
            rival = _unordered(table, who)
            if rival is None:
                continue
            met = Race(buffer, index, rival, access)
            if commutes:
                self.seen = met
            else:
                self._report(met)
        _record(location.kinds.setdefault((kind, uses_old), {}), who, access)

    def _report(self, race: Race) -> None:
        sides = sorted((side.kind, side.site.path) for side in (race.first, race.second))
        key = (race.buffer, *sides)
        if key not in self._reported:
            self._reported.add(key)
            self.races.append(race)


def _unordered(table: dict[int, _Recent], who: Who) -> Access | None:
    """An access of another invocation with nothing between it and now."""
    group = who.group
    mine = table.get(group.index)
    if mine is not None and mine.epoch == group.epoch:
        for access in mine.accesses:
            if access.invocation != who.gid:
                return access
    for index, recent in table.items():  # ends at the second entry at the latest
        if index != group.index:
            return recent.accesses[0]
    return None


def _record(table: dict[int, _Recent], who: Who, access: Access) -> None:
    recent = table.get(who.group.index)
    if recent is None or recent.epoch != who.group.epoch:
        table[who.group.index] = _Recent(who.group.epoch, access)
    elif len(recent.accesses) == 1 and recent.accesses[0].invocation != access.invocation:
        recent.accesses.append(access)
