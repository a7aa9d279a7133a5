"""How is a dispatch launched, is it recorded, and does the backend or the driver keep its deadline?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .decision import Decision

SEQUENCE, COOPERATIVE, PLAIN = "in sequence", "cooperative", "plain"
NONE, BY_BACKEND, BY_DRIVER = "none", "kept by the backend", "kept by the driver"
NEVER, WHEN_REPEATED, RECORDED = "never", "when repeated", "recorded"
RECORDED_BYTES = 64 << 10
"""Memory of all buffers of a dispatch over host memory, up to which it is recorded: beyond, copies take longer than
everything else."""


def choose_launch(
    grid: tuple[int, int, int],
    most: int,
    *,
    stages: int = 1,
    waits: bool = False,
    has_barrier: bool = False,
    splits: bool = True,
    together: bool = True,
) -> Decision:
    """One launch, or several in sequence, on a device that takes `most` workgroups along an axis.

    `waits`: workgroups wait for each other, which cuts the program into so many `stages` where the device has no such
    barrier, and the backend `splits`. `together`: all workgroups of this grid run at once, or the caller insists.
    """
    why = []
    if waits and splits and not has_barrier:
        why.append("the device has no grid-wide barrier")
    if max(grid) > most:
        why.append(f"the device takes {most} workgroups along an axis")
    if waits and splits and not together:
        why.append("its workgroups wait for each other, and do not all run at once")
    if why:
        launches = stages * math.prod(-(-n // most) for n in grid)
        reason = f"{launches} launches, as {' and '.join(why)}"
        return Decision("launch", SEQUENCE, reason, {"launches": launches, "workgroups_per_axis": most})
    if waits and has_barrier:
        return Decision("launch", COOPERATIVE, "its workgroups wait for each other, and all run at once")
    return Decision("launch", PLAIN, "the device takes the whole grid", {"workgroups_per_axis": most})


def choose_deadline(timeout_s: float | None, *, backend: str, keeps: str) -> Decision:
    """Whether backend or driver ends a dispatch that takes too long. `keeps` is how the backend does, or "none"."""
    if timeout_s is None:
        return Decision("deadline", NONE, "no timeout is set")
    numbers = {"timeout_s": timeout_s}
    if keeps == "none":
        reason = f"{timeout_s:g} s; backend {backend} keeps none, so the driver leaves the call behind"
        return Decision("deadline", BY_DRIVER, reason, numbers)
    return Decision("deadline", BY_BACKEND, f"{timeout_s:g} s, kept by backend {backend} as: {keeps}", numbers)


# ---- recorded launches ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """What work costs the host on a device: done anew, recorded, and repeated from a recording.

    The default is that of a device that records nothing: to repeat costs what doing it anew does.
    """

    launch_ns: int = 0
    record_ns: int = 0
    replay_ns: int = 0

    @property
    def first_recorded_run(self) -> int | None:
        """The run by which recording would have been paid back, at which it is worth it; None: never.

        >>> LaunchCosts(launch_ns=5000, record_ns=20_000, replay_ns=1000).first_recorded_run
        5
        """
        saved = self.launch_ns - self.replay_ns
        return max(1, -(-self.record_ns // saved)) if saved > 0 else None


_NOT_FASTER = Decision("recording", NEVER, "the device repeats no launch faster than it makes one")


def choose_recording(costs: LaunchCosts, *, copied_bytes: int | None, differs: str | None = None) -> Decision:
    """Whether a dispatch that is repeated is recorded, so that one call does all of it.

    `copied_bytes`: what goes to the device and comes back; None where all of it stays there. `differs`: why no run is
    like the one before, if so.
    """
    first = costs.first_recorded_run
    if first is None:
        return _NOT_FASTER
    if differs is not None:
        return Decision("recording", NEVER, differs)
    if copied_bytes is None:
        reason = "after some runs over the same memory one call launches all of it"
        return Decision("recording", WHEN_REPEATED, reason, {"first_recorded_run": first})
    numbers = {"first_recorded_run": first, "bytes": copied_bytes, "most_bytes": RECORDED_BYTES}
    if copied_bytes > RECORDED_BYTES:
        reason = (
            f"its buffers have {copied_bytes} bytes together, and the copies of more than {RECORDED_BYTES} take longer"
        )
        return Decision("recording", NEVER, reason, numbers)
    reason = f"from run {first} over buffers of these lengths, one call copies and launches"
    return Decision("recording", WHEN_REPEATED, reason, numbers)
