"""What a pure instruction computes on a machine, as scalar Python: for constants, and for tests of emitters.

The table says what it computes exactly. On a machine that keeps subnormals of f32 (`soft`), arithmetic gives them; one
that flushes reads them as zero in arithmetic and comparisons.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .instructions import F32, Function, instruction, named
from .kernel_ir import Ins
from .registers import flush, single

_READS_AS_ZERO = named(F32.STEP, F32.ROOT, F32.TEST)


def function_of(ins: Ins, soft: bool) -> Function:
    """What computes a pure instruction that has operands from their values."""
    return _function(ins.op, ins.dtype, ins.args[0].dtype, ins.attr, soft)


@cache
def _function(op: str, dtype: str, source: str, attr: Any, soft: bool) -> Function:
    row = instruction(op)
    assert row.meaning is not None, f"{op} has no value before it runs"
    if op == "convert" and (source, dtype, soft) == ("f64", "f32", True):
        return single
    exact = row.meaning(dtype, source, attr)
    if source != "f32" or op not in _READS_AS_ZERO:
        return exact
    if not soft:
        return lambda *x: exact(*map(flush, x))
    if row.f32 is F32.TEST:
        return exact
    wide = row.meaning("f64", "f64", attr)
    return lambda *x: single(wide(*x))
