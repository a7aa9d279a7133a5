"""Runs the text of a kernel on PoCL, with the library alone: no part of the backend but the emitter.

`VYRE_RAW_PLATFORM=NVIDIA` takes the platform with that in its name instead; there, kernels are the ones for NVIDIA.
"""

from __future__ import annotations

import os
import random
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

from vyre.backends.opencl.devices import library
from vyre.backends.opencl.emit.text import Mode, build_options, keeps_subnormals, opencl_text
from vyre.backends.reference.engines.memory import Memory
from vyre.driver.contract.traps import trap_words
from vyre.lower import LowerOptions, lower
from vyre.lower.c.emitter import ENTRY
from vyre.lower.kernel_ir import Kernel
from vyre.lower.passes.full_stores import share_of

from .sprung import first_trap

Grid = tuple[int, int, int]
PLATFORM = os.environ.get("VYRE_RAW_PLATFORM", "Portable Computing Language")
NVIDIA = "NVIDIA" in PLATFORM
HOUR = 3600 * 10**9


@cache
def open_device() -> Any:
    """A context and a queue, or None."""
    pytest.importorskip("pyopencl")
    cl = library()
    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # the loader finds none
        return None
    for platform in platforms:
        if PLATFORM in platform.name:
            context = cl.Context(platform.get_devices()[:1])
            return context, cl.CommandQueue(context)
    return None


def device_or_skip() -> Any:
    device = open_device()
    if device is None:
        if "opencl" in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(f"no platform has {PLATFORM!r} in its name")
        pytest.skip(f"no platform has {PLATFORM!r} in its name")
    return device


class Code:
    """One kernel, ready to run."""

    def __init__(self, kernel: Kernel, mode: Mode, *, flushes: bool | None = None) -> None:
        """`flushes`: whether the device does; as the kernel needs it, unless given."""
        import pyopencl as cl

        self.kernel = kernel
        self.context, self.queue = device_or_skip()
        mode = Mode.PTX if NVIDIA else mode
        soft = kernel.soft_flush if flushes is None else not flushes
        program = cl.Program(self.context, opencl_text(kernel, mode))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # some compilers have always something to say
            built = program.build(build_options(mode, soft), cache_dir=False)
        self.entry = getattr(built, ENTRY)

    def run(
        self,
        contents: list[bytes],
        lengths: list[int],
        grid: Grid,
        cut: int = 0,
        stop: np.ndarray[Any, Any] | None = None,
    ) -> list[bytes]:
        """What the bound buffers hold afterwards, and the trap words last where there are any.

        With a `cut`, workgroups below it along x are a launch of their own. A kernel that polls ends once `stop` is not
        zero; one that looks at a clock does so after 0.3 s.
        """
        import pyopencl as cl

        flags = cl.mem_flags
        traps = bool(self.kernel.traps)
        contents = contents + [trap_words(grid, self.kernel.workgroup)] * traps
        hosts = [np.frombuffer(c.ljust(max(4, -(-len(c) // 4) * 4), b"\xa5"), np.uint8) for c in contents]
        buffers = [cl.Buffer(self.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=h) for h in hosts]
        bound = buffers[: len(lengths)]
        more: list[Any] = buffers[len(lengths) :]
        if self.kernel.poll:
            word = np.zeros(1, np.uint32) if stop is None else stop
            word = np.array(word, np.uint64) if NVIDIA else word
            more.append(cl.Buffer(self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=word))
            more += [np.uint64(HOUR if stop is None else 3 * 10**8)] if NVIDIA else []
        size = self.kernel.workgroup
        for first, last in ((0, cut), (cut, grid[0])):
            extent = (last - first, *grid[1:])
            if extent[0]:
                words = [np.uint32(w) for w in (*lengths, first, 0, 0)]
                everything = [w * g for w, g in zip(size, extent, strict=True)]
                self.entry(self.queue, everything, size, *bound, *words, *more)
        after = [np.empty_like(h) for h in hosts]
        for mine, theirs in zip(after, buffers, strict=True):
            cl.enqueue_copy(self.queue, mine, theirs)
        return [a.tobytes()[: len(c)] for a, c in zip(after, contents, strict=True)]


def run_case(
    case: Any, mode: Mode = Mode.NATIVE, *, off: frozenset[str] = frozenset(), poll: bool = False, seed: int = 0
) -> Any:
    """The outputs of a case, as the reference's `run` gives them, or its first trap.

    Where the kernel promises to store every element, the memory holds rubbish at first.
    """
    program = case.program
    float64 = program.requirements.float64
    soft, firm = keeps_subnormals(mode, float64), mode is Mode.PTX
    kernel = lower(program, LowerOptions(soft_flush=soft, poll=poll, off=off, firm=firm))
    memory = Memory.build(program, case.inputs, case.output_elements)
    bound = [memory.buffers[b.name] for b in kernel.buffers if not b.shared]
    lengths = [m.count for m in bound]
    contents = [bytes(m.data) for m in bound]
    extent = [g * w for g, w in zip(case.grid, kernel.workgroup, strict=True)]
    for k, buffer in enumerate(kernel.buffers):
        share = kernel.stored.get(buffer.name)
        if share and extent[1] == extent[2] == 1 and extent[0] * share_of(share, lengths) >= lengths[k]:
            n = lengths[k] * buffer.element.size
            contents[k] = b"\xa5" * n + contents[k][n:]
    code = Code(kernel, mode)
    after = code.run(contents, lengths, case.grid, random.Random(seed).randint(0, case.grid[0]))
    if kernel.traps:
        found = first_trap(kernel, after.pop())
        if found is not None:
            return found
    for m, data in zip(bound, after, strict=True):
        m.data[:] = data
    return [bytes(o) for o in memory.outputs()]
