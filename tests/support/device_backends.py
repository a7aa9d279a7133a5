"""Compiled backends with a device of their own, opened for a test or skipped with the reason."""

import os
from dataclasses import replace
from importlib import import_module

import pytest

from vyre.foundation.ir.dtypes import bf16, f16, f64, i64, u64
from vyre.lower import PASSES

IDS = ("cuda", "opencl", "wgpu")
REQUIRED = {id for id in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(",") if id}
"""Backends that this machine promises to have: there, a missing one is a failure and not a skip."""


def registration_or_skip(id):
    registration = import_module(f"vyre.backends.{id}").REGISTRATION
    why = registration.unavailable()
    if why is not None and id in REQUIRED:
        pytest.fail(f"{id} is required and not available: {why}")
    if why is not None:
        pytest.skip(f"{id}: {why}")
    return registration


def open_or_skip(id):
    return registration_or_skip(id).open()


def lacking(backend):
    """Value types that programs for this backend do without."""
    return [t for t in (u64, i64, f16, bf16, f64) if t.name not in backend.capability.types]


VARIANTS = {
    "cuda": ("no improvements", "flushes in software", "one invocation per thread"),
    "opencl": ("no improvements", "flushes in software"),
    "wgpu": ("no improvements", "nothing is taken on trust", "parameters in buffers"),
}
"""Other ways in which a backend can compile; no byte may change."""


def variant(id, name, monkeypatch):
    """A backend that compiles in another way, while the patch lasts."""
    backend = open_or_skip(id)
    match name:
        case "no improvements":
            monkeypatch.setattr(import_module(f"vyre.backends.{id}.build"), "OFF", frozenset(PASSES))
        case "one invocation per thread":
            cuda = import_module("vyre.backends.cuda.emit.coarsen")
            monkeypatch.setattr(
                import_module("vyre.backends.cuda.build"),
                "cuda_code",
                lambda kernel: cuda.Code(cuda.cuda_text(kernel), kernel.workgroup),
            )
        case "flushes in software":
            mode = type(backend.exactness.mode)
            backend.exactness = replace(backend.exactness, mode=mode.SOFT)
        case "nothing is taken on trust":
            backend.record = replace(backend.record, traits=type(backend.record.traits)())
        case "parameters in buffers":
            backend = type(backend)(immediates=False)
    return backend
