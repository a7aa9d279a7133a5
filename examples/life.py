"""The Game of Life on a torus, 32 cells in each word.

The kernel adds up the neighbours of 32 cells at a time by logic on whole words: a word holds one binary digit of 32
counts. A call computes one generation from one array into another.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, device, gid, u32


@device
def majority(a: u32, b: u32, c: u32) -> u32:
    return (a & b) | (c & (a ^ b))


@device
def left_of(cells: In[u32, D2], y: u32, x: u32) -> u32:
    """The left neighbours of the cells in a word: bit 0 is the leftmost cell."""
    words = cells.shape[1]
    return (cells[y, x] << 1) | (cells[y, (x + words - 1) % words] >> 31)


@device
def right_of(cells: In[u32, D2], y: u32, x: u32) -> u32:
    return (cells[y, x] >> 1) | (cells[y, (x + 1) % cells.shape[1]] << 31)


@device
def ones(cells: In[u32, D2], y: u32, x: u32) -> u32:
    """A cell and its two neighbours in the row are ones + 2 * twos."""
    return left_of(cells, y, x) ^ cells[y, x] ^ right_of(cells, y, x)


@device
def twos(cells: In[u32, D2], y: u32, x: u32) -> u32:
    return majority(left_of(cells, y, x), cells[y, x], right_of(cells, y, x))


@vyre.kernel(workgroup=(8, 8))
def generation(cells: In[u32, D2], after: Out[u32, D2]) -> None:
    """One generation of a torus, of which each row is some words."""
    x, y = gid.x, gid.y
    height, words = cells.shape
    if x < words and y < height:
        above, below = (y + height - 1) % height, (y + 1) % height
        one_a, two_a = ones(cells, above, x), twos(cells, above, x)
        one_b, two_b = ones(cells, y, x), twos(cells, y, x)
        one_c, two_c = ones(cells, below, x), twos(cells, below, x)
        # All nine make odd + 2 * (two_a + two_b + two_c + two_d).
        odd, two_d = one_a ^ one_b ^ one_c, majority(one_a, one_b, one_c)
        ab, cd = two_a ^ two_b, two_c ^ two_d
        both_ab, both_cd = two_a & two_b, two_c & two_d
        three = odd & (ab ^ cd) & ~(both_ab | both_cd)
        four = ~odd & ~(ab ^ cd) & ((ab & cd) ^ both_ab ^ both_cd)
        after[y, x] = three | (cells[y, x] & four)  # the cell itself is one of the nine


def solve(cells: NDArray[np.uint8], generations: int, backend: str | None = None) -> NDArray[np.uint8]:
    """The cells, 0 or 1, after so many generations. The width is a multiple of 32."""
    width = cells.shape[1]
    if width % 32:
        raise ValueError(f"a row of {width} cells does not fill its words; use a multiple of 32")
    call = generation if backend is None else generation.on(backend)
    now = np.packbits(cells, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    for _ in range(generations):
        now = call(now)
    return np.unpackbits(now.astype("<u4").view(np.uint8), axis=1, bitorder="little")


def main() -> int:
    rng = np.random.default_rng(7)
    cells = (rng.random((192, 256)) < 0.3).astype(np.uint8)
    after = solve(cells, 60)
    print(f"{cells.sum()} cells of 256 x 192 are alive, {after.sum()} after 60 generations")
    print(f"blake3 {blake3(after.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
