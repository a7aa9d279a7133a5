"""NumPy arrays and Python numbers on their way into and out of a dispatch."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.ir.dtypes import DataType
from ..foundation.ir.rounding import f32_to_bits, round_bf16

if TYPE_CHECKING:
    from ..foundation.language.kernel import Param
    from ..foundation.language.small.types import SmallType

Array = np.ndarray[Any, np.dtype[Any]]
ndarray, may_share_memory = np.ndarray, np.may_share_memory

ARRAY_DTYPES: dict[str, np.dtype[Any]] = {
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "bool": np.dtype(np.bool_),
    "bf16": np.dtype(np.uint16),
}  # fmt: skip
"""Element type -> dtype of the arrays that carry it. NumPy has no bfloat16: its bits travel as uint16."""

WORD = np.dtype(np.uint32)
HOST_DEVICES = (1, 3, 11)
"""DLPack device types whose memory the host reads: plain, and pinned by either kind of graphics driver."""


def as_array(name: str, value: Any, element: DataType) -> Array:
    """The argument as an array of the declared element type, over the same memory; never a conversion of values."""
    array = value if type(value) is np.ndarray else view(name, value, ARRAY_DTYPES[element.name].name)
    if isinstance(value, np.ndarray):
        check_dtype(name, array.dtype, element)
    elif array.dtype.itemsize == 1:  # bytes, most likely of such elements
        check_dtype(name, array.dtype, element, f"np.frombuffer({name}, np.{ARRAY_DTYPES[element.name].name})")
    else:
        check_dtype(name, array.dtype, element, array=f"np.asarray({name})")
    return array


def view(name: str, value: Any, wanted: str = "uint32") -> Array:
    """An array of an object that offers the buffer protocol, `__array_interface__`, DLPack on the host, or `__array__`.

    It lies over the same memory wherever the object offers that: `__array__` may give a copy instead.
    """
    if isinstance(value, list | tuple):
        raise ArgumentTypeError(
            f"{name} is a {type(value).__name__}, not an array", fix=f"np.array({name}, dtype=np.{wanted})"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{name} is masked, and kernels see no masks", fix=f"pass {name}.filled(...)")
    array = _shown_as_array(name, value)
    if array is None:
        raise ArgumentTypeError(
            f"{name} is a {type(value).__name__}, not an array", fix=f"pass a NumPy array of {wanted}"
        )
    return array


def _shown_as_array(name: str, value: Any) -> Array | None:
    """The array that an object shows; None of one that shows none."""
    if isinstance(value, np.generic | type):
        return None
    try:
        if hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack_device__"):
            return np.from_dlpack(value)
    except Exception as e:  # whatever the object's own code raises
        raise _unreadable(name, e) from e
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError):  # no buffer, or one whose format NumPy does not know
        pass
    if not hasattr(value, "__array__"):
        return None
    try:
        return np.asarray(value)
    except Exception as e:
        raise _unreadable(name, e) from e


def _written_through(name: str, value: Any) -> Array | None:
    """The array over an object's own memory, through which a result reaches it; None of one that shows no array.

    An object that makes a copy when it is asked makes another one when it is asked again.
    """
    first, again = _shown_as_array(name, value), _shown_as_array(name, value)
    if first is None or again is None:
        return None
    if first.size and first.ctypes.data != again.ctypes.data:
        raise ArgumentTypeError(
            f"{name} receives a result and is a {type(value).__name__} that shows copies of its elements",
            fix=f"pass np.array({name}), and take the result from there",
        )
    return first


def _unreadable(name: str, cause: Exception) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} cannot be read as an array: {str(cause) or type(cause).__name__}", fix="pass a NumPy array"
    )


def check_dtype(name: str, dtype: np.dtype[Any], element: DataType, fix: str = "", *, array: str = "") -> None:
    """Exactly the declared type, in either byte order: only the caller knows what other elements mean."""
    if dtype.newbyteorder("=") != ARRAY_DTYPES[element.name]:
        raise ArgumentTypeError(
            f"{name} holds {dtype} and the kernel declares {element.name}",
            fix=fix or _conversion(array or name, dtype, element),
            argument=name,
        )


def _conversion(name: str, dtype: np.dtype[Any], element: DataType) -> str:
    """How a caller says which elements are meant: these values, or, where there are as many bits, these bits."""
    wanted = ARRAY_DTYPES[element.name]
    bits = f"{name}.view(np.{wanted.name})"
    if element.name == "bf16":
        are_bits = dtype.itemsize == 2 and dtype.kind != "f"
        return bits if are_bits else f"{name}.astype(ml_dtypes.bfloat16).view(np.uint16)"
    values = f"{name}.astype({'bool' if wanted.kind == 'b' else f'np.{wanted.name}'})"
    if dtype.itemsize != wanted.itemsize or dtype.kind not in "iuf" or wanted.kind == "b" or not dtype.isnative:
        return values
    return f"{values} for its values, {bits} for its bits"


def element_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype that a caller names, or that carries the element type that a caller names."""
    found = any_dtype(dtype)
    if found.hasobject:
        raise ArgumentTypeError(f"{found} holds objects of Python", fix="pass np.float32, or vyre.f32")
    return found


