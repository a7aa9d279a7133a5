"""Canonical floats in machine steps.

Every f32 value in a kernel is canonical. Where the machine flushes as the canon says (tiny after rounding, operands
read as zero), a step is one instruction. Elsewhere (`soft`) the step is followed by its own flush. After a sum a plain
flush is exact: sums of normal numbers that come out tiny are exact. After a product, quotient or fma whose size is at
most 2^-126, what counts is the result rounded as if exponents had no bounds: computing again with one operand scaled
by 2^24 shows it, because nothing near 2^-102 is tiny. The scaling cannot overflow: with a normal operand of 2^-126 or
more, the other one of a tiny product is at most 1, that of a quotient at most 4, that of an fma at most 2^46.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Protocol

from ..errors import UnsupportedFeature
from ..foundation.ir.ops import BinaryOp, UnaryOp
from .instructions import F32, OF_OPERATOR, named
from .kernel_ir import FLOATS, Ins

_TINY = 0x00800000  # 2^-126
_SCALE = 0x4B800000  # 2^24
_SCALED_TINY = 0x0C800000  # 2^-102
_ONE = {"f32": 0x3F800000, "f64": 0x3FF0000000000000}
_HALF = {"f32": 0x3F000000, "f64": 0x3FE0000000000000}
_INF = {"f32": 0x7F800000, "f64": 0x7FF0000000000000}
_F64_TINY = 0x3810000000000000  # 2^-126
_F64_FLUSH = 0x380FFFFFF0000000  # 2^-126 - 2^-151: at least this rounds up to 2^-126
_EXACT = named(F32.KEEPS)


class Emit(Protocol):
    def __call__(self, op: str, dtype: str, *args: Ins, attr: str | None = None) -> Ins: ...


class FloatSteps:
    """Emits float operators; f16 and bf16 are an f32 step and then one rounding."""

    def __init__(
        self, emit: Emit, const: Callable[[str, int], Ins], soft: bool, native: Set[str] = frozenset()
    ) -> None:
        self.emit, self.const, self.soft, self.native = emit, const, soft, native

    def binary(self, op: BinaryOp, name: str, a: Ins, b: Ins) -> Ins:
        if op is BinaryOp.COPYSIGN:  # the sign of a NaN is the machine's until it is quiet
            return self.emit("copysign", a.dtype, a, self.emit("quiet", b.dtype, b))
        if op is BinaryOp.DIV and name == "f32":
            if "reciprocal" in self.native and a.op == "const" and a.attr == _ONE["f32"]:
                return self.emit("native", "f32", b, attr="reciprocal")
            if "div" in self.native:
                return self.emit("native", "f32", a, b, attr="div")
        if op.is_function:
            raise _no_step(op)
        step = OF_OPERATOR[op]
        return self.emit(step, a.dtype, a, b) if step in _EXACT else self.rounded(name, self.step(step, a, b))

    def unary(self, op: UnaryOp, name: str, a: Ins) -> Ins:
        t = a.dtype
        step = OF_OPERATOR.get(op, "")
        if step in _EXACT:
            return self.emit(step, t, a)
        if name == "f32" and op.text in self.native:
            return self.emit("native", "f32", a, attr=op.text)
        one = self.const(t, _ONE[t])
        match op:
            case UnaryOp.SQRT:
                return self.rounded(name, self.emit("sqrt", t, a))  # of a normal number: never tiny
            case UnaryOp.RECIPROCAL:
                return self.binary(BinaryOp.DIV, name, one, a)
            case UnaryOp.INVERSE_SQRT:
                return self.rounded(name, self.step("div", one, self.emit("sqrt", t, a)))
            case UnaryOp.ROUND:
                size = self.emit("abs", t, a)
                below = self.emit("floor", t, size)
                far = self.emit("ge", "bool", self.emit("sub", t, size, below), self.const(t, _HALF[t]))
                up = self.emit("select", t, far, self.emit("add", t, below, one), below)
                return self.emit("copysign", t, up, a)
            case UnaryOp.SIGN:
                zero = self.const(t, 0)
                sign = self.emit("select", t, self.emit("ne", "bool", a, a), a, self.emit("copysign", t, one, a))
                return self.emit("select", t, self.emit("eq", "bool", a, zero), zero, sign)
            case UnaryOp.IS_NAN:
                return self.emit("ne", "bool", a, a)
            case UnaryOp.IS_INF:
                return self.emit("eq", "bool", self.emit("abs", t, a), self.const(t, _INF[t]))
            case UnaryOp.IS_FINITE:
                return self.emit("lt", "bool", self.emit("abs", t, a), self.const(t, _INF[t]))
        raise _no_step(op)

    def fma(self, a: Ins, b: Ins, c: Ins) -> Ins:
        found = self.emit("fma", a.dtype, a, b, c)
        if not self.soft or a.dtype != "f32":
            return found
        scale = self.const("f32", _SCALE)
        again = self.emit("fma", "f32", self.emit("mul", "f32", a, scale), b, self.emit("mul", "f32", c, scale))
        return self.settle(found, again)

    def step(self, op: str, a: Ins, b: Ins) -> Ins:
        """+ - * / with one rounding, canonical in f32."""
        found = self.emit(op, a.dtype, a, b)
        if not self.soft or a.dtype != "f32":
            return found
        if op in ("add", "sub"):
            return self.emit("flush", "f32", found)
        return self.settle(found, self.emit(op, "f32", self.emit("mul", "f32", a, self.const("f32", _SCALE)), b))

    def settle(self, found: Ins, scaled: Ins) -> Ins:
        """`found`, or zero of its sign where it is tiny; `scaled` is the same computed 2^24 times larger."""
        size = self.emit("abs", "f32", found)
        near = self.emit("le", "bool", size, self.const("f32", _TINY))
        below = self.emit("lt", "bool", self.emit("abs", "f32", scaled), self.const("f32", _SCALED_TINY))
        zero = self.emit("copysign", "f32", self.const("f32", 0), found)
        return self.emit("select", "f32", self.emit("and", "bool", near, below), zero, found)

    def rounded(self, name: str, x: Ins) -> Ins:
        return self.emit(f"round_{name}", "f32", x) if name in ("f16", "bf16") else x

    def convert(self, to: str, a: Ins) -> Ins:
        """A number as an f32 or f64."""
        found = self.emit("convert", to, a)
        if not self.soft or a.dtype not in FLOATS or to != "f32":
            return found
        size = self.emit("abs", "f64", a)
        zero = self.emit("copysign", "f32", self.const("f32", 0), found)
        tiny = self.emit("copysign", "f32", self.const("f32", _TINY), found)
        below = self.emit("lt", "bool", size, self.const("f64", _F64_FLUSH))
        near = self.emit("lt", "bool", size, self.const("f64", _F64_TINY))
        return self.emit("select", "f32", near, self.emit("select", "f32", below, zero, tiny), found)


def _no_step(op: BinaryOp | UnaryOp) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"{op.text} has no machine step", fix="expand the math library before lowering", op=op.text
    )
