"""The cuda backend against torch, cupy and cuda.core on one GPU, and the bytes of four compilers on it.

    python bench/cuda.py                                        all rows; writes bench/results/cuda.json
    python bench/cuda.py --rows launch,xor                      some rows, nothing written
    python bench/cuda.py --backend opencl --scale 12            a rehearsal: sizes divided by 2 to the 12th, no peers

Each round times every contender once, in random order: as many runs as take some milliseconds, and one wait. Memory is
resident, and allocated before, unless a row says host. A ratio is the median time of the peer over ours, that is, our
speed in terms of the peer's, with a bootstrap interval of 95 %; a goal is met when the interval reaches it. A row that
fails says why, counts as not met, and the others go on; a peer that fails is left out and named.

- launch: the time of the host for one launch over 64 words, the wait left out (`launch`) and with a wait after each
  (`launch, wait`). The peer's kernel is the same, and takes its arguments anew each time, as `cuda.core.launch` does.
- batch: the same for 32 launches that are made by one call, as one graph; against as many launches of cuda.core, and a
  graph that torch captured.
- flat: a million launches, and a hundred thousand dispatches from and to host memory: the median of the last hundredth
  is at most 1.1 times that of the second (or of what a peer that rested meanwhile has slowed down by), and memory grows
  by less than 1 MiB.
- small: a kernel in workgroups of one invocation, against the same in workgroups of 256.
- scan: u32, against torch.cumsum of the same bits as int32 with dtype=int32 (which wraps alike); by default it sums
  int32 as int64, which writes twice the bytes, and is the second peer. And f32, whose sums have the order of our text.
- histogram: of bytes, and random ones. A peer that has no kernel for bytes is left out.
- black_scholes: the exact math library against torch as written (one kernel for each operation), and through
  torch.compile (one kernel in all). `ulp 4` allows ours four units in the last place.
- host: from and to host memory, 64 MB each way: ordinary NumPy arrays against pageable tensors, and pinned against
  pinned (ours are of `vyre.empty`).
- trip: from and to host memory, a few words: what a call costs that has nothing to do.
- hashes: BLAKE3 of the outputs of programs on every backend, all equal.
"""

from __future__ import annotations

import argparse
import functools
import gc
import os
import random
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import extend_path
from typing import Any

import cpu_kernels
import cuda_kernels as kernels
import numpy as np
from record import record

import vyre
from vyre.conform.programs.random import random_program
from vyre.driver.contract.values import DispatchConfig, ResidentDispatchStep, ResidentHandle, ResidentReadRange
from vyre.driver.guard import compile as pipeline
from vyre.driver.selection.registry import acquire
from vyre.foundation.formats.blake3 import blake3

# Scripts of this folder find this file where they ask for NVIDIA's package of the name: it leads on to that one.
__path__: list[str] = list(extend_path([], "cuda"))

SAMPLE_S = 0.008
MOST_RUNS = 50
LAUNCHES = 200
_IN_TURN = 100
BATCH, BATCHES = 32, 20
SHARES = 32768
"""Of a sum or a scan: 32 lanes each."""
PIECE = 1 << 28
OPTIONS = ("price", "strike", "years")
RATE, VOLATILITY = 0.02, 0.3

Array = np.ndarray[Any, Any]
Sample = Callable[[], float]
"""Seconds of one run."""


