"""Subgroup operations: 32 consecutive lanes of a workgroup exchange values.

Where blocks of lanes are whole subgroups, they exchange values in registers. Else all lanes of the workgroup have
arrived, so the operation is a loop over subgroups, each one vector of 32 lanes. Missing lanes hold the identity.
Results go to memory, from where the next stretch takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....foundation.ir.dtypes import BY_NAME
from ....foundation.ir.ops import BinaryOp, ReduceOp
from ....foundation.ir.rounding import f32_to_bits
from ....foundation.meaning.arith import reduce_identity
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from ....lower.canonical_float import FloatSteps
from ....lower.kernel_ir import Ins, Kernel, walk
from .instructions import SUFFIX, TYPES, literal, pure, ty
from .uniformity import WIDE, Val

if TYPE_CHECKING:
    from .lanes import Lanes
    from .values import LaneValues

_FLOAT = {
    ReduceOp.ADD: BinaryOp.ADD,
    ReduceOp.MUL: BinaryOp.MUL,
    ReduceOp.MIN: BinaryOp.MIN,
    ReduceOp.MAX: BinaryOp.MAX,
}


def in_blocks(kernel: Kernel, width: int) -> bool:
    """Whether blocks can be whole subgroups: every lane comes to every operation, and there are no other stretches."""
    if width == 1 or kernel.lanes % SUBGROUP_WIDTH:
        return False
    inside = [item for item in walk(kernel.body) if item.op in ("subgroup", "barrier", "return", "trap")]
    here = {id(item) for item in kernel.body}
    return bool(inside) and all(item.op == "subgroup" and id(item) in here for item in inside)


def in_block(e: LaneValues, ins: Ins) -> Val:
    """Compute a subgroup operation for a block of whole subgroups, each of which is a few vectors."""
    columns = [e.wide(e.value(a), a.dtype) for a in ins.args]
    vectors = SUBGROUP_WIDTH // e.width
    found: list[str] = []
    for first in range(0, e.parts, vectors):
        pieces = [column[first : first + vectors] for column in columns]
        if isinstance(ins.attr, ReduceOp) and (ins.dtype != "f32" or ins.attr in (ReduceOp.ADD, ReduceOp.MUL)):
            found += [_reduced(e, ins, pieces[0])] * vectors
        elif ins.attr == "ballot":
            found += [_ballot(e, _joined(e, pieces[0], "bool"), None)] * vectors
        else:
            whole = [_joined(e, piece, a.dtype) for piece, a in zip(pieces, ins.args, strict=True)]
            other = _reduce(e, ins, whole[0], None) if len(whole) == 1 else _shuffle(e, ins, whole[0], whole[1], None)
            found += _parted(e, other, ins.dtype)
    return Val(WIDE, tuple(found))


def _reduced(e: LaneValues, ins: Ins, pieces: Sequence[str]) -> str:
    """Where two lanes find the same in whichever order, the halves of a subgroup are the same after the first step:
    the result of one vector, which is that of all."""
    steps, t = _steps(ins.attr, ins.dtype, e.kernel.soft_flush), ins.dtype
    found = list(pieces)
    for distance in reduction_offsets(SUBGROUP_WIDTH):
        if len(found) > 1:
            half = len(found) // 2
            found = [_step(e, steps, a, b, e.width) for a, b in zip(found[:half], found[half:], strict=True)]
        else:
            found = [_step(e, steps, found[0], _crossed(e, found[0], t, distance, e.width), e.width)]
    return found[0]


def _joined(e: LaneValues, pieces: Sequence[str], dtype: str) -> str:
    """Vectors as one."""
    found, width = list(pieces), e.width
    while len(found) > 1:
        kind, order = ty(dtype, width), ", ".join(f"i32 {k}" for k in range(2 * width))
        found = [
            e.w.new(f"shufflevector {kind} {a}, {kind} {b}, <{2 * width} x i32> <{order}>")
            for a, b in zip(found[::2], found[1::2], strict=True)
        ]
        width *= 2
    return found[0]


def _parted(e: LaneValues, whole: str, dtype: str) -> list[str]:
    """One vector of a subgroup as those of the block."""
    kind, found = ty(dtype, SUBGROUP_WIDTH), []
    for first in range(0, SUBGROUP_WIDTH, e.width):
        order = ", ".join(f"i32 {k}" for k in range(first, first + e.width))
        found.append(e.w.new(f"shufflevector {kind} {whole}, {kind} poison, <{e.width} x i32> <{order}>"))
    return found


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


def _or_else(e: LaneValues, value: str, dtype: str, mask: str | None, other: str) -> str:
    if mask is None:
        return value
    kind = ty(dtype, SUBGROUP_WIDTH)
    return e.w.new(f"select {ty('bool', SUBGROUP_WIDTH)} {mask}, {kind} {value}, {kind} {other}")


def _reduce(e: LaneValues, ins: Ins, value: str, mask: str | None) -> str:
    t = ins.dtype
    identity = reduce_identity(ins.attr, BY_NAME[t])
    bits = f32_to_bits(identity) if t == "f32" else identity & 0xFFFFFFFF
    value = _or_else(e, value, t, mask, literal(t, bits, SUBGROUP_WIDTH))
    steps = _steps(ins.attr, t, e.kernel.soft_flush)
    for distance in reduction_offsets(SUBGROUP_WIDTH):
        value = _step(e, steps, value, _crossed(e, value, t, distance, SUBGROUP_WIDTH), SUBGROUP_WIDTH)
    return value


def _crossed(e: LaneValues, value: str, dtype: str, distance: int, width: int) -> str:
    """What the lanes at a distance hold."""
    kind, order = ty(dtype, width), ", ".join(f"i32 {k ^ distance}" for k in range(width))
    return e.w.new(f"shufflevector {kind} {value}, {kind} poison, <{width} x i32> <{order}>")


def _step(e: LaneValues, steps: list[Ins], a: str, b: str, width: int) -> str:
    known = {id(steps[0]): a, id(steps[1]): b}
    for step in steps[2:]:
        known[id(step)] = pure(e.w, step, [known[id(x)] for x in step.args], width)
    return known[id(steps[-1])]


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


def _ballot(e: LaneValues, flags: str, mask: str | None) -> str:
    found = _or_else(e, flags, "bool", mask, "zeroinitializer")
    return e.splat(e.w.new(f"bitcast <{SUBGROUP_WIDTH} x i1> {found} to i32"), "i32")


def _shuffle(e: LaneValues, ins: Ins, value: str, lanes: str, mask: str | None) -> str:
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
