"""Arrays that live on a device, what they share with other libraries, and the arrays of those."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from ...driver.contract.values import U32_MAX, ResidentReadRange
from ...errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, UnsupportedFeature, VyreError, shown
from ..arrays import ARRAY_DTYPES, HOST_DEVICES, WORD, Array, any_dtype, element_dtype, to_input, view
from ..sequence.now import refuse_to_read
from . import dlpack
from .home import Home, Lent, Memory, home_of, home_of_device, settle
from .refused import refusing

if TYPE_CHECKING:
    from ...driver.contract.exchange import DeviceExchange

NVIDIA = 2
"""DLPack's number for the devices whose arrays have `__cuda_array_interface__`."""
DTYPES = frozenset(ARRAY_DTYPES.values())
_DEFAULT = 1
"""DLPack's number for the default stream of an NVIDIA device."""
MOST_DIMENSIONS = 32
"""Of an array, in every version of NumPy."""
_numbers = itertools.count(1)


class Kind:
    """What arrays have in common over which calls are planned alike: where they live, elements and shape. There is one
    of each, which is compared and hashed faster than those."""

    __slots__ = ("__weakref__", "home", "incarnation", "is_bfloat")
    _known: ClassVar[WeakValueDictionary[tuple[object, ...], Kind]] = WeakValueDictionary()

    def __init__(self, home: Home, incarnation: int, *, is_bfloat: bool) -> None:
        self.home, self.incarnation, self.is_bfloat = home, incarnation, is_bfloat

    @classmethod
    def of(cls, array: DeviceBuffer, home: Home, incarnation: int) -> Kind:
        is_bfloat = array._is_bfloat
        key = home, incarnation, array.dtype, array.shape, is_bfloat
        return cls._known.setdefault(key, cls(home, incarnation, is_bfloat=is_bfloat))


