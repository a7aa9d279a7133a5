"""The device's own functions under an ulp budget: which, when, and that nothing else changes."""

import json
import random
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vyre.backends.cuda.build import kernel_code
from vyre.backends.cuda.compile import compile_text
from vyre.backends.cuda.emit.vendor_math import APART, within
from vyre.driver.contract import VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.execute.explanation import explain_dispatch
from vyre.driver.guard.backend import guarded
from vyre.driver.selection.registry import acquire
from vyre.driver.verify.compare import ulps_apart
from vyre.foundation.ir.dtypes import f32, f64, i32
from vyre.foundation.ir.nodes import BinOp, Cast, InvocationId, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import UnaryOp
from vyre.foundation.ir.program import Program, read, write_only
from vyre.foundation.meaning import mathlib
from vyre.lower import LowerOptions, lower
from vyre.lower.kernel_ir import walk
from vyre.runtime.float_probe import EDGES

from ...support.device_backends import open_or_skip
from .test_cuda_text import nvrtc_or_skip

GID = InvocationId(0)
X, Y = Load("x", GID), Load("y", GID)
FUNCTIONS = {op.text: op for op in mathlib.functions()}
STEPS = {
    "div": X / Y,
    "reciprocal": UnOp(UnaryOp.RECIPROCAL, X),
    "sqrt": UnOp(UnaryOp.SQRT, X),
    "inverse_sqrt": UnOp(UnaryOp.INVERSE_SQRT, X),
}
MEASURED = Path(__file__).parents[3] / "bench" / "results" / "cuda_native.json"
MOST = 255


def storing(*values, element=f32):
    buffers = [read("x", 0, f32), read("y", 1, f32)]
    buffers += [write_only(f"out{k}", k + 2, element) for k in range(len(values))]
    return Program(buffers, (64, 1, 1), [Store(f"out{k}", GID, v) for k, v in enumerate(values)])


def program_of(name):
    """A program of one operation; where that is no function of the library, beside one that is."""
    return storing(UnOp(FUNCTIONS[name], X)) if name in FUNCTIONS else storing(STEPS[name], UnOp(UnaryOp.EXP, X))


def natives(program, budget):
    """The device's own operations that the code calls."""
    return set(re.findall(r"\bnative_(\w+)\(", kernel_code(program, ulp_budget=budget)[1].text))


# ---- which, and when -------------------------------------------------------------------------------------------------


def test_only_functions_quotients_and_roots_have_one():
    assert APART.keys() - STEPS.keys() < FUNCTIONS.keys()
    assert APART.keys() > STEPS.keys()


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - APART.keys()))
def test_a_function_that_has_none_is_exact_and_so_is_all_that_it_divides(name):
    op = FUNCTIONS[name]
    value = UnOp(op, X) if isinstance(op, UnaryOp) else BinOp(op, X, Cast(i32, Y) if op.rule == "scale" else Y)
    if op.rule == "exponent":
        value = Cast(f32, value)
    assert natives(storing(value), MOST) == set()
    assert natives(storing(value, UnOp(UnaryOp.EXP, Y), *STEPS.values()), MOST) == {"exp"}


@pytest.mark.parametrize("name", APART)
def test_an_operation_is_replaced_from_its_distance_on_and_never_without_a_budget(name):
    program = program_of(name)
    assert natives(program, 0) == set()
    assert name not in natives(program, APART[name] - 1)
    assert name in natives(program, APART[name])
    assert kernel_code(program)[1].text == kernel_code(program, ulp_budget=0)[1].text


@pytest.mark.parametrize("name", STEPS)
def test_a_program_without_a_function_of_the_library_is_exact(name):
    program = storing(STEPS[name])
    assert within(program, MOST) == frozenset()
    assert kernel_code(program, ulp_budget=MOST)[1].text == kernel_code(program)[1].text


def test_a_program_that_computes_with_f64_is_exact():
    program = storing(Cast(f64, UnOp(UnaryOp.EXP, X)), element=f64)
    assert natives(program, MOST) == set()


def test_a_kernel_that_flushes_by_itself_is_exact():
    assert "native_" not in kernel_code(program_of("exp"), soft=True, ulp_budget=MOST)[1].text


def test_nothing_is_approximated_inside_a_definition():
    """With a budget below the distance of `tan`, its definition divides as ever."""
    budget = APART["tan"] - 1
    text = kernel_code(program_of("tan"), ulp_budget=budget)[1].text
    assert "div.rn" in text
    assert not re.search(r"native_|approx|full", text)
    assert all(APART[name] >= APART["tan"] for name in STEPS)


def test_integers_and_plain_sums_stay_as_they_are():
    exact, loose = (
        kernel_code(storing(X * Y + lit(1.0), UnOp(UnaryOp.LOG, X)), ulp_budget=n)[1].text for n in (0, MOST)
    )
    for text in (exact, loose):
        assert "mul.rn.ftz.f32" in text
        assert "add.rn.ftz.f32" in text
    assert "native_log" in loose


