"""Constants in place of a kernel's numbers: the bytes that the numbers give, on every backend, and their own code."""

import math
from dataclasses import replace

import numpy as np
import pytest

import vyre
from vyre import In, Kernel, Out, Uniform, bool_, const, f32, f64, gid, i32, u32
from vyre.conform.kernels.check import built, call, constants
from vyre.conform.kernels.make import random_kernel
from vyre.conform.kernels.tree import FIELDS
from vyre.driver.guard.compile import cache_key, compile_with_telemetry
from vyre.driver.plan.specialize import SpecMap, SpecValue, origin_of, specialized
from vyre.errors import ArgumentTypeError, ArgumentValueError
from vyre.foundation.ir.nodes import BufLen, Load, Store, lit
from vyre.foundation.ir.program import Program, output, read, uniform

from ...support.device_backends import registration_or_skip

BACKENDS = ("reference", "cpu", "opencl", "wgpu", "cuda")
X = np.arange(-100, 100, dtype=np.int32)
FLOATS = [math.nan, 0.1, -0.0, 1e-45, -1e-45, math.inf, -math.inf, 3.4028235e38, 16777217, -(2**31)]
WORDS = [1, 2, 7, 2**31, 2**32 - 1]


@vyre.kernel(workgroup=64)
def mixed(w: u32, x: In[i32], k: i32, a: f32, on: bool_, words: Out[u32], floats: Out[f32]):
    i = gid.x
    if i < len(words):
        words[i] = (i // w + i % w) ^ vyre.bitcast(u32, x[i] * k) ^ vyre.bitcast(u32, a)
        f = f32(i) * 0.25
        floats[i] = a
        if on:
            floats[i] = f * a + f / a


def variant(kernel, backend, **numbers):
    return Kernel.of_program(kernel.specialize(**numbers), kernel.__name__).on(backend)


def same(found, wanted):
    assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


@pytest.mark.parametrize("backend", BACKENDS)
def test_constants_give_the_bytes_that_numbers_give(backend):
    registration_or_skip(backend)
    compiles_slowly = backend != "reference"
    for k, a in list(enumerate(FLOATS))[:: 4 if compiles_slowly else 1]:
        w, n, on = WORDS[k % len(WORDS)], (-1) ** k * (k + 2**30), k % 3 != 0
        wanted = mixed.on("reference")(w, X, n, a, on)
        same(mixed.on(backend)(w, X, n, a, on), wanted)
        same(variant(mixed, backend, w=w, k=n, a=a, on=on)(X), wanted)
        if compiles_slowly:
            continue
        same(variant(mixed, backend, a=a)(w, X, n, on), wanted)
        same(variant(mixed, backend, w=np.uint32(w), k=np.int64(n), on=np.bool_(on))(X, np.float32(a)), wanted)


def test_a_constant_is_rounded_as_the_number_of_a_call():
    x = np.ones(1, np.float32)
    for alpha in (2**60 + 2**36 + 1, 2**60 + 2**36 - 1, 0.1, np.float64(1 / 3), np.float16(0.1), np.array(7), 5e-324):
        assert variant(scaled, "cpu", alpha=alpha)(x).tobytes() == scaled.on("cpu")(alpha, x).tobytes()


@pytest.mark.check
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_random_kernels_give_the_same_bytes_with_constants(backend):
    tried = differ(backend, range(60))
    assert tried > 3


@pytest.mark.check
@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu", "cuda"])
def test_many_random_kernels_give_the_same_bytes_with_constants(backend):
    registration_or_skip(backend)
    assert differ(backend, range(1000, 1240 if backend == "cpu" else 1120)) > 6


def differ(backend, seeds):
    """How many of these kernels took constants; all of them gave the same."""
    tried = 0
    for seed in seeds:
        tree = random_kernel(seed)
        numbers = {name: value for name, t, value in tree.scalars if t in ("u32", "i32", "f32", "bool")}
        if not numbers or any(a.role == "uniform" and a.size == 1 for a in tree.arrays):
            continue
        kernel = built(tree)
        if any(p.rank > 1 for p in kernel.params):
            continue  # of a program by itself, shapes are an argument
        if any(a.t in FIELDS for a in tree.arrays) or any(t in FIELDS for _, t, _ in tree.scalars):
            continue  # and small values are the numbers that they hold
        try:
            fixed = Kernel.of_program(kernel.specialize(**constants(tree), **numbers)).on(backend)
        except ArgumentValueError as e:
            if "division by zero" not in str(e):
                raise
            continue
        scalars = tuple(s for s in tree.scalars if s[0] not in numbers)
        rest = replace(tree, scalars=scalars, consts=(), generic="", left_out=())
        try:
            wanted = call(tree, kernel.on(backend))
        except vyre.errors.VyreError:
            continue  # the backend refuses it
        assert call(rest, fixed) == wanted, seed
        tried += 1
    return tried


@vyre.kernel(workgroup=64)
def scaled(alpha: f32, x: In[f32], out: Out[f32], *, power: const = 1):
    if gid.x < len(out):
        y = x[gid.x]
        for _ in vyre.static_range(power):
            y = y * alpha
        out[gid.x] = y


def test_compile_time_parameters_and_numbers_are_given_together():
    program = scaled.specialize(power=2, alpha=3)
    assert [b.name for b in program.bound_buffers] == ["x", "out"]
    assert program.name == "scaled"
    x = np.linspace(0, 1, 50, dtype=np.float32)
    assert Kernel.of_program(program).on("cpu")(x).tobytes() == scaled.on("reference")(3, x, power=2).tobytes()
    origin, constants = origin_of(program)
    assert origin is scaled.specialize(power=2)
    assert constants == SpecMap({"alpha": 3.0})


@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu", "cuda"])
def test_a_variant_is_found_again_by_the_next_process_and_no_other_is(backend, tmp_path, monkeypatch):
    registration_or_skip(backend)
    monkeypatch.setenv("VYRE_CACHE", "on")
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))

    def tier(**numbers):
        guard = vyre.acquire(backend)  # with nothing in memory
        try:
            build = compile_with_telemetry(guard, scaled.specialize(**numbers))
            x = np.arange(8, dtype=np.float32)
            inputs = [x] if numbers else [np.float32(2.5).tobytes(), x]
            assert bytes(build.pipeline.dispatch(inputs)[0]) == (x * np.float32(numbers.get("alpha", 2.5))).tobytes()
            return build.tier
        finally:
            guard.shutdown()

    assert [tier(alpha=2.5), tier(alpha=2.5), tier(alpha=3), tier(), tier(alpha=2.5), tier(alpha=3.0)] == [
        *("compiled", "disk", "compiled", "compiled", "disk", "disk")
    ]


