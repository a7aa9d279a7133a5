"""What can arrays of the host do that those of a device cannot? Each of it is refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from ...errors import ArgumentTypeError
from ..sequence.now import is_recording

T = TypeVar("T")
_OPERATORS = {
    "getitem": "d[...]", "setitem": "d[...] = x", "neg": "-d", "pos": "+d", "abs": "abs(d)", "invert": "~d",
    "lt": "d < x", "le": "d <= x", "gt": "d > x", "ge": "d >= x", "eq": "d == x", "ne": "d != x", "bool": "bool(d)",
    "int": "int(d)", "float": "float(d)", "complex": "complex(d)", "divmod": "divmod(d, x)", "rdivmod": "divmod(x, d)",
} | {
    name: text
    for each, symbol in (
        ("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"), ("mod", "%"), ("pow", "**"),
        ("lshift", "<<"), ("rshift", ">>"), ("and", "&"), ("or", "|"), ("xor", "^"), ("matmul", "@"),
    )
    for name, text in ((each, f"d {symbol} x"), (f"r{each}", f"x {symbol} d"))
}  # fmt: skip
"""Operators that arrays of the host have, by the names of their methods."""


def refusing(cls: type[T]) -> type[T]:
    """The class of arrays of a device, with what it refuses."""
    for name, symbol in _OPERATORS.items():
        setattr(cls, f"__{name}__", _refused(symbol))
    cls.__getattr__ = _missing  # type: ignore[attr-defined] # only what is not there comes here
    return cls


def _refused(symbol: str) -> Callable[..., NoReturn]:
    def operator(self: object, *_: object) -> NoReturn:
        raise ArgumentTypeError(f"{symbol} of a device array, with which only kernels compute", fix=_instead())

    return operator


def _instead(then: str = "") -> str:
    return "write a kernel for it" + ("" if is_recording() else f", or copy the array to the host: d.numpy(){then}")


def _missing(self: Any, name: str) -> NoReturn:
    """An AttributeError, by which Python, NumPy and others find out what there is."""
    if name.startswith("_") or not hasattr(np.ndarray, name):
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
    call = "(...)" if callable(getattr(np.ndarray, name)) else ""
    said = f"a device array has no {name}. Fix: {_instead(f'.{name}{call}')}"
    raise AttributeError(said, name=name, obj=self)
