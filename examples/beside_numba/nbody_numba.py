"""`nbody.py` as numba has it."""

from math import sqrt

from numba import cuda

SOFTENING = 0.0025


@cuda.jit
def kick(bodies, dt, velocity):
    i = cuda.grid(1)
    if i < len(bodies):
        px, py, pz = 0.0, 0.0, 0.0
        for j in range(len(bodies)):
            dx = bodies[j, 0] - bodies[i, 0]
            dy = bodies[j, 1] - bodies[i, 1]
            dz = bodies[j, 2] - bodies[i, 2]
            square = dx * dx + dy * dy + dz * dz + SOFTENING
            pull = bodies[j, 3] / (square * sqrt(square))
            px += dx * pull
            py += dy * pull
            pz += dz * pull
        velocity[i, 0] += px * dt
        velocity[i, 1] += py * dt
        velocity[i, 2] += pz * dt


def solve(bodies, dt, velocity):
    velocity = velocity.copy()
    kick[(len(bodies) + 63) // 64, 64](bodies, dt, velocity)
    return velocity
