"""Milliseconds of one cold compile of a small kernel, and of loading its object code. Run in a fresh process."""

from __future__ import annotations

import time

import vyre
from vyre import In, Out, f32, gid, u32
from vyre.driver.guard import compile as pipeline
from vyre.driver.pipeline import attach_store
from vyre.driver.selection.registry import acquire


@vyre.kernel(workgroup=256)
def other(a: In[u32], out: Out[u32]):
    out[gid.x] = a[gid.x] + 1


@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


def main() -> None:
    backend = acquire("cpu")
    attach_store(backend, None)  # what earlier processes compiled is not looked for
    backend.prepare()
    pipeline.compile(backend, other.program)  # loads the compiler
    program = saxpy.program
    start = time.perf_counter()
    compiled = pipeline.compile(backend, program)
    cold = time.perf_counter() - start
    payload = compiled.native.serialize()  # type: ignore[attr-defined]
    start = time.perf_counter()
    backend.inner.load_native(program, compiled.config, payload)  # type: ignore[attr-defined]
    print(cold * 1e3, (time.perf_counter() - start) * 1e3)


if __name__ == "__main__":
    main()
