"""What the cpu backend needs and finds, for `vyre doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from ...driver.contract.requirement import Check, installed

_TOLD = ("avx2", "fma", "avx512f", "f16c", "sse4.2", "neon", "sve")
"""Features that decide how wide and how fast code is."""


def findings() -> Iterator[Check]:
    yield installed("llvmlite")
    yield installed("cffi")
    if find_spec("llvmlite") is None or find_spec("_cffi_backend") is None:
        return
    from .devices import host
    from .exactness import why_not_hardware
    from .run.workers import thread_count

    found = host()
    features = [name for name in _TOLD if f"+{name}" in found.features.split(",")]
    yield Check(
        "processor",
        "ok",
        f"{found.name}, {found.vector_bits} bit vectors ({', '.join(features) or 'no feature known'}), "
        f"LLVM {found.compiler}, {thread_count()} threads",
    )
    why = why_not_hardware(found)
    yield (
        Check("f32 in hardware", "ok", "the processor computes the canonical f32 itself")
        if why is None
        else Check("f32 in hardware", "ok", f"f32 is flushed by code, which is slower: {why}")
    )
