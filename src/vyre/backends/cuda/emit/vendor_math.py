"""What NVIDIA has for the math library, and how far it is from it.

A dispatch with an `ulp_budget` may use these; one without never does. Functions are those of CUDA's own library, which
no flag makes faster and less exact; quotients and roots are approximations of the machine.

`APART` has, for each, the most units in the last place between its result and ours, over all arguments there are, and
for quotients over random ones (`bench/cuda_native.py` measures it), or the error that NVIDIA documents, if larger.
An operation is replaced only where that is within the budget. Quotients and roots, which are 2 apart, are not replaced
before every function here whose definition in the library has them (`tan` and `asin` count as 4), and not in a program
with a function that is not replaced: inside a definition nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ....foundation.ir.program import Program
from ....foundation.ir.visit import distinct
from ....foundation.meaning.mathlib import is_function

APART: Final[Mapping[str, int]] = MappingProxyType({
    "exp": 2, "exp2": 2, "log": 1, "log2": 1, "sin": 2, "cos": 2, "tan": 4, "asin": 4, "acos": 3, "atan": 2,
    "sinh": 3, "cosh": 2, "tanh": 2, "div": 4, "reciprocal": 4, "sqrt": 4, "inverse_sqrt": 4,
})  # fmt: skip
_LIBRARY = {
    "exp": "expf", "exp2": "exp2f", "log": "logf", "log2": "log2f", "sin": "sinf", "cos": "cosf", "tan": "tanf",
    "asin": "asinf", "acos": "acosf", "atan": "atanf", "sinh": "sinhf", "cosh": "coshf", "tanh": "tanhf",
}  # fmt: skip
_INSTRUCTIONS = {
    "div": ("div.full.ftz.f32", "ab"),
    "reciprocal": ("rcp.approx.ftz.f32", "a"),
    "sqrt": ("sqrt.approx.ftz.f32", "a"),
    "inverse_sqrt": ("rsqrt.approx.ftz.f32", "a"),
}


def within(program: Program, budget: int) -> frozenset[str]:
    """Operations of a program that are replaced. One without functions of the math library is exact."""
    used = {item.op.text for item in distinct(program.entry) if is_function(item)}
    if not budget or not used:
        return frozenset()
    found = frozenset(name for name, apart in APART.items() if apart <= budget)
    return found if used <= found else found - _INSTRUCTIONS.keys()


def texts() -> dict[str, str]:
    """Functions in CUDA C++, by name."""
    found = {f"native_{n}": f"float native_{n}(float x)\n{{\n    return {f}(x);\n}}" for n, f in _LIBRARY.items()}
    for name, (instruction, operands) in _INSTRUCTIONS.items():
        takes = ", ".join(f"float {x}" for x in operands)
        given = ", ".join(f'"f"({x})' for x in operands)
        places = ", ".join(f"%{k}" for k in range(len(operands) + 1))
        found[f"native_{name}"] = f"""\
float native_{name}({takes})
{{
    float found;
    asm("{instruction} {places};" : "=f"(found) : {given});
    return found;
}}"""
    return found
