"""What the bodies of a statement change: locals by `set`, buffers by `store` and `atomic`, all buffers by `barrier`."""

from __future__ import annotations

from ..kernel_ir import Body, Buffer, If, Ins, Kernel, Local, Loop, bodies

Changed = set[Local | Buffer]


def changes(kernel: Kernel) -> dict[If | Loop, Changed]:
    """For every branch and loop, what may be different after it, or at the start of a later iteration."""
    found: dict[If | Loop, Changed] = {}
    parents: dict[If | Loop, If | Loop | None] = {}
    writable = [b for b in kernel.buffers if b.writable]
    unvisited: list[tuple[Body, If | Loop | None]] = [(kernel.body, None)]
    while unvisited:
        body, parent = unvisited.pop()
        for item in body:
            if not isinstance(item, Ins):
                found[item], parents[item] = set(), parent
                unvisited.extend((inner, item) for inner in bodies(item))
                continue
            changed, around = changed_by(item, writable), parent
            while changed and around is not None and not found[around].issuperset(changed):
                found[around].update(changed)
                around = parents[around]
    return found


def changed_by(item: Ins, writable: list[Buffer]) -> list[Local | Buffer]:
    """What one instruction changes. Behind a barrier a lane sees what other lanes wrote."""
    match item.op:
        case "set" | "store":
            return [item.attr]
        case "atomic":
            return [item.attr[1]]
        case "barrier":
            return [*writable]
    return []
