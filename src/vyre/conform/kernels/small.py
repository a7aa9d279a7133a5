"""Random small values, arrays of a lane, and helpers with several results: how they are made, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from .exprs import Expressions
from .numbers import OPERATORS
from .tree import FIELDS, FLOATS, NARROW, E

OPS = ("make", "field", "replace", "same", "differ", "dot", "cross", "length", "normalize", "conj", "small")
"""Operations of small values; `small` is an operator between them, or of one and a number."""


def zero_of(t: str) -> Any:
    """What memory of a type begins with."""
    if t in FIELDS:
        return tuple(zero_of(kind) for _, kind in FIELDS[t])
    return False if t == "bool" else 0.0 if t in FLOATS else 0


# ---- making


class SmallExpressions(Expressions):
    """Makes expressions of small values, and of the arrays that a lane has for itself."""

    def smalls(self) -> list[str]:
        """The small values whose numbers are of the kernel's types."""
        return [t for t, fields in FIELDS.items() if all(kind in self.types for _, kind in fields)]

    def any(self, t: str, depth: int) -> E:
        return self.small_value(t, depth) if t in FIELDS else self.expr(t, depth)

    def arrays(self, t: str = "") -> list[tuple[str, int, str]]:
        """Name, elements (0: not known) and type of the arrays in scope."""
        found = []
        for name, kind, _ in (item for scope in self.scopes for item in scope):
            if kind[0] == "[":
                count, element = kind[1:].split("]", 1)
                if not t or element == t:
                    found.append((name, int(count), element))
        return found

    def element(self, name: str, count: int, t: str) -> E:
        return E("load", t, (self.place(count),), name)

    def place(self, count: int) -> E:
        """An index: a plain one lies inside."""
        roll = self.rng.random()
        at = super().leaf("u32")
        if roll < 0.4 or at.op in ("num", "turn"):
            return self.small(max(count, 1))
        return at if roll < 0.6 else E("%", "u32", (at, self.num_at(max(count, 4) + 2)))

    def leaf(self, t: str) -> E:
        arrays = self.arrays(t)
        if arrays and self.chance(0.3):
            return self.element(*self.rng.choice(arrays))
        if self.chance(0.15):
            held = [(n, s, f) for s in self.smalls() for n in self.variables(s) for f, kind in FIELDS[s] if kind == t]
            if held:
                name, of, field = self.rng.choice(held)
                return E("field", t, (E("var", of, data=name),), field)
        return super().leaf(t)

    def small_leaf(self, t: str) -> E:
        names, arrays = self.variables(t), self.arrays(t)
        if arrays and self.chance(0.3):
            return self.element(*self.rng.choice(arrays))
        if names and self.chance(0.7):
            return E("var", t, data=self.rng.choice(names[-4:]))
        return E("make", t, tuple(self.expr(kind, 1) for _, kind in FIELDS[t]))

    def small_value(self, t: str, depth: int) -> E:
        fields = FIELDS[t]
        if depth <= 0 or self.chance(0.15):
            return self.small_leaf(t)
        if self.chance(0.1):
            arms = self.small_value(t, depth - 1), self.small_value(t, depth - 1)
            return E("choose", t, (self.truth(depth - 1), *arms), self.pick("if", "select"))
        if self.chance(0.1):
            field, kind = self.rng.choice(fields)
            return E("replace", t, (self.small_value(t, depth - 1), self.expr(kind, depth - 1)), field)
        if t == "Pair":
            return E("make", t, tuple(self.expr(kind, depth - 1) for _, kind in fields))
        kind = fields[0][1]
        a = self.small_value(t, depth - 1)
        if self.chance(0.1):
            return E("neg", t, (a,))
        if t == "c64":
            if self.chance(0.2):
                return E("conj", t, (a,))
            b = self.small_value(t, depth - 1) if self.chance(0.6) else self.expr(kind, depth - 1)
            return E("small", t, (a, b) if b.t == t or self.chance(0.5) else (b, a), self.pick("+", "-", "*"))
        if t == "vec3" and self.chance(0.2):
            return E("cross", t, (a, self.small_value(t, depth - 1)))
        if kind == "f32" and self.chance(0.1):
            return E("normalize", t, (a,))
        sign = self.pick("+", "-", "*", *(("/",) if kind == "f32" else ("&", "^")))
        b = self.small_value(t, depth - 1) if self.chance(0.6) else self.expr(kind, depth - 1)
        return E("small", t, (a, b) if b.t == t or self.chance(0.6) else (b, a), sign)

    def expr(self, t: str, depth: int) -> E:
        if depth > 1 and t not in NARROW and self.chance(0.05) and (found := self._of_small(t, depth)) is not None:
            return found
        return super().expr(t, depth)

    def _of_small(self, t: str, depth: int) -> E | None:
        """A number made of small values."""
        smalls = self.smalls()
        if t == "bool" and smalls:
            of = self.rng.choice(smalls)
            pair = self.small_value(of, depth - 2), self.small_value(of, depth - 2)
            return E(self.pick("same", "differ"), t, pair)
        vectors = [s for s in smalls if s[:3] == "vec" and FIELDS[s][0][1] == t]
        if not vectors:
            return None
        of = self.rng.choice(vectors)
        if t == "f32" and self.chance(0.4):
            return E("length", t, (self.small_value(of, depth - 2),))
        return E("dot", t, (self.small_value(of, depth - 2), self.small_value(of, depth - 2)))


