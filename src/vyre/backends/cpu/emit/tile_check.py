"""What is decided before a tile? Conditions that hold for all of it, and loads that are read once.

Where conditions around everything that a kernel does, like `if gid.x < n`, hold for a whole tile, the fast version of
the body has no branch and no masks. Only conditions outside of which nothing is stored count. A tile in which one of
them does not hold is run by the other version, and away from the edges that has nothing to do.

A caller's thread may change the memory that a kernel reads. A result may then be any number, but an index that was
found to be in bounds must be the one that is used. So a loaded value that decides where or whether memory is accessed
is frozen: the compiler may not read it again. And the fast version is given the values that the check before a tile has
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ....lower.kernel_ir import PURE, Body, If, Ins, Kernel, Local, Loop, TileCheck, bodies, operands, walk
from ....lower.passes.ranges import Ranges
from .uniformity import chosen


def held_conditions(kernel: Kernel) -> tuple[dict[int, bool], TileCheck | None]:
    """Conditions with the truth that they have in a tile that passes, and the kernel's check with what that takes."""
    ranges = Ranges(kernel)
    held: dict[int, bool] = {}
    needs: set[Ins] = set()
    guards = _guards(kernel.body)
    elsewhere = Counter(id(item.condition) for item in walk(kernel.body) if isinstance(item, If))
    elsewhere.subtract(id(condition) for condition, _, _ in guards)
    for condition, truth, encloses in guards:
        # a branch that stays may ask it too, and lanes may disagree there
        found = None if elsewhere[id(condition)] else ranges.proof(condition, truth)
        if found is not None:
            held[id(condition)] = truth
            needs.update(found)
        elif encloses:
            break  # this branch stays, with all that is inside
    if not needs:
        return held, kernel.check
    return held, ranges.check(needs | {kernel.check.ok} if kernel.check else needs)


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
    """Values without a use in the fast version, where these conditions are known."""
    needed: set[int] = set()
    found: set[int] = set()
    for item in reversed(list(walk(kernel.body))):
        if isinstance(item, Ins) and (item.op in PURE or item.op in ("get", "load")) and id(item) not in needed:
            found.add(id(item))
        elif isinstance(item, Ins) and chosen(item) is not item:
            needed.add(id(chosen(item)))
        elif not isinstance(item, If) or id(item.condition) not in held:
            needed.update(map(id, operands(item)))
    return frozenset(found)


def _guards(body: Body) -> list[tuple[Ins, bool, bool]]:
    """Conditions that must be true, or false, for the kernel to change memory, and whether they enclose the next."""
    found: list[tuple[Ins, bool, bool]] = []
    while True:
        active = []
        for item in body:
            if isinstance(item, If) and not item.orelse and [i.op for i in item.then] == ["return"]:
                found.append((item.condition, False, False))
            elif any(map(_changes, walk([item]))):
                active.append(item)
        only = active[0] if len(active) == 1 else None
        if not isinstance(only, If):
            return found
        then, orelse = ([i for i in walk(inner) if _changes(i)] for inner in bodies(only))
        if then and orelse:
            return found
        found.append((only.condition, bool(then), True))
        body = only.then if then else only.orelse


def _changes(item: object) -> bool:
    """Whether another lane or the host could see that this was done."""
    if not isinstance(item, Ins) or item.op not in ("store", "atomic", "trap", "return"):
        return False
    buffer = item.attr[1] if item.op == "atomic" else item.attr
    return item.op in ("trap", "return") or not buffer.shared


# ---- loads that steer ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Taken:
    """What versions of a kernel know of its loads: which ones steer, and which ones the check before has read.

    `names` are the loads of the check that become arguments, with the names of these; `given` the loads of the body
    that have such an argument for a value.
    """

    steering: frozenset[Ins]
    names: Mapping[Ins, str]
    given: Mapping[Ins, str]

    @classmethod
    def of(cls, kernel: Kernel, check: TileCheck | None) -> Taken:
        loads = {} if check is None else check.loads
        names = {load: f"%taken{k}" for k, load in enumerate(dict.fromkeys(loads.values()))}
        return cls(_steering(kernel, check), names, {load: names[found] for load, found in loads.items()})


def _steering(kernel: Kernel, check: TileCheck | None) -> frozenset[Ins]:
    """Loads from which indices, conditions and the bounds of loops are computed, those of the check included."""
    roots: list[Ins] = [] if check is None else list(check.body)
    sets: dict[Local, list[Ins]] = {}
    live: list[Local] = []
    for item in walk(kernel.body):
        if isinstance(item, If | Loop):
            roots.extend(operands(item))
            if isinstance(item, Loop) and item.live is not None:
                live.append(item.live)
        elif item.op in ("load", "store", "atomic"):
            roots.append(item.args[0])
        elif item.op == "set":
            sets.setdefault(item.attr, []).append(item.args[0])
    roots.extend(value for local in live for value in sets.get(local, ()))
    found: set[Ins] = set()
    while roots:
        value = roots.pop()
        if value not in found:
            found.add(value)
            roots.extend(value.args)
            if value.op == "get":
                roots.extend(sets.get(value.attr, ()))
    return frozenset(value for value in found if value.op == "load")
