"""Every function that WGSL text calls, on a real adapter, against the definition of its instruction."""

import math
import random
import re
import struct
from functools import cache
from itertools import product

import numpy as np
import pytest

from vyre.backends.wgpu.emit import prelude
from vyre.backends.wgpu.emit.prelude import called, functions
from vyre.backends.wgpu.emit.traits import SAFEST, Traits
from vyre.foundation.ir import rounding
from vyre.lower.instructions import function_of
from vyre.lower.kernel_ir import Ins
from vyre.lower.registers import bits_of, value_of

from ...support.wgpu_raw import WIDE, device_or_skip

NATIVE = Traits(native_divide=True, native_root=True, native_fma=True)
PLAIN = Traits(fences=False)
QNAN = 0x7FC00000
POINTS = 1 << 16
GROUP = 256

EDGES_32 = (
    0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000, 0x1000001, 0x1000003,
    0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFF0000, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFFE, 0xFFFFFFFF,
)  # fmt: skip
EDGES_64 = (
    *EDGES_32, 1 << 32, (1 << 32) + 1, (1 << 33) - 1, 0xFFFF << 32, (1 << 48) - 1, 0x8000000000000001, 1 << 63,
    (1 << 63) - 1, (1 << 63) + 1, 0xFFFFFFFF00000000, 0xFFFFFFFF00000001, 0xFFFFFFFFFFFF0000, (1 << 64) - 2,
    (1 << 64) - 1, 0x00FFFFFF80000000, 0x00FFFFFF80000001, 0xFFFFFFFEFFFFFFFF, 0x8000000080000000,
)  # fmt: skip
EDGES_F32 = (
    0x00000000, 0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x3FC00000, 0x3FFFFFFF, 0x00800000, 0x00800001, 0x00FFFFFF,
    0x01000000, 0x00000001, 0x00400000, 0x007FFFFF, 0x7F7FFFFF, 0x7F7FFFFE, 0x7F000000, 0x7F800000, 0x7FC00000,
    0x7F800001, 0x1FFFFFFF, 0x20000000, 0x1F800001, 0x33800000, 0x33800001, 0x337FFFFF, 0x4B000000, 0x4B7FFFFF,
    0x4B800000, 0x4F000000, 0x4EFFFFFF, 0x4F7FFFFF, 0x4F800000, 0x5F000000, 0x5EFFFFFF, 0x5F7FFFFF, 0x5F800000,
    0x3EFFFFFF, 0x3F000000, 0x40490FDB, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x38800000, 0x387FFFFF, 0x387FF000,
    0x33000000, 0x33000001, 0x32FFFFFF, 0x3F7FFFFE, 0x0C800000,
)  # fmt: skip
"""Zero, ones, the smallest normal, subnormals, the largest, infinity, NaNs, squares near 2^-126, units in the last
place, bounds of integers and of f16."""


# ---- operands -------------------------------------------------------------------------------------------------------


@cache
def words(bits, seed, n=POINTS):
    """Edges first, then numbers of all lengths."""
    rng = random.Random(seed)
    return [rng.getrandbits(bits) >> rng.choice((0, 0, rng.randrange(bits))) for _ in range(n)]


@cache
def floats(seed, n=POINTS):
    """Bits of all kinds: any, near 1, near the smallest, with few digits, edges."""
    rng = random.Random(seed)

    def one():
        any_bits = rng.getrandbits(32)
        match rng.randrange(8):
            case 0 | 1:
                return any_bits
            case 2 | 3:
                return any_bits & 0x807FFFFF | rng.randrange(117, 138) << 23
            case 4:
                return any_bits & 0x807FFFFF | rng.randrange(0, 5) << 23
            case 5:
                return any_bits & 0x807FFFFF | rng.randrange(40, 90) << 23
            case 6:
                return any_bits & 0xFFFFE000
            case _:
                return rng.choice(EDGES_F32) | any_bits & 0x80000000

    return [one() for _ in range(n)]


@cache
def crossed(edges, arity):
    signed = [*edges, *(e | 0x80000000 for e in edges)] if edges is EDGES_F32 else list(edges)
    if arity == 3:
        signed = signed[::4] + signed[1::7]
    return list(zip(*product(signed, repeat=arity), strict=True))


