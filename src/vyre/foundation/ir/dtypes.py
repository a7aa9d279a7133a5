"""Element and value types: the one table of names, tags, widths and casts.

A type that is *late* decodes, re-encodes and is refused at validation. A type that is *dropped* is refused by name
wherever it turns up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...errors import IRValueError
from ..integers import ceil_div
from .value import Value

if TYPE_CHECKING:
    from .nodes import Expr


class DataType(Value):
    """One element type. `bits` is the packed width; the parameters of parametric types are in `args`."""

    name: str
    tag: int
    bits: int | None
    args: tuple[Any, ...] = ()

    @property
    def size(self) -> int | None:
        """Natural stride in bytes; packed four-bit types are counted as one byte."""
        return None if self.bits is None else ceil_div(self.bits, 8)

    @property
    def live(self) -> bool:
        """Whether programs may compute with it or store it today."""
        return self.tag in LIVE_TAGS

    @property
    def is_int(self) -> bool:
        return self.name in INT_NAMES

    @property
    def is_signed(self) -> bool:
        return self.name in SIGNED_NAMES

    @property
    def is_float(self) -> bool:
        return self.name in FLOAT_NAMES

    @property
    def is_narrow(self) -> bool:
        """A storage-only integer: widen it before arithmetic."""
        return self.name in NARROW_NAMES

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer; bool is 0..1."""
        if self.name == "bool":
            return 0, 1
        assert self.is_int and self.bits is not None, self
        return (-(1 << self.bits - 1), (1 << self.bits - 1) - 1) if self.is_signed else (0, (1 << self.bits) - 1)

    def __call__(self, value: Expr | int | float | bool) -> Expr:
        """`u32(x)`: a conversion of an expression, or a literal of this type."""
        from .nodes import Cast, Expr, lit

        return Cast(self, value) if isinstance(value, Expr) else lit(value, self)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name if self in SIMPLE.values() else f"parse_dtype({self.name!r})"


u32, i32, u64 = DataType("u32", 0x01, 32), DataType("i32", 0x02, 32), DataType("u64", 0x03, 64)
vec2u32, vec4u32 = DataType("vec2<u32>", 0x04, 64), DataType("vec4<u32>", 0x05, 128)
bool_, bytes_ = DataType("bool", 0x06, 32), DataType("bytes", 0x07, 8)
f16, bf16, f32, f64 = (
    DataType("f16", 0x09, 16),
    DataType("bf16", 0x0A, 16),
    DataType("f32", 0x0B, 32),
    DataType("f64", 0x0C, 64),
)
u8, u16, i8, i16 = (
    DataType("u8", 0x0E, 8),
    DataType("u16", 0x0F, 16),
    DataType("i8", 0x10, 8),
    DataType("i16", 0x11, 16),
)
i64 = DataType("i64", 0x12, 64)
f8e4m3, f8e5m2 = DataType("f8e4m3", 0x19, 8), DataType("f8e5m2", 0x1A, 8)
i4, fp4, nf4 = DataType("i4", 0x1B, 4), DataType("fp4", 0x1C, 4), DataType("nf4", 0x1D, 4)

SIMPLE: dict[int, DataType] = {
    t.tag: t
    for t in (
        u32, i32, u64, vec2u32, vec4u32, bool_, bytes_, f16, bf16, f32, f64, u8, u16, i8, i16, i64,
        f8e4m3, f8e5m2, i4, fp4, nf4,
    )
}  # fmt: skip
BY_NAME = {t.name: t for t in SIMPLE.values()}
LIVE_TAGS = frozenset(t.tag for t in (u32, i32, f32, bool_, u8, u16, i8, i16, u64, i64, f16, bf16, f64))
DROPPED_TAGS = {
    0x0D: "tensor", 0x13: "handle", 0x15: "tensor<...>", 0x16: "sparse_csr", 0x17: "sparse_coo", 0x18: "sparse_bsr",
    0x1E: "device_mesh",
}  # fmt: skip
INT_NAMES = frozenset(("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"))
SIGNED_NAMES = frozenset(("i8", "i16", "i32", "i64"))
NARROW_NAMES = frozenset(("u8", "u16", "i8", "i16"))
FLOAT_NAMES = frozenset(("f16", "bf16", "f32", "f64"))
QUANTIZED_STORAGE = (i4, i8, i16, u8, u16, f8e4m3, f8e5m2, fp4, nf4)
SCALES = ("per_tensor", "per_channel", "per_group")
ARRAY_TAG, VEC_TAG, QUANTIZED_TAG, OPAQUE_TAG = 0x08, 0x14, 0x1F, 0x80


