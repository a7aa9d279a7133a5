"""The connected parts of a graph: every vertex takes the smallest label around it, until no label changes.

One kernel call runs to the end. Its grid-wide barrier separates reading labels from writing them, and the call repeats
the whole kernel, at most as often as there are vertices, and stops once a pass changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, gid, grid_sync, u32

Words = NDArray[np.uint32]


@vyre.kernel(workgroup=64)
def spread(first: In[u32], neighbours: In[u32], labels: InOut[u32], smallest: InOut[u32]) -> None:
    """One pass. The neighbours of vertex v are neighbours[first[v]] up to neighbours[first[v + 1]]."""
    v = gid.x
    if v < len(labels):
        found = labels[v]
        for k in range(first[v], first[v + 1]):
            found = min(found, labels[neighbours[k]])
        smallest[v] = found
    grid_sync()
    if v < len(labels):
        labels[v] = smallest[v]


def adjacency(vertices: int, edges: NDArray[np.int64]) -> tuple[Words, Words]:
    """`first` and `neighbours` of an undirected graph, from its edges in rows of two."""
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    first = np.searchsorted(both[:, 0], np.arange(vertices + 1))
    return first.astype(np.uint32), np.ascontiguousarray(both[:, 1], np.uint32)


def connected_parts(vertices: int, edges: NDArray[np.int64], backend: str | None = None) -> Words:
    """For each vertex, the smallest vertex that it is connected to."""
    first, neighbours = adjacency(vertices, edges)
    labels = np.arange(vertices, dtype=np.uint32)
    call = spread if backend is None else spread.on(backend)
    call(first, neighbours, labels, np.zeros_like(labels), config=vyre.DispatchConfig(fixpoint_iterations=vertices))
    return labels


def main() -> int:
    rng = np.random.default_rng(11)
    vertices = 600
    edges = rng.integers(0, vertices, (450, 2))
    labels = connected_parts(vertices, edges)
    parts, sizes = np.unique(labels, return_counts=True)
    print(f"{vertices} vertices, {len(edges)} edges: {len(parts)} parts, the largest of {sizes.max()} vertices")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
