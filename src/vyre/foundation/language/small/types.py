"""The types of small values: NamedTuples of numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ForwardRef, NamedTuple

from ....errors import ArgumentTypeError
from ...ir.dtypes import DataType, f32, i32, u32
from ..lang import ANNOTATIONS, element_type
from ..refused_syntax import FOREIGN_TYPES
from .vectors import VECTORS, c64


class SmallType(NamedTuple):
    """A NamedTuple of numbers, of which some may be small values again."""

    name: str
    fields: tuple[str, ...]
    types: tuple[DataType | SmallType, ...]
    cls: type

    @property
    def is_vector(self) -> bool:
        return self.cls in VECTORS

    @property
    def is_complex(self) -> bool:
        return self.cls is c64

    def leaves(self) -> Iterator[DataType]:
        """The types of its numbers, those of inner values in their place."""
        for t in self.types:
            if isinstance(t, SmallType):
                yield from t.leaves()
            else:
                yield t

    def paths(self) -> Iterator[str]:
        """How each of its numbers is reached from it: `.position.x`."""
        for name, t in zip(self.fields, self.types, strict=True):
            yield from (f".{name}{rest}" for rest in (t.paths() if isinstance(t, SmallType) else ("",)))

    def __str__(self) -> str:
        return self.name


def small_type(item: object) -> SmallType | None:
    """The type that a NamedTuple is in kernels; None of anything else. Refuses fields that are no numbers."""
    is_named = isinstance(item, type) and issubclass(item, tuple) and hasattr(item, "_fields")
    return _of_class(item) if is_named and isinstance(item, type) else None


@lru_cache(maxsize=256)
def _of_class(cls: Any) -> SmallType:
    notes = {name: note for c in reversed(cls.__mro__) for name, note in getattr(c, "__annotations__", {}).items()}
    if not cls._fields:
        raise ArgumentTypeError(f"{cls.__name__} has no fields", fix="give it some: x: f32")
    types = tuple(_field(cls, name, notes.get(name)) for name in cls._fields)
    return SmallType(cls.__name__, cls._fields, types, cls)


def element_of(small: SmallType) -> DataType:
    """What a buffer of small values holds: numbers of their one type, or words where they have several."""
    types = set(small.leaves())
    if len(types) == 1:
        return types.pop()
    if types <= {f32, i32, u32}:
        return u32
    raise ArgumentTypeError(
        f"a buffer of {small}, whose numbers are {', '.join(sorted(t.name for t in types))}",
        fix="give them one type, or f32, i32 and u32 only",
    )


def _field(cls: type, name: str, note: object) -> DataType | SmallType:
    given = note.__forward_arg__ if isinstance(note, ForwardRef) else note
    if isinstance(given, str):
        scope = {**ANNOTATIONS, **getattr(sys.modules.get(cls.__module__), "__dict__", {})}
        try:
            given = eval(given, scope)
        except Exception as e:
            raise ArgumentTypeError(
                f"the type of {cls.__name__}.{name} cannot be evaluated: {e}",
                fix="define it at the top of the module",
            ) from e
    t = element_type(given) or small_type(given)
    if t is None:
        ours = FOREIGN_TYPES.get(getattr(given, "__name__", ""), "f32")
        raise ArgumentTypeError(
            f"the field {name} of {cls.__name__} is not of a type of kernels", fix=f"write {name}: {ours}"
        )
    return t
