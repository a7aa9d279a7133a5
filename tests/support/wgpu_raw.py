"""Runs the text of a kernel on a real adapter, with the library alone: no part of the backend but the emitter."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Set
from functools import cache
from typing import Any

import pytest

from vyre.backends.reference.engines.memory import Memory
from vyre.backends.wgpu import build
from vyre.backends.wgpu.emit.text import ENTRY, param_words, wgsl_text
from vyre.backends.wgpu.emit.traits import SAFEST, Traits
from vyre.driver.contract.traps import trap_words
from vyre.lower import LowerOptions, lower
from vyre.lower.kernel_ir import Kernel

from .sprung import first_trap

LIMITS = (
    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x", "max-compute-workgroup-size-y",
    "max-compute-workgroup-size-z",
)  # fmt: skip
WIDE = ("shader-f64", "shader-int64")
"""Features that a `wide_fma` asks for."""


@cache
def open_device() -> Any:
    """A device of the best adapter, of any API, or None."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    wgpu = pytest.importorskip("wgpu")
    found = wgpu.gpu.enumerate_adapters_sync()
    if not found:
        return None
    adapter = min(found, key=lambda a: a.info["backend_type"] == "OpenGL")
    limits = {name: adapter.limits[name] for name in LIMITS}
    features = [f for f in ("immediates", *WIDE) if f in adapter.features]
    if "immediates" in features:
        limits["max-immediate-size"] = adapter.limits["max-immediate-size"]
    return adapter.request_device_sync(required_features=features, required_limits=limits)


def device_or_skip() -> Any:
    device = open_device()
    if device is None:
        if "wgpu" in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail("no adapter was found")
        pytest.skip("no adapter was found")
    return device


class Shader:
    """One kernel, ready to run."""

    def __init__(self, kernel: Kernel, text: str, *, immediates: bool = True) -> None:
        wgpu = pytest.importorskip("wgpu")
        self.device, self.kernel, self.immediates = device_or_skip(), kernel, immediates
        kinds = ["storage" if b.writable else "read-only-storage" for b in kernel.buffers if not b.shared]
        kinds += ["storage"] if kernel.traps else []
        entries = [
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate(kinds)
        ]
        layouts = [self.device.create_bind_group_layout(entries=entries)]
        more = {}
        if immediates:
            more["immediate_size"] = 4 * param_words(kernel)
        else:
            uniform = {"binding": 0, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": "uniform"}}
            layouts.append(self.device.create_bind_group_layout(entries=[uniform]))
        self.layouts = layouts
        layout = self.device.create_pipeline_layout(bind_group_layouts=layouts, **more)
        module = self.device.create_shader_module(code=text)
        stage = {"module": module, "entry_point": ENTRY}
        self.pipeline = self.device.create_compute_pipeline(layout=layout, compute=stage)

    def run(
        self,
        contents: list[bytes],
        lengths: list[int],
        grid: tuple[int, int, int],
        base: tuple[int, int, int] = (0, 0, 0),
    ) -> list[bytes]:
        """What the bound buffers hold afterwards, and the trap words last where there are any."""
        wgpu = pytest.importorskip("wgpu")
        device, usage = self.device, wgpu.BufferUsage
        contents = contents + ([trap_words(grid, self.kernel.workgroup)] if self.kernel.traps else [])
        sizes = [max(16, -(-len(c) // 16) * 16) for c in contents]
        buffers = [
            device.create_buffer_with_data(
                data=c.ljust(n, b"\xa5"), usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
            )
            for c, n in zip(contents, sizes, strict=True)
        ]
        words = struct.pack(f"<{param_words(self.kernel)}I", *lengths, *base, 0, 0, 0)
        entries = [
            {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}} for k, b in enumerate(buffers)
        ]
        encoder = device.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(self.pipeline)
        step.set_bind_group(0, device.create_bind_group(layout=self.layouts[0], entries=entries))
        if self.immediates:
            step.set_immediates(0, words, 0, len(words))
        else:
            params = device.create_buffer_with_data(
                data=words.ljust(-(-len(words) // 16) * 16, b"\0"), usage=usage.UNIFORM
            )
            resource = {"buffer": params, "offset": 0, "size": params.size}
            group = device.create_bind_group(layout=self.layouts[1], entries=[{"binding": 0, "resource": resource}])
            step.set_bind_group(1, group)
        step.dispatch_workgroups(*grid)
        step.end()
        device.queue.submit([encoder.finish()])
        return [bytes(device.queue.read_buffer(b))[: len(c)] for b, c in zip(buffers, contents, strict=True)]


def options(traits: Traits = SAFEST, off: Set[str] = frozenset()) -> LowerOptions:
    return LowerOptions(off=frozenset(off) | build.options(traits).off)


def run_case(case: Any, traits: Traits = SAFEST, *, off: Set[str] = frozenset(), immediates: bool = True) -> Any:
    """The outputs of a case, as the reference's `run` gives them, or its first trap."""
    program = case.program
    kernel = lower(program, options(traits, off))
    text = wgsl_text(kernel, traits, immediates)
    memory = Memory.build(program, case.inputs, case.output_elements)
    bound = [memory.buffers[b.name] for b in kernel.buffers if not b.shared]
    shader = Shader(kernel, text, immediates=immediates)
    after = shader.run([bytes(m.data) for m in bound], [m.count for m in bound], case.grid)
    if kernel.traps:
        found = first_trap(kernel, after.pop())
        if found is not None:
            return found
    for m, data in zip(bound, after, strict=True):
        m.data[:] = data
    return [bytes(o) for o in memory.outputs()]
