"""Random small values, arrays of a lane, and helpers with several results: how they are made, and what they mean.

What a small value is here: a tuple of its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from . import inputs
from .exprs import Expressions
from .numbers import OPERATORS, from_bits, number, to_bits
from .tree import BITS, FIELDS, FLOATS, NARROW, E, Held, parts

OPS = ("make", "field", "item", "replace", "same", "differ", "dot", "cross", "length", "normalize", "conj", "small")
"""Operations of small values; `small` is an operator between them, or of one and a number."""


def zero_of(t: str) -> Any:
    """What memory of a type begins with."""
    if t in FIELDS:
        return tuple(zero_of(kind) for _, kind in FIELDS[t])
    return False if t == "bool" else 0.0 if t in FLOATS else 0


def value_of(x: Any, t: str) -> Any:
    """Plain numbers as a value of the type."""
    if t not in FIELDS:
        return number(x, t)
    numbers = (x.real, x.imag) if isinstance(x, complex) else x
    return tuple(value_of(item, kind) for item, (_, kind) in zip(numbers, FIELDS[t], strict=True))


def flat(value: Any) -> tuple[Any, ...]:
    """The numbers of a value, those of inner ones in their place."""
    return tuple(n for item in value for n in flat(item)) if isinstance(value, tuple) else (value,)


def loaded(data: bytes, t: str) -> Any:
    """What a load of an element with these bytes gives."""
    numbers = []
    for part in parts(t):
        size = BITS[part] // 8
        numbers.append(from_bits(int.from_bytes(data[:size], "little"), part))
        data = data[size:]
    return value_of_numbers(iter(numbers), t)


def value_of_numbers(numbers: Any, t: str) -> Any:
    """A value from its numbers in order."""
    return tuple(value_of_numbers(numbers, kind) for _, kind in FIELDS[t]) if t in FIELDS else next(numbers)


def stored(value: Any, t: str) -> bytes:
    """The bytes that a store leaves."""
    pairs = zip(flat(value), parts(t), strict=True)
    return b"".join(to_bits(x, part).to_bytes(BITS[part] // 8, "little") for x, part in pairs)


# ---- making


class SmallExpressions(Expressions):
    """Makes expressions of small values, and of the arrays that a lane has for itself."""

    def smalls(self) -> list[str]:
        """The small values whose numbers are of the kernel's types."""
        return [t for t in FIELDS if all(part in self.types for part in parts(t))]

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
        if self.chance(0.15) and (found := self.part(t)) is not None:
            return found
        return super().leaf(t)

    def part(self, t: str) -> E | None:
        """A field of a small value that has a name or lies in memory."""
        fitting = [(s, k) for s in self.smalls() for k, (_, kind) in enumerate(FIELDS[s]) if kind == t]
        if not fitting:
            return None
        of, k = self.rng.choice(fitting)
        whole = self.seen(of)
        if whole is None:
            return None
        if whole.op == "num":  # its numbers are known while compiling
            name, value = whole.data
            return E("num", t, data=(f"{name}.{FIELDS[of][k][0]}" if self.chance(0.8) else f"{name}[{k}]", value[k]))
        return E("field", t, (whole,), FIELDS[of][k][0]) if self.chance(0.8) else E("item", t, (whole,), k)

    def seen(self, t: str) -> E | None:
        """A small value that has a name or lies in memory."""
        found: list[Callable[[], E]] = []
        if names := self.variables(t):
            found.append(lambda: E("var", t, data=self.rng.choice(names[-4:])))
        if arrays := self.arrays(t):
            found.append(lambda: self.element(*self.rng.choice(arrays)))
        if buffers := [a for a in self.readable if a.t == t]:
            found.append(lambda: self.load(self.rng.choice(buffers)))
        if own := [o for o in self.own if o[1] == t]:
            name, _, places = self.rng.choice(own)
            found.append(lambda: E("load", t, (self.rng.choice(places),), name))
        if not found or self.chance(0.1):
            found.append(lambda: self.held(t))
        return self.rng.choice(found)()

    def held(self, t: str) -> E:
        """A constant from the surroundings."""
        name, value = f"C{len(self.captured)}", inputs.small(self.rng, t)
        self.captured[name] = Held(t, value)
        return E("num", t, data=(name, value))

    def small_leaf(self, t: str) -> E:
        if self.chance(0.75) and (found := self.seen(t)) is not None:
            return found
        if self.chance(0.2) and (inner := self.part(t)) is not None:
            return inner
        return E("make", t, tuple(self.any(kind, 1) for _, kind in FIELDS[t]))

    def small_value(self, t: str, depth: int) -> E:
        fields = FIELDS[t]
        if depth <= 0 or self.chance(0.15):
            return self.small_leaf(t)
        if self.chance(0.1):
            arms = self.small_value(t, depth - 1), self.small_value(t, depth - 1)
            return E("choose", t, (self.truth(depth - 1), *arms), self.pick("if", "select"))
        if self.chance(0.1):
            field, kind = self.rng.choice(fields)
            return E("replace", t, (self.small_value(t, depth - 1), self.any(kind, depth - 1)), field)
        if t in ("Pair", "Body"):
            return E("make", t, tuple(self.any(kind, depth - 1) for _, kind in fields))
        kind = fields[0][1]
        a = self.small_value(t, depth - 1)
        if self.chance(0.1):
            return E("neg", t, (a,))
        if t == "c64":
            if self.chance(0.2):
                return E("conj", t, (a,))
            b = self.small_value(t, depth - 1) if self.chance(0.6) else self.expr(kind, depth - 1)
            if self.chance(0.15) and a.op != "num":
                number = self.pick("2j", "1.5j", "0j", "1e3j", "(1.5 - 2j)", "(0.5j + 3)")
                b = E("num", t, data=(number, complex(number.replace(" ", "").replace("0.5j+3", "3+0.5j"))))
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
        case "item":
            return lambda v: v[e.data]
        case "replace":
            k = [name for name, _ in FIELDS[t]].index(e.data)
            return lambda v, x: (*v[:k], x, *v[k + 1 :])
        case "same":
            return _same
        case "differ":
            return lambda a, b: not _same(a, b)
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


def _same(a: Any, b: Any) -> bool:
    return all(x == y for x, y in zip(flat(a), flat(b), strict=True))  # a tuple takes a NaN for itself


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