def test_two_equal_calls_are_one_and_a_call_of_a_constant_stays():
    options = LowerOptions(native=APART.keys())
    twice = lower(storing(UnOp(UnaryOp.EXP, X) + UnOp(UnaryOp.EXP, X)), options)
    assert [i.attr for i in walk(twice.body) if i.op == "native"] == ["exp"]
    constant = lower(storing(UnOp(UnaryOp.EXP, lit(1.0))), options)
    assert [i.attr for i in walk(constant.body) if i.op == "native"] == ["exp"]


def test_a_quotient_of_one_is_a_reciprocal():
    assert natives(storing(lit(1.0) / X, UnOp(UnaryOp.EXP, Y)), MOST) == {"reciprocal", "exp"}
    assert "rcp.rn.ftz.f32" in kernel_code(storing(lit(1.0) / X))[1].text
    assert "div.rn.ftz.f32" in kernel_code(storing(lit(2.0) / X))[1].text


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_takes_all_of_them(arch):
    nvrtc_or_skip()
    program = storing(*STEPS.values(), *(UnOp(op, X) for name, op in FUNCTIONS.items() if name in APART))
    _, code, options = kernel_code(program, ulp_budget=MOST)
    assert natives(program, MOST) == APART.keys()
    assert compile_text(code.text, arch, options)


def test_no_distance_is_below_what_was_measured():
    measured = json.loads(MEASURED.read_text())["functions"]
    assert measured.keys() == APART.keys()
    for name, found in measured.items():
        assert found["ulps"] <= APART[name], name
        assert found["subnormal"] == 0, name


# ---- on a device -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def device():
    backend = guarded(open_or_skip("cuda"))
    yield backend
    backend.shutdown()


def floats():
    """Edges with their neighbours, then any bits."""
    rng = random.Random(5)
    near = [(bits + d) & 0xFFFFFFFF for bits in EDGES for d in (-2, -1, 0, 1, 2)]
    words = [*near, *(rng.getrandbits(32) for _ in range((1 << 17) - len(near)))]
    return struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize("name", APART)
def test_a_device_stays_within_the_distance(name, device):
    x = floats()
    y = b"".join(x[k : k + 4] for k in range(len(x) - 4, -1, -4))
    program = program_of(name)
    count = len(x) // 4
    config = DispatchConfig(output_elements={b.name: count for b in program.buffers if b.name.startswith("out")})
    exact = device.dispatch(program, [x, y], config)
    loose = device.dispatch(program, [x, y], config.with_(ulp_budget=APART[name]))
    assert device.dispatch(program, [x, y], config.with_(ulp_budget=0)) == exact
    for a, b in zip(exact, loose, strict=True):
        assert int(ulps_apart(bytes(a), bytes(b), f32).max()) <= APART[name]
        bits = np.frombuffer(b, np.uint32) & 0x7FFFFFFF
        assert not ((bits > 0) & (bits < 0x00800000)).any()
        assert set(bits[bits > 0x7F800000]) <= {0x7FC00000}


# ---- what is said of it ----------------------------------------------------------------------------------------------


def floats_of(backend, program, budget):
    config = DispatchConfig(output_elements={"out0": 16}, ulp_budget=budget)
    explained = explain_dispatch(program, [bytes(64), bytes(64)], config, backend)
    return next((d.choice, d.reason) for d in explained.decisions if d.what == "floats")


class Approximate(VyreBackend, contract=1):
    id = "approximate"
    capability = replace(acquire("reference").capability, exactness={"native": {"exp": 2, "sinh": 3}})

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise AssertionError("nothing runs")


def test_an_explanation_says_how_near():
    backend, exp, may = Approximate(), program_of("exp"), "may be used"
    near = "each operation within 2 ulp: the device's own exp"
    assert floats_of(backend, exp, 2) == ("within ulp_budget", f"{near} {may}")
    assert floats_of(backend, exp, 3)[1] == f"each operation within 3 ulp: the device's own exp, sinh {may}"
    assert floats_of(backend, exp, None) == floats_of(backend, exp, 0) == ("exact", "no ulp_budget is set")
    none = "the backend has no function of its own within the budget"
    assert floats_of(backend, exp, 1) == ("exact", none)
    wide = "the program computes with f64, which is exact within any budget"
    assert floats_of(backend, storing(Cast(f64, UnOp(UnaryOp.EXP, X)), element=f64), 9) == ("exact", wide)
    assert floats_of(backend, storing(X / Y), 9) == ("exact", "the program has no function that a budget is for")
    assert floats_of(acquire("reference"), exp, 255) == ("exact", none)


def test_a_device_says_so_too(device):
    choice, reason = floats_of(device, program_of("exp"), 2)
    assert choice == "within ulp_budget"
    assert " exp," in reason
    assert "sinh" not in reason
    assert device.capability.exactness["native"] == dict(APART)
