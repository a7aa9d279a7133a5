"""Mandelbrot and the Game of Life, written once, run on what is available.

Writes two pictures below build/demo and prints the checksum of every result: it is the same on every machine.
"""

from __future__ import annotations

import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
from blake3 import blake3

import vyre
from vyre import In, Out, f32, gid, u8, u32

OUT = Path("build/demo")


@vyre.kernel(workgroup=(16, 16))
def mandelbrot(left: f32, top: f32, step: f32, width: u32, height: u32, limit: u32, count: Out[u32]):
    """Iterations until the orbit of each pixel escapes."""
    if gid.x < width and gid.y < height:
        a = left + f32(gid.x) * step
        b = top + f32(gid.y) * step
        x = 0.0
        y = 0.0
        n = u32(0)
        while n < limit:
            xx = x * x
            yy = y * y
            if xx + yy > 4.0:
                break
            y = 2.0 * x * y + b
            x = xx - yy + a
            n += 1
        count[gid.y * width + gid.x] = n


@vyre.kernel(workgroup=(16, 16))
def life(cells: In[u8], width: u32, height: u32, after: Out[u8]):
    """One generation on a torus."""
    if gid.x < width and gid.y < height:
        alive = u32(0)
        for dy in range(3):
            for dx in range(3):
                if dx == 1 and dy == 1:
                    continue
                x = (gid.x + dx + width - 1) % width
                y = (gid.y + dy + height - 1) % height
                alive += u32(cells[y * width + x])
        here = u32(cells[gid.y * width + gid.x])
        stays = alive == 3 or (here == 1 and alive == 2)
        after[gid.y * width + gid.x] = u8(u32(stays))


def write_png(path: Path, rgb: np.ndarray) -> None:
    """An 8-bit RGB picture."""
    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + row.tobytes() for row in rgb)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )


def palette(count: np.ndarray, limit: int) -> np.ndarray:
    """Integer colours, so that the picture is as reproducible as the numbers."""
    n = count.astype(np.uint32)
    rgb = np.stack([n * 7 % 256, n * 5 % 256, 64 + n * 11 % 192], axis=-1).astype(np.uint8)
    rgb[count == limit] = 0
    return rgb


def report(what: str, result: np.ndarray, seconds: float) -> None:
    print(f"{what:<34} {seconds:6.2f} s   blake3 {blake3(result.tobytes()).hexdigest()[:32]}")


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    width, height, limit = 480, 320, 200

    start = time.perf_counter()
    count = mandelbrot(-2.2, -1.05, 3.15 / width, width, height, limit, domain=(width, height))
    report(f"mandelbrot {width} x {height}", count, time.perf_counter() - start)
    write_png(OUT / "mandelbrot.png", palette(count, limit))

    rng = np.random.default_rng(7)
    cells = (rng.random((192, 256)) < 0.3).astype(np.uint8)
    start, generations = time.perf_counter(), 60
    for step in range(generations):
        cells = life(cells, cells.shape[1], cells.shape[0])
        if sys.stderr.isatty():
            print(f"\rlife: generation {step + 1} of {generations}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    report(f"life, {generations} generations of 256 x 192", cells, time.perf_counter() - start)
    write_png(
        OUT / "life.png", np.repeat(cells.repeat(3, 0).repeat(3, 1)[..., None] * 255, 3, axis=-1).astype(np.uint8)
    )

    program = mandelbrot.program
    print(f"backend: {vyre.select(program).chosen}; program {program.fingerprint[:16]}; pictures in {OUT}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
