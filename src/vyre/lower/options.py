"""How to lower: what the machine does by itself, and which improvements to make. Part of every cache key."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentValueError

PASSES = ("turns", "fold", "licm", "cse", "dce", "endless", "bounds_checks", "flush", "privatize_atomics")
"""Improvements by name, in the order in which they run; each can be switched off and no byte changes."""


@dataclass(frozen=True, slots=True)
class LowerOptions:
    """`soft_flush`: the machine keeps f32 subnormals, so every step flushes by itself.

    `poll`: loops and workgroups look at the stop flag. `off` names improvements that are not made. `native` names
    operations that the machine's own approximation computes, as a budget allows it: functions by their text,
    and `div`, `reciprocal`, `sqrt` and `inverse_sqrt` of f32. Without it every result is canonical. `firm`: no tool
    behind the emitter takes + - * /, fma or sqrt of f32 away, such as a product with 1. `grid_sync`: the emitter has a
    barrier of the whole grid, so that a program need not be split there. `own_arrays`: it has arrays of each lane.
    `by_turns`: it runs what stands between barriers for no more lanes than are meant, so that it pays to write short
    loops around barriers turn by turn.
    """

    soft_flush: bool = False
    poll: bool = False
    off: frozenset[str] = frozenset()
    native: frozenset[str] = frozenset()
    firm: bool = False
    grid_sync: bool = False
    own_arrays: bool = False
    by_turns: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "off", frozenset(self.off))
        object.__setattr__(self, "native", frozenset(self.native))
        if unknown := sorted(self.off - set(PASSES)):
            raise ArgumentValueError(
                f"no improvement is called {unknown[0]!r}", fix=f"use names of: {', '.join(PASSES)}"
            )


DEFAULT_OPTIONS = LowerOptions()
