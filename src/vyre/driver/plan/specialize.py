"""Values fixed before code is made: constants in place of a program's numbers, and the keys that tell two sets of them
apart."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentTypeError, ArgumentValueError, shown
from ...foundation.formats.blake3 import blake3
from ...foundation.formats.canon import vsa_fingerprint
from ...foundation.formats.wire.write import Writer
from ...foundation.ir.dtypes import SIMPLE, DataType, bool_, f32, i32, u32
from ...foundation.ir.nodes import BufLen, Expr, Lit, Load, lit
from ...foundation.ir.program import Access, BufferDecl, Program
from ...foundation.ir.visit import distinct, rewrite

if TYPE_CHECKING:
    from ..contract.values import Dims

_KINDS = ("u32", "i32", "f32", "bool", "dtype")
_TYPES = {t.name: t for t in (u32, i32, f32, bool_)}
_FNV_OFFSET, _FNV_PRIME, _U64 = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_NAN_BITS = 0x7FC00000
_DIGEST_BIT = 1 << 55
"""Set in the bits of a type with parameters, so that no digest equals a wire tag."""
_ARTIFACT_DOMAIN = b"vyre.specialization.artifact"
_ORIGIN = "driver.specialized"
_BUFFER_FIELDS = ("buffer", "count_buffer", "source", "destination")
"""Fields of expressions and statements that name a buffer."""


@dataclass(frozen=True, slots=True)
class SpecValue:
    """A constant: the bits of a number, or a type. Two are equal exactly when code made for one serves the other."""

    kind: str
    bits: int
    type: DataType | None = None

    @classmethod
    def of(cls, value: int | float | bool | DataType, dtype: DataType | None = None) -> SpecValue:
        """A type, or a number as u32, i32, f32 or bool; by default after its Python type and sign.

        >>> SpecValue.of(-1).kind, SpecValue.of(1.5).kind, SpecValue.of(u32).kind
        ('i32', 'f32', 'dtype')
        """
        if isinstance(value, DataType):
            return cls("dtype", _dtype_bits(value), value)
        if isinstance(value, bool):
            dtype = dtype or bool_
        elif not isinstance(value, int | float):
            raise ArgumentTypeError(f"{value!r} is not a constant", fix="pass a number, a bool or a type")
        dtype = dtype or (f32 if isinstance(value, float) else u32 if value >= 0 else i32)
        if dtype == f32:
            return cls("f32", _f32_bits(value))
        if dtype not in (u32, i32, bool_):
            raise ArgumentTypeError(f"there are no {dtype} constants", fix="use u32, i32, f32 or bool")
        low, high = dtype.limits
        if not isinstance(value, int) or not low <= value <= high:
            raise ArgumentValueError(
                f"{value!r} is not a constant of type {dtype}", fix=f"use a whole number from {low} to {high}"
            )
        return cls(dtype.name, value & 0xFFFFFFFF)

    @classmethod
    def of_bytes(cls, data: bytes, dtype: DataType) -> SpecValue:
        """The number that a buffer with these bytes holds."""
        form = {"u32": "<I", "i32": "<i", "f32": "<f", "bool": "<I"}.get(dtype.name)
        number = struct.unpack(form, data)[0] if form is not None else 0
        return cls.of(number != 0 if dtype == bool_ else number, dtype)

    @property
    def value(self) -> int | float | bool | DataType:
        """The number or type it was made of, rounded to its type."""
        match self.kind:
            case "dtype":
                assert self.type is not None
                return self.type
            case "f32":
                return float(struct.unpack("<f", struct.pack("<I", self.bits))[0])
            case "bool":
                return self.bits == 1
            case "i32" if self.bits >> 31:
                return self.bits - (1 << 32)
        return self.bits

    def as_pipeline_f64(self) -> float:
        """The number that stands for it where constants are numbers; a type is its wire tag."""
        value = self.value
        return float(value.tag if isinstance(value, DataType) else value)

    def __str__(self) -> str:
        """
        >>> str(SpecValue.of(0.1))
        '0.10000000149011612 (f32)'
        """
        return f"{self.value} ({self.kind})"

    def cache_hash(self) -> int:
        """64 bits: the kind in the lowest byte, the bits above it."""
        return _KINDS.index(self.kind) | self.bits << 8


class SpecMap(Mapping[str, SpecValue]):
    """Constants by name, in the order of their names. Frozen; numbers and types may be passed as they are.

    >>> SpecMap({"unroll": 4, "scale": 0.5}).to_numeric_constants()
    {'scale': 0.5, 'unroll': 4.0}
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        given = values or {}
        self._values = {
            name: value if isinstance(value, SpecValue) else SpecValue.of(value)
            for name, value in sorted(given.items())
        }
        self._hash = _fnv(self._values)

    def __getitem__(self, name: str) -> SpecValue:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"SpecMap({self._values!r})"

    def is_empty(self) -> bool:
        return not self._values

    def insert(self, name: str, value: Any) -> SpecMap:
        """The same constants with one added or changed."""
        return SpecMap({**self._values, name: value})

    def to_numeric_constants(self) -> dict[str, float]:
        return {name: value.as_pipeline_f64() for name, value in self._values.items()}

    def cache_hash(self) -> int:
        """64 bits over names, each with its length, and values."""
        return self._hash


