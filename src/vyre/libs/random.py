"""Random numbers by seed, stream and index: the same everywhere, in any order, and in any parts.

`docs/libs/random.md` defines every number. Functions have no state; a `Generator` counts what it gave.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from vyre import Kernel

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.ir.dtypes import DataType, f32, f64, i32, u32
from ..front.bind import shape as shape_of
from ..front.sequence.now import refuse_to_read
from . import pick, prefix, sort
from .arguments import MOST_ELEMENTS, Shape, beside, check_out, chosen, filled, given, handed, named_type, on
from .random_kernels import (
    EXPONENTIAL,
    LANES,
    NORMAL,
    TILE,
    UNIFORM,
    floats,
    philox4x32,
    races,
    scaled,
    threefry2x32,
    weighed,
    wide_floats,
    words,
)
from .random_kernels import integers as integers_kernel
from .sort_kernels import first_of_rows, found_at

__all__ = [
    "Generator",
    "bits",
    "choice",
    "default_rng",
    "exponential",
    "integers",
    "normal",
    "permutation",
    "philox4x32",
    "threefry2x32",
    "uniform",
]

MOST_F32, MOST_F64 = float(np.finfo(np.float32).max), float(np.finfo(np.float64).max)
REQUIRED: Any = None
"""Every seed is one that the caller chose: a call without one is told so."""
_NONE = np.empty(0, np.uint32)
MOST_INDEX = 1 << 66
"""Of numbers in a stream: a block has four, and its number 64 bits."""


def bits(
    shape: Shape, *, seed: int = REQUIRED, stream: int = 0, start: int = 0, out: Any = None, backend: str | None = None
) -> Any:
    """The words of Philox4x32-10 as u32."""
    return _drawn(on(words, backend), (), shape, seed, stream, start, out)


def uniform(
    shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int = REQUIRED,
    stream: int = 0,
    start: int = 0,
    dtype: Any = None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """f32 from `low` on and below `high`, of which there are 2^24, or f64 with `dtype`, of which there are 2^53.

    A rounding may reach `high` if `low` is not 0.
    """
    if dtype is not None and named_type(dtype, (f32, f64)) is f64:
        least, most = _finite("low", low, MOST_F64), _finite("high", high, MOST_F64)
        numbers = least, _finite("high - low", most - least, MOST_F64)
        return _drawn(on(wide_floats, backend), numbers, shape, seed, stream, start, out)
    least, most = _finite("low", low), _finite("high", high)
    step = chosen(floats, backend, what=UNIFORM)
    return _drawn(step, (least, _finite("high - low", most - least)), shape, seed, stream, start, out)


def normal(
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    seed: int = REQUIRED,
    stream: int = 0,
    start: int = 0,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Normally distributed f32, up to 6.8 standard deviations from the mean."""
    step = chosen(floats, backend, what=NORMAL)
    return _drawn(step, (_finite("mean", mean), _not_negative("std", std)), shape, seed, stream, start, out)


