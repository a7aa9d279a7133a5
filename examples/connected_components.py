"""The connected components of a graph, from a list of its edges: each vertex gets the smallest vertex it can reach.

Labels point to smaller vertices and form trees. A pass hooks trees together along every edge at once, and then shortens
the paths to their roots; paths halve, so few passes are needed even for one long chain. A pass reads the labels of the
pass before and lowers new ones by `atomic_min`, whose order changes nothing: every pass has one possible result.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, Out, atomic_min, gid, u32

Words = NDArray[np.uint32]
HOPS = 8


@vyre.kernel(workgroup=64)
def hook(ends: In[u32], others: In[u32], before: In[u32], after: InOut[u32]) -> None:
    """The ends of an edge, and the vertices that their labels name, take the smaller of the two labels."""
    if gid.x < len(ends):
        a, b = ends[gid.x], others[gid.x]
        low = min(before[a], before[b])
        atomic_min(after, a, low)
        atomic_min(after, b, low)
        atomic_min(after, before[a], low)
        atomic_min(after, before[b], low)


@vyre.kernel(workgroup=64)
def shorten(labels: In[u32], shorter: Out[u32]) -> None:
    """Every label is replaced by the one that a few more hops lead to."""
    if gid.x < len(shorter):
        label = labels[gid.x]
        for _ in range(HOPS):
            label = labels[label]
        shorter[gid.x] = label


def solve(vertices: int, edges: NDArray[np.integer], backend: str | None = None) -> Words:
    """For each vertex the smallest one that it is connected to; `edges` has rows of two."""
    if len(edges) and not 0 <= edges.min() <= edges.max() < vertices:
        raise ValueError(f"an edge leads beyond the {vertices} vertices; number them from 0")
    ends, others = (np.ascontiguousarray(edges[:, k], np.uint32) for k in (0, 1))
    hook_all, shorten_all = (k if backend is None else k.on(backend) for k in (hook, shorten))
    labels: Words = np.arange(vertices, dtype=np.uint32)
    while vertices:
        hooked: Words = hook_all(ends, others, labels, labels.copy(), domain=len(ends))
        after: Words = shorten_all(hooked)
        if np.array_equal(after, labels):
            break
        labels = after
    return labels


def main() -> int:
    rng = np.random.default_rng(11)
    vertices = 20_000
    edges = rng.integers(0, vertices, (vertices * 6 // 10, 2))
    labels = solve(vertices, edges)
    _, sizes = np.unique(labels, return_counts=True)
    print(f"{vertices} vertices, {len(edges)} edges: {len(sizes)} components, the largest of {sizes.max()} vertices")
    print(f"blake3 {blake3(labels.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
