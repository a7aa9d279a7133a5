"""Products of matrices and vectors, and transposition. `docs/libs/linalg.md` defines them to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..foundation.ir.dtypes import DataType, f16
from .arguments import TYPES, Given, bits_of, check_out, chosen, element_of, filled, given, handed, near, target_of
from .linalg_kernels import ROWS, TILE, product_of_each, products
from .linalg_kernels import transposed as transposed_kernel
from .reduce import FLOATS, INTEGERS, KINDS, WIDER, a_number, dot

__all__ = ["matmul", "matvec", "outer", "transpose"]

ELEMENTS = (*FLOATS, *INTEGERS)


def matmul(
    a: Any,
    b: Any,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """The product of two matrices, or of each two of a batch, in the axes before the last two.

    Batches have one shape, or one of the two is a single matrix. `transpose_a` and `transpose_b` stand for matrices
    that lie transposed in memory. Integers wrap, and narrow ones are multiplied as 32-bit ones.
    """
    first, second, t = _alike("a", a, "b", b)
    for name, x in (("a", first), ("b", second)):
        if x.ndim < 2:
            raise ArgumentValueError(
                f"{name} has {x.ndim} axes and a matrix two", fix="call matvec(a, x), or reduce.dot(x, y)"
            )
    height, depth = first.shape[-2:][:: -1 if transpose_a else 1]
    other, width = second.shape[-2:][:: -1 if transpose_b else 1]
    batch = first.shape[:-2] or second.shape[:-2]
    if depth != other or (first.ndim > 2 and second.ndim > 2 and first.shape[:-2] != second.shape[:-2]):
        raise ArgumentValueError(
            f"matrices of shape {first.shape} and {second.shape} have no product"
            + (" with what is transposed" if transpose_a or transpose_b else ""),
            fix="pass (..., n, k) and (..., k, m) with one batch shape, or a batch and one matrix",
        )
    shape, count = (*batch, height, width), math.prod(batch)
    check_out(out, shape)
    kind = WIDER[t][0]
    result = t if t is f16 else kind
    if not depth or not math.prod(shape):
        return filled(a_number(0, result), result, shape, _where(first, second), out, backend)
    right = transpose(near(second, backend), backend=backend) if transpose_b else second
    a_row, a_step = (1, height) if transpose_a else (depth, 1)
    step = chosen(products, backend, kind=KINDS.index(kind), T=t, A=kind, R=result)
    found = step(
        first,
        right,
        a_number(0, kind),
        height,
        width,
        depth,
        a_row,
        a_step,
        height * depth if first.ndim > 2 else 0,
        depth * width if second.ndim > 2 else 0,
        out=out,
        sizes={"out": shape},
        domain=(width, -(-height // ROWS), count),
    )
    return handed(found, _where(first, second), out)


def matvec(a: Any, x: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """The product of a matrix, or of each of a batch, and one vector: `reduce.dot` of each row with it."""
    first, second, _ = _alike("a", a, "x", x)
    if first.ndim < 2 or second.ndim != 1 or first.shape[-1] != second.shape[0]:
        raise ArgumentValueError(
            f"a has shape {first.shape} and x {second.shape}",
            fix="pass (..., n, k) and (k,), or call matmul",
        )
    return dot(first, second, -1, out=out, backend=backend)


def outer(x: Any, y: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """Every element of x times every element of y: a matrix, whose rows belong to x."""
    first, second, t = _alike("x", x, "y", y)
    shape = (first.size, second.size)
    check_out(out, shape)
    kind = WIDER[t][0]
    result = t if t is f16 else kind
    step = chosen(product_of_each, backend, kind=KINDS.index(kind), T=t, R=result)
    return handed(step(first, second, out=out, sizes={"out": shape}), _where(first, second), out)


def transpose(x: Any, *, out: Any = None, backend: str | None = None) -> Any:
    """The last two axes exchanged, as an array in C order. No bit of an element changes."""
    found = given("x", x)
    if found.ndim < 2:
        raise ArgumentValueError(f"x has {found.ndim} axes and a matrix two", fix="pass a matrix, or a batch of them")
    *batch, height, width = found.shape
    shape, count = (*batch, width, height), math.prod(batch)
    check_out(out, shape)
    bits = bits_of(found.dtype)
    target = None if out is None else target_of(out, found.dtype).view(bits)
    result = turned(found.view(bits), count, height, width, target, shape, backend)
    return handed(result.view(found.dtype.newbyteorder("=")), found, out)


def turned(
    bits: Any, count: int, height: int, width: int, out: Any, shape: tuple[int, ...], backend: str | None
) -> Any:
    """So many matrices transposed, as an array of any shape."""
    step = chosen(transposed_kernel, backend, T=TYPES[bits.dtype.newbyteorder("=")])
    squares = (-(-width // TILE), -(-height // TILE), count)
    return step(bits, height, width, out=out, sizes={"out": shape}, grid=squares)


def _alike(name: str, x: Any, other: str, y: Any) -> tuple[Given, Given, DataType]:
    first, second = given(name, x, ELEMENTS), given(other, y, ELEMENTS)
    t = element_of(first)
    if element_of(second) is not t:
        raise ArgumentTypeError(
            f"{name} holds {first.dtype} and {other} {second.dtype}", fix=f"pass {other}.astype(np.{first.dtype})"
        )
    return first, second, t


def _where(x: Given, y: Given) -> Given:
    """The one that lives on a device, if one does: results stay there."""
    return y if isinstance(x, np.ndarray) else x
