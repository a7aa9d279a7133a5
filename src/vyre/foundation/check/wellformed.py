"""Is this a program at all? Every field holds its declared kind, and the whole is small enough to walk.

Construction checks nothing, and shared parts make a tree that is exponentially larger than its objects. This pass looks
at each object once; whatever passes it can be walked, typed and encoded without further care.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ...errors import DiagCode
from ..ir import nodes as ir
from ..ir.dtypes import ARRAY_TAG, OPAQUE_TAG, QUANTIZED_TAG, SIMPLE, VEC_TAG, DataType
from ..ir.nodes import Expr, Lit, Node, Span, f32_bits, show_number
from ..ir.ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from ..ir.program import Access, BufferDecl, Hints, LinearType, Locality, MemoryKind, Predicate, Program
from ..ir.report import Limits, Path, Report
from ..ir.value import Value

MOST_FINDINGS = 20  # a program built from the wrong things is wrong everywhere
PREDICATE_DEPTH = 32
LITERALS = frozenset(("u32", "i32", "f32", "bool", "u64", "i64", "f64"))
PARAMETRIC = (ARRAY_TAG, VEC_TAG, QUANTIZED_TAG, OPAQUE_TAG)
CLASSES = frozenset(
    c for c in vars(ir).values() if isinstance(c, type) and issubclass(c, Expr | Node) and c not in (Expr, Node)
)

Trail = tuple[Any, str | int] | None
"""A path as a linked list: it is spelt out only for a finding."""


class Size(NamedTuple):
    """How much lies below one object, itself included."""

    nodes: int = 0
    expressions: int = 0
    nesting: int = 0
    expression_depth: int = 0
    depth: int = 0


def check_form(program: Program, limits: Limits, report: Report) -> bool:
    """Whether later passes may walk the program freely; if not, `report` says why."""
    found = Report()
    for path, message in _malformed_header(program):
        found.add(DiagCode.V217, "program", path, message)
    sizes: dict[int, Size] = {}
    misfits = list(islice(_malformed_body(program, sizes), MOST_FINDINGS))
    for trail, span, message in misfits:
        found.add(DiagCode.V217, "program", spell(trail), message, span=span)
    if not misfits:
        _check_limits(program, limits, sizes, found)
    for issue in found:
        report.add(issue.code, issue.phase, issue.path, issue.message, issue.fix, span=issue.span)
    return not found


def spell(trail: Trail) -> Path:
    """The path that a linked list of keys stands for."""
    keys: list[str | int] = []
    while trail is not None:
        trail, key = trail
        keys.append(key)
    return tuple(keys[::-1])


def parts(item: Expr | Node) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Everything directly inside an expression or statement with the keys that lead to it, in program order."""
    for name in (*item.expr_fields, *item.body_fields):
        value = getattr(item, name)
        if isinstance(value, tuple):
            yield from (((name, i), v) for i, v in enumerate(value))
        elif value is not None:
            yield (name,), value


# ---- fields ---------------------------------------------------------------------------------------------------------


def _is_text(value: object) -> bool:
    if type(value) is not str or len(value) > Limits().text:
        return False
    return not any("\ud800" <= c <= "\udfff" for c in value) if not value.isascii() else True


def _is_type(value: object) -> bool:
    if not isinstance(value, DataType) or type(value.tag) is not int:
        return False
    return value == SIMPLE[value.tag] if value.tag in SIMPLE else value.tag in PARAMETRIC


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: type(value) in kinds


def _is_range(value: object) -> bool:
    return value is None or (
        isinstance(value, tuple) and len(value) == 2 and all(type(v) is int and 0 <= v < 1 << 64 for v in value)
    )