@refusing
class DeviceBuffer:
    """An array in the memory of a device, in C order. Kernels take it where they take a NumPy array.

    `numpy()` copies it to the host. Other libraries share its memory through DLPack, where the device allows it.
    """

    __slots__ = (
        "__weakref__", "_home", "_is_bfloat", "_lent", "_memory", "_number", "_read_only", "device", "dtype", "shape",
    )  # fmt: skip

    def __init__(self, *_: object, **__: object) -> None:
        raise ArgumentTypeError("a device array is not made by calling its class", fix='use vyre.to_device(x, "id")')

    @classmethod
    def _over(
        cls,
        home: Home,
        memory: Memory | None,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        *,
        is_bfloat: bool = False,
        read_only: bool = False,
    ) -> DeviceBuffer:
        """`memory` is None for an array without elements."""
        made = object.__new__(cls)
        made._home, made._memory, made.dtype, made.shape = home, memory, dtype, shape
        made._is_bfloat, made._read_only, made.device = is_bfloat, read_only, home.name
        made._number, made._lent = next(_numbers), None
        return made

    _home: Home | None
    _memory: Memory | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    device: str
    _is_bfloat: bool
    _read_only: bool
    _number: int
    """No other array has it, nor this one once it was freed."""
    _lent: tuple[Array, Kind] | bool | None
    """As `_lend` gives it, once it was asked; False where it gives nothing."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes on the device, where a bool is a word."""
        return self.size * (4 if self.dtype.char == "?" else self.dtype.itemsize)

    def _at(self) -> Home:
        """Where it lives, if it was not freed."""
        if self._home is None:
            raise ArgumentValueError(
                f"the device array of {self.dtype} with shape {self.shape} was freed",
                fix="use it before free(), or make it again with vyre.to_device()",
                device=self.device,
            )
        if self._memory is not None and self._memory.ended:
            raise ArgumentValueError(
                "a device array of a sequence's function was kept beyond its call, and later calls change it",
                fix="return it from the function",
                device=self.device,
            )
        return self._home

    def _resident(self) -> Memory | None:
        """Its memory, if it has elements."""
        self._at()
        return self._memory

    def _lend(self) -> tuple[Array, Kind] | bool:
        """The elements themselves as an array of the host, and its kind. False where the host does not work in them, or
        another library does."""
        home, memory = self._home, self._memory
        found: Any = None
        if home is not None and memory is not None and not self._read_only and self.dtype.char != "?":
            ours = memory.owned and memory.source is None and memory.keep is None
            if ours and home.exchange is not None:
                found = home.exchange.seen_by_host(memory.handle)
        if found is None or home is None or memory is None:
            self._lent = False
            return False
        array: Array = np.asarray(Lent(found[: self.nbytes].view(self.dtype).reshape(self.shape), memory))
        lent = self._lent = array, Kind.of(self, home, memory.handle.incarnation)
        return lent

    def numpy(self) -> Array:
        """A copy on the host."""
        refuse_to_read("a device array was copied to the host")
        found: Any = np.empty(self.shape, WORD if self.dtype.char == "?" else self.dtype)
        memory = self._resident()
        if memory is not None:
            settle(memory)
            memory.home.backend.download_resident([ResidentReadRange(memory.handle, 0, self.nbytes)], out=[found])
        array: Array = found.astype(np.bool_) if self.dtype.char == "?" else found
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ArgumentValueError(
                "an array on a device cannot be seen by the host", fix="let it be copied: d.numpy()"
            )
        found = self.numpy()
        return found if dtype is None else found.astype(any_dtype(dtype), copy=False)

    def view(self, dtype: Any) -> DeviceBuffer:
        """The same memory read as other elements, without a copy: as in NumPy, the last axis takes the difference."""
        wanted = element_dtype(dtype)
        fix = f"convert it with a kernel, or on the host: d.numpy().astype(np.{wanted.name})"
        if wanted not in DTYPES:
            raise ArgumentTypeError(f"no kernel has elements of {wanted}", fix="pass np.float32, or vyre.f32")
        if wanted != self.dtype and np.dtype(np.bool_) in (wanted, self.dtype):
            raise ArgumentTypeError("a device holds bools as words, which are not seen as other elements", fix=fix)
        shape, last = self.shape, self.dtype.itemsize * (self.shape[-1] if self.shape else 1)
        if wanted.itemsize != self.dtype.itemsize:
            if not shape or last % wanted.itemsize:
                raise ArgumentValueError(
                    f"the last axis of {self!r} has {last} bytes, and {wanted} takes {wanted.itemsize} in an array of "
                    "one axis or more",
                    fix=fix,
                )
            shape = (*shape[:-1], last // wanted.itemsize)
        return DeviceBuffer._over(
            self._at(),
            self._memory,
            wanted,
            shape,
            is_bfloat=getattr(dtype, "name", "") == "bf16",
            read_only=self._read_only,
        )

    def free(self) -> None:
        """Let go of the memory now; a second call does nothing. A library that was lent it keeps it, and so does a call
        of another thread until it is done."""
        refuse_to_read("a device array was freed")
        self._number = next(_numbers)  # before the memory goes: a call that finds none must not be known
        self._home = self._memory = self._lent = None

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("a device array without axes has no length", fix="use .size")
        return self.shape[0]

    def __repr__(self) -> str:
        state = "" if self._home is not None else ", freed"
        return f"DeviceBuffer({self.dtype}, shape={self.shape}, device={self.device!r}{state})"

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            "an array on a device cannot be pickled or copied",
            fix="send d.numpy(), and call vyre.to_device() on the other side",
        )

    # -- other libraries

    def _shared(self) -> DeviceExchange:
        """The exchange that shares the memory, where that is possible."""
        exchange = self._at().exchange
        if exchange is None:
            raise self._not_shared("has no addresses that other libraries know")
        if self.dtype.char == "?":
            raise self._not_shared("holds bools as words, which no other library does")
        return exchange

    def _not_shared(self, why: str) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"the memory of {self!r} {why}", fix="pass d.numpy()", name="shared memory", device=self.device
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._shared().device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The memory, for a library that uses it in `stream`: see the array API standard."""
        _require_pair("max_version", max_version)
        _require_pair("dl_device", dl_device)
        if not isinstance(copy, bool | None):
            raise ArgumentTypeError(f"copy is a {type(copy).__name__}", fix="pass copy=True, or leave it out")
        refuse_to_read("a device array was given to another library")
        exchange, memory = self._shared(), self._resident()
        if dl_device is not None and tuple(dl_device) != exchange.device:
            if dl_device[0] not in HOST_DEVICES or copy is False:
                raise self._not_shared(f"is not on DLPack device {dl_device[0]}:{dl_device[1]}")
            return self.numpy().__dlpack__(max_version=max_version)
        if copy:
            return duplicate(self).__dlpack__(stream=stream, max_version=max_version)
        versioned = max_version is not None and max_version[0] >= 1
        if self._read_only and not versioned:
            raise self._not_shared("is read-only, which a capsule without a version cannot say")
        used_in = _consumer_stream(exchange, stream)
        if memory is None:
            return dlpack.lend(exchange.device, self._type, self.shape, 0, lambda: None, versioned=versioned)
        if used_in is not None:
            if used_in != -1:
                exchange.release_to(used_in)
            memory.lend_to(used_in)
        held = [memory]
        return dlpack.lend(
            exchange.device,
            self._type,
            self.shape,
            memory.span[0],
            held.clear,
            versioned=versioned,
            read_only=self._read_only,
        )

    @property
    def _type(self) -> tuple[int, int]:
        return dlpack.type_of(self.dtype, is_bfloat=self._is_bfloat)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        home, memory = self._home, self._memory
        hidden = home is None or self.dtype.char == "?" or (memory is not None and memory.ended)
        exchange = None if home is None or hidden else home.exchange
        if exchange is None or exchange.device[0] != NVIDIA:
            raise AttributeError("this memory is not shared in that way")
        refuse_to_read("a device array was given to another library")
        address = 0
        if memory is not None:
            address = memory.span[0]
            memory.lend_to(-1)
            exchange.release_to(_DEFAULT)  # a consumer that knows no streams, or ignores ours, uses that one
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (address, self._read_only),
            "strides": None,
            "version": 3,
            "stream": exchange.stream,
        }


def _require_pair(name: str, given: object) -> None:
    if given is not None and not (
        isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(n, int) for n in given)
    ):
        raise ArgumentTypeError(f"{name}={shown(given)} is not two numbers", fix=f"pass {name}=(a, b), or leave it out")


def _consumer_stream(exchange: DeviceExchange, stream: int | None) -> int | None:
    """The stream that is to wait for us, -1 if none is; None where there are no streams."""
    if exchange.stream is None:
        if stream is not None and (type(stream) is not int or stream != -1):
            raise ArgumentValueError(
                f"stream={shown(stream)} for memory of the host, which has none", fix="pass stream=None"
            )
        return None
    if stream is None:
        return _DEFAULT
    if type(stream) is not int or stream == 0 or stream < -1:
        raise ArgumentValueError(
            f"stream={shown(stream)} is not a stream",
            fix="pass the number of a stream, 1 for the default one, or -1 for none",
        )
    return stream


def duplicate(array: DeviceBuffer) -> DeviceBuffer:
    """A copy on the same device."""
    memory = array._resident()
    if memory is None:
        return array
    width = WORD.itemsize if array.nbytes % 4 == 0 else 1
    if array.nbytes // width > U32_MAX:
        raise ArgumentValueError(
            f"an array of {array.nbytes} bytes is too long to be copied on its device",
            fix="pass arrays that do not overlap, or copy it through the host: vyre.to_device(x.numpy(), device)",
        )
    flat = DeviceBuffer._over(memory.home, memory, np.dtype(f"u{width}"), (array.nbytes // width,))
    made = _gathered(flat, 0, flat.shape, (1,))
    return DeviceBuffer._over(memory.home, made._resident(), array.dtype, array.shape, is_bfloat=array._is_bfloat)


def _gathered(flat: DeviceBuffer, first: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> DeviceBuffer:
    from .kernels import MOST_AXES, gather_bytes, gather_words

    missing = MOST_AXES - len(shape)
    run = gather_words if flat.dtype.itemsize == 4 else gather_bytes
    sizes = np.array((1,) * missing + shape, np.uint32)
    wrapped = np.array((0,) * missing + tuple(step % (1 << 32) for step in steps), np.uint32)
    found: DeviceBuffer = run(flat, first, sizes, wrapped, sizes={"out": math.prod(shape)})
    return found


# ---- arrays of other libraries ---------------------------------------------------------------------------------------


def device_of(value: Any) -> tuple[int, int] | None:
    """The DLPack device of an array of another library that does not lie in host memory; None for everything else."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None:
        try:
            kind, id = ask()
        except Exception:  # whatever its own code raises: the array is read as one of the host, which says why not
            return None
        return None if kind in HOST_DEVICES else (int(kind), int(id))
    if isinstance(value, np.ndarray | np.generic) or not hasattr(value, "__cuda_array_interface__"):
        return None
    return NVIDIA, 0