def exponential(
    shape: Shape,
    scale: float = 1.0,
    *,
    seed: int = REQUIRED,
    stream: int = 0,
    start: int = 0,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Exponentially distributed f32 with this mean, up to 22.9 times the mean."""
    step = chosen(floats, backend, what=EXPONENTIAL)
    return _drawn(step, (0.0, _not_negative("scale", scale)), shape, seed, stream, start, out)


def integers(
    shape: Shape,
    low: int,
    high: int,
    *,
    dtype: Any = None,
    seed: int = REQUIRED,
    stream: int = 0,
    start: int = 0,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Whole numbers from `low` on and below `high`, each as likely as any other: i32, or u32 with `dtype`."""
    t = i32 if dtype is None else named_type(dtype, (i32, u32))
    least, width = _range(low, high, t)
    step = chosen(integers_kernel, backend, T=t)
    return _drawn(step, (least, width), shape, seed, stream, start, out)


def permutation(
    n: Any, *, seed: int = REQUIRED, stream: int = 0, start: int = 0, out: Any = None, backend: str | None = None
) -> Any:
    """The numbers below n in random order, as u32, or the elements of an array along its first axis, as a copy.

    It takes two indices for each of them.
    """
    if getattr(n, "shape", ()):
        x = given("n", n, sort.CARRIED)
        order = permutation(x.shape[0], seed=seed, stream=stream, start=start, backend=backend)
        return pick.take(x, beside(order, x), 0, out=out, backend=backend)
    (most,) = _count(n)
    if most > MOST_ELEMENTS // 2:
        raise ArgumentValueError(f"n={most} is too much", fix=f"pass a whole number up to {MOST_ELEMENTS // 2}")
    check_out(out, (most,))
    seed, stream, start = _place(seed, stream, start)
    low = bits(most, seed=seed, stream=stream, start=start, backend=backend)
    high = bits(most, seed=seed, stream=stream, start=start + most, backend=backend)
    by_low = sort.argsort(low, backend=backend)
    take = chosen(found_at, backend, V=u32)
    by_both = sort.argsort(take(high, by_low, most, most), backend=backend)
    return take(by_low, by_both, most, most, out=out)


def choice(
    n: Any,
    shape: Shape,
    *,
    replace: bool = True,
    weights: Any = None,
    seed: int = REQUIRED,
    stream: int = 0,
    start: int = 0,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Some of the numbers below n, as u32, or elements of an array along its first axis.

    `weights` are f32 that say how likely each one is, in any unit; without them all are alike. With `replace`, each
    number drawn takes one index. Without it none is drawn twice: that takes n indices, or 2 n where there are no
    weights, and those of weight 0 come last.
    """
    if getattr(n, "shape", ()):
        x = given("n", n, sort.CARRIED)
        consts: dict[str, Any] = {"seed": seed, "stream": stream, "start": start, "backend": backend}
        found = choice(x.shape[0], shape, replace=replace, weights=weights, **consts)
        return pick.take(x, beside(np.asarray(found) if found.shape == () else found, x), 0, out=out, backend=backend)
    wanted = shape_of("shape", shape)
    (most,) = _count(n)
    drawn = math.prod(wanted)
    check_out(out, wanted)
    place: dict[str, Any] = {"seed": seed, "stream": stream, "start": start, "backend": backend}
    if drawn > most and (not most or not replace):
        raise ArgumentValueError(
            f"{drawn} of {most} numbers" + ("" if replace else " without replacement"),
            fix="ask for fewer, or pass replace=True" if most else "pass a number above 0, or an array with elements",
        )
    if weights is None and replace:
        return integers(shape, 0, max(most, 1), dtype=np.uint32, out=out, **place)
    take = chosen(first_of_rows, backend, V=u32)
    if weights is None:
        return handed(take(permutation(n, **place), most, max(drawn, 1), out=out, sizes={"out": wanted}), _NONE, out)
    likely = given("weights", weights, (f32,))
    if likely.shape != (most,):
        raise ArgumentValueError(f"weights have shape {likely.shape}", fix=f"pass one row of {most} numbers")
    if not drawn:
        return filled(0, u32, wanted, likely, out, backend)
    likely = on(weighed, backend)(likely)
    if replace:
        upto = prefix.max(prefix.sum(likely, backend=backend), backend=backend)
        at = on(scaled, backend)(beside(uniform(wanted, **place), upto), upto, sizes={"out": wanted})
        return sort.searchsorted(upto, at, "right", out=out, backend=backend)
    when = on(races, backend)(beside(exponential(most, **place), likely), likely, sizes={"out": most})
    order = sort.argsort(when, backend=backend)
    return handed(take(order, most, max(drawn, 1), out=out, sizes={"out": wanted}), likely, out)


# ---- with a state ----------------------------------------------------------------------------------------------------


class Generator:
    """Draws numbers of one seed and stream, one index after the other, as NumPy's generator does.

    `index` is that of the next number, and may be set. Every number takes one index, of whatever kind it is, and in a
    permutation two.
    """

    def __init__(self, seed: int, stream: int = 0, *, backend: str | None = None) -> None:
        self.seed, self.stream, _ = _place(seed, stream, 0)
        self.backend = backend
        self.index = 0
        self._lock = threading.Lock()

    def bits(self, size: Shape | None = None, *, out: Any = None) -> Any:
        """Words of 32 bits as u32."""
        return self._next(bits, (), size, out)

    def random(self, size: Shape | None = None, dtype: Any = np.float32, *, out: Any = None) -> Any:
        """f32 in [0, 1), or f64."""
        return self._next(uniform, (), size, out, dtype=named_type(dtype, (f32, f64)).name.replace("f", "float"))

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Shape | None = None, *, out: Any = None) -> Any:
        """f32 from `low` on and below `high`."""
        return self._next(uniform, (low, high), size, out)

    def standard_normal(self, size: Shape | None = None, dtype: Any = np.float32, *, out: Any = None) -> Any:
        """Normally distributed f32 around 0, with a standard deviation of 1."""
        named_type(dtype, (f32,))
        return self._next(normal, (), size, out)

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Shape | None = None, *, out: Any = None) -> Any:
        """Normally distributed f32."""
        return self._next(normal, (loc, scale), size, out)

    def exponential(self, scale: float = 1.0, size: Shape | None = None, *, out: Any = None) -> Any:
        """Exponentially distributed f32 with this mean."""
        return self._next(exponential, (scale,), size, out)

    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Shape | None = None,
        dtype: Any = np.int32,
        *,
        endpoint: bool = False,
        out: Any = None,
    ) -> Any:
        """Whole numbers from `low` on and below `high`, or up to it with `endpoint`; of one number, below that."""
        least, most = (0, low) if high is None else (low, high)
        if endpoint and isinstance(most, int | np.integer):
            most += 1
        return self._next(integers, (least, most), size, out, dtype=dtype)

    def permutation(self, n: Any, *, out: Any = None) -> Any:
        """The numbers below n in random order, as u32, or a shuffled copy of an array. Each takes two indices."""
        return self._counted(permutation, 2 * _rows(n), n, out=out)

    def choice(
        self, n: Any, size: Shape | None = None, replace: bool = True, weights: Any = None, *, out: Any = None
    ) -> Any:
        """Some of the numbers below n, as u32, or elements of an array: `choice`."""
        wanted = shape_of("size", () if size is None else size)
        indices = math.prod(wanted) if replace else _rows(n) * (2 if weights is None else 1)
        return self._counted(choice, indices, n, wanted, replace=replace, weights=weights, out=out)

    def _next(self, draw: Any, numbers: tuple[Any, ...], size: Shape | None, out: Any, **options: Any) -> Any:
        there: Any = getattr(out, "shape", ())
        shape = tuple(there) if size is None else shape_of("size", size)
        return self._counted(draw, math.prod(shape), shape, *numbers, out=out, **options)

    def _counted(self, draw: Any, indices: int, *what: Any, **options: Any) -> Any:
        """A function of this module, which takes so many indices."""
        refuse_to_read("a generator counted on", "call the function of vyre.libs.random, with start= as an argument")
        with self._lock:
            place = {"seed": self.seed, "stream": self.stream, "start": self.index, "backend": self.backend}
            found = draw(*what, **place, **options)
            self.index += indices
        return found

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, stream={self.stream}, index={self.index})"


def default_rng(seed: int, *, backend: str | None = None) -> Generator:
    """A generator of stream 0. Every seed is one that the caller chose."""
    return Generator(seed, backend=backend)


# ---- what they share -------------------------------------------------------------------------------------------------


def _drawn(step: Kernel, numbers: tuple[Any, ...], shape: Shape, seed: int, stream: int, start: int, out: Any) -> Any:
    wanted = shape_of("shape", shape)
    n = math.prod(wanted)
    check_out(out, wanted)
    seed, stream, start = _place(seed, stream, start)
    if n > MOST_ELEMENTS or start + n > MOST_INDEX:
        raise ArgumentValueError(
            f"{n} numbers from index {start} on are too many",
            fix=f"draw at most {MOST_ELEMENTS} at once, from the first 2**66 of a stream",
        )
    tile, skipped = divmod(start, TILE)
    first = tile * LANES
    found = step(
        seed & 0xFFFFFFFF,
        seed >> 32,
        stream,
        first & 0xFFFFFFFF,
        first >> 32,
        skipped,
        *numbers,
        out=out,
        sizes={"out": wanted},
        domain=-(-(n + skipped) // TILE) * LANES,
    )
    return found if out is not None or wanted or type(found) is not np.ndarray else found[()]


def _place(seed: Any, stream: Any, start: Any) -> tuple[int, int, int]:
    for name, value, bits in (("seed", seed, 64), ("stream", stream, 32), ("start", start, 66)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            if value is REQUIRED:
                raise ArgumentTypeError(f"no {name} was passed, and none is made up", fix=f"pass {name}=1")
            raise ArgumentTypeError(f"{name} is {shown(value)}", fix=f"pass a whole number of {bits} bits: {name}=1")
        if not 0 <= value < 1 << bits:
            raise ArgumentValueError(f"{name}={shown(value)}", fix=f"pass a number from 0 to 2**{bits} - 1")
    return int(seed), int(stream), int(start)


def _finite(name: str, value: Any, limit: float = MOST_F32) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentTypeError(f"{name} is {shown(value)}", fix=f"pass one number: {name}=1.0")
    if not -limit <= value <= limit:
        kind = "f32" if limit == MOST_F32 else "f64"
        raise ArgumentValueError(
            f"{name}={shown(value)} is not finite as {kind}", fix=f"pass a number from -{limit:.7e} to {limit:.7e}"
        )
    return float(value)


def _count(n: Any) -> tuple[int]:
    """How many numbers a permutation has, as a shape."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise ArgumentTypeError(
            f"n is {shown(n)}, not how many numbers there are",
            fix="pass a whole number, or an array; x[permutation(len(x))], with what else you pass, shuffles a list x",
        )
    return shape_of("n", n)  # type: ignore[return-value] # of one axis


def _rows(n: Any) -> int:
    """How many elements a permutation has, or an array along its first axis."""
    shape = getattr(n, "shape", ())
    return int(shape[0]) if shape else _count(n)[0]


def _not_negative(name: str, value: Any) -> float:
    found = _finite(name, value)
    if found < 0:
        raise ArgumentValueError(f"{name}={shown(value)} is negative", fix="pass a number of 0 or more")
    return found


def _range(low: Any, high: Any, t: DataType) -> tuple[int, int]:
    """The least number, modulo 2^32, and how many there are, 0 for 2^32."""
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            if value is REQUIRED:
                raise ArgumentTypeError(f"no {name} was passed, and none is made up", fix=f"pass {name}=1")
            raise ArgumentTypeError(f"{name} is {shown(value)}", fix=f"pass a whole number: {name}=10")
    least, most = t.limits
    if not least <= low < high <= most + 1:
        raise ArgumentValueError(
            f"no {t.name} lies from {low} on and below {high}", fix=f"pass {least} <= low < high <= {most + 1}"
        )
    return int(low) % (1 << 32), (int(high) - int(low)) % (1 << 32)
