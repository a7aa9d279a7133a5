"""DLPack's structures: what a capsule of another library holds, and capsules of our own.

A capsule that is not consumed keeps its memory until it is dropped, so its holder holds the memory. One of ours
keeps what it was made with until its consumer calls the deleter, or until it is dropped unused.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

import numpy as np

INT, UINT, FLOAT, BFLOAT, BOOL = 0, 1, 2, 4, 6
"""Codes of element types."""
_READ_ONLY = 1
_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_Delete = ctypes.CFUNCTYPE(None, c_void_p)


class _Device(Structure):
    _fields_ = (("type", c_int32), ("id", c_int32))


class _Type(Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _Type),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class _Managed(Structure):
    _fields_ = (("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p))


class _Version(Structure):
    _fields_ = (("major", c_uint32), ("minor", c_uint32))


class _ManagedVersioned(Structure):
    _fields_ = (
        ("version", _Version),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


class Tensor(NamedTuple):
    """Memory of another library. `strides` count elements; None: C order. `keep` is what holds the memory."""

    device: tuple[int, int]
    type: tuple[int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    address: int
    read_only: bool
    keep: Any


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, c_void_p, ctypes.c_char_p)
_pointer = _python("PyCapsule_GetPointer", c_void_p, c_void_p, ctypes.c_char_p)
_new = _python("PyCapsule_New", ctypes.py_object, c_void_p, ctypes.c_char_p, c_void_p)


# ---- in --------------------------------------------------------------------------------------------------------------


def ask(array: Any, stream: int | None) -> Any:
    """The capsule of an array, whose memory may be used in that stream. Older libraries know no versions."""
    try:
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:
        return array.__dlpack__(stream=stream)


def read(capsule: Any) -> Tensor | None:
    """What a capsule holds; None if it is none of ours to read."""
    where = id(capsule)
    read_only = False
    if _is_valid(where, _VERSIONED):
        versioned = _ManagedVersioned.from_address(_pointer(where, _VERSIONED))
        if versioned.version.major != 1:
            return None
        tensor, read_only = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    elif _is_valid(where, _PLAIN):
        tensor = _Managed.from_address(_pointer(where, _PLAIN)).tensor
    else:
        return None
    device, dtype, rank, strides = tensor.device, tensor.dtype, tensor.ndim, tensor.strides
    return Tensor(
        (device.type, device.id),
        (dtype.code, dtype.bits if dtype.lanes == 1 else 0),
        tuple(tensor.shape[:rank]),
        tuple(strides[:rank]) if strides else None,
        (tensor.data or 0) + tensor.byte_offset,
        read_only,
        capsule,
    )


def type_of(dtype: np.dtype[Any], *, is_bfloat: bool = False) -> tuple[int, int]:
    """DLPack's name for an element type."""
    code = BFLOAT if is_bfloat else {"i": INT, "u": UINT, "f": FLOAT, "b": BOOL}[dtype.kind]
    return code, 8 * dtype.itemsize


def dtype_of(code: int, bits: int) -> np.dtype[Any] | None:
    """The dtype of arrays that carry this type; NumPy has no bfloat16, whose bits travel as uint16."""
    return _DTYPES.get((code, bits))


_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (code, bits): np.dtype(f"{kind}{bits // 8}")
    for code, kind, sizes in (
        (INT, "i", (8, 16, 32, 64)),
        (UINT, "u", (8, 16, 32, 64)),
        (FLOAT, "f", (16, 32, 64)),
        (BOOL, "b", (8,)),
        (BFLOAT, "u", (16,)),
    )
    for bits in sizes
}


# ---- out -------------------------------------------------------------------------------------------------------------

_lent: dict[int, tuple[Any, Any, Callable[[], None]]] = {}
"""By the address of a structure: the structure, its shape and strides, and what to call when its consumer is done."""


def _delete(address: int | None) -> None:
    entry = _lent.pop(address or 0, None)
    if entry is not None:
        entry[2]()


def _drop(capsule: int | None) -> None:
    """A capsule is dropped; a consumer has renamed it."""
    for name in (_PLAIN, _VERSIONED):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name))


_deleter = _Delete(_delete)
_destructor = ctypes.PYFUNCTYPE(None, c_void_p)(_drop)
_DELETER, _DESTRUCTOR = (ctypes.cast(f, c_void_p).value for f in (_deleter, _destructor))
# A consumer may drop its capsule when this module is gone, at the end of the process, and would call freed memory: so
# these four objects are never released.
for _lasting in (_PLAIN, _VERSIONED, _deleter, _destructor):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_lasting))


def lend(
    device: tuple[int, int],
    type: tuple[int, int],
    shape: tuple[int, ...],
    address: int,
    done: Callable[[], None],
    *,
    versioned: bool,
    read_only: bool = False,
) -> Any:
    """A capsule over memory in C order. `done` is called after its last use, from any thread.

    Only one with a version says that its memory is read-only.
    """
    rank = len(shape)
    sizes = (c_int64 * (2 * rank or 1))(*shape)
    step = 1
    for axis in reversed(range(rank)):
        sizes[rank + axis] = step
        step *= max(shape[axis], 1)
    managed = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.version, managed.flags = _Version(1, 0), _READ_ONLY * read_only
    managed.deleter = _DELETER
    tensor = managed.tensor
    tensor.data, tensor.device, tensor.ndim, tensor.dtype = address or None, _Device(*device), rank, _Type(*type, 1)
    start = ctypes.addressof(sizes)
    tensor.shape = ctypes.cast(start, POINTER(c_int64))
    tensor.strides = ctypes.cast(start + 8 * rank, POINTER(c_int64))
    where = ctypes.addressof(managed)
    _lent[where] = managed, sizes, done
    return _new(where, _VERSIONED if versioned else _PLAIN, _DESTRUCTOR)


@atexit.register
def _forget() -> None:
    """No library may call back into an interpreter that is gone."""
    for managed, *_ in _lent.values():
        managed.deleter = None
