"""Expressions of the NumPy engine: one array operation per operator, over the lanes that are active.

An expression becomes a list of steps for a stack of arrays. Every array on the stack and every local has either one
element per active lane or exactly one element, which stands for all lanes: literals, lengths and what is computed from
them stay that short until they meet a lane's own value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....driver.contract.traps import Noted
from ....errors import DeadlineExceeded, InvalidProgram, StepLimitExceeded, UnsupportedFeature
from ....foundation.integers import round_up
from ....foundation.ir import nodes as ir
from ....foundation.ir.dtypes import DataType, bool_, u32
from ....foundation.ir.ops import AtomicOp, BinaryOp, UnaryOp
from ....foundation.ir.program import Program
from ....foundation.ir.visit import children
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH, reduction_offsets
from . import vector

Array = NDArray[Any]

# Slots that exist before the first statement; a local takes the next free one.
LANE, GROUP, SUBGROUP_LANE, GLOBAL_ID, GROUP_ID, LOCAL_ID = 0, 1, 2, 3, 6, 9
FIRST_LOCAL = 12


@dataclass(frozen=True, slots=True)
class View:
    """A buffer as an array of stored elements. Workgroup memory holds `count` elements for each workgroup."""

    data: Array
    count: int
    per_group: bool = False


class Run:
    """One chunk of workgroups on its way through the program."""

    __slots__ = ("atomics", "deadline", "group_lanes", "groups", "loads", "max_steps", "noted", "returned", "steps",
                 "stores", "views")  # fmt: skip

    def __init__(self, views: dict[str, View], group_lanes: int, max_steps: int | None, deadline: float | None) -> None:
        self.views, self.group_lanes, self.max_steps, self.deadline = views, group_lanes, max_steps, deadline
        self.steps = self.loads = self.stores = self.atomics = self.groups = 0
        self.noted = Noted()
        self.returned: Array = np.zeros(0, np.bool_)  # by lane of the chunk

    def tick(self, lanes: int) -> None:
        """Count one statement of `lanes` invocations."""
        self.steps += lanes
        if self.max_steps is not None and self.steps > self.max_steps:
            raise StepLimitExceeded(
                "the program took more steps than allowed",
                fix="raise max_steps, or look for a loop that does not end",
                max_steps=self.max_steps,
            )
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("the program did not end in time", fix="allow more time, or do less in one dispatch")


class Frame:
    """Lanes that run together: `n` of them, their locals by slot, and where they stand in the frame they came from."""

    __slots__ = ("env", "n", "pos", "run")

    def __init__(self, run: Run, n: int, pos: Array | None, env: dict[int, Array]) -> None:
        self.run, self.n, self.pos, self.env = run, n, pos, env

    def part(self, keep: Array, slots: Iterable[int]) -> Frame:
        """A frame of the lanes `keep`, with the locals they will need."""
        env = self.env
        return Frame(self.run, len(keep), keep, {s: pick(env[s], keep) for s in slots})

    def drop_returned(self) -> None:
        keep = np.flatnonzero(~self.run.returned[self.env[LANE]])
        if len(keep) == self.n:
            return
        if self.n > 1:
            self.env = {s: pick(v, keep) for s, v in self.env.items()}
        if self.pos is not None:
            self.pos = self.pos[keep]
        self.n = len(keep)

    def spread(self, value: Array) -> Array:
        """One element per lane."""
        return value if value.shape[0] == self.n else np.broadcast_to(value, (self.n,))


def pick(value: Array, keep: Array) -> Array:
    return value if value.shape[0] == 1 else value.take(keep)


Step = Callable[[list[Array], Frame], None]
Code = tuple[Step, ...]


def evaluate(code: Code, frame: Frame) -> Array:
    stack: list[Array] = []
    for step in code:
        step(stack, frame)
    return stack.pop()


# ---- compiling ------------------------------------------------------------------------------------------------------


class Names:
    """Which slot and type a name has where the compiler stands, and which slots were touched on the way there."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.scopes: list[dict[str, int]] = [{}]
        self.types: list[DataType] = [u32] * FIRST_LOCAL
        self.touched: set[int] = set()

    def declare(self, name: str, dtype: DataType) -> int:
        slot = self.hidden(dtype)
        self.scopes[-1][name] = slot
        return slot

    def hidden(self, dtype: DataType) -> int:
        self.types.append(dtype)
        return len(self.types) - 1

    def resolve(self, name: str) -> int:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise InvalidProgram(f"variable {name!r} is not declared", fix="bind the variable with let before using it")

    def element(self, buffer: str) -> DataType:
        decl = self.program.buffer(buffer)
        if decl is None:
            raise InvalidProgram(f"buffer {buffer!r} is not declared", fix="declare the buffer")
        return decl.element

    def reach(self, buffer: str) -> None:
        """Note the slots that an access of `buffer` reads."""
        decl = self.program.buffer(buffer)
        if decl is not None and decl.is_workgroup:
            self.touched.add(GROUP)


