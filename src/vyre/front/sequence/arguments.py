"""What a sequence was called with: arrays, apart from all else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...driver.contract.values import ResidentHandle
from ...errors import ArgumentTypeError, ArgumentValueError
from ..arrays import HOST_DEVICES, Array, check_writable, ndarray, numbers_of, view
from ..device.array import DTYPES, DeviceBuffer, device_of
from ..device.home import Home, Memory

PLAIN = (bool, int, float, str, bytes, type(None))
"""Types of arguments and results that are the same in every repetition."""
_MOST_WORK = 1000
"""Steps that go into telling two strided arrays apart; such that take more count as one memory."""


class Given:
    """The arguments of a call: arrays apart from all else, which tells kinds of calls apart together with the arrays'
    types and shapes."""

    def __init__(self, names: Sequence[str], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """`names` are those of the parameters, for messages."""
        self.arrays: list[Any] = []
        """Those of the host and `DeviceBuffer`s, each once."""
        self.names: list[str] = []
        self.overlaps: list[tuple[int, int]] = []
        """Places of arrays that share memory and are not one array, where the host sees that."""
        self.home: Home | None = None
        self._held: dict[int, Memory] = {}
        """Of device arrays, by their places. A free() of another thread meanwhile does not end it."""
        self._places: dict[int, int] = {}
        self._objects: list[Any] = []
        self._kind: list[object] = [len(args), *named]
        every = (*names, *(f"argument {k}" for k in range(len(names), len(args))))
        self._args = [walked(value, self._leaf, name, self._kind) for name, value in zip(every, args, strict=False)]
        self._named = {name: walked(value, self._leaf, name, self._kind) for name, value in named.items()}
        self.kind = tuple(self._kind)

    def _leaf(self, name: str, value: Any) -> Any:
        """`At` in place of an array; what tells the value from another one is noted."""
        if isinstance(value, np.generic):
            self._kind += (value.dtype, value.tobytes())
            return value
        if type(value) in PLAIN:
            self._kind += (type(value), value.hex() if type(value) is float else value)
            return value
        at = self._places.get(id(value))
        if at is None:
            at = self._places[id(value)] = self._add(name, value)
        self._kind.append(at)
        return At(at)

    def _add(self, name: str, value: Any) -> int:
        array: Array | DeviceBuffer
        if type(value) is DeviceBuffer:
            home = value._at()
            if self.home is not None and home is not self.home:
                raise ArgumentValueError(
                    f"{name} lives on {home.name} and another argument on {self.home.name}",
                    fix=f'bring one to the other: vyre.to_device({name}, "{self.home.name}")',
                )
            self.home, array = home, value
            place = self._place_of_memory(value)
            self._kind += (value.dtype, value.shape, value._is_bfloat, value._read_only, place)
        elif type(value) is not ndarray and device_of(value) is not None:
            raise ArgumentTypeError(
                f"{name} is an array of another library on a device",
                fix=f'share its memory first: vyre.to_device({name}, "id")',
                argument=name,
            )
        else:
            array = value if type(value) is ndarray else view(name, value)
            self._kind.append(array.dtype)
            array = numbers_of(array)
            if array.dtype.newbyteorder("=") not in DTYPES:
                raise ArgumentTypeError(
                    f"{name} holds {array.dtype}, which no kernel takes",
                    fix=f"convert it: {name}.astype(np.float32)",
                    argument=name,
                )
            self._kind += (array.dtype, array.shape)
        overlapping = [k for k, other in enumerate(self.arrays) if _overlap(array, other)]
        self.overlaps += ((k, len(self.arrays)) for k in overlapping)
        self._kind += overlapping
        self.arrays.append(array)
        self.names.append(name)
        self._objects.append(value)
        return len(self.arrays) - 1

    def _place_of_memory(self, array: DeviceBuffer) -> object:
        """Which argument before this one has the same memory, if one does. Memory of other libraries may overlap in
        other ways, and is known by its handle."""
        memory = array._resident()
        if memory is None:
            return None
        self._held[len(self.arrays)] = memory
        if memory.source is not None:
            return memory.handle
        return next(k for k, other in self._held.items() if other is memory)

    @property
    def handles(self) -> tuple[ResidentHandle, ...]:
        """The memory of device arrays."""
        return tuple(memory.handle for memory in self._held.values())

    @property
    def adopted(self) -> set[int]:
        """Ids of the memory of other libraries: several handles may be the same bytes."""
        return {memory.handle.id for memory in self._held.values() if memory.source is not None}

    def places_of(self, handles: Collection[int]) -> set[int]:
        """The places of device arrays over this memory."""
        return {at for at, memory in self._held.items() if memory.handle.id in handles}

    def require_apart(self, written: Collection[int]) -> None:
        """Raise if an array that is written shares memory with another argument: each would be a copy of its own."""
        for k, j in self.overlaps:
            if k in written or j in written:
                raise ArgumentValueError(
                    f"{self.names[k]} and {self.names[j]} share memory, and the sequence writes to it",
                    fix=f"pass a copy of {self.names[j]}, or the same array for both",
                )

    def object(self, at: int) -> Any:
        """What the caller passed."""
        return self._objects[at]

    def target(self, at: int) -> Array:
        """The caller's array, which a result is written to; small values as their numbers."""
        return numbers_of(check_writable(self.names[at], self._objects[at]))

    def call(self, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Call the function with other arrays in the places of these."""
        named = {name: filled(value, arrays) for name, value in self._named.items()}
        return function(*(filled(value, arrays) for value in self._args), **named)


def _overlap(a: Any, b: Any) -> bool:
    """Whether two arrays share memory that the host sees; those of one device are told apart by their memory."""
    on_device = [x for x in (a, b) if isinstance(x, DeviceBuffer)]
    if len(on_device) == 2:
        return False
    if not on_device:
        try:
            return np.shares_memory(a, b, max_work=_MOST_WORK)  # type: ignore[arg-type] # stubs know two numbers of it
        except np.exceptions.TooHardError:
            return True
    memory, on_host = on_device[0]._memory, b if a is on_device[0] else a
    exchange = None if memory is None else memory.home.exchange
    if memory is None or exchange is None or exchange.device[0] not in HOST_DEVICES:
        return False
    (begin, stop), (start, end) = memory.span, bounds(on_host)
    return start < stop and begin < end


def bounds(array: Array) -> tuple[int, int]:
    """From where to where its elements lie."""
    start = array.ctypes.data
    if not array.size:
        return start, start
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    return start + sum(r for r in reach if r < 0), start + sum(r for r in reach if r > 0) + array.itemsize


@dataclass(frozen=True, slots=True)
class At:
    """The place of an array among the arrays of a call."""

    place: int


def filled(value: Any, arrays: Sequence[Any]) -> Any:
    """A structure of arguments or results with arrays in their places."""
    return walked(value, lambda _, part: arrays[part.place] if type(part) is At else part)


def walked(value: Any, leaf: Callable[[str, Any], Any], name: str = "", kind: list[object] | None = None) -> Any:
    """A structure of tuples, lists and dicts with `leaf(name, part)` in place of each other part.

    `kind` gets what tells the structure from another one.
    """
    if type(value) in _LEAVES:
        return leaf(name, value)
    if isinstance(value, tuple | list):
        if kind is not None:
            kind += (type(value), len(value))
        parts = [walked(each, leaf, f"{name}[{k}]", kind) for k, each in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        if kind is not None:
            kind += (dict, len(value), *value)
        return {key: walked(each, leaf, f"{name}[{key!r}]", kind) for key, each in value.items()}
    return leaf(name, value)


_LEAVES = frozenset((ndarray, DeviceBuffer, At, *PLAIN))
"""The usual parts, about which nothing is asked."""
