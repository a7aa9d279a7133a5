"""The rules a program must keep, checked once and all together.

Three passes: the form (is this a program, and of bearable size), then header, statements and expressions, then the
facts that need the whole: uniform control flow and grid-wide barriers. A program that fails the first is reported as
that alone. Findings come in program order; an unknown type or name breaks no further rule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from ...errors import ArgumentTypeError, DiagCode, InvalidProgram
from ..ir.dtypes import ARRAY_TAG, bytes_, u32
from ..ir.nodes import (
    AllGather,
    AllReduce,
    Assign,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    Block,
    Broadcast,
    BufferRef,
    Expr,
    If,
    IndirectDispatch,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    OpaqueNode,
    ReduceScatter,
    Region,
    Return,
    Store,
    Trap,
)
from ..ir.ops import Ordering
from ..ir.program import MAX_OWN_BYTES, Access, BufferDecl, LinearType, Predicate, Program
from ..ir.report import Capabilities, Issue, Limits, Path, Report
from ..ir.visit import Scopes, Steps, children, distinct, run_nested, walk
from . import gridsync
from .requirements import op_ids
from .typing import TRUTHS, Type
from .uniform import divergences
from .validate_expr import ExprRules
from .wellformed import check_form, parts

__all__ = ["Capabilities", "Issue", "Limits", "check", "validate"]

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
SELF_EXCLUSIVE = "#self-exclusive"
SHOWN = 5
Say = Callable[..., None]
"""Reports a code and a message (then phase, fix) at the statement in hand."""


def validate(
    program: Program,
    capabilities: Capabilities | None = None,
    *,
    allow_shadowing: bool = False,
    fused: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
) -> list[Issue]:
    """Every finding, empty when the program is good; whatever a `Program` holds, this does not raise.

    Without `capabilities` the answer holds for any target, so features that only some offer are refused. `fused` makes
    unordered plain and atomic access to one buffer an error: the two halves of a merged program do not know each other.
    """
    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"a {type(program).__name__} is not a program", fix="pass a vyre.Program, such as kernel.program"
        )
    for name, value, kind in (
        ("capabilities", capabilities, Capabilities),
        ("allow_shadowing", allow_shadowing, bool),
        ("fused", fused, bool),
        ("limits", limits, Limits),
    ):
        if not isinstance(value, kind) and not (value is None and kind is Capabilities):
            raise ArgumentTypeError(
                f"{name} of validate() is a {type(value).__name__}", fix=f"pass a {kind.__name__}, or leave it out"
            )
    key = ("issues", capabilities, allow_shadowing, fused, limits)
    return list(program._cached(key, lambda: _validate(program, capabilities, allow_shadowing, fused, limits)))


def check(
    program: Program,
    capabilities: Capabilities | None = None,
    *,
    allow_shadowing: bool = False,
    fused: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - a frozen value
) -> None:
    """Raise `InvalidProgram` with all findings when one of them is an error."""
    issues = validate(program, capabilities, allow_shadowing=allow_shadowing, fused=fused, limits=limits)
    errors = [i for i in issues if i.severity == "error"]
    if errors:
        lines = [f"\n  {issue.headline}" for issue in errors[:SHOWN]]
        if len(errors) > SHOWN:
            lines.append(f"\n  and {len(errors) - SHOWN} more")
        count = "a rule" if len(errors) == 1 else f"{len(errors)} rules"
        raise InvalidProgram(f"the program breaks {count}:{''.join(lines)}", fix=errors[0].fix, issues=tuple(issues))


def _validate(
    program: Program, capabilities: Capabilities | None, allow_shadowing: bool, fused: bool, limits: Limits
) -> tuple[Issue, ...]:
    report = Report()
    _check_workgroup(program, capabilities, report)
    if check_form(program, limits, report):
        _Checker(program, capabilities, allow_shadowing, fused, report).run()
    return tuple(report)


def _check_workgroup(program: Program, capabilities: Capabilities | None, report: Report) -> None:
    bad = False
    for axis, size in enumerate(program.workgroup_size):
        if type(size) is not int or not 1 <= size < 1 << 32:
            shown = size if type(size) is int and abs(size) < 1 << 64 else type(size).__name__
            report.add(DiagCode.V106, "program", ("workgroup_size", axis), f"workgroup axis {axis} is {shown}")
            bad = True
    most = capabilities.max_invocations if capabilities is not None else None
    x, y, z = program.workgroup_size
    if not bad and most is not None and x * y * z > most:
        message = f"{x * y * z} invocations per workgroup, of which the target runs {most}"
        report.add(DiagCode.V209, "limits", ("workgroup_size",), message)


class _Checker:
    """One validation of a well-formed program."""

    def __init__(
        self, program: Program, capabilities: Capabilities | None, allow_shadowing: bool, fused: bool, report: Report
    ) -> None:
        self.program, self.capabilities, self.report = program, capabilities, report
        self.allow_shadowing, self.fused = allow_shadowing, fused
        self.buffers = {b.name: b for b in reversed(program.buffers)}
        self.names: Scopes[Type] = Scopes()
        self.variables: Scopes[bool] = Scopes()  # False for a loop variable
        self.exprs = ExprRules(self.buffers, self.names.names, capabilities, report)
        self.waits = Counter(n.tag for n in distinct(program.entry) if isinstance(n, AsyncWait))
        self.started: set[str] = set()
        self.regions: set[str] = set()
        self.written: set[str] = set()

    def run(self) -> None:
        self._header()
        run_nested(self._sequence(self.program.entry, ("entry",)))
        self._whole()

    def say(
        self, code: DiagCode, phase: str, path: Path, message: str, fix: str = "", node: Node | None = None
    ) -> None:
        self.report.add(code, phase, path, message, fix, span=node.span if node is not None else None)

    # -- buffers and the program

    def _header(self) -> None:
        slots: dict[int, str] = {}
        named: set[str] = set()
        outputs = 0
        for i, b in enumerate(self.program.buffers):
            path: Path = ("buffers", i)
            if not IDENTIFIER.match(b.name):
                self.say(DiagCode.V210, "program", path, f"buffer name {b.name[:40]!r}")
            if b.name in named:
                self.say(DiagCode.V107, "program", path, f"two buffers are named {b.name!r}")
            named.add(b.name)
            if not b.is_workgroup:
                if b.binding in slots:
                    self.say(
                        DiagCode.V108, "program", path, f"{slots[b.binding]!r} and {b.name!r} share slot {b.binding}"
                    )
                slots.setdefault(b.binding, b.name)
            outputs += b.is_output
            if b.is_output and outputs == 2:
                self.say(DiagCode.V022, "program", path, f"{b.name!r} is a second output")
            self._buffer(b, path)
        self._workgroup_memory()
        entry = self.program.entry
        if not entry or not all(isinstance(n, Region) for n in entry):
            self.say(DiagCode.V105, "program", ("entry",), "the entry is not a list of regions")

    def _buffer(self, b: BufferDecl, path: Path) -> None:
        self.exprs.offers(b.element, (*path, "element"), None)
        if b.is_workgroup and b.count == 0:
            self.say(DiagCode.V109, "program", path, f"workgroup buffer {b.name!r} has no size")
        if b.element.tag == ARRAY_TAG and (b.is_output or b.live_out):
            self.say(DiagCode.V110, "program", path, f"{b.name!r} gives back elements of {b.element}")
        if (b.is_output or b.live_out) and b.count == 0 and not b.is_workgroup:
            self.say(DiagCode.V130, "program", path, f"nothing can size {b.name!r}", "give it a count")
        if b.output_byte_range is not None:
            start, end = b.output_byte_range
            if start > end or (b.nbytes is not None and end > b.nbytes):
                message = f"bytes {start} to {end} of {b.name!r}, which has {b.nbytes if b.count else 'any number'}"
                self.say(DiagCode.V211, "program", path, message)
        if b.shape_predicate is not None and b.count and not _holds(b.shape_predicate, b.count):
            self.say(DiagCode.V083, "program", path, f"{b.name!r} has {b.count} elements")

    def _workgroup_memory(self) -> None:
        most = self.capabilities.max_workgroup_bytes if self.capabilities is not None else None
        total = sum(b.nbytes or 0 for b in self.program.buffers if b.is_workgroup and not b.is_own)
        if most is not None and total > most:
            message = f"{total} bytes of workgroup memory, of which the target has {most}"
            self.say(DiagCode.V208, "limits", ("buffers",), message)
        total = sum(b.nbytes or 0 for b in self.program.buffers if b.is_own)
        if total > MAX_OWN_BYTES:
            message = f"{total} bytes of arrays of each invocation, which has at most {MAX_OWN_BYTES}"
            self.say(DiagCode.V208, "limits", ("buffers",), message, "keep a large array in a buffer")

    # -- statements

    def _sequence(self, nodes: tuple[Node, ...], path: Path, loop: Loop | None = None) -> Steps:
        scope = self.names.enter()  # both tables bind the same names at the same time
        if loop is not None:
            self._declare(loop.var, u32, path[:-1], loop, set())
        here: set[str] = set()
        for i, node in enumerate(nodes):
            if i and _is_return(nodes[i - 1]):
                self.say(DiagCode.V112, "node", (*path, i), "statement after return", node=node)
            types = self._expressions(node, (*path, i))
            self._statement(node, (*path, i), types, here)
            for name in node.body_fields:
                yield self._sequence(getattr(node, name), (*path, i, name), node if isinstance(node, Loop) else None)
        self.names.leave(scope)
        self.variables.leave(scope)
        self._mixed_access(nodes, path)

    def _expressions(self, node: Node, path: Path) -> dict[str, Type]:
        """The types of a statement's values, by field."""
        types: dict[str, Type] = {}
        for name in node.expr_fields:
            value = getattr(node, name)
            types[name] = self.exprs.check(value, (*path, name), node.span)
        return types

    def _declare(self, name: str, t: Type, path: Path, node: Node, here: set[str]) -> None:
        if not IDENTIFIER.match(name):
            self.say(DiagCode.V210, "node", path, f"local name {name[:40]!r}", node=node)
        if name in here:
            self.say(DiagCode.V032, "node", path, f"{name!r} is declared twice in one scope", node=node)
        elif name in self.names.names and not self.allow_shadowing:
            self.say(DiagCode.V008, "node", path, f"{name!r} is declared in an outer scope", node=node)
        here.add(name)
        self.names.bind(name, t)
        self.variables.bind(name, not isinstance(node, Loop))

    def _statement(self, node: Node, path: Path, types: dict[str, Type], here: set[str]) -> None:
        def say(code: DiagCode, message: str, phase: str = "node", fix: str = "") -> None:
            self.say(code, phase, path, message, fix, node)

        def need(code: DiagCode, field: str, *allowed: str) -> None:
            t = types[field]
            if t is not None and t.name not in allowed:
                self.say(code, "type", (*path, field), f"{field} is {t}", node=node)

        match node:
            case Let():
                self._declare(node.name, types["value"], path, node, here)
            case Assign():
                self._assign(node, types["value"], say)
            case Store():
                self._store(node, types["value"], say)
                need(DiagCode.V122, "index", "u32")
            case If():
                need(DiagCode.V123, "condition", *TRUTHS)
            case Loop():
                need(DiagCode.V124, "start", "u32")
                need(DiagCode.V125, "stop", "u32")
            case Barrier(ordering=ordering):
                if ordering is Ordering.RELAXED:
                    say(DiagCode.V043, f"barrier with ordering {ordering.text}")
                if ordering is Ordering.GRID_SYNC:
                    self._needs("grid_sync", "grid-wide barrier", say)
            case Region(generator=generator):
                if generator.endswith(SELF_EXCLUSIVE):
                    if generator in self.regions:
                        say(DiagCode.V115, f"region {generator!r} appears again")
                    self.regions.add(generator)
            case Trap():
                need(DiagCode.V212, "address", "u32")
                self._needs("trap", "trap", say)
            case IndirectDispatch():
                self._indirect(node, say)
            case AsyncLoad() | AsyncStore():
                self._copy(node, say)
                need(DiagCode.V122, "offset", "u32")
                need(DiagCode.V122, "size", "u32")
            case AsyncWait(tag=tag):
                self._needs("async_copy", "asynchronous copy", say)
                if not tag:
                    say(DiagCode.V128, "async wait without a tag")
                elif tag not in self.started:
                    say(DiagCode.V207, f"wait for {tag!r}, which nothing starts", "memory")
            case AllReduce() | AllGather() | ReduceScatter() | Broadcast():
                self._collective(node, say)
            case OpaqueNode(kind=kind):
                say(DiagCode.V031, f"statement kind {kind!r} is not registered")

    def _needs(self, bit: str, what: str, say: Say) -> None:
        if self.capabilities is not None and not getattr(self.capabilities, bit):
            say(DiagCode.V056, f"the target has no {what}")

    def _assign(self, node: Assign, t: Type, say: Say) -> None:
        if node.name not in self.names.names:
            say(DiagCode.V120, f"assignment to {node.name!r}, which is not declared")
        elif not self.variables.get(node.name, True):
            say(DiagCode.V011, f"{node.name!r} is a loop variable")
        else:
            old = self.names.names[node.name]
            if t is not None and old is not None and t != old:
                say(DiagCode.V045, f"{node.name!r} is {old} and the value is {t}", "type")

    def _store(self, node: Store, t: Type, say: Say) -> None:
        decl = self.buffers.get(node.buffer)
        if decl is None:
            say(DiagCode.V064, f"store to {node.buffer!r}, which is not declared", "memory")
            return
        self.written.add(node.buffer)
        if not decl.writable:
            say(DiagCode.V063, f"store to {node.buffer!r}, which is {_spoken(decl.access)}", "memory")
        if t is not None and decl.element.live and t != decl.element:
            say(DiagCode.V121, f"value is {t} and {node.buffer!r} holds {decl.element}", "type")
        if decl.element == bytes_ and not decl.bytes_extraction:
            say(DiagCode.V013, f"access to the bytes of {node.buffer!r}", "memory")
        if isinstance(node.index, Lit) and node.index.dtype == u32 and 0 < decl.count <= node.index.bits:
            say(DiagCode.V036, f"index {node.index.bits} of {node.buffer!r}, which has {decl.count}", "memory")

    def _indirect(self, node: IndirectDispatch, say: Say) -> None:
        self._needs("indirect", "indirect dispatch", say)
        if node.count_offset % 4:
            say(DiagCode.V126, f"offset {node.count_offset}", "memory")
        decl = self.buffers.get(node.count_buffer)
        if decl is None or decl.is_workgroup:
            say(DiagCode.V127, f"the grid is read from {node.count_buffer!r}, which is not a bound buffer", "memory")

    def _copy(self, node: AsyncLoad | AsyncStore, say: Say) -> None:
        self._needs("async_copy", "asynchronous copy", say)
        if not node.tag:
            say(DiagCode.V117, "async copy without a tag")
        elif not self.waits[node.tag]:
            say(DiagCode.V207, f"nothing waits for {node.tag!r}", "memory", "wait for the copy")
        self.started.add(node.tag)
        for name in (node.source, node.destination):
            if name not in self.buffers:
                say(DiagCode.V207, f"copy of {name!r}, which is not declared", "memory")
        target = self.buffers.get(node.destination)
        if target is not None:
            self.written.add(target.name)
            if not target.writable:
                say(DiagCode.V206, f"copy into {target.name!r}, which is {_spoken(target.access)}", "memory")

    def _collective(self, node: AllReduce | AllGather | ReduceScatter | Broadcast, say: Say) -> None:
        """Over one rank a collective moves nothing; any other needs a transport that no backend has."""
        names = [node.buffer] if isinstance(node, AllReduce | Broadcast) else [node.source, node.destination]
        self.written.add(names[-1])
        used = [self.buffers.get(name) for name in names]
        if self.capabilities is None or not self.capabilities.collectives:
            say(DiagCode.V046, "collective operation without a distributed backend")
        elif node.group != 0 or (isinstance(node, Broadcast) and node.root != 0):
            say(DiagCode.V046, "collective operation between several ranks")
        elif any(b is None or b.is_workgroup for b in used):
            say(DiagCode.V046, f"collective operation on {' and '.join(map(repr, names))}, not all bound buffers")
        elif len({b.element for b in used if b is not None}) > 1:
            say(DiagCode.V046, "collective operation between different element types")
        elif not all(b is not None and b.writable for b in used[-1:]):
            say(DiagCode.V046, f"collective operation writes {names[-1]!r}, which is not writable")

    def _mixed_access(self, nodes: tuple[Node, ...], path: Path) -> None:
        """Plain and atomic access to one buffer with no barrier between, in one list of statements."""
        seen: dict[str, set[bool]] = {}
        for i, node in enumerate(nodes):
            if isinstance(node, Barrier):
                seen.clear()
            uses = [(e.buffer, isinstance(e, Atomic)) for e in distinct(children(node)) if isinstance(e, Load | Atomic)]
            if isinstance(node, Store):
                uses.append((node.buffer, False))
            for buffer, atomic in uses:
                kinds = seen.setdefault(buffer, set())
                if kinds == {not atomic}:
                    message = f"plain and atomic access to {buffer!r} without a barrier between"
                    severity = "error" if self.fused else ""
                    self.report.add(DiagCode.V116, "memory", (*path, i), message, span=node.span, severity=severity)
                kinds.add(atomic)

    # -- the whole

    def _whole(self) -> None:
        relaxed = self.capabilities is not None and self.capabilities.barrier_ignores_exited
        for code, path, span, message in divergences(self.program, barrier_ignores_exited=relaxed):
            self.report.add(code, "node", path, message, span=span)
        conflicts = gridsync.conflicts(self.program)
        places = _places(self.program, {id(c.node) for c in conflicts})
        for c in conflicts:
            path = places.get(id(c.node), ("entry",))
            self.report.add(c.code, "memory", path, c.message, c.fix, span=c.node.span if c.node else None)
        self._uses()
        self._supported()

    def _uses(self) -> None:
        """Rules about how often a buffer is touched anywhere."""
        counts: Counter[str] = Counter()
        for item in walk(self.program.entry):
            if isinstance(item, Load | Store | Atomic | BufferRef | AllReduce | Broadcast):
                counts[item.buffer] += 1
            elif isinstance(item, AsyncLoad | AsyncStore | AllGather | ReduceScatter):
                counts.update((item.source, item.destination))
            if isinstance(item, Atomic | BufferRef):
                self.written.add(item.buffer)
        for i, b in enumerate(self.program.buffers):
            n, kind = counts[b.name], b.linear_type
            least = kind in (LinearType.LINEAR, LinearType.RELEVANT)
            most = kind in (LinearType.LINEAR, LinearType.AFFINE)
            if (least and n == 0) or (most and n > 1):
                self.say(DiagCode.V070, "memory", ("buffers", i), f"{kind.name.lower()} {b.name!r} is used {n} times")
            if b.backend_allocated and b.name not in self.written:
                self.say(DiagCode.V214, "memory", ("buffers", i), f"nothing is stored to {b.name!r}")

    def _supported(self) -> None:
        known = self.capabilities.supported_ops if self.capabilities is not None else None
        if known is None:
            return
        missing: dict[int, str] = {}
        told: set[str] = set()
        for item in distinct(self.program.entry):
            if lacking := next((i for i in op_ids(item) if i not in known and i not in told), None):
                told.add(lacking)
                missing[id(item)] = lacking
        for where, path in _places(self.program, set(missing)).items():
            self.say(DiagCode.V056, "expression", path, f"the target does not run {missing[where]}")


