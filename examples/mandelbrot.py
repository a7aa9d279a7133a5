"""The Mandelbrot set: how many steps each point of the plane takes to leave a circle of radius 2.

Every step is a few f32 operations, each rounded once and never fused, so that a point leaves at the same step on every
machine; one bit elsewhere in a step, and the edge of the set is another.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import Out, f32, gid, u32

Counts = NDArray[np.uint32]
SHADES = " .:-=+*#%@"


@vyre.kernel(workgroup=(16, 8))
def escape(left: f32, top: f32, step: f32, most: u32, width: u32, height: u32, counts: Out[u32]) -> None:
    """Steps of the point in each cell, `most` for one that stays."""
    column, row = gid.x, gid.y
    if column < width and row < height:
        c_re = left + step * f32(column)
        c_im = top - step * f32(row)
        re = 0.0
        im = 0.0
        taken = u32(0)
        for _ in range(most):
            if re * re + im * im > 4.0:
                break
            next_re = re * re - im * im + c_re
            im = 2.0 * re * im + c_im
            re = next_re
            taken += 1
        counts[row * width + column] = taken


def solve(
    left: float, top: float, step: float, shape: tuple[int, int], most: int, backend: str | None = None
) -> Counts:
    """Steps for rows and columns of points, from the upper left corner on, `step` apart."""
    height, width = shape
    call = escape if backend is None else escape.on(backend)
    numbers = np.float32(left), np.float32(top), np.float32(step)
    counts: Counts = call(*numbers, most, width, height, sizes={"counts": shape}, domain=(width, height))
    return counts


def drawn(counts: Counts, most: int) -> str:
    """A picture in letters: the darker, the longer a point stayed."""
    shades = (np.log(np.maximum(counts, 1)) / np.log(max(most, 2)) * (len(SHADES) - 1)).astype(int)
    return "\n".join("".join(SHADES[shade] for shade in row).rstrip() for row in shades)


def main() -> int:
    most = 500
    print(drawn(solve(-2.2, 1.2, 0.05, (49, 64), most)[::2], most))
    counts = solve(-0.7463, 0.1112, 0.0000025, (600, 800), most)
    print(f"800 x 600 points near -0.745 + 0.110i: {int((counts == most).sum())} stay for {most} steps")
    print(f"blake3 {blake3(counts.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