def test_a_variant_that_travelled_is_a_program_of_its_own_and_gives_the_same():
    program = scaled.specialize(alpha=2.5)
    arrived = Program.from_wire(program.to_wire())
    guard = vyre.acquire("cpu")
    assert cache_key(guard, arrived).program == program.fingerprint != cache_key(guard, program).program
    assert cache_key(guard, arrived).specs == ""
    x = np.arange(8, dtype=np.float32)
    outputs = [bytes(vyre.compile(p, backend=guard).dispatch([x])[0]) for p in (program, arrived)]
    assert outputs[0] == outputs[1] == (x * np.float32(2.5)).tobytes()
    guard.shutdown()


def test_a_program_changed_afterwards_is_no_variant():
    program = scaled.specialize(alpha=2.5).replace(workgroup_size=(32, 1, 1))
    assert origin_of(program) == (program, SpecMap())


# ---- what is refused ------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def wide(d: f64, table: Uniform[f32, 1], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = f32(d) + table[0]


@pytest.mark.parametrize(
    "kernel, numbers, error, words",
    [
        (scaled, {"alpha": "2"}, ArgumentTypeError, "alpha is a str and the kernel declares one f32 value. Fix: pass"),
        (scaled, {"alpha": True}, ArgumentTypeError, "alpha is a bool and the kernel declares one f32 value"),
        (scaled, {"alpha": 1e39}, ArgumentValueError, r"alpha = 1e\+39 does not fit f32"),
        (scaled, {"alpha": 10**400}, ArgumentValueError, "alpha = a number of 1329 bits does not fit f32"),
        (mixed, {"on": 1}, ArgumentTypeError, "on is a int and the kernel declares one bool value. Fix: pass True"),
        (mixed, {"w": -1}, ArgumentValueError, "w=-1 does not fit u32"),
        (mixed, {"w": 1.5}, ArgumentTypeError, "w is a float and the kernel declares one u32 value"),
        (wide, {"d": 1.0}, ArgumentTypeError, "there are no f64 constants"),
        (wide, {"table": 1.0}, ArgumentTypeError, "wide has no compile-time parameter table. Fix: use one of: d"),
        (scaled, {"x": 1}, ArgumentTypeError, "scaled has no compile-time parameter x. Fix: use one of: power, alpha"),
        (scaled, {"beta": 1}, ArgumentTypeError, "scaled has no compile-time parameter beta"),
    ],
)
def test_what_is_no_constant_of_a_kernel_is_refused(kernel, numbers, error, words):
    with pytest.raises(error, match=words):
        kernel.specialize(**numbers)


