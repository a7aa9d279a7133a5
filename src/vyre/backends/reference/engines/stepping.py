"""One invocation, line by line: where it is, and what its locals hold.

The other invocations run as they do forward: each until it waits or ends. Names are those of the source: a local that
the compiler made for itself is not shown, and a helper sees its own names alone. Small values and arrays are put
together of the locals that they became.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from ....driver.verify.cases import Stop
from ....errors import ArgumentValueError
from ....foundation.check.determinism import determinism
from ....foundation.ir import nodes as ir
from ....foundation.ir.dtypes import BY_NAME, DataType, bool_
from ....foundation.ir.nodes import Span
from ....foundation.ir.prints import without_prints
from ....foundation.ir.program import Access, BufferDecl, Program
from ....foundation.ir.visit import rewrite, walk_nodes
from ....foundation.meaning import arith, mathlib
from ....foundation.meaning.own_arrays import in_workgroup_memory
from .memory import Grid, Memory, Options
from .operations import LID
from .scalar import Invocation, Run
from .tape import Kind, Operand, Scope, compile_tape

OWN_STEMS = frozenset(("again", "go", "live", "more", "part", "print_at", "step", "turn"))
"""What the compiler calls locals that it makes for itself."""


class Function(NamedTuple):
    """A function of the source, by its place, and its parameters."""

    file: str
    line: int
    parameters: frozenset[str]


class _Array(NamedTuple):
    """An array in memory that each invocation has for itself, and the function and the line that make it."""

    decl: BufferDecl
    elements: int
    function: Function | None
    span: Span
    path: str


def stops(program: Program, memory: Memory, grid: Grid, invocation: Grid, options: Options) -> Iterator[Stop]:
    """The stops of the invocation with this gid, changing `memory` in place; the last is behind its last statement."""
    most = tuple(n * size for n, size in zip(grid, program.workgroup_size, strict=True))
    if not all(0 <= at < end for at, end in zip(invocation, most, strict=True)):
        raise ArgumentValueError(
            f"invocation {invocation} is none of the {' x '.join(map(str, most))} that the call runs",
            fix="pass a smaller one, or domain=(how many invocations run)",
        )
    return _Stepped(program, memory, grid, options).stops(invocation)


class _Stepped(Run):
    def __init__(self, program: Program, memory: Memory, grid: Grid, options: Options) -> None:
        whole = mathlib.expand(in_workgroup_memory(program))
        super().__init__(whole, Memory(whole, memory.buffers), grid, options)
        self.waits = True  # a trap is raised where it stands
        self.tape = compile_tape(whole, False, stepping=True)
        (gx, gy, gz), (sx, sy, sz) = grid, program.workgroup_size
        self.alone = determinism(_results_of(program)).covers((gx * sx, gy * sy, gz * sz))
        self.has_source = any(node.span is not None for node in walk_nodes(program.entry))
        self.functions: dict[str, list[tuple[int, Function]]] = {}
        self.names: dict[str, tuple[str, Function | None]] = {}  # of locals: as the source has it, and where
        self.parameters: dict[str, str] = {}  # of locals that a caller's line makes: perhaps parameters of a helper
        self.around: list[tuple[Function | None, frozenset[str]]] = []
        """The functions that the invocation is in, outermost first, each with locals from before it was entered."""
        self.unset: set[str] = set()
        """Locals that no line makes, and that no line has given a value yet."""
        unnamed, parts = program.unnamed(), program.parts()
        for node in walk_nodes(program.entry):
            if isinstance(node, ir.Let) and not (node.name in unnamed or _is_flag(node)):
                if node.span is None and self.has_source:
                    self.unset.add(node.name)
                if node.name in parts and parts[node.name].span is None:
                    self.parameters[node.name] = parts[node.name].path
                elif node.name in parts:
                    self._name(node.name, parts[node.name].span, parts[node.name].path)
                elif node.name not in self.unset:
                    self._name(node.name, node.span)
            elif isinstance(node, ir.Assign) and node.name in self.unset:
                if node.name not in self.names and node.name not in self.parameters:
                    self._name(node.name, node.span)
            elif isinstance(node, ir.Loop):
                self._name(node.var, node.span)
        self.numbers = {
            b.name: parts[b.name].path.split() if b.name in parts else [f"{b.name}:{b.element}"]
            for b in program.buffers
            if b.access is Access.UNIFORM and (b.count == 1 or b.name in parts)
        }
        lanes = sx * sy * sz
        self.arrays = [
            _Array(
                b,
                b.count if b.is_own else b.count // lanes,
                self._function_at(p.span.file, p.span.line),
                p.span,
                p.path,
            )
            for b in program.buffers
            if b.is_workgroup and (p := parts.get(b.name)) is not None and p.span is not None
        ]

    def _function_at(self, file: str, line: int) -> Function | None:
        """The innermost function around a line of a file."""
        if file not in self.functions:
            self.functions[file] = _functions_of(file)
        return next((f for last, f in reversed(self.functions[file]) if f.line <= line <= last), None)

    def _name(self, name: str, span: Span | None, path: str = "") -> None:
        if span is None:
            if not self.has_source:
                self.names[name] = name, None
            return
        for known in (path,) if path else (name, re.sub(r"_\d+$", "", name)):
            if re.search(rf"\b{_root(known)}\b", span.text):
                self.names[name] = known, self._function_at(span.file, span.line)
                return
        if known not in OWN_STEMS:
            self.parameters[name] = known

    def stops(self, invocation: Grid) -> Iterator[Stop]:
        own = [at // size for at, size in zip(invocation, self.program.workgroup_size, strict=True)]
        gx, gy, _ = self.grid
        index = own[0] + gx * (own[1] + gy * own[2])
        if self.tape.has_grid_barrier:
            groups = iter([list(self.groups())])
        else:
            groups = ([group] for group in self.groups(index if self.alone else 0, index + 1))
        for together in groups:
            self.alive = together
            ready = self.ready = deque(lane for group in together for lane in group.lanes)
            while ready:
                lane = ready.popleft()
                if lane.gid != invocation:
                    self.advance(lane)
                    continue
                yield from self.walk(lane)
                if lane.waits is Kind.END:
                    return
        self.check_ended()

    def walk(self, lane: Invocation) -> Iterator[Stop]:
        """Until it waits or ends: a stop at each line that it comes to, and again where it turns in a loop."""
        while True:
            at, before = lane.pc, self.last
            step = self.tape.steps[at]
            span = step.site.node.span
            if step.kind is Kind.END and span is None:
                if before is not None:
                    yield before._replace(locals=self.locals(lane, self.shown, before.line + 1), text="", done=True)
            elif span is not None or not self.has_source:
                here = Stop(
                    lane.gid, "" if span is None else span.file, 0 if span is None else span.line, step.site.text, {}
                )
                turned = at <= self.last_pc
                if step.kind is Kind.LOOP_NEXT and self._was_left(lane, at, step.site.node):
                    pass
                elif before is None or turned or span is None or (here.file, here.line) != (before.file, before.line):
                    self._enter(self._function_at(here.file, here.line))
                    self.shown = self.tape.scopes[at]
                    self.last = here._replace(locals=self.locals(lane, self.shown, here.line))
                    yield self.last
            self.last_pc = at
            self.single = True
            try:
                goes_on = self.advance(lane)
            finally:
                self.single = False
            if isinstance(step.site.node, ir.Assign):
                self.unset.discard(step.site.node.name)
            if not goes_on:
                return

    def _was_left(self, lane: Invocation, at: int, loop: ir.Node) -> bool:
        """Whether a flag says that a break, or a return, has ended the loop."""
        body = loop.body if isinstance(loop, ir.Loop) else ()
        guards = [n.condition for n in body if isinstance(n, ir.If) and n.span is None]
        flags = {c.name for c in guards if isinstance(c, ir.Var)} - {n.name for n in body if isinstance(n, ir.Let)}
        return any(not lane.registers[o.register] for name, o in _in_sight(self.tape.scopes[at]) if name in flags)

    last: Stop | None = None
    last_pc = -1
    shown: Scope = ()

    def _enter(self, function: Function | None) -> None:
        """The next line is in this function: a helper that was called, or one that goes on after a call."""
        if any(known == function for known, _ in self.around):
            while self.around[-1][0] != function:
                self.around.pop()
        else:
            self.around.append((function, frozenset(name for name, _ in _in_sight(self.shown))))

    def locals(self, lane: Invocation, scope: Scope, line: int) -> dict[str, Any]:
        """What the names in sight hold in front of a line."""
        found: dict[str, Any] = {}  # by path
        here, earlier = self.around[-1]
        for name, numbers in self.numbers.items() if len(self.around) == 1 else ():
            state = self.memory.buffers.get(name)
            for k, (path, t) in enumerate(_typed(numbers) if state is not None and state.count else ()):
                assert state is not None
                found[path] = _plain(arith.reader(t)(state.data, k * (t.bits or 8) // 8), t)
        for name, local in _in_sight(scope):
            if name in earlier or name in self.unset:
                continue
            known, value = self.names.get(name), _plain(lane.registers[local.register], local.dtype)
            if known is not None and known[1] == here:
                found[known[0]] = value
            elif here is not None and _root(self.parameters.get(name, "")) in here.parameters:
                found[self.parameters[name]] = value
        for array in self.arrays:
            if array.function == here and line > array.span.line:
                found |= self._elements(lane, array)
        return _composed(found)

    def _elements(self, lane: Invocation, array: _Array) -> dict[str, Any]:
        """Those of an array in memory. Element i of invocation k lies at i * lanes + k."""
        memory = next(b for b in self.tape.buffers if b.decl.name == array.decl.name)
        x, y, z = lane.registers[LID : LID + 3]
        sx, sy, sz = self.program.workgroup_size
        first, lanes = x + sx * (y + sy * z), sx * sy * sz
        t, data = array.decl.element, lane.registers[memory.data]
        read, size = arith.reader(t), (t.bits or 8) // 8
        return {
            array.path.replace("[]", f"[{k}]"): _plain(read(data, size * (k * lanes + first)), t)
            for k in range(array.elements)
        }


def _typed(numbers: Sequence[str]) -> Iterator[tuple[str, DataType]]:
    """Paths and types of `eye.x:f32 n:u32`."""
    for number in numbers:
        path, _, t = number.partition(":")
        yield path, BY_NAME[t]


def _root(path: str) -> str:
    """The name that a path begins with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _composed(values: dict[str, Any]) -> dict[str, Any]:
    """Names and what they hold, of paths: fields are a dictionary, elements a list."""
    found: dict[Any, Any] = {}
    for path, value in values.items():
        inside, *steps = re.findall(r"\w+", path)
        inner = found
        for step in steps:
            inner, inside = inner.setdefault(inside, {}), int(step) if step.isdigit() else step
        inner[inside] = value

    def plain(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        return [plain(v) for v in item.values()] if 0 in item else {k: plain(v) for k, v in item.items()}

    return {name: plain(value) for name, value in found.items()}


def _in_sight(scope: Scope) -> Iterator[tuple[str, Operand]]:
    for block, count in scope:
        yield from islice(block.items(), count)


def _is_flag(node: ir.Let) -> bool:
    """Whether it is true at first and says how a loop or a helper is left."""
    return re.sub(r"_\d+$", "", node.name) in OWN_STEMS and node.value == ir.Lit(bool_, 1)


def _results_of(program: Program) -> Program:
    """Without what it prints and its traps, of which the order shows and no invocation sees anything."""
    bare = without_prints(program)
    return bare.replace(entry=rewrite(bare.entry, node=lambda n: () if isinstance(n, ir.Trap) else n))


def _plain(value: Any, dtype: DataType) -> Any:
    return bool(value) if dtype == bool_ else value


def _functions_of(file: str) -> list[tuple[int, Function]]:
    """The functions of a file in order, each with its last line; none where its text is gone."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            spec = node.args
            names = frozenset(a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs))
            found.append((node.end_lineno or node.lineno, Function(file, node.lineno, names)))
    return sorted(found, key=lambda f: f[1].line)
