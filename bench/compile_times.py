"""Seconds until a kernel is compiled, where nothing of it is remembered: what the mathematics costs each backend.

    python bench/compile_times.py                             every kernel on every backend
    python bench/compile_times.py --backends wgpu sin fft     these alone
    python bench/compile_times.py --json                      also written to bench/results/compile_times.json
    python bench/compile_times.py --json --as before          kept there under this name, beside and over what is there

Each compile has a process of its own, the drivers' caches are off, and the device was opened and has compiled another
kernel before. `dispatch` is the first one, in which some drivers finish what compiling began; `stored` is the length of
what a cache would keep: the text, or machine code. `processor_s` is what all threads of the process took, which a busy
machine changes less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from compile_growth import kernel_text as grown_text
from compile_growth import program_from
from record import RESULTS, record, stamp

BACKENDS = ("cpu", "opencl", "wgpu")
LIMIT_S = 400


def kernel_text(lines: list[str]) -> str:
    return grown_text(lines, args="x: In[f32], out: InOut[f32]")


def one(call: str) -> str:
    return kernel_text(["v = x[gid.x]", f"out[gid.x] = {call}"])


def fft() -> str:
    """A transform of 64 points in registers, its factors written as numbers."""
    n = 64
    lines = [
        f"{p}{k} = x[gid.x * {2 * n} + {2 * int(f'{k:06b}'[::-1], 2) + (p == 'i')}]" for k in range(n) for p in "ri"
    ]
    half = 1
    while half < n:
        for k in range(n):
            if k & half:
                continue
            angle = -math.pi * (k % half) / half
            c, s, o = math.cos(angle), math.sin(angle), k + half
            lines += [
                f"a = r{o} * {c!r} - i{o} * {s!r}",
                f"b = r{o} * {s!r} + i{o} * {c!r}",
                f"r{o} = r{k} - a",
                f"i{o} = i{k} - b",
                f"r{k} = r{k} + a",
                f"i{k} = i{k} + b",
            ]
        half *= 2
    return kernel_text(
        [*lines, *(f"out[gid.x * {2 * n} + {2 * k + (p == 'i')}] = {p}{k}" for k in range(n) for p in "ri")]
    )


def fft_turning() -> str:
    """A transform of 128 points by a workgroup, its stages unrolled; the factors are sines and cosines."""
    return kernel_text(
        [
            "re = shared(f32, 128)",
            "im = shared(f32, 128)",
            "base = wg.x * 256",
            "for h in static_range(2):",
            "    k = lid.x + h * 64",
            "    re[k] = x[base + 2 * (reverse_bits(k) >> 25)]",
            "    im[k] = x[base + 2 * (reverse_bits(k) >> 25) + 1]",
            "barrier()",
            "for stage in static_range(7):",
            "    j = lid.x & ((1 << stage) - 1)",
            "    k = ((lid.x >> stage) << (stage + 1)) + j",
            "    o = k + (1 << stage)",
            "    turn = f32(j) * (-3.14159274 / f32(1 << stage))",
            "    c = cos(turn)",
            "    s = sin(turn)",
            "    a = re[o] * c - im[o] * s",
            "    b = re[o] * s + im[o] * c",
            "    p = re[k]",
            "    q = im[k]",
            "    re[o] = p - a",
            "    im[o] = q - b",
            "    re[k] = p + a",
            "    im[k] = q + b",
            "    barrier()",
            "for h in static_range(2):",
            "    k = lid.x + h * 64",
            "    out[base + 2 * k] = re[k]",
            "    out[base + 2 * k + 1] = im[k]",
        ]
    )


def long_fma() -> str:
    """Two hundred steps of Horner's rule."""
    lines = [f"v = fma(v, t, {k}.25)" for k in range(200)]
    return kernel_text(["t = x[gid.x]", "v = t", *lines, "out[gid.x] = v"])


