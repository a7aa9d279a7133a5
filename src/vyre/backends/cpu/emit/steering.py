"""Loads that decide where memory is accessed, or whether.

A caller's thread may change the memory that a kernel reads. Any number may come of that, but a number that was found to
be in bounds must be the one that is used. So what such a load gives is frozen: the compiler may not read it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....lower.kernel_ir import If, Ins, Kernel, Local, Loop, TileCheck, operands, walk


@dataclass(frozen=True, slots=True)
class Taken:
    """What versions of a kernel know of its loads: which ones steer, and which ones the check before has read.

    `names` are the loads of the check that become arguments, with the names of these; `given` the loads of the body
    that have such an argument for a value.
    """

    steering: frozenset[Ins]
    names: Mapping[Ins, str]
    given: Mapping[Ins, str]

    @classmethod
    def of(cls, kernel: Kernel, check: TileCheck | None) -> Taken:
        loads = {} if check is None else check.loads
        names = {load: f"%taken{k}" for k, load in enumerate(dict.fromkeys(loads.values()))}
        return cls(_steering(kernel, check), names, {load: names[found] for load, found in loads.items()})


def _steering(kernel: Kernel, check: TileCheck | None) -> frozenset[Ins]:
    """Loads from which indices, conditions and the bounds of loops are computed, those of the check included."""
    roots: list[Ins] = [] if check is None else list(check.body)
    sets: dict[Local, list[Ins]] = {}
    live: list[Local] = []
    for item in walk(kernel.body):
        if isinstance(item, If | Loop):
            roots.extend(operands(item))
            if isinstance(item, Loop) and item.live is not None:
                live.append(item.live)
        elif item.op in ("load", "store", "atomic"):
            roots.append(item.args[0])
        elif item.op == "set":
            sets.setdefault(item.attr, []).append(item.args[0])
    roots.extend(value for local in live for value in sets.get(local, ()))
    found: set[Ins] = set()
    while roots:
        value = roots.pop()
        if value not in found:
            found.add(value)
            roots.extend(value.args)
            if value.op == "get":
                roots.extend(sets.get(value.attr, ()))
    return frozenset(value for value in found if value.op == "load")
