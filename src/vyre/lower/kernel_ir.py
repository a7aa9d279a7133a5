"""The kernel form: what every emitter prints. Typed, flat, legal.

A body is a list of instructions in evaluation order. An instruction *is* its value: operands are the instructions that
made them, so there are no names and no scopes. Control flow is structured: `If` and `Loop` hold bodies of their own.
Locals that a program changes are `Local`s, read by `get` and written by `set`; every other `let` is just a value.

Legal means that each operation has a result for all operands on every machine: divisors are not zero and do not
overflow, shift counts are below the width, conversions of floats saturate, f16 and bf16 are f32 values that were
rounded, narrow integers are 32-bit values that were wrapped. What is left to an emitter is printing.

Registers have seven types: bool u32 i32 u64 i64 f32 f64. The instructions are the rows of `instructions.py`; `If` and
`Loop` are classes of their own.

A subnormal f32 comes from `load` and `bitcast` alone, and under `soft_flush` from the arithmetic that
`canonical_float.py` then flushes. Without it the machine reads subnormal operands of + - * / sqrt, fma and comparisons
as zero and flushes what these give, so that a `flush` before + - * / and fma, where `firm` also sqrt, may be missing;
all other instructions take operands as they are.
A `subgroup` reduction of floats gives canonical sums and products in every mode: its steps are those of
`canonical_float.py`.

Loads, stores and atomics carry `guarded`: the access is out of bounds for some lane unless the emitter tests it. With
`covered` set, the access is in bounds in every tile for which the kernel's `check` gives true, so an emitter that
versions its body leaves out the test there, provided that it takes the values of `TileCheck.loads` from there. `whole`
are the steps of its index that do not wrap where the access needs no test: an emitter may compute them in more bits.

A `guarded` select is the test of the axes of a buffer: its condition says that the first value is meant, and `covered`
that this is so in every tile for which the check gives true.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, TypeAlias

from ..foundation.integers import U32_MAX
from ..foundation.ir.dtypes import DataType
from .instructions import PURE as PURE
from .registers import BITS as BITS
from .registers import FLOATS as FLOATS
from .registers import SIGNED as SIGNED
from .registers import UNSIGNED as UNSIGNED

GRID = "grid"


@dataclass(slots=True, eq=False)
class Buffer:
    """A buffer as kernels see it: `slot` indexes pointers and lengths, shared ones come after the bound ones.

    `count` is the static length of a shared buffer. `private` asks the emitter for a copy per worker, to which its
    order-free atomics go without contention (see `privatize`). Of a shared one that is `own`, each lane has its own.
    """

    name: str
    slot: int
    element: DataType
    shared: bool = False
    writable: bool = False
    count: int = 0
    private: bool = False
    own: bool = False

    @property
    def register(self) -> str:
        """The register type of an element."""
        return register_of(self.element)


@dataclass(slots=True, eq=False)
class Local:
    """A local that the program changes. `uniform`: every lane of a workgroup always holds the same value."""

    name: str
    dtype: str
    uniform: bool = False


@dataclass(slots=True, eq=False)
class Ins:
    """One instruction, and its value. `uniform`: the same in every lane of a workgroup."""

    op: str
    dtype: str = ""
    args: tuple[Ins, ...] = ()
    attr: Any = None
    uniform: bool = False
    guarded: bool = False
    covered: bool = False
    used: bool = True
    whole: frozenset[Ins] = frozenset()

    def __repr__(self) -> str:
        attr = getattr(self.attr, "name", self.attr)
        return f"{self.op}{'' if attr is None else f'[{attr}]'}:{self.dtype}"


@dataclass(slots=True, eq=False)
class If:
    """`uniform`: the lanes of a workgroup agree."""

    condition: Ins
    then: Body
    orelse: Body = field(default_factory=list)
    uniform: bool = False
    op = "if"


@dataclass(slots=True, eq=False)
class Loop:
    """The counter (an `index` instruction of this loop) runs from `start` below `stop`, both u32.

    With `live`, a local of bool or u32, the loop ends as soon as that is false or 0: every iteration begins with
    the test. With `endless`, nothing else ends it: the counter is not used, and there is no `stop` to reach.
    """

    start: Ins
    stop: Ins
    body: Body = field(default_factory=list)
    live: Local | None = None
    uniform: bool = False
    endless: bool = False
    op = "loop"

    @property
    def is_forever(self) -> bool:
        """Whether it has as many turns as a loop can have, so that only `live` ends it."""
        start, stop = self.start, self.stop
        whole = start.op == stop.op == "const" and (start.attr, stop.attr) == (0, U32_MAX)
        return self.live is not None and whole


Statement = Ins | If | Loop
Body = list[Statement]


@dataclass(slots=True, eq=False)
class TileCheck:
    """Straight-line uniform code before a tile of workgroups: `ok` says that covered accesses fit.

    Only pure instructions and guarded loads of read-only buffers; no floats. `loads` are the loads of the kernel that
    `ok` depends on, each with the one here that stands for it. A caller's thread may change the memory after the check:
    where `ok` holds, those loads have the values that the check has read, and do not read again.
    """

    body: list[Ins]
    ok: Ins
    loads: dict[Ins, Ins] = field(default_factory=dict)


Bound: TypeAlias = int | Ins
_BITS64 = (1 << 64) - 1
SIGNED_STEPS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "min": min, "max": max
}  # fmt: skip


class CheckCode:
    """Straight-line code, each step once, after the steps that are there already."""

    def __init__(self, body: Iterable[Ins] = ()) -> None:
        self.body = list(body)
        self._made: dict[Any, Ins] = {(i.op, i.dtype, i.args, i.attr): i for i in self.body}

    def emit(self, op: str, dtype: str, *args: Ins, attr: Any = None) -> Ins:
        key = op, dtype, args, attr
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Ins(op, dtype, args, attr, uniform=True, guarded=op == "load")
            self.body.append(found)
        return found

    def value(self, bound: Bound, dtype: str = "u64") -> Ins:
        return self.emit("const", dtype, attr=bound & _BITS64) if isinstance(bound, int) else bound

    def with_sign(self, op: str, a: Bound, b: Bound) -> Bound:
        """One i64 step: add, sub, mul, min or max."""
        if isinstance(a, int) and isinstance(b, int):
            return SIGNED_STEPS[op](a, b)
        if a is b and op in ("min", "max"):
            return a
        if b == 0 and op in ("add", "sub"):
            return a
        return self.emit(op, "i64", self.value(a, "i64"), self.value(b, "i64"))

    def do(self, op: str, a: Bound, b: Bound) -> Bound:
        """One u64 step; `sub` and `div` are legal."""
        if isinstance(a, int) and isinstance(b, int):
            match op:
                case "add":
                    return a + b
                case "sub":
                    return max(a - b, 0)
                case "mul":
                    return a * b
                case "div":
                    return a // max(b, 1)
                case "min":
                    return min(a, b)
                case _:
                    return max(a, b)
        if b == 0 and op in ("add", "sub", "max"):
            return a
        if a == 0 and op in ("add", "max"):
            return b
        if (a == 0 or b == 0) and op in ("mul", "min"):
            return 0
        if b == 1 and op in ("mul", "div"):
            return a
        if a == 1 and op == "mul":
            return b
        if a is b and op in ("min", "max"):
            return a
        return self.emit(op, "u64", self.value(a), self.value(b))

    def less_by(self, a: Bound, b: Bound) -> Bound:
        """a - b, or 0 where that is negative."""
        return self.do("sub", self.do("max", a, b), b)

    def compare(self, op: str, a: Bound, b: Bound, dtype: str = "u64") -> bool | Ins:
        """`lt` or `le`."""
        if isinstance(a, int) and isinstance(b, int):
            return a < b if op == "lt" else a <= b
        if a is b or (a == 0 and op == "le" and dtype == "u64"):
            return op == "le"
        return self.emit(op, "bool", self.value(a, dtype), self.value(b, dtype))

    def all_of(self, conditions: Sequence[Ins]) -> Ins:
        """One condition that holds where all of them do."""
        ok = conditions[0] if conditions else self.emit("const", "bool", attr=True)
        for condition in conditions[1:]:
            ok = self.emit("and", "bool", ok, condition)
        return ok

    def any_of(self, ways: Iterable[Sequence[Ins]]) -> Ins:
        """One that holds where all conditions of one of them do."""
        return reduce(lambda a, b: self.emit("or", "bool", a, b), map(self.all_of, ways))


def needed_by(code: Sequence[Ins], values: Iterable[Ins]) -> set[Ins]:
    """These steps of straight-line code, and all that they are computed from."""
    needed = set(values)
    for item in reversed(code):
        if item in needed:
            needed.update(item.args)
    return needed


PlaneBound: TypeAlias = "tuple[int, bool, Ins]"
"""An axis, whether ids along it are below the value or at most it, and that value."""


@dataclass(frozen=True, slots=True)
class Plane:
    """Element `y * width + x` is stored by invocation (x, y, 0), provided that the ids of the invocations that this
    takes keep the bounds. No width: element x, by (x, 0, 0). All values are of constants, lengths, and words of buffers
    that the kernel does not write."""

    width: Ins | None
    bounds: tuple[PlaneBound, ...]


@dataclass(slots=True, eq=False)
class Kernel:
    """One launch. `buffers` are in slot order.

    `stored` names the output buffers of which every element below the length is stored, provided that the grid has
    exactly one invocation along y and z and, times the share that goes with the name, at least that many along x. A
    share is computed from constants and lengths (`passes.stored.share_of`).
    """

    workgroup: tuple[int, int, int]
    buffers: tuple[Buffer, ...]
    body: Body
    check: TileCheck | None = None
    stored: dict[str, Ins] = field(default_factory=dict)
    planes: dict[str, Plane] = field(default_factory=dict)
    """Other output buffers of which every element is stored, where a call's numbers say so."""
    soft_flush: bool = False
    firm: bool = False
    poll: bool = False
    by_turns: bool = False
    traps: tuple[str, ...] = ()
    meets: bool = False
    """Lanes of the program wait for each other, so that one that ends alone may keep others waiting."""
    turned: bool = False
    """x and y have changed places."""

    @property
    def lanes(self) -> int:
        x, y, z = self.workgroup
        return x * y * z

    def turn(self) -> None:
        """Let x and y change places; a second time they change back."""
        for item in (*walk(self.body), *(self.check.body if self.check else ())):
            if isinstance(item, Ins) and item.op in ("gid", "wid", "lid", "gid_lo", "gid_hi") and item.attr < 2:
                item.attr = 1 - item.attr
        x, y, z = self.workgroup
        self.workgroup, self.turned = (y, x, z), not self.turned

    @property
    def axes(self) -> tuple[int, int, int]:
        """For each axis the one that the program calls so."""
        return (1, 0, 2) if self.turned else (0, 1, 2)

    @property
    def whole(self) -> bool:
        """Whether its workgroups wait for each other, so that all of a launch must run at once."""
        return any(isinstance(i, Ins) and i.op == "barrier" and i.attr == GRID for i in walk(self.body))


