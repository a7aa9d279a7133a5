"""Filters of 3x3 or 5x5 integer weights over an RGB picture: blur, sharpen, find edges.

Beyond its edges the picture goes on with its outermost pixels. All is integer arithmetic, rounded once and cut to
0..255, so the result is the same to the last bit. Run it as `image_filter.py in.png out.png` (with Pillow installed) to
sharpen a picture of yours; without arguments it draws one.
"""

from __future__ import annotations

import sys

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import D2, D3, In, Out, const, gid, i32, u8, u32

Picture = NDArray[np.uint8]
FILTERS = {
    "blur": [[1, 4, 6, 4, 1], [4, 16, 24, 16, 4], [6, 24, 36, 24, 6], [4, 16, 24, 16, 4], [1, 4, 6, 4, 1]],
    "sharpen": [[0, -1, 0], [-1, 5, -1], [0, -1, 0]],
    "edges": [[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]],
}
"""A filter divides by the sum of its weights, or by 1 where that is 0."""


@vyre.kernel(workgroup=(16, 16))
def convolve(image: In[u8, D3], weights: In[i32, D2], divisor: u32, out: Out[u8, D3], *, radius: const = 1) -> None:
    height, width = image.shape[0], image.shape[1]
    if gid.x < width and gid.y < height:
        for channel in range(3):
            total = i32(0)
            for dy in range(2 * radius + 1):
                for dx in range(2 * radius + 1):
                    x = min(max(gid.x + dx, radius) - radius, width - 1)
                    y = min(max(gid.y + dy, radius) - radius, height - 1)
                    total += weights[dy, dx] * i32(image[y, x, channel])
            rounded = (u32(max(total, 0)) + divisor // 2) // divisor
            out[gid.y, gid.x, channel] = u8(min(rounded, 255))


def solve(image: Picture, weights: NDArray[np.int32], backend: str | None = None) -> Picture:
    """The filtered picture; both have the shape (height, width, 3)."""
    side = len(weights)
    if weights.shape != (side, side) or side % 2 == 0:
        raise ValueError("the weights of a filter are a square with an odd side")
    divisor = int(weights.sum())
    if divisor < 0:
        raise ValueError("the weights of a filter have a sum of 0 or more")
    call = convolve if backend is None else convolve.on(backend)
    filtered = np.empty_like(image, order="C")
    call(image, weights, max(divisor, 1), out=filtered, radius=side // 2)
    return filtered


def drawing(width: int, height: int) -> Picture:
    """A disc on a gradient, with some noise."""
    y, x = np.mgrid[:height, :width]
    disc = (x - width // 2) ** 2 + (y - height // 2) ** 2 < (min(width, height) // 3) ** 2
    noise = np.random.default_rng(4).integers(0, 24, (height, width))
    return np.stack([x * 200 // width + noise, y * 200 // height + noise, 180 * disc + noise], axis=-1).astype(np.uint8)


def read_picture(path: str) -> Picture:
    from PIL import Image  # pictures on disk are all that needs it

    with Image.open(path) as picture:
        return np.array(picture.convert("RGB"))


def write_picture(path: str, image: Picture) -> None:
    from PIL import Image

    Image.fromarray(image).save(path)


def main(source: str | None = None, target: str | None = None) -> int:
    image = drawing(320, 200) if source is None else read_picture(source)
    print(f"picture of {image.shape[1]} x {image.shape[0]}")
    results = {name: solve(image, np.array(weights, np.int32)) for name, weights in FILTERS.items()}
    for name, filtered in results.items():
        print(f"{name:<8} mean {filtered.mean():6.2f}   blake3 {blake3(filtered.tobytes()).hexdigest()[:32]}")
    if target is not None:
        write_picture(target, results["sharpen"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:3]))
