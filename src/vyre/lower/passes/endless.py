"""A `while` of the language is two loops that end with one flag: a loop of a program has 2^32 - 1 turns at most.

The square of that takes a machine centuries: one loop without a count does the same, at a lower price.
"""

from __future__ import annotations

from ..kernel_ir import Body, Ins, Kernel, Loop, Statement, bodies, walk

_LEAVES = frozenset(("barrier", "subgroup", "return"))
"""Where lanes meet or leave, a loop may be built anew around them, with a count."""


def endless(kernel: Kernel) -> None:
    """Make one loop of such two."""
    unvisited = [kernel.body]
    while unvisited:
        body = unvisited.pop()
        body[:] = [inner for item in body for inner in _merged(item)]
        for item in body:
            unvisited.extend(bodies(item))


def _merged(item: Statement) -> Body:
    if not isinstance(item, Loop) or not item.is_forever:
        return [item]
    constants: Body = [i for i in item.body if isinstance(i, Ins) and i.op == "const"]
    rest = [i for i in item.body if i not in constants]
    inner = rest[0] if len(rest) == 1 else None
    if not isinstance(inner, Loop) or inner.live is not item.live or not inner.is_forever:
        return [item]
    if any(i.op in _LEAVES or (i.op == "index" and i.attr is inner) for i in walk(inner.body) if isinstance(i, Ins)):
        return [item]
    inner.endless = True
    return [*constants, inner]
