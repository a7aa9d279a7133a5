"""Sums, extremes and what is made of them: of a whole array, or along an axis.

`docs/libs/reduce.md` defines the result of each function to the bit.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.ir.dtypes import DataType, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ..front.device.array import DeviceBuffer
from .arguments import (
    Axis,
    Extent,
    Given,
    check_out,
    chosen,
    element_of,
    extent,
    filled,
    given,
    handed,
    named_type,
    near,
)
from .reduce_kernels import (
    CHUNK,
    COLUMNS,
    DEVIATION,
    LEAST,
    MOST,
    PLACE,
    PLAIN,
    PRODUCT,
    QUOTIENT,
    QUOTIENT_ROOT,
    ROOT,
    SQUARE,
    STRIP_COLUMNS,
    SUM,
    TIMES,
    TIMES_AGAIN,
    TRUTH,
    VALUE,
    columns,
    columns_with,
    problems,
    problems_with,
    rows,
    rows_with,
    wide_rows,
    wide_rows_with,
)

__all__ = ["all", "any", "argmax", "argmin", "count", "dot", "max", "mean", "min", "norm", "prod", "std", "sum", "var"]

SHORT = 32
"""Elements that one invocation joins faster than a workgroup."""
KINDS = (u32, i32, u64, i64, f32, f64)
"""Types in which elements are joined; kernels get the place."""
FLOATS = (f32, f16, f64)
INTEGERS = (u32, i32, u8, i8, u16, i16, u64, i64)
ANY = (*FLOATS, *INTEGERS, bool_)
MEASURED = (f32, f16, f64, u8, u16, u32, i8, i16, i32, bool_)
"""What has a mean: f32 and f64 hold it, and 64-bit integers are not made floats without a word."""
WIDER: dict[DataType, tuple[DataType, ...]] = {
    **dict.fromkeys((bool_, u8, u16, u32), (u32, u64, i64, f32, f64)),
    **dict.fromkeys((i8, i16, i32), (i32, i64, f32, f64)),
    u64: (u64,),
    i64: (i64,),
    f16: (f32, f64),
    f32: (f32, f64),
    f64: (f64,),
}
"""As what elements are joined: the first where the caller names nothing."""


def sum(
    x: Any,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The sum. Integers wrap; narrow ones are added as 32-bit ones, and `dtype` takes a wider type."""
    return _joined(SUM, VALUE, x, axis, dtype, keepdims, out, backend)


