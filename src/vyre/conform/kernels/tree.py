"""The tree of a random kernel: what the source is printed from and what the model evaluates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

INTS = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64")
NARROW = ("u8", "i8", "u16", "i16")
WORDS = ("u32", "i32")
WIDE = ("u32", "i32", "u64", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
TYPES = (*INTS, *FLOATS, "bool")
BITS = {"u8": 8, "i8": 8, "u16": 16, "i16": 16, "u32": 32, "i32": 32, "u64": 64, "i64": 64, "bool": 32} | {
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
}  # fmt: skip
"""Width of an element in memory."""
NO_WAY = frozenset(
    [("f64", "f16"), ("f64", "bf16"), ("u32", "bf16"), ("i32", "bf16"), ("u64", "bf16"), ("i64", "bf16")]
)
"""Conversions that the language refuses, because they would round twice."""
FIELDS: dict[str, tuple[tuple[str, str], ...]] = {
    "vec2": (("x", "f32"), ("y", "f32")),
    "vec3": (("x", "f32"), ("y", "f32"), ("z", "f32")),
    "vec4": (("x", "f32"), ("y", "f32"), ("z", "f32"), ("w", "f32")),
    "vec3[i32]": (("x", "i32"), ("y", "i32"), ("z", "i32")),
    "vec2[u32]": (("x", "u32"), ("y", "u32")),
    "c64": (("real", "f32"), ("imag", "f32")),
    "Pair": (("k", "u32"), ("v", "f32")),
    "Body": (("at", "vec3"), ("mass", "f32")),
}
"""Small values and their fields; `Pair` and `Body` are NamedTuples of the kernel's module."""
FUNCTIONS = (
    "exp", "exp2", "exp10", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sinpi", "cospi", "tanpi", "cbrt", "erf", "erfc",
    "frexp_mantissa",
)  # fmt: skip
"""Of one f32. The last is exact, and a function like the others to those who write kernels."""
PAIRED = ("pow", "**", "atan2", "hypot", "fmod", "%", "remainder", "nextafter")
"""Of two."""


def parts(t: str) -> tuple[str, ...]:
    """The types of the numbers that a value of this type has."""
    return tuple(p for _, kind in FIELDS[t] for p in parts(kind)) if t in FIELDS else (t,)


def element_bytes(t: str) -> int:
    """How much of a buffer an element takes."""
    return sum(BITS[p] // 8 for p in parts(t))


def limits(t: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = BITS[t]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "i" else (0, (1 << bits) - 1)


@dataclass(frozen=True)
class E:
    """An expression of type `t`. What `data` holds is up to `op`: a name, a number with its text, a list of signs."""

    op: str
    t: str
    args: tuple[E, ...] = ()
    data: Any = None


@dataclass(frozen=True)
class S:
    """A statement: names and the like in `data`, its expressions in `args`, its blocks in `bodies`."""

    op: str
    data: Any = None
    args: tuple[E, ...] = ()
    bodies: tuple[tuple[S, ...], ...] = ()


@dataclass(frozen=True)
class Held:
    """A small value among the captured ones."""

    t: str
    value: tuple[Any, ...]


@dataclass(frozen=True)
class Helper:
    """A device function. A parameter of which the type begins with `*` is a buffer, with `&` an array that it may
    write; `noted` ones are annotated. It gives back `more` values behind the first."""

    name: str
    params: tuple[tuple[str, str], ...]
    returns: str
    body: tuple[S, ...]
    noted: bool
    more: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether a call is an expression without effects: it may stand where Python would not always run it."""
        writes = any(t[0] == "&" for _, t in self.params)
        return not self.more and not writes and not any(s.op == "assert" for s in statements(self.body))


@dataclass(frozen=True)
class Array:
    """A buffer parameter. `static`: the annotation has the length; `apart`: the host array is a view with gaps;
    `given`: the caller brings the array of an output; `ranked`: the annotation has the rank, and an element several
    indices."""

    name: str
    role: str
    t: str
    shape: tuple[int, ...]
    data: bytes = b""
    static: bool = False
    apart: bool = False
    given: bool = False
    ranked: bool = False

    @property
    def size(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n


@dataclass(frozen=True)
class Tree:
    """A kernel and one call of it. `call` is how the grid is said: ("grid", ...) or ("domain", ...); `grid` is
    what it is, in workgroups."""

    seed: int
    arrays: tuple[Array, ...]
    scalars: tuple[tuple[str, str, Any], ...]
    consts: tuple[tuple[str, Any], ...]
    captured: tuple[tuple[str, Any], ...]
    helpers: tuple[Helper, ...]
    workgroup: tuple[int, ...]
    grid: tuple[int, int, int]
    call: tuple[Any, ...]
    sized: bool
    later: bool
    left_out: frozenset[str] = frozenset()
    """Numbers that have their value as a default, and that the call does not give."""
    generic: str = ""
    """A type that the source calls T."""
    body: tuple[S, ...] = field(default=())

    def array(self, name: str) -> Array:
        return next(a for a in self.arrays if a.name == name)

    @property
    def results(self) -> tuple[Array, ...]:
        """What a call returns, in order."""
        return tuple(a for a in self.arrays if a.role in ("out", "inout"))


def expressions(body: tuple[S, ...]) -> Iterator[E]:
    """All expressions of statements, inner ones too."""
    for s in body:
        for e in s.args:
            yield from inside(e)
        for block in s.bodies:
            yield from expressions(block)


def inside(e: E) -> Iterator[E]:
    yield e
    for arg in e.args:
        yield from inside(arg)


def statements(body: tuple[S, ...]) -> Iterator[S]:
    for s in body:
        yield s
        for block in s.bodies:
            yield from statements(block)
