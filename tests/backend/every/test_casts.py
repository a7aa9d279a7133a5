"""Every conversion of the kernel language, at its edges: each backend gives what a model in exact fractions says."""

import itertools
import linecache
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import vyre
from vyre.backends import cpu, reference

from ...support.device_backends import open_or_skip

counter = itertools.count()
INTEGERS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
"""Bits of the significand, exponents of the smallest and the largest normal number."""
KEEPS_SUBNORMALS = ("f16", "f64")
TYPES = (*INTEGERS, *FLOATS, "bool")
BITS = {**INTEGERS, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "bool": 32}
REFUSED = {*(("f64", b) for b in ("f16", "bf16")), *((a, "bf16") for a in ("u32", "i32", "u64", "i64"))}
"""Where a kernel has to say through which type: a number would be rounded twice."""


# ---- the model ------------------------------------------------------------------------------------------------------


def limits(t: str) -> tuple[int, int]:
    bits = INTEGERS[t]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "i" else (0, (1 << bits) - 1)


def fraction(x: float) -> Fraction:
    return Fraction(x)


def to_float(x: Fraction, negative: bool, t: str) -> float:
    """One rounding to nearest even; what is too small becomes zero of its sign where the type has no subnormals."""
    bits, lowest, highest = FLOATS[t]
    sign = -1.0 if negative else 1.0
    if x == 0:
        return sign * 0.0
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** ((max(exponent, lowest) if t in KEEPS_SUBNORMALS else exponent) - bits + 1)
    size = round(size / unit) * unit  # to even
    if size < Fraction(2) ** lowest and t not in KEEPS_SUBNORMALS:
        return sign * 0.0
    return sign * (float(size) if size < Fraction(2) ** (highest + 1) else math.inf)


def model(x: int | float | bool, target: str) -> int | float | bool:
    """`x` as a value of `target`."""
    if target == "bool":
        return x != 0
    if target in FLOATS:
        if isinstance(x, float) and not math.isfinite(x):
            return x
        return to_float(Fraction(x), math.copysign(1.0, x) < 0 if isinstance(x, float) else x < 0, target)
    low, high = limits(target)
    if isinstance(x, float):
        if math.isnan(x):
            return 0
        return max(low, min(high, math.trunc(x) if math.isfinite(x) else (high + 1 if x > 0 else low - 1)))
    return (x - low) % (high - low + 1) + low


def to_bits(x: int | float | bool, t: str) -> int:
    if t in INTEGERS or t == "bool":
        return int(x) % (1 << BITS[t])
    if x != x:
        return {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "f64": 0x7FF8 << 48}[t]
    if t == "bf16":
        return int(np.float32(x).view(np.uint32)) >> 16
    return int(np.array(x, {"f16": "f2", "f32": "f4", "f64": "f8"}[t]).view(f"u{BITS[t] // 8}"))


def from_bits(bits: int, t: str) -> int | float | bool:
    if t == "bool":
        return bits != 0
    if t in INTEGERS:
        return bits - (1 << BITS[t]) if t[0] == "i" and bits >> BITS[t] - 1 else bits
    if t == "bf16":
        x = float(np.uint32(bits << 16).view(np.float32))
    else:
        x = float(np.array(bits, f"u{BITS[t] // 8}").view({"f16": "f2", "f32": "f4", "f64": "f8"}[t]))
    _, lowest, _ = FLOATS[t]
    return math.copysign(0.0, x) if t not in KEEPS_SUBNORMALS and abs(x) < 2.0**lowest else x


@cache
def edges(source: str) -> list[int]:
    """Bits of `source` that lie at or beside an edge of any type."""
    if source == "bool":
        return [0, 1, 2, 0x80000000, 0xFFFFFFFF]
    ends = [n for t in INTEGERS for end in limits(t) for n in (end - 1, end, end + 1)]
    whole = sorted({*ends, *(n * s for s in (1, -1) for n in (0, 1, 2, 127, 128, 300, 2049, 4097, 65519, 65520))})
    halfway = ((0x1FFFFFF, 4), (0x1FF, 20), (3, 29), (0x1FFFFFF, 30), (0x1000001, 38), (0x1000003, 39), (0x1FFFFFF, 39))
    whole += [s * (m << k) + d for s in (1, -1) for m, k in halfway for d in (-1, 0, 1)]
    if source in INTEGERS:
        low, high = limits(source)
        return sorted({n % (1 << BITS[source]) for n in whole if low <= n <= high})
    bits = {to_bits(to_float(Fraction(n), n < 0, source), source) for n in whole}
    parts = [0.5, 0.99999, 1.5, 2.5, 254.5, 255.5, 0.1, 1e20, 1e-20, 1e300, 3.4028236e38, 6.0e-8, 2.0**-126, 1e-310]
    bits |= {to_bits(to_float(Fraction(s * p), s < 0, source), source) for s in (1, -1) for p in parts}
    last = BITS[source] - 1
    infinite = to_bits(math.inf, source)
    bits |= {b + d for b in list(bits) for d in (-1, 1) if 0 <= b + d < infinite}  # and their neighbours
    return sorted(
        bits | {0, 1, 1 << last, (1 << last) + 1, infinite, infinite | 1 << last, infinite + 1, (2 << last) - 1}
    )


