"""Flushes that the next step makes anyway: a machine that flushes reads subnormal operands of arithmetic as zero.

Only where an optimiser behind us cannot take that step away. Such tools know that x * 1 is x and say nothing about
subnormals, so the other operand must never turn out to be neutral: not on the path where a load is out of bounds and
gives zero, nor in the first turn of a loop. Where steps are `firm`, nobody takes them away.
"""

from __future__ import annotations

from ..evaluate import READS_AS_ZERO, bits_of, function_of, value_of
from ..form import FLOATS, Ins, Kernel, Local, bodies, walk

_COMPARE = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_STEPS = frozenset(("add", "sub", "mul", "div", "fma", "sqrt", "flush", "quiet", "neg", "abs"))
_MINUS_ZERO = frozenset((1 << 31,))
_ZEROS = frozenset((0, 1 << 31))
_ONES = frozenset((0x3F800000, 0xBF800000))
_DEPTH = 8


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
    firm = kernel.firm

    def is_made(user: Ins, x: Ins) -> bool:
        return (firm and user.op in READS_AS_ZERO) or _makes_it_anyway(user, x, constants)

    gone = {x: x.args[0] for x, by in users.items() if all(is_made(user, x) for user in by)}
    unvisited = [kernel.body] if gone else []
    while unvisited:
        body = unvisited.pop()
        body[:] = [item for item in body if item not in gone]
        for item in body:
            if not isinstance(item, Ins):
                unvisited.extend(bodies(item))
            elif not gone.keys().isdisjoint(item.args):
                item.args = tuple([gone.get(a, a) for a in item.args])


class _Constants:
    """Which constants a float could be found to be."""

    def __init__(self, kernel: Kernel) -> None:
        self.found: dict[Ins, int | None] = {}  # the only one, given that loads out of bounds are zero; None: none
        self.sets: dict[Local, list[Ins]] = {}
        self.asking: set[tuple[Ins, frozenset[int]]] = set()
        found = self.found
        for item in walk(kernel.body):
            if not isinstance(item, Ins):
                continue
            if item.op == "set":
                self.sets.setdefault(item.attr, []).append(item.args[0])
            elif item.dtype != "f32":
                continue
            elif item.op == "load":
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

    def may_be(self, x: Ins, values: frozenset[int], depth: int = 0) -> bool:
        """Whether x could be found to be one of these constants."""
        if x in self.found:
            return self.found[x] in values
        key = x, values
        if key in self.asking:
            return False  # a local is what it is set to elsewhere
        if depth > _DEPTH:
            return True
        self.asking.add(key)
        try:
            if x.op == "get":
                return any(self.may_be(v, values, depth + 1) for v in self.sets[x.attr])
            if x.op == "add" and values == _MINUS_ZERO:  # -0 is the sum of nothing but -0 and -0
                return all(self.may_be(a, values, depth + 1) for a in x.args)
            return True
        finally:
            self.asking.discard(key)


def _makes_it_anyway(user: Ins, x: Ins, constants: _Constants) -> bool:
    """Whether `user` reads a subnormal x as zero, and will still be there."""
    if user.op == "native":
        return True
    if user.op not in READS_AS_ZERO:
        return user.op == "convert" and user.dtype not in FLOATS  # too small to be anything but 0
    if user.op in _COMPARE or user.op == "sqrt":
        return True
    may_be = constants.may_be
    if user.op == "fma":
        a, b, c = user.args
        return not (
            (x is a and may_be(b, _ONES) and may_be(c, _ZEROS))
            or (x is b and may_be(a, _ONES) and may_be(c, _ZEROS))
            or (x is c and ((may_be(a, _ONES) and may_be(b, _ZEROS)) or (may_be(b, _ONES) and may_be(a, _ZEROS))))
        )
    a, b = user.args
    if a is b:
        return True
    other = b if x is a else a
    match user.op:
        case "mul":
            return not may_be(other, _ONES)
        case "div":
            return x is b or not may_be(b, _ONES)
        case "sub":
            return not may_be(other, _ZEROS if x is a else _MINUS_ZERO)
        case _:
            return not may_be(other, _MINUS_ZERO)