@cache
def operands(dtypes):
    """Columns of bits: all pairs of edges, then random ones."""
    if dtypes[0] == "bool":
        return ((0, 1),)
    edges = {"f32": EDGES_F32, "u64": EDGES_64, "i64": EDGES_64}.get(dtypes[0], EDGES_32)
    first = crossed(edges, len(dtypes))
    if dtypes[0] == "f32":
        parts = [first, [floats(k) for k in range(len(dtypes))], *close_calls(len(dtypes))]
    else:
        parts = [first, [words(64 if t in ("u64", "i64") else 32, k) for k, t in enumerate(dtypes)]]
    return tuple([x for part in parts for x in part[k]] for k in range(len(dtypes)))


def near_squares():
    """Bits of numbers whose roots in 25 bits leave nearly nothing, or nearly one more."""
    m = np.arange(1 << 23, 1 << 24)
    found = []
    for odd in (0, 1):
        x = m << 25 + odd
        root = np.sqrt(x.astype(np.float64)).astype(np.int64)
        rest = x - root * root
        close = (rest < 40) | (rest > 2 * root - 40)
        found.append(m[close] & 0x7FFFFF | 127 + odd << 23)
    return np.concatenate(found).astype(np.uint32)


def near_multiples():
    """Bits of numbers whose quotient in 25 bits leaves nearly nothing, or nearly the divisor."""
    rng = random.Random(2)
    rows = []
    while len(rows) < POINTS // 4:
        b, rest, up = rng.getrandbits(22) * 2 + 1 | 1 << 23, rng.randint(-4, 4), rng.getrandbits(1)
        quotient = -rest * pow(b, -1, 1 << 24 + up) % (1 << 24 + up) | 1 << 24
        a = quotient * b + rest >> 24 + up
        if 1 << 23 <= a < 1 << 24 and (a < b) == up:
            rows.append((a & 0x7FFFFF | 0x3F800000, b & 0x7FFFFF | 0x3F800000))
    return np.array(rows, dtype=np.uint32).T


def close_calls(arity):
    """Products and quotients next to 2^-126 and to the largest number; addends that nearly cancel a product."""
    rng = np.random.default_rng(arity)
    n = POINTS // 2
    a, b = (rng.integers(0, 1 << 32, n, dtype=np.uint32) & 0x807FFFFF | 0x3F800000 for _ in "ab")
    b = np.where(rng.random(n) < 0.3, a ^ 0x7FFFFF, b) & 0x7FFFFFFF  # products and quotients with long runs of ones
    wide = [x.view(np.float32).astype(np.float64) for x in (a, b)]
    near = rng.integers(-2, 3, n)

    def bits(x):
        with np.errstate(all="ignore"):
            return (x.astype(np.float32).view(np.int32) + near).astype(np.uint32)

    def scaled(x, by):
        return (x.astype(np.int64) + (by << 23)).astype(np.uint32)

    if arity == 1:
        return [[near_squares().tolist()]]
    tiny_or_huge = np.where(rng.random(n) < 0.7, 2.0**-126, 2.0**127)
    products = bits(tiny_or_huge * 2.0**40 / wide[1]), scaled(b, -40)
    quotients = bits(tiny_or_huge * wide[1] * 2.0**-20), scaled(b, -20)
    pairs = [products, quotients, near_multiples()]
    if arity == 2:
        return [[c.tolist() for c in pair] for pair in pairs]
    power = rng.integers(-60, 60, n)
    cancelled = a, b, bits(-wide[0] * wide[1])
    spread = a, scaled(b, power), bits(-wide[0] * wide[1] * np.exp2(power + rng.integers(-50, 51, n)))
    far = rng.integers(-30, 31, n)
    product = -(tiny_or_huge * 2.0**-1)
    edge = bits(tiny_or_huge * 2.0**40 / wide[1]), scaled(b, -40), bits(product * np.exp2(-abs(far)))
    return [[c.tolist() for c in triple] for triple in (cancelled, spread, edge)]


# ---- the device -----------------------------------------------------------------------------------------------------


def signature(name, traits=SAFEST):
    """WGSL types of the operands and of the result."""
    found = re.search(rf"fn {name}\((.*)\) -> (\S+) {{", functions([name], traits))
    return [a.split(": ")[1] for a in found[1].split(", ")], found[2]