# ---- the kernels ----------------------------------------------------------------------------------------------------


@cache
def casting(source: str, targets: tuple[str, ...]) -> vyre.Kernel:
    """A kernel that converts every element of `x` to each of the targets."""
    outs = ", ".join(f"to_{t}: Out[{t}]" for t in targets)
    lines = [f"def k(x: In[{source}], {outs}):", "    if gid.x < len(x):"]
    lines += [f"        to_{t}[gid.x] = {t}(x[gid.x])" for t in targets]
    return kernel_of("\n".join(lines))


def kernel_of(text: str) -> vyre.Kernel:
    filename = f"<cast {next(counter)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope = {t: getattr(vyre, t if t != "bool" else "bool_") for t in TYPES}
    scope |= {name: getattr(vyre, name) for name in ("In", "Out", "gid", "bitcast", "sqrt")}
    exec(compile(text, filename, "exec"), scope)
    return vyre.kernel(workgroup=64)(scope["k"])


def groups(source: str, legal: set[str]) -> list[tuple[str, ...]]:
    targets = [t for t in TYPES if (source, t) not in REFUSED and t in legal]
    return [tuple(targets[k : k + 5]) for k in range(0, len(targets), 5)]  # a small device binds eight buffers


def check(source: str, targets: tuple[str, ...], run) -> None:
    bits = edges(source)
    kernel = casting(source, targets)
    given = np.array(bits, f"u{BITS[source] // 8}")
    outputs = run(kernel.program, given.tobytes(), {f"to_{t}": len(bits) for t in targets})
    for t, got in zip(targets, outputs, strict=True):
        found = np.frombuffer(bytes(got), f"u{BITS[t] // 8}").tolist()
        for b, answer in zip(bits, found, strict=True):
            want = to_bits(model(from_bits(b, source), t), t)
            assert answer == want, f"{t}({from_bits(b, source)!r} of {source}) is {answer:#x}, not {want:#x}"


def engine(name: str):
    def run(program: vyre.Program, given: bytes, sizes: dict[str, int]) -> list[bytes]:
        count = next(iter(sizes.values()))
        grid = (-(-count // 64), 1, 1)
        return reference.run(program, [given], grid=grid, output_elements=sizes, engine=name).outputs

    return run


def on(backend):
    def run(program: vyre.Program, given: bytes, sizes: dict[str, int]) -> list[bytes]:
        return backend.dispatch(program, [given], vyre.DispatchConfig(output_elements=sizes))

    return run


@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("name", ["scalar", "numpy"])
def test_both_engines_of_the_reference_convert_as_the_model_does(name, source):
    for targets in groups(source, set(TYPES)):
        check(source, targets, engine(name))


@pytest.mark.parametrize("source", [*FLOATS, "i64", "bool"])
def test_the_cpu_converts_as_the_model_does(source):
    with cpu.REGISTRATION.open() as backend:
        for targets in groups(source, set(TYPES)):
            check(source, targets, on(backend))


@pytest.mark.sweep
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("id", ["cpu", "opencl", "wgpu", "cuda"])
def test_every_backend_converts_as_the_model_does(id, source):
    with open_or_skip(id) as backend:
        legal = {t for t in TYPES if t not in ("u64", "i64", *FLOATS) or t == "f32" or t in backend.capability.types}
        if source not in legal:
            pytest.skip(f"{id} has no {source}")
        for targets in groups(source, legal):
            check(source, targets, on(backend))


@pytest.mark.parametrize("source, target", sorted(REFUSED))
def test_a_conversion_with_two_meanings_asks_which(source, target):
    with pytest.raises(vyre.KernelError, match=f"from {source} to {target}"):
        casting(source, (target,))


ZERO_TESTS = (
    "v != 0.0",
    "v == -0.0",
    "v + 0.0 != 0.0",
    "0.0 - v == 0.0",
    "sqrt(v) != 0.0",
    "v * 1.0 != 0.0",
    "bool(v)",
)


@pytest.mark.parametrize("test", ZERO_TESTS)
@pytest.mark.parametrize("bits", ["x[gid.x] << 16", "x[gid.x] & 0x807FFFFF"])
def test_a_subnormal_made_of_bits_is_zero_on_the_cpu_too(bits, test):
    head = "def k(x: In[u32], out: Out[bool]):\n    if gid.x < len(x):"
    kernel = kernel_of(f"{head}\n        v = bitcast(f32, {bits})\n        out[gid.x] = {test}\n")
    words = np.array([0, 1, 0x7F, 0x80, 0x8001, 0x007FFFFF, 0x00800000, 0x80000001, 0xFFFFFFFF], np.uint32)
    assert kernel.on("cpu")(words).tolist() == kernel.on("reference")(words).tolist()
