"""Conditions around everything a kernel does, like `if gid.x < n`. Where they hold for a whole tile, the fast version
of the body has no branch and no masks.

Only conditions outside of which nothing is stored count. A tile in which one of them does not hold is run by the other
version, and away from the edges that has nothing to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ....lower.kernel_ir import PURE, Body, If, Ins, Kernel, TileCheck, bodies, operands, walk
from ....lower.passes.ranges import MAX, Ranges

_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_FUEL = 200


def held_conditions(kernel: Kernel) -> tuple[dict[int, bool], TileCheck | None]:
    """Conditions with the truth that they have in a tile that passes, and the kernel's check with what that takes."""
    ranges = Ranges(kernel)
    held: dict[int, bool] = {}
    needs: dict[Ins, None] = {}
    guards = _guards(kernel.body)
    elsewhere = Counter(id(item.condition) for item in walk(kernel.body) if isinstance(item, If))
    elsewhere.subtract(id(condition) for condition, _ in guards)
    for condition, truth in guards:
        if elsewhere[id(condition)]:
            continue  # a branch that stays asks it too, and lanes may disagree there
        found = _proof(ranges, condition, truth)
        if found is not None:
            held[id(condition)] = truth
            needs.update(dict.fromkeys(found))
    if not needs:
        return held, kernel.check
    return held, ranges.check((*needs, kernel.check.ok) if kernel.check else needs)


def without(body: Body, held: Mapping[int, bool]) -> Body:
    """The body as it is when these conditions are known."""
    found: Body = []
    for item in body:
        truth = held.get(id(item.condition)) if isinstance(item, If) else None
        if isinstance(item, If) and truth is not None:
            found += without(item.then if truth else item.orelse, held)
        else:
            found.append(item)
    return found


def unused(kernel: Kernel, held: Mapping[int, bool]) -> frozenset[int]:
    """Values that nobody needs once these conditions are known."""
    needed: set[int] = set()
    found: set[int] = set()
    for item in reversed(list(walk(kernel.body))):
        if isinstance(item, Ins) and (item.op in PURE or item.op in ("get", "load")) and id(item) not in needed:
            found.add(id(item))
        elif not isinstance(item, If) or id(item.condition) not in held:
            needed.update(map(id, operands(item)))
    return frozenset(found)


def _guards(body: Body) -> list[tuple[Ins, bool]]:
    """Conditions that must be true, or false, for the kernel to change memory."""
    found: list[tuple[Ins, bool]] = []
    while True:
        active = []
        for item in body:
            if isinstance(item, If) and not item.orelse and [i.op for i in item.then] == ["return"]:
                found.append((item.condition, False))
            elif any(map(_changes, walk([item]))):
                active.append(item)
        only = active[0] if len(active) == 1 else None
        if not isinstance(only, If):
            return found
        then, orelse = ([i for i in walk(inner) if _changes(i)] for inner in bodies(only))
        if then and orelse:
            return found
        found.append((only.condition, bool(then)))
        body = only.then if then else only.orelse


def _changes(item: object) -> bool:
    """Whether somebody else could see that this was done."""
    if not isinstance(item, Ins) or item.op not in ("store", "atomic", "trap", "return"):
        return False
    buffer = item.attr[1] if item.op == "atomic" else item.attr
    return item.op in ("trap", "return") or not buffer.shared


def _proof(ranges: Ranges, condition: Ins, truth: bool) -> list[Ins] | None:
    """What a tile must meet so that the condition has this truth for every lane; None where no one can say."""
    needs: list[Ins] = []
    unvisited = [(condition, truth)]
    while unvisited:
        c, truth = unvisited.pop()
        if c.op == "not":
            unvisited.append((c.args[0], not truth))
        elif c.dtype == "bool" and c.op == ("and" if truth else "or"):
            unvisited += [(c.args[0], truth), (c.args[1], truth)]
        elif c.op in _OPPOSITE and c.args[0].dtype == "u32":
            op = c.op if truth else _OPPOSITE[c.op]
            a, b = c.args if op in ("lt", "le") else c.args[::-1]
            ranges.fuel = _FUEL
            low, high = ranges.settled(ranges.of(a)), ranges.settled(ranges.of(b))
            if low.hi == MAX or high.lo == 0:
                return None
            fits = ranges.code.compare({"gt": "lt", "ge": "le"}.get(op, op), low.hi, high.lo)
            if fits is False:
                return None
            needs += [*low.needs, *high.needs]
            if isinstance(fits, Ins):
                needs.append(fits)
        else:
            return None
    return needs
