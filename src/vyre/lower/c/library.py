"""Words of kernels in C: types, literals, and functions where the language has no such operator, or leaves a case open.

Of the functions, only those that a kernel uses are printed, before it. The words in them are those of OpenCL C (`uint`,
`as_float`, `clz`...): another language defines these first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from fractions import Fraction

from ...foundation.ir.ops import BinaryOp, ReduceOp
from ..registers import BITS, FLOATS, SIGNED, value_of

TYPES = {"bool": "bool", "u32": "uint", "i32": "int", "u64": "ulong", "i64": "long", "f32": "float", "f64": "double"}
"""Registers."""
STORAGE = {
    "u8": "uchar", "i8": "char", "u16": "ushort", "i16": "short", "f16": "ushort", "bf16": "ushort", "bool": "uint",
    "u32": "uint", "i32": "int", "u64": "ulong", "i64": "long", "f32": "float", "f64": "double",
}  # fmt: skip
"""Elements in memory."""
WORDS = {"i32": "u32", "i64": "u64", "f32": "u32", "f64": "u64"}
"""The unsigned type of the same width."""
REDUCE_STEPS = {
    ReduceOp.ADD: BinaryOp.ADD, ReduceOp.MUL: BinaryOp.MUL, ReduceOp.MIN: BinaryOp.MIN, ReduceOp.MAX: BinaryOp.MAX,
}  # fmt: skip
"""Float operators that reductions are made of."""
_SUFFIX = {"u32": "u", "i32": "", "u64": "ul", "i64": "l", "f32": "f", "f64": ""}


def literal(dtype: str, bits: int) -> str:
    """A constant as an operand."""
    value = value_of(dtype, bits)
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in FLOATS:
        text = _float_text(dtype, bits, value)
    elif dtype in SIGNED and value == -(1 << BITS[dtype] - 1):
        text = f"-{-(value + 1)}{_SUFFIX[dtype]} - 1"
    else:
        text = f"{value}{_SUFFIX[dtype]}"
    return f"({text})" if text.startswith("-") else text


def _float_text(dtype: str, bits: int, value: float) -> str:
    """Digits that mean exactly this number to every compiler, or its bits."""
    if value != value or value in (float("inf"), -float("inf")):
        word = WORDS[dtype]
        return f"as_{TYPES[dtype]}(0x{bits:0{BITS[dtype] // 4}x}{_SUFFIX[word]})"
    if dtype == "f64":
        return repr(value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        # well inside what rounds to the number: also where a compiler rounds twice
        if abs(Fraction(text) - Fraction(value)) * 3 <= _ulp(bits):
            break
    plain = repr(float(text)) if 1e-5 <= abs(value) < 1e9 or value == 0 else text
    return f"{plain}f"


def _ulp(bits: int) -> Fraction:
    low, high = (
        struct.unpack("<f", struct.pack("<I", (bits & 0x7FFFFFFF) - d))[0] for d in (bits & 0x7FFFFFFF != 0, 0)
    )
    return Fraction(high) - Fraction(low)


def _wrapping(name: str, t: str, operator: str) -> str:
    """Signed arithmetic that wraps: overflow of signed numbers is undefined in C."""
    signed, word = TYPES[t], TYPES[WORDS[t]]
    right = f"{word} n" if operator == "<<" else f"{signed} b"
    by = "n" if operator == "<<" else f"({word})b"
    return f"{signed} {name}_{t}({signed} a, {right})\n{{\n    return ({signed})(({word})a {operator} {by});\n}}"


def _quiet(t: str, infinity: str, canonical: str) -> str:
    f, word = TYPES[t], TYPES[WORDS[t]]
    return f"""\
{f} quiet_{t}({f} x)
{{
    const {word} bits = as_{word}(x);
    return as_{f}((bits << 1) > ({infinity} << 1) ? {canonical} : bits);
}}"""


def _whole(name: str, t: str) -> str:
    """A compiler that knows x may not ask the machine: PoCL's makes 0 of a NaN."""
    f = TYPES[t]
    return f"{f} {name}_{t}({f} x)\n{{\n    return x != x ? x : {name}(x);\n}}"


def _least(name: str, t: str, less: str, join: str) -> str:
    f, word = TYPES[t], TYPES[WORDS[t]]
    return f"""\
{f} {name}_{t}({f} a, {f} b) // the other one for a NaN; -0 is below +0
{{
    const {f} found = a {less} b ? a : b;
    const {f} zero = as_{f}(as_{word}(a) {join} as_{word}(b));
    return b != b ? a : a == b ? zero : found;
}}"""


def _to_unsigned(t: str, source: str, end: str, most: str) -> str:
    f, word = TYPES[source], TYPES[t]
    return f"""\
{word} {t}_of_{source}({f} x) // saturates; a NaN is 0
{{
    return x >= {end} ? {most} : x > 0 ? ({word})x : 0;
}}"""


def _to_signed(t: str, source: str, end: str, most: str) -> str:
    f, number = TYPES[source], TYPES[t]
    return f"""\
{number} {t}_of_{source}({f} x) // saturates; a NaN is 0
{{
    return x >= {end} ? {most} : x <= -{end} ? -{most} - 1 : x == x ? ({number})x : 0;
}}"""


