"""Spheres over a checkered floor, with shadows and mirror images; one invocation for each pixel."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import vyre
from vyre import D2, In, Out, dot, f32, floor, gid, normalize, sqrt, u32, vec3

FAR = 1e9
LIGHT = vec3(0.48, 0.8, -0.36)
"""The way to it; of length 1."""


class Sphere(NamedTuple):
    centre: vec3
    radius: f32
    grey: f32


@vyre.device
def nearest(spheres: In[Sphere], start: vec3, way: vec3) -> tuple[u32, f32]:
    """Which sphere a ray meets first, and how far away; behind the last one if there is none."""
    found, near = len(spheres), FAR
    for k in range(len(spheres)):
        to = spheres[k].centre - start
        along = dot(to, way)
        inside = spheres[k].radius * spheres[k].radius - (dot(to, to) - along * along)
        if inside > 0.0 and 0.001 < along - sqrt(inside) < near:
            found, near = k, along - sqrt(inside)
    return found, near


@vyre.kernel(workgroup=(16, 16))
def render(spheres: In[Sphere], out: Out[f32, D2]) -> None:
    h, w = out.shape
    i, j = gid.y, gid.x
    if i < h and j < w:
        start = vec3(0.13, 1.0, -3.07)
        way = normalize(vec3((f32(j) + 0.5) / f32(w) - 0.5, 0.5 - (f32(i) + 0.5) / f32(h), 1.0))
        seen, share = 0.0, 1.0
        for _ in range(3):
            k, near = nearest(spheres, start, way)
            if k == len(spheres) and way.y >= 0.0:
                seen += share * (0.3 + 0.7 * way.y)
                break
            if k == len(spheres):
                start -= way * (start.y / way.y)
                normal = vec3(0.0, 1.0, 0.0)
                grey = 0.9 if (floor(start.x) + floor(start.z)) % 2.0 == 0.0 else 0.2
            else:
                start += way * near
                normal = (start - spheres[k].centre) / spheres[k].radius
                grey = spheres[k].grey
            behind, _ = nearest(spheres, start + normal * 0.001, LIGHT)
            lit = max(dot(normal, LIGHT), 0.0) if behind == len(spheres) else 0.0
            seen += 0.7 * share * grey * (0.2 + 0.8 * lit)
            share *= 0.3
            way -= normal * (2.0 * dot(way, normal))
            start += normal * 0.001
        out[i, j] = seen


def solve(spheres: NDArray[np.float32], shape: tuple[int, int], backend: str | None = None) -> NDArray[np.float32]:
    """A picture of spheres in rows: centre, radius, grey."""
    found: NDArray[np.float32] = (render if backend is None else render.on(backend))(spheres, sizes={"out": shape})
    return found


def sample() -> tuple[NDArray[np.float32], tuple[int, int]]:
    spheres = [(-1.0, 0.6, 1.0, 0.6, 0.9), (0.5, 0.4, 0.2, 0.4, 0.5), (1.1, 1.0, 2.5, 1.0, 0.7)]
    return np.array(spheres, np.float32), (12, 18)
