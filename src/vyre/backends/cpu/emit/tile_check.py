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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ....lower.kernel_ir import (
    PURE,
    Body,
    Bound,
    CheckCode,
    If,
    Ins,
    Kernel,
    Local,
    Loop,
    Statement,
    TileCheck,
    bodies,
    needed_by,
    operands,
    walk,
)
from ....lower.passes.ranges import Ranges
from .uniformity import WIDE, Picks, Variance, chosen

_MOST_ASKED = 24
"""Conditions that a block is asked for. More take longer than they save."""


@dataclass(frozen=True, slots=True)
class Block:
    """What is asked of a block of lanes before it runs. For one that passes the conditions of `held` hold, with their
    truth, for all its lanes, and the values of `picks` are those operands.

    It passes if it begins at `least` or beyond, ends at `most` or before, and `ok` holds; `code` gives all three.
    `along`: `ok` is the same for every block of a row.
    """

    code: Sequence[Ins]
    ok: Ins
    least: Ins
    most: Ins
    along: bool
    held: Mapping[int, bool]
    picks: Picks


@dataclass(frozen=True, slots=True)
class Checks:
    """`tile`: what is asked before a tile, and the conditions `held` (by identity) with their truth in one that passes.
    `block`: what is asked before a block of lanes in it."""

    tile: TileCheck | None
    held: Mapping[int, bool]
    block: Block | None


def plan_checks(kernel: Kernel, blocks: Callable[[Mapping[int, bool]], Variance] | None = None) -> Checks:
    """What a kernel is asked before a tile and, where its lanes may be computed in `blocks`, before each of these.

    Along one axis the end of what a kernel works on is met in one tile. Along several each row has an end: so there no
    tile is asked for what its blocks can be asked for.
    """
    ranges = Ranges(kernel)
    block = None
    held: dict[int, bool] = {}
    needs: set[Ins] = set()
    if blocks is not None and _has_rows(kernel):
        block = _block(kernel, ranges, blocks(held), held)
    if block is None:
        held, needs = _held(kernel, ranges)
        block = None if blocks is None else _block(kernel, ranges, blocks(held), held)
    read = [] if block is None else [step for step in block.code if step.op == "load"]
    if not needs and not read:
        return Checks(kernel.check, held, block)
    return Checks(ranges.check(needs | {kernel.check.ok} if kernel.check else needs, read), held, block)


def _has_rows(kernel: Kernel) -> bool:
    return any(isinstance(i, Ins) and i.op in ("gid", "wid", "lid") and i.attr > 0 for i in walk(kernel.body))


def _held(kernel: Kernel, ranges: Ranges) -> tuple[dict[int, bool], set[Ins]]:
    """Conditions with the truth that they have in a tile that meets the others."""
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
    return held, needs


# ---- blocks of lanes -------------------------------------------------------------------------------------------------


def _block(kernel: Kernel, ranges: Ranges, variance: Variance, held: Mapping[int, bool]) -> Block | None:
    """Conditions on which lanes of a block may disagree, and steps that bend a row of indices, such as the clamp of a
    border: most blocks lie so that they do neither."""
    known, picks = dict(held), dict[int, Ins]()
    variance.picks = picks  # what is bent twice is a row once it is known not to be bent the first time
    needs: dict[Ins, None] = {}
    indices = _indices(kernel.body)
    unvisited: list[Statement] = list(reversed(kernel.body))
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, If):
            if variance.parting(item):
                for truth in _likely(item):
                    found = ranges.proof(item.condition, truth)
                    if found is not None and known.setdefault(id(item.condition), truth) is truth:
                        needs.update(dict.fromkeys(found))
                        break
            one = known.get(id(item.condition))
            for body in bodies(item)[::-1] if one is None else (bodies(item)[not one],):
                unvisited.extend(reversed(body))
        elif isinstance(item, Loop):
            unvisited.extend(reversed(item.body))
        elif item in indices and variance.level(item) == WIDE:
            for operand, found in _bends(item, ranges, variance):
                if found is not None:
                    picks[id(item)] = operand
                    needs.update(dict.fromkeys(found))
                    break
    if (not picks and len(known) == len(held)) or len(needs) > _MOST_ASKED:
        return None
    return _solved(ranges.code, list(needs), known, picks)