def compile_expr(root: ir.Expr, names: Names, *, unused: bool = False) -> tuple[Code, DataType]:
    """Steps that leave the value of `root`, and its type. `unused`: no statement reads that value."""
    code: list[Step] = []
    types: list[DataType] = []
    unvisited: list[tuple[ir.Expr, bool]] = [(root, False)]
    while unvisited:
        item, ready = unvisited.pop()
        if not ready:
            unvisited.append((item, True))
            unvisited.extend((c, False) for c in reversed(children(item)))
            continue
        operands = len(children(item))
        held = types[len(types) - operands :]
        del types[len(types) - operands :]
        step, dtype = _compile_one(item, held, names, unused and item is root)
        code.append(step)
        types.append(dtype)
    return tuple(code), types[0]


def _compile_one(e: ir.Expr, held: list[DataType], names: Names, unused: bool) -> tuple[Step, DataType]:
    match e:
        case ir.Lit(dtype=t):
            return _constant(_literal(e)), t
        case ir.Var(name=name):
            slot = names.resolve(name)
            return _local(slot, names), names.types[slot]
        case ir.InvocationId(axis=axis):
            return _local(GLOBAL_ID + axis, names), u32
        case ir.WorkgroupId(axis=axis):
            return _local(GROUP_ID + axis, names), u32
        case ir.LocalId(axis=axis):
            return _local(LOCAL_ID + axis, names), u32
        case ir.SubgroupLocalId():
            return _local(SUBGROUP_LANE, names), u32
        case ir.SubgroupSize():
            return _constant(np.array([SUBGROUP_WIDTH], np.uint32)), u32
        case ir.BufLen(buffer=buffer):
            names.element(buffer)
            return _length(buffer), u32
        case ir.Load(buffer=buffer):
            t = names.element(buffer)
            names.reach(buffer)
            return _load(buffer, t), t
        case ir.Atomic(op=AtomicOp() as op, buffer=buffer):
            t = names.element(buffer)
            names.reach(buffer)
            return _atomic(op, buffer, unused, e.expected is not None), t
        case ir.BinOp(op=BinaryOp() as op):
            if op.rule == "logic":
                return _logic(op, held[0], held[1]), bool_
            return _apply2(vector.binary(op, held[0])), bool_ if op.rule == "compare" else held[0]
        case ir.UnOp(op=UnaryOp.LOGICAL_NOT):
            return _logical_not(held[0]), bool_
        case ir.UnOp(op=UnaryOp() as op):
            result = bool_ if op.rule == "float_test" else u32 if op.rule == "unpack" else held[0]
            return _apply1(vector.unary(op, held[0])), result
        case ir.Cast(target=t):
            return _apply1(vector.cast(held[0], t)), t
        case ir.Bitcast(target=t):
            return _apply1(vector.bitcast(held[0], t)), t
        case ir.Select():
            return _select(held[0]), held[1]
        case ir.Fma():
            return _apply3(vector.fused(held[0])), held[0]
        case ir.SubgroupReduce(op=reduce_op):
            names.touched.add(LANE)
            return _reduce(vector.reduce(reduce_op, held[0]), vector.reduce_identity(reduce_op, held[0])), held[0]
        case ir.SubgroupShuffle():
            names.touched.add(LANE)
            return _shuffle, held[0]
        case ir.SubgroupBallot():
            names.touched.add(LANE)
            return _ballot(held[0]), u32
    raise UnsupportedFeature(
        f"the NumPy engine has no code for {type(e).__name__}",
        fix="inline calls and lower extensions before running the program",
    )


def _literal(e: ir.Lit) -> Array:
    word = np.array([e.bits], np.uint64 if (e.dtype.bits or 0) > 32 else np.uint32)
    return vector.load(e.dtype, word.view(vector.storage_dtype(e.dtype)))


# ---- steps ----------------------------------------------------------------------------------------------------------


def _constant(value: Array) -> Step:
    value.setflags(write=False)

    def step(stack: list[Array], frame: Frame) -> None:
        stack.append(value)

    return step


