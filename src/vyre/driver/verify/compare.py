"""Are two lists of outputs the same? If not: which output, which element, which two values.

Equal means byte for byte. Two things loosen it, and only when they are asked for: a budget in units in the last place,
for floats of a program whose operations may be approximated, and an arrangement that brings the elements of both sides
into one order before they are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ...errors import ArgumentValueError
from ...foundation.check.requirements import may_approximate
from ...foundation.ir.dtypes import DataType
from ...foundation.ir.program import Program
from ..plan.binding import Binding, BindingPlan

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrange: TypeAlias = Callable[[str, bytes, DataType], bytes]
"""(name of the output, its bytes, type of an element) -> the same elements in an order that no schedule changes."""
Compare: TypeAlias = str | Arrange
"""`bytes`, `unordered`, or the caller's own arrangement."""
_FLOATS = {"f16": ("<e", 0x7C00), "bf16": ("<f", 0x7F80), "f32": ("<f", 0x7F80_0000), "f64": ("<d", 0x7FF0 << 48)}
"""How to unpack one, and the bits of infinity."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where outputs part first. `kind` is `count` (of outputs), `length` (in bytes) or `value`.

    `element` counts from the start of the buffer and `byte_offset` from the start of what was read back. `found` and
    `expected` are numbers where the element is one, else bytes.
    """

    kind: str
    output: str | None
    element: int | None
    byte_offset: int | None
    found: Any
    expected: Any
    found_bits: str = ""
    expected_bits: str = ""
    ulps: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The same as context of an error."""
        known = {"output": self.output, "element": self.element, "ulps": self.ulps}
        values = {"found": _with_bits(self.found, self.found_bits)}
        values["expected"] = _with_bits(self.expected, self.expected_bits)
        return {name: value for name, value in known.items() if value is not None} | values


def _with_bits(value: Any, bits: str) -> Any:
    return f"{value} ({bits})" if bits else value


class Comparison(NamedTuple):
    """`worst_ulps` is how far apart floats were that a budget let pass."""

    difference: Difference | None
    worst_ulps: int = 0


def compare_outputs(
    program: Program,
    found: Sequence[bytes],
    expected: Sequence[bytes],
    *,
    compare: Compare = "bytes",
    ulp_budget: int = 0,
) -> Comparison:
    """The first difference between two results of one program, in slot order."""
    outputs = BindingPlan.build(program).outputs
    if not len(found) == len(expected) == len(outputs):
        return Comparison(Difference("count", None, None, None, len(found), len(expected)))
    arrange = arrangement(compare)
    budget = ulp_budget if may_approximate(program) else 0
    worst = 0
    for output, mine, theirs in zip(outputs, found, expected, strict=True):
        if arrange is not None:
            mine, theirs = (bytes(arrange(output.name, data, output.element)) for data in (mine, theirs))
        if mine == theirs:
            continue
        if budget and _holds_whole_floats(output, mine) and len(mine) == len(theirs):
            apart = ulps_apart(mine, theirs, output.element)
            over = apart > budget
            if not over.any():
                worst = max(worst, int(apart.max()))
                continue
            offset = int(over.argmax()) * output.element_size
        else:
            offset = first_differing_byte(mine, theirs)
        return Comparison(_difference(output, mine, theirs, offset), worst)
    return Comparison(None, worst)


def arrangement(compare: Compare) -> Arrange | None:
    """The function applied to both sides before they are compared; None compares them as they are."""
    if callable(compare):
        return compare
    if compare not in _ARRANGEMENTS:
        raise ArgumentValueError(
            f"{compare!r} is not a comparison", fix=f"use one of: {', '.join(_ARRANGEMENTS)}; or pass a function"
        )
    return _ARRANGEMENTS[compare]


def unordered(name: str, data: bytes, element: DataType) -> bytes:
    """Sort the elements: outputs that hold the same ones, in whatever order, become equal."""
    size = element.size
    if size not in (1, 2, 4, 8) or len(data) % size:
        return data
    import numpy as np  # only this comparison pays for it

    return np.sort(np.frombuffer(data, f"<u{size}")).tobytes()


_ARRANGEMENTS: dict[str, Arrange | None] = {"bytes": None, "unordered": unordered}


def first_differing_byte(a: bytes, b: bytes) -> int:
    """Where two texts part; the length of the shorter one if it is a prefix of the other.

    >>> first_differing_byte(b"abcd", b"abXd"), first_differing_byte(b"ab", b"abcd")
    (2, 2)
    """
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # they are the same before `low`, and not before `high`
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def ulps_apart(a: bytes, b: bytes, element: DataType) -> NDArray[np.uint64]:
    """How many floats lie between the elements of two equally long outputs. Zeros are one number, and so are NaNs."""
    import numpy as np

    bits, infinity = element.bits or 0, _FLOATS[element.name][1]
    ranks, nan = [], []
    for data in (a, b):
        signed = np.frombuffer(data, f"<i{bits // 8}").astype(np.int64)
        magnitude = signed & ((1 << bits - 1) - 1)
        ranks.append(np.where(signed < 0, -magnitude, magnitude))
        nan.append(magnitude > infinity)
    low, high = np.minimum(*ranks), np.maximum(*ranks)
    apart = high.astype(np.uint64) - low.astype(np.uint64)  # the difference can take 64 bits, and wraps to it
    apart[nan[0] | nan[1]] = np.iinfo(np.uint64).max
    apart[nan[0] & nan[1]] = 0
    return apart


def _holds_whole_floats(output: Binding, data: bytes) -> bool:
    start = (output.output_byte_range or (0, 0))[0]
    size = output.element_size
    return output.element.name in _FLOATS and start % size == 0 and len(data) % size == 0


def _difference(output: Binding, found: bytes, expected: bytes, offset: int) -> Difference:
    start, size = (output.output_byte_range or (0, 0))[0], max(output.element_size, 1)
    element = (start + offset) // size
    if len(found) != len(expected):
        return Difference("length", output.name, element, offset, len(found), len(expected))
    begin = element * size - start
    mine, theirs = (data[max(begin, 0) : begin + size] for data in (found, expected))
    ulps = None
    if output.element.name in _FLOATS and len(mine) == size:
        ulps = int(ulps_apart(mine, theirs, output.element)[0])
    values = number_of(mine, output.element), number_of(theirs, output.element)
    return Difference("value", output.name, element, offset, *values, _bits(mine), _bits(theirs), ulps)


def number_of(data: bytes, element: DataType) -> Any:
    if len(data) != element.size:
        return data  # the part of an element that was read back
    if element.is_int or element.name == "bool":
        return int.from_bytes(data, "little", signed=element.is_signed)
    if element.name in _FLOATS:
        form = _FLOATS[element.name][0]
        return struct.unpack(form, data.rjust(struct.calcsize(form), b"\0"))[0]  # a bf16 is the upper half of an f32
    return data


def _bits(data: bytes) -> str:
    return f"0x{data[::-1].hex()}"