def _bitrev(t: str, steps: Iterable[tuple[int, str]]) -> str:
    word = TYPES[t]
    lines = [f"    x = ((x >> {by}) & {mask}) | ((x & {mask}) << {by});" for by, mask in steps]
    half = 16 if t == "u32" else 32
    return "\n".join([f"{word} bitrev_{t}({word} x)", "{", *lines, f"    return (x >> {half}) | (x << {half});", "}"])


_MASKS = (
    (1, "0x5555555555555555"),
    (2, "0x3333333333333333"),
    (4, "0x0f0f0f0f0f0f0f0f"),
    (8, "0x00ff00ff00ff00ff"),
    (16, "0x0000ffff0000ffff"),
)
_ENDS = {
    ("f32", 32): "4294967296.0f", ("f64", 32): "4294967296.0", ("f32", 31): "2147483648.0f",
    ("f64", 31): "2147483648.0", ("f32", 64): "18446744073709551616.0f", ("f64", 64): "18446744073709551616.0",
    ("f32", 63): "9223372036854775808.0f", ("f64", 63): "9223372036854775808.0",
}  # fmt: skip

FUNCTIONS: dict[str, str] = {
    **{
        f"{name}_{t}": _wrapping(name, t, operator)
        for t in ("i32", "i64")
        for name, operator in (("add", "+"), ("sub", "-"), ("mul", "*"), ("shl", "<<"))
    },
    **{
        f"ctz_{t}": f"{TYPES[t]} ctz_{t}({TYPES[t]} x)\n{{\n    return popcount(~x & (x - 1));\n}}"
        for t in ("u32", "u64")
    },
    "bitrev_u32": _bitrev("u32", [(by, f"0x{mask[-8:]}u") for by, mask in _MASKS[:4]]),
    "bitrev_u64": _bitrev("u64", [(by, f"{mask}ul") for by, mask in _MASKS]),
    "flush_f32": """\
float flush_f32(float x) // a subnormal becomes zero of its sign
{
    const uint bits = as_uint(x);
    return (bits & 0x7f800000u) == 0 ? as_float(bits & 0x80000000u) : x;
}""",
    **{f"{name}_{t}": _whole(name, t) for name in ("floor", "ceil", "trunc") for t in ("f32", "f64")},
    "quiet_f32": _quiet("f32", "0x7f800000u", "0x7fc00000u"),
    "quiet_f64": _quiet("f64", "0x7ff0000000000000ul", "0x7ff8000000000000ul"),
    **{
        f"{name}_{t}": _least(name, t, less, join)
        for t in ("f32", "f64")
        for name, less, join in (("min", "<", "|"), ("max", ">", "&"))
    },
    **{
        f"{t}_of_{f}": _to_unsigned(t, f, _ENDS[f, bits], most)
        for f in ("f32", "f64")
        for t, bits, most in (("u32", 32, "0xffffffffu"), ("u64", 64, "0xfffffffffffffffful"))
    },
    **{
        f"{t}_of_{f}": _to_signed(t, f, _ENDS[f, bits], most)
        for f in ("f32", "f64")
        for t, bits, most in (("i32", 31, "0x7fffffff"), ("i64", 63, "0x7fffffffffffffffl"))
    },
    "round_bf16": """\
float round_bf16(float x)
{
    const uint bits = as_uint(x);
    return x != x ? x : as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}""",
    "round_f16": """\
float round_f16(float x)
{
    const uint bits = as_uint(x);
    const float size = as_float(bits & 0x7fffffffu);
    const float small = (size + 0.5f) - 0.5f; // below 2^-14 halves are 2^-24 apart, as floats from 1/2 to 1 are
    const uint large = ((bits & 0x7fffffffu) + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u;
    const uint found = size < 0x1p-14f ? as_uint(small) : large >= 0x47800000u ? 0x7f800000u : large;
    return x != x ? x : as_float(found | (bits & 0x80000000u));
}""",
    "load_f16": """\
float load_f16(ushort half_bits)
{
    const uint size = half_bits & 0x7fffu;
    const uint small = as_uint((float)size * 0x1p-24f);
    const uint found = size < 0x400u ? small : (size << 13) + (size < 0x7c00u ? 0x38000000u : 0x70000000u);
    return as_float(found | (half_bits & 0x8000u) << 16);
}""",
    "store_f16": """\
ushort store_f16(float x) // of a number that was rounded to f16
{
    const uint bits = as_uint(x);
    const uint size = bits & 0x7fffffffu;
    const uint small = (uint)(as_float(size < 0x38800000u ? size : 0u) * 0x1p24f);
    const uint large = size >= 0x47800000u ? (size > 0x7f800000u ? 0x7e00u : 0x7c00u) : (size - 0x38000000u) >> 13;
    return (ushort)((size < 0x38800000u ? small : large) | (bits >> 16 & 0x8000u));
}""",
    "load_bf16": "float load_bf16(ushort bits)\n{\n    return as_float((uint)bits << 16);\n}",
    "store_bf16": "ushort store_bf16(float x)\n{\n    return (ushort)(as_uint(x) >> 16);\n}",
}
"""Name -> text, without the words that make it a function of the device."""