def _local(slot: int, names: Names) -> Step:
    names.touched.add(slot)

    def step(stack: list[Array], frame: Frame) -> None:
        stack.append(frame.env[slot])

    return step


def _length(buffer: str) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        stack.append(np.array([frame.run.views[buffer].count], np.uint32))

    return step


def _apply1(fn: Callable[[Array], Array]) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        stack[-1] = fn(stack[-1])

    return step


def _apply2(fn: Callable[[Array, Array], Array]) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        b = stack.pop()
        stack[-1] = fn(stack[-1], b)

    return step


def _apply3(fn: Callable[[Array, Array, Array], Array]) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        c = stack.pop()
        b = stack.pop()
        stack[-1] = fn(stack[-1], b, c)

    return step


def truth(value: Array, dtype: DataType) -> Array:
    return value if dtype == bool_ else value != 0


def _logic(op: BinaryOp, left: DataType, right: DataType) -> Step:
    join = np.logical_and if op is BinaryOp.AND else np.logical_or

    def step(stack: list[Array], frame: Frame) -> None:
        b = stack.pop()
        stack[-1] = join(truth(stack[-1], left), truth(b, right))

    return step


def _logical_not(dtype: DataType) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        stack[-1] = ~truth(stack[-1], dtype)

    return step


def _select(condition: DataType) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        on_false = stack.pop()
        on_true = stack.pop()
        stack[-1] = np.where(truth(stack[-1], condition), on_true, on_false)

    return step


# ---- memory ---------------------------------------------------------------------------------------------------------


def _locate(view: View, index: Array, frame: Frame) -> tuple[Array, Array | None, int]:
    """Positions in `view.data`, which of them the lanes meant (None: all), and how many lanes miss the buffer."""
    inside: Array | None = None
    missed = 0
    if index.max() >= view.count:
        inside = index < view.count
        missed = frame.n if index.shape[0] == 1 else frame.n - int(np.count_nonzero(inside))
        index = np.where(inside, index, np.uint32(0))
    if view.per_group:
        index = frame.env[GROUP] * view.count + index
    return index, inside, missed


def _load(buffer: str, dtype: DataType) -> Step:
    def step(stack: list[Array], frame: Frame) -> None:
        view = frame.run.views[buffer]
        at, inside, missed = _locate(view, stack[-1], frame)
        raw = view.data.take(at)
        if inside is not None:
            frame.run.loads += missed
            raw = np.where(inside, raw, raw.dtype.type(0))
        stack[-1] = vector.load(dtype, raw)

    return step


def store(buffer: str, dtype: DataType, index: Array, value: Array, frame: Frame) -> None:
    """Where lanes meet, the last one wins."""
    view = frame.run.views[buffer]
    raw = vector.store(dtype, value)
    at, inside, missed = _locate(view, index, frame)
    if inside is not None:
        frame.run.stores += missed
        keep = np.flatnonzero(inside)
        if index.shape[0] == 1 or not len(keep):
            return
        at, raw = pick(at, keep), pick(raw, keep)
    view.data[at] = raw[-1:] if at.shape[0] == 1 else raw


_ATOMIC_UFUNC: dict[AtomicOp, np.ufunc] = {
    AtomicOp.ADD: np.add,
    AtomicOp.OR: np.bitwise_or,
    AtomicOp.AND: np.bitwise_and,
    AtomicOp.XOR: np.bitwise_xor,
    AtomicOp.MIN: np.minimum,
    AtomicOp.MAX: np.maximum,
}


def _atomic(op: AtomicOp, buffer: str, unused: bool, compares: bool) -> Step:
    ufunc = _ATOMIC_UFUNC.get(op)
    if ufunc is None and op not in (AtomicOp.EXCHANGE, AtomicOp.COMPARE_EXCHANGE):
        raise UnsupportedFeature(f"{op.text} has no meaning", fix="use another atomic operation")

    def step(stack: list[Array], frame: Frame) -> None:
        expected = frame.spread(stack.pop()) if compares else None
        value = frame.spread(stack.pop())
        view = frame.run.views[buffer]
        at, inside, missed = _locate(view, stack[-1], frame)
        old = np.zeros(frame.n, view.data.dtype)
        stack[-1] = old
        if inside is not None:
            frame.run.atomics += missed
            if missed == frame.n:
                return
            keep = np.flatnonzero(inside)
            at, value = at.take(keep), value.take(keep)
            expected = None if expected is None else expected.take(keep)
        if unused and ufunc is not None:
            if at.shape[0] == 1:
                view.data[at] = ufunc(view.data[at], ufunc.reduce(value))
            else:
                ufunc.at(view.data, at, value)
            return
        if at.shape[0] != value.shape[0]:
            at = np.broadcast_to(at, value.shape)
        seen = _in_turn(op, ufunc, view.data, at, value, expected)
        if inside is None:
            stack[-1] = seen
        else:
            old[keep] = seen

    return step