def is_on_device(value: Any) -> bool:
    """Whether an argument lives in memory that is not the host's."""
    return type(value) is DeviceBuffer or device_of(value) is not None


def adopt(
    name: str,
    value: Any,
    device: tuple[int, int],
    *,
    writes: bool,
    remember: bool = True,
    waited: set[int] | None = None,
) -> DeviceBuffer:
    """An array over the memory of another library, which our work may use from now on. Never a conversion of values.

    Elements that lie apart, and bools, are copied on the device, if they are only read. `waited` are streams that our
    work waits for already. `remember`: the array is for one call, and others over the same memory are likely.
    """
    home = home_of_device(name, device)
    exchange = home.exchange
    assert exchange is not None
    stream = exchange.stream_of(value)
    try:
        found = _tensor(value, device, exchange.stream if stream is None else -1)
    except VyreError:
        raise
    except Exception as e:
        raise ArgumentTypeError(
            f"{name} cannot be shared: {str(e) or type(e).__name__}",
            fix=f"pass {name}.detach(), or a plain array of its library",
        ) from e
    if stream is not None and stream not in (waited or ()):
        exchange.wait_for(stream)  # once for all arrays of a library, which would wait for each
        if waited is not None:
            waited.add(stream)
    dtype = None if found is None else dlpack.dtype_of(*found.type)
    if found is None or dtype is None:
        raise ArgumentTypeError(
            f"{name} holds elements of a type that kernels do not know", fix="convert it to one of the types of vyre"
        )
    if writes and found.read_only:
        raise ArgumentValueError(f"{name} receives a result and is read-only", fix=f"pass a copy of {name}")
    is_bfloat, is_bool = found.type[0] == dlpack.BFLOAT, dtype.char == "?"
    plain = _is_contiguous(found.shape, found.strides)
    if writes and (is_bool or not plain):
        raise ArgumentValueError(
            f"{name} receives a result and {'holds bools of one byte' if is_bool else 'is not contiguous'}",
            fix=f"pass an array of vyre.to_device() for {name}" if is_bool else f"pass a contiguous copy of {name}",
        )
    if found.address % dtype.itemsize:
        raise ArgumentValueError(f"{name} is not aligned to its elements", fix=f"pass a copy of {name}")
    if not math.prod(found.shape):
        return DeviceBuffer._over(home, None, dtype, found.shape, is_bfloat=is_bfloat)
    if plain and not is_bool:
        handle = home.adopt(found.address, math.prod(found.shape) * dtype.itemsize, remember=remember)
        memory = Memory(
            home, handle, owned=not remember, keep=found.keep, source=value, stream=stream, start=found.address
        )
        return DeviceBuffer._over(home, memory, dtype, found.shape, is_bfloat=is_bfloat, read_only=found.read_only)
    copied = _copied(name, home, found, dtype, value, stream)
    if is_bool:
        from .kernels import widen

        copied = widen(copied, sizes={"out": copied.size})
    return DeviceBuffer._over(home, copied._memory, dtype, found.shape, is_bfloat=is_bfloat)