def compute(expression, names, columns, types, result, traits=SAFEST, edit=lambda text: text, off=0):
    """`expression` over x0, x1, ... as the device computes it, as bits."""
    wgpu = pytest.importorskip("wgpu")
    device = device_or_skip()
    n = len(columns[0])
    stored = [t if t == "vec2<u32>" else "u32" for t in (*types, result)]
    loads = [
        f"let x{k} = " + {"bool": f"in{k}[i] != 0u", "i32": f"bitcast<i32>(in{k}[i])"}.get(t, f"in{k}[i]") + ";"
        for k, t in enumerate(types)
    ]
    store = {"bool": "select(0u, 1u, {})", "i32": "bitcast<u32>({})"}.get(result, "{}").format(expression)
    text = "\n".join(
        [
            "struct Params { z0: u32, z1: u32, count: u32, off: u32 }",
            "@group(0) @binding(0) var<uniform> params: Params;",
            f"@group(0) @binding(1) var<storage, read_write> out: array<{stored[-1]}>;",
            *(f"@group(0) @binding({k + 2}) var<storage, read> in{k}: array<{t}>;" for k, t in enumerate(stored[:-1])),
            edit(functions(names, traits)),
            f"@compute @workgroup_size({GROUP})",
            "fn main(@builtin(global_invocation_id) id: vec3<u32>) {",
            "let i = id.x;",
            "if (i >= params.count) { return; }",
            *loads,
            f"out[i] = {store};",
            "}",
        ]
    )
    usage = wgpu.BufferUsage
    wide = [np.uint64 if t == "vec2<u32>" else np.uint32 for t in stored]
    params = device.create_buffer_with_data(data=struct.pack("<4I", 0, 0, n, off & 0xFFFFFFFF), usage=usage.UNIFORM)
    out = device.create_buffer(size=-(-n // 2) * 16, usage=usage.STORAGE | usage.COPY_SRC)
    inputs = [
        device.create_buffer_with_data(data=np.array(c, dtype=t).tobytes(), usage=usage.STORAGE)
        for c, t in zip(columns, wide, strict=False)
    ]
    module = device.create_shader_module(code=text)
    pipeline = device.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    bound = enumerate([params, out, *inputs])
    entries = [{"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}} for k, b in bound]
    encoder = device.create_command_encoder()
    step = encoder.begin_compute_pass()
    step.set_pipeline(pipeline)
    step.set_bind_group(0, device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries))
    step.dispatch_workgroups(-(-n // GROUP))
    step.end()
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(out), wide[-1], n).copy()


def call(name, columns, traits=SAFEST, **more):
    types, result = signature(name, traits)
    args = ", ".join(f"x{k}" for k in range(len(types)))
    return compute(f"{name}({args})", [name], columns, types, result, traits, **more)


def quiet(bits):
    """Every NaN as the canonical one."""
    bits = np.asarray(bits, dtype=np.uint32)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint32(QNAN), bits)


def same(found, expected, columns, is_float):
    if is_float:
        found, expected = quiet(found), quiet(expected)
    wrong = np.flatnonzero(found != np.asarray(expected, dtype=found.dtype))
    shown = [
        f"{[hex(c[k]) for c in columns]} gave {int(found[k]):#x}, not {int(expected[k]):#x}"
        for k in map(int, wrong[:5])
    ]
    assert not wrong.size, f"{wrong.size} of {len(found)} differ: " + "; ".join(shown)


# ---- the definitions ------------------------------------------------------------------------------------------------


def instruction(op, dtype, *sources, attr=None):
    return Ins(op, dtype, tuple(Ins("get", s) for s in sources), attr)


FLOAT_STEPS = {
    **{f"{op}_f32": instruction(op, "f32", "f32", "f32") for op in ("add", "sub", "mul", "div")},
    "sqrt_f32": instruction("sqrt", "f32", "f32"),
    "fma_f32": instruction("fma", "f32", "f32", "f32", "f32"),
}
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
COMPARISONS = {f"{op}_f32": instruction(op, "bool", "f32", "f32") for op in COMPARE}
ANY_FLOAT = {
    **{f"{op}_f32": instruction(op, "f32", "f32", "f32") for op in ("min", "max", "copysign")},
    **{f"{op}_f32": instruction(op, "f32", "f32") for op in ("neg", "abs", "floor", "ceil", "trunc", "flush", "quiet")},
    "round_f16": instruction("round_f16", "f32", "f32"),
    "convert_f32_u32": instruction("convert", "u32", "f32"),
    "convert_f32_i32": instruction("convert", "i32", "f32"),
}
CANONICAL_FLOAT = {"round_bf16": instruction("round_bf16", "f32", "f32")}
WHOLE = {
    **{f"convert_{t}_f32": instruction("convert", "f32", t) for t in ("bool", "u32", "i32")},
    "convert_bool_u32": instruction("convert", "u32", "bool"),
    "convert_bool_i32": instruction("convert", "i32", "bool"),
    "convert_bool_u64": instruction("convert", "u64", "bool"),
    "convert_u32_u64": instruction("convert", "u64", "u32"),
    "convert_i32_u64": instruction("convert", "u64", "i32"),
    "convert_u64_u32": instruction("convert", "u32", "u64"),
    "convert_u64_i32": instruction("convert", "i32", "u64"),
    "mulhi_u32": instruction("mulhi", "u32", "u32", "u32"),
    "rem_i32": instruction("rem", "i32", "i32", "i32"),
    **{f"{op}_i32": instruction(op, "i32", "i32") for op in ("popcount", "clz", "ctz", "bitrev")},
    **{f"narrow_{t}": instruction("narrow", "u32", "u32", attr=t) for t in ("u8", "u16")},
    **{f"narrow_{t}": instruction("narrow", "i32", "i32", attr=t) for t in ("i8", "i16")},
    **{f"{op}_u64": instruction(op, "u64", "u64", "u64") for op in ("add", "sub", "mul", "shl")},
    **{f"{op}_{t}": instruction(op, t, t, t) for op in ("div", "rem", "min", "max", "shr") for t in ("u64", "i64")},
    **{f"{op}_u64": instruction(op, "u64", "u64") for op in ("popcount", "clz", "ctz", "bitrev")},
    **{f"{op}_u64": instruction(op, "bool", "u64", "u64") for op in COMPARE},
    **{f"{op}_i64": instruction(op, "bool", "i64", "i64") for op in ("lt", "le", "gt", "ge")},
}
ALL = FLOAT_STEPS | COMPARISONS | ANY_FLOAT | CANONICAL_FLOAT | WHOLE
BY_HAND = {
    "load_f16", "store_f16", "load_bf16", "store_bf16", "convert_u64_f32", "convert_i64_f32", "convert_f32_u64",
    "convert_f32_i64", "select_u32", "select_i32", "select_f32", "select_u64",
}  # fmt: skip
"""Functions with tests of their own."""
HELPERS = {
    "pack_f32", "round_to_24", "fraction_mask", "away_f32", "size_as_u32", "size_as_u64", "size_i64", "shift_up",
    "shift_down", "shift_and_keep", "leading_zeros", "digit_of", "is_too_large", "divide_pair",
}  # fmt: skip
"""Functions that others call."""


def expected(item, columns, soft=False):
    """The bits that an instruction gives."""
    f = function_of(item, soft)
    sources = [a.dtype for a in item.args]
    decoded = [[value_of(t, b) for b in column] for t, column in zip(sources, columns, strict=True)]
    return [bits_of(item.dtype, f(*values)) for values in zip(*decoded, strict=True)]


@cache
def step_law(name, soft):
    columns = step_operands(name, soft)
    return columns, expected(FLOAT_STEPS[name], columns, soft)


@cache
def step_operands(name, soft):
    """With soft flushing, operands have been flushed before."""
    columns = operands(tuple(a.dtype for a in FLOAT_STEPS[name].args))
    return tuple([flushed(x) for x in column] for column in columns) if soft else columns


def flushed(bits):
    return bits if bits & 0x7F800000 else bits & 0x80000000


def legal(item, columns):
    """Without the operands that no kernel has."""
    dtype, op = item.args[0].dtype, item.op
    if op in ("shl", "shr"):
        return columns[0], [n % 64 for n in columns[1]]
    if op in ("div", "rem"):
        width = 32 if dtype == "i32" else 64
        lowest, ones = 1 << width - 1, (1 << width) - 1
        rows = [
            (a, b)
            for a, b in zip(*columns, strict=True)
            if b and not (dtype in ("i32", "i64") and a == lowest and b == ones)
        ]
        return tuple(map(list, zip(*rows, strict=True)))
    return columns


# ---- names ----------------------------------------------------------------------------------------------------------


def test_each_function_is_tested():
    assert set(ALL) | BY_HAND | HELPERS == prelude._NAMES
    assert not (set(ALL) | BY_HAND) & HELPERS


@pytest.mark.parametrize("name", ALL)
def test_an_instruction_calls_its_function(name):
    assert called(ALL[name]) == name


@pytest.mark.parametrize(
    "item, name",
    [
        (instruction("add", "i64", "i64", "i64"), "add_u64"),
        (instruction("shl", "i64", "i64", "u64"), "shl_u64"),
        (instruction("clz", "i64", "i64"), "clz_u64"),
        (instruction("eq", "bool", "i64", "i64"), "eq_u64"),
        (instruction("convert", "i64", "i32"), "convert_i32_u64"),
        (instruction("convert", "u32", "i64"), "convert_u64_u32"),
        (instruction("convert", "f32", "i64"), "convert_i64_f32"),
        (instruction("convert", "i64", "f32"), "convert_f32_i64"),
        (instruction("convert", "i64", "bool"), "convert_bool_u64"),
        (instruction("add", "u32", "u32", "u32"), None),
        (instruction("lt", "bool", "i32", "i32"), None),
        (instruction("div", "i32", "i32", "i32"), None),
        (instruction("convert", "i32", "u32"), None),
        (instruction("convert", "i64", "u64"), None),
        (instruction("bitcast", "f32", "u32"), None),
        (instruction("select", "i64", "bool", "i64", "i64"), "select_u64"),
        (instruction("select", "bool", "bool", "bool", "bool"), None),
        (instruction("xor", "u64", "u64", "u64"), None),
    ],
)
def test_what_has_no_sign_shares_a_function_and_what_wgsl_does_has_none(item, name):
    assert called(item) == name


def test_the_text_has_what_is_called_and_no_more():
    text = functions(["min_u64"], SAFEST)
    assert re.findall(r"fn (\w+)", text) == ["lt_u64", "min_u64"]


@pytest.mark.parametrize("traits", [SAFEST, NATIVE, PLAIN])
def test_the_text_does_not_depend_on_the_order_of_names(traits):
    names = sorted(prelude._NAMES - HELPERS)
    text = functions(names, traits)
    assert functions(reversed(names), traits) == text
    assert ("params.z0" in text and "params.z1" in text) == traits.fences
    assert "for (" not in text  # loops are counted on some devices
    assert "while" not in text
    assert "loop" not in text


# ---- floats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fences", [True, False])
@pytest.mark.parametrize("name", ["div_f32", "sqrt_f32", "fma_f32"])
def test_steps_in_integers_flush_and_round_once(name, fences):
    columns, law = step_law(name, False)
    same(call(name, columns, Traits(fences=fences, soft_flush=False)), law, columns, True)


def test_who_flushes_makes_a_difference_to_native_steps_alone():
    for fences in (True, False):
        kept, lost = (Traits(fences=fences, soft_flush=soft) for soft in (True, False))
        for name in ALL:
            text = functions([name], lost)
            assert (functions([name], kept) == text) == (name not in ("add_f32", "sub_f32", "mul_f32"))


@pytest.mark.parametrize("fences", [True, False])
@pytest.mark.parametrize("name", ["add_f32", "sub_f32", "mul_f32", "div_f32", "sqrt_f32"])
def test_native_steps_of_canonical_numbers_flush_and_round_once(name, fences):
    if name in ("div_f32", "sqrt_f32"):
        software_or_skip()
    _, law = step_law(name, False)
    columns = step_operands(name, True)
    same(call(name, columns, Traits(fences=fences, native_divide=True, native_root=True)), law, columns, True)


@pytest.mark.parametrize("fences", [True, False])
def test_a_wide_fma_of_canonical_numbers_flushes_and_rounds_once(fences):
    wide_or_skip()
    for columns in (step_operands("fma_f32", True), sums_near_halfway()):
        law = expected(FLOAT_STEPS["fma_f32"], columns)
        same(call("fma_f32", columns, Traits(fences=fences, wide_fma=True)), law, columns, True)


def sums_near_halfway():
    """Products of 25 bits that end in one, so that they lie halfway between two f32, and addends that are far smaller:
    nothing, too small for an f64 to keep, or just large enough. Then products next to 2^-126 less a quarter of its last
    place, which is 31 601 1801 of some unit."""
    rng = random.Random(7)
    rows = [
        (math.ldexp(float(a), -75), sign * math.ldexp(float(b), -76), 0.0)
        for a in range(18631 - 40, 18631 + 40)
        for b in range(1801 - 4, 1801 + 5)
        for sign in (1.0, -1.0)
    ]
    while len(rows) < POINTS // 8:
        a, b = rng.getrandbits(13) | 1, rng.getrandbits(13) | 1
        if 1 << 24 < a * b < 1 << 25:
            power, by = rng.choice((0, 0, 40, -40, -60)), rng.choice((None, *range(24, 32), 45, *range(50, 58), 76, 90))
            addend = 0.0 if by is None else math.ldexp(rng.choice((1.0, -1.0, 1.5, -1.25)), power + 24 - by)
            rows.append((rng.choice((1.0, -1.0)) * math.ldexp(a, power), float(b), addend))
    return tuple([flushed(bits_of("f32", x)) for x in column] for column in zip(*rows, strict=True))


def wide_or_skip():
    if not set(WIDE) <= set(device_or_skip().adapter.features):
        pytest.skip("the adapter has no f64 or no u64")


def software_or_skip():
    """Division and roots of hardware are not always exact."""
    if "llvmpipe" not in device_or_skip().adapter.info["device"]:
        pytest.skip("the adapter is not one that is known to divide exactly")


@pytest.mark.parametrize("fences", [True, False])
def test_the_native_fma_takes_its_operands_in_order(fences):
    """Where the product has no more than 24 bits, fused or not is the same."""
    rng = random.Random(5)
    columns = tuple(
        [rng.getrandbits(32) & 0x807FF000 | rng.randrange(110, 140) << 23 for _ in range(POINTS)] for _ in "abc"
    )
    law = expected(FLOAT_STEPS["fma_f32"], columns)
    same(call("fma_f32", columns, Traits(fences=fences, native_fma=True)), law, columns, True)


@pytest.mark.parametrize("off", [-4, -3, -1, 1, 3, 4])
def test_a_quotient_is_exact_although_the_estimate_is_not(off):
    columns, law = step_law("div_f32", False)

    def edit(text):
        text, n = re.subn(r"(1\.0 / bitcast<f32>\(.*\));", r"bitcast<f32>(bitcast<u32>(\1) + params.off);", text)
        assert n == 1
        return text

    same(call("div_f32", columns, edit=edit, off=off), law, columns, True)


@pytest.mark.parametrize("off", [-4, -3, -1, 1, 3, 4])
def test_a_root_is_exact_although_the_estimates_are_not(off):
    columns, law = step_law("sqrt_f32", False)

    def edit(text):
        text, n = re.subn(r"u32\((sqrt\(.*\)) \* 1677", r"u32(bitcast<f32>(bitcast<u32>(\1) + params.off) * 1677", text)
        assert n == 1
        text, n = re.subn(r"let off = (.*);", r"let off = bitcast<f32>(bitcast<u32>(\1) + params.off);", text)
        assert n == 1
        return text

    same(call("sqrt_f32", columns, edit=edit, off=off), law, columns, True)


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("traits", [SAFEST, PLAIN], ids=["fenced", "plain"])
def test_comparisons_of_canonical_numbers(name, traits):
    columns = step_operands("add_f32", True)
    same(call(name, columns, traits), expected(COMPARISONS[name], columns), columns, False)


@pytest.mark.parametrize("name", ANY_FLOAT)
def test_float_instructions_take_all_bits_as_they_are(name):
    item = ANY_FLOAT[name]
    columns = operands(tuple(a.dtype for a in item.args))
    same(call(name, columns), expected(item, columns), columns, item.dtype == "f32" and name != "quiet_f32")


def test_rounding_to_bf16_of_canonical_numbers():
    columns = ([flushed(x) for x in operands(("f32",))[0]],)
    same(call("round_bf16", columns), expected(CANONICAL_FLOAT["round_bf16"], columns), columns, True)


def test_each_f16_is_loaded_and_stored():
    halves = list(range(1 << 16))
    values = [bits_of("f32", struct.unpack("<e", struct.pack("<H", h))[0]) for h in halves]
    same(call("load_f16", (halves,)), values, (halves,), True)
    stored = [0x7E00 if h & 0x7FFF > 0x7C00 else h for h in halves]
    same(call("store_f16", (values,)), stored, (values,), False)


def test_bf16_is_the_upper_half():
    halves = list(range(1 << 16))
    values = [h << 16 for h in halves]
    same(call("load_bf16", (halves,)), values, (halves,), False)
    same(call("store_bf16", (values,)), halves, (values,), False)


# ---- compositions ---------------------------------------------------------------------------------------------------

COMPOSITIONS = {
    "a sum less a part": lambda do, a, b, c: do("sub", do("add", a, b), a),
    "a difference with itself": lambda do, a, b, c: do("sub", a, a),
    "a sum with zero": lambda do, a, b, c: do("add", a, 0),
    "a product with zero": lambda do, a, b, c: do("mul", a, 0),
    "a quotient with itself": lambda do, a, b, c: do("div", a, a),
    "rounding by a large sum": lambda do, a, b, c: do("sub", do("add", a, 0x4B400000), 0x4B400000),
    "the square of a root": lambda do, a, b, c: do("mul", do("sqrt", a), do("sqrt", a)),
    "a product and a sum": lambda do, a, b, c: do("add", do("mul", a, b), c),
    "a difference and its opposite": lambda do, a, b, c: do("add", do("sub", a, b), do("sub", b, a)),
    "a product of a quotient": lambda do, a, b, c: do("mul", do("div", a, b), b),
    "a difference of products": lambda do, a, b, c: do("sub", do("mul", a, b), do("mul", a, c)),
    "a fused step with the same number twice": lambda do, a, b, c: do("fma", a, b, a),
    "a fused step with one": lambda do, a, b, c: do("fma", a, 0x3F800000, b),
    "a fused step with minus one": lambda do, a, b, c: do("fma", a, 0xBF800000, a),
    "a fused step with one and zero": lambda do, a, b, c: do("fma", a, 0x3F800000, 0),
    "a fused step with zero": lambda do, a, b, c: do("fma", 0, a, b),
    "a fused step with zero added": lambda do, a, b, c: do("fma", a, b, 0),
    "a fused step with minus zero added": lambda do, a, b, c: do("fma", a, b, 0x80000000),
    "a fused step less a product": lambda do, a, b, c: do("sub", do("fma", a, b, c), do("mul", a, b)),
    "different from itself": lambda do, a, b, c: do("ne", a, a),
    "equal to itself": lambda do, a, b, c: do("eq", a, a),
}


@pytest.mark.parametrize("name", COMPOSITIONS)
@pytest.mark.parametrize(
    "traits",
    [SAFEST, Traits(native_divide=True, native_root=True), Traits(wide_fma=True)],
    ids=["safest", "native", "wide"],
)
def test_fences_keep_the_compiler_from_algebra(name, traits):
    """Operands whose sums and products are not tiny, so that each step stands for itself."""
    if traits.native_divide:
        software_or_skip()
    if traits.wide_fma:
        wide_or_skip()
    rng = random.Random(9)
    special = (0, 0x80000000, QNAN, 0x7F800000, 0xFF800000, 0x3F800000)

    def one():
        if rng.random() < 0.2:
            return rng.choice(special)
        return rng.getrandbits(32) & 0x807FFFFF | rng.randrange(110, 140) << 23

    columns = tuple([one() for _ in range(4096)] for _ in range(3))
    names = set()

    def as_text(op, *args):
        names.add(f"{op}_f32")
        return f"{op}_f32({', '.join(a if isinstance(a, str) else f'{a}u' for a in args)})"

    def by_definition(op, *args):
        item = (FLOAT_STEPS | COMPARISONS)[f"{op}_f32"]
        return expected(item, [[a] * len(columns[0]) if isinstance(a, int) else a for a in args], soft=True)

    text = COMPOSITIONS[name](as_text, "x0", "x1", "x2")
    law = COMPOSITIONS[name](by_definition, *columns)
    result = "bool" if names <= COMPARISONS.keys() else "u32"
    found = compute(text, names, columns, ["u32"] * 3, result, traits)
    same(found, law, columns, result == "u32")


@pytest.mark.parametrize("op", COMPARE)
def test_the_opposite_of_a_comparison_is_true_for_nan(op):
    columns = step_operands("add_f32", True)
    law = [1 - x for x in expected(COMPARISONS[f"{op}_f32"], columns)]
    same(compute(f"!{op}_f32(x0, x1)", [f"{op}_f32"], columns, ["u32", "u32"], "bool"), law, columns, False)


# ---- whole numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name):
    item = WHOLE[name]
    columns = legal(item, operands(tuple(a.dtype for a in item.args)))
    same(call(name, columns), expected(item, columns), columns, False)


@pytest.mark.parametrize("name", ["div_u64", "rem_u64", "div_i64", "rem_i64"])
def test_quotients_next_to_multiples_of_the_divisor(name):
    rng = random.Random(4)
    rows = []
    while len(rows) < POINTS:
        b = rng.getrandbits(64) >> rng.randrange(64) | 1 << rng.randrange(8, 63)
        q = rng.getrandbits(64) >> rng.randrange(64)
        a = (b * q + rng.choice((-1, 0, 1, b - 1))) % (1 << 64)
        rows.append((a, b))
    columns = legal(WHOLE[name], tuple(map(list, zip(*rows, strict=True))))
    same(call(name, columns), expected(WHOLE[name], columns), columns, False)


@pytest.mark.parametrize("name", ["convert_u64_f32", "convert_i64_f32"])
def test_64_bit_numbers_become_the_nearest_f32(name):
    columns = operands(("u64",))
    dtype = name[8:11]
    law = [nearest(value_of(dtype, x)) for x in columns[0]]
    same(call(name, columns), law, columns, False)


def nearest(x):
    """Bits of the f32 nearest to an integer: to 40 bits first, the last of which is set if any bit was lost."""
    size = abs(x)
    shift = max(size.bit_length() - 40, 0)
    kept = size >> shift | ((size & (1 << shift) - 1) != 0)
    return bits_of("f32", rounding.round_f32(math.ldexp(kept, shift))) | (x < 0) << 31


@pytest.mark.parametrize("name, low, high", [
    ("convert_f32_u64", 0, 2**64 - 1),
    ("convert_f32_i64", -(2**63), 2**63 - 1),
])  # fmt: skip
def test_f32_become_64_bit_numbers_that_saturate(name, low, high):
    columns = operands(("f32",))

    def law(bits):
        x = value_of("f32", bits)
        whole = 0 if x != x else low if x <= low else high if x >= high else int(x)
        return whole % (1 << 64)

    same(call(name, columns), [law(x) for x in columns[0]], columns, False)


# ---- every value ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("odd", [0, 1])
def test_every_root(odd):
    bits = np.arange(1 << 23, dtype=np.uint32) | np.uint32(127 + odd << 23)
    law = np.sqrt(bits.view(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32)
    same(call("sqrt_f32", (bits,)), law, (bits,), True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(8))
def test_millions_of_quotients(seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 1 << 32, 1 << 22, dtype=np.uint32) & 0x81FFFFFF | 0x3E000000 for _ in "ab")
    wide = [x.view(np.float32).astype(np.float64) for x in (a, b)]
    law = (wide[0] / wide[1]).astype(np.float32).view(np.uint32)
    same(call("div_f32", (a, b)), law, (a, b), True)


@pytest.mark.parametrize("fences", [False, True])
@pytest.mark.parametrize("dtype", ["u32", "i32", "f32", "u64"])
def test_a_choice_gives_the_bits_of_one_operand(dtype, fences):
    words = [0, 1, 0x80000000, 0x3F800000, 0xBF800000, 0xFFFFFFFF]
    rows = [(test, a, b) for test in (0, 1) for a in words for b in words]
    types, result = signature(f"select_{dtype}")
    traits = Traits(fences=fences)
    columns = [list(c) for c in zip(*rows, strict=True)]
    found = compute(f"select_{dtype}(x0, x1, x2)", [f"select_{dtype}"], columns, types, result, traits)
    assert list(found) == [a if test else b for test, a, b in rows]
