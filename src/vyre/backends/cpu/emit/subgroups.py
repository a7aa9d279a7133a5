"""Subgroup operations: 32 consecutive lanes of a workgroup exchange values.

All lanes have arrived, so the operation is a loop over subgroups, each one vector of 32 lanes. Missing lanes hold
the identity. Results go to memory, from where the next stretch takes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....foundation.ir.dtypes import BY_NAME
from ....foundation.ir.ops import BinaryOp, ReduceOp
from ....foundation.ir.rounding import f32_to_bits
from ....foundation.meaning.arith import reduce_identity
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from ....lower.canonical_float import FloatSteps
from ....lower.kernel_ir import Ins
from .instructions import SUFFIX, TYPES, literal, pure, ty
from .uniformity import WIDE, Val

if TYPE_CHECKING:
    from .lanes import Lanes

_FLOAT = {
    ReduceOp.ADD: BinaryOp.ADD,
    ReduceOp.MUL: BinaryOp.MUL,
    ReduceOp.MIN: BinaryOp.MIN,
    ReduceOp.MAX: BinaryOp.MAX,
}


def emit(e: Lanes, ins: Ins) -> None:
    """Compute a subgroup operation for all lanes of the workgroup."""
    width, parts, mark = e.width, e.parts, len(e.trail)
    e.cut(SUBGROUP_WIDTH, 1)
    with e.blocks():
        mask = e.mask[0] if e.mask else None
        columns = [e.wide(e.value(a), a.dtype)[0] for a in ins.args]
        if isinstance(ins.attr, ReduceOp):
            found = _reduce(e, ins, columns[0], mask)
        elif ins.attr == "ballot":
            found = _ballot(e, columns[0], mask)
        else:
            found = _shuffle(e, ins, columns[0], columns[1], mask)
        e.keep(e.phases.spilled[id(ins)], ins.dtype, Val(WIDE, (found,)))
    e.leave(mark)
    e.cut(width, parts)


def _or_else(e: Lanes, value: str, dtype: str, mask: str | None, other: str) -> str:
    if mask is None:
        return value
    kind = ty(dtype, SUBGROUP_WIDTH)
    return e.w.new(f"select {ty('bool', SUBGROUP_WIDTH)} {mask}, {kind} {value}, {kind} {other}")


def _reduce(e: Lanes, ins: Ins, value: str, mask: str | None) -> str:
    t = ins.dtype
    identity = reduce_identity(ins.attr, BY_NAME[t])
    bits = f32_to_bits(identity) if t == "f32" else identity & 0xFFFFFFFF
    value = _or_else(e, value, t, mask, literal(t, bits, SUBGROUP_WIDTH))
    kind = ty(t, SUBGROUP_WIDTH)
    steps = _steps(ins.attr, t, e.kernel.soft_flush)
    for distance in reduction_offsets(SUBGROUP_WIDTH):
        order = ", ".join(f"i32 {k ^ distance}" for k in range(SUBGROUP_WIDTH))
        other = e.w.new(f"shufflevector {kind} {value}, {kind} poison, <{SUBGROUP_WIDTH} x i32> <{order}>")
        known = {id(steps[0]): value, id(steps[1]): other}
        for step in steps[2:]:
            known[id(step)] = pure(e.w, step, [known[id(a)] for a in step.args], SUBGROUP_WIDTH)
        value = known[id(steps[-1])]
    return value


def _steps(op: ReduceOp, t: str, soft: bool) -> list[Ins]:
    """Two operands, and the instructions that combine them."""
    found = [Ins("get", t), Ins("get", t)]

    def add(op: str, dtype: str, *args: Ins, attr: object = None) -> Ins:
        found.append(Ins(op, dtype, args, attr))
        return found[-1]

    if t == "f32":
        FloatSteps(add, lambda dtype, bits: add("const", dtype, attr=bits), soft).binary(_FLOAT[op], t, *found)
    else:
        add(op.text, t, *found)
    return found


def _ballot(e: Lanes, flags: str, mask: str | None) -> str:
    found = _or_else(e, flags, "bool", mask, "zeroinitializer")
    return e.splat(e.w.new(f"bitcast <{SUBGROUP_WIDTH} x i1> {found} to i32"), "i32")


def _shuffle(e: Lanes, ins: Ins, value: str, lanes: str, mask: str | None) -> str:
    """Through memory: 32 values, each lane takes the one it names; zero where there is no such lane."""
    w, t = e.w, ins.dtype
    scalar, kind, word = TYPES[t], ty(t, SUBGROUP_WIDTH), ty("u32", SUBGROUP_WIDTH)
    value = _or_else(e, value, t, mask, "zeroinitializer")
    slot = e.slot(f"[{SUBGROUP_WIDTH} x i32]", 64)
    w.line(f"store {kind} {value}, ptr {slot}, align 64")
    inside = w.new(f"icmp ult {word} {lanes}, splat (i32 {SUBGROUP_WIDTH})")
    flags = ty("bool", SUBGROUP_WIDTH)
    at = w.new(f"getelementptr {scalar}, ptr {slot}, {word} {lanes}")
    name = f"llvm.masked.gather.v{SUBGROUP_WIDTH}{SUFFIX[scalar]}.v{SUBGROUP_WIDTH}p0"
    w.declare(kind, name, f"<{SUBGROUP_WIDTH} x ptr>", flags, kind)
    return w.new(
        f"call {kind} @{name}(<{SUBGROUP_WIDTH} x ptr> align 4 {at}, {flags} {inside}, {kind} zeroinitializer)"
    )
