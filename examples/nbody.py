"""Bodies that attract each other, every one all others, in steps of fixed length.

Leapfrog: velocities are kicked by half a step, then positions and velocities move past each other by whole steps, and
half a kick ends it. Each sum runs over the bodies in their order and every operation rounds once, so that the orbits,
chaotic as they are, are the same bits on every machine. The energy, which should stay, tells how good the steps are.
"""

from __future__ import annotations

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, f32, gid, sqrt

Floats = NDArray[np.float32]
SOFTENING = 0.0025
"""Added to squared distances, so that close encounters do not need shorter steps."""


@vyre.kernel(workgroup=64)
def kick(mass: In[f32], position: In[f32], dt: f32, velocity: InOut[f32]) -> None:
    """Velocities change by the pull of all bodies. Coordinates lie in threes."""
    i = gid.x
    if i < len(mass):
        px, py, pz = position[3 * i], position[3 * i + 1], position[3 * i + 2]
        ax, ay, az = 0.0, 0.0, 0.0
        for j in range(len(mass)):
            dx, dy, dz = position[3 * j] - px, position[3 * j + 1] - py, position[3 * j + 2] - pz
            square = dx * dx + dy * dy + dz * dz + SOFTENING
            pull = mass[j] / (square * sqrt(square))
            ax += pull * dx
            ay += pull * dy
            az += pull * dz
        velocity[3 * i] += ax * dt
        velocity[3 * i + 1] += ay * dt
        velocity[3 * i + 2] += az * dt


@vyre.kernel(workgroup=64)
def drift(velocity: In[f32], dt: f32, position: InOut[f32]) -> None:
    """Positions change by the velocities; one invocation for each coordinate."""
    if gid.x < len(position):
        position[gid.x] += velocity[gid.x] * dt


def solve(
    mass: Floats, position: Floats, velocity: Floats, dt: float, steps: int, backend: str | None = None
) -> tuple[Floats, Floats]:
    """Positions and velocities, in rows of three, after so many steps. The gravitational constant is 1."""
    kicked, drifted = (k if backend is None else k.on(backend) for k in (kick, drift))
    position, velocity = position.copy(), velocity.copy()
    for step in range(steps):
        kicked(mass, position, dt if step else dt / 2, velocity, domain=len(mass))
        drifted(velocity, dt, position)
    if steps:
        kicked(mass, position, dt / 2, velocity, domain=len(mass))
    return position, velocity


def energy(mass: Floats, position: Floats, velocity: Floats) -> float:
    """Of motion and of attraction, in binary64."""
    m, p, v = (a.astype(np.float64) for a in (mass, position, velocity))
    a, b = np.triu_indices(len(m), 1)
    apart = np.sqrt(((p[a] - p[b]) ** 2).sum(axis=1) + SOFTENING)
    return float((m * (v**2).sum(axis=1)).sum() / 2 - (m[a] * m[b] / apart).sum())


def ball(bodies: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Masses, positions and velocities of a ball that turns slowly and falls together."""
    rng = np.random.default_rng(seed)
    position = rng.uniform(-1, 1, (bodies, 3))
    position /= np.maximum(1, np.sqrt((position**2).sum(axis=1, keepdims=True)))
    velocity = np.cross([0, 0, 0.5], position)
    mass = rng.uniform(0.5, 1.5, bodies) / bodies
    return mass.astype(np.float32), position.astype(np.float32), velocity.astype(np.float32)


def main() -> int:
    mass, position, velocity = ball(256, seed=4)
    steps, dt = 300, 1 / 128
    before = energy(mass, position, velocity)
    position, velocity = solve(mass, position, velocity, dt, steps)
    after = energy(mass, position, velocity)
    print(f"{len(mass)} bodies, {steps} steps: energy {before:.6f}, drift {abs(after / before - 1):.1e}")
    print(f"blake3 {blake3(position.tobytes() + velocity.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
