"""How many invocations, in which workgroups, and how many threads of the device run them together?"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from .decision import Decision

DECLARED, OVERRIDDEN = "declared", "overridden"
INFERRED, GIVEN, IN_MEMORY = "inferred", "given", "in memory"
ALONE, JOINED, WIDE = "one workgroup", "joined", "wide"
GROUPED, ALONG_X, ALONG_Y = "in workgroups", "along x", "along y"
ENOUGH = 64
"""Invocations of a workgroup with which a device's unit of execution can be full."""
THREADS = (256, 128, 512, 64, 32)
"""Threads of a block that are tried, in this order: starting many small blocks takes longer than a short kernel. Powers
of two, so that no id wraps around."""


def dims(size: tuple[int, ...]) -> str:
    """
    >>> dims((64, 1, 1))
    '64x1x1'
    """
    return "x".join(map(str, size))


@lru_cache(256)
def choose_workgroup(declared: tuple[int, int, int], asked: tuple[int, int, int] | None) -> Decision:
    """The program's, unless the caller asks for another."""
    if asked is None:
        return Decision("workgroup", DECLARED, f"{dims(declared)}: the program declares it")
    return Decision("workgroup", OVERRIDDEN, f"{dims(asked)}: workgroup_override")


def grid_from(
    grid: tuple[int, int, int], *, memory: str | None = None, given: str | None = None, covers: str = ""
) -> Decision:
    """Where a grid comes from: a buffer of the program, what the caller has `given`, or what it `covers`.

    All three are words for the reason.
    """
    for choice, why in ((IN_MEMORY, memory and f"the program takes it from {memory}"), (GIVEN, given)):
        if why is not None:
            return Decision("grid", choice, f"{dims(grid)}: {why}")
    return Decision("grid", INFERRED, f"{dims(grid)}: {covers}")


# ---- lanes of vectors -----------------------------------------------------------------------------------------------


def choose_lanes(x: int | None, y: int | None) -> Decision:
    """Which invocations a vector computes together: neighbours along `x` or `y` may be any of the grid, unless these
    are None, since invocations know of each other, or of a place in a workgroup that fills no vector.

    The numbers are how many of their accesses are to elements that lie side by side, less those all over memory.
    """
    numbers = {axis: gain for axis, gain in (("x", x), ("y", y)) if gain is not None}
    if y is not None and y > max(x or 0, 0):
        return Decision("lanes", ALONG_Y, "neighbours along y access neighbours in memory", numbers)
    if x is None:
        return Decision("lanes", GROUPED, "its invocations know of each other, or of their place", numbers)
    return Decision("lanes", ALONG_X, "rows are run from end to end, whatever the workgroups", numbers)


# ---- blocks of threads ----------------------------------------------------------------------------------------------


def choose_block(workgroup: tuple[int, int, int], *, apart: bool, each: int, step: int) -> Decision:
    """What the threads that a device starts together run: a workgroup, or invocations of several.

    `apart`: invocations know nothing of each other, so that it does not matter which of them run together. `each`: how
    many of them one thread can do, with accesses so much wider. A device runs threads in steps of `step`.
    """
    width = workgroup[0]
    numbers = {"invocations": workgroup[0] * workgroup[1] * workgroup[2], "each": each}
    if each > 1:
        return Decision("block", WIDE, f"each thread does {each} invocations, with one access for all", numbers)
    if not apart:
        return Decision("block", ALONE, "its invocations know of each other", numbers)
    if workgroup[1:] != (1, 1):
        return Decision("block", ALONE, "its workgroup has several axes", numbers)
    if width < ENOUGH:
        return Decision("block", JOINED, f"workgroups of {width} invocations would leave the device idle", numbers)
    if width % step:
        reason = f"workgroups of {width} invocations do not fill steps of {step} threads"
        return Decision("block", JOINED, reason, numbers)
    return Decision("block", ALONE, f"{width} invocations fill the device", numbers)


def choose_threads(active: Callable[[int], int]) -> Decision:
    """Threads of a block whose workgroups are joined, if `active` blocks of a size run at once; `numbers` has them."""
    threads = max(THREADS, key=lambda size: size * active(size))
    together = threads * active(threads)
    reason = f"no other size lets more than {together} threads of a multiprocessor run at once"
    return Decision("threads", str(threads), reason, {"threads": threads, "together": together})