def array_type(element_size: int) -> DataType:
    """An opaque record of `element_size` bytes (late)."""
    return DataType(f"array<{element_size} B>", ARRAY_TAG, 8 * element_size, (element_size,))


def vec_type(element: DataType, lanes: int) -> DataType:
    """`lanes` elements side by side (late; not a buffer element)."""
    bits = None if element.bits is None else element.bits * lanes
    return DataType(f"vec<{element.name};{lanes}>", VEC_TAG, bits, (element, lanes))


def quantized_type(
    storage: DataType, scale: tuple[str, int] = ("per_tensor", 0), zero_point: tuple[str, int] | None = None
) -> DataType:
    """Scaled integers (late). `scale` and `zero_point` are a name of `SCALES` with its axis or group size."""
    if storage not in QUANTIZED_STORAGE:
        raise IRValueError(
            f"{storage} cannot store quantized values", fix="use i4, i8, i16, u8, u16, f8e4m3, f8e5m2, fp4 or nf4"
        )
    show = ";".join("none" if p is None else f"{p[0]}:{p[1]}" for p in (scale, zero_point))
    return DataType(f"quantized<{storage.name};{show}>", QUANTIZED_TAG, storage.bits, (storage, scale, zero_point))


def opaque_type(extension_id: int) -> DataType:
    """A type of an extension; ids have the high bit set."""
    return DataType(f"opaque<0x{extension_id:08x}>", OPAQUE_TAG, None, (extension_id,))


def parse_dtype(name: str) -> DataType:
    """The type with this name.

    >>> parse_dtype("vec<f16;4>").bits
    64
    """
    lanes: list[int] = []
    inner = name
    while len(lanes) < 16 and (vec := re.fullmatch(r"vec<(.*);([0-9]{1,9})>", inner)):
        inner = vec[1]
        lanes.append(int(vec[2]))
    t = BY_NAME.get(inner) or _parametric(inner)
    if t is None:
        dropped = inner.partition("<")[0] in {n.partition("<")[0] for n in DROPPED_TAGS.values()}
        shown = repr(name if len(name) <= 60 else name[:60] + "...")
        raise IRValueError(
            f"{shown} is a type that programs cannot use" if dropped else f"{shown} is not a type",
            fix=f"use {', '.join(t.name for t in SIMPLE.values() if t.live)}",
        )
    for n in reversed(lanes):
        t = vec_type(t, n)
    return t


def _parametric(name: str) -> DataType | None:
    if m := re.fullmatch(r"array<([0-9]{1,18}) B>", name):
        return array_type(int(m[1]))
    if m := re.fullmatch(r"opaque<0x([0-9a-fA-F]{8})>", name):
        return opaque_type(int(m[1], 16))
    scale = rf"((?:{'|'.join(SCALES)}):[0-9]{{1,10}})"
    if (m := re.fullmatch(rf"quantized<([a-z0-9]+);{scale};(?:none|{scale})>", name)) and m[1] in BY_NAME:
        how, zero = (None if part is None else part.split(":") for part in m.groups()[1:])
        assert how is not None
        return quantized_type(BY_NAME[m[1]], (how[0], int(how[1])), None if zero is None else (zero[0], int(zero[1])))
    return None


def extension_id(name: str) -> int:
    """The stable id of an extension name: FNV-1a with the high bit set.

    >>> hex(extension_id(""))
    '0x811c9dc5'
    """
    h = 0x811C9DC5
    for byte in name.encode():
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h | 0x80000000


def packed_size(element: DataType, count: int) -> int | None:
    """Bytes of `count` packed elements; None when the type has no size.

    >>> packed_size(i4, 3)
    2
    """
    return None if element.bits is None else ceil_div(element.bits * count, 8)


def element_count(element: DataType, nbytes: int) -> int:
    """Whole elements in `nbytes` bytes."""
    return 0 if not element.bits else 8 * nbytes // element.bits


def can_cast(source: DataType, target: DataType) -> bool:
    """Whether `Cast(target, x)` is legal for `x` of type `source`."""
    if source == target:
        return source.live
    whole = INT_NAMES | {"bool"}
    a, b = source.name, target.name
    if a in whole and b in whole:
        return True
    if "f32" in (a, b):
        return {a, b} - {"f32"} <= {"u32", "i32", "u64", "i64", "bool", "f16", "bf16", "f64"}
    return "f64" in (a, b) and {a, b} - {"f64"} <= whole


def is_narrowing(source: DataType, target: DataType) -> bool:
    """An integer cast that may lose bits."""
    return source.is_int and target.is_int and (source.bits or 0) > (target.bits or 0)
