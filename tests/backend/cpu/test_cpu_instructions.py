"""Every pure instruction, scalar and vector, computes what the definition of its operator says."""

import ctypes
import math
import struct

import llvmlite.binding as binding
import pytest

from vyre.backends.cpu.emit import instructions as instr
from vyre.foundation.ir import dtypes, rounding
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.meaning import arith
from vyre.lower.kernel_ir import Ins

WIDTHS = (1, 4, 16)
LANES = 16
INTS = {
    "u32": (0, 1, 2, 3, 7, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xDEADBEEF, 0x00FF00FF, 255, 256, 65535, 65536),
    "u64": (0, 1, 2, 3, 63, 64, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 0xDEADBEEFCAFEF00D, 5, 10, 100, 2**53 + 1),
}
COMMON = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, math.inf, -math.inf, math.nan)
FLOATS = {
    "f32": (*COMMON, 3.0e38, 1.2e-38, 65519.9, 6e-8, 0.1),
    "f64": (*COMMON, 1e308, 5e-324, 2.0**31, -0.3, 0.1),
}
FORMATS = {"bool": "?", "u32": "I", "i32": "i", "u64": "Q", "i64": "q", "f32": "f", "f64": "d"}


def values(dtype):
    if dtype == "bool":
        return [False, True] * (LANES // 2)
    if dtype in FLOATS:
        return [rounding.round_f32(x) if dtype == "f32" else x for x in FLOATS[dtype]]
    unsigned = INTS["u" + dtype[1:]]
    bits = int(dtype[1:])
    return [x - (1 << bits) if dtype[0] == "i" and x >> bits - 1 else x for x in unsigned]


def run(op, dtype, columns, width, attr=None, sources=None):
    """Apply an instruction to columns of LANES values each."""
    sources = sources or [dtype] * len(columns)
    ins = Ins(op, dtype, tuple(Ins("get", t) for t in sources), attr)
    w = instr.Writer()

    def memory(t):
        return "i8" if t == "bool" else instr.TYPES[t]

    for at in range(0, LANES, width):
        operands = []
        for k, t in enumerate(sources):
            p = w.new(f"getelementptr {memory(t)}, ptr %a{k}, i64 {at}")
            x = w.new(f"load {instr.vec(memory(t), width)}, ptr {p}, align 1")
            operands.append(w.new(f"trunc {instr.vec('i8', width)} {x} to {instr.ty(t, width)}") if t == "bool" else x)
        found = instr.pure(w, ins, operands, width)
        if dtype == "bool":
            found = w.new(f"zext {instr.ty('bool', width)} {found} to {instr.vec('i8', width)}")
        p = w.new(f"getelementptr {memory(dtype)}, ptr %out, i64 {at}")
        w.line(f"store {instr.vec(memory(dtype), width)} {found}, ptr {p}, align 1")
    parameters = ", ".join([*(f"ptr %a{k}" for k in range(len(columns))), "ptr %out"])
    text = "\n".join(
        [*w.declared.values(), f"define void @f({parameters}) {{", *w.lines, "  ret void", "}"],
    )
    return execute(text, columns, sources, dtype)


def execute(text, columns, sources, dtype):
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(text)
    module.verify()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten()
    )
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    f = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(columns) + 1))(engine.get_function_address("f"))
    buffers = [
        ctypes.create_string_buffer(struct.pack(f"<{LANES}{FORMATS[t]}", *column), LANES * 8)
        for t, column in zip(sources, columns, strict=True)
    ]
    out = ctypes.create_string_buffer(LANES * 8)
    f(*map(ctypes.addressof, buffers), ctypes.addressof(out))
    return list(struct.unpack_from(f"<{LANES}{FORMATS[dtype]}", out.raw))


def same(a, b):
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def check(found, expected):
    wrong = [(k, f, e) for k, (f, e) in enumerate(zip(found, expected, strict=True)) if not same(f, e)]
    assert not wrong


def turned(column, by):
    return column[by:] + column[:by]


