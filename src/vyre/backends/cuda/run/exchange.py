"""Memory of a device shared with the other libraries of the process that use it: torch, cupy, jax.

All of them use the primary context, so addresses and streams mean the same to each. Streams 1 and 2 are the
driver's names for the default stream, and for that of the thread.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING, Any

from ....driver.contract.exchange import DeviceExchange
from ....driver.contract.values import ResidentHandle
from ....errors import ArgumentValueError
from ..device import CudaDevice
from ..devices import CAPTURING, context_of, library

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..backend import CudaBackend

DLPACK_TYPE = 2
_DEFAULT = 1
_OF_THE_THREAD = 2
_PORTABLE = 1
_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL."""


class CudaExchange(DeviceExchange):
    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self.device = (DLPACK_TYPE, backend.found.index)

    @property
    def _device(self) -> CudaDevice:
        device = self._backend.session().device
        assert isinstance(device, CudaDevice)
        return device

    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        device, cu = self._device, library()
        with device.context.current():
            code, ordinal = cu.cuPointerGetAttribute(cu.CUpointer_attribute(_ORDINAL), address)
        if code or int(ordinal) != device.found.index:
            raise ArgumentValueError(
                f"the memory at {address:#x} is not on device {device.found.index}",
                fix="pass an array of this device, or copy it there first",
            )
        return self._backend.session().residents.adopt(Borrowed(address), nbytes)

    def address(self, handle: ResidentHandle) -> int:
        return int(self._backend.session().residents.find(handle, "address").memory)

    @property
    def stream(self) -> int:
        return int(self._device.stream)

    def stream_of(self, array: Any) -> int | None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # which compilers for torch use too
            index = self.device[1]
            return int(quick(index) if quick is not None else torch.cuda.current_stream(index).cuda_stream) or _DEFAULT
        if type(array).__module__.startswith("jax"):  # which has streams that no other library sees
            return None
        said = getattr(array, "__cuda_array_interface__", {}).get("stream")
        if said is None:  # the library tells none; one without DLPack uses the default stream
            return None if hasattr(array, "__dlpack__") else _DEFAULT
        return int(said)

    def wait_for(self, stream: int) -> None:
        device = self._device
        if stream == self.stream:
            return
        with device.context.current():
            before = device.mark(self._joined(stream))
            device.do("waiting for another stream", library().cuStreamWaitEvent, device.stream, before.event, 0)

    def _joined(self, stream: int) -> Any:
        """Another library's stream, if work can be ordered with it."""
        cu, context = library(), self._device.context
        found = cu.CUstream(stream)
        code, captures = cu.cuStreamIsCapturing(found)
        if code or int(captures):  # it would take our stream into the graph, and what we ask there would end it
            raise context.failed(int(code) or CAPTURING, "ordering work with another library")
        if stream > _OF_THE_THREAD:
            code, home = cu.cuStreamGetCtx(found)
            if code or int(home) != int(context.handle):
                raise ArgumentValueError(
                    f"stream {stream:#x} does not belong to device {context.index}",
                    fix="use arrays, and streams, of the device that the kernel runs on",
                )
        return found

    def wait_for_all(self, streams: set[int]) -> None:
        if streams == {_DEFAULT}:
            self.wait_for(_DEFAULT)
            return
        device = self._device
        with device.context.current():  # for a stream that is gone cannot be asked
            device.context.ok(library().cuCtxSynchronize(), "waiting for other libraries")

    def release_to(self, stream: int | None) -> None:
        device = self._device
        if stream is None:
            device.wait(device.mark(device.stream), None)
        elif stream != self.stream:
            with device.context.current():
                theirs, ours = self._joined(stream), device.mark(device.stream)
                device.do("making another stream wait", library().cuStreamWaitEvent, theirs, ours.event, 0)

    def keep(self, objects: list[Any]) -> None:
        device = self._device
        mark = device.mark(device.stream)
        if not mark.ended():
            device.hold(mark, [objects.clear])
            device.prune(SPARED)

    def pinned(self, nbytes: int) -> Buffer:
        context = context_of(self._backend.found.index)
        cu = library()
        with context.current():
            address = int(context.ok(cu.cuMemHostAlloc(nbytes, _PORTABLE), "allocating pinned memory of the host"))
        memory = (ctypes.c_ubyte * nbytes).from_address(address)
        weakref.finalize(memory, _free, context, address).atexit = False
        return memory


SPARED = 64
"""Objects that are kept a little longer than needed: to ask costs more than they do."""


class Borrowed(int):
    """The address of memory that another library frees."""


def _free(context: Any, address: int) -> None:
    """The driver waits for copies that still use it."""
    if not context.lost:
        with context.current():
            library().cuMemFreeHost(address)