def any_dtype(dtype: Any) -> np.dtype[Any]:
    """The same, where objects of Python are fine too."""
    if isinstance(dtype, DataType) and dtype.name in ARRAY_DTYPES:
        return ARRAY_DTYPES[dtype.name]
    try:
        found: np.dtype[Any] = np.dtype(dtype)
        return found
    except Exception as e:  # a text is parsed, and an object asked
        raise ArgumentTypeError(
            f"a {type(dtype).__name__} is not a type of elements", fix="pass np.float32, or vyre.f32"
        ) from e


def is_plain(array: Array) -> bool:
    """Whether the elements lie in memory as a dispatch reads them: some, in C order, native, no bool."""
    return bool(array.size and array.flags.c_contiguous and array.dtype.isnative and array.dtype.char != "?")


def to_input(array: Array) -> Any:
    """The elements as a dispatch reads them: C order, native, bool as words. The array itself where it is like that."""
    if not array.size:
        return b""  # an empty array has no bytes that a memoryview could be cast to
    dtype = array.dtype
    if dtype.char == "?":
        return array.astype(WORD, order="C")
    if not dtype.isnative:
        return array.astype(dtype.newbyteorder("="), order="C")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def destination(target: Array, inputs: Sequence[Any]) -> Any:
    """Where a backend writes a result: the caller's array, unless its form differs or an input shares its memory."""
    if not target.size:
        return bytearray()
    if target.dtype.char == "?":
        return np.empty(target.shape, WORD)
    for a in inputs:
        if type(a) is ndarray and may_share_memory(target, a):
            return np.empty_like(target, subok=False)
    return target


def from_bytes(data: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """A result as an array that the caller may write to, over the same memory where it can; bool words become bool."""
    is_bool = dtype.char == "?"
    if isinstance(data, np.ndarray):
        array: Array = data
    else:
        array = np.frombuffer(data, WORD if is_bool else dtype).reshape(shape)
        if not is_bool and not array.flags.writeable:
            array = array.copy()
    return array != 0 if is_bool else array


def check_writable(name: str, value: Any, element: DataType | None = None) -> Array:
    """An array that a result can be written into, of the declared type where there is one."""
    own = isinstance(value, np.ndarray)
    array = value if own else _written_through(name, value)
    if array is None or isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(
            f"{name} receives a result and is a {type(value).__name__}",
            fix=f"pass a NumPy array of {ARRAY_DTYPES[element.name]}" if element else "pass a NumPy array",
        )
    if element is not None:
        check_dtype(name, array.dtype, element, f"pass an array of {ARRAY_DTYPES[element.name]}")
    if not array.flags.writeable:
        copy = f"{name}.copy()" if own else f"np.array({name}), and take the result from there"
        raise ArgumentValueError(f"{name} receives a result and is read-only", fix=f"pass {copy}")
    if not array.flags.c_contiguous:
        raise ArgumentValueError(
            f"{name} receives a result and is not contiguous", fix=f"pass np.ascontiguousarray({name}) and copy it back"
        )
    if not array.dtype.isnative:
        raise _not_native(name)
    return array


def _not_native(name: str) -> ArgumentValueError:
    return ArgumentValueError(
        f"{name} receives a result and is not in native byte order",
        fix=f"pass {name}.astype({name}.dtype.newbyteorder('='))",
    )


_QUICK: dict[str, tuple[type, Callable[[Any], bytes]]] = {
    "u32": (int, struct.Struct("=I").pack),
    "i32": (int, struct.Struct("=i").pack),
    "f32": (float, struct.Struct("=f").pack),
}
"""The usual numbers, whose bytes `struct` makes at a fifth of NumPy's price."""


def number_writer(name: str, element: DataType) -> Callable[[Any], bytes]:
    """A function that makes the bytes of a value, for a parameter that is a number."""
    if element.name not in _QUICK:
        return lambda value: number_bytes(name, value, element)
    kind, pack = _QUICK[element.name]

    def write(value: Any) -> bytes:
        if type(value) is kind:
            try:
                return pack(value)
            except (struct.error, OverflowError):
                pass  # it does not fit, which is said below
        return number_bytes(name, value, element)

    return write


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
                f"{name} does not fit {element.name}"
                if abs(int(value)) >> 64
                else f"{name}={int(value)} does not fit {element.name}",
                fix=f"pass a value from {low} to {high}, or declare a wider type",
            )
        return np.array(int(value), ARRAY_DTYPES[element.name]).tobytes()
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise _not_a(name, value, element, f"pass float({name})")
    return _float_bytes(name, value, element)


