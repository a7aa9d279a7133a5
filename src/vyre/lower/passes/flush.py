"""Flushes that the next step makes anyway: a machine that flushes reads subnormal operands of arithmetic as zero.

Only where no compiler behind us can take that step away. Compilers know that x * 1 is x, that comparing bits with zero
is an integer test, that the root of x is zero where x is; and say nothing about subnormals. So a flush goes only where
an element of memory, of which a compiler knows nothing, is added, multiplied or divided, and the other operand never
turns out to be neutral: not on the path where a load is out of bounds and gives zero, nor in the first turn of a loop.
Everything else stays: before comparisons and roots, and after a `bitcast`, of whose bits a compiler may know a lot.

Where arithmetic is `firm`, no compiler takes it away. Comparisons are never firm.

Shared memory that only ever gets numbers that were flushed gives no others: loads from it need no flush.
"""

from __future__ import annotations

from ..instructions import F32, function_of, named
from ..kernel_ir import FLOATS, Buffer, Ins, Kernel, Local, bodies, walk
from ..registers import bits_of, value_of

_ARITHMETIC = named(F32.STEP)
_FIRM = named(F32.STEP, F32.ROOT, F32.NATIVE)
_STEPS = named(F32.STEP, F32.ROOT) | {"flush", "quiet", "neg", "abs"}
_FLUSHING = named(F32.STEP, F32.ROOT)
_KEEPING = frozenset(("quiet", "neg", "abs", "select"))
_ZEROS = frozenset((0, 1 << 31))
_ONES = frozenset((0x3F800000, 0xBF800000))


def flush(kernel: Kernel) -> None:
    """Drop the flushes that every user makes unnecessary."""
    if kernel.soft_flush:
        return
    users: dict[Ins, list[Ins]] = {}
    for item in walk(kernel.body):
        if isinstance(item, Ins):
            for a in item.args:
                if a.op == "flush":
                    users.setdefault(a, []).append(item)
    if not users:
        return
    constants = _Constants(kernel)

    def is_made(user: Ins, x: Ins) -> bool:
        if user.op == "convert" and user.dtype not in FLOATS:
            return True  # too small to be anything but 0
        if kernel.firm:
            return user.op in _FIRM
        return user.op in _ARITHMETIC and _is_element(x.args[0]) and not _may_vanish(user, x, constants)

    flushed = _flushed_memory(kernel)
    gone = {
        x: x.args[0]
        for x, by in users.items()
        if (x.args[0].op == "load" and x.args[0].attr in flushed) or all(is_made(user, x) for user in by)
    }
    unvisited = [kernel.body] if gone else []
    while unvisited:
        body = unvisited.pop()
        body[:] = [item for item in body if item not in gone]
        for item in body:
            if not isinstance(item, Ins):
                unvisited.extend(bodies(item))
            elif not gone.keys().isdisjoint(item.args):
                item.args = tuple([gone.get(a, a) for a in item.args])


def _flushed_memory(kernel: Kernel) -> set[Buffer]:
    """Shared buffers of f32 in which there never is a subnormal."""
    sets: dict[Local, list[Ins]] = {}
    stores: dict[Buffer, list[Ins]] = {b: [] for b in kernel.buffers if b.shared and b.element.name == "f32"}
    for item in walk(kernel.body) if stores else ():
        if isinstance(item, Ins) and item.op == "set":
            sets.setdefault(item.attr, []).append(item.args[0])
        elif isinstance(item, Ins) and item.op == "store" and item.attr in stores:
            stores[item.attr].append(item.args[1])

    def may_be_subnormal(values: list[Ins]) -> bool:
        unvisited, seen = list(values), set[Ins]()
        while unvisited:
            x = unvisited.pop()
            if x in seen or x.dtype != "f32" or x.op == "flush" or x.op in _FLUSHING:
                continue
            seen.add(x)
            if x.op == "get":
                unvisited += sets.get(x.attr, ())
            elif x.op == "const":
                if 0 < x.attr & 0x7FFFFFFF < 0x00800000:
                    return True
            elif x.op in _KEEPING:
                unvisited += x.args
            else:
                return True
        return False

    return {buffer for buffer, values in stores.items() if not may_be_subnormal(values)}


def _is_element(x: Ins) -> bool:
    """Whether x is an f32 as it lies in memory: other elements are made into numbers by integer steps."""
    return x.op == "load" and x.attr.element.name == "f32"


class _Constants:
    """Which constants a float could be found to be."""

    def __init__(self, kernel: Kernel) -> None:
        self.found: dict[Ins, int | None] = {}  # the only one, given that loads out of bounds are zero; None: none
        self.sets: dict[Local, list[Ins]] = {}
        self.floats: list[Ins] = []
        self.answers: dict[frozenset[int] | None, set[Ins]] = {}
        found = self.found
        for item in walk(kernel.body):
            if not isinstance(item, Ins):
                continue
            if item.op == "set":
                self.sets.setdefault(item.attr, []).append(item.args[0])
            if item.dtype != "f32":
                continue
            self.floats.append(item)
            if _is_element(item):
                if not (item.attr.writable or item.attr.shared):  # else the compiler may know what was stored there
                    found[item] = 0 if item.guarded else None
            elif item.op == "const":
                found[item] = item.attr
            elif item.op in _STEPS:
                operands = [found.get(a, -1) for a in item.args]
                if None in operands:
                    found[item] = None
                elif -1 not in operands:
                    values = [value_of("f32", bits) for bits in operands if bits is not None]
                    found[item] = bits_of("f32", function_of(item, False)(*values))

    def may_be(self, x: Ins, values: frozenset[int] | None = None) -> bool:
        """Whether x could be found to be one of these constants; without them, any."""
        if values not in self.answers:
            self.answers[values] = self._all_that_may_be(values)
        return x in self.answers[values]

    def _all_that_may_be(self, values: frozenset[int] | None) -> set[Ins]:
        """Every float that could be one of them: a local could if a value set to it could, cycles of locals apart."""
        unvisited: list[Ins] = []
        gets: dict[Local, list[Ins]] = {}
        for x in self.floats:
            if x in self.found:
                known = self.found[x]
                if known is not None if values is None else known in values:
                    unvisited.append(x)
            elif x.op == "get":
                gets.setdefault(x.attr, []).append(x)
            else:
                unvisited.append(x)
        locals_set: dict[Ins, list[Local]] = {}
        for local, assigned in self.sets.items():
            for x in assigned:
                locals_set.setdefault(x, []).append(local)
        found: set[Ins] = set()
        while unvisited:
            x = unvisited.pop()
            if x not in found:
                found.add(x)
                for local in locals_set.get(x, ()):
                    unvisited.extend(gets.pop(local, ()))
        return found


def _may_vanish(user: Ins, x: Ins, constants: _Constants) -> bool:
    """Whether a compiler could find that a step gives its operand x, or -x, or does so for one that is not zero."""
    may_be = constants.may_be
    if user.op == "fma":
        a, b, c = user.args
        return (
            (x is a and may_be(b, _ONES) and may_be(c, _ZEROS))
            or (x is b and may_be(a, _ONES) and may_be(c, _ZEROS))
            or (x is c and may_be(a) and may_be(b))
        )
    a, b = user.args
    if a is b or (user.op == "div" and x is b):
        return False
    return may_be(b if x is a else a, _ZEROS if user.op in ("add", "sub") else _ONES)
