"""Forces between atoms in a periodic box, by Lennard and Jones: strong near by, nothing beyond a cutoff."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import In, Out, dot, f32, gid, round, vec3

Floats = NDArray[np.float32]


@vyre.kernel
def forces(position: In[vec3], box: f32, cutoff: f32, out: Out[vec3]) -> None:
    i = gid.x
    if i < len(position):
        force = vec3(0.0)
        for j in range(len(position)):
            way = position[i] - position[j]
            way -= box * vec3(round(way.x / box), round(way.y / box), round(way.z / box))
            square = dot(way, way)
            if j != i and square < cutoff * cutoff:
                inverse = 1.0 / square
                sixth = inverse * inverse * inverse
                force += way * (24.0 * inverse * sixth * (2.0 * sixth - 1.0))
        out[i] = force


def solve(position: Floats, box: float, cutoff: float, backend: str | None = None) -> Floats:
    found: Floats = (forces if backend is None else forces.on(backend))(position, box, cutoff)
    return found


def sample() -> tuple[Floats, float, float]:
    """Atoms near the points of a lattice."""
    lattice = np.argwhere(np.ones((3, 3, 3))) * 1.25
    return (lattice + np.random.default_rng(5).uniform(-0.1, 0.1, lattice.shape)).astype(np.float32), 3.75, 1.8