_FIELD_CHECKS: dict[str, Callable[[object], bool]] = {
    "str": _is_text,
    "str | None": lambda v: v is None or _is_text(v),
    "int": _is(int),
    "int | None": _is(int, type(None)),
    "bool": _is(bool),
    "bytes": _is(bytes),
    "DataType": _is_type,
    "BinaryOp | OpaqueOp": _is(BinaryOp, OpaqueOp),
    "UnaryOp | OpaqueOp": _is(UnaryOp, OpaqueOp),
    "AtomicOp | OpaqueOp": _is(AtomicOp, OpaqueOp),
    "ReduceOp": _is(ReduceOp),
    "CollectiveOp": _is(CollectiveOp),
    "Ordering": _is(Ordering),
    "Access": _is(Access),
    "MemoryKind | None": _is(MemoryKind),
    "Hints": _is(Hints),
    "Locality": _is(Locality),
    "LinearType": _is(LinearType),
    "tuple[int, int] | None": _is_range,
    "Predicate | None": lambda v: v is None or _is_predicate(v),
}
_TREES = frozenset(("Expr", "Expr | None", "tuple[Expr, ...]", "tuple[Node, ...]"))
_BITS = {"binding": 32, "count": 32, "group": 32, "root": 32, "count_offset": 64, "preferred_alignment": 32, "id": 32}
"""Integer fields that are unsigned on the wire. Axes have a rule of their own."""


