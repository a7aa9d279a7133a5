"""Which values are the same in every lane of a workgroup? Emitters keep those in one register.

A local is uniform while every `set` gives it a uniform value and stands where the lanes that are still running go
together. Everything counts as uniform at first; a value that differs makes its users differ, each of them once.
"""

from __future__ import annotations

from .kernel_ir import If, Ins, Kernel, Local, Loop, bodies, operands, walk

_VARYING = frozenset(("lane", "atomic", "subgroup"))


def mark_uniform(kernel: Kernel) -> None:
    """Fill in `uniform` of every value, local, branch and loop."""
    users: dict[Ins | If | Loop | Local, list[Ins | If | Loop]] = {}
    varying: list[Ins | If | Loop | Local] = []
    for item in walk(kernel.body):
        used: list[Ins | If | Loop | Local] = [*operands(item)]
        if isinstance(item, Ins):
            if item.op in ("get", "set"):
                item.attr.uniform = True
            if item.op in ("get", "index"):
                used.append(item.attr)
        elif isinstance(item, Loop) and item.live is not None:
            used.append(item.live)
        for one in used:
            users.setdefault(one, []).append(item)
        if isinstance(item, Ins) and item.op == "set":
            continue
        item.uniform = True
        if isinstance(item, Ins) and _varies(kernel, item):
            varying.append(item)
    while varying:
        value = varying.pop()
        if not value.uniform:
            continue
        value.uniform = False
        reached = users.get(value, [])
        if isinstance(value, If | Loop):  # lanes do not come to what is inside as one
            reached = reached + [part for body in bodies(value) for part in walk(body) if part.op == "set"]
        varying += [x.attr if isinstance(x, Ins) and x.op == "set" else x for x in reached]


def _varies(kernel: Kernel, item: Ins) -> bool:
    """Whether lanes differ here whatever the operands are."""
    if item.op in ("gid", "lid"):
        return bool(kernel.workgroup[item.attr] != 1)
    return item.op in _VARYING or (item.op == "load" and item.attr.writable)
