"""What the functions of this package take and give: arrays of the host and of devices, types, axes, results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from vyre import Kernel, Out, const, gid, kernel

from ..driver.selection.registry import generation
from ..driver.settings.knobs import BACKEND, STRICT
from ..errors import ArgumentTypeError, ArgumentValueError, UnsupportedFeature, shown
from ..foundation.ir.dtypes import DataType, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ..foundation.memo import keep
from ..front.arrays import ARRAY_DTYPES, HOST_DEVICES, Array, any_dtype, check_writable, view
from ..front.compile import choice_for
from ..front.device.array import DeviceBuffer, adopt, device_of, to_device, upload
from ..front.device.home import home_of
from ..front.sequence.now import recorder

Given: TypeAlias = Array | DeviceBuffer
Axis: TypeAlias = int | tuple[int, ...] | None
Shape: TypeAlias = int | tuple[int, ...]
T = TypeVar("T")

TYPES = {ARRAY_DTYPES[t.name]: t for t in (bool_, u8, u16, u32, u64, i8, i16, i32, i64, f16, f32, f64)}
"""Elements that arrays of these functions have: not bf16, which looks like u16 on the host."""
MOST_CHOSEN = 1024
"""Kernels that are remembered, the oldest out first."""
MOST_ELEMENTS = (1 << 32) - (1 << 16)
"""Places are u32, and a kernel may look a little past the end."""


@kernel(workgroup=64)
def fill(value: T, out: Out[T], *, T: const) -> None:
    if gid.x < len(out):
        out[gid.x] = value


def given(name: str, x: Any, allowed: Sequence[DataType] = tuple(TYPES.values())) -> Given:
    """An argument as an array of the host or of a device; its elements are of an allowed type."""
    found: Given
    if type(x) is DeviceBuffer or type(x) is np.ndarray:
        found = x
    elif (device := device_of(x)) is not None:
        found = adopt(name, x, device, writes=False, remember=False)
    else:
        found = view(name, x, ARRAY_DTYPES[allowed[0].name].name)
    is_bfloat = type(found) is DeviceBuffer and found._is_bfloat
    if is_bfloat or TYPES.get(found.dtype.newbyteorder("=")) not in allowed:
        narrow = found.dtype.kind in "biu" and (found.dtype.itemsize < 4 or f64 not in allowed)
        whole = i32 in allowed and (f32 not in allowed or narrow)
        wanted = "int32" if whole else "float32" if f32 in allowed else ARRAY_DTYPES[allowed[0].name].name
        raise ArgumentTypeError(
            f"{name} holds {'bfloat16' if is_bfloat else found.dtype}, and this function takes "
            f"{', '.join(t.name for t in allowed)}",
            fix=f"convert it: {name}.astype(np.{wanted})",
            argument=name,
        )
    if found.size > MOST_ELEMENTS:
        raise ArgumentValueError(
            f"{name} has {found.size} elements, and places are counted in 32 bits",
            fix=f"pass parts of at most {MOST_ELEMENTS} elements",
            argument=name,
        )
    return found


def element_of(x: Given) -> DataType:
    """The type of the elements, as kernels name it."""
    return TYPES[x.dtype.newbyteorder("=")]


def named_type(dtype: Any, allowed: Sequence[DataType]) -> DataType:
    """The type that `dtype=` names: one of these."""
    found = TYPES.get(any_dtype(dtype).newbyteorder("="))
    if found is None or found not in allowed:
        raise ArgumentTypeError(
            f"dtype={shown(dtype)} is not one of {', '.join(t.name for t in allowed)}",
            fix=f"pass dtype=np.{ARRAY_DTYPES[allowed[0].name].name}",
        )
    return found


class Extent(NamedTuple):
    """Where the problems of a call lie: element k of problem (o, i) is at `(o * length + k) * inner + i`."""

    outer: int
    length: int
    inner: int
    shape: tuple[int, ...]
    """That of the results, one for each problem."""


def extent(x: Given, axis: Axis, *, keepdims: bool = False) -> Extent:
    """The problems that lie along an axis, or along several neighbouring ones; None: all."""
    shape = x.shape
    axes = tuple(range(len(shape))) if axis is None else _axes(axis, len(shape))
    if axes and axes != tuple(range(axes[0], axes[-1] + 1)):
        raise ArgumentValueError(
            f"axis={shown(axis)}: these axes are not neighbours, so that no order of their elements is given",
            fix="bring them together: np.moveaxis(x, ...), or reduce one after the other",
        )
    first = axes[0] if axes else 0
    last = axes[-1] + 1 if axes else 0
    kept = tuple(1 if k in axes else n for k, n in enumerate(shape))
    return Extent(
        math.prod(shape[:first]),
        math.prod(shape[first:last]),
        math.prod(shape[last:]),
        kept if keepdims else shape[:first] + shape[last:],
    )


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    asked = axis if isinstance(axis, tuple) else (axis,)
    if not all(isinstance(k, int | np.integer) and not isinstance(k, bool) for k in asked):
        raise ArgumentTypeError(f"axis={shown(axis)} is no axis", fix="pass a whole number, a tuple of them, or None")
    for k in asked:
        if not -ndim <= k < ndim:
            raise ArgumentValueError(
                f"axis={shown(axis)} of an array with {ndim} axes",
                fix=f"pass an axis from {-ndim} to {ndim - 1}" if ndim else "drop it",
            )
    found = sorted(int(k) % ndim for k in asked)
    if len(set(found)) < len(found):
        raise ArgumentValueError(f"axis={shown(axis)} names an axis twice", fix="name every axis once")
    return tuple(found)


def check_out(out: Any, shape: tuple[int, ...]) -> None:
    """Raise if `out=` is an array of another shape. All else about it the kernel sees that writes it."""
    there = getattr(out, "shape", shape)
    if tuple(there) != shape:
        raise ArgumentValueError(
            f"out has shape {tuple(there)}, and the result {shape}", fix=f"pass an array of shape {shape}, or drop out="
        )


def counted(name: str, n: Any) -> int:
    """How many elements the caller asks for."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise ArgumentTypeError(f"{name} is {shown(n)}", fix=f"pass a whole number: {name}=10")
    if not 0 <= n <= MOST_ELEMENTS:
        raise ArgumentValueError(f"{name}={shown(n)}", fix=f"pass a number from 0 to {MOST_ELEMENTS}")
    return int(n)


