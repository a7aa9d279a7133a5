"""Finds every occurrence of many words in a text, overlapping ones too, looking for all words at once.

The words become one automaton (Aho and Corasick): its state after a byte is the longest end of the text so far with
which a word begins. Every invocation reads a piece of the text, and a little before it, as a word may begin there. They
first count what they find and then, knowing how much the pieces before have found, write it down in its place. So
the list comes out sorted by where words end, and is the same on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, Out, atomic_add, gid, u8, u32

Words = NDArray[np.uint32]
PIECE = 128
"""Bytes of text per invocation."""
NONE = 0xFFFFFFFF


class Automaton(NamedTuple):
    following: Words
    """[state, byte] -> next state; the start is state 0."""
    ending: Words
    """[state, n] -> the n-th word that ends in a state, from long to short, and NONE where there are no more."""
    lengths: Words
    """Of the words."""


@vyre.kernel(workgroup=64)
def count(
    text: In[u8],
    following: In[u32],
    ending: In[u32],
    most: u32,
    before: u32,
    times: InOut[u32],
    found: Out[u32],
) -> None:
    """How often each word occurs, and how many occurrences end in each piece."""
    state = u32(0)
    here = u32(0)
    for k in range(PIECE + before):
        place = gid.x * PIECE + k - before  # in front of the text this wraps, and so is not below its length either
        if place < len(text):
            state = following[state * 256 + u32(text[place])]
            if k >= before:
                for n in range(most):
                    word = ending[state * most + n]
                    if word != NONE:
                        atomic_add(times, word, 1)
                        here += 1
    found[gid.x] = here


@vyre.kernel(workgroup=64)
def locate(
    text: In[u8],
    following: In[u32],
    ending: In[u32],
    lengths: In[u32],
    most: u32,
    before: u32,
    first: In[u32],
    starts: Out[u32],
    words: Out[u32],
) -> None:
    """Writes the occurrences of piece i down from first[i] on."""
    state = u32(0)
    to = first[gid.x]
    for k in range(PIECE + before):
        place = gid.x * PIECE + k - before
        if place < len(text):
            state = following[state * 256 + u32(text[place])]
            if k >= before:
                for n in range(most):
                    word = ending[state * most + n]
                    if word != NONE:
                        starts[to] = place + 1 - lengths[word]
                        words[to] = word
                        to += 1


def automaton(words: Sequence[bytes]) -> Automaton:
    """Of words that are not empty."""
    if not words or not all(words):
        raise ValueError("there is at least one word, and no word is empty")
    children: list[dict[int, int]] = [{}]
    ends: list[list[int]] = [[]]
    for number, word in enumerate(words):
        state = 0
        for byte in word:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                ends.append([])
            state = children[state][byte]
        ends[state].append(number)
    following = np.zeros((len(children), 256), np.uint32)
    fallback = [0] * len(children)  # the state of the longest proper end of what led to a state
    queue = deque([0])
    while queue:  # from short to long, so that the state to fall back to is complete
        state = queue.popleft()
        following[state] = following[fallback[state]]
        for byte, child in children[state].items():
            fallback[child] = int(following[state, byte])
            following[state, byte] = child
            queue.append(child)
        if state:
            ends[state] += ends[fallback[state]]
    ending = np.full((len(ends), max(map(len, ends))), NONE, np.uint32)
    for state, numbers in enumerate(ends):
        ending[state, : len(numbers)] = numbers
    return Automaton(following, ending, np.array([len(word) for word in words], np.uint32))


def solve(text: bytes, words: Sequence[bytes], backend: str | None = None) -> tuple[Words, Words]:
    """How often each word occurs, and rows of (start, number of the word), sorted by end and then by start."""
    machine = automaton(words)
    counting, locating = (count, locate) if backend is None else (count.on(backend), locate.on(backend))
    data = np.frombuffer(text, np.uint8)
    pieces = max(1, -(-len(data) // PIECE))
    tables = (machine.following, machine.ending)
    most, before = machine.ending.shape[1], int(machine.lengths.max()) - 1
    times = np.zeros(len(words), np.uint32)
    _, found = counting(data, *tables, most, before, times, sizes={"found": pieces}, domain=pieces)
    first = np.cumsum(found, dtype=np.uint32) - found
    sizes = {"starts": int(found.sum()), "words": int(found.sum())}
    starts, numbers = locating(data, *tables, machine.lengths, most, before, first, sizes=sizes, domain=pieces)
    return times, np.stack([starts, numbers], axis=1)


def main() -> int:
    words = [b"he", b"she", b"his", b"hers", b"is", b"i", b"shells"]
    rng = np.random.default_rng(6)
    text = b"".join(rng.choice([*words, b" ", b"s", b"hi "], 20_000).tolist())
    times, matches = solve(text, words)
    print(f"{len(text)} bytes: {len(matches)} occurrences")
    print(", ".join(f"{word.decode()} {n}" for word, n in zip(words, times, strict=True)))
    print(f"blake3 {blake3(times.tobytes() + matches.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
