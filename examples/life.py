"""The Game of Life on a torus, 32 cells in each word.

The kernel adds up the neighbours of 32 cells at a time by logic on whole words: a word holds one binary digit of 32
counts. A call computes one generation from one array into another.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, Out, device, gid, u32


@device
def majority(a: u32, b: u32, c: u32) -> u32:
    return (a & b) | (c & (a ^ b))


@device
def left_of(cells: In[u32], row: u32, x: u32, words: u32) -> u32:
    """The left neighbours of the cells in a word: bit 0 is the leftmost cell."""
    return (cells[row + x] << 1) | (cells[row + (x + words - 1) % words] >> 31)


@device
def right_of(cells: In[u32], row: u32, x: u32, words: u32) -> u32:
    return (cells[row + x] >> 1) | (cells[row + (x + 1) % words] << 31)


@device
def ones(cells: In[u32], row: u32, x: u32, words: u32) -> u32:
    """A cell and its two neighbours in the row are ones + 2 * twos."""
    return left_of(cells, row, x, words) ^ cells[row + x] ^ right_of(cells, row, x, words)


@device
def twos(cells: In[u32], row: u32, x: u32, words: u32) -> u32:
    return majority(left_of(cells, row, x, words), cells[row + x], right_of(cells, row, x, words))


@vyre.kernel(workgroup=(8, 8))
def generation(cells: In[u32], words: u32, height: u32, after: Out[u32]) -> None:
    """One generation of a torus of `words` words in a row."""
    x, y = gid.x, gid.y
    if x < words and y < height:
        above, row, below = (y + height - 1) % height * words, y * words, (y + 1) % height * words
        one_a, two_a = ones(cells, above, x, words), twos(cells, above, x, words)
        one_b, two_b = ones(cells, row, x, words), twos(cells, row, x, words)
        one_c, two_c = ones(cells, below, x, words), twos(cells, below, x, words)
        # All nine make odd + 2 * (two_a + two_b + two_c + two_d).
        odd, two_d = one_a ^ one_b ^ one_c, majority(one_a, one_b, one_c)
        ab, cd = two_a ^ two_b, two_c ^ two_d
        both_ab, both_cd = two_a & two_b, two_c & two_d
        three = odd & (ab ^ cd) & ~(both_ab | both_cd)
        four = ~odd & ~(ab ^ cd) & ((ab & cd) ^ both_ab ^ both_cd)
        after[row + x] = three | (cells[row + x] & four)  # the cell itself is one of the nine


def solve(cells: NDArray[np.uint8], generations: int, backend: str | None = None) -> NDArray[np.uint8]:
    """The cells, 0 or 1, after so many generations. The width is a multiple of 32."""
    height, width = cells.shape
    if width % 32:
        raise ValueError(f"a row of {width} cells does not fill its words; use a multiple of 32")
    call = generation if backend is None else generation.on(backend)
    now = np.packbits(cells, axis=1, bitorder="little").view("<u4").astype(np.uint32)
    for _ in range(generations):
        now = call(now, width // 32, height)
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