def _tensor(value: Any, device: tuple[int, int], stream: int | None) -> dlpack.Tensor | None:
    """What another library says of its array; its memory may be used in that stream after this, if it is not -1."""
    if hasattr(value, "__dlpack__"):
        return dlpack.read(dlpack.ask(value, stream))
    said = value.__cuda_array_interface__
    dtype = np.dtype(said["typestr"])
    if said.get("mask") is not None or dtype.kind not in "iufb" or not dtype.isnative:
        return None
    strides = said.get("strides")
    if strides is not None and any(step % dtype.itemsize for step in strides):
        return None
    address, read_only = said["data"]
    return dlpack.Tensor(
        device,
        dlpack.type_of(dtype),
        tuple(said["shape"]),
        None if strides is None else tuple(step // dtype.itemsize for step in strides),
        address or 0,
        bool(read_only),
        value,
    )


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> bool:
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides or ()), strict=False):
        if n != 1 and stride != step:
            return False
        step *= n
    return True


def _copied(
    name: str, home: Home, found: dlpack.Tensor, dtype: np.dtype[Any], value: Any, stream: int | None
) -> DeviceBuffer:
    """The elements in C order, as words or as bytes. Their library goes on with its own after that."""
    from .kernels import MOST_AXES

    width = 4 if dtype.itemsize % 4 == 0 else 1
    parts = dtype.itemsize // width
    shape, strides = found.shape, found.strides
    if strides is None:
        shape, strides = (math.prod(shape),), (1,)
    low = sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if step < 0)
    high = sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if step > 0)
    span = (high - low + 1) * parts
    if len(shape) + (parts > 1) > MOST_AXES or span >= 1 << 32:
        raise ArgumentValueError(
            f"{name} is not contiguous and has {len(shape)} axes over {span * width} bytes",
            fix=f"pass a contiguous copy of {name}",
        )
    handle = home.adopt(found.address + low * dtype.itemsize, span * width, remember=True)
    memory = Memory(home, handle, owned=False, keep=found.keep, source=value, stream=stream)
    flat = DeviceBuffer._over(home, memory, np.dtype(f"u{width}"), (span,))
    steps = tuple(step * parts for step in strides)
    return _gathered(flat, -low * parts, (*shape, *(parts,) * (parts > 1)), (*steps, *(1,) * (parts > 1)))