@dataclass(frozen=True, slots=True)
class SpecCacheKey:
    """The key of a specialised pipeline."""

    shader_hash: int
    binding_sig: int
    workgroup_size: Dims
    spec_hash: int

    @classmethod
    def new(cls, shader_hash: int, binding_sig: int, workgroup_size: Dims, specs: SpecMap) -> SpecCacheKey:
        return cls(shader_hash, binding_sig, workgroup_size, specs.cache_hash())

    @classmethod
    def of(cls, program: Program, specs: SpecMap) -> SpecCacheKey:
        """The key of a program with these constants."""
        bound = [(b.binding, b.name, b.access.value, str(b.element), b.count) for b in program.bound_buffers]
        bindings = int.from_bytes(blake3(repr(bound).encode())[:8], "little")
        return cls.new(vsa_specialization_key(program, 0) >> 64, bindings, program.workgroup_size, specs)

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.workgroup_size))
        return f"{self.shader_hash:016x}:{self.binding_sig:016x}:{sizes}:{self.spec_hash:016x}"


def program_vsa_fingerprint(program: Program) -> tuple[int, ...]:
    """The program's fingerprint as eight little-endian words."""
    return vsa_fingerprint(program)


def vsa_specialization_key(program: Program, spec_hash: int) -> int:
    """128 bits: the first two words of the program's fingerprint, then the hash of its constants."""
    low, high, *_ = program_vsa_fingerprint(program)
    return (low | high << 32) << 64 | spec_hash


def versioned_specialization_artifact_key(version: int, spec_hash: str, backend_fingerprint: str) -> str:
    """64 hex digits that name what was built for these constants on this backend."""
    parts = [_ARTIFACT_DOMAIN, struct.pack("<I", version)]
    for text in (spec_hash, backend_fingerprint):
        raw = text.encode()
        parts += [struct.pack("<Q", len(raw)), raw]
    return blake3(b"".join(parts)).hex()


def artifact_key_of(program: Program, specs: SpecMap, version: int, device: str) -> str:
    """The name of the code of a program with these constants, on the device with this fingerprint."""
    return versioned_specialization_artifact_key(version, str(SpecCacheKey.of(program, specs)), device)


# ---- programs -------------------------------------------------------------------------------------------------------


def specialized(program: Program, specs: SpecMap) -> Program:
    """The same program with constants in place of some of its numbers, which are no longer among its inputs.

    The other buffers keep their slots, and the bytes are those that the program gives for these numbers.
    """
    if not specs:
        return program
    for name, value in specs.items():
        _require_number(program, name, value)
    found = program.replace(
        buffers=[b for b in program.buffers if b.name not in specs],
        entry=rewrite(program.entry, expr=lambda e: _constant(e, specs)),
    ).called(program.name)
    for item in distinct(found.entry):
        if left := next((name for name in _BUFFER_FIELDS if getattr(item, name, None) in specs), None):
            raise ArgumentValueError(
                f"{getattr(item, left)} is used as a buffer, and not as a number alone: {item}",
                fix=f"leave {getattr(item, left)} an input of the program",
            )
    origin, before = origin_of(program)
    found._cached(_ORIGIN, lambda: (origin, SpecMap({**before, **specs})))
    return found


def origin_of(program: Program) -> tuple[Program, SpecMap]:
    """The program that one was specialised from, and its constants; itself without any, if it was not."""
    found: tuple[Program, SpecMap] = program._cache.get(_ORIGIN, (program, NO_SPECS))  # which would keep itself alive
    return found


def numbers_of(program: Program) -> dict[str, DataType]:
    """The numbers among the inputs of a program, with their types."""
    return {b.name: b.element for b in program.bound_buffers if _is_number(b)}


def _is_number(buffer: BufferDecl) -> bool:
    return buffer.access is Access.UNIFORM and buffer.count == 1


def _constant(item: Expr, specs: SpecMap) -> Expr:
    """A constant, for an expression that reads its number."""
    match item:
        case BufLen(buffer=name) if name in specs:
            return lit(1)
        case Load(buffer=name, index=Lit(bits=0)) if name in specs:
            value = specs[name].value
            assert not isinstance(value, DataType)
            return lit(value, _TYPES[specs[name].kind])
    return item


def _require_number(program: Program, name: str, value: SpecValue) -> None:
    numbers = numbers_of(program)
    if name not in numbers:
        raise ArgumentTypeError(
            f"the program has no number {name}", fix=f"fix one of: {', '.join(numbers) or 'none, it has no numbers'}"
        )
    if value.kind != numbers[name].name:
        raise ArgumentTypeError(
            f"{name} is a number of type {numbers[name]}, and {value} is not",
            fix=f"pass SpecValue.of(number, {numbers[name]})",
        )


def _dtype_bits(dtype: DataType) -> int:
    if dtype in SIMPLE.values():
        return dtype.tag
    wire = Writer(6)
    wire.dtype(dtype, 1)
    return int.from_bytes(blake3(bytes(wire.out))[:7], "little") | _DIGEST_BIT


def _f32_bits(value: float) -> int:
    """The sign of a zero counts; every NaN is the same one."""
    try:
        return _NAN_BITS if math.isnan(value) else int(struct.unpack("<I", struct.pack("<f", value))[0])
    except (OverflowError, struct.error) as e:
        fix = "use a value in the range of f32"
        raise ArgumentValueError(f"{shown(value)} is not a constant of type f32", fix=fix) from e


def _fnv(values: Mapping[str, SpecValue]) -> int:
    found = _FNV_OFFSET
    for name, value in values.items():
        raw = name.encode()
        for byte in struct.pack("<I", len(raw)) + raw + struct.pack("<Q", value.cache_hash()):
            found = (found ^ byte) * _FNV_PRIME & _U64
    return found


NO_SPECS = SpecMap()