def _places(program: Program, wanted: set[int]) -> dict[int, Path]:
    """Paths to the first occurrence of some statements and expressions, by object."""
    found: dict[int, Path] = {}
    stack: list[tuple[Expr | Node, Path]] = []
    stack.extend((n, ("entry", i)) for i, n in reversed(list(enumerate(program.entry))))
    seen: set[int] = set()
    while stack and len(found) < len(wanted):
        item, path = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if id(item) in wanted:
            found[id(item)] = path
        stack.extend([(child, (*path, *keys)) for keys, child in parts(item)][::-1])
    return found


def _is_return(node: Node) -> bool:
    """A return, or a block that canonical form splices into its surroundings and that ends in one."""
    while isinstance(node, Block) and node.body and not any(isinstance(n, Let) for n in node.body):
        node = node.body[-1]
    return isinstance(node, Return)


def _spoken(access: Access) -> str:
    return access.name.lower().replace("_", "-")


def _holds(root: Predicate, count: int) -> bool:
    """Whether a predicate is true of an element count. Division by zero is never true."""
    values: list[bool] = []
    stack: list[tuple[Predicate, bool]] = [(root, False)]
    while stack:
        item, ready = stack.pop()
        args = item.args
        match item.kind:
            case "and" | "or" | "not" if not ready:
                stack.append((item, True))
                stack.extend((arg, False) for arg in args)
            case "and":
                values.append(values.pop() & values.pop())
            case "or":
                values.append(values.pop() | values.pop())
            case "not":
                values.append(not values.pop())
            case "at_least":
                values.append(count >= args[0])
            case "at_most":
                values.append(count <= args[0])
            case "exactly":
                values.append(count == args[0])
            case "multiple_of":
                values.append(args[0] != 0 and count % args[0] == 0)
            case "mod_equals":
                values.append(args[0] != 0 and count % args[0] == args[1])
            case _:  # affine
                scale, offset, low, high = args
                values.append(low <= count * scale + offset <= high)
    return values[0]
