"""A backend that emits what `cuda` does and runs it on the host, for machines without such a device.

Text, facts, costs and decisions are those of the backend; memory and commands are those of the host, and `cuda_host`
stands for the compiler and the device.
"""

import ctypes
from pathlib import Path

from vyre.backends.cuda.build import facts_of, kernel_code
from vyre.backends.cuda.device import CudaDevice
from vyre.backends.cuda.emit.coarsen import KernelText
from vyre.driver.contract.capability import BackendCapability
from vyre.driver.policy.geometry import choose_threads
from vyre.runtime.backend import OffloadBackend
from vyre.runtime.compiled import OPS
from vyre.runtime.device import Artifact, Batch, Device, Ticket

from .batched_small_dispatch import ByBatch
from .cuda_host import Code

MOST_THREADS = 2048
"""Of a multiprocessor."""


class EmulatedCuda(OffloadBackend, contract=1):
    id = "emulated"
    capability = BackendCapability(
        ops=OPS,
        subgroup_ops=True,
        subgroup_size=32,
        max_workgroup_size=(1024, 1024, 64),
        max_invocations_per_workgroup=1024,
        max_workgroups_per_dimension=0xFFFFFFFF,
        max_shared_bytes=48 << 10,
        max_storage_buffer_bytes=1 << 30,
    )

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.kernels = folder, {}

    def open_device(self):
        return _Device(self)

    def build(self, device, program, *, poll, ulp_budget=0):
        kernel, code, _ = kernel_code(program, poll=poll)
        self.kernels[code.text] = kernel
        return Artifact(code.text, b"", facts_of(kernel, code))


class _Device(Device):
    launch_costs, small_dispatch_costs = CudaDevice.launch_costs, CudaDevice.small_dispatch_costs

    def __init__(self, backend):
        self.backend = backend

    def allocate(self, nbytes):
        return ctypes.create_string_buffer(nbytes)

    def release(self, memory):
        pass

    def load(self, built):
        extra = built.facts.extra
        block, decided = tuple(extra["block"]), ()
        if extra["joined"]:
            decided = (choose_threads(lambda threads: MOST_THREADS // threads),)
            block = decided[0].numbers["threads"], 1, 1
        text = KernelText(built.source, block, extra["each"], extra["joined"])
        code = Code(self.backend.kernels[built.source], self.backend.folder, text)
        code.decisions = decided
        return code

    def decisions(self, code):
        return code.decisions

    def batch(self, *, timed=False, ahead=False, seconds=None):
        return _Batch()

    def small_dispatch(self, code, slots, lengths, launches):
        return ByBatch(self, code, slots, lengths, launches)

    def lost(self):
        return False

    def close(self):
        pass


class _Batch(Batch):
    """Everything is done as soon as it is asked for."""

    def __init__(self):
        self.readings = []

    def write(self, memory, offset, data):
        memory[offset : offset + data.nbytes] = bytes(data)

    def zero(self, memory, offset, nbytes):
        memory[offset : offset + nbytes] = bytes(nbytes)

    def copy(self, source, source_offset, target, target_offset, nbytes):
        target[target_offset : target_offset + nbytes] = source[source_offset : source_offset + nbytes]

    def launch(self, code, memories, lengths, base, grid):
        assert base == (0, 0, 0)
        sizes = [n * b.element.size for n, b in zip(lengths, code.kernel.buffers, strict=True)]
        after = code.run([m[:n] for m, n in zip(memories, sizes, strict=True)], lengths, grid)
        for memory, data in zip(memories, after, strict=True):
            memory[: len(data)] = data

    def read(self, memory, offset, nbytes):
        self.readings.append(memory[offset : offset + nbytes])

    def submit(self):
        return _Ended(self.readings)


class _Ended(Ticket):
    def __init__(self, readings):
        self.readings = readings

    def done(self):
        return True

    def wait(self, seconds):
        return True

    def take(self, into):
        for data, target in zip(self.readings, into, strict=True):
            if target is not None:
                target[:] = data
        return [bytearray(d) if t is None else t for d, t in zip(self.readings, into, strict=True)]
