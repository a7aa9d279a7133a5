"""Pure instructions of the kernel form as text of the assembler, for one lane or for a vector of lanes.

`pure(writer, ins, operands, width)` appends what computes the value and gives the operand that names it. All operands
have the same width; width 1 is a scalar. No flag that permits algebra is ever printed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from ....lower.instructions import unprinted
from ....lower.kernel_ir import BITS, FLOATS, SIGNED, Ins

TYPES = {"bool": "i1", "u32": "i32", "i32": "i32", "u64": "i64", "i64": "i64", "f32": "float", "f64": "double"}
SUFFIX = {"i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "float": "f32", "double": "f64"}

_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}
_FLOAT_CALLS = {
    "sqrt": "sqrt",
    "fma": "fma",
    "abs": "fabs",
    "copysign": "copysign",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
}
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_BIT_CALLS = {"popcount": "ctpop", "clz": "ctlz", "ctz": "cttz", "bitrev": "bitreverse"}
_SIGN = {"f32": 1 << 31, "f64": 1 << 63}
_INFINITY = {"f32": 0x7F800000, "f64": 0x7FF0000000000000}
_NARROW = {"u8": (8, False), "u16": (16, False), "i8": (8, True), "i16": (16, True)}


class Writer:
    """Lines of one function, and the declarations they need."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: dict[str, str] = {}
        self._made = 0

    def new(self, text: str) -> str:
        """Append an instruction with a result; its name."""
        self._made += 1
        name = f"%v{self._made}"
        self.lines.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def fresh(self, stem: str = "b") -> str:
        """A label, or any other name, that nothing else has."""
        self._made += 1
        return f"{stem}{self._made}"

    def call(self, result: str, function: str, *operands: tuple[str, str]) -> str:
        """Call an intrinsic with (type, operand) pairs; declares it."""
        self.declare(result, function, *(t for t, _ in operands))
        arguments = ", ".join(f"{t} {x}" for t, x in operands)
        if result == "void":
            self.line(f"call void @{function}({arguments})")
            return ""
        return self.new(f"call {result} @{function}({arguments})")

    def declare(self, result: str, function: str, *types: str) -> None:
        self.declared[function] = f"declare {result} @{function}({', '.join(types)})"


def ty(dtype: str, width: int = 1) -> str:
    """The type of a register, or of a vector of them."""
    return vec(TYPES[dtype], width)


def vec(scalar: str, width: int) -> str:
    return scalar if width == 1 else f"<{width} x {scalar}>"


def mangled(function: str, scalar: str, width: int) -> str:
    """The name of an overloaded intrinsic."""
    return f"llvm.{function}.{'' if width == 1 else f'v{width}'}{SUFFIX[scalar]}"


def literal(dtype: str, bits: int, width: int = 1) -> str:
    """A constant operand."""
    text = _scalar_literal(dtype, bits)
    return text if width == 1 else f"splat ({TYPES[dtype]} {text})"


def integer(value: int, scalar: str = "i32", width: int = 1) -> str:
    return str(value) if width == 1 else f"splat ({scalar} {value})"


def _scalar_literal(dtype: str, bits: int) -> str:
    if dtype == "bool":
        return "true" if bits else "false"
    if dtype == "f64":
        return f"0x{bits:016X}"
    if dtype == "f32":
        if bits & 0x7FFFFFFF > 0x7F800000:
            return "0x7FF8000000000000"
        (value,) = struct.unpack("<f", struct.pack("<I", bits))
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    width = BITS[dtype]
    return str(bits - (1 << width) if bits >> width - 1 else bits)


