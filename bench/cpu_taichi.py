"""Taichi in a process of its own: it changes how the processor treats subnormals, for everybody in its process.

Run as `cpu_taichi.py <row>`; every line on standard input is one run, answered by a line when it has ended.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROWS = ("xor", "saxpy", "mandelbrot")


def contender(row: str) -> Callable[[dict[str, Any]], Callable[[], Any]]:
    """A call that lets the process run the row once."""

    def prepare(_: dict[str, Any]) -> Callable[[], Any]:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), row], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        give, take = process.stdin, process.stdout
        while take.readline() != "ready\n":  # it introduces itself first
            if process.poll() is not None:
                raise RuntimeError("the process ended")

        def run() -> None:
            give.write("\n")
            give.flush()
            take.readline()

        return run

    return prepare


def main() -> None:
    import numpy as np
    import taichi as ti

    ti.init(arch=ti.cpu)

    @ti.kernel
    def xor(a: ti.types.ndarray(), b: ti.types.ndarray(), out: ti.types.ndarray()):  # type: ignore[valid-type]
        for i in out:
            out[i] = a[i] ^ b[i]

    @ti.kernel
    def saxpy(alpha: ti.f32, x: ti.types.ndarray(), y: ti.types.ndarray(), out: ti.types.ndarray()):  # type: ignore[valid-type]
        for i in out:
            out[i] = alpha * x[i] + y[i]

    @ti.kernel
    def mandelbrot(left: ti.f32, top: ti.f32, step: ti.f32, limit: ti.i32, out: ti.types.ndarray()):  # type: ignore[valid-type]
        for row, column in out:
            a = left + ti.f32(column) * step
            b = top + ti.f32(row) * step
            x = 0.0
            y = 0.0
            n = 0
            while n < limit and x * x + y * y <= 4.0:
                x, y = x * x - y * y + a, 2.0 * x * y + b
                n += 1
            out[row, column] = n

    size = 1 << 24
    words, floats = np.arange(size, dtype=np.uint32), np.linspace(-10, 10, size, dtype=np.float32)
    counts = np.zeros((1024, 1024), np.int32)
    out_words, out_floats = np.zeros_like(words), np.zeros_like(floats)
    run = {
        "xor": lambda: xor(words, words, out_words),
        "saxpy": lambda: saxpy(2.5, floats, floats, out_floats),
        "mandelbrot": lambda: mandelbrot(-2.0, -1.25, 2.5 / 1024, 256, counts),
    }[sys.argv[1]]
    run()
    print("ready", flush=True)
    for _ in sys.stdin:
        run()
        ti.sync()
        print(flush=True)


if __name__ == "__main__":
    main()
