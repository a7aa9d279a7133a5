"""Drops code without effect: values without users, locals without readers, branches and loops without effects.

A loop that only its flag ends may never end, and the code behind it must not run then: it stays.
"""

from __future__ import annotations

from ..kernel_ir import Body, Ins, Kernel, Local, Loop, Statement, bodies, operands

_ROOTS = frozenset(("store", "atomic", "barrier", "trap", "return"))


def dce(kernel: Kernel) -> None:
    """Drop it; an atomic whose old value is not looked at keeps only its effect."""
    parents: dict[Statement, Statement | None] = {}
    sets: dict[Local, list[Ins]] = {}
    needed: set[Statement | Local] = set()
    unvisited: list[Statement] = []
    wanted: list[Statement] = []
    held: list[tuple[Body, Statement | None]] = [(kernel.body, None)]
    while held:
        body, parent = held.pop()
        for item in body:
            parents[item] = parent
            if item.op in _ROOTS or (isinstance(item, Loop) and item.is_forever):
                wanted.append(item)
            elif item.op == "set":
                sets.setdefault(item.attr, []).append(item)  # type: ignore[union-attr, arg-type]
            for inner in bodies(item):
                held.append((inner, item))
    values: set[Ins] = set()  # whose value is used

    def need(item: Statement) -> None:
        if item not in needed:
            needed.add(item)
            unvisited.append(item)

    def read(local: Local) -> None:
        if local not in needed:
            needed.add(local)
            for item in sets.get(local, ()):
                need(item)

    for item in wanted:
        need(item)
    while unvisited:
        item = unvisited.pop()
        for value in operands(item):
            values.add(value)
            need(value)
        if isinstance(item, Loop):
            if item.live is not None:
                read(item.live)
        elif isinstance(item, Ins):
            if item.op == "get":
                read(item.attr)
            elif item.op == "index":
                need(item.attr)
        if (parent := parents[item]) is not None:
            need(parent)
    _sweep(kernel, needed, values)


def _sweep(kernel: Kernel, needed: set[Statement | Local], values: set[Ins]) -> None:
    unvisited = [kernel.body]
    while unvisited:
        body = unvisited.pop()
        body[:] = [item for item in body if item in needed]
        for item in body:
            if isinstance(item, Ins):
                if item.op == "atomic":
                    item.used = item in values
            else:
                unvisited.extend(bodies(item))