def prod(
    x: Any,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The product. Integers wrap; narrow ones are multiplied as 32-bit ones, and `dtype` takes a wider type."""
    return _joined(PRODUCT, VALUE, x, axis, dtype, keepdims, out, backend)


def min(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """The least element; NaN if there is one. -0 is below +0."""
    return _extreme(LEAST, x, axis, keepdims, out, backend)


def max(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """The greatest element; NaN if there is one. -0 is below +0."""
    return _extreme(MOST, x, axis, keepdims, out, backend)


def argmin(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """Where the least element is, as u32: the first of equal ones, and the first NaN if there is one."""
    return _place(LEAST, x, axis, keepdims, out, backend)


def argmax(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """Where the greatest element is, as u32: the first of equal ones, and the first NaN if there is one."""
    return _place(MOST, x, axis, keepdims, out, backend)


def any(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """Whether an element is not zero. NaN is not zero, and subnormal f32 are."""
    return _truth(MOST, bool_, x, axis, keepdims, out, backend)


def all(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """Whether no element is zero."""
    return _truth(LEAST, bool_, x, axis, keepdims, out, backend)


def count(x: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None) -> Any:
    """How many elements are not zero, as u32."""
    return _truth(SUM, u32, x, axis, keepdims, out, backend)


def dot(
    x: Any, y: Any, axis: Axis = None, *, keepdims: bool = False, out: Any = None, backend: str | None = None
) -> Any:
    """The sum of the products of two arrays of one type: of f32, `fma` in the chains.

    They have one shape, or y has one axis and stands beside each problem of x.
    """
    first, second = given("x", x, (*FLOATS, *INTEGERS)), given("y", y)
    t = element_of(first)
    if element_of(second) is not t:
        raise ArgumentTypeError(f"x holds {first.dtype} and y {second.dtype}", fix=f"pass y.astype(np.{first.dtype})")
    e = extent(first, axis, keepdims=keepdims)
    alike = first.shape == second.shape
    if not alike and second.shape != (e.length,):
        raise ArgumentValueError(
            f"x has shape {first.shape} and y {second.shape}",
            fix=f"pass arrays of one shape, or {e.length} numbers as y" if axis is not None else "pass y of that shape",
        )
    check_out(out, e.shape)
    kind = WIDER[t][0]
    rule = Rule(SUM, TIMES if alike else TIMES_AGAIN, kind, neutral(SUM, kind))
    return _of(rule, first, e, t if t is f16 else kind, out, backend, y=second)


def mean(
    x: Any,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The sum divided by the number of elements, both as f32, or as f64 of f64 or with `dtype`."""
    found, e, kind, result = _measured(x, axis, dtype, keepdims, out)
    return _of(Rule(SUM, VALUE, kind, 0.0, QUOTIENT), found, e, result, out, backend, divisor=e.length)


def var(
    x: Any,
    axis: Axis = None,
    *,
    ddof: int = 0,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The sum of the squared distances from the mean, divided by the number of elements less `ddof`."""
    return _spread(QUOTIENT, x, axis, ddof, dtype, keepdims, out, backend)


def std(
    x: Any,
    axis: Axis = None,
    *,
    ddof: int = 0,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The square root of what `var` gives."""
    return _spread(QUOTIENT_ROOT, x, axis, ddof, dtype, keepdims, out, backend)


def norm(
    x: Any,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The square root of the sum of squares, which must not overflow."""
    found, e, kind, result = _measured(x, axis, dtype, keepdims, out, least=0)
    return _of(Rule(SUM, SQUARE, kind, 0.0, ROOT), found, e, result, out, backend)


# ---- what they share -------------------------------------------------------------------------------------------------


def _of(
    rule: Rule,
    x: Given,
    e: Extent,
    result: DataType,
    out: Any,
    backend: str | None,
    *,
    y: Given | None = None,
    divisor: float = 1,
) -> Any:
    if not e.length or not math.prod(e.shape):
        value = rule.first if result is not bool_ else rule.how == LEAST
        return filled(value, result, e.shape, x, out, backend)
    there = x if type(y) is not DeviceBuffer else y
    return handed(reduced(rule, x, e, result, out, backend, y=y, divisor=divisor), there, out)


def _joined(how: int, what: int, x: Any, axis: Axis, dtype: Any, keepdims: bool, out: Any, backend: str | None) -> Any:
    found = given("x", x, ANY)
    kind, result = summed_as(element_of(found), dtype)
    e = extent(found, axis, keepdims=keepdims)
    check_out(out, e.shape)
    return _of(Rule(how, what, kind, neutral(how, kind)), found, e, result, out, backend)


def summed_as(t: DataType, dtype: Any) -> tuple[DataType, DataType]:
    """As what elements are joined, and the type of the result."""
    kind = WIDER[t][0] if dtype is None else named_type(dtype, WIDER[t])
    return kind, t if dtype is None and t is f16 else kind


def _extreme(how: int, x: Any, axis: Axis, keepdims: bool, out: Any, backend: str | None) -> Any:
    found, e = _with_elements(x, axis, keepdims, out)
    t = element_of(found)
    return _of(Rule(how, VALUE, WIDER[t][0], neutral(how, WIDER[t][0])), found, e, t, out, backend)


def _place(how: int, x: Any, axis: Axis, keepdims: bool, out: Any, backend: str | None) -> Any:
    asked, e = _with_elements(x, axis, keepdims, out)
    t = element_of(asked)
    kind = WIDER[t][0]
    if not math.prod(e.shape):
        return filled(0, u32, e.shape, asked, out, backend)
    found = near(asked, backend)
    extreme = reduced(Rule(how, VALUE, kind, neutral(how, kind)), found, e, kind, None, backend)
    rule = Rule(LEAST, PLACE, kind, neutral(LEAST, u32), joined=u32)
    return handed(reduced(rule, found, e, u32, out, backend, y=extreme), asked, out)


def _truth(how: int, result: DataType, x: Any, axis: Axis, keepdims: bool, out: Any, backend: str | None) -> Any:
    found = given("x", x, ANY)
    e = extent(found, axis, keepdims=keepdims)
    check_out(out, e.shape)
    return _of(Rule(how, TRUTH, u32, neutral(how, u32)), found, e, result, out, backend)


def _spread(
    ending: int, x: Any, axis: Axis, ddof: Any, dtype: Any, keepdims: bool, out: Any, backend: str | None
) -> Any:
    asked, e, kind, result = _measured(x, axis, dtype, keepdims, out)
    if not isinstance(ddof, int) or isinstance(ddof, bool) or not 0 <= ddof < e.length:
        raise ArgumentValueError(
            f"ddof={shown(ddof)} and {e.length} elements", fix="pass a whole number from 0 to one less than there are"
        )
    if not math.prod(e.shape):
        return filled(0.0, result, e.shape, asked, out, backend)
    found = near(asked, backend)
    middle = reduced(Rule(SUM, VALUE, kind, 0.0, QUOTIENT), found, e, kind, None, backend, divisor=e.length)
    rule = Rule(SUM, DEVIATION, kind, 0.0, ending)
    return handed(reduced(rule, found, e, result, out, backend, y=middle, divisor=e.length - ddof), asked, out)


def _with_elements(x: Any, axis: Axis, keepdims: bool, out: Any, allowed: Any = ANY) -> tuple[Given, Extent]:
    found = given("x", x, allowed)
    e = extent(found, axis, keepdims=keepdims)
    check_out(out, e.shape)
    if not e.length:
        raise ArgumentValueError(
            f"x has shape {found.shape} and no elements along axis={shown(axis)}, of which nothing is known",
            fix="pass an array with elements there",
        )
    return found, e


def _measured(
    x: Any, axis: Axis, dtype: Any, keepdims: bool, out: Any, *, least: int = 1
) -> tuple[Given, Extent, DataType, DataType]:
    """The array, its problems, the float type in which they are computed, and that of the results."""
    if least:
        found, e = _with_elements(x, axis, keepdims, out, MEASURED)
    else:
        found = given("x", x, MEASURED)
        e = extent(found, axis, keepdims=keepdims)
        check_out(out, e.shape)
    return found, e, *measured_as(element_of(found), dtype)


def measured_as(t: DataType, dtype: Any) -> tuple[DataType, DataType]:
    """The float type in which a mean is computed, and that of the result."""
    kind = named_type(dtype, (f64,) if t is f64 else (f32, f64)) if dtype is not None else f64 if t is f64 else f32
    return kind, t if t is f16 and dtype is None else kind


# ---- one call after the other ----------------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a function joins, how, and from which number on."""

    how: int
    what: int
    kind: DataType
    """As what elements are taken."""
    first: Any
    ending: int = PLAIN
    joined: DataType | None = None
    """As what the results of chains are joined, where that is something else."""


def reduced(
    rule: Rule,
    x: Given,
    e: Extent,
    result: DataType,
    out: Any,
    backend: str | None,
    *,
    y: Any = None,
    divisor: float = 1,
) -> Any:
    """The results of all problems. `y` is another array of that form, or has one number for each problem."""
    a = rule.joined or rule.kind
    also, made, length = (() if y is None else (y,)), x, e.length
    consts: dict[str, Any] = {"how": rule.how, "what": rule.what, "kind": KINDS.index(rule.kind)}
    types = {"A": a} if y is None else {"A": a, "S": element_of(y)}
    while length > (CHUNK if e.inner == 1 else COLUMNS):
        parts = -(-length // CHUNK)
        wide = e.inner * COLUMNS % STRIP_COLUMNS == 0
        alone, together = (wide_rows, wide_rows_with) if wide else (rows, rows_with)
        step = chosen(alone if y is None else together, backend, **consts, **types, T=element_of(made))
        count = e.outer * parts * COLUMNS * e.inner
        made = step(
            made,
            *also,
            rule.first,
            length,
            e.inner,
            sizes={"out": count},
            grid=count // (STRIP_COLUMNS if wide else COLUMNS),
        )
        y, also, length = None, (), parts * COLUMNS
        consts |= {"what": VALUE, "kind": KINDS.index(a)}
        types = {"A": a}
    consts |= types
    consts |= {"T": element_of(made), "R": result, "ending": rule.ending}
    last, numbers = a_number(divisor, a), (rule.first, length)
    if e.inner == 1 and length > SHORT:
        step = chosen(problems if y is None else problems_with, backend, **consts)
        return step(made, *also, *numbers, last, out=out, sizes={"out": e.shape})
    step = chosen(columns if y is None else columns_with, backend, **consts)
    return step(made, *also, *numbers, e.inner, last, out=out, sizes={"out": e.shape})


def a_number(n: float, t: DataType) -> Any:
    return float(n) if t in FLOATS else int(n)


def neutral(how: int, t: DataType) -> Any:
    """What joined with anything gives that."""
    if how == LEAST:
        return math.inf if t in FLOATS else t.limits[1]
    if how == MOST:
        return -math.inf if t in FLOATS else t.limits[0]
    return a_number(how == PRODUCT, t)
