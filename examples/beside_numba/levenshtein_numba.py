"""`levenshtein.py` as numba has it."""

import numpy as np
from numba import cuda, uint32

LONGEST = 31


@cuda.jit
def levenshtein(word, words, lengths, out):
    i = cuda.grid(1)
    if i < len(words):
        row = cuda.local.array(LONGEST + 1, uint32)
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


def solve(word, words, lengths):
    out = np.zeros(len(words), np.uint32)
    levenshtein[(len(words) + 63) // 64, 64](word, words, lengths, out)
    return out
