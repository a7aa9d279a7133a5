"""`raytracer.py` as numba has it: vectors are tuples, with functions for what is done to them."""

from math import floor, sqrt

import numpy as np
from numba import cuda

FAR = 1e9
LIGHT = (0.48, 0.8, -0.36)


@cuda.jit(device=True)
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@cuda.jit(device=True)
def plus(a, b, s):
    return a[0] + b[0] * s, a[1] + b[1] * s, a[2] + b[2] * s


@cuda.jit(device=True)
def nearest(spheres, start, way):
    """Which sphere a ray meets first, and how far away; behind the last one if there is none."""
    found, near = len(spheres), FAR
    for k in range(len(spheres)):
        to = plus((spheres[k, 0], spheres[k, 1], spheres[k, 2]), start, -1.0)
        along = dot(to, way)
        inside = spheres[k, 3] * spheres[k, 3] - (dot(to, to) - along * along)
        if inside > 0.0 and 0.001 < along - sqrt(inside) < near:
            found, near = k, along - sqrt(inside)
    return found, near


@cuda.jit
def render(spheres, out):
    h, w = out.shape
    j, i = cuda.grid(2)
    if i < h and j < w:
        start = (0.13, 1.0, -3.07)
        way = ((j + 0.5) / w - 0.5, 0.5 - (i + 0.5) / h, 1.0)
        way = plus((0.0, 0.0, 0.0), way, 1.0 / sqrt(dot(way, way)))
        seen, share = 0.0, 1.0
        for _ in range(3):
            k, near = nearest(spheres, start, way)
            if k == len(spheres) and way[1] >= 0.0:
                seen += share * (0.3 + 0.7 * way[1])
                break
            if k == len(spheres):
                start = plus(start, way, -start[1] / way[1])
                normal = (0.0, 1.0, 0.0)
                grey = 0.9 if (floor(start[0]) + floor(start[2])) % 2 == 0 else 0.2
            else:
                start = plus(start, way, near)
                normal = plus(start, (spheres[k, 0], spheres[k, 1], spheres[k, 2]), -1.0)
                normal = plus((0.0, 0.0, 0.0), normal, 1.0 / spheres[k, 3])
                grey = spheres[k, 4]
            behind, _ = nearest(spheres, plus(start, normal, 0.001), LIGHT)
            lit = max(dot(normal, LIGHT), 0.0) if behind == len(spheres) else 0.0
            seen += 0.7 * share * grey * (0.2 + 0.8 * lit)
            share *= 0.3
            way = plus(way, normal, -2.0 * dot(way, normal))
            start = plus(start, normal, 0.001)
        out[i, j] = seen


def solve(spheres, shape):
    out = np.zeros(shape, np.float32)
    h, w = shape
    render[((w + 15) // 16, (h + 15) // 16), (16, 16)](spheres, out)
    return out
