"""Bodies that attract each other: how their velocities change in a step, each by the pull of all others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, dot, f32, gid, sqrt, vec3

Floats = NDArray[np.float32]
SOFTENING = 0.0025


class Body(NamedTuple):
    position: vec3
    mass: f32


@vyre.kernel
def kick(bodies: In[Body], dt: f32, velocity: InOut[vec3]) -> None:
    i = gid.x
    if i < len(bodies):
        pull = vec3(0.0)
        for j in range(len(bodies)):
            way = bodies[j].position - bodies[i].position
            square = dot(way, way) + SOFTENING
            pull += way * (bodies[j].mass / (square * sqrt(square)))
        velocity[i] += pull * dt


def solve(bodies: Floats, dt: float, velocity: Floats, backend: str | None = None) -> Floats:
    """New velocities. Bodies are rows: position, mass."""
    found: Floats = (kick if backend is None else kick.on(backend))(bodies, dt, velocity.copy())
    return found


def sample() -> tuple[Floats, float, Floats]:
    bodies = np.random.default_rng(4).uniform(-1, 1, (19, 4)).astype(np.float32)
    return np.abs(bodies), 1 / 128, bodies[:, :3].copy()
