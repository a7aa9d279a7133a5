"""How many letters have to be put in, taken out or changed to make a word of each word of a list.

One invocation for each word of the list; it keeps one row of the table, of words up to 31 letters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, gid, local, u8, u32

LONGEST = 31


@vyre.kernel
def levenshtein(word: In[u8], words: In[u8, D2], lengths: In[u32], out: Out[u32]) -> None:
    i = gid.x
    if i < len(words):
        row = local(u32, LONGEST + 1)
        length = min(lengths[i], LONGEST)
        for k in range(length + 1):
            row[k] = k
        for a in range(len(word)):
            corner = row[0]
            row[0] = a + 1
            for b in range(length):
                change = corner if word[a] == words[i, b] else corner + 1
                corner = row[b + 1]
                row[b + 1] = min(change, min(corner, row[b]) + 1)
        out[i] = row[length]


def solve(
    word: NDArray[np.uint8], words: NDArray[np.uint8], lengths: NDArray[np.uint32], backend: str | None = None
) -> NDArray[np.uint32]:
    call = levenshtein if backend is None else levenshtein.on(backend)
    found: NDArray[np.uint32] = call(word, words, lengths, sizes={"out": len(words)})
    return found


def packed(words: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Words as rows of letters, with zeros behind them, and their lengths."""
    lengths = np.array([len(word) for word in words], np.uint32)
    if max(lengths) > LONGEST:
        raise ValueError(f"words of the list have at most {LONGEST} letters")
    return np.array(words, f"S{LONGEST}").view(np.uint8).reshape(len(words), LONGEST), lengths


def sample() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint32]]:
    return np.array([*b"kitten"], np.uint8), *packed([b"sitting", b"kitten", b"", b"mitt", b"a kitten in a kitchen"])
