"""Every f32 operator over values that a compiler may see through: does the flush of subnormals survive it?

A compiler that knows where the bits of a number come from is tempted to leave the flush out: to test integers where the
program compares floats, to drop `x + 0` and `x * 1`, to compute with constants by rules of its own. So each *source* of
a number meets each operator and each other operand. An expression reads elements that no other reads, because a number
with several uses is flushed for the sake of one of them. Inputs are subnormals, their neighbours and the usual edges.

A program is run over whole tiles, and again with inputs that end inside the last one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..foundation.integers import ceil_div
from ..foundation.ir.dtypes import DataType, bf16, bool_, f16, f32, i32, u8, u16, u32
from ..foundation.ir.nodes import (
    Assign,
    Barrier,
    BinOp,
    Bitcast,
    Cast,
    Expr,
    Fma,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Node,
    Select,
    Store,
    UnOp,
    Var,
    lit,
)
from ..foundation.ir.ops import BinaryOp, UnaryOp
from ..foundation.ir.program import BufferDecl, Program, read, uniform, workgroup, write_only
from ..foundation.ir.rounding import f32_from_bits
from ..foundation.ir.visit import walk
from .programs.random import Case

EDGES = (
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x000000FF, 0x0000FF00, 0x00400000, 0x007FFFFF, 0x807FFFFF,
    0x00800000, 0x80800000, 0x00800001, 0x00FFFFFF, 0x3F7FFFFF, 0x3F800000, 0xBF800000, 0x3FC00000, 0x4B800000,
    0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001,
)  # fmt: skip
"""Bits of x and of y: zeros, subnormals, the smallest normal and its neighbours, ones, some more, infinities, NaNs."""
PAIRS = tuple((x, y) for x in EDGES for y in EDGES)
GROUPS = ceil_div(len(PAIRS), 64)
LANES = 64 * GROUPS
"""Invocations of a launch, and elements of a row: expression k reads and writes row k."""
TAIL = 37
"""Elements that the shorter inputs lack, so that the last row ends inside a workgroup."""
ROWS = 40
"""Expressions of a program."""
_MASK = 0x5A5A5A5A
_GID = InvocationId(0)


@dataclass(frozen=True)
class FloatCase:
    """A program whose row k computes `labels[k]`; `runs` name it over inputs of one length each."""

    name: str
    labels: tuple[str, ...]
    types: frozenset[DataType]
    runs: tuple[Case, ...]

    def differences(self, found: Sequence[bytes], expected: Sequence[bytes]) -> list[str]:
        """The expressions whose results differ, each with the first x and y at which they do."""
        lines = []
        for kind, (a, b) in zip(("f32", "u32"), zip(found, expected, strict=True), strict=True):
            words = [struct.unpack(f"<{len(data) // 4}I", data) for data in (a, b)]
            for k, label in enumerate(self.labels):
                row = slice(k * LANES, (k + 1) * LANES)
                wrong = [i for i, (x, y) in enumerate(zip(words[0][row], words[1][row], strict=True)) if x != y]
                if wrong:
                    i = wrong[0]
                    x, y = PAIRS[i % len(PAIRS)]
                    lines.append(
                        f"{self.name}: {label} as {kind} differs in {len(wrong)} of {LANES}, first in {i}, where x and "
                        f"y are made of {x:08x} and {y:08x}: {words[0][row][i]:08x} for {words[1][row][i]:08x}"
                    )
        return lines


# ---- operators ------------------------------------------------------------------------------------------------------

Operator = Callable[[Expr, Expr], Expr]


_OTHER_BITS = {
    "0": 0, "-0": 1 << 31, "1": 0x3F800000, "-1": 0xBF800000, "2^-126": 0x00800000, "1 - 2^-24": 0x3F7FFFFF,
    "inf": 0x7F800000, "nan": 0x7FC00000,
}  # fmt: skip
OTHERS: dict[str, Expr | None] = {name: lit(f32_from_bits(bits)) for name, bits in _OTHER_BITS.items()} | {"y": None}
"""Other operands by name; y is a variable of the same source."""
ZERO, MINUS_ZERO, ONE, TINY = (lit(x) for x in (0.0, -0.0, 1.0, f32_from_bits(0x00800000)))
BELOW_ONE = lit(f32_from_bits(0x3F7FFFFF))


def _unary() -> dict[str, Operator]:
    def of(op: UnaryOp) -> Operator:
        return lambda x, _: UnOp(op, x)

    plain = {op.text if op is not UnaryOp.NEGATE else "neg": op for op in UnaryOp if op.rule in ("float", "negate")}
    found: dict[str, Operator] = {f"{name} x": of(op) for name, op in plain.items()}
    found |= {f"{op.text} x": of(op) for op in UnaryOp if op.rule == "float_test"}
    found |= {
        "x": lambda x, _: x,
        "bool x": lambda x, _: Cast(bool_, x),
        "not x": lambda x, _: UnOp(UnaryOp.LOGICAL_NOT, Cast(bool_, x)),
        "x and true": lambda x, _: BinOp(BinaryOp.AND, Cast(bool_, x), lit(True)),
        "u32 x": lambda x, _: Cast(u32, x),
        "i32 x": lambda x, _: Bitcast(u32, Cast(i32, x)),
        "bits of x": lambda x, _: Bitcast(u32, x),
        "f16 x": lambda x, _: Cast(f32, Cast(f16, x)),
        "bf16 x": lambda x, _: Cast(f32, Cast(bf16, x)),
        "x == x": lambda x, _: x.eq(x),
        "x - x": lambda x, _: x - x,
        "x + x": lambda x, _: x + x,
        "x * x": lambda x, _: x * x,
        "x / x": lambda x, _: x / x,
        "2 if x else 3": lambda x, _: Select(Cast(bool_, x), lit(2.0), lit(3.0)),
    }
    for name, op in (("neg", UnaryOp.NEGATE), ("abs", UnaryOp.ABS), ("sqrt", UnaryOp.SQRT), ("sign", UnaryOp.SIGN)):
        found[f"{name} x == 0"] = lambda x, _, op=op: UnOp(op, x).eq(ZERO)  # type: ignore[misc]
        found[f"{name} x < 2^-126"] = lambda x, _, op=op: UnOp(op, x) < TINY  # type: ignore[misc]
    return found


def _binary() -> dict[str, Operator]:
    def of(op: BinaryOp) -> Operator:
        return lambda x, y: BinOp(op, x, y)

    found: dict[str, Operator] = {}
    for op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.DIV, BinaryOp.MIN, BinaryOp.MAX):
        found[f"x {op.text} y"] = of(op)
    found["y - x"] = lambda x, y: y - x
    found["y / x"] = lambda x, y: y / x
    for op in BinaryOp:
        if op.rule == "compare":
            found[f"x {op.text} y"] = of(op)
    found |= {
        "y < x": lambda x, y: y < x,
        "y >= x": lambda x, y: y >= x,
        "fma(x, y, 0)": lambda x, y: Fma(x, y, ZERO),
        "fma(x, y, -0)": lambda x, y: Fma(x, y, MINUS_ZERO),
        "fma(x, 1, y)": lambda x, y: Fma(x, ONE, y),
        "fma(y, 0, x)": lambda x, y: Fma(y, ZERO, x),
        "fma(0, y, x)": lambda x, y: Fma(ZERO, y, x),
        "fma(y, -0, x)": lambda x, y: Fma(y, MINUS_ZERO, x),
        "fma(x, y, y)": lambda x, y: Fma(x, y, y),
        "x - y == 0": lambda x, y: (x - y).eq(ZERO),
        "x * y == 0": lambda x, y: (x * y).eq(ZERO),
        "x + y != 0": lambda x, y: (x + y).ne(ZERO),
        "x / y == 0": lambda x, y: (x / y).eq(ZERO),
        "x if x < y else y": lambda x, y: Select(x < y, x, y),
        "y if x < y else x": lambda x, y: Select(x < y, y, x),
        "x if x >= y else y": lambda x, y: Select(x >= y, x, y),
        "x if x == y else y": lambda x, y: Select(x.eq(y), x, y),
        "(x if y == 0 else y) * y": lambda x, y: Select(y.eq(ZERO), x, y) * y,
        "(x + y) * 1": lambda x, y: (x + y) * ONE,
    }
    return found


Row = tuple[str, Operator, str]
"""An expression: its label, its operator, and the name of the other operand."""


def expressions() -> list[Row]:
    found = [(name, make, "1") for name, make in _unary().items()]
    for name, make in _binary().items():
        found += [(f"{name}, y = {other}", make, other) for other in OTHERS]
    return found


TEMPTING = frozenset((
    "bool x", "not x", "x and true", "2 if x else 3", "sqrt x == 0", "abs x < 2^-126", "x == y, y = 0",
    "x != y, y = -0", "x < y, y = y", "x - y == 0, y = 0", "x - y == 0, y = y", "x + y != 0, y = -0",
    "x * y == 0, y = 1", "x / y == 0, y = 1", "x + y, y = 0", "(x + y) * 1, y = -0", "x * y, y = 1 - 2^-24",
    "fma(x, y, -0), y = 1 - 2^-24", "fma(y, 0, x), y = -0", "fma(0, y, x), y = 0",
))  # fmt: skip
"""Labels of expressions that compilers were seen to get wrong, or nearly: they meet every source."""


# ---- sources --------------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """Where a source finds its elements, and where its statements go."""

    at: Expr
    number: int
    body: list[Node]

    def let(self, value: Expr) -> Var:
        name = f"t{len(self.body)}"
        self.body.append(Let(name, value))
        return Var(name)


Source = Callable[[_Place, str], Expr]
"""(place, "x" or "y") -> a number."""


def _bits(place: _Place, name: str) -> Expr:
    return Load(f"{name}_masked", place.at) ^ Load("mask", place.at)


def _from_loop(place: _Place, name: str) -> Expr:
    """A local that a loop sets to bits."""
    local = place.let(ZERO)
    place.body.append(Loop(f"k{local.name}", lit(0), lit(2), (Assign(local.name, Bitcast(f32, _bits(place, name))),)))
    return local


def _carried(place: _Place, name: str) -> Expr:
    """A local that goes round a loop, its sign changing twice."""
    local = place.let(Bitcast(f32, _bits(place, name)))
    place.body.append(Loop(f"k{local.name}", lit(0), lit(2), (Assign(local.name, -local),)))
    return local


def _shared(place: _Place, name: str) -> Expr:
    at = LocalId(0) + 64 * place.number
    place.body.append(Store(f"{name}_shared", at, Load(f"{name}_f32", place.at)))
    return Load(f"{name}_shared", at)


def _twice(place: _Place, name: str) -> Expr:
    """A word that an integer comparison looks at too."""
    word = place.let(_bits(place, name))
    return Select((word & 0xFF).eq(0xFE), lit(-1.0), Bitcast(f32, word))


SOURCES: dict[str, Source] = {
    "load": lambda place, name: Load(f"{name}_f32", place.at),
    "bits": lambda place, name: Bitcast(f32, _bits(place, name)),
    "loaded bits": lambda place, name: Bitcast(f32, Load(f"{name}_u32", place.at)),
    "bits without sign": lambda place, name: Bitcast(f32, Load(f"{name}_u32", place.at) & 0x7FFFFFFF),
    "u8": lambda place, name: Bitcast(f32, Cast(u32, Load(f"{name}_u8", place.at))),
    "u16": lambda place, name: Bitcast(f32, Cast(u32, Load(f"{name}_u16", place.at)) << 8),
    "f16": lambda place, name: Cast(f32, Load(f"{name}_f16", place.at)),
    "bf16": lambda place, name: Cast(f32, Load(f"{name}_bf16", place.at)),
    "uniform": lambda place, name: Load(f"{name}_uniform", lit(place.number)),
    "shared": _shared,
    "select": lambda place, name: Select(
        (Load("mask", place.at + 1) & 1).eq(0), Bitcast(f32, _bits(place, name)), Load(f"{name}_f32", place.at)
    ),
    "word used twice": _twice,
    "local of a loop": _from_loop,
    "carried by a loop": _carried,
    "literal": lambda place, name: Bitcast(f32, lit(EDGES[(5 * place.number + (name == "y")) % len(EDGES)])),
    "select of literals": lambda place, name: Select(
        (Load("mask", place.at) >> (place.number % 32) & 1).eq(0), BELOW_ONE if name == "y" else TINY, lit(-1.0)
    ),
}
KNOWN = ("load", "bits", "loaded bits", "f16", "bf16", "local of a loop", "carried by a loop", "word used twice")
"""Sources that are also used in a branch that says which bits they have, so that a compiler may compute there."""
WAYS = tuple((source, False) for source in SOURCES) + tuple((source, True) for source in KNOWN)
"""Every source, and whether a branch knows its bits."""
_ELEMENTS = {"f32": f32, "u32": u32, "masked": u32, "u8": u8, "u16": u16, "f16": f16, "bf16": bf16}
_EQUAL_TO = (0x00800000, 0x3F7FFFFF, 0x3F800000, 0xBF800000, 0x00000000, 0x80000000, 0x3F000000, 0x7F800000)
"""Bits that a branch may ask for. The product of the first two is the tiny number that machines do not agree on."""


def _bytes(element: DataType, column: Sequence[int], of_y: bool) -> bytes:
    """Elements made of these bits."""
    size = element.size or 0
    match element.name:
        case "bf16":
            column = [bits >> 16 for bits in column]
        case "f16":
            halves = (0, 0x8000, 1, 0x8001, 0x03FF, 0x0400, 0x3BFF, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00)
            column = [halves[EDGES.index(bits) % len(halves)] for bits in column]
        case "u8" | "u16":
            column = [bits & 0xFF if element is u8 else bits >> (8 if of_y else 0) & 0xFFFF for bits in column]
    return b"".join(bits.to_bytes(size, "little") for bits in column)


def _data(decl: BufferDecl, rows: int, short: bool, turn: int) -> bytes:
    """The input of that name for so many rows. A uniform number is another one in each turn."""
    name, _, kind = decl.name.partition("_")
    of_y = name == "y"
    if kind == "uniform":
        return struct.pack("<I", EDGES[(7 * turn + 3 if of_y else turn) % len(EDGES)]) * rows
    column = [_MASK if name == "mask" else PAIRS[i % len(PAIRS)][of_y] for i in range(LANES)]
    if kind == "masked":
        column = [bits ^ _MASK for bits in column]
    whole = _bytes(decl.element, column, of_y) * rows
    return whole[: -TAIL * (decl.element.size or 0)] if short else whole


def _stored(at: Expr, value: Expr) -> Node:
    """Numbers go to one output, words and truths to the other."""
    match value:
        case Bitcast(target=DataType(name="u32")) | Cast(target=DataType(name="u32")):
            return Store("words", at, value)
        case Cast(target=DataType(name="bool")) | BinOp(op=BinaryOp(rule="compare" | "logic")):
            return Store("words", at, Cast(u32, value))
        case UnOp(op=UnaryOp(rule="float_test" | "logic")):
            return Store("words", at, Cast(u32, value))
    return Store("numbers", at, value)


def name_of(source: str, known: bool) -> str:
    return f"{source} that a branch knows" if known else source


def _program(source: str, rows: Sequence[Row], known: bool, lanes: int) -> Program:
    """One row for each expression."""
    before: list[Node] = []
    stores: list[Node] = []
    for k, (_, make, other) in enumerate(rows):
        place = _Place(_GID + k * LANES, k, before)
        x, y = SOURCES[source](place, "x"), OTHERS[other]
        right = _OTHER_BITS.get(other, _EQUAL_TO[(k + 1) % len(_EQUAL_TO)])
        if y is None or known:
            y = SOURCES[source](place, "y")
        if not known:
            stores.append(_stored(place.at, make(x, y)))
            continue
        x, y = place.let(x), place.let(y)
        store = If(Bitcast(u32, y).eq(lit(right)), (_stored(place.at, make(x, y)),))
        stores.append(If(Bitcast(u32, x).eq(lit(_EQUAL_TO[k % len(_EQUAL_TO)])), (store,)))
    body = [*before, Barrier(), *stores] if source == "shared" else [*before, *stores]
    return Program(_buffers(body, len(rows)), (lanes, 1, 1), body)


def _buffers(body: Sequence[Node], rows: int) -> list[BufferDecl]:
    """What the statements name."""
    names = sorted({item.buffer for item in walk(body) if isinstance(item, Load)})
    found = []
    for slot, name in enumerate(names):
        kind = name.partition("_")[2]
        if kind == "shared":
            found.append(workgroup(name, f32, 64 * rows))
        elif kind == "uniform":
            found.append(uniform(name, slot, f32, rows))
        else:
            found.append(read(name, slot, _ELEMENTS[kind or "u32"]))
    size = rows * LANES
    return [*found, write_only("numbers", len(names), f32, size), write_only("words", len(names) + 1, u32, size)]


def _case(source: str, rows: Sequence[Row], known: bool, lanes: int) -> FloatCase:
    program = _program(source, rows, known, lanes)
    turns = range(len(EDGES)) if source == "uniform" else range(2)
    runs = []
    for turn in turns:
        inputs = tuple(_data(b, len(rows), turn == 1, turn) for b in program.host_inputs)
        runs.append(Case(program, inputs, (LANES // lanes, 1, 1), {}))
    types = {b.element for b in program.buffers} | {e.target for e in walk(program.entry) if isinstance(e, Cast)}
    name = f"{name_of(source, known)}, in groups of {lanes}"
    return FloatCase(name, tuple(label for label, *_ in rows), frozenset(types), tuple(runs))


def quick_case(source: str, known: bool) -> FloatCase:
    """One source with tempting expressions and a share of the others. Over all `WAYS` every expression occurs."""
    rows, turn = expressions(), WAYS.index((source, known))
    tempting = [row for row in rows if row[0] in TEMPTING]
    others = [row for row in rows if row[0] not in TEMPTING]
    chosen = tempting[turn % 2 :: 2] if known else tempting
    return _case(source, chosen + others[turn :: len(WAYS)], known, 1 if known else 64)


def full_cases(source: str, known: bool) -> Iterator[FloatCase]:
    """Every expression over one source, by lanes alone and side by side; where a branch knows bits, alone: lanes that
    part do not branch."""
    rows = expressions()
    for lanes in (1,) if known else (64,) if source == "shared" else (1, 64):
        for k in range(0, len(rows), ROWS):
            yield _case(source, rows[k : k + ROWS], known, lanes)
