"""What the demo computes: orbits of bodies that attract each other, an option priced on where each of them ends, a
picture of the way there, and a kernel with a race in it.

The kernels of the orbits and of the prices are those of nbody.py and black_scholes.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import nbody
import numpy as np
from black_scholes import market, price
from blake3 import blake3
from nbody import Floats, drift, kick
from numpy.typing import NDArray

import vyre
from vyre import In, InOut, Out, atomic_add, barrier, f32, gid, lid, shared, sqrt, u32

BODIES, STEPS, DT, SEED = 12, 2000, 1 / 64, 9
STRIKE, YEARS, RATE = 120.0, 1.0, 0.03


@vyre.kernel(workgroup=64)
def quote(position: In[f32], velocity: In[f32], spot: Out[f32], volatility: Out[f32]) -> None:
    """What is priced: its spot is how far a body is from the centre, its volatility how fast the body moves."""
    i = gid.x
    if i < len(spot):
        x, y, z = position[3 * i], position[3 * i + 1], position[3 * i + 2]
        vx, vy, vz = velocity[3 * i], velocity[3 * i + 1], velocity[3 * i + 2]
        spot[i] = 100.0 + 10.0 * sqrt(x * x + y * y + z * z)
        volatility[i] = min(0.1 + 0.1 * sqrt(vx * vx + vy * vy + vz * vz), 1.0)


@dataclass
class Answer:
    """All positions on the way, what the calls are worth at its end, and how long each call of a kernel took."""

    trail: Floats
    calls: Floats
    seconds: list[float] = field(default_factory=list)

    @property
    def blake3(self) -> str:
        return blake3(self.trail.tobytes() + self.calls.tobytes()).hexdigest()


def beginning() -> tuple[Floats, Floats, Floats]:
    """Masses, positions and velocities of bodies whose centre is at rest in the origin."""
    mass, position, velocity = nbody.ball(BODIES, seed=SEED)
    whole = math.fsum(mass)  # correctly rounded, so that all machines start alike
    for state in (position, velocity):
        state -= [math.fsum(mass.astype(float) * column) / whole for column in state.T]
    return mass, position, velocity


def compute(backend: str, steps: int, tick: Callable[[int], None] = lambda step: None) -> Answer:
    """The whole program on one backend: `steps` times a kick and a drift, then a quote, then a price."""
    kicked, drifted, quoted, priced = (kernel.on(backend) for kernel in (kick, drift, quote, price))
    mass, position, velocity = beginning()
    trail, seconds = np.empty((steps, BODIES, 3), np.float32), []
    for step in range(steps):
        start = time.perf_counter()
        kicked(mass, position, DT if step else DT / 2, velocity, domain=BODIES)
        seconds.append(time.perf_counter() - start)
        drifted(velocity, DT, position)
        trail[step] = position
        if step % 50 == 0:
            tick(step)
    kicked(mass, position, DT / 2, velocity, domain=BODIES)
    spot, volatility = quoted(position, velocity, sizes={"spot": BODIES, "volatility": BODIES}, domain=BODIES)
    calls, _ = priced(spot, np.full_like(spot, STRIKE), np.full_like(spot, YEARS), volatility, RATE)
    return Answer(trail, calls, seconds)


def price_many(backend: str, options: int, repeat: int) -> list[float]:
    """Seconds of calls that price so many options, after one that is not counted. Slow backends make fewer."""
    priced, arguments, seconds = price.on(backend), market(options, seed=6), []
    priced(*arguments, RATE)
    for _ in range(repeat):
        start = time.perf_counter()
        priced(*arguments, RATE)
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > 0.5:
            break
    return seconds


# ---- the picture ----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, ACROSS = 960, 600, 7.0
COLOURS = np.array(
    [
        (255, 107, 107), (255, 169, 77), (255, 224, 102), (169, 227, 75), (56, 217, 169), (59, 201, 219),
        (77, 171, 247), (116, 143, 252), (151, 117, 250), (218, 119, 242), (247, 131, 172), (222, 226, 230),
    ],
    np.uint32,
)  # fmt: skip


@vyre.kernel(workgroup=64)
def plot(trail: In[f32], colours: In[u32], across: f32, width: u32, height: u32, light: InOut[u32]) -> None:
    """A soft dot for each point of the trail, brighter the later it comes. Sums of integers have no order."""
    i = gid.x
    if 3 * i < len(trail):
        body = i % (len(colours) // 3)
        age = f32(i) / f32(len(trail) // 3)
        x = trail[3 * i] * f32(width) / across + f32(width) * 0.5
        y = trail[3 * i + 1] * f32(width) / across + f32(height) * 0.5
        if x > 3.0 and y > 3.0 and x < f32(width) - 3.0 and y < f32(height) - 3.0:
            for dy in range(5):
                for dx in range(5):
                    px, py = u32(x) + dx - 2, u32(y) + dy - 2
                    across_x, across_y = f32(px) + 0.5 - x, f32(py) + 0.5 - y
                    near = 1.0 - (across_x * across_x + across_y * across_y) / 3.0
                    if near > 0.0:
                        glow = near * near * (0.05 + 0.35 * age * age)
                        for c in range(3):
                            atomic_add(light, 3 * (py * width + px) + c, u32(glow * f32(colours[3 * body + c])))


def draw(trail: Floats, backend: str) -> NDArray[np.uint8]:
    """The orbits as rows of pixels, red, green and blue; the same pixels on every machine."""
    light = np.zeros((HEIGHT, WIDTH, 3), np.uint32)
    plot.on(backend)(trail, COLOURS, ACROSS, WIDTH, HEIGHT, light, domain=trail.size // 3)
    return np.minimum(light + np.array((13, 17, 28), np.uint32), 255).astype(np.uint8)


# ---- the race -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=8)
def turned(x: In[u32], out: Out[u32]) -> None:
    """Rotates by one, and forgets to wait for the neighbour."""
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    out[gid.x] = tile[(lid.x + 1) % 8]


@vyre.kernel(workgroup=8)
def turned_rightly(x: In[u32], out: Out[u32]) -> None:
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[(lid.x + 1) % 8]
