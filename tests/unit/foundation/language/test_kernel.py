"""What kernels mean: compiled from Python source, run by the reference engine, compared with NumPy."""

from __future__ import annotations

import linecache
import math
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import (
    In,
    InOut,
    Out,
    Uniform,
    atomic_add,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_sub,
    barrier,
    bool_,
    const,
    device,
    f16,
    f32,
    f64,
    gid,
    i8,
    i32,
    i64,
    lid,
    shared,
    static_range,
    u8,
    u16,
    u32,
    u64,
    wg,
)
from vyre.backends import reference
from vyre.foundation.ir.nodes import Assign, Atomic, If, Let, Load, Loop, Store, Var
from vyre.foundation.ir.program import Access
from vyre.foundation.ir.visit import walk, walk_nodes
from vyre.foundation.language.kernel import NO_DEFAULT, build_program, read_source

NUMPY = {
    "u32": np.uint32, "i32": np.int32, "f32": np.float32, "bool": np.uint32, "u8": np.uint8, "i8": np.int8,
    "u16": np.uint16, "i16": np.int16, "u64": np.uint64, "i64": np.int64, "f16": np.float16, "f64": np.float64,
}  # fmt: skip


def compiled(fn, workgroup=64, **consts):
    return build_program(read_source(fn, workgroup), consts)


def run(fn, *inputs, grid=1, workgroup=64, sizes=None, engine="auto", **consts):
    """The output arrays of one dispatch."""
    program = fn if isinstance(fn, vyre.Program) else compiled(fn, workgroup, **consts)
    shape = (grid, 1, 1) if isinstance(grid, int) else grid
    data = [np.ascontiguousarray(a) for a in inputs]
    result = reference.run(program, data, grid=shape, output_elements=sizes or {}, engine=engine)
    return [
        np.frombuffer(bytes(o), NUMPY[d.element.name])
        for d, o in zip(program.host_outputs, result.outputs, strict=True)
    ]


def first(fn, *inputs, **options):
    return run(fn, *inputs, **options)[0]


def words(*numbers):
    return np.array(numbers, np.uint32)


def nodes(fn, kind, **consts):
    return [n for n in walk_nodes(compiled(fn, **consts).entry) if isinstance(n, kind)]


# ---- whole kernels --------------------------------------------------------------------------------------------------


def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    """A docstring is no statement."""
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


def test_saxpy():
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 1000)).astype(np.float32)
    got = first(saxpy, np.float32([2.5]), x, y, grid=16, sizes={"out": 1000})
    np.testing.assert_array_equal(got, np.float32(2.5) * x + y)


def histogram(x: In[u32], bins: InOut[u32]):
    i = gid.x
    if i < len(x):
        atomic_add(bins, x[i] % len(bins), 1)


def test_histogram():
    x = np.random.default_rng(2).integers(0, 1 << 32, 1000, np.uint32)
    before = np.arange(10, dtype=np.uint32)
    np.testing.assert_array_equal(
        first(histogram, x, before, grid=16), before + np.bincount(x % 10, minlength=10).astype(np.uint32)
    )


