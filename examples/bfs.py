"""Breadth-first search: how far every vertex is from a source, and over which neighbour.

Each pass moves the frontier by one step: every vertex looks around, and after a grid-wide barrier those that saw the
frontier join it. The call repeats the kernel until a pass changes nothing, which is when the frontier is empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, gid, grid_sync, u32

Words = NDArray[np.uint32]
UNSEEN = 0xFFFFFFFF


@vyre.kernel(workgroup=64)
def advance(first: In[u32], neighbours: In[u32], distance: InOut[u32], parent: InOut[u32], via: InOut[u32]) -> None:
    """One step. The neighbours of vertex v are neighbours[first[v]] up to neighbours[first[v + 1]]."""
    v = gid.x
    if v < len(distance):
        found = u32(UNSEEN)
        if distance[v] == UNSEEN:
            for k in range(first[v], first[v + 1]):
                if distance[neighbours[k]] != UNSEEN:
                    found = min(found, neighbours[k])
        via[v] = found
    grid_sync()
    if v < len(distance) and via[v] != UNSEEN:
        parent[v] = via[v]
        distance[v] = distance[via[v]] + 1  # which nobody writes in this pass: it was seen before


def adjacency(vertices: int, edges: NDArray[np.int64]) -> tuple[Words, Words]:
    """`first` and `neighbours` of an undirected graph, from its edges in rows of two."""
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    first = np.searchsorted(both[:, 0], np.arange(vertices + 1))
    return first.astype(np.uint32), np.ascontiguousarray(both[:, 1], np.uint32)


def search(vertices: int, edges: NDArray[np.int64], source: int, backend: str | None = None) -> tuple[Words, Words]:
    """Distance and parent of each vertex, UNSEEN where the source is not connected to it. The source has no parent."""
    first, neighbours = adjacency(vertices, edges)
    distance = np.full(vertices, UNSEEN, np.uint32)
    distance[source] = 0
    parent, via = np.full_like(distance, UNSEEN), np.zeros_like(distance)
    call = advance if backend is None else advance.on(backend)
    call(first, neighbours, distance, parent, via, config=vyre.DispatchConfig(fixpoint_iterations=vertices))
    return distance, parent


def main() -> int:
    rng = np.random.default_rng(5)
    vertices = 600
    edges = rng.integers(0, vertices, (900, 2))
    distance, _ = search(vertices, edges, source=0)
    seen = distance[distance != UNSEEN]
    print(f"{vertices} vertices, {len(edges)} edges: {len(seen)} connected to vertex 0, the farthest {seen.max()} away")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