def _bad_fields(value: Value) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for every field that is not itself a tree."""
    for name in value.compared:
        kind = value._kinds[name]
        if kind in _TREES:
            continue
        given = getattr(value, name)
        if not _FIELD_CHECKS[kind](given):
            yield name, f"{type(value).__name__}.{name} is {_show(given)}, not {kind}"
        elif name in _BITS and type(given) is int and not 0 <= given < 1 << _BITS[name]:
            said = f"{type(value).__name__}.{name} is {show_number(given)}"
            yield name, f"{said}, which {_BITS[name]} unsigned bits cannot hold"


def _show(value: object) -> str:
    if isinstance(value, int | float):
        return show_number(value)
    text = repr(value) if isinstance(value, bytes | str | type(None)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


def _is_predicate(root: object) -> bool:
    stack = [(root, 1)]
    while stack:
        item, depth = stack.pop()
        if type(item) is not Predicate or depth > PREDICATE_DEPTH:
            return False
        if item.kind in ("and", "or", "not"):
            if len(item.args) != (1 if item.kind == "not" else 2):
                return False
            stack.extend((arg, depth + 1) for arg in item.args)
            continue
        arity = {"at_least": 1, "at_most": 1, "exactly": 1, "multiple_of": 1, "mod_equals": 2, "affine": 4}
        if len(item.args) != arity.get(item.kind) or not all(type(a) is int for a in item.args):
            return False
    return True


def _bad_literal(literal: Lit) -> str | None:
    t, bits = literal.dtype, literal.bits
    if t.name not in LITERALS:
        return f"{t} has no literals"
    if not 0 <= bits < (2 if t.name == "bool" else 1 << (t.bits or 0)):
        return f"a {t} literal has bits {_show(bits)}"
    if t.name == "f32" and (bits == 0x80000000 or f32_bits(float(literal.value)) != bits):
        return f"0x{bits:08x} is not a canonical f32 literal"
    return None


# ---- walks ----------------------------------------------------------------------------------------------------------


def _malformed_header(program: Any) -> Iterator[tuple[Path, str]]:
    for i, buffer in enumerate(program.buffers):
        if type(buffer) is not BufferDecl:
            yield ("buffers", i), f"{_show(buffer)} is not a buffer"
            continue
        for name, message in _bad_fields(buffer):
            yield ("buffers", i, name), message
        if type(buffer.hints) is Hints:
            for name, message in _bad_fields(buffer.hints):
                yield ("buffers", i, "hints", name), message
            axis = buffer.hints.coalesce_axis
            if type(axis) is int and not 0 <= axis < 256:
                yield ("buffers", i, "hints", "coalesce_axis"), f"coalesce axis is {show_number(axis)}"
    if program.entry_op_id is not None and not _is_text(program.entry_op_id):
        yield ("entry_op_id",), f"op id is {_show(program.entry_op_id)}, not a string"
    if type(program.exclusive) is not bool:
        yield ("exclusive",), f"exclusive is {_show(program.exclusive)}, not a bool"


def _malformed_body(program: Program, sizes: dict[int, Size]) -> Iterator[tuple[Trail, Span | None, str]]:
    """Every misfit at its first occurrence. Fills `sizes` by object, each object visited once."""
    visited: set[tuple[int, type]] = set()
    top: Trail = (None, "entry")
    stack: list[tuple[Any, type, Trail, Span | None, bool]] = [
        (node, Node, (top, i), None, False) for i, node in reversed(list(enumerate(program.entry)))
    ]
    while stack:
        item, base, trail, span, ready = stack.pop()
        if ready:
            sizes[id(item)] = _measure(item, sizes)
            continue
        if (id(item), base) in visited:
            continue
        visited.add((id(item), base))
        if type(item) not in CLASSES or not isinstance(item, base):
            yield trail, span, f"{_show(item)} is not {'a statement' if base is Node else 'an expression'}"
            continue
        if isinstance(item, Node) and type(item.span) is Span:
            span = item.span
        bad = dict(_bad_fields(item))
        for name, message in bad.items():
            yield (trail, name), span, message
        if type(item) is Lit and not bad and (wrong := _bad_literal(item)):
            yield trail, span, wrong
        stack.append((item, base, trail, span, True))
        below: list[tuple[Any, type, Trail, Span | None, bool]] = []
        for name in (*item.expr_fields, *item.body_fields):
            kind, value = item._kinds[name], getattr(item, name)
            wanted = Node if name in item.body_fields else Expr
            if kind.startswith("tuple"):
                below.extend((v, wanted, ((trail, name), i), span, False) for i, v in enumerate(value))
            elif value is not None or kind == "Expr":
                below.append((value, wanted, (trail, name), span, False))
        stack.extend(reversed(below))


def _measure(item: Expr | Node, sizes: dict[int, Size]) -> Size:
    below = [sizes.get(id(child), Size()) for _, child in parts(item)]  # a misfit has no size, and was reported
    statement = isinstance(item, Node)
    return Size(
        statement + sum(s.nodes for s in below),
        (not statement) + sum(s.expressions for s in below),
        statement + max((s.nesting for s in below), default=0),
        (not statement) + max((s.expression_depth for s in below), default=0),
        1 + max((s.depth for s in below), default=0),
    )


def _check_limits(program: Program, limits: Limits, sizes: dict[int, Size], report: Report) -> None:
    roots = [sizes[id(node)] for node in program.entry]
    nodes, expressions = sum(s.nodes for s in roots), sum(s.expressions for s in roots)
    if nodes > limits.nodes:
        report.add(DiagCode.V019, "limits", ("entry",), f"{_count(nodes)} statements, of which {limits.nodes} may be")
    elif expressions > limits.expressions:
        message = f"{_count(expressions)} expressions, of which {limits.expressions} may be"
        report.add(DiagCode.V019, "limits", ("entry",), message)
    if len(program.buffers) > limits.buffers:
        message = f"{len(program.buffers)} buffers, of which {limits.buffers} may be"
        report.add(DiagCode.V019, "limits", ("buffers",), message)
    deepest = Size(*(max((s[k] for s in roots), default=0) for k in range(len(Size._fields))))

    def too_deep(code: DiagCode, measure: str, limit: int, what: str, fix: str) -> None:
        path, span = _first_beyond(program, sizes, measure, limit)
        message = f"{what} are nested {getattr(deepest, measure)} deep, of which {limit} may be"
        report.add(code, "limits", path, message, fix, span=span)

    if deepest.nesting > limits.nesting:
        too_deep(DiagCode.V018, "nesting", limits.nesting, "statements", "")
    if deepest.expression_depth > limits.expression_depth:
        too_deep(DiagCode.V033, "expression_depth", limits.expression_depth, "expressions", "")
    if not report and deepest.depth > limits.depth:
        fix = "" if deepest.nesting > deepest.expression_depth else DiagCode.V033.fix
        too_deep(DiagCode.V018, "depth", limits.depth, "statements and expressions together", fix)


def _count(number: int) -> str:
    return str(number) if number < 1 << 40 else "over 2**40"


def _first_beyond(program: Program, sizes: dict[int, Size], measure: str, limit: int) -> tuple[Path, Span | None]:
    """The first place, in program order, that lies deeper than `limit`."""
    path: Path = ("entry",)
    span: Span | None = None
    level = 0
    children: list[tuple[tuple[str | int, ...], Any]] = [((i,), n) for i, n in enumerate(program.entry)]
    while True:
        keys, item = next((k, c) for k, c in children if level + getattr(sizes[id(c)], measure) > limit)
        path += keys
        if isinstance(item, Node) and type(item.span) is Span:
            span = item.span
        # levels of the other kind do not count toward this measure
        level += measure == "depth" or (measure == "nesting") == isinstance(item, Node)
        if level > limit:
            return path, span
        children = list(parts(item))