def block_sums(x: In[u32], out: Out[u32], *, size: const = 64):
    tile = shared(u32, size)
    t = lid.x
    tile[t] = x[gid.x]
    barrier()
    half = u32(size // 2)
    while half > 0:
        if t < half:
            tile[t] += tile[t + half]
        barrier()
        half //= 2
    if t == 0:
        out[wg.x] = tile[0]


@pytest.mark.parametrize("size", [32, 64, 128])
def test_block_reduction_with_a_barrier_inside_a_uniform_while(size):
    x = np.random.default_rng(3).integers(0, 1 << 32, 8 * size, np.uint32)
    got = first(block_sums, x, workgroup=size, grid=8, sizes={"out": 8}, size=size)
    np.testing.assert_array_equal(got, x.reshape(8, size).sum(axis=1, dtype=np.uint32))


def unrolled_sums(x: In[u32], out: Out[u32]):
    tile = shared(u32, 64)
    t = lid.x
    tile[t] = x[gid.x]
    barrier()
    for s in static_range(6):
        if t < (32 >> s):
            tile[t] += tile[t + (32 >> s)]
        barrier()
    if t == 0:
        out[wg.x] = tile[0]


def test_block_reduction_unrolled():
    x = np.random.default_rng(4).integers(0, 1 << 32, 256, np.uint32)
    got = first(unrolled_sums, x, grid=4, sizes={"out": 4})
    np.testing.assert_array_equal(got, x.reshape(4, 64).sum(axis=1, dtype=np.uint32))
    assert not nodes(unrolled_sums, Loop)


def stencil(width: u32, height: u32, src: In[f32], out: Out[f32]):
    x, y = gid.x, gid.y
    if x >= width or y >= height:
        return
    total = src[y * width + x]
    if 0 < x < width - 1 and 0 < y < height - 1:
        total = (
            src[y * width + x - 1] + src[y * width + x + 1] + (src[(y - 1) * width + x] + src[(y + 1) * width + x])
        ) * 0.25
    out[y * width + x] = total


def test_stencil_in_two_dimensions():
    a = np.random.default_rng(5).standard_normal((13, 21)).astype(np.float32)
    want = a.copy()
    want[1:-1, 1:-1] = (a[1:-1, :-2] + a[1:-1, 2:] + (a[:-2, 1:-1] + a[2:, 1:-1])) * np.float32(0.25)
    got = first(stencil, words(21), words(13), a, workgroup=(8, 4), grid=(3, 4, 1), sizes={"out": a.size})
    np.testing.assert_array_equal(got.reshape(a.shape), want)


def prefix_sum(x: In[i32], out: Out[i32]):
    a = shared(i32, 64)
    t = lid.x
    a[t] = x[t]
    barrier()
    for s in static_range(6):
        value = a[t]
        if t >= (1 << s):
            value += a[t - (1 << s)]
        barrier()
        a[t] = value
        barrier()
    out[t] = a[t]


def test_prefix_sum():
    x = np.random.default_rng(6).integers(-(1 << 31), 1 << 31, 64, np.int64).astype(np.int32)
    np.testing.assert_array_equal(first(prefix_sum, x, sizes={"out": 64}), np.cumsum(x, dtype=np.int32))


@device
def collatz_step(n: u32) -> u32:
    if n % 2 == 0:
        return n // 2
    return 3 * n + 1


def collatz(n: In[u32], steps: Out[u32]):
    i = gid.x
    if i < len(n):
        x = n[i]
        count = 0
        while x > 1:
            x = collatz_step(x)
            count += 1
        steps[i] = count


def python_collatz(x):
    count = 0
    while x > 1:
        x, count = (x // 2 if x % 2 == 0 else 3 * x + 1), count + 1
    return count


@pytest.mark.parametrize("engine", ["numpy", "scalar"])
def test_collatz_with_while(engine):
    n = np.arange(100, dtype=np.uint32)
    got = first(collatz, n, grid=2, sizes={"steps": 100}, engine=engine)
    assert got.tolist() == [python_collatz(int(x)) for x in n]


def mandelbrot(width: u32, out: Out[u32], *, limit: const = 50):
    i = gid.x
    if i >= len(out):
        return
    cx = f32(i % width) * 0.05 - 2.0
    cy = f32(i // width) * 0.1 - 1.0
    zx, zy, k = f32(0), f32(0), 0
    for n in range(limit):
        if zx * zx + zy * zy > 4.0:
            break
        zx, zy = zx * zx - zy * zy + cx, 2 * zx * zy + cy
        k = n + 1
    out[i] = k


def test_mandelbrot_with_break():
    def escape(i):
        f = np.float32
        cx, cy = f(i % 60) * f(0.05) - f(2), f(i // 60) * f(0.1) - f(1)
        zx = zy = f(0)
        for n in range(50):
            if zx * zx + zy * zy > 4:
                return n
            zx, zy = zx * zx - zy * zy + cx, f(2) * zx * zy + cy
        return 50

    got = first(mandelbrot, words(60), grid=20, sizes={"out": 1200})
    assert got.tolist() == [escape(i) for i in range(1200)]


def game_of_life(width: u32, height: u32, cells: In[u8], out: Out[u8]):
    x, y = gid.x, gid.y
    if x >= width or y >= height:
        return
    alive = 0
    for dy in range(3):
        for dx in range(3):
            if dx == 1 and dy == 1:
                continue
            alive += u32(cells[(y + dy + height - 1) % height * width + (x + dx + width - 1) % width])
    me = cells[y * width + x] != 0
    out[y * width + x] = u8(1 if alive == 3 or (alive == 2 and me) else 0)


def test_game_of_life():
    a = np.random.default_rng(7).integers(0, 2, (9, 17)).astype(np.uint8)
    n = sum(np.roll(a, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - a
    want = ((n == 3) | ((n == 2) & (a == 1))).astype(np.uint8)
    got = first(game_of_life, words(17), words(9), a, workgroup=(8, 8), grid=(3, 2, 1), sizes={"out": a.size})
    np.testing.assert_array_equal(got.reshape(a.shape), want)


# ---- the shape of what is built -------------------------------------------------------------------------------------


def shapes(a: In[f32], b: InOut[u32, 4], c: Uniform[i32, 3], d: f32, flag: bool, e: Out[u8], *, n: const = 3):
    if flag and d > 0.0 and c[n - 1] < 0:
        e[b[0]] = 1
    if a[0] > 1:
        b[1] = 2


def test_parameters_become_buffers_in_order():
    source = read_source(shapes, (8, 2))
    assert (source.name, source.workgroup) == ("shapes", (8, 2, 1))
    assert [(p.name, p.role, str(p.element), p.count) for p in source.params] == [
        ("a", "in", "f32", 0), ("b", "inout", "u32", 4), ("c", "uniform", "i32", 3), ("d", "scalar", "f32", 1),
        ("flag", "scalar", "bool", 1), ("e", "out", "u8", 0), ("n", "const", "None", 0),
    ]  # fmt: skip
    assert [p.default for p in source.params] == [NO_DEFAULT] * 6 + [3]
    program = build_program(source, {})
    assert [(b.name, b.binding, b.access, b.count) for b in program.buffers] == [
        ("a", 0, Access.READ_ONLY, 0), ("b", 1, Access.READ_WRITE, 4), ("c", 2, Access.UNIFORM, 3),
        ("d", 3, Access.UNIFORM, 1), ("flag", 4, Access.UNIFORM, 1), ("e", 5, Access.WRITE_ONLY, 0),
    ]  # fmt: skip
    assert program.workgroup_size == (8, 2, 1)
    assert program.entry_op_id is None


def spin(out: InOut[u32]):
    x = out[0]
    while x > 1:
        x -= 1
    out[0] = x


def test_while_has_the_agreed_shape():
    text = str(compiled(spin))
    body = text[text.index("let go") :]
    assert [line.strip() for line in body.splitlines() if line.strip() != "}"] == [
        "let go: bool = true", "for again in 0..4294967295 {", "if go {", "for turn in 0..4294967295 {", "if go {",
        "go = x > 1", "if go {", "x = x - 1", "out[0] = x",
    ]  # fmt: skip


def plain_for(out: InOut[u32]):
    for i in range(2, 9):
        out[i] = i


def broken_for(out: InOut[u32]):
    for i in range(9):
        if out[i] == 3:
            break
        out[i] = i


def test_a_for_without_jumps_is_a_plain_loop_and_one_with_break_is_guarded_as_a_whole():
    (loop,) = nodes(plain_for, Loop)
    assert isinstance(loop.body[0], Store)
    (loop,) = nodes(broken_for, Loop)
    (guard,) = loop.body
    assert isinstance(guard, If)
    assert isinstance(guard.condition, Var)
    assert not guard.orelse


def test_every_statement_knows_its_source():
    for node in walk_nodes(compiled(mandelbrot).entry[0].body):
        if node.span is None:  # no line says that what follows a break is left out
            assert isinstance(node, If)
            assert node.condition == Var("go", dtype=bool_)
            continue
        assert node.span.file == __file__
        assert node.span.text == linecache.getline(__file__, node.span.line).rstrip("\n")
    store = nodes(plain_for, Store)[0]
    assert store.span.text[store.span.column - 1 : store.span.end_column - 1] == "out[i] = i"


def siblings(out: Out[f32]):
    if gid.x == 0:
        x = 1
        out[x] = 1.0
    else:
        x = 2.5
        out[0] = x


def test_sibling_blocks_may_use_one_name_for_two_types():
    assert first(siblings, workgroup=2, sizes={"out": 2}).tolist() == [2.5, 1.0]


# ---- numbers --------------------------------------------------------------------------------------------------------

SCALE = 3
WIDE = 2**33


class Config:
    TILE = 7


def test_numbers_from_outside_are_those_of_decoration_time():
    factor = 10

    def k(out: Out[u32]):
        out[0] = factor
        out[1] = SCALE * Config.TILE
        out[2] = u32(math.floor.__doc__ is None) if False else WIDE >> 32

    source = read_source(k, 1)
    factor = 11
    assert first(build_program(source, {}), workgroup=1, sizes={"out": 3}).tolist() == [10, 21, 2]


def folded(out: Out[f32], *, n: const = 4):
    out[0] = n / 8
    out[1] = (n << 3) // 5 % 4 - 2**3
    out[2] = math.pi
    out[3] = -n if n > 3 else out.size
    out[4] = abs(-n) + min(n, 2) + max(1.5, n)
    out[5] = 1.0 if not n else ~n
    out[6] = +n


def test_compile_time_arithmetic_is_python():
    got = first(folded, workgroup=1, sizes={"out": 7})
    assert got.tolist() == np.float32([0.5, -6, math.pi, -4, 10, -5, 4]).tolist()
    assert not any(isinstance(e, vyre.foundation.ir.nodes.BinOp) for e in walk(compiled(folded).entry))


def chosen(out: Out[u32], *, mode: const):
    if mode == 0:
        out[0] = 10
    elif mode == 1:
        nonsense = undefined_name  # noqa: F821, F841 - never compiled for mode 2
    else:
        y = 30
    if mode == 2:
        out[0] = y


@pytest.mark.parametrize("mode, value", [(0, 10), (2, 30)])
def test_a_compile_time_if_takes_one_side(mode, value):
    assert first(chosen, workgroup=1, sizes={"out": 1}, mode=mode).tolist() == [value]
    assert not nodes(chosen, If, mode=mode)


def test_an_untaken_side_is_not_compiled_but_a_taken_one_is():
    with pytest.raises(vyre.KernelError, match="undefined_name"):
        compiled(chosen, mode=1)


def literals(xi: In[i32], xf: In[f32], out: Out[i32], outf: Out[f32], small: Out[i8], truth: Out[bool_]):
    a = -1
    b = 5
    out[0] = a
    out[1] = xi[0] + 1 - 2
    out[2] = i32(b)
    outf[0] = xf[0] * 2 + 1
    outf[1] = 3
    small[0] = -128
    truth[0] = True
    truth[1] = b > 4


def test_literals_take_the_type_they_meet():
    got = run(
        literals, np.int32([-7]), np.float32([1.5]), workgroup=1, sizes={"out": 3, "outf": 2, "small": 1, "truth": 2}
    )
    assert [g.tolist() for g in got] == [[-1, -8, 5], [4.0, 3.0], [-128], [1, 1]]


def choices(x: In[f32], out: Out[f32], small: Out[u8], i: InOut[i32]):
    c = x[0] > 1
    out[0] = 1 if c else 0
    out[1] = x[0] * (2 if c else 3)
    small[0] = 255 if not c else 7 if x[0] > 100 else 9
    v: i32 = 1 if c else 2
    v = -5 if c else 5
    i[0] += 10 if c else 20
    i[1] = v


def test_a_choice_between_two_numbers_takes_the_type_of_its_place():
    got = run(choices, np.float32([1.5]), np.int32([1, 0]), workgroup=1, sizes={"out": 2, "small": 1})
    assert [g.tolist() for g in got] == [[1.0, 3.0], [9], [11, -5]]


def casts(x: In[f32], h: In[f16], b: In[u8], out: Out[i32], half: Out[f16], byte: Out[u8], wide: Out[u64]):
    out[0] = i32(x[0])
    out[1] = i32(h[0])
    out[2] = i32(b[0])
    half[0] = f16(b[0])
    half[1] = f16(x[0])
    half[2] = 1.5
    byte[0] = u8(x[1])
    byte[1] = u8(300 % 256)
    wide[0] = u64(b[0]) << 40
    wide[1] = u64(1 << 50)
    byte[2] = u8(bool(x[0]))


def test_casts_go_through_the_types_in_between():
    got = run(
        casts, np.float32([-2.75, 260.0]), np.float16([-3.5]), np.uint8([200]),
        workgroup=1, sizes={"out": 3, "half": 3, "byte": 3, "wide": 2},
    )  # fmt: skip
    assert [g.tolist() for g in got] == [[-2, -3, 200], [200.0, -2.75, 1.5], [255, 44, 1], [200 << 40, 1 << 50]]


def abs_min_max(x: In[i32], u: In[u32], f: In[f32], out: Out[i32], outf: Out[f32]):
    i = gid.x
    u_same = abs(u[i])
    out[i] = abs(x[i]) + min(x[i], 3, i32(u[i])) * max(x[i], -2) + i32(u_same)
    outf[i] = abs(f[i]) + max(f[i], 0.5)


def test_abs_min_max():
    x, u, f = np.int32([-5, 2, 9]), words(1, 2, 3), np.float32([-1.5, 0.25, 2])
    out, outf = run(abs_min_max, x, u, f, workgroup=3, sizes={"out": 3, "outf": 3})
    want = np.abs(x) + np.minimum(np.minimum(x, 3), u.astype(np.int32)) * np.maximum(x, -2) + u.astype(np.int32)
    assert out.tolist() == want.tolist()
    assert outf.tolist() == (np.abs(f) + np.maximum(f, 0.5)).tolist()


def operators(a: In[u32], b: In[u32], out: Out[u32]):
    x, y = a[0], b[0]
    out[0] = x + y
    out[1] = x - y
    out[2] = x * y
    out[3] = x // y
    out[4] = x % y
    out[5] = x & y
    out[6] = x | y
    out[7] = x ^ y
    out[8] = x << (y & 31)
    out[9] = x >> (y & 31)
    out[10] = ~x
    out[11] = -x
    out[12] = u32(x < y) + u32(x <= y) * 2 + u32(x == y) * 4 + u32(x != y) * 8 + u32(x > y) * 16 + u32(x >= y) * 32
    out[13] = vyre.popcount(x) + vyre.clz(y) * 100 + vyre.ctz(x) * 10000
    out[14] = vyre.rotate_left(x, 5) ^ vyre.rotate_right(y, y & 31)
    out[15] = vyre.saturating_add(x, y) ^ vyre.abs_diff(x, y) ^ vyre.mul_high(x, y)
    out[16] = vyre.select(x < y, x, 7)
    out[17] = u32((x < y) & (y < 1000)) + u32((x < y) | (y < 1000)) * 2 + u32((x < y) ^ (y < 1000)) * 4
    out[18] = u32(not x) + u32(x and y) * 2 + u32(x or y) * 4
    out[19] = 1 << (y & 31)


WORD = st.one_of(st.sampled_from([0, 1, 2, 31, 32, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
OPERATORS = compiled(operators, 1)


@settings(max_examples=60, deadline=None)
@given(WORD, WORD)
def test_u32_operators(x, y):
    got = first(OPERATORS, words(x), words(y), workgroup=1, sizes={"out": 20}).tolist()
    mask, s = 2**32 - 1, y & 31
    ctz = (x & -x).bit_length() - 1 if x else 32
    want = [
        x + y, x - y, x * y, x // y if y else mask, x % y if y else 0, x & y, x | y, x ^ y, x << s, x >> s, ~x, -x,
        (x < y) + 2 * (x <= y) + 4 * (x == y) + 8 * (x != y) + 16 * (x > y) + 32 * (x >= y),
        x.bit_count() + (32 - y.bit_length()) * 100 + ctz * 10000,
        ((x << 5 | x >> 27) & mask) ^ ((y >> s | y << 32 - s) & mask),
        min(x + y, mask) ^ abs(x - y) ^ (x * y >> 32), x if x < y else 7,
        (x < y and y < 1000) + 2 * (x < y or y < 1000) + 4 * ((x < y) != (y < 1000)),
        (x == 0) + 2 * (x != 0 and y != 0) + 4 * (x != 0 or y != 0), 1 << s,
    ]  # fmt: skip
    assert got == [w & mask for w in want]


def float_functions(x: In[f32], out: Out[f32], bits: Out[u32]):
    v = x[0]
    out[0] = vyre.sqrt(v) + vyre.floor(v) * vyre.ceil(v)
    out[1] = vyre.round(v) - vyre.trunc(v) / vyre.sign(v)
    out[2] = vyre.fma(v, 2, 1)
    out[3] = vyre.reciprocal(v) * vyre.inverse_sqrt(4)
    bits[0] = vyre.bitcast(u32, v)
    bits[1] = u32(vyre.is_nan(v)) + u32(vyre.is_finite(v)) * 2 + u32(vyre.is_inf(v)) * 4
    bits[2] = vyre.bitcast(u32, vyre.bitcast(f32, 0x40000000) + 1)


def test_float_functions():
    out, bits = run(float_functions, np.float32([2.5]), workgroup=1, sizes={"out": 4, "bits": 3})
    f = np.float32
    assert out.tolist() == [f(np.sqrt(f(2.5))) + 6, 3 - 2, 6, f(0.4) * f(0.5)]
    assert bits.tolist() == [f(2.5).view(np.uint32), 2, f(3).view(np.uint32)]


def subgroups(x: In[u32], out: Out[u32]):
    i = lid.x
    total = vyre.subgroup_add(x[i])
    mask = vyre.subgroup_ballot(x[i] % 2 == 1)
    swapped = vyre.subgroup_shuffle(x[i], vyre.subgroup_local_id() ^ 1)
    out[i] = total + mask * 3 + swapped * 5 + vyre.subgroup_size() + vyre.subgroup_max(x[i]) + vyre.subgroup_xor(x[i])


def test_subgroup_functions():
    x = np.random.default_rng(8).integers(0, 1000, 64, np.uint32)
    want = []
    for i in range(64):
        lanes = x[i // 32 * 32 : i // 32 * 32 + 32].astype(int)
        mask = sum(int(v) % 2 << k for k, v in enumerate(lanes))
        xor = int(np.bitwise_xor.reduce(lanes))
        want.append((int(lanes.sum()) + 3 * mask + 5 * int(lanes[i % 32 ^ 1]) + 32 + int(lanes.max()) + xor) % 2**32)
    assert first(subgroups, x, sizes={"out": 64}).tolist() == want


# ---- evaluation order -----------------------------------------------------------------------------------------------


def ordered(c: InOut[u32], out: Out[u32]):
    out[0] = c[0] + atomic_add(c, 0, 10) * 100 + c[0] * 10000
    out[atomic_add(c, 1, 1)] = c[1] + 7
    c[2] += atomic_exchange(c, 2, 50)
    a, b = c[3], atomic_sub(c, 3, 1)
    out[3] = a * 10 + b
    out[4] = 1 if c[0] == 1 else c[0] + atomic_max(c, 5, 9) if False else 2
    atomic_min(c, 5, 3)
    got = atomic_cas(c, 4, 4, 40)
    out[5] = got + atomic_cas(c, 4, 4, 41)


def test_effects_happen_from_left_to_right():
    c, out = run(ordered, words(1, 2, 3, 4, 4, 5), workgroup=1, sizes={"out": 6})
    assert c.tolist() == [11, 3, 3 + 3, 3, 40, 3]
    assert out.tolist() == [1 + 100 + 110000, 0, 2 + 7, 44, 2, 4 + 40]


def test_an_atomic_stands_in_a_statement_of_its_own():
    for node in walk_nodes(compiled(ordered).entry):
        if isinstance(node, Let) and isinstance(node.value, Atomic):
            continue
        assert not any(isinstance(e, Atomic) for e in walk(node) if not isinstance(e, type(node))) or node.body_fields


def named_atomic(c: InOut[u32]):
    old = atomic_add(c, 0, 1)
    old += 1
    c[1] = old


def test_the_result_of_an_atomic_takes_the_name_it_is_assigned_to():
    (let,) = nodes(named_atomic, Let)
    assert let.name == "old"
    assert first(named_atomic, words(5, 0), workgroup=1).tolist() == [6, 6]


@device
def bump(c, k):
    c[k] += 1
    return c[k]


def helper_order(c: InOut[u32], out: Out[u32]):
    out[0] = c[0] + bump(c, 0) * 10 + c[0] * 100
    c[bump(c, 1)] += bump(c, 0)


def test_helpers_count_as_effects():
    c, out = run(helper_order, words(1, 1, 7), workgroup=1, sizes={"out": 1})
    assert out.tolist() == [1 + 20 + 200]
    assert c.tolist() == [3, 2, 10]


def swapped(c: InOut[u32]):
    a, b = c[0], c[1]
    a, b = b, a
    c[0], c[1] = a + b, a
    p = q = c[0]
    p += 1
    c[2] = p * 100 + q


def test_tuple_and_chained_assignment():
    assert first(swapped, words(3, 4, 0), workgroup=1).tolist() == [7, 4, 807]


# ---- loops ----------------------------------------------------------------------------------------------------------


def ranges(lo: u32, hi: u32, step: u32, out: Out[u32]):
    k = 0
    for i in range(lo, hi, step):
        out[k] = i
        k += 1
    out[19] = k


def signed_ranges(lo: i32, hi: i32, step: i32, out: Out[i32]):
    k = 0
    for i in range(lo, hi, step):
        out[k] = i
        k += 1
    out[19] = i32(k)


RANGES, SIGNED_RANGES = compiled(ranges, 1), compiled(signed_ranges, 1)
EDGE = st.one_of(st.integers(0, 12), st.integers(2**32 - 12, 2**32 - 1))
SIGNED_EDGE = st.one_of(st.integers(-12, 12), st.integers(2**31 - 12, 2**31 - 1), st.integers(-(2**31), -(2**31) + 12))


def expected_range(lo, hi, step):
    items = list(range(lo, hi, step))[:19] if step else []
    return items + [0] * (19 - len(items)) + [len(range(lo, hi, step)) if step else 0]


@settings(max_examples=80, deadline=None)
@given(EDGE, EDGE, st.one_of(st.integers(0, 5), st.sampled_from([2**31, 2**32 - 1])))
def test_range_with_a_step_that_varies(lo, hi, step):
    if step and len(range(lo, hi, step)) > 19:
        return
    got = first(RANGES, words(lo), words(hi), words(step), sizes={"out": 20})
    assert got.tolist() == expected_range(lo, hi, step)


@settings(max_examples=80, deadline=None)
@given(SIGNED_EDGE, SIGNED_EDGE, st.one_of(st.integers(-5, 5), st.sampled_from([-(2**31), 2**31 - 1])))
def test_signed_range_with_a_step_that_varies(lo, hi, step):
    if step and len(range(lo, hi, step)) > 19:
        return
    got = first(SIGNED_RANGES, np.int32([lo]), np.int32([hi]), np.int32([step]), sizes={"out": 20})
    assert got.tolist() == expected_range(lo, hi, step)


def fixed_steps(lo: u32, hi: u32, slo: i32, shi: i32, out: Out[i32]):
    k = 0
    for i in range(lo, hi, 3):
        out[k] = i32(i)
        k += 1
    out[k] = -1000
    k += 1
    for i in range(hi, lo, -2):
        out[k] = i32(i)
        k += 1
    out[k] = -1000
    k += 1
    for i in range(hi - 1, -1, -1):
        out[k] = i32(i)
        k += 1
    out[k] = -1000
    k += 1
    for j in range(shi, slo, -4):
        out[k] = j
        k += 1
    out[k] = -1000
    k += 1
    for j in range(shi):
        out[k] = j
        k += 1
    out[k] = -1000
    k += 1
    for j in range(-3, 4, 2):
        out[k] = j
        k += 1
    for i in range(5, -1, -2):
        out[k] = i32(i)
        k += 1
    for i in range(4, 4):
        out[k] = i32(i)


@pytest.mark.parametrize(
    "lo, hi, slo, shi", [(2, 12, -6, 5), (5, 5, 0, 0), (12, 2, 3, -9), (0, 0, 4, 4), (0, 1, -1, 1)]
)
def test_ranges_with_fixed_steps(lo, hi, slo, shi):
    stop = [-1000]
    want = [
        *range(lo, hi, 3), *stop, *range(hi, lo, -2), *stop, *range(hi - 1, -1, -1), *stop, *range(shi, slo, -4), *stop,
        *range(shi), *stop, *range(-3, 4, 2), *range(5, -1, -2),
    ]  # fmt: skip
    got = first(
        fixed_steps, words(lo), words(hi), np.int32([slo]), np.int32([shi]), workgroup=1, sizes={"out": len(want)}
    )
    assert got.tolist() == want


def changing_bounds(n: In[u32], out: Out[u32]):
    lo, hi, k = n[0], n[1], 0
    for i in range(lo, hi, 2):
        lo, hi = 0, 0
        k = k * 10 + i
    out[0] = k


def test_bounds_are_evaluated_once():
    assert first(changing_bounds, words(1, 6), workgroup=1, sizes={"out": 1}).tolist() == [135]


def jumps(x: In[u32], out: Out[u32]):
    total = 0
    for i in range(len(x)):
        if x[i] == 0:
            continue
        if x[i] == 9:
            break
        for j in range(4):
            if j == 2:
                break
            if x[i] == 5:
                continue
            total += 1
        k = 0
        while True:
            k += 1
            if k == 3:
                continue
            if k > x[i]:
                break
            total += 100
        if x[i] == 7:
            if total > 5:
                total += 10000
                continue
            total += 20000
        total += 1000000
    for s in static_range(5):
        if s == 1:
            continue
        if x[s] == 9:
            break
        total += 100000000
    out[0] = total


def python_jumps(x):
    total = 0
    for v in x:
        if v == 0:
            continue
        if v == 9:
            break
        for j in range(4):
            if j == 2:
                break
            if v == 5:
                continue
            total += 1
        k = 0
        while True:
            k += 1
            if k == 3:
                continue
            if k > v:
                break
            total += 100
        if v == 7:
            if total > 5:
                total += 10000
                continue
            total += 20000
        total += 1000000
    for s in range(5):
        if s == 1:
            continue
        if x[s] == 9:
            break
        total += 100000000
    return total


JUMPS = compiled(jumps, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 4, 5, 7, 9]), min_size=5, max_size=9))
def test_break_and_continue_mean_what_they_mean_in_python(x):
    assert first(JUMPS, words(*x), sizes={"out": 1}).tolist() == [python_jumps(x)]


def dead_code(out: Out[u32]):
    for i in range(3):
        out[i] = 1
        break
        out[i] = 2
    return
    out[0] = 3


def test_code_behind_a_jump_is_dropped():
    assert first(dead_code, workgroup=1, sizes={"out": 3}).tolist() == [1, 0, 0]


# ---- helpers --------------------------------------------------------------------------------------------------------


@device
def clamp(x, low=0, high=10):
    if x < low:
        return low
    if x > high:
        x = high
    return x


@device
def total_of(buf: In[u32], n: const) -> u32:
    total = 0
    for k in static_range(n):
        total += buf[k]
    return total


@device
def put(buf: InOut[u32], at: u32, value: u32) -> None:
    if value == 0:
        return
    buf[at] = value


@device
def pick(flag):
    if flag:
        return 1
    return 2


def uses_helpers(x: In[i32], u: In[u32], out: Out[i32], c: InOut[u32]):
    i = gid.x
    total = clamp(x[i], high=5) * 100 + clamp(x[i], i32(2))
    out[i] = total
    put(c, i, total_of(u, 3) + i)
    put(c, 4, 0)
    c[3] = pick(i == 0)


def test_helpers_are_inlined_with_their_own_names():
    out, c = run(
        uses_helpers, np.int32([-4, 3, 40]), words(1, 2, 3), words(0, 0, 0, 0, 9), workgroup=3, sizes={"out": 3}
    )
    assert out.tolist() == [0 * 100 + 2, 3 * 100 + 3, 5 * 100 + 10]
    assert c.tolist()[:3] == [6, 7, 8]
    assert c[4] == 9


@device
def sign_of(x):
    if x > 0.0:
        return 1
    if x < 0.0:
        return -1
    return 0


@device
def half_or(x):
    if x > 0.0:
        return 0
    return 0.5


def uses_numbers(x: In[f32], out: Out[i32], outf: Out[f32]):
    i = gid.x
    out[i] = sign_of(x[i])
    outf[i] = half_or(x[i])


def test_numbers_that_a_helper_returns_agree_on_a_type():
    out, outf = run(uses_numbers, np.float32([2, -3, 0]), workgroup=3, sizes={"out": 3, "outf": 3})
    assert (out.tolist(), outf.tolist()) == ([1, -1, 0], [0.0, 0.5, 0.5])


@device
def late_caller(x):
    return late_callee(x) + 1


@device
def late_callee(x):
    return x * 2


def uses_late(out: Out[u32]):
    out[0] = late_caller(gid.x + 3)


def test_a_helper_may_be_defined_after_its_caller():
    assert first(uses_late, workgroup=1, sizes={"out": 1}).tolist() == [7]


def test_a_helper_may_be_reached_through_a_module_or_a_class():
    module = types.ModuleType("shapes")
    module.late_callee, module.SIDE = late_callee, 4

    class Tools:
        double = late_callee

    def k(out: Out[u32]):
        out[0] = module.late_callee(module.SIDE) + Tools.double(1)

    assert first(k, workgroup=1, sizes={"out": 1}).tolist() == [10]


# ---- where kernels come from ----------------------------------------------------------------------------------------


def test_source_of_exec_is_found_through_linecache():
    text = "def k(out: Out[u32]):\n    out[0] = 5\n"
    linecache.cache["<cell 1>"] = (len(text), None, text.splitlines(True), "<cell 1>")
    names: dict = {"Out": Out, "u32": u32}
    exec(compile(text, "<cell 1>", "exec"), names)
    assert first(names["k"], workgroup=1, sizes={"out": 1}).tolist() == [5]


def test_without_source_the_error_says_so():
    names: dict = {"Out": Out, "u32": u32}
    exec(compile("def k(out: Out[u32]):\n    out[0] = 5\n", "<nowhere>", "exec"), names)
    with pytest.raises(vyre.KernelError, match="source of the function is not available") as e:
        read_source(names["k"], 1)
    assert "in a file or a notebook cell" in e.value.fix


def test_changed_source_is_noticed():
    text = "x = 1\n\ndef k(out: Out[u32]):\n    out[0] = 5\n"
    linecache.cache["<cell 2>"] = (len(text), None, text.splitlines(True), "<cell 2>")
    names: dict = {"Out": Out, "u32": u32}
    exec(compile(text, "<cell 2>", "exec"), names)
    for new in ("x = 1\ny = 2\nz = 3\nw = 4\n", "x = 1\n\ndef other(a):\n    pass\n", "x = 1\n\n)\n"):
        linecache.cache["<cell 2>"] = (len(new), None, new.splitlines(True), "<cell 2>")
        with pytest.raises(vyre.KernelError, match="source") as e:
            read_source(names["k"], 1)
        assert "reload the module" in e.value.fix


@pytest.mark.parametrize(
    "edited",
    [
        "def k(n: u32, out: Out[u32], *, m: const = 3):\n    out[0] = n * 6 + m\n",
        "def k(v: u32, out: Out[u32], *, m: const = 3):\n    out[0] = v * 5 + m\n",
        "def k(n: u32, out: Out[u32], *, m: const = 3):\n    out[0] = n * 5.0 + m\n",
        "def k(n: u32, out: Out[u32], *, m: const = 3):\n    out[0] = n * 5 + other\n",
    ],
)
def test_a_file_that_was_edited_after_its_import_is_refused(edited):
    text = "def k(n: u32, out: Out[u32], *, m: const = 3):\n    out[0] = n * 5 + m\n"
    names: dict = {"Out": Out, "u32": u32, "const": const}
    exec(compile(text, "<cell 3>", "exec"), names)
    linecache.cache["<cell 3>"] = (len(text), None, text.splitlines(True), "<cell 3>")
    assert read_source(names["k"], 1).name == "k"
    linecache.cache["<cell 3>"] = (len(edited), None, edited.splitlines(True), "<cell 3>")
    with pytest.raises(vyre.KernelError, match="has changed since") as e:
        read_source(names["k"], 1)
    assert "reload the module" in e.value.fix


def test_annotations_of_local_imports_are_understood_although_their_text_is_evaluated_late():
    from vyre import In as Input  # noqa: F401 - only its original name can be found again

    def k(a: In[u32], out: "Out[u32]"):  # noqa: UP037 - text within text
        out[0] = a[0]

    assert first(k, words(8), workgroup=1, sizes={"out": 1}).tolist() == [8]


def test_names_that_are_not_ascii_become_plain_ones():
    def k(out: Out[u32]):
        größe = 3
        größe += 1
        out[0] = größe

    assert first(k, workgroup=1, sizes={"out": 1}).tolist() == [4]


def test_vyre_names_work_under_any_spelling():
    from vyre import sqrt as wurzel

    v = vyre

    def k(out: Out[f32]):
        out[0] = wurzel(v.f32(4)) + v.floor(v.gid.x * 1.0 if False else 1.5)

    assert first(k, workgroup=1, sizes={"out": 1}).tolist() == [3.0]


def test_long_sums_are_split():
    text = "def k(x: In[u32], out: Out[u32]):\n    out[0] = " + " + ".join(["x[0]"] * 300) + "\n"
    linecache.cache["<long>"] = (len(text), None, text.splitlines(True), "<long>")
    names: dict = {"In": In, "Out": Out, "u32": u32}
    exec(compile(text, "<long>", "exec"), names)
    assert first(names["k"], words(2), workgroup=1, sizes={"out": 1}).tolist() == [600]


def test_wide_types():
    def k(a: In[i64], f: In[f64], out: Out[i64], outf: Out[f64], w: Out[u16]):
        out[0] = a[0] * 3 - 1
        out[1] = abs(a[0]) >> 2
        outf[0] = f[0] / 3 + 1
        w[0] = u16(a[0])

    got = run(k, np.int64([-(1 << 40)]), np.float64([2.0]), workgroup=1, sizes={"out": 2, "outf": 1, "w": 1})
    assert [g.tolist() for g in got] == [[-3 * (1 << 40) - 1, 1 << 38], [2 / 3 + 1], [0]]


def test_loads_of_a_read_only_buffer_are_not_copied_before_an_atomic():
    def k(x: In[u32], c: InOut[u32], out: Out[u32]):
        out[0] = x[0] + atomic_add(c, 0, 1)

    program = compiled(k)
    (store,) = [n for n in walk_nodes(program.entry) if isinstance(n, Store)]
    assert isinstance(store.value.left, Load)
    assert len([n for n in walk_nodes(program.entry) if isinstance(n, Let | Assign)]) == 1


def test_an_exponent_is_an_i32_wherever_it_stands():
    def k(x: In[f32], out: Out[i32]):
        i = gid.x
        e = vyre.frexp_exponent(x[i])
        out[i] = abs(vyre.frexp_exponent(x[i])) * 100 + max(-e, 2) + (3 if -vyre.frexp_exponent(x[i]) < 1 else 4)

    (out,) = run(k, np.array([0.25, 8.0, 0.0], np.float32), sizes={"out": 3})
    assert out.tolist() == [106, 405, 5]
