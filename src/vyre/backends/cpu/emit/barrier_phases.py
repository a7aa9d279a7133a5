"""Stretches of a body between barriers, and what lives across them.

Barriers and subgroup operations are met by all lanes of a workgroup. A body that has them is run as stretches: each is
a loop over the lanes, the control flow around the stretches runs once for all of them. Values of an
earlier stretch that a later one needs are computed again where that is cheap (so that an address stays an address) and
else kept in memory, one element for each lane. Values that all lanes share stay in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....foundation.integers import round_up
from ....lower.kernel_ir import PURE, Body, If, Ins, Kernel, Local, Loop, bodies, operands, walk
from .instructions import TYPES

PAD = 64
"""Lanes of a kept value are padded to a multiple of this, so that every vector is whole."""
_CHEAP = 12
_COST = {"div": 8, "rem": 8, "sqrt": 8, "round_f16": 8, "const": 0, "len": 0, "wid": 0, "gid": 1, "lid": 1}
_BYTES = {"i1": 1, "i32": 4, "float": 4, "i64": 8, "double": 8}
_AROUND = -1
"""The stretch of conditions that are evaluated once for the workgroup."""


class Phases:
    """How a kernel is cut. `split`: it has barriers, so that there is more than one stretch. `whole`: blocks of lanes
    are whole subgroups, which exchange values where they are, so that no cut is needed."""

    def __init__(self, kernel: Kernel, whole: bool = False) -> None:
        self.kernel, self.whole = kernel, whole
        cutting = ("barrier",) if whole else ("barrier", "subgroup")
        self.split = any(i.op in cutting for i in walk(kernel.body))
        self.cuts: set[int] = set()
        """Branches and loops that run once for the workgroup."""
        self.exported: set[int] = set()
        """Values that all lanes share and that a later stretch uses."""
        self.shared_locals: set[Local] = set()
        """Locals that all lanes share and that several stretches use."""
        self.spilled: dict[int, int] = {}
        """Values that differ between lanes and that a later stretch uses, with the offset of their memory."""
        self.memory: dict[Local, int] = {}
        """Locals that differ between lanes and that several stretches use."""
        self.shared: dict[str, int] = {}
        """Offsets of the workgroup's own buffers."""
        self.left: int | None = None
        """Offset of one byte for each lane that says whether it goes on, where lanes may return between stretches."""
        self.nbytes = 0
        for buffer in kernel.buffers:
            if buffer.shared:
                self.shared[buffer.name] = self._take(buffer.count * (buffer.element.size or 0))
        self.shared_bytes = self.nbytes
        if self.split:
            self._find_cuts(kernel.body, True)
            self._find_crossings()

    def pieces(self, body: Body) -> Iterator[Body | Ins | If | Loop]:
        """Stretches of a body as lists, and what stands between them."""
        if not self.split:
            yield body
            return
        stretch: Body = []
        for item in body:
            if (isinstance(item, Ins) and item.op in ("barrier", "subgroup", "return")) or id(item) in self.cuts:
                if stretch:
                    yield stretch
                    stretch = []
                yield item
            else:
                stretch.append(item)
        if stretch:
            yield stretch

    def _take(self, nbytes: int) -> int:
        at = self.nbytes
        self.nbytes += round_up(nbytes, 64)
        return at

    def _lanes(self, dtype: str) -> int:
        return self._take(round_up(self.kernel.lanes, PAD) * _BYTES[TYPES[dtype]])

    def _find_cuts(self, body: Body, together: bool) -> bool:
        """Mark what holds a barrier, or a return of all lanes; whether this body does."""
        found = False
        for item in body:
            if isinstance(item, Ins):
                found |= item.op in ("barrier", "subgroup") or (item.op == "return" and together)
                continue
            inside = [self._find_cuts(inner, together and item.uniform) for inner in bodies(item)]
            if any(inside):
                self.cuts.add(id(item))
                found = True
        return found

    def _find_crossings(self) -> None:
        made: dict[int, int] = {}
        touched: dict[Local, set[int]] = {}
        crossing: dict[int, Ins] = {}
        last = 0
        leaves = False

        def use(value: Ins, stretch: int) -> None:
            if made[id(value)] != stretch and id(value) not in crossing:
                crossing[id(value)] = value
                if not value.uniform and self._again(value) <= _CHEAP:
                    for arg in value.args:
                        use(arg, _AROUND)

        def note(item: Ins | If | Loop, stretch: int) -> None:
            for value in operands(item):
                use(value, stretch)
            if isinstance(item, Ins):
                made[id(item)] = stretch
                if item.op in ("get", "set"):
                    touched.setdefault(item.attr, set()).add(stretch)
            elif isinstance(item, Loop) and item.live is not None:
                touched.setdefault(item.live, set()).add(stretch)

        def group(body: Body) -> None:
            nonlocal last, leaves
            for piece in self.pieces(body):
                if isinstance(piece, list):
                    last += 1
                    for item in walk(piece):
                        note(item, last)
                        leaves |= item.op == "return"
                elif isinstance(piece, Ins):
                    last += 1
                    note(piece, last)
                else:
                    note(piece, _AROUND)
                    for inner in bodies(piece):
                        group(inner)

        group(self.kernel.body)
        for value in crossing.values():
            if value.uniform:
                self.exported.add(id(value))
            elif self._again(value) > _CHEAP:
                self.spilled[id(value)] = self._lanes(value.dtype)
        for item in walk(self.kernel.body):
            if item.op == "subgroup" and id(item) not in self.spilled:
                self.spilled[id(item)] = self._lanes(item.dtype)  # type: ignore[union-attr]
        for local, where in touched.items():
            if len(where) > 1:
                if local.uniform:
                    self.shared_locals.add(local)
                else:
                    self.memory[local] = self._lanes(local.dtype)
        if leaves:
            self.left = self._lanes("bool")

    def _again(self, value: Ins) -> int:
        """What it costs to compute a value again: a number, or more than cheap where that cannot be done."""
        cost, unvisited = 0, [value]
        while unvisited and cost <= _CHEAP:
            ins = unvisited.pop()
            if ins.uniform:
                continue
            cost += _COST.get(ins.op, 1) if ins.op in PURE and ins.op != "index" else _CHEAP + 1
            unvisited.extend(ins.args)
        return cost
