"""Annotations of kernels for tools that read them: `typing.get_type_hints` and `inspect.signature`."""

import inspect
import pickle
import typing
from typing import Literal

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, Uniform, bool_, const, f32, i64, u8, u32

TEXT = """
def f(x: In[f32], y: InOut[u8, 4], z: Out[bool], w: Uniform[i64, Literal[3]], n: u32, b: bool, *, N: const = 4) -> None:
    pass

kernel = vyre.kernel(f)
"""
HINTS = {
    "x": In[f32], "y": InOut[u8, 4], "z": Out[bool_], "w": Uniform[i64, 3], "n": u32, "b": bool_, "N": const,
}  # fmt: skip

NAMES = {
    "In": In,
    "Out": Out,
    "InOut": InOut,
    "Uniform": Uniform,
    "const": const,
    "f32": f32,
    "i64": i64,
    "u8": u8,
    "u32": u32,
}


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["evaluated", "postponed"])
def names(request, tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(request.param + TEXT)
    scope = {"vyre": vyre, "Literal": Literal, **NAMES}
    exec(compile(path.read_text(), path, "exec", dont_inherit=True), scope)
    return scope


def test_the_hints_of_a_function_are_those_of_its_kernel(names):
    found = typing.get_type_hints(names["f"])
    assert found == {**HINTS, "b": bool, "return": type(None)}
    assert typing.get_type_hints(names["kernel"]) == HINTS


def test_a_kernel_that_travelled_and_one_of_a_program_have_hints(names):
    names["kernel"].__qualname__ = "<locals>.f"
    assert typing.get_type_hints(pickle.loads(pickle.dumps(names["kernel"]))) == HINTS
    made = vyre.Kernel.of_program(names["kernel"].program)
    assert typing.get_type_hints(made) == {name: hint for name, hint in HINTS.items() if name != "N"}


def made(element, count):
    from vyre import In as Input

    @vyre.device
    def first(x: "Input[element]") -> "element":
        return x[0]

    @vyre.kernel
    def k(x: "Input[element, count]", y: "element", out: "Out[element]"):
        out[0] = first(x) + y

    return k


def test_postponed_annotations_see_the_locals_of_the_function_around_the_kernel():
    """No closure has them: only the text of an annotation names them."""
    for element in (f32, u32):
        k = made(element, 3)
        assert typing.get_type_hints(k) == {"x": In[element, 3], "y": element, "out": Out[element]}
        x = np.arange(3).astype("f4" if element == f32 else "u4")
        assert k.on("reference")(x, 4, sizes={"out": 1}).tolist() == [4]


def test_signatures_name_the_parameters(names):
    found = inspect.signature(names["kernel"], eval_str=True)
    assert str(found) == (
        "(x: In[f32], y: InOut[u8, 4], z: Out[bool], w: Uniform[i64, 3], n: u32, b: bool, *, N: const = 4) -> None"
    )


def test_helpers_have_hints_and_a_signature():
    @vyre.device
    def helper(x: In[f32], n: u32 = 3) -> f32:
        return x[n]

    assert typing.get_type_hints(helper) == {"x": In[f32], "n": u32, "return": f32}
    assert str(inspect.signature(helper)) == "(x: In[f32], n: u32 = 3) -> f32"
