"""Which values are the same in every lane of a workgroup? Emitters keep those in one register.

A local is uniform while every `set` gives it a uniform value and stands where the lanes that are still running go
together. Optimistic at first, and then corrected until nothing changes.
"""

from __future__ import annotations

from .form import If, Ins, Kernel, Statement, bodies, walk

_VARYING = frozenset(("lid", "lane", "atomic", "subgroup"))


def mark_uniform(kernel: Kernel) -> None:
    """Fill in `uniform` of every value, local, branch and loop."""
    for item in walk(kernel.body):
        if item.op in ("set", "get"):
            item.attr.uniform = True  # type: ignore[union-attr]
    changed = True
    while changed:
        changed = _correct(kernel)


def _correct(kernel: Kernel) -> bool:
    """One pass; whether a local stopped being uniform."""
    changed = False
    unvisited: list[tuple[Statement, bool]] = [(item, True) for item in reversed(kernel.body)]
    while unvisited:
        item, together = unvisited.pop()  # together: the lanes come here as one
        if isinstance(item, Ins):
            if item.op != "set":
                item.uniform = _is_uniform(kernel, item)
            elif item.attr.uniform and not (together and item.args[0].uniform):
                item.attr.uniform = False
                changed = True
            continue
        if isinstance(item, If):
            item.uniform = item.condition.uniform
        else:
            item.uniform = item.start.uniform and item.stop.uniform and (item.live is None or item.live.uniform)
        together = together and item.uniform
        for inner in reversed(bodies(item)):
            unvisited.extend((part, together) for part in reversed(inner))
    return changed


def _is_uniform(kernel: Kernel, item: Ins) -> bool:
    match item.op:
        case "gid":
            return kernel.workgroup[item.attr] == 1
        case "lid":
            return kernel.workgroup[item.attr] == 1
        case "get":
            return bool(item.attr.uniform)
        case "index":
            return bool(item.attr.uniform)
        case "load":
            return item.args[0].uniform and not item.attr.writable
        case op if op in _VARYING:
            return False
    return all(a.uniform for a in item.args)
