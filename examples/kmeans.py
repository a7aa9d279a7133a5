"""Groups points around centres (Lloyd): each point joins the nearest centre, each centre moves to its points' mean.

Centres gather their points by atomic additions, in whatever order those come. A sum of floats would depend on it; so
coordinates are added in fixed point, as integers, and every machine finds the same centres to the last bit. The call
repeats the kernel until nothing changes.
"""

from __future__ import annotations

import math

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, atomic_add, f32, gid, grid_sync, i32, u32

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]


@vyre.kernel(workgroup=64)
def step(
    points: In[f32],
    axes: u32,
    scale: f32,
    centres: InOut[f32],
    group: InOut[u32],
    sums: InOut[i32],
    members: InOut[u32],
) -> None:
    """One pass. `sums` and `members` are zero before and after it."""
    i = gid.x
    if i < len(group):
        nearest = u32(0)
        least = 0.0
        for c in range(len(members)):
            square = 0.0
            for a in range(axes):
                apart = points[i * axes + a] - centres[c * axes + a]
                square += apart * apart
            if c == 0 or square < least:
                nearest = c
                least = square
        group[i] = nearest
        atomic_add(members, nearest, 1)
        for a in range(axes):
            atomic_add(sums, nearest * axes + a, i32(vyre.round(points[i * axes + a] * scale)))
    grid_sync()
    if i < len(members):
        if members[i] > 0:  # a centre without points stays where it is
            for a in range(axes):
                centres[i * axes + a] = f32(sums[i * axes + a]) / f32(members[i]) / scale
                sums[i * axes + a] = 0
        members[i] = 0


def fixed_point(points: Floats) -> float:
    """A power of two; no sum of all points, multiplied by it and rounded, leaves an i32."""
    count, largest = max(len(points), 1), float(np.abs(points).max(initial=0)) or 1.0
    _, exponent = math.frexp((2**31 - count) / (count * largest))
    return math.ldexp(1.0, min(exponent - 1, 100))


def solve(points: Floats, centres: Floats, passes: int = 100, backend: str | None = None) -> tuple[Floats, Words]:
    """The centres, moved at most `passes` times, and the number of each point's centre. Both have points in rows."""
    moved = centres.copy()
    group = np.zeros(len(points), np.uint32)
    sums, members = np.zeros(centres.shape, np.int32), np.zeros(len(centres), np.uint32)
    call = step if backend is None else step.on(backend)
    config = vyre.DispatchConfig(fixpoint_iterations=passes)
    everyone = max(len(points), len(centres))
    call(points, points.shape[1], fixed_point(points), moved, group, sums, members, domain=everyone, config=config)
    return moved, group


def clouds(count: int, centres: int, axes: int, seed: int) -> Floats:
    """Points in rows, scattered around as many places as there shall be centres."""
    rng = np.random.default_rng(seed)
    places = rng.random((centres, axes), np.float32) * np.float32(10)
    noise = rng.standard_normal((count, axes), np.float32) * np.float32(0.4)
    return places[rng.integers(0, centres, count)] + noise


def far_apart(points: Floats, count: int) -> Floats:
    """Centres to start from: the first point, and then always the one that is farthest from those taken."""
    taken = [0]
    while len(taken) < count:
        apart = points[:, None] - points[taken]
        taken.append(int((apart * apart).sum(axis=-1).min(axis=1).argmax()))
    return points[taken]


def main() -> int:
    points = clouds(4000, centres=6, axes=2, seed=10)
    centres, group = solve(points, far_apart(points, 6))
    sizes = np.bincount(group, minlength=len(centres))
    print(f"{len(points)} points around {len(centres)} centres")
    for centre, size in zip(centres, sizes, strict=True):
        print(f"  {size:5} at ({', '.join(f'{x:.3f}' for x in centre)})")
    print(f"blake3 {blake3(centres.tobytes() + group.tobytes()).hexdigest()[:32]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
