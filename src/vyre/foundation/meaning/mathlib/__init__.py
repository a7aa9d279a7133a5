"""The math library: exp, log, sin and their family, written once in the IR from exact f32 and integer steps.

`expand(program)` puts the definition of every such operator in its place; the rest is arithmetic that every backend
already runs to the bit, so the results are the same everywhere. No operator is more than 2 units in the last place from
the correctly rounded value (`docs/numerics.md`).
"""

from __future__ import annotations

from .expand import Function, definition, expand, functions, is_function, steps

__all__ = ["Function", "definition", "expand", "functions", "is_function", "steps"]