def register_of(element: DataType) -> str:
    """The type in which elements are loaded and stored; the words of a bool buffer are u32."""
    name = element.name
    if name == "bool":
        return "u32"
    if name in ("u8", "u16"):
        return "u32"
    if name in ("i8", "i16"):
        return "i32"
    return "f32" if name in ("f16", "bf16") else name


def bodies(item: Statement) -> tuple[Body, ...]:
    """The bodies directly inside a statement."""
    if isinstance(item, If):
        return item.then, item.orelse
    return (item.body,) if isinstance(item, Loop) else ()


def operands(item: Statement) -> tuple[Ins, ...]:
    """The values that a statement uses itself."""
    if isinstance(item, If):
        return (item.condition,)
    return (item.start, item.stop) if isinstance(item, Loop) else item.args


def walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every instruction and statement in program order, those inside bodies included."""
    stack: list[Statement] = list(reversed(body))
    while stack:
        item = stack.pop()
        yield item
        for inner in reversed(bodies(item)):
            stack.extend(reversed(inner))


def show(kernel: Kernel) -> str:
    """The kernel as text, for people and tests."""
    names: dict[int, str] = {}
    lines: list[str] = []

    def name(value: Ins) -> str:
        return names.setdefault(id(value), f"%{len(names)}")

    def attr(value: Any) -> str:
        if isinstance(value, tuple):
            return ", ".join(map(attr, value))
        if isinstance(value, Loop):
            return name(value)  # type: ignore[arg-type]
        return str(getattr(value, "name", value))

    def line(item: Statement, indent: str) -> None:
        if isinstance(item, If):
            lines.append(f"{indent}if{' uniform' * item.uniform} {name(item.condition)}")
        elif isinstance(item, Loop):
            live = f" while {item.live.name}" if item.live else ""
            label = name(item)  # type: ignore[arg-type]
            bounds = "endless" if item.endless else f"{name(item.start)}..{name(item.stop)}"
            lines.append(f"{indent}loop{' uniform' * item.uniform} {label} {bounds}{live}")
        else:
            to = f"{name(item)} = " if item.dtype else ""
            at = "" if item.attr is None else f"[{attr(item.attr)}]"
            flags = " uniform" * item.uniform + " guarded" * item.guarded + " covered" * item.covered
            args = "".join(f" {name(a)}" for a in item.args)
            lines.append(f"{indent}{to}{item.op}{at}{f' {item.dtype}' * bool(item.dtype)}{args}{flags}")

    if kernel.check is not None:
        lines.append("check")
        for step in kernel.check.body:
            line(step, "  ")
        lines.append(f"  ok {name(kernel.check.ok)}")
    unvisited: list[tuple[Statement | str, str]] = [(item, "") for item in reversed(kernel.body)]
    while unvisited:
        item, indent = unvisited.pop()
        if isinstance(item, str):
            lines.append(item)
            continue
        line(item, indent)
        for k, inner in reversed(list(enumerate(bodies(item)))):
            unvisited.extend((part, indent + "  ") for part in reversed(inner))
            if k and inner:
                unvisited.append((f"{indent}else", indent))
    return "\n".join(lines)