def bits_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Elements that move as they are: f32 in kernels has one NaN and no subnormals. Bools are words on a device."""
    return dtype if dtype.kind == "b" else np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")


def target_of(out: Any, dtype: np.dtype[Any]) -> Given:
    """What the caller passes as `out=`, as an array of the host or of a device, of exactly this type."""
    found: Given
    if type(out) is DeviceBuffer:
        found = out
    elif (device := device_of(out)) is not None:
        found = adopt("out", out, device, writes=True, remember=False)
    else:
        found = check_writable("out", out)
    if found.dtype != dtype.newbyteorder("="):
        raise ArgumentTypeError(f"out holds {found.dtype}", fix=f"pass an array of {dtype.newbyteorder('=')}")
    return found


def on(kernel: Kernel, backend: str | None) -> Kernel:
    """The kernel on the backend that the caller names, if he names one."""
    return kernel if backend is None else kernel.on(backend)


_chosen: dict[tuple[object, ...], Kernel] = {}


def chosen(kernel: Kernel, backend: str | None, **consts: Any) -> Kernel:
    """The kernel for these compile-time values, on the backend that the caller names, if he names one.

    A call of it costs a quarter of one that has to look at compile-time values.
    """
    key = kernel, backend, *consts.values()
    found = _chosen.get(key)
    if found is None:
        found = Kernel.of_program(kernel.specialize(**consts), kernel.__name__)
        found = on(found, backend)
        keep(_chosen, key, found, MOST_CHOSEN)
    return found


_preferences: dict[tuple[object, ...], str] = {}


def _preferred(t: DataType) -> str:
    """The backend that a call over such elements takes, if none is named. To choose anew would cost milliseconds."""
    key = generation(), BACKEND.peek(), STRICT.peek(), t.name
    found = _preferences.get(key)
    if found is None:
        found = choice_for(fill.specialize(T=t)).chosen
        keep(_preferences, key, found, MOST_CHOSEN)
    return found


def near(x: Given, backend: str | None) -> Given:
    """The array where several calls read it: uploaded once where the device has memory of its own.

    The backend is the one that is named, or else the one that is chosen for such elements.
    """
    if type(x) is DeviceBuffer or not x.size or recorder() is not None:
        return x
    home = home_of(backend or _preferred(element_of(x)))
    try:
        exchange = home.exchange
        shares = exchange is not None and exchange.device[0] in HOST_DEVICES
        return x if shares else upload(home, np.asarray(x))
    except UnsupportedFeature:  # a backend that keeps nothing on its device
        return x


def beside(made: Any, x: Given) -> Any:
    """An array of the host where x is, if that is a device: calls take both."""
    return made if isinstance(x, np.ndarray) or not isinstance(made, np.ndarray) else to_device(made, x.device)


def handed(result: Any, x: Given, out: Any) -> Any:
    """What a function returns: on the device if its argument was there, else NumPy's; a number for one without axes."""
    if out is not None:
        return out
    if type(x) is DeviceBuffer:
        return result if type(result) is DeviceBuffer else to_device(result, x.device)
    found: Any = result.numpy() if type(result) is DeviceBuffer else result
    return found if found.shape else found[()]


def filled(value: Any, t: DataType, shape: tuple[int, ...], x: Given, out: Any, backend: str | None) -> Any:
    """The result of a call that has nothing to look at."""
    value = bool(value) if t is bool_ else value
    if t is f64 and value == 0:  # a backend without f64 can move its bits
        there = None if out is None else target_of(out, np.dtype(np.float64)).view(np.uint64)
        zeros = chosen(fill, backend, T=u64)(0, out=there, sizes={"out": shape})
        return handed(zeros.view(np.float64), x, out)
    return handed(chosen(fill, backend, T=t)(value, out=out, sizes={"out": shape}), x, out)
