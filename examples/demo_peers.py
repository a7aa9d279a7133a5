"""The maths of the demo in other libraries, as one writes it there: whole arrays in NumPy, PyTorch and JAX, and loops
in Numba.

Each computes in binary32 with the formulas and constants of the kernels. What it does not say, and the libraries decide
for themselves, is in which order sums are added up, whether a product and a sum round together, and how exp and log
round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
from demo_program import DT, RATE, STRIKE, YEARS, Answer, beginning
from nbody import SOFTENING, Floats

Runner = Callable[[int], Answer]
"""Gives the answer after so many steps."""
Load = Callable[[], tuple[str, Runner] | None]
"""Imports a library: its version and where it runs, and what runs it; None where it has no such device."""


WHY = (
    "Nobody is wrong here. An array library adds up a row in the order that suits its vector unit, a compiler may "
    "round a product and a sum together, and each has its own exp and log, close to the exact value and not the same. "
    "Loops that are compiled as they are written keep their order and may agree until the price. Bodies that attract "
    "each other make a difference in the last bit grow until it reaches the first digit. A vyre program fixes the "
    "order, the rounding, exp and log, and gives up what a looser rule would gain in speed."
)


def peers() -> Iterator[tuple[str, Load]]:
    """What can be imported here, by name."""
    yield "numpy", lambda: (np.__version__, lambda steps: whole_arrays(np, np.asarray, np.asarray, steps))
    for name, load in (("numba", _numba), ("torch", _torch), ("torch", _torch_gpu), ("jax", _jax)):
        if find_spec(name):
            yield name, load


# ---- NumPy, PyTorch, JAX --------------------------------------------------------------------------------------------


def pull(xp: Any, mass: Any, position: Any) -> Any:
    """Accelerations: all differences at once, then a sum over each row."""
    x, y, z = position[:, 0], position[:, 1], position[:, 2]
    dx, dy, dz = x - x[:, None], y - y[:, None], z - z[:, None]
    square = dx * dx + dy * dy + dz * dz + SOFTENING
    strength = mass / (square * xp.sqrt(square))
    return xp.stack([(strength * dx).sum(1), (strength * dy).sum(1), (strength * dz).sum(1)], 1)


def kicked(xp: Any, mass: Any, position: Any, velocity: Any, dt: float) -> Any:
    return velocity + pull(xp, mass, position) * dt


def drifted(velocity: Any, position: Any, dt: float) -> Any:
    return position + velocity * dt


def worth(xp: Any, position: Any, velocity: Any) -> Any:
    """The calls on all bodies by the formula of Black and Scholes."""

    def length(v: Any) -> Any:
        return xp.sqrt(v[:, 0] * v[:, 0] + v[:, 1] * v[:, 1] + v[:, 2] * v[:, 2])

    def normal(d: Any) -> Any:
        k = 1.0 / (1.0 + 0.2316419 * abs(d))
        series = ((((1.330274429 * k - 1.821255978) * k + 1.781477937) * k - 0.356563782) * k + 0.319381530) * k
        tail = 0.3989422804 * xp.exp(-0.5 * d * d) * series
        return xp.where(d < 0.0, tail, 1.0 - tail)

    spot = 100.0 + 10.0 * length(position)
    volatility = (0.1 + 0.1 * length(velocity)).clip(max=1.0)
    spread = volatility * math.sqrt(YEARS)
    d1 = (xp.log(spot / STRIKE) + (RATE + 0.5 * volatility * volatility) * YEARS) / spread
    return spot * normal(d1) - STRIKE * math.exp(-RATE * YEARS) * normal(d1 - spread)


def whole_arrays(
    xp: Any, give: Callable[[Floats], Any], take: Callable[[Any], Floats], steps: int, jit: Any = None
) -> Answer:
    kick, drift, price = kicked, drifted, worth
    if jit is not None:
        kick, drift, price = jit(kicked, static_argnums=0), jit(drifted), jit(worth, static_argnums=0)
    mass, position, velocity = map(give, beginning())
    trail = []
    for step in range(steps):
        velocity = kick(xp, mass, position, velocity, DT if step else DT / 2)
        position = drift(velocity, position, DT)
        trail.append(position)
    velocity = kick(xp, mass, position, velocity, DT / 2)
    return Answer(np.stack([take(p) for p in trail]), take(price(xp, position, velocity)))


def _torch(device: str = "cpu") -> tuple[str, Runner]:
    import torch

    def run(steps: int) -> Answer:
        return whole_arrays(torch, lambda a: torch.tensor(a, device=device), lambda t: t.cpu().numpy(), steps)

    return f"{torch.__version__} on {device}", run


def _torch_gpu() -> tuple[str, Runner] | None:
    import torch

    return _torch("cuda") if torch.cuda.is_available() else None


def _jax() -> tuple[str, Runner]:
    import jax

    def run(steps: int) -> Answer:
        return whole_arrays(jax.numpy, jax.numpy.asarray, lambda a: np.array(jax.device_get(a)), steps, jax.jit)

    return f"{jax.__version__} on {jax.devices()[0].platform}", run


# ---- Numba ----------------------------------------------------------------------------------------------------------


def _numba() -> tuple[str, Runner]:
    """Loops like those of the kernels; binary32 must be said of every constant, or Numba computes in binary64."""
    import numba

    f = np.float32
    softening, zero, half, one = f(SOFTENING), f(0), f(0.5), f(1)
    strike, rate, years, spread_of, owed = f(STRIKE), f(RATE), f(YEARS), f(math.sqrt(YEARS)), f(math.exp(-RATE * YEARS))
    p0, p1, p2, p3, p4, p5 = map(f, (0.2316419, 1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530))
    hundred, ten, tenth, density = f(100), f(10), f(0.1), f(0.3989422804)

    @numba.njit
    def kick(mass: Floats, position: Floats, velocity: Floats, dt: np.float32) -> None:
        for i in range(len(mass)):
            ax, ay, az = zero, zero, zero
            for j in range(len(mass)):
                dx = position[j, 0] - position[i, 0]
                dy = position[j, 1] - position[i, 1]
                dz = position[j, 2] - position[i, 2]
                square = dx * dx + dy * dy + dz * dz + softening
                strength = mass[j] / (square * math.sqrt(square))
                ax += strength * dx
                ay += strength * dy
                az += strength * dz
            velocity[i, 0] += ax * dt
            velocity[i, 1] += ay * dt
            velocity[i, 2] += az * dt

    @numba.njit
    def length(v: Floats) -> Any:
        return math.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])

    @numba.njit
    def normal(d: Any) -> Any:
        k = one / (one + p0 * abs(d))
        tail = density * math.exp(-half * d * d) * (((((p1 * k + p2) * k + p3) * k + p4) * k + p5) * k)
        return tail if d < zero else one - tail

    @numba.njit
    def price(position: Floats, velocity: Floats, calls: Floats) -> None:
        for i in range(len(calls)):
            spot = hundred + ten * length(position[i])
            volatility = min(tenth + tenth * length(velocity[i]), one)
            spread = volatility * spread_of
            d1 = (math.log(spot / strike) + (rate + half * volatility * volatility) * years) / spread
            calls[i] = spot * normal(d1) - strike * owed * normal(d1 - spread)

    def run(steps: int) -> Answer:
        mass, position, velocity = beginning()
        trail, calls = [], np.empty_like(mass)
        for step in range(steps):
            kick(mass, position, velocity, f(DT if step else DT / 2))
            position += velocity * f(DT)
            trail.append(position.copy())
        kick(mass, position, velocity, f(DT / 2))
        price(position, velocity, calls)
        return Answer(np.stack(trail), calls)

    return numba.__version__, run


def departs(ours: Answer, theirs: Answer) -> str:
    """Where the first bit of theirs differs from ours."""
    apart = (ours.trail.view(np.uint32) != theirs.trail.view(np.uint32)).any(axis=(1, 2))
    if apart.any():
        return f"step {int(apart.argmax()) + 1}"
    return "the price" if ours.calls.tobytes() != theirs.calls.tobytes() else "nowhere"