class Ours:
    """Resident memory of a backend, and launches over it."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.handles: list[ResidentHandle] = []

    def room(self, nbytes: int) -> ResidentHandle:
        handle: ResidentHandle = self.backend.allocate_resident(nbytes)
        self.handles.append(handle)
        return handle

    def put(self, data: Array) -> ResidentHandle:
        handle, raw = self.room(data.nbytes), data.view(np.uint8)
        for at in range(0, raw.size, PIECE):
            self.backend.upload_resident([(handle, at, raw[at : at + PIECE])])
        return handle

    def get(self, handle: ResidentHandle, dtype: Any) -> Array:
        out = np.empty(handle.nbytes, np.uint8)
        for at in range(0, out.size, PIECE):
            part = out[at : at + PIECE]
            self.backend.download_resident([ResidentReadRange(handle, at, part.size)], out=[part])
        return out.view(dtype)

    def launch(
        self, program: Any, *memory: ResidentHandle, groups: int | None = None, ulp: int | None = None
    ) -> Callable[[], object]:
        config = DispatchConfig(grid_override=None if groups is None else (groups, 1, 1), ulp_budget=ulp)
        compiled, given = pipeline.compile(self.backend, program, config), list(memory)
        return lambda: compiled.dispatch_resident(given)

    def free(self) -> None:
        self.backend.flush()
        for handle in self.handles:
            self.backend.free_resident(handle)
        self.handles.clear()


@dataclass
class Bench:
    backend: Any
    torch: Any
    cupy: Any
    rounds: int
    scale: int
    begun: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    hashes: list[dict[str, Any]] = field(default_factory=list)

    def size(self, count: int) -> int:
        return max(count >> self.scale, kernels.COUNT_GROUPS * kernels.COUNT_TURN)

    @contextmanager
    def memory(self) -> Iterator[Ours]:
        ours = Ours(self.backend)
        try:
            yield ours
        finally:
            ours.free()
            gc.collect()
            if self.torch is not None:
                self.torch.cuda.empty_cache()
            if self.cupy is not None:
                self.cupy.get_default_memory_pool().free_all_blocks()

    def tensor(self, data: Array) -> Any:
        """On the GPU; words as int32, which torch knows all operations of."""
        data = data.view(np.int32) if data.dtype == np.uint32 else data
        return self.torch.from_numpy(data).cuda()

    def runs(self, work: Callable[[], object], wait: Callable[[], object]) -> Sample:
        """The time of one run when several are done before one wait."""
        work()
        wait()
        start = time.perf_counter()
        work()
        wait()
        times = max(1, min(MOST_RUNS, int(SAMPLE_S / (time.perf_counter() - start))))

        def sample() -> float:
            start = time.perf_counter()
            for _ in range(times):
                work()
            wait()
            return (time.perf_counter() - start) / times

        return sample

    def ours(self, *steps: Callable[[], object]) -> Sample:
        def work() -> None:
            for step in steps:
                step()

        return self.runs(work, self.backend.flush)

    def torch_runs(self, work: Callable[[], object]) -> Sample:
        return self.runs(work, self.torch.cuda.synchronize)

    def cupy_runs(self, work: Callable[[], object]) -> Sample:
        return self.runs(work, self.cupy.cuda.Device().synchronize)

    def compare(
        self, row: str, ours: Sample, peers: Mapping[str, Callable[[], Sample]], goal: float | None, nbytes: int = 0
    ) -> None:
        """`peers` make their samples; one that cannot be made is reported and left out."""
        contenders = {"vyre": ours}
        for name, make in peers.items():
            try:
                contenders[name] = make()
                contenders[name]()
            except Exception as e:
                contenders.pop(name, None)
                self.failed(row, e, name)
        took: dict[str, list[float]] = {name: [] for name in contenders}
        order = list(contenders)
        chance = random.Random(1)
        ours()
        for _ in range(self.rounds):
            chance.shuffle(order)
            for name in order:
                took[name].append(contenders[name]())
        median = statistics.median(took["vyre"])
        common: dict[str, Any] = {"row": row, "seconds": median}
        if nbytes:
            common["GB/s"] = nbytes / median / 1e9
        if len(contenders) == 1:
            missed = False if peers and goal is not None else None
            self.rows.append(common | {"peer": None, "goal": goal, "goal_met": missed})
        for name in list(contenders)[1:]:
            speed, low, high = ratio(took["vyre"], took[name])
            line = common | {"peer": name, "peer_seconds": statistics.median(took[name])}
            line |= {"ratio": speed, "interval": [low, high], "rounds": self.rounds}
            self.rows.append(line | {"goal": goal, "goal_met": None if goal is None else high >= goal})

    def failed(self, row: str, error: Exception, peer: str | None = None) -> None:
        text = f"{type(error).__name__}: {error}".strip().splitlines()
        print(f"{row}{f' ({peer})' if peer else ''} failed: {' '.join(text[:3])[:400]}", flush=True)
        self.rows.append({"row": row, "peer": peer, "error": "\n".join(text)[:2000]})
        self.rows[-1]["goal_met"] = None if peer else False


def ratio(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, float, float]:
    """Median of the peer over median of ours, with a bootstrap 95 % interval."""
    a, b = np.asarray(ours), np.asarray(peer)
    rng = np.random.default_rng(1)
    draws = np.sort(np.median(rng.choice(b, (2000, b.size)), axis=1) / np.median(rng.choice(a, (2000, a.size)), axis=1))
    return float(np.median(b) / np.median(a)), float(draws[50]), float(draws[-51])


def words(seed: int, count: int) -> Array:
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)


def require(holds: Any, what: str) -> None:
    if not holds:
        raise AssertionError(what)


# ---- rows -----------------------------------------------------------------------------------------------------------


def launch(bench: Bench) -> None:
    a, b = words(1, 64), words(2, 64)
    with bench.memory() as ours:
        x, y, z = ours.put(a), ours.put(b), ours.room(a.nbytes)
        go = ours.launch(kernels.xor.program, x, y, z)
        go()
        bench.backend.flush()
        require(np.array_equal(ours.get(z, np.uint32), a ^ b), "xor of 64 words is wrong")

        def host(work: Callable[[], object], wait: Callable[[], object]) -> Sample:
            """Of one launch of many, when nobody waits."""

            def sample() -> float:
                wait()
                start = time.perf_counter()
                for _ in range(LAUNCHES):
                    work()
                took = time.perf_counter() - start
                wait()
                return took / LAUNCHES

            return sample

        def waiting(work: Callable[[], object], wait: Callable[[], object]) -> Sample:
            def sample() -> float:
                start = time.perf_counter()
                for _ in range(LAUNCHES):
                    work()
                    wait()
                return (time.perf_counter() - start) / LAUNCHES

            return sample

        core = functools.cache(lambda: core_launch(bench, a, b))
        for row, sample, goal in (("launch", host, 1 / 1.15), ("launch, wait", waiting, None)):
            peers = {} if bench.torch is None else {"cuda.core": functools.partial(lambda s: s(*core()), sample)}
            bench.compare(row, sample(go, bench.backend.flush), peers, goal)


def core_launch(bench: Bench, a: Array, b: Array) -> tuple[Callable[[], object], Callable[[], object]]:
    """The same kernel through cuda.core, and how to wait for it."""
    core = import_module("cuda.core")
    source = """
    extern "C" __global__ void go(const unsigned *a, const unsigned *b, unsigned *out, unsigned n) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = a[i] ^ b[i];
    }
    """
    device = core.Device(0)
    device.set_current()
    stream = device.create_stream()
    options = core.ProgramOptions(arch=f"sm_{device.arch}")
    kernel = core.Program(source, "c++", options).compile("cubin").get_kernel("go")
    config, launch_kernel = core.LaunchConfig(grid=1, block=kernels.GROUP), core.launch
    tensors = [bench.tensor(a), bench.tensor(b), bench.torch.empty(a.size, dtype=bench.torch.int32, device="cuda")]
    bench.torch.cuda.synchronize()
    arguments = [*(t.data_ptr() for t in tensors), np.uint32(a.size)]

    def work(hold: Any = tensors) -> None:
        launch_kernel(stream, config, kernel, *arguments)

    work()
    stream.sync()
    require(np.array_equal(tensors[2].cpu().numpy().view(np.uint32), a ^ b), "cuda.core's xor is wrong")
    return work, stream.sync


def batch(bench: Bench) -> None:
    """Launches that are made together, again and again."""
    a, b = words(1, 64), words(2, 64)
    with bench.memory() as ours:
        x, y, z = ours.put(a), ours.put(b), ours.room(a.nbytes)
        steps = (ResidentDispatchStep(kernels.xor.program, (x, y, z)),) * BATCH
        go = functools.partial(bench.backend.dispatch_resident, steps)
        go()
        go()
        require(np.array_equal(ours.get(z, np.uint32), a ^ b), "xor of 64 words is wrong")

        def sample(work: Callable[[], object], wait: Callable[[], object], waits: bool) -> float:
            wait()
            start = time.perf_counter()
            for _ in range(BATCHES):
                work()
                if waits:
                    wait()
            took = time.perf_counter() - start
            wait()
            return took / BATCHES

        peers = {}
        if bench.torch is not None:
            single, sync = core_launch(bench, a, b)

            def several() -> None:
                for _ in range(BATCH):
                    single()

            peers = {"cuda.core": (several, sync), "torch.cuda.CUDAGraph": torch_graph(bench, a, b)}
        for waits in (False, True):
            bench.compare(
                f"batch of {BATCH}{', wait' * waits}",
                functools.partial(sample, go, bench.backend.flush, waits),
                {
                    name: functools.partial(lambda p, w: functools.partial(sample, *p, w), p, waits)
                    for name, p in peers.items()
                },
                None,
            )


def torch_graph(bench: Bench, a: Array, b: Array) -> tuple[Callable[[], object], Callable[[], object]]:
    """As many kernels that torch has captured, and how to wait for them."""
    torch = bench.torch
    s, t = bench.tensor(a), bench.tensor(b)
    out, graph = torch.empty_like(s), torch.cuda.CUDAGraph()
    torch.bitwise_xor(s, t, out=out)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(BATCH):
            torch.bitwise_xor(s, t, out=out)
    torch.cuda.synchronize()

    def work(hold: Any = (s, t, out)) -> None:
        graph.replay()

    return work, torch.cuda.synchronize


def flat(bench: Bench) -> None:
    """Whether the last dispatch of very many costs what the first did."""
    a = words(1, 64)
    with bench.memory() as ours:
        x, y, z = ours.put(a), ours.put(a), ours.room(a.nbytes)
        go = ours.launch(kernels.xor.program, x, y, z)
        compiled: Any = pipeline.compile(bench.backend, kernels.flip.program)
        target = np.empty_like(a)
        peers = (None, None) if bench.torch is None else (core_launch(bench, a, a)[0], torch_round_trip(bench, a))
        steady(bench, "flat, resident", go, 1_000_000, peers[0])
        steady(bench, "flat, host", lambda: compiled.dispatch([a], out=[target]), 100_000, peers[1])
        require(np.array_equal(target, a ^ np.uint32(0x5A5A5A5A)), "the result on the host is wrong")


def torch_round_trip(bench: Bench, a: Array) -> Callable[[], object]:
    """To the device, one kernel, and back, by torch."""
    torch, source = bench.torch, bench.torch.from_numpy(a.view(np.int32))
    return lambda: torch.bitwise_xor(source.cuda(), 0x5A5A5A5A).cpu()


def steady(
    bench: Bench, row: str, work: Callable[[], object], count: int, peer: Callable[[], object] | None = None
) -> None:
    """The median of the last hundredth of so many runs against that of the second, and the memory between them.

    In these two, `peer` takes turns with it: what it changes by is the machine's doing (a core that another thread
    shares for some seconds is half as fast), and counts for us too.
    """
    window = max(count >> bench.scale, 1000) // 100
    contenders = [work] if peer is None else [work, peer]
    clock = time.perf_counter_ns

    def medians() -> list[float]:
        took: list[list[int]] = [[] for _ in contenders]
        for _ in range(-(-window // _IN_TURN)):
            for contender, times in zip(contenders, took, strict=True):
                for _ in range(_IN_TURN):
                    start = clock()
                    contender()
                    times.append(clock() - start)
        return [statistics.median(times) / 1e9 for times in took]

    def held() -> tuple[int, int]:
        bench.backend.flush()
        gc.collect()
        free = 0 if bench.torch is None else bench.torch.cuda.mem_get_info()[0]
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"), -free

    medians()
    first, before = medians(), held()
    for _ in range(97 * window):
        work()
    last, after = medians(), held()
    grown = [b - a for a, b in zip(before, after, strict=True)]
    slower = 1.0 if peer is None else last[1] / first[1]
    line = {"row": row, "peer": None, "seconds": last[0], "first_seconds": first[0], "runs": 100 * window}
    line |= {"host_bytes_grown": grown[0], "device_bytes_grown": grown[1], "goal": 1.1, "peer_slower": slower}
    said = f"{row}: {first[0] * 1e6:.2f} us, {last[0] * 1e6:.2f} us at the end, grown by {grown} bytes"
    print(f"{said}; the peer takes {slower:.3f} times as long at the end", flush=True)
    bench.rows.append(line | {"goal_met": last[0] <= 1.1 * max(slower, 1.0) * first[0] and max(grown) < 1 << 20})


def xor(bench: Bench) -> None:
    count = bench.size(1 << 28)
    a, b = words(3, count), words(4, count)
    with bench.memory() as ours:
        x, y, z = ours.put(a), ours.put(b), ours.room(a.nbytes)
        sample = bench.ours(ours.launch(kernels.xor.program, x, y, z))
        require(np.array_equal(ours.get(z, np.uint32), a ^ b), "xor is wrong")
        peers = {}
        if bench.torch is not None:
            s, t = bench.tensor(a), bench.tensor(b)
            out = bench.torch.empty_like(s)
            peers["torch"] = lambda: bench.torch_runs(lambda: bench.torch.bitwise_xor(s, t, out=out))
        bench.compare("xor", sample, peers, 0.97, 3 * a.nbytes)


def small(bench: Bench) -> None:
    """Workgroups of one invocation, against those of 256."""
    a = words(11, bench.size(1 << 24))
    with bench.memory() as ours:
        x, y, z = ours.put(a), ours.room(a.nbytes), ours.room(a.nbytes)
        one, many = (
            bench.ours(ours.launch(kernels.orbit_of(n).program, x, place, groups=a.size // n))
            for n, place in ((1, y), (kernels.GROUP, z))
        )
        require(np.array_equal(ours.get(y, np.uint32), ours.get(z, np.uint32)), "the results differ")
        bench.compare("workgroups of 1", one, {f"workgroups of {kernels.GROUP}": lambda: many}, 0.9)


def total(bench: Bench) -> None:
    x = np.random.default_rng(5).random(bench.size(1 << 28), np.float32)
    with bench.memory() as ours:
        data, totals, out = ours.put(x), ours.room(4 * SHARES), ours.room(4)
        sample = bench.ours(
            ours.launch(kernels.SCAN_F32[0].program, data, totals, groups=SHARES * 32 // kernels.GROUP),
            ours.launch(kernels.sum_last.program, totals, out, groups=1),
        )
        found, wanted = float(ours.get(out, np.float32)[0]), float(x.sum(dtype=np.float64))
        require(abs(found - wanted) <= 1e-5 * wanted, f"the sum is {found} and should be {wanted}")
        peers = {}
        if bench.torch is not None:
            t, out_t = bench.tensor(x), bench.torch.empty((), dtype=bench.torch.float32, device="cuda")
            peers["torch"] = lambda: bench.torch_runs(lambda: bench.torch.sum(t, dim=0, out=out_t))
        bench.compare("sum", sample, peers, 1.0, x.nbytes)


def scan(bench: Bench) -> None:
    count, groups = bench.size(1 << 28), SHARES * 32 // kernels.GROUP
    floats = np.random.default_rng(6).random(count, np.float32)
    for row, x, steps in (("scan", words(6, count), kernels.SCAN_U32), ("scan, f32", floats, kernels.SCAN_F32)):
        totals_of, before, scan_of = (step.program for step in steps)
        with bench.memory() as ours:
            data, totals, out = ours.put(x), ours.room(4 * SHARES), ours.room(x.nbytes)
            sample = bench.ours(
                ours.launch(totals_of, data, totals, groups=groups),
                ours.launch(before, totals, groups=1),
                ours.launch(scan_of, data, totals, out, groups=groups),
            )
            found = ours.get(out, x.dtype)
            if x.dtype == np.uint32:
                require(np.array_equal(found, np.cumsum(x, dtype=np.uint32)), "the scan is wrong")
            else:
                wanted = np.cumsum(x, dtype=np.float64)[::1021]
                require(np.allclose(found[::1021], wanted, rtol=1e-5), "the scan of floats is wrong")
            peers: dict[str, Callable[[], Sample]] = {}
            if bench.torch is not None:
                torch, t = bench.torch, bench.tensor(x)
                same = torch.empty_like(t)
                peers[f"torch {t.dtype}".replace("torch.", "")] = functools.partial(torch_scan, bench, t, same)
                if x.dtype == np.uint32:
                    wide = torch.empty(t.shape, dtype=torch.int64, device="cuda")
                    peers["torch int64"] = functools.partial(torch_scan, bench, t, wide)
            bench.compare(row, sample, peers, 1.0, 2 * x.nbytes)


def torch_scan(bench: Bench, data: Any, out: Any) -> Sample:
    return bench.torch_runs(lambda: bench.torch.cumsum(data, 0, dtype=out.dtype, out=out))


def histogram(bench: Bench) -> None:
    data = words(7, bench.size(1 << 26))
    octets = data.view(np.uint8)
    with bench.memory() as ours:
        x, bins = ours.put(data), ours.room(1024)
        sample = bench.ours(
            ours.launch(kernels.clear_bins.program, bins, groups=1),
            ours.launch(kernels.count.program, x, bins, groups=kernels.COUNT_GROUPS),
        )
        wanted = np.bincount(octets[:PIECE], minlength=256)
        require(np.array_equal(ours.get(bins, np.uint32), wanted), "the histogram is wrong")
        peers: dict[str, Callable[[], Sample]] = {}
        if bench.torch is not None:
            t, torch = bench.tensor(octets), bench.torch
            peers["torch bincount"] = lambda: bench.torch_runs(lambda: torch.bincount(t, minlength=256))
            peers["torch histc"] = lambda: bench.torch_runs(lambda: torch.histc(t, 256, 0, 255))
        if bench.cupy is not None:
            c, cupy = bench.cupy.asarray(octets), bench.cupy
            peers["cupy bincount"] = lambda: bench.cupy_runs(lambda: cupy.bincount(c, minlength=256))
            peers["cupy histogram"] = lambda: bench.cupy_runs(lambda: cupy.histogram(c, 256, (0, 256)))
        bench.compare("histogram", sample, peers, 1.0, octets.nbytes)


def black_scholes(bench: Bench) -> None:
    count, rng, program = bench.size(1 << 26), np.random.default_rng(8), cpu_kernels.black_scholes.program
    ranges = {"price": (5, 30), "strike": (1, 100), "years": (0.25, 10)}
    inputs = [rng.random(count, np.float32) * np.float32(h - low) + np.float32(low) for low, h in ranges.values()]
    with bench.memory() as ours:
        memory = [ours.put(x) for x in inputs]
        memory += [ours.put(np.array([v], np.float32)) for v in (RATE, VOLATILITY)]
        memory += [ours.room(4 * count), ours.room(4 * count)]
        samples = {"black_scholes": bench.ours(ours.launch(program, *memory))}
        some = [x[:65536] for x in inputs]
        exact = cpu_kernels.black_scholes.on("cpu")(*some, RATE, VOLATILITY)
        for handle, wanted in zip(memory[5:], exact, strict=True):
            found = ours.get(handle, np.float32)[:65536]
            require(found.tobytes() == wanted.tobytes(), "not the bytes of the cpu backend")
        try:
            samples["black_scholes, ulp 4"] = bench.ours(ours.launch(program, *memory, ulp=4))
        except Exception as e:
            bench.failed("black_scholes, ulp 4", e)
        peers: dict[str, Callable[[], Sample]] = {}
        if bench.torch is not None:
            tensors = [bench.tensor(x) for x in inputs]

            torch = bench.torch

            def formula(price: Any, strike: Any, years: Any) -> tuple[Any, Any]:
                return torch_black_scholes(torch, price, strike, years)

            for found, wanted in zip(formula(*(t[:65536] for t in tensors)), exact, strict=True):
                require(np.allclose(found.cpu().numpy(), wanted, atol=1e-3), "torch's formula is another")

            @functools.cache
            def compiled() -> Sample:
                if time.perf_counter() - bench.begun > 100:
                    raise TimeoutError("no time left to compile")
                fused = torch.compile(formula, dynamic=False)
                return bench.torch_runs(lambda: fused(*tensors))

            peers["torch"] = lambda: bench.torch_runs(lambda: formula(*tensors))
            peers["torch.compile"] = compiled
        for (row, sample), goal in zip(samples.items(), (0.5, 0.95), strict=False):
            bench.compare(row, sample, peers, goal, 20 * count)


def torch_black_scholes(torch: Any, price: Any, strike: Any, years: Any) -> tuple[Any, Any]:
    def normal_cdf(d: Any) -> Any:
        k = 1.0 / (1.0 + 0.2316419 * torch.abs(d))
        p = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
        tail = 0.39894228 * torch.exp(-0.5 * d * d) * p
        return torch.where(d > 0.0, 1.0 - tail, tail)

    root = torch.sqrt(years)
    drift = RATE + 0.5 * VOLATILITY * VOLATILITY
    d1 = (torch.log(price / strike) + drift * years) / (VOLATILITY * root)
    c1, c2 = normal_cdf(d1), normal_cdf(d1 - VOLATILITY * root)
    discounted = strike * torch.exp(-RATE * years)
    return price * c1 - discounted * c2, discounted * (1.0 - c2) - price * (1.0 - c1)


def host(bench: Bench) -> None:
    a = words(9, bench.size(1 << 24))
    compiled: Any = pipeline.compile(bench.backend, kernels.flip.program)
    torch = bench.torch
    cases = [("host, ordinary", False, 1 / 0.6)]
    if torch is not None:
        cases.append(("host, pinned", True, 1 / 1.05))
    with bench.memory():
        for row, pinned, goal in cases:
            source, target = a, np.empty_like(a)
            peers: dict[str, Callable[[], Sample]] = {}
            if torch is not None:
                s, t = (torch.empty(a.size, dtype=torch.int32, pin_memory=pinned) for _ in range(2))
                s.copy_(torch.from_numpy(a.view(np.int32)))
                t.zero_()  # so that its pages are there
                x, y = (torch.empty(a.size, dtype=torch.int32, device="cuda") for _ in range(2))

                def theirs(s: Any = s, t: Any = t, x: Any = x, y: Any = y, pinned: bool = pinned) -> float:
                    start = time.perf_counter()
                    x.copy_(s, non_blocking=pinned)
                    torch.bitwise_xor(x, 0x5A5A5A5A, out=y)
                    t.copy_(y, non_blocking=pinned)
                    torch.cuda.synchronize()
                    return time.perf_counter() - start

                theirs()
                peers[f"torch {'pinned' if pinned else 'pageable'}"] = functools.partial(lambda f: f, theirs)
            if pinned:
                source, target = (vyre.empty(a.size, np.uint32, pinned_for=bench.backend.id) for _ in range(2))
                source[:] = a
            target[:] = 0

            def ours(source: Array = source, target: Array = target) -> float:
                start = time.perf_counter()
                compiled.dispatch([source], out=[target])
                return time.perf_counter() - start

            ours()
            require(np.array_equal(target, a ^ np.uint32(0x5A5A5A5A)), "the result on the host is wrong")
            bench.compare(row, ours, peers, goal, 2 * a.nbytes)


def trip(bench: Bench) -> None:
    """A few words from the host and back, which is all waiting and no work."""
    compiled: Any = pipeline.compile(bench.backend, kernels.flip.program)
    for count in (64, 4096):
        a = words(10, count)
        target = np.empty_like(a)

        def sample(work: Callable[[], object]) -> Sample:
            def several() -> float:
                start = time.perf_counter()
                for _ in range(LAUNCHES):
                    work()
                return (time.perf_counter() - start) / LAUNCHES

            several()
            return several

        ours = sample(functools.partial(compiled.dispatch, [a], out=[target]))
        require(np.array_equal(target, a ^ np.uint32(0x5A5A5A5A)), "the result on the host is wrong")
        peers = {} if bench.torch is None else {"torch": functools.partial(sample, torch_round_trip(bench, a))}
        bench.compare(f"trip, {count} words", ours, peers, 1.0)


# ---- hashes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    name: str
    program: Any
    inputs: tuple[Any, ...]
    config: DispatchConfig


def programs() -> Iterator[Program]:
    for seed in range(8):
        case = random_program(random.Random(9000 + seed), wide=False, endless=False, functions=seed % 2 == 1)
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None)
        yield Program(f"random {9000 + seed}", case.program, case.inputs, config)
    n, rng = 1 << 14, np.random.default_rng(10)
    yield Program("functions of all bits", kernels.functions.program, (words(11, n),), DispatchConfig())
    options = tuple(rng.random(n, np.float32) * 20 + np.float32(1) for _ in OPTIONS)
    numbers = tuple(struct.pack("<f", v) for v in (RATE, VOLATILITY))
    yield Program("black_scholes", cpu_kernels.black_scholes.program, (*options, *numbers), DispatchConfig())
    floats = tuple(rng.random(n, np.float32) * 40 - np.float32(20) for _ in "xy")
    yield Program("chain", cpu_kernels.chain.program, floats, DispatchConfig())
    shares, zeros = 64, bytes(256)
    config = DispatchConfig(grid_override=(shares * 32 // kernels.GROUP, 1, 1))
    yield Program("totals", kernels.SCAN_F32[0].program, (rng.random(n, np.float32), zeros), config)


def hashes(bench: Bench, names: Sequence[str]) -> None:
    """One line for each program: its hash on every backend that opens."""
    digest = functools.cache(lambda data: blake3(data).hex())
    backends: dict[str, Any] = {}
    for name in names:
        try:
            backends[name] = bench.backend if name == bench.backend.id else acquire(name)
        except Exception as e:
            bench.failed("hashes", e, name)
    alike = 0
    for p in programs():
        line: dict[str, Any] = {"program": p.name, "fingerprint": str(p.program.fingerprint)}
        for name, backend in backends.items():
            try:
                line[name] = digest(b"".join(bytes(o) for o in backend.dispatch(p.program, list(p.inputs), p.config)))
            except Exception as e:
                line[name] = f"{type(e).__name__}: {e}"[:300]
        found = {line[name] for name in backends}
        line["equal"] = len(found) == 1 and all(len(h) == 64 for h in found)
        alike += line["equal"]
        bench.hashes.append(line)
    met = alike == len(bench.hashes) and len(backends) == len(names)
    bench.rows.append({"row": "hashes", "peer": ", ".join(backends), "equal": alike, "goal": "all", "goal_met": met})
    for backend in backends.values():
        if backend is not bench.backend:
            backend.shutdown()


# ---- the whole ------------------------------------------------------------------------------------------------------

ROWS: dict[str, Callable[[Bench], None]] = {
    "launch": launch,
    "batch": batch,
    "flat": flat,
    "xor": xor,
    "small": small,
    "sum": total,
    "scan": scan,
    "histogram": histogram,
    "host": host,
    "trip": trip,
    "black_scholes": black_scholes,
}


def peer(name: str) -> Any:
    """The library, if it is there and sees a GPU."""
    try:
        module = __import__(name)
        if name == "torch":
            return module if module.cuda.is_available() else None
        return module if module.cuda.runtime.getDeviceCount() else None
    except Exception as e:
        print(f"{name} is not available: {type(e).__name__}: {e}"[:200], flush=True)
        return None


def driver() -> str | None:
    """The version of NVIDIA's driver, where it is told."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def table(bench: Bench) -> None:
    print(f"\n{'row':<22}{'peer':<24}{'ours us':>11}{'peer us':>11}{'ratio':>8}{'95 %':>16}{'goal':>7}{'GB/s':>8}  met")
    for r in bench.rows:
        met = {True: "yes", False: "NO", None: "-"}[r["goal_met"]]
        if "seconds" not in r:
            text = r.get("error", f"{r.get('equal')} of {len(bench.hashes)} equal")
            print(f"{r['row']:<22}{r['peer'] or '':<24} {' '.join(text.split())[:70]}  {met}")
            continue
        timed = f"{r['seconds'] * 1e6:>11.2f}"
        if r["peer"] is not None:
            interval = f"[{r['interval'][0]:.3f}, {r['interval'][1]:.3f}]"
            timed += f"{r['peer_seconds'] * 1e6:>11.2f}{r['ratio']:>8.3f}{interval:>16}"
        goal = "" if r["goal"] is None else f"{r['goal']:.2f}"
        print(f"{r['row']:<22}{r['peer'] or '':<24}{timed:<46}{goal:>7}{r.get('GB/s', 0):>8.0f}  {met}")
    for line in bench.hashes:
        shown = [f"{k} {v[:12]}" for k, v in line.items() if k not in ("program", "fingerprint", "equal")]
        print(f"{line['program']:<22} {'  '.join(shown)}  {'equal' if line['equal'] else 'DIFFERENT'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--rows", default="", help=f"of {', '.join(ROWS)}, hashes; by default all")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--scale", type=int, default=0, help="sizes are divided by 2 to this power")
    parser.add_argument(
        "--hashes", default="cuda,opencl:NVIDIA,wgpu:NVIDIA,cpu,reference", help="backends to hash outputs of"
    )
    parser.add_argument("--seconds", type=float, default=110, help="begin no row after this time")
    args = parser.parse_args()
    begun = time.perf_counter()
    wanted = args.rows.split(",") if args.rows else [*ROWS, "hashes"]
    peers = {name: peer(name) if args.backend == "cuda" else None for name in ("torch", "cupy")}
    bench = Bench(acquire(args.backend), peers["torch"], peers["cupy"], args.rounds, args.scale, begun)
    facts = {
        "backend": args.backend,
        "device": bench.backend.device_profile().device,
        "facts": {k: v for k, v in bench.backend.capability.extras.items() if isinstance(v, str | bool | int)},
        "driver": driver(),
        "peers": {k: getattr(v, "__version__", None) for k, v in peers.items()},
    }
    whole = not args.rows and not args.scale and args.backend == "cuda"
    for name in wanted:
        start = time.perf_counter()
        try:
            if start - begun > args.seconds:
                raise TimeoutError(f"{args.seconds} s are over")
            if name == "hashes":
                hashes(bench, args.hashes.split(","))
            else:
                ROWS[name](bench)
        except Exception as e:
            bench.failed(name, e)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        if whole:  # after each row, so that what is measured is kept
            record("cuda", facts | {"rows": bench.rows, "hashes": bench.hashes})
    table(bench)
    return 0 if all(r["goal_met"] is not False for r in bench.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
