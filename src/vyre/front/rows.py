"""Small values in arrays: one row of numbers each, and how NumPy shows it.

A vector is a row of the last axis, a c64 an element of complex64, any other NamedTuple one of a structured array with
its fields in order. An array of the numbers, with the rows as its last axis, does for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from .arrays import ARRAY_DTYPES, Array, check_dtype, number_bytes, view

if TYPE_CHECKING:
    from ..foundation.language.kernel import Param
    from ..foundation.language.small.types import SmallType

COMPLEX = np.dtype(np.complex64)


def row_dtype(small: SmallType) -> np.dtype[Any]:
    """What NumPy calls one of them."""
    if small.is_complex:
        return COMPLEX
    if small.is_vector:
        return np.dtype((ARRAY_DTYPES[next(small.leaves()).name], (len(small.fields),)))
    fields = zip(small.fields, small.types, strict=True)
    return np.dtype([(name, _field_dtype(t)) for name, t in fields])


def _field_dtype(t: Any) -> np.dtype[Any]:
    return row_dtype(t) if hasattr(t, "leaves") else ARRAY_DTYPES[t.name]


def rows_of(param: Param, value: Any) -> Array:
    """The numbers of an argument, over the same memory, with the rows as last axis."""
    assert param.small is not None
    assert param.element is not None
    numbers, whole = ARRAY_DTYPES[param.element.name], row_dtype(param.small)
    array = value if isinstance(value, np.ndarray) else view(param.name, value, _text(param.small))
    if array.dtype == whole:
        array = array[..., np.newaxis].view(numbers)
    if array.dtype == numbers and array.ndim and array.shape[-1] == param.width:
        return array
    if array.ndim and array.shape[-1] == param.width and array.dtype.names is None:
        check_dtype(param.name, array.dtype, param.element)
    raise ArgumentTypeError(
        f"{param.name} holds {_dtype_text(array.dtype)} in shape {array.shape} and the kernel declares {param.small}",
        fix=f"pass an array of {_text(param.small)}",
        argument=param.name,
    )


def shown_rows(small: SmallType, array: Array) -> Array:
    """The same memory as NumPy shows these values."""
    whole = row_dtype(small)
    return array if small.is_vector else array.view(whole).reshape(array.shape[:-1])


def _text(small: SmallType) -> str:
    if small.is_complex:
        return "np.complex64"
    if small.is_vector:
        return f"np.{ARRAY_DTYPES[next(small.leaves()).name].name} with {len(small.fields)} along its last axis"
    return f"np.dtype({_fields_text(row_dtype(small))})"


def _fields_text(dtype: np.dtype[Any]) -> str:
    return _dtype_text(dtype) if dtype.names is None else str(dtype.descr)


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.names is None else f"fields {', '.join(dtype.names)}"


def row_bytes(param: Param, value: Any) -> bytes:
    """One small value as an argument: a NamedTuple, a tuple, or an array, one number after the other."""
    assert param.small is not None
    assert param.element is not None
    given = (value.real, value.imag) if isinstance(value, complex | np.complexfloating) else value
    numbers = list(_flat(given))
    types = list(param.small.leaves())
    if isinstance(given, str | bytes) or len(numbers) != len(types):
        raise ArgumentValueError(
            f"{param.name} is {shown(value)} and the kernel declares one {param.small}",
            fix=f"pass {param.small}({', '.join(param.small.fields)})",
        )
    return b"".join(number_bytes(param.name, n, t) for n, t in zip(numbers, types, strict=True))


def _flat(value: Any) -> Any:
    if isinstance(value, tuple | list | np.ndarray):
        for item in value.tolist() if isinstance(value, np.ndarray) else value:
            yield from _flat(item)
    else:
        yield value
