"""All shortest paths of a directed graph, by the algorithm of Floyd and Warshall.

Pass k lets every path go through vertex k, where that is shorter. One call makes all passes: the kernel keeps the
number of the pass in a word of memory, and the call repeats it. Row k and column k are what everybody reads in pass k;
as no path becomes shorter by visiting its own end, nobody writes them, and the distances can change in place.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import InOut, gid, grid_sync, saturating_add, u32

Words = NDArray[np.uint32]
NEVER = 0xFFFFFFFF
"""No edge, no path; no sum of weights may reach it."""


@vyre.kernel(workgroup=(16, 16))
def through(vertices: u32, distance: InOut[u32], follow: InOut[u32], current: InOut[u32]) -> None:
    """One pass. The path from i to j is distance[i, j] long and goes to follow[i, j] first."""
    k = current[0]
    i = gid.y
    j = gid.x
    if k < vertices and i < vertices and j < vertices:
        detour = saturating_add(distance[i * vertices + k], distance[k * vertices + j])
        if detour < distance[i * vertices + j]:
            distance[i * vertices + j] = detour
            follow[i * vertices + j] = follow[i * vertices + k]
    grid_sync()
    if i == 0 and j == 0:
        current[0] += 1


def solve(weights: Words, backend: str | None = None) -> tuple[Words, Words]:
    """Distances, and the vertex after i on the way to j. weights[i, j] is that of the edge from i to j, or NEVER."""
    vertices = len(weights)
    distance = weights.copy()
    np.fill_diagonal(distance, 0)
    follow = np.where(distance == NEVER, np.uint32(NEVER), np.arange(vertices, dtype=np.uint32))
    call = through if backend is None else through.on(backend)
    passes = vyre.DispatchConfig(fixpoint_iterations=max(vertices, 1))
    call(vertices, distance, follow, np.zeros(1, np.uint32), domain=(vertices, vertices), config=passes)
    return distance, follow


def path(follow: Words, start: int, end: int) -> list[int]:
    """The vertices from `start` to `end`; none where there is no way."""
    if follow[start, end] == NEVER:
        return []
    visited = [start]
    while visited[-1] != end:
        visited.append(int(follow[visited[-1], end]))
    return visited


def random_graph(vertices: int, density: float, seed: int) -> Words:
    """Weights from 1 to 999; every edge is there with the probability `density`."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 1000, (vertices, vertices), dtype=np.uint32)
    weights[rng.random((vertices, vertices)) >= density] = NEVER
    return weights


def main() -> int:
    vertices = 96
    distance, follow = solve(random_graph(vertices, 0.05, seed=2))
    reached = distance != NEVER
    start, end = divmod(int(np.where(reached, distance, 0).argmax()), vertices)
    print(f"{vertices} vertices: {np.count_nonzero(reached)} of {vertices * vertices} pairs are connected")
    print(f"the farthest, {distance[start, end]}: {' '.join(map(str, path(follow, start, end)))}")
    print(f"blake3 {blake3(distance.tobytes() + follow.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