def raw(body):
    buffers = [output("out", 0, u32, 4), uniform("n", 1, u32, 1), read("x", 2, u32), uniform("t", 3, u32, 2)]
    return Program(buffers, (1, 1, 1), body)


@vyre.kernel
def divided(w: u32, k: u32, x: In[u32], out: Out[u32]):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] // w + k


def test_a_constant_that_divides_by_zero_is_refused_at_once():
    with pytest.raises(ArgumentValueError) as caught:
        divided.specialize(w=0, k=2)
    line = divided.source.first_line + 3
    assert caught.value.message == f"{__file__}:{line}: division by zero, with w=0, k=2"
    assert "pass it to each call" in caught.value.fix
    assert vyre.Kernel.of_program(divided.specialize(w=2))(1, np.arange(3, dtype=np.uint32)).tolist() == [1, 1, 2]


def test_the_length_of_a_number_is_one():
    program = raw([Store("out", lit(0), BufLen("n"))])
    found = vyre.compile(specialized(program, SpecMap({"n": 9})), backend="cpu")
    assert bytes(found.dispatch([bytes(4), bytes(8)])[0]) == (1).to_bytes(4, "little") + bytes(12)


@pytest.mark.parametrize(
    "name, value, error, words",
    [
        ("m", 1, ArgumentTypeError, "the program has no number m. Fix: fix one of: n"),
        ("x", 1, ArgumentTypeError, "the program has no number x"),
        ("t", 1, ArgumentTypeError, "the program has no number t"),
        (
            "n",
            -1,
            ArgumentTypeError,
            r"n is a number of type u32, and -1 \(i32\) is not.*pass SpecValue.of\(number, u32\)",
        ),
        ("n", u32, ArgumentTypeError, r"n is a number of type u32, and u32 \(dtype\) is not"),
        ("n", 1, ArgumentValueError, "n is used as a buffer, and not as a number alone.*Fix: leave n an input"),
    ],
)
def test_what_is_no_number_of_a_program_is_refused(name, value, error, words):
    program = raw([Store("out", lit(0), Load("n", Load("x", lit(0))))])
    with pytest.raises(error, match=words):
        specialized(program, SpecMap({name: value}))


def test_a_program_without_numbers_says_so():
    with pytest.raises(ArgumentTypeError, match=r"has no number n\. Fix: fix one of: none, it has no numbers"):
        specialized(Program.empty(), SpecMap({"n": SpecValue.of(1)}))


def test_no_constants_leave_a_program_as_it_is():
    program = scaled.program
    assert specialized(program, SpecMap()) is program
