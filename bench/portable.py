"""The portable backends against the libraries they stand on: u32 xor over resident memory, and the cost of a launch.

Ours and the raw library run in turns, over memory of the same device, with the same work per invocation. `bandwidth`
is fifty launches over `--elements` words and a wait; `launch` is one launch over 64 words and a wait. Goals: 0.95 of
the raw bandwidth, and 1.3 times the raw launch. Results go to bench/results/portable.json.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from record import record

import vyre
from vyre import In, Out, gid, u32
from vyre.driver.contract.values import ResidentDispatchStep, ResidentReadRange
from vyre.driver.guard import compile as pipeline
from vyre.driver.selection.registry import acquire

REPEAT = 50
ROUNDS = 21
SMALL = 64
GOALS = {"bandwidth": 0.95, "launch": 1.3}


@vyre.kernel(workgroup=256)
def xor(a: In[u32], b: In[u32], out: Out[u32]):
    i = gid.x
    if i < len(out):
        out[i] = a[i] ^ b[i]


class Raw(ABC):
    """The same kernel on the library itself, over three buffers of `elements` words."""

    def __init__(self, elements: int) -> None:
        self.elements = elements

    @abstractmethod
    def launch(self, times: int) -> None:
        """Launch so often, and wait."""

    @abstractmethod
    def result(self) -> bytes: ...


class RawOpenCl(Raw):
    SOURCE = """
    __kernel __attribute__((reqd_work_group_size(256, 1, 1)))
    void go(__global const uint *a, __global const uint *b, __global uint *out, uint n) {
        uint i = get_global_id(0);
        if (i < n) out[i] = a[i] ^ b[i];
    }
    """

    def __init__(self, device: str, a: np.ndarray, b: np.ndarray) -> None:
        import pyopencl as cl

        super().__init__(a.size)
        found = next(d for p in cl.get_platforms() for d in p.get_devices() if device in f"{p.name} {d.name}")
        context = cl.Context([found])
        self.queue = cl.CommandQueue(context)
        self.cl = cl
        flags = cl.mem_flags
        self.buffers = [cl.Buffer(context, flags.READ_WRITE, a.nbytes) for _ in range(3)]
        cl.enqueue_copy(self.queue, self.buffers[0], a)
        cl.enqueue_copy(self.queue, self.buffers[1], b)
        self.kernel = cl.Program(context, self.SOURCE).build().go
        self.size = -(-a.size // 256) * 256

    def launch(self, times: int) -> None:
        for _ in range(times):
            self.kernel.set_args(*self.buffers, np.uint32(self.elements))
            self.cl.enqueue_nd_range_kernel(self.queue, self.kernel, (self.size,), (256,))
        self.queue.finish()

    def result(self) -> bytes:
        out = np.empty(self.elements, np.uint32)
        self.cl.enqueue_copy(self.queue, out, self.buffers[2])
        return out.tobytes()


class RawWgpu(Raw):
    SOURCE = """
    @group(0) @binding(0) var<storage, read> a: array<u32>;
    @group(0) @binding(1) var<storage, read> b: array<u32>;
    @group(0) @binding(2) var<storage, read_write> out: array<u32>;
    @compute @workgroup_size(256)
    fn go(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_id) lid: vec3<u32>,
          @builtin(num_workgroups) groups: vec3<u32>) {
        let i = (wid.y * groups.x + wid.x) * 256u + lid.x;
        if (i < arrayLength(&out)) { out[i] = a[i] ^ b[i]; }
    }
    """

    def __init__(self, device: str, a: np.ndarray, b: np.ndarray) -> None:
        import wgpu

        super().__init__(a.size)
        adapters = [x for x in wgpu.gpu.enumerate_adapters_sync() if device in x.info["device"]]
        adapter = next(x for x in adapters if x.info["backend_type"] == "Vulkan")
        self.device = adapter.request_device_sync(
            required_limits={k: v for k, v in adapter.limits.items() if "buffer" in k and "size" in k}
        )
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        self.buffers = [self.device.create_buffer(size=a.nbytes, usage=usage) for _ in range(3)]
        for k, data in enumerate((a, b)):
            for at in range(0, data.size, 1 << 26):
                self.device.queue.write_buffer(self.buffers[k], at * 4, data[at : at + (1 << 26)])
        module = self.device.create_shader_module(code=self.SOURCE)
        self.pipeline = self.device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "go"}
        )
        self.group = self.device.create_bind_group(
            layout=self.pipeline.get_bind_group_layout(0),
            entries=[{"binding": k, "resource": {"buffer": x}} for k, x in enumerate(self.buffers)],
        )
        groups = -(-a.size // 256)
        self.grid = (groups, 1) if groups <= 65535 else (32768, -(-groups // 32768))

    def launch(self, times: int) -> None:
        encoder = self.device.create_command_encoder()
        work = encoder.begin_compute_pass()
        work.set_pipeline(self.pipeline)
        work.set_bind_group(0, self.group)
        for _ in range(times):
            work.dispatch_workgroups(*self.grid)
        work.end()
        self.device.queue.submit([encoder.finish()])
        self.device._poll_wait()

    def result(self) -> bytes:
        return bytes(self.device.queue.read_buffer(self.buffers[2]))


class Ours:
    """The kernel through the driver, over resident memory."""

    def __init__(self, backend: Any, a: np.ndarray, b: np.ndarray) -> None:
        self.backend = backend
        self.handles = [backend.allocate_resident(a.nbytes) for _ in range(3)]
        for handle, data in zip(self.handles, (a, b), strict=False):
            for at in range(0, data.size, 1 << 26):
                backend.upload_resident([(handle, at * 4, data[at : at + (1 << 26)])])
        self.step = ResidentDispatchStep(xor.program, tuple(self.handles))
        self.compiled = pipeline.compile(backend, xor.program)

    def launch(self, times: int) -> None:
        if times == 1:
            self.compiled.dispatch_resident(self.handles)
        else:
            self.backend.dispatch_resident([self.step], repeat=times)

    def result(self) -> bytes:
        size = self.handles[2].nbytes
        return b"".join(
            bytes(self.backend.download_resident([ResidentReadRange(self.handles[2], at, min(1 << 28, size - at))])[0])
            for at in range(0, size, 1 << 28)
        )

    def free(self) -> None:
        for handle in self.handles:
            self.backend.free_resident(handle)


def seconds(launch: Callable[[int], None], times: int) -> float:
    start = time.perf_counter()
    launch(times)
    return time.perf_counter() - start


def ratio(ours: list[float], raw: list[float]) -> tuple[float, float, float]:
    """Median of raw over median of ours, with a bootstrap 95 % interval."""
    rng = random.Random(1)
    draws = sorted(
        statistics.median(rng.choices(raw, k=len(raw))) / statistics.median(rng.choices(ours, k=len(ours)))
        for _ in range(2000)
    )
    return statistics.median(raw) / statistics.median(ours), draws[50], draws[-51]


def measure(name: str, device: str, elements: int) -> list[dict[str, Any]]:
    backend = acquire(f"{name}:{device}" if device else name)
    rows = []
    for what, count, times in (("bandwidth", elements, REPEAT), ("launch", SMALL, 1)):
        rng = np.random.default_rng(7)
        a, b = (rng.integers(0, 1 << 32, count, np.uint32) for _ in range(2))
        ours = Ours(backend, a, b)
        raw = {"opencl": RawOpenCl, "wgpu": RawWgpu}[name](device, a, b)
        rounds = ROUNDS if what == "bandwidth" else 50 * ROUNDS
        for _ in range(3):
            ours.launch(times)
            raw.launch(times)
        took: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            took[0].append(seconds(ours.launch, times))
            took[1].append(seconds(raw.launch, times))
        expected = (a ^ b).tobytes()
        assert ours.result() == raw.result() == expected
        ours.free()
        speed, low, high = ratio(*took)
        best = statistics.median(took[0]) / times
        row: dict[str, Any] = {"backend": name, "what": what, "elements": count, "seconds": best}
        if what == "bandwidth":
            row |= {"GB/s": 12 * count / best / 1e9, "of_raw": speed, "interval": [low, high]}
            row["goal_met"] = high >= GOALS[what]
        else:
            row |= {"times_raw": 1 / speed, "interval": [1 / high, 1 / low], "goal_met": 1 / high <= GOALS[what]}
        row["device"] = backend.device_profile().device
        print({k: v if not isinstance(v, float) else round(v, 6) for k, v in row.items()}, flush=True)
        rows.append(row)
    backend.shutdown()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1 << 28)
    parser.add_argument("--device", default="", help="part of the device's name")
    parser.add_argument("--backends", default="opencl,wgpu")
    args = parser.parse_args()
    rows = [row for name in args.backends.split(",") for row in measure(name, args.device, args.elements)]
    record("portable", {"rows": rows, "goals": GOALS})


if __name__ == "__main__":
    main()
