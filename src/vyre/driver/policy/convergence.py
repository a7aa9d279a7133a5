"""When does a dispatch of many iterations look whether the last one changed anything? If not, none after it will."""

from __future__ import annotations

from collections.abc import Iterator

from .decision import Decision

WATCHED, ALL_RUN = "stops early", "all run"
_GROWTH = 4
"""A look comes after a quarter more iterations than the one before: a dispatch that settles early runs a quarter too
many at most, beside the first ones, and one that never settles looks 30 times in 20,000 iterations."""


def choose_convergence(iterations: int, every: int, *, least: int, hinders: str | None = None) -> Decision:
    """Whether to look, where the first looks are `every` iterations apart and fewer than `least` are not worth one.

    `hinders`: why memory cannot be compared, if so.
    """
    if hinders is None and iterations < least:
        hinders = f"to look costs more than fewer than {least} iterations"
    if hinders is not None:
        return Decision("iterations", ALL_RUN, hinders, {"iterations": iterations})
    reason = f"from iteration {every} on, the last one is sometimes compared with the one before"
    return Decision("iterations", WATCHED, reason, {"iterations": iterations, "first_look": every})


def looks(decided: Decision) -> Iterator[int]:
    """The iterations, counted from 1, after which memory is compared; 0 when there are no more of them.

    >>> turns = looks(choose_convergence(100, 4, least=8))
    >>> [next(turns) for _ in range(16)]
    [4, 8, 12, 16, 20, 25, 31, 38, 47, 58, 72, 90, 0, 0, 0, 0]
    """
    turn = int(decided.numbers.get("first_look", 0))
    every, last = turn, int(decided.numbers["iterations"])
    while 0 < turn < last:
        yield turn
        turn += max(every, turn // _GROWTH)
    while True:
        yield 0
