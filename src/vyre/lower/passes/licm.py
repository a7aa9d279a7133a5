"""Values that a loop computes anew each time although they do not change move before the loop.

Every instruction is total and a guarded load of read-only memory never faults, so it does no harm where the loop does
not run at all. Branches inside a loop keep their values, which may be rarely needed.
"""

from __future__ import annotations

from ...foundation.ir.visit import Steps, run_nested
from ..kernel_ir import PURE, Body, Ins, Kernel, Loop, bodies
from .effects import Changed, changes


def licm(kernel: Kernel) -> None:
    """Move invariant values out of loops, innermost first."""
    changed = changes(kernel)

    def body(items: Body) -> Steps:
        out: Body = []
        for item in items:
            if not isinstance(item, Ins):
                for inner in bodies(item):
                    yield body(inner)
            if isinstance(item, Loop):
                varying: set[Ins] = set()
                stay: Body = []
                for part in item.body:
                    if isinstance(part, Ins) and _may_move(part, changed[item]) and varying.isdisjoint(part.args):
                        out.append(part)
                        continue
                    stay.append(part)
                    if isinstance(part, Ins):
                        varying.add(part)
                item.body = stay
            out.append(item)
        items[:] = out

    run_nested(body(kernel.body))


def _may_move(item: Ins, changed: Changed) -> bool:
    if item.op == "load":
        return not item.attr.writable
    if item.op == "get":
        return item.attr not in changed
    return item.op in PURE and item.op != "index"
