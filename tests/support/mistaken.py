"""A backend with a mistake that a test plants: it runs what another runs, with another program or other outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vyre.backends.reference import REGISTRATION as REFERENCE
from vyre.driver.contract import BackendRegistration, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG
from vyre.driver.plan.outputs import replace_output_buffers_preserving_slots
from vyre.foundation.ir.nodes import Barrier, BinOp, Expr, Fma
from vyre.foundation.ir.ops import BinaryOp
from vyre.foundation.ir.program import Program
from vyre.foundation.ir.visit import rewrite

Change = Callable[[Program], Program]
Twist = Callable[[Program, list[bytearray]], None]


class Mistaken(VyreBackend, contract=1):
    """`change` makes another program of the one that runs; `twist` sees the outputs, which it may spoil."""

    id = "mistaken"

    def __init__(self, change: Change | None = None, twist: Twist | None = None, inner=REFERENCE) -> None:
        self.inner, self.change, self.twist = inner.open(), change, twist
        self.capability = self.inner.capability

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        changed = program if self.change is None else self.change(program)
        found = [bytearray(bytes(b)) for b in self.inner.dispatch(changed, inputs, config)]
        if self.twist is not None:
            self.twist(program, found)
        if out is None:
            return found
        targets = list(out)
        replace_output_buffers_preserving_slots(found, targets)
        return targets


def mistaken(change: Change | None = None, twist: Twist | None = None, inner=REFERENCE) -> BackendRegistration:
    return BackendRegistration(
        id="mistaken", open=lambda device=None: Mistaken(change, twist, inner), precedence=1, kind="host"
    )


# ---- mistakes -------------------------------------------------------------------------------------------------------


def other_operator(wrong: BinaryOp, instead: BinaryOp) -> Change:
    """One operator computes what another one should."""

    def swap(e: Expr) -> Expr:
        return e.replace(op=instead) if isinstance(e, BinOp) and e.op is wrong else e

    return lambda program: program.replace(entry=rewrite(program.entry, expr=swap))


def contracted(program: Program) -> Program:
    """Every product that is added to something is not rounded."""

    def fuse(e: Expr) -> Expr:
        match e:
            case BinOp(op=BinaryOp.ADD, left=BinOp(op=BinaryOp.MUL) as p, right=c):
                return Fma(p.left, p.right, c)
        return e

    return program.replace(entry=rewrite(program.entry, expr=fuse))


def without_barriers(program: Program) -> Program:
    """Invocations read what others have yet to write."""
    return program.replace(entry=rewrite(program.entry, node=lambda n: () if isinstance(n, Barrier) else n))


def tail_lost(program: Program, outputs: Sequence[bytearray]) -> None:
    """Elements behind the last whole workgroup are not written."""
    for data in outputs:
        whole = len(data) // 4 // program.workgroup_size[0] * program.workgroup_size[0] * 4
        data[whole:] = bytes(len(data) - whole)


def stale() -> Change:
    """The first program of a shape is run in place of every later one."""
    kept: dict[object, Program] = {}
    return lambda program: kept.setdefault((program.workgroup_size, program.buffers), program)