def _solved(code: CheckCode, needs: list[Ins], held: Mapping[int, bool], picks: Picks) -> Block:
    """The test of a block that meets these conditions: as far as they can be solved for where it begins and ends, all
    of a row's blocks are tested at once."""
    least: Bound = 0
    most: Bound = 1 << 32
    moving: set[Ins] = set()  # steps that depend on where along x the block is
    for step in code.body:
        if (step.op in ("gid_lo", "gid_hi") and step.attr == 0) or not moving.isdisjoint(step.args):
            moving.add(step)

    def place(v: Ins) -> tuple[Ins | None, Bound] | None:
        """One end of the block, or none, and what is added to it."""
        if v not in moving:
            number = v.op == "const" and v.attr < 1 << 63
            return None, v.attr if number else v if v.dtype == "i64" else code.emit("convert", "i64", v)
        if v.op in ("gid_lo", "gid_hi"):
            return v, 0
        if v.op == "convert" and v.args[0].dtype in ("u64", "i64"):
            return place(v.args[0])
        if v.op == "add" or (v.op == "sub" and v.dtype == "i64"):
            a, b = map(place, v.args)
            if a is not None and b is not None and (b[0] is None or (a[0] is None and v.op == "add")):
                return a[0] or b[0], code.with_sign(v.op, a[1], b[1])
        return None

    fixed, rest = [need for need in needs if need not in moving], list[Ins]()
    unvisited = [need for need in reversed(needs) if need in moving]
    while unvisited:
        need = unvisited.pop()
        low, high = need.args
        x, y = (place(low), place(high)) if need.op in ("lt", "le") else (None, None)
        more = int(need.op == "lt")
        if need.op in ("lt", "le") and low.op == "max":
            unvisited.extend(code.emit(need.op, "bool", a, high) for a in low.args)
        elif need.op in ("lt", "le") and high.op == "min":
            unvisited.extend(code.emit(need.op, "bool", low, b) for b in high.args)
        elif x is None or y is None:
            rest.append(need)
        elif x[0] is y[0] is None:
            fixed.append(need)
        elif y[0] is None and x[0] is not None and x[0].op == "gid_hi":
            most = code.with_sign("min", most, code.with_sign("sub", code.with_sign("sub", y[1], x[1]), more))
        elif x[0] is None and y[0] is not None and y[0].op == "gid_lo":
            least = code.with_sign("max", least, code.with_sign("add", code.with_sign("sub", x[1], y[1]), more))
        else:
            rest.append(need)
    ok = code.all_of(fixed + rest)
    ends = code.value(least, "i64"), code.value(most, "i64")
    steps = needed_by(code.body, [ok, *ends])
    return Block([step for step in code.body if step in steps], ok, *ends, not rest, held, picks)


def _likely(item: If) -> tuple[bool, bool]:
    """The truth of a condition in most blocks, and the other one: it leads to where something is done, and a border is
    what one of several conditions is true for."""
    condition, truth = item.condition, True
    while condition.op == "not":
        condition, truth = condition.args[0], not truth
    then, orelse = (any(_changes(i) and i.op != "return" for i in walk(body)) for body in bodies(item))
    if then == orelse:
        then = (condition.op not in ("or", "eq")) == truth
    return then, not then


def _bends(ins: Ins, ranges: Ranges, variance: Variance) -> Iterator[tuple[Ins, list[Ins] | None]]:
    """Rows that a value may be for all lanes of a block, and what it takes."""
    if ins.dtype not in ("u32", "i32"):
        return
    if ins.op == "select" and not ins.guarded:
        for truth, operand in zip((True, False), ins.args[1:], strict=True):
            if variance.is_row(operand):
                yield operand, ranges.proof(ins.args[0], truth)
    elif ins.op in ("min", "max") or (ins.op == "rem" and ins.dtype == "u32"):
        for a, b in (ins.args, ins.args[::-1] if ins.op != "rem" else ins.args):
            if variance.level(b) != WIDE and variance.is_row(a):
                yield a, ranges.ordered("lt" if ins.op == "rem" else "le", *((b, a) if ins.op == "max" else (a, b)))


def _indices(body: Body) -> set[Ins]:
    """What indices are computed from."""
    items = [i for i in walk(body) if isinstance(i, Ins)]
    found = {i.args[0] for i in items if i.op in ("load", "store")}
    return needed_by([i for i in items if i.op in PURE], found)


# ---- the body where something is known -------------------------------------------------------------------------------


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


def unused(kernel: Kernel, held: Mapping[int, bool], picks: Picks) -> frozenset[int]:
    """Values without a use in the fast version, where these conditions and values are known."""
    needed: set[int] = set()
    found: set[int] = set()
    for item in reversed(list(walk(kernel.body))):
        if isinstance(item, Ins) and (item.op in PURE or item.op in ("get", "load")) and id(item) not in needed:
            found.add(id(item))
        elif isinstance(item, Ins) and (one := chosen(item, True, picks)) is not item:
            needed.add(id(one))
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

    `names` are the loads of the check that become arguments, with the names of these; `given` the loads, of the body
    and of checks, that have such an argument for a value.
    """

    steering: frozenset[Ins]
    names: Mapping[Ins, str]
    given: Mapping[Ins, str]

    @classmethod
    def of(cls, kernel: Kernel, check: TileCheck | None) -> Taken:
        loads = {} if check is None else check.loads
        names = {load: f"%taken{k}" for k, load in enumerate(dict.fromkeys(loads.values()))}
        given = names | {load: names[found] for load, found in loads.items()}  # the code before a block asks for both
        return cls(_steering(kernel, check), names, given)


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