# ---- what users call -------------------------------------------------------------------------------------------------


def to_device(x: Any, device: str) -> DeviceBuffer:
    """An array on a device ("id" or "id:device") with the elements of x.

    Memory of the host is copied. An array that is there already is not: the result shares its memory, so that a
    write to either shows in both.
    """
    if not isinstance(device, str):
        raise ArgumentTypeError(f"device is a {type(device).__name__}", fix='name a device: vyre.to_device(x, "id:0")')
    home = home_of(device)
    given = x
    if type(x) is not DeviceBuffer and (found := device_of(x)) is not None:
        given = adopt("x", x, found, writes=False, remember=False)
    if type(given) is DeviceBuffer:
        if given._at() is home:
            return given
        given = given.numpy()
    array = given if type(given) is np.ndarray else view("x", given)
    if array.dtype.newbyteorder("=") not in DTYPES:
        small = array.dtype.names is not None or array.dtype.kind == "c"
        numbers = "pass the numbers of small values: x[..., np.newaxis].view(np.float32)"
        raise ArgumentTypeError(
            f"x holds {array.dtype}, which no device array does",
            fix=numbers if small else "convert it: x.astype(np.float32)",
            argument="x",
        )
    return upload(home, array)


def upload(home: Home, array: Array) -> DeviceBuffer:
    """A copy of an array of the host."""
    refuse_to_read("an array was copied to a device")
    dtype = array.dtype.newbyteorder("=")
    if not array.size:
        return DeviceBuffer._over(home, None, dtype, array.shape)
    data = to_input(array)
    memory = Memory(home, home.take(data.nbytes))
    home.backend.upload_resident([(memory.handle, 0, data)])
    return DeviceBuffer._over(home, memory, dtype, array.shape)


def empty(shape: int | tuple[int, ...], dtype: Any, *, pinned_for: str | None = None) -> Array:
    """A NumPy array with any contents.

    With `pinned_for` ("id" or "id:device") it lies in memory that the device copies from and to directly, where there
    is such memory; it goes when neither the array nor a view of it is left.
    """
    from ..bind import shape as checked

    sizes = checked("shape", shape)
    kind = element_dtype(dtype)
    if math.prod(sizes) * kind.itemsize >= 1 << 63 or len(sizes) > MOST_DIMENSIONS:
        raise ArgumentValueError("no array has that shape", fix="ask for fewer elements, or fewer dimensions")
    try:
        return _empty(sizes, kind, pinned_for)
    except MemoryError as e:
        nbytes = math.prod(sizes) * kind.itemsize
        raise DeviceOutOfMemory("no memory for an array", fix="ask for a smaller one", nbytes=nbytes) from e


def _empty(sizes: tuple[int, ...], kind: np.dtype[Any], pinned_for: str | None) -> Array:
    if pinned_for is None:
        return np.empty(sizes, kind)
    if not isinstance(pinned_for, str):
        raise ArgumentTypeError(f"pinned_for is a {type(pinned_for).__name__}", fix='name a backend: pinned_for="id"')
    home, nbytes = home_of(pinned_for), math.prod(sizes) * kind.itemsize
    exchange = home.exchange
    pinned = None if exchange is None or not nbytes else home.backend.on_device(lambda: exchange.pinned(nbytes))
    if pinned is None:
        return np.empty(sizes, kind)
    found: Array = np.frombuffer(pinned, kind).reshape(sizes)  # type: ignore[call-overload]
    return found