def _in_turn(
    op: AtomicOp, ufunc: np.ufunc | None, data: Array, at: Array, value: Array, expected: Array | None
) -> Array:
    """Apply lane after lane; gives the old value that each of them found."""
    if expected is not None:
        return _compare_exchange(data, at, value, expected)
    order = np.argsort(at, kind="stable")
    at, value = at[order], value[order]
    first = np.ones(len(at), np.bool_)
    first[1:] = at[1:] != at[:-1]
    last = np.append(first[1:], True)
    found = data[at]
    later = np.flatnonzero(~first)
    if ufunc is None:
        found[later] = value[later - 1]
        data[at[last]] = value[last]
    else:
        scan = _scan(ufunc, value, first)
        data[at[last]] = ufunc(found[last], scan[last])
        found[later] = ufunc(found[later], scan[later - 1])
    seen = np.empty_like(found)
    seen[order] = found
    return seen


def _scan(ufunc: np.ufunc, value: Array, first: Array) -> Array:
    """Running results within runs that begin where `first` is set, by doubling distances."""
    position = np.arange(len(value))
    rank = position - np.maximum.accumulate(np.where(first, position, 0))
    scan = value.copy()
    distance, longest = 1, int(rank.max())
    while distance <= longest:
        far = np.flatnonzero(rank >= distance)
        scan[far] = ufunc(scan[far - distance], scan[far])
        distance *= 2
    return scan


def _compare_exchange(data: Array, at: Array, value: Array, expected: Array) -> Array:
    if len(np.unique(at)) == len(at):
        seen = data[at]
        swap = seen == expected
        data[at[swap]] = value[swap]
        return seen
    cells: dict[int, int] = {}
    result = []
    for i, new, want, now in zip(at.tolist(), value.tolist(), expected.tolist(), data[at].tolist(), strict=True):
        held = cells.get(i, now)
        result.append(held)
        if held == want:
            cells[i] = new
    if cells:
        data[list(cells)] = np.array(list(cells.values()), data.dtype)
    return np.array(result, data.dtype)


# ---- subgroups ------------------------------------------------------------------------------------------------------


def _seats(frame: Frame) -> tuple[Array, int]:
    """Where each lane sits when every workgroup is padded to whole subgroups, and how many seats there are."""
    lanes = frame.run.group_lanes
    padded = round_up(lanes, SUBGROUP_WIDTH)
    lane = frame.env[LANE]
    seat = lane if padded == lanes else lane // lanes * padded + lane % lanes
    return seat, frame.run.groups * padded


def _seated(value: Array, empty: Any, frame: Frame) -> tuple[Array, Array]:
    """Values as rows of 32 with `empty` where no lane is, and the seats."""
    seat, seats = _seats(frame)
    table = np.full(seats, empty, value.dtype)
    table[seat] = value
    return table.reshape(-1, SUBGROUP_WIDTH), seat


def _reduce(join: Callable[[Array, Array], Array], identity: Any) -> Step:
    partners = [np.arange(SUBGROUP_WIDTH) ^ distance for distance in reduction_offsets(SUBGROUP_WIDTH)]

    def step(stack: list[Array], frame: Frame) -> None:
        rows, seat = _seated(stack[-1], identity, frame)
        for others in partners:
            rows = join(rows, rows[:, others])
        stack[-1] = rows.reshape(-1)[seat]

    return step


def _shuffle(stack: list[Array], frame: Frame) -> None:
    source = frame.spread(stack.pop())
    rows, seat = _seated(stack[-1], 0, frame)
    start = seat - seat % SUBGROUP_WIDTH
    found = rows.reshape(-1)[start + np.minimum(source, SUBGROUP_WIDTH - 1)]
    stack[-1] = np.where(source < SUBGROUP_WIDTH, found, found.dtype.type(0))


def _ballot(dtype: DataType) -> Step:
    bits = np.uint32(1) << np.arange(SUBGROUP_WIDTH, dtype=np.uint32)

    def step(stack: list[Array], frame: Frame) -> None:
        rows, seat = _seated(truth(stack[-1], dtype), False, frame)
        words = np.bitwise_or.reduce(np.where(rows, bits, np.uint32(0)), axis=1)
        stack[-1] = words[seat // SUBGROUP_WIDTH]

    return step