def _float_bytes(name: str, value: Any, element: DataType) -> bytes:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if element.name == "bf16":
        stored = np.array(f32_to_bits(round_bf16(number)) >> 16, np.uint16)
        overflows = int(stored) & 0x7FFF == 0x7F80
    else:
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            stored = np.array(number, ARRAY_DTYPES[element.name])
        overflows = bool(np.isinf(stored))
    if overflows and not (isinstance(value, float | np.floating) and np.isinf(value)):
        shown = f"{value:.6g}" if isinstance(value, float | np.floating) else f"a number of {value.bit_length()} bits"
        raise ArgumentValueError(
            f"{name} = {shown} does not fit {element.name}", fix="pass a smaller number, or declare f64"
        )
    return stored.tobytes()


def _not_a(name: str, value: Any, element: DataType, fix: str) -> ArgumentTypeError:
    shown = f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return ArgumentTypeError(f"{name} is {shown} and the kernel declares one {element.name} value", fix=fix)


# ---- small values ----------------------------------------------------------------------------------------------------

# One row of numbers each. A vector is a row of the last axis, a c64 an element of complex64, other NamedTuples one of
# a structured array with its fields in order. An array of the numbers, with the rows as its last axis, does for all.

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
    if array.dtype != whole and array.dtype.newbyteorder("=") == whole:
        if param.role != "in":
            raise _not_native(param.name)
        array = array.astype(whole)
    if array.dtype == whole:
        array = array[..., np.newaxis].view(numbers)
    if array.dtype.newbyteorder("=") == numbers and array.ndim and array.shape[-1] == param.width:
        return array
    if array.ndim and array.shape[-1] == param.width and array.dtype.names is None:
        check_dtype(param.name, array.dtype, param.element)
    held = _dtype_text(array.dtype, whole)
    raise ArgumentTypeError(
        f"{param.name} holds {held} in shape {array.shape} and the kernel declares {param.small}",
        fix=f"pass an array of {_text(param.small)}",
        argument=param.name,
    )


def numbers_of(array: Array) -> Array:
    """Small values as rows of their numbers, over the same memory, with the rows as last axis; else the array itself.

    Fields of several types, out of order or with gaps between them are no small values.
    """
    dtype = array.dtype
    if dtype.names is None and dtype.kind != "c":
        return array
    numbers = list(_numbers(dtype))
    if numbers == [dtype] or len(set(numbers)) != 1 or len(numbers) * numbers[0].itemsize != dtype.itemsize:
        return array
    return array[..., np.newaxis].view(numbers[0])


def _numbers(dtype: np.dtype[Any]) -> Iterator[np.dtype[Any]]:
    """The numbers of an element, in their order in memory."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        for _ in range(math.prod(shape)):
            yield from _numbers(base)
    elif dtype.names is not None and dtype == np.dtype([(name, dtype[name]) for name in dtype.names]):
        for name in dtype.names:
            yield from _numbers(dtype[name])
    elif dtype.newbyteorder("=") == COMPLEX:
        yield from (np.dtype(np.float32).newbyteorder(dtype.byteorder),) * 2
    else:
        yield dtype


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


def _dtype_text(dtype: np.dtype[Any], other: np.dtype[Any] | None = None) -> str:
    """What an array holds; the types of its fields too where the names are those of another."""
    if dtype.names is None:
        return str(dtype)
    return str(dtype.descr) if other is not None and dtype.names == other.names else f"fields {', '.join(dtype.names)}"


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
