"""`vec2`, `vec3`, `vec4` and `c64`: NamedTuples of numbers that kernels know arithmetic for.

Outside kernels they carry numbers to and from them, and compute nothing.
"""

from __future__ import annotations

from collections import namedtuple
from functools import lru_cache
from typing import Any, NoReturn

from ....errors import ArgumentTypeError
from ...ir.dtypes import DataType, f32, f64, i32, u32

ELEMENTS = (f32, i32, u32, f64)
"""What a vector may be of."""
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "neg", "abs", "lt", "le", "gt", "ge")


def _refuse(self: Any, *_: object) -> NoReturn:
    raise ArgumentTypeError(
        f"{type(self).__name__} has arithmetic in kernels only", fix="compute with NumPy: np.array(v)"
    )


def _named(name: str, element: DataType, fields: str, more: dict[str, Any]) -> type:
    make: Any = namedtuple  # the types of its fields are values here
    base = make(name.partition("[")[0], fields)
    body = {f"__{operator}__": _refuse for operator in _OPERATORS} | more
    notes = dict.fromkeys(fields.split(), element)
    return type(name, (base,), {"__slots__": (), "__annotations__": notes, "__module__": "vyre", **body})


@lru_cache(maxsize=16)
def _vector(count: int, element: DataType) -> type:
    name = f"vec{count}" if element == f32 else f"vec{count}[{element}]"

    def new(cls: type, *args: Any, **named: Any) -> Any:
        """From its components, or from one number for all of them."""
        spread = args * count if len(args) == 1 and not named else args
        return make(cls, *spread, **named)

    def reduce(self: Any) -> tuple[Any, ...]:
        return _again, (count, element, tuple(self))

    more: dict[str, Any] = {"__new__": new, "__reduce__": reduce}
    if element == f32:
        more["__class_getitem__"] = classmethod(lambda cls, t: _of(count, t))
    found: Any = _named(name, element, " ".join("xyzw"[:count]), more)
    make = found.__mro__[1].__new__
    return found  # type: ignore[no-any-return]


def _again(count: int, element: DataType, items: tuple[Any, ...]) -> Any:
    return _vector(count, element)(*items)


def _of(count: int, element: object) -> type:
    if element not in ELEMENTS:
        raise ArgumentTypeError(f"vec{count} of something else than numbers", fix=f"write vec{count}[i32], u32 or f64")
    assert isinstance(element, DataType)
    return _vector(count, element)


vec2, vec3, vec4 = (_vector(count, f32) for count in (2, 3, 4))
c64 = _named("c64", f32, "real imag", {})
VECTORS = frozenset(_vector(count, element) for count in (2, 3, 4) for element in ELEMENTS)
