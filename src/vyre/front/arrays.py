"""NumPy arrays and Python numbers on their way into and out of a dispatch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..foundation.dtypes import DataType

Array = np.ndarray[Any, np.dtype[Any]]

ARRAY_DTYPES: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
    "bf16": np.dtype(np.uint16),
}  # fmt: skip
"""Element type -> dtype of the arrays that carry it. NumPy has no bfloat16: its bits travel as uint16."""

WORD = np.dtype(np.uint32)


def as_array(name: str, value: Any, element: DataType) -> Array:
    """The argument as an array of the declared element type; never a conversion of values."""
    if isinstance(value, list | tuple):
        raise ArgumentTypeError(
            f"{name} is a {type(value).__name__}, not an array",
            fix=f"np.array({name}, dtype=np.{ARRAY_DTYPES[element.name]})",
        )
    if isinstance(value, np.generic) or not _speaks_array(value):
        raise ArgumentTypeError(
            f"{name} is a {type(value).__name__}, not an array",
            fix=f"pass a NumPy array of {ARRAY_DTYPES[element.name]}",
        )
    array: Array = np.asarray(value)
    check_dtype(name, array.dtype, element)
    return array


def _speaks_array(value: Any) -> bool:
    if hasattr(value, "__array_interface__"):
        return True
    try:
        memoryview(value).release()
    except TypeError:
        return False
    return True


def check_dtype(name: str, dtype: np.dtype[Any], element: DataType) -> None:
    """Equal to the declared type, or four bytes read as u32 words."""
    wanted = ARRAY_DTYPES[element.name]
    if dtype.newbyteorder("=") == wanted:
        return
    if element.name == "u32" and dtype.kind in "iuf" and dtype.itemsize == 4:
        return
    raise ArgumentTypeError(
        f"{name} holds {dtype} and the kernel declares {element.name}",
        fix=f"{name}.astype(np.{wanted.name})",
        argument=name,
    )


def to_bytes(array: Array) -> Array:
    """The elements as the program sees them: C order, native, bool as words. Shares memory where it can."""
    if array.dtype == np.bool_:
        return np.ascontiguousarray(array).astype(WORD)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array)


def from_bytes(data: bytearray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """A new array over a result; bool words become bool."""
    words = np.frombuffer(data, dtype=WORD if dtype == np.bool_ else dtype)
    return (words != 0 if dtype == np.bool_ else words).reshape(shape)


def check_writable(name: str, array: Any, element: DataType) -> Array:
    """An array that a result can be written into."""
    if not isinstance(array, np.ndarray):
        raise ArgumentTypeError(
            f"{name} receives a result and is a {type(array).__name__}",
            fix=f"pass a NumPy array of {ARRAY_DTYPES[element.name]}",
        )
    check_dtype(name, array.dtype, element)
    if not array.flags.writeable:
        raise ArgumentValueError(f"{name} receives a result and is read-only", fix=f"pass {name}.copy()")
    if not array.flags.c_contiguous:
        raise ArgumentValueError(
            f"{name} receives a result and is not contiguous", fix=f"pass np.ascontiguousarray({name}) and copy it back"
        )
    if not array.dtype.isnative:
        raise ArgumentValueError(
            f"{name} receives a result and is not in native byte order",
            fix=f"pass {name}.astype({name}.dtype.newbyteorder('='))",
        )
    return array


def number_bytes(name: str, value: Any, element: DataType) -> bytes:
    """A Python or NumPy number as one element, range-checked."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if element.name == "bool":
        if not isinstance(value, bool | np.bool_):
            raise _not_a(name, value, element, "pass True or False")
        return np.array(int(value), WORD).tobytes()
    if element.is_int:
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise _not_a(name, value, element, f"pass int({name})")
        low, high = element.limits
        if not low <= int(value) <= high:
            raise ArgumentValueError(
                f"{name}={int(value)} does not fit {element.name}",
                fix=f"pass a value from {low} to {high}, or declare a wider type",
            )
        return np.array(int(value), ARRAY_DTYPES[element.name]).tobytes()
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise _not_a(name, value, element, f"pass float({name})")
    return _float_bytes(name, value, element)


def _float_bytes(name: str, value: Any, element: DataType) -> bytes:
    dtype = np.dtype(np.float32) if element.name == "bf16" else ARRAY_DTYPES[element.name]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        stored = np.array(number, dtype)
    overflows = bool(np.isinf(stored))
    if element.name == "bf16":
        bits = int(stored.view(np.uint32))
        if not math.isnan(number):
            bits += 0x7FFF + (bits >> 16 & 1)  # round to nearest even on the upper half
        stored = np.array(bits >> 16, np.uint16)
        overflows = bits >> 16 & 0x7FFF == 0x7F80
    if overflows and not (isinstance(value, float | np.floating) and math.isinf(value)):
        raise ArgumentValueError(
            f"{name}={value!r} does not fit {element.name}", fix="pass a smaller number, or declare f64"
        )
    return stored.tobytes()


def _not_a(name: str, value: Any, element: DataType, fix: str) -> ArgumentTypeError:
    shown = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return ArgumentTypeError(f"{name} is {shown} and the kernel declares one {element.name} value", fix=fix)