ROTATIONS = (0, 1, 5)
WORDS = ("u32", "i32", "u64", "i64")
ARITHMETIC = [
    *(("add", BinaryOp.ADD, t) for t in (*WORDS, "f64")),
    *(("sub", BinaryOp.SUB, t) for t in (*WORDS, "f64")),
    *(("mul", BinaryOp.MUL, t) for t in (*WORDS, "f64")),
    ("div", BinaryOp.DIV, "f64"),
    *(("min", BinaryOp.MIN, t) for t in (*WORDS, "f32", "f64")),
    *(("max", BinaryOp.MAX, t) for t in (*WORDS, "f32", "f64")),
    *(("and", BinaryOp.BIT_AND, t) for t in WORDS),
    *(("or", BinaryOp.BIT_OR, t) for t in WORDS),
    *(("xor", BinaryOp.BIT_XOR, t) for t in WORDS),
    ("mulhi", BinaryOp.MUL_HIGH, "u32"),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op, operator, dtype", ARITHMETIC)
def test_binary_instructions_agree_with_the_definition(op, operator, dtype, width):
    define = arith.binary(operator, getattr(dtypes, dtype))
    for by in ROTATIONS:
        a, b = values(dtype), turned(values(dtype), by)
        check(run(op, dtype, [a, b], width), [define(x, y) for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("op, operator", [("div", BinaryOp.DIV), ("rem", BinaryOp.MOD)])
def test_integer_division_by_legal_divisors_truncates(op, operator, dtype, width):
    define = arith.binary(operator, getattr(dtypes, dtype))
    lowest = min(values(dtype))
    for by in range(1, LANES):
        a, b = values(dtype), turned(values(dtype), by)
        b = [1 if y == 0 or (y == -1 and x == lowest) else y for x, y in zip(a, b, strict=True)]
        check(run(op, dtype, [a, b], width), [define(x, y) for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("op, operator", [("shl", BinaryOp.SHL), ("shr", BinaryOp.SHR)])
def test_shifts_below_the_width_agree_with_the_definition(op, operator, dtype, width):
    define, bits = arith.binary(operator, getattr(dtypes, dtype)), int(dtype[1:])
    counts = [k * 5 % bits for k in range(LANES)]
    found = run(op, dtype, [values(dtype), counts], width, sources=[dtype, f"u{bits}"])
    check(found, [define(x, n) for x, n in zip(values(dtype), counts, strict=True)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [*WORDS, "f32", "f64"])
def test_comparisons_agree_with_the_definition(dtype, width):
    for name in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        op, operator = name.lower(), BinaryOp[name]
        define = arith.binary(operator, getattr(dtypes, dtype))
        for by in (0, 3):
            a, b = values(dtype), turned(values(dtype), by)
            found = run(op, "bool", [a, b], width, sources=[dtype, dtype])
            check(found, [define(x, y) for x, y in zip(a, b, strict=True)])


UNARY = [
    *(("popcount", UnaryOp.POPCOUNT, t) for t in WORDS),
    *(("clz", UnaryOp.CLZ, t) for t in WORDS),
    *(("ctz", UnaryOp.CTZ, t) for t in WORDS),
    *(("bitrev", UnaryOp.REVERSE_BITS, t) for t in WORDS),
    *(("not", UnaryOp.BIT_NOT, t) for t in WORDS),
    *((op, operator, t) for t in ("f32", "f64") for op, operator in {
        "neg": UnaryOp.NEGATE, "abs": UnaryOp.ABS, "floor": UnaryOp.FLOOR, "ceil": UnaryOp.CEIL,
        "trunc": UnaryOp.TRUNC, "sqrt": UnaryOp.SQRT,
    }.items()),
]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("op, operator, dtype", UNARY)
def test_unary_instructions_agree_with_the_definition(op, operator, dtype, width):
    define = arith.unary(operator, getattr(dtypes, dtype))
    check(run(op, dtype, [values(dtype)], width), [define(x) for x in values(dtype)])


CONVERSIONS = [
    *(("u32", t) for t in ("i32", "u64", "i64", "f32", "f64")),
    *(("i32", t) for t in ("u32", "u64", "i64", "f32", "f64")),
    *(("u64", t) for t in ("u32", "i32", "i64", "f64")),
    *(("i64", t) for t in ("u32", "i32", "u64", "f64")),
    *(("f32", t) for t in ("u32", "i32", "f64")),
    *(("f64", t) for t in ("u32", "i32", "u64", "i64")),
    *(("bool", t) for t in ("u32", "i32", "f32")),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("source, target", CONVERSIONS)
def test_conversions_wrap_round_and_saturate_as_defined(source, target, width):
    source_type = dtypes.bool_ if source == "bool" else getattr(dtypes, source)
    define = arith.cast(source_type, getattr(dtypes, target))
    found = run("convert", target, [values(source)], width, sources=[source])
    check(found, [define(x) for x in values(source)])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_rounding_to_a_narrow_float_is_the_definition_at_its_boundaries(name, width):
    define = {"f16": rounding.round_f16, "bf16": rounding.round_bf16}[name]
    edges = [65503.9, 65504.0, 65519.99, 65520.0, 2.0**-14, 2.0**-25, 2.0**-25 * 1.0000001, 2.0**-24 * 1.5,
             2.0**-14 - 2.0**-25, 1 + 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-9, 3.39e38, 3.3961e38, -0.0,
             math.nan]  # fmt: skip
    column = [rounding.round_f32(x) for x in edges]
    check(run(f"round_{name}", "f32", [column], width), [define(x) for x in column])


@pytest.mark.parametrize("width", WIDTHS)
def test_every_half_survives_loading_and_storing(width):
    w = instr.Writer()
    raw = w.new(f"load {instr.vec('i16', width)}, ptr %a0, align 1")
    value = instr.from_storage(w, "f16", raw, width)
    back = instr.to_storage(w, "f16", value, width)
    w.line(f"store {instr.vec('i16', width)} {back}, ptr %out, align 1")
    text = "\n".join(
        [*w.declared.values(), "define void @g(ptr %a0, ptr %out) {", *w.lines, "  ret void", "}",
         "define void @f(ptr %a, ptr %out) {", "entry:", "  br label %next", "next:",
         "  %k = phi i64 [0, %entry], [%n, %next]", "  %p = getelementptr i16, ptr %a, i64 %k",
         "  %q = getelementptr i16, ptr %out, i64 %k", "  call void @g(ptr %p, ptr %q)",
         f"  %n = add i64 %k, {width}", "  %go = icmp ult i64 %n, 65536", "  br i1 %go, label %next, label %end",
         "end:", "  ret void", "}"]
    )  # fmt: skip
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(text)
    module.verify()
    engine = binding.create_mcjit_compiler(module, binding.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("f"))
    halves = struct.pack("<65536H", *range(65536))
    source, out = ctypes.create_string_buffer(halves, 1 << 17), ctypes.create_string_buffer(1 << 17)
    f(ctypes.addressof(source), ctypes.addressof(out))
    found = struct.unpack("<65536H", out.raw)
    for k in range(65536):
        is_nan = k & 0x7C00 == 0x7C00 and k & 0x3FF
        assert found[k] == (k & 0x8000 | 0x7E00 if is_nan else k), hex(k)


@pytest.mark.parametrize("width", WIDTHS)
def test_flush_and_quiet_make_bits_canonical(width):
    bits = [0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0, 0x80000000] * 2
    floats = [struct.unpack("<f", struct.pack("<I", b))[0] for b in bits]
    check(run("flush", "f32", [floats], width), [rounding.f32_from_bits(b) for b in bits])
    assert [struct.pack("<f", x) for x in run("quiet", "f32", [[math.nan, 1.0, -0.0, math.inf] * 4], width)] == [
        struct.pack("<I", b) for b in (0x7FC00000, 0x3F800000, 0x80000000, 0x7F800000)
    ] * 4


@pytest.mark.parametrize("width", WIDTHS)
def test_narrowing_wraps_to_the_range_of_the_type(width):
    for name, dtype in (("u8", "u32"), ("u16", "u32"), ("i8", "i32"), ("i16", "i32")):
        define = arith.cast(getattr(dtypes, dtype), getattr(dtypes, name))
        check(run("narrow", dtype, [values(dtype)], width, attr=name), [define(x) for x in values(dtype)])