def pure(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """The value of a pure instruction whose operands are `args`. Ids, lengths and locals are not printed here."""
    op, t = ins.op, ins.dtype
    if op == "const":
        return literal(t, ins.attr, width)
    source = ins.args[0].dtype
    kind = ty(t, width)
    a, b, *_ = *args, "", ""
    if op in _SPECIAL:
        return _SPECIAL[op](w, ins, args, width)
    if op in _FLOAT_COMPARE:
        operand = ty(source, width)
        if source in FLOATS:
            return w.new(f"fcmp {_FLOAT_COMPARE[op]} {operand} {a}, {b}")
        sign = "s" if source in SIGNED else "u"
        return w.new(f"icmp {op if op in ('eq', 'ne') else sign + _INT_COMPARE[op]} {operand} {a}, {b}")
    if t in FLOATS:
        if op in _FLOAT_BINARY:
            return w.new(f"{_FLOAT_BINARY[op]} {kind} {a}, {b}")
        if op not in _FLOAT_CALLS:
            raise unprinted(op, "LLVM IR")
        return w.call(kind, mangled(_FLOAT_CALLS[op], TYPES[t], width), *((kind, x) for x in args))
    if op in _INT_BINARY:
        return w.new(f"{_INT_BINARY[op]} {kind} {a}, {b}")
    if op == "shr":
        return w.new(f"{'ashr' if t in SIGNED else 'lshr'} {kind} {a}, {b}")
    if op not in _BIT_CALLS:
        raise unprinted(op, "LLVM IR")
    flag = (("i1", "false"),) if op in ("clz", "ctz") else ()
    return w.call(kind, mangled(_BIT_CALLS[op], TYPES[t], width), (kind, a), *flag)


# ---- what takes more than one line ----------------------------------------------------------------------------------


def _select(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    kind = ty(ins.dtype, width)
    return w.new(f"select {ty('bool', width)} {args[0]}, {kind} {args[1]}, {kind} {args[2]}")


def _not(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    ones = literal(ins.dtype, (1 << BITS[ins.dtype]) - 1, width)
    return w.new(f"xor {ty(ins.dtype, width)} {args[0]}, {ones}")


def _neg(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    return w.new(f"fneg {ty(ins.dtype, width)} {args[0]}")


def _least_or_most(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """The smaller or larger of two numbers. Of floats, in comparisons: the compiler's own function for this gives a NaN
    on some machines where one operand comes from another minimum.

    A comparison is false for a NaN and gives the second operand, so that is where a constant goes.
    """
    t, op = ins.dtype, ins.op
    kind, flags = ty(t, width), ty("bool", width)
    if t not in FLOATS:
        return w.call(kind, mangled(("s" if t in SIGNED else "u") + op, TYPES[t], width), *((kind, x) for x in args))
    (a, b), (x, y) = args, ins.args
    if x.op == "const":
        a, b, x, y = b, a, y, x
    less, number = "olt" if op == "min" else "ogt", "i32" if t == "f32" else "i64"
    known = y.op == "const" and y.attr & ~_SIGN[t] <= _INFINITY[t]
    if known and y.attr == (0 if op == "min" else _SIGN[t]):
        less = less[:2] + "e"  # the other zero is the one
    found = w.new(f"select {flags} {w.new(f'fcmp {less} {kind} {a}, {b}')}, {kind} {a}, {kind} {b}")
    if known:
        return found
    bits = [cast_bits(w, z, TYPES[t], number, width) for z in (a, b)]
    zero = w.new(f"{'or' if op == 'min' else 'and'} {vec(number, width)} {bits[0]}, {bits[1]}")
    equal = w.new(f"fcmp oeq {kind} {a}, {b}")  # zeros of either sign, or the same bits
    found = w.new(f"select {flags} {equal}, {kind} {cast_bits(w, zero, number, TYPES[t], width)}, {kind} {found}")
    nan = w.new(f"fcmp uno {kind} {b}, {b}")
    return w.new(f"select {flags} {nan}, {kind} {a}, {kind} {found}")


def _divide(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """Quotients and remainders. Machines have no vector division of integers, but the quotient of two 32-bit numbers
    in binary64, cut to an integer, is exact: it is at least 1/b away from the next integer and off by 2^-21/b."""
    t = ins.dtype
    kind = ty(t, width)
    a, b = args
    if t in FLOATS:
        return w.new(f"fdiv {kind} {a}, {b}")
    sign = "s" if t in SIGNED else "u"
    if width == 1 or BITS[t] != 32 or ins.args[1].op == "const":
        return w.new(f"{sign}{ins.op} {kind} {a}, {b}")
    wide = vec("double", width)
    x, y = (w.new(f"{sign}itofp {kind} {z} to {wide}") for z in (a, b))
    quotient = w.new(f"fpto{sign}i {wide} {w.new(f'fdiv {wide} {x}, {y}')} to {kind}")
    if ins.op == "div":
        return quotient
    return w.new(f"sub {kind} {a}, {w.new(f'mul {kind} {quotient}, {b}')}")


def _mulhi(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    narrow, wide = ty("u32", width), ty("u64", width)
    x, y = (w.new(f"zext {narrow} {z} to {wide}") for z in args)
    high = w.new(f"lshr {wide} {w.new(f'mul {wide} {x}, {y}')}, {integer(32, 'i64', width)}")
    return w.new(f"trunc {wide} {high} to {narrow}")


def _convert(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    source, target = ins.args[0].dtype, ins.dtype
    a, come, go = args[0], ty(ins.args[0].dtype, width), ty(ins.dtype, width)
    if come == go:
        return a  # the same bits
    if source in FLOATS and target in FLOATS:
        return w.new(f"{'fpext' if target == 'f64' else 'fptrunc'} {come} {a} to {go}")
    if target in FLOATS:
        return w.new(f"{'s' if source in SIGNED else 'u'}itofp {come} {a} to {go}")
    if source in FLOATS:
        tail = f"{'' if width == 1 else f'v{width}'}{SUFFIX[TYPES[source]]}"
        sign = "s" if target in SIGNED else "u"
        return w.call(go, f"{mangled(f'fpto{sign}i.sat', TYPES[target], width)}.{tail}", (come, a))
    if BITS[target] < BITS[source]:
        return w.new(f"trunc {come} {a} to {go}")
    return w.new(f"{'sext' if source in SIGNED else 'zext'} {come} {a} to {go}")


def _bitcast(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    return cast_bits(w, args[0], TYPES[ins.args[0].dtype], TYPES[ins.dtype], width)


def cast_bits(w: Writer, a: str, source: str, target: str, width: int) -> str:
    if source == target:
        return a
    return w.new(f"bitcast {vec(source, width)} {a} to {vec(target, width)}")


def _flush(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """In integers: whether a float comparison sees a subnormal depends on the mode of the machine."""
    kind = ty("u32", width)
    bits = cast_bits(w, args[0], "float", "i32", width)
    exponent = w.new(f"and {kind} {bits}, {literal('u32', 0x7F800000, width)}")
    zero = w.new(f"icmp eq {kind} {exponent}, {literal('u32', 0, width)}")
    sign = w.new(f"and {kind} {bits}, {literal('u32', 0x80000000, width)}")
    chosen = w.new(f"select {ty('bool', width)} {zero}, {kind} {sign}, {kind} {bits}")
    return cast_bits(w, chosen, "i32", "float", width)


def _quiet(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """In integers: where a choice between floats may give a NaN, the compiler feels free to give any."""
    word, bits_type = ("u32", "i32") if ins.dtype == "f32" else ("u64", "i64")
    infinity, canonical = _INFINITY[ins.dtype], 0x7FC00000 if word == "u32" else 0x7FF8000000000000
    kind = ty(word, width)
    bits = cast_bits(w, args[0], TYPES[ins.dtype], bits_type, width)
    size = w.new(f"and {kind} {bits}, {literal(word, (1 << BITS[word] - 1) - 1, width)}")
    nan = w.new(f"icmp ugt {kind} {size}, {literal(word, infinity, width)}")
    chosen = w.new(f"select {ty('bool', width)} {nan}, {kind} {literal(word, canonical, width)}, {kind} {bits}")
    return cast_bits(w, chosen, bits_type, TYPES[ins.dtype], width)


def _to_even(w: Writer, bits: str, cut: int, width: int) -> str:
    """Bits rounded to a multiple of 2^cut, ties to even."""
    kind = ty("u32", width)
    last = w.new(f"lshr {kind} {bits}, {integer(cut, 'i32', width)}")
    odd = w.new(f"and {kind} {last}, {integer(1, 'i32', width)}")
    up = w.new(f"add {kind} {bits}, {integer((1 << cut - 1) - 1, 'i32', width)}")
    total = w.new(f"add {kind} {up}, {odd}")
    return w.new(f"and {kind} {total}, {literal('u32', 0xFFFFFFFF << cut & 0xFFFFFFFF, width)}")


def _keep_nan(w: Writer, original: str, found: str, width: int) -> str:
    kind = ty("f32", width)
    nan = w.new(f"fcmp uno {kind} {original}, {original}")
    return w.new(f"select {ty('bool', width)} {nan}, {kind} {original}, {kind} {found}")


def _round_bf16(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    bits = cast_bits(w, args[0], "float", "i32", width)
    return _keep_nan(w, args[0], cast_bits(w, _to_even(w, bits, 16, width), "i32", "float", width), width)


def _round_f16(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    """In f32 and integers, because not every processor converts: below 2^-14 halves are 2^-24 apart, as f32 numbers
    from 1/2 to 1 are, so adding 1/2 rounds; above, the last 13 bits go; from 65520 on it is infinity."""
    x, kind, flags = args[0], ty("f32", width), ty("bool", width)
    size = w.call(kind, mangled("fabs", "float", width), (kind, x))
    half = literal("f32", 0x3F000000, width)
    small = w.new(f"fsub {kind} {w.new(f'fadd {kind} {size}, {half}')}, {half}")
    rounded = _to_even(w, cast_bits(w, size, "float", "i32", width), 13, width)
    big = cast_bits(w, rounded, "i32", "float", width)
    over = w.new(f"fcmp oge {kind} {big}, {literal('f32', 0x47800000, width)}")
    big = w.new(f"select {flags} {over}, {kind} {literal('f32', 0x7F800000, width)}, {kind} {big}")
    tiny = w.new(f"fcmp olt {kind} {size}, {literal('f32', 0x38800000, width)}")
    found = w.new(f"select {flags} {tiny}, {kind} {small}, {kind} {big}")
    signed = w.call(kind, mangled("copysign", "float", width), (kind, found), (kind, x))
    return _keep_nan(w, x, signed, width)


def _narrow(w: Writer, ins: Ins, args: Sequence[str], width: int) -> str:
    bits, signed = _NARROW[ins.attr]
    kind = ty(ins.dtype, width)
    if not signed:
        return w.new(f"and {kind} {args[0]}, {integer((1 << bits) - 1, 'i32', width)}")
    by = integer(32 - bits, "i32", width)
    return w.new(f"ashr {kind} {w.new(f'shl {kind} {args[0]}, {by}')}, {by}")


_SPECIAL: dict[str, Callable[[Writer, Ins, Sequence[str], int], str]] = {
    "select": _select,
    "not": _not,
    "neg": _neg,
    "min": _least_or_most,
    "max": _least_or_most,
    "div": _divide,
    "rem": _divide,
    "mulhi": _mulhi,
    "convert": _convert,
    "bitcast": _bitcast,
    "flush": _flush,
    "quiet": _quiet,
    "round_f16": _round_f16,
    "round_bf16": _round_bf16,
    "narrow": _narrow,
}


# ---- elements in memory ---------------------------------------------------------------------------------------------

STORAGE = {
    "u8": "i8", "i8": "i8", "u16": "i16", "i16": "i16", "f16": "i16", "bf16": "i16", "bool": "i32", "u32": "i32",
    "i32": "i32", "f32": "float", "u64": "i64", "i64": "i64", "f64": "double",
}  # fmt: skip
"""The type under which an element is read and written."""


def from_storage(w: Writer, element: str, raw: str, width: int) -> str:
    """What was read as a register value."""
    word = ty("u32", width)
    match element:
        case "u8" | "u16":
            return w.new(f"zext {vec(STORAGE[element], width)} {raw} to {word}")
        case "i8" | "i16":
            return w.new(f"sext {vec(STORAGE[element], width)} {raw} to {word}")
        case "bf16":
            bits = w.new(f"zext {vec('i16', width)} {raw} to {word}")
            return cast_bits(w, w.new(f"shl {word} {bits}, {integer(16, 'i32', width)}"), "i32", "float", width)
        case "f16":
            return _from_half(w, w.new(f"zext {vec('i16', width)} {raw} to {word}"), width)
    return raw


def to_storage(w: Writer, element: str, value: str, width: int) -> str:
    """A register value as it is written; f16 and bf16 values are exact already, and NaN is canonical."""
    word = ty("u32", width)
    match element:
        case "u8" | "u16" | "i8" | "i16":
            return w.new(f"trunc {word} {value} to {vec(STORAGE[element], width)}")
        case "bf16":
            bits = cast_bits(w, value, "float", "i32", width)
            high = w.new(f"lshr {word} {bits}, {integer(16, 'i32', width)}")
            return w.new(f"trunc {word} {high} to {vec('i16', width)}")
        case "f16":
            return w.new(f"trunc {word} {_to_half(w, value, width)} to {vec('i16', width)}")
    return value


def _from_half(w: Writer, bits: str, width: int) -> str:
    word, kind, flags = ty("u32", width), ty("f32", width), ty("bool", width)

    def number(value: int) -> str:
        return integer(value, "i32", width)

    body = w.new(f"and {word} {bits}, {number(0x7FFF)}")
    shifted = w.new(f"shl {word} {body}, {number(13)}")
    normal = w.new(f"add {word} {shifted}, {number(112 << 23)}")
    special = w.new(f"or {word} {shifted}, {number(0x7F800000)}")
    is_special = w.new(f"icmp uge {word} {body}, {number(0x7C00)}")
    large = w.new(f"select {flags} {is_special}, {word} {special}, {word} {normal}")
    exact = w.new(f"fmul {kind} {w.new(f'uitofp {word} {body} to {kind}')}, {literal('f32', 0x33800000, width)}")
    is_small = w.new(f"icmp ult {word} {body}, {number(0x0400)}")
    size = w.new(f"select {flags} {is_small}, {word} {cast_bits(w, exact, 'float', 'i32', width)}, {word} {large}")
    sign = w.new(f"shl {word} {w.new(f'and {word} {bits}, {number(0x8000)}')}, {number(16)}")
    return cast_bits(w, w.new(f"or {word} {size}, {sign}"), "i32", "float", width)


def _to_half(w: Writer, value: str, width: int) -> str:
    word, kind, flags = ty("u32", width), ty("f32", width), ty("bool", width)

    def number(value: int) -> str:
        return integer(value, "i32", width)

    bits = cast_bits(w, value, "float", "i32", width)
    body = w.new(f"and {word} {bits}, {number(0x7FFFFFFF)}")
    normal = w.new(f"lshr {word} {w.new(f'sub {word} {body}, {number(112 << 23)}')}, {number(13)}")
    is_nan = w.new(f"icmp ugt {word} {body}, {number(0x7F800000)}")
    special = w.new(f"select {flags} {is_nan}, {word} {number(0x7E00)}, {word} {number(0x7C00)}")
    is_special = w.new(f"icmp uge {word} {body}, {number(0x7F800000)}")
    large = w.new(f"select {flags} {is_special}, {word} {special}, {word} {normal}")
    size = cast_bits(w, body, "i32", "float", width)
    units = w.new(f"fmul {kind} {size}, {literal('f32', 0x4B800000, width)}")
    tail = f"{'' if width == 1 else f'v{width}'}f32"
    small = w.call(word, f"{mangled('fptoui.sat', 'i32', width)}.{tail}", (kind, units))
    is_small = w.new(f"icmp ult {word} {body}, {number(0x38800000)}")
    size = w.new(f"select {flags} {is_small}, {word} {small}, {word} {large}")
    sign = w.new(f"and {word} {w.new(f'lshr {word} {bits}, {number(16)}')}, {number(0x8000)}")
    return w.new(f"or {word} {size}, {sign}")