def unrolled(n: int) -> str:
    return kernel_text(["v = x[gid.x]", f"for k in static_range({n}):", "    v = v * 1.5 + x[k]", "out[gid.x] = v"])


KERNELS: dict[str, Callable[[], str]] = {
    "saxpy": lambda: one("v * 2.5 + 1.0"),
    "fma": lambda: one("fma(v, v, 1.0)"),
    "divide": lambda: one("1.5 / v"),
    "sin": lambda: one("sin(v)"),
    "sin_cos": lambda: one("sin(v) + cos(v)"),
    "tan": lambda: one("tan(v)"),
    "exp": lambda: one("exp(v)"),
    "log": lambda: one("log(v)"),
    "pow": lambda: one("v ** 1.7"),
    "tanh": lambda: one("tanh(v)"),
    "erf": lambda: one("erf(v)"),
    "sins_8": lambda: kernel_text(["v = x[gid.x]", *["v = sin(v) + v"] * 8, "out[gid.x] = v"]),
    "long_fma": long_fma,
    "fft": fft,
    "fft_turning": fft_turning,
    "static_400": lambda: unrolled(400),
    "static_4000": lambda: unrolled(4000),
}


def measure(name: str, backend: str) -> dict[str, float]:
    """Compile one kernel, and dispatch it once, in this process."""
    import vyre
    from vyre.driver.guard import compile as pipeline

    opened = vyre.acquire(backend)
    pipeline.compile(opened, program_from(kernel_text(["out[gid.x] = x[gid.x]"]), "other")).dispatch([bytes(1024)] * 2)
    text = KERNELS[name]()
    worked, start = time.process_time(), time.perf_counter()
    program = program_from(text, name)
    front = time.perf_counter() - start
    compiled = pipeline.compile(opened, program)
    done = time.perf_counter() - start
    compiled.dispatch([bytes(65536)] * 2)
    whole = time.perf_counter() - start
    worked = time.process_time() - worked
    stored = len(compiled.native.serialize() or b"")
    return {
        "front_s": front,
        "compile_s": done - front,
        "dispatch_s": whole - done,
        "total_s": whole,
        "processor_s": worked,
        "stored": stored,
    }


def compiled(name: str, backend: str, limit_s: float) -> dict[str, Any]:
    """What `measure` says in a process of its own; only a limit where it took longer."""
    with tempfile.TemporaryDirectory() as folder:
        off = {
            "VYRE_CACHE": "off",
            "MESA_SHADER_CACHE_DISABLE": "true",
            "POCL_CACHE_DIR": folder,
            "PYOPENCL_NO_CACHE": "1",
        }
        command = [sys.executable, __file__, "--one", name, backend]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit_s, check=False, env=os.environ | off
            )
        except subprocess.TimeoutExpired:
            return {"over_s": limit_s}
    if done.returncode:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    return {k: round(v, 4) for k, v in json.loads(done.stdout.splitlines()[-1]).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(KERNELS))
    parser.add_argument("--backends", default=",".join(BACKENDS), help="with commas between")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for one kernel")
    parser.add_argument("--json", action="store_true", help="write bench/results/compile_times.json")
    parser.add_argument("--as", dest="name", default="now", help="the name of this run there")
    parser.add_argument("--one", nargs=2, metavar=("KERNEL", "BACKEND"), help="in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return 0
    found: dict[str, dict[str, Any]] = {}
    for backend in options.backends.split(","):
        print(f"== {backend}")
        rows = found[backend] = {}
        for name in options.kernels or KERNELS:
            row = rows[name] = compiled(name, backend, options.limit)
            print(f"  {name:12}", "  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if options.json:
        file = RESULTS / "compile_times.json"
        runs = json.loads(file.read_text())["runs"] if file.exists() else {}
        kept = runs.get(options.name, {}).get("backends", {})
        merged = {b: kept.get(b, {}) | found.get(b, {}) for b in {**kept, **found}}
        record("compile_times", {"runs": runs | {options.name: stamp() | {"backends": merged}}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