# ---- meaning


def meaning(e: E) -> Callable[..., Any]:
    """What an operation of small values computes of its operands."""
    t = e.args[0].t
    kind = FIELDS[t][0][1] if t in FIELDS else t
    do = OPERATORS.get(kind, {})
    match e.op:
        case "make":
            return lambda *values: values
        case "field":
            k = [name for name, _ in FIELDS[t]].index(e.data)
            return lambda v: v[k]
        case "replace":
            k = [name for name, _ in FIELDS[t]].index(e.data)
            return lambda v, x: (*v[:k], x, *v[k + 1 :])
        case "same":
            return lambda a, b: all(x == y for x, y in zip(a, b, strict=True))
        case "differ":
            return lambda a, b: not all(x == y for x, y in zip(a, b, strict=True))
        case "dot":
            return lambda a, b: _dot(do, a, b)
        case "length":
            return lambda v: do["sqrt"](_dot(do, v, v))
        case "normalize":
            return lambda v: tuple(do["/"](x, do["sqrt"](_dot(do, v, v))) for x in v)
        case "cross":
            return lambda a, b: tuple(
                do["-"](do["*"](a[i], b[j]), do["*"](a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))
            )
        case "conj":
            return lambda z: (z[0], do["neg"](z[1]))
        case "neg":
            return lambda v: tuple(do["neg"](x) for x in v)
    if e.t == "c64":
        return _complex(e)
    step = OPERATORS[FIELDS[e.t][0][1]][e.data]
    count, widths = len(FIELDS[e.t]), [a.t in FIELDS for a in e.args]

    def each(a: Any, b: Any) -> Any:
        left, right = (v if wide else (v,) * count for v, wide in zip((a, b), widths, strict=True))
        return tuple(step(x, y) for x, y in zip(left, right, strict=True))

    return each


def _dot(do: dict[str, Any], a: Any, b: Any) -> Any:
    return reduce(do["+"], (do["*"](x, y) for x, y in zip(a, b, strict=True)))


def _complex(e: E) -> Callable[..., Any]:
    do = OPERATORS["f32"]
    add, sub, mul = do["+"], do["-"], do["*"]
    left, right = (a.t == "c64" for a in e.args)
    if left and right:
        return {
            "+": lambda a, b: (add(a[0], b[0]), add(a[1], b[1])),
            "-": lambda a, b: (sub(a[0], b[0]), sub(a[1], b[1])),
            "*": lambda a, b: (sub(mul(a[0], b[0]), mul(a[1], b[1])), add(mul(a[0], b[1]), mul(a[1], b[0]))),
        }[e.data]
    if left:
        return {
            "+": lambda z, s: (add(z[0], s), z[1]),
            "-": lambda z, s: (sub(z[0], s), z[1]),
            "*": lambda z, s: (mul(z[0], s), mul(z[1], s)),
        }[e.data]
    return {
        "+": lambda s, z: (add(s, z[0]), z[1]),
        "-": lambda s, z: (sub(s, z[0]), do["neg"](z[1])),
        "*": lambda s, z: (mul(z[0], s), mul(z[1], s)),
    }[e.data]
