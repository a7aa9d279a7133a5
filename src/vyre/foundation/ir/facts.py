"""The counts of a program, and its requirements of a backend."""

from __future__ import annotations

from .value import Value


class Stats(Value):
    """How much of what, counted as written: a shared part counts as often as it appears.

    `steps` says what there is to compile: one for each statement and expression, 50 for a loop or a barrier, and for a
    function such as sin those of its definition.
    """

    nodes: int
    expressions: int
    loads: int
    stores: int
    atomics: int
    barriers: int
    loops: int
    regions: int
    calls: int
    steps: int
    depth: int
    kinds: frozenset[str]


class Requirements(Value):
    """What a backend must offer; the bits have the names they have in `Capabilities`."""

    subgroup: bool
    workgroup_atomics: bool
    int64: bool
    float16: bool
    bfloat16: bool
    float64: bool
    trap: bool
    indirect: bool
    collectives: bool
    async_copy: bool
    grid_sync: bool
    invocations: int
    workgroup_bytes: int
    static_bytes: int
