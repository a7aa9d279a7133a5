"""One program that does the work of several launches, one after the other, in each invocation by itself.

The bodies are put behind each other. That gives the bytes of the separate launches where no invocation ever sees what
another one stored, and this is what the proof of determinism says of the whole: of any two accesses of different
invocations to one place, none is a store. So nothing else is asked here about indices.

What an earlier launch stores into memory that began as zeros, and a later one reads at the same index, goes on in a
local of the invocation. If nothing else wants that memory, the launch does not have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ...foundation.check.determinism import determinism
from ...foundation.ir.dtypes import DataType, element_count, u32
from ...foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BufferRef,
    BufLen,
    Expr,
    If,
    IndirectDispatch,
    Let,
    Lit,
    Load,
    Loop,
    Node,
    Region,
    Return,
    Select,
    Store,
    Trap,
    UnOp,
    Var,
    lit,
)
from ...foundation.ir.ops import UnaryOp
from ...foundation.ir.prints import prints_of
from ...foundation.ir.program import ROOT_GENERATOR, Access, BufferDecl, Program
from ...foundation.ir.visit import distinct, rewrite, rewrite_expr
from ..contract.values import ResidentHandle, Resource
from ..plan.grid import Grid

MOST_STATEMENTS = 2_000
"""Of a stitched program: above this, compiling it costs more than its launches."""
_PLAIN = (Let, Assign, Store, If, Loop, Region, Return)
"""Statements of which copies can follow each other."""

Key: TypeAlias = tuple[int, int]
"""A piece of memory, by its handle's id, and how often launches of the group have begun to write it anew."""


class Launch(NamedTuple):
    """A program with the workgroup that it is launched with, its grid, and memory for each bound buffer."""

    program: Program
    memory: tuple[Resource, ...]
    grid: Grid


class Stitched(NamedTuple):
    """The launch in place of several. `handed_on`: arrays that go on in locals; of these, `stored` are written too."""

    launch: Launch
    handed_on: int
    stored: int


class Apart(Exception):
    """Why launches stay apart. Nothing failed, and no caller sees it."""


def apart(why: str) -> Exception:
    return Apart(why)


class _Array:
    """Memory of the group, under one name."""

    def __init__(self, key: Key, name: str, decl: BufferDecl, handle: ResidentHandle) -> None:
        self.key, self.name, self.handle = key, name, handle
        self.element, self.count, self.hints = decl.element, decl.count, decl.hints
        self.starts_as_zeros = decl.backend_allocated
        self.is_uniform = True

    @property
    def elements(self) -> int:
        return self.count or element_count(self.element, self.handle.nbytes)

    def meet(self, decl: BufferDecl) -> None:
        """Another launch binds it."""
        if (decl.element, decl.count) != (self.element, self.count):
            raise apart(f"they see one piece of memory as {self.element.name} and as {decl.element.name}")
        self.is_uniform = self.is_uniform and decl.access is Access.UNIFORM


def stitch(
    launches: Sequence[Launch], is_wanted: Callable[[int], bool], constants: Mapping[int, bytes] | None = None
) -> Stitched:
    """The launches as one. Raises `Apart`.

    `is_wanted` says whether memory, by its handle's id, is read after them. `constants` is memory whose bytes never
    change, by the same id: an index may depend on them.
    """
    for launch in launches:
        _require_plain(launch.program)
    first = launches[0]
    if any((one.grid, one.program.workgroup_size) != (first.grid, first.program.workgroup_size) for one in launches):
        raise apart("they have other grids or workgroups")
    group = _Group(constants or {})
    for launch in launches:
        group.add(launch)
    return group.finish(first, is_wanted)


def _require_plain(program: Program) -> None:
    why = program._cached("driver.stitch", lambda: _why_not_plain(program))
    if why:
        raise apart(why)


def _why_not_plain(program: Program) -> str:
    if prints_of(program):
        return "one of them prints"
    for item in distinct(program.entry):
        if isinstance(item, Trap):
            return "one of them may trap"
        if isinstance(item, Barrier):
            return "one of them waits for its workgroup"
        if isinstance(item, IndirectDispatch):
            return "one of them takes its grid from memory"
        if isinstance(item, BufferRef) or (isinstance(item, Node) and not isinstance(item, _PLAIN)):
            return f"one of them has a {type(item).__name__}"
    if any(b.output_byte_range or b.bytes_extraction for b in program.buffers):
        return "one of them gives back a part of an array"
    return ""


class _Group:
    """Launches behind each other, as one body."""

    def __init__(self, constants: Mapping[int, bytes]) -> None:
        self._constants = constants
        self._arrays: dict[Key, _Array] = {}
        self._versions: dict[int, int] = {}
        self._own: list[BufferDecl] = []
        self._taken: set[str] = set()
        self._bodies: list[tuple[Node, ...]] = []

    def add(self, launch: Launch) -> None:
        program = launch.program
        names: dict[str, str] = {}
        ids = [r.id for r in launch.memory if isinstance(r, ResidentHandle)]
        for decl, resource in zip(program.bound_buffers, launch.memory, strict=True):
            if not isinstance(resource, ResidentHandle):
                raise apart("one of them takes bytes of the host")
            if decl.writable and ids.count(resource.id) > 1:
                raise apart("one of them has two names for what it writes")
            names[decl.name] = self._array(decl, resource).name
        for decl in program.buffers:
            if decl.is_workgroup:
                names[decl.name] = self._free(decl.name)
                self._own.append(decl.replace(name=names[decl.name]))
        self._taken.update(
            n.name if isinstance(n, Let) else n.var for n in distinct(program.entry) if isinstance(n, Let | Loop)
        )
        self._bodies.append(_closed(_renamed(program.entry, names)))

    def _array(self, decl: BufferDecl, handle: ResidentHandle) -> _Array:
        if decl.backend_allocated:  # whatever was there is gone
            self._versions[handle.id] = self._versions.get(handle.id, -1) + 1
        key = handle.id, self._versions.setdefault(handle.id, 0)
        known = self._arrays.get(key)
        if known is None:
            known = self._arrays[key] = _Array(key, self._free(decl.name), decl, handle)
        known.meet(decl)
        return known

    def _free(self, name: str) -> str:
        """The name, or that name with a number, which nothing has yet."""
        found, n = name, 2
        while found in self._taken:
            found, n = f"{name}_{n}", n + 1
        self._taken.add(found)
        return found

    def finish(self, first: Launch, is_wanted: Callable[[int], bool]) -> Stitched:
        arrays = {a.name: a for a in self._arrays.values()}
        whole = self._program(first, arrays, self._bodies)
        if whole.stats.nodes > MOST_STATEMENTS:
            raise apart(f"together they have more than {MOST_STATEMENTS} statements")
        proof = determinism(self._told(whole, arrays), first.grid, first.program.workgroup_size)
        if proof.verdict != "proved":
            raise apart(proof.reasons[0])
        dropped: set[str] = set()
        kept_locals: dict[str, str] = {}
        places = _Places(self._bodies, lambda e: self._number(e, arrays))
        for array in arrays.values():
            if array.starts_as_zeros and places.is_read_at_one_index(array.name):
                kept_locals[array.name] = self._free(f"{array.name}_kept")
                id, version = array.key
                if version < self._versions[id] or not is_wanted(id):
                    dropped.add(array.name)
        lengths = self._lengths(arrays, dropped)
        dropped -= {name for name in dropped if name not in lengths}
        kept = {name: a for name, a in arrays.items() if name not in dropped}
        if len({a.key[0] for a in kept.values()}) < len(kept):
            raise apart("the later one writes memory anew that the earlier one still uses")
        bodies = [_handed_on(body, arrays, kept_locals, dropped, lengths) for body in self._bodies]
        start = tuple(Let(local, _zero(arrays[name].element)) for name, local in kept_locals.items())
        stitched = self._program(first, kept, bodies, start)
        for decl in stitched.bound_buffers:
            if kept[decl.name].starts_as_zeros and decl.access is not Access.WRITE_ONLY:
                raise apart("the later one reads what the earlier one writes, at an index that may be another")
        memory = tuple(kept[b.name].handle for b in stitched.bound_buffers)
        return Stitched(Launch(stitched, memory, first.grid), len(kept_locals), len(kept_locals.keys() - dropped))

    def _lengths(self, arrays: Mapping[str, _Array], dropped: set[str]) -> dict[str, str]:
        """For each array that is gone, one that is not and has as many elements."""
        kept = {a.elements: name for name, a in list(arrays.items())[::-1] if name not in dropped}
        return {name: kept[arrays[name].elements] for name in dropped if arrays[name].elements in kept}

    def _program(
        self,
        first: Launch,
        arrays: Mapping[str, _Array],
        bodies: Sequence[tuple[Node, ...]],
        start: tuple[Node, ...] = (),
    ) -> Program:
        stored, loaded = _stored_and_loaded(bodies)
        decls = []
        for slot, (name, a) in enumerate(arrays.items()):
            if a.starts_as_zeros and name not in loaded:
                access = Access.WRITE_ONLY
            elif name in stored:
                access = Access.READ_WRITE
            else:
                access = Access.UNIFORM if a.is_uniform else Access.READ_ONLY
            decls.append(BufferDecl(name, slot, access, a.element, a.count, hints=a.hints))
        body = Region(ROOT_GENERATOR, (*start, *(Region(ROOT_GENERATOR, body) for body in bodies)))
        return Program((*decls, *self._own), first.program.workgroup_size, (body,))

    def _told(self, program: Program, arrays: Mapping[str, _Array]) -> Program:
        """The program with its constants as numbers, for the proof: an index may be a multiple of one."""
        return program.replace(entry=rewrite(program.entry, expr=lambda e: self._number(e, arrays)))

    def _number(self, e: Expr, arrays: Mapping[str, _Array]) -> Expr:
        if isinstance(e, Load) and isinstance(e.index, Lit) and (a := arrays.get(e.buffer)) is not None:
            data = None if a.element != u32 else self._constants.get(a.handle.id)
            at = 4 * e.index.bits
            if data is not None and at + 4 <= len(data):
                return Lit(u32, int.from_bytes(data[at : at + 4], "little"))
        return e


# ---- bodies ---------------------------------------------------------------------------------------------------------


def _renamed(nodes: Iterable[Node], names: Mapping[str, str]) -> tuple[Node, ...]:
    """The statements over buffers of other names."""

    def named(item: Expr) -> Expr:
        if isinstance(item, Load | BufLen | Atomic) and names[item.buffer] != item.buffer:
            return item.replace(buffer=names[item.buffer])
        return item

    def stored(item: Node) -> Node:
        return item.replace(buffer=names[item.buffer]) if isinstance(item, Store) else item

    return rewrite(nodes, expr=named, node=stored)


def _closed(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The statements without `return`, so that others can follow. Raises `Apart`."""
    found: list[Node] = []
    for k, node in enumerate(nodes):
        match node:
            case Return():
                break
            case Region(generator=name, body=body) if k == len(nodes) - 1:
                found += _closed(body) if name == ROOT_GENERATOR and k == 0 else [node.replace(body=_closed(body))]
            case If(condition=c, then=(*before, Return()), orelse=()):
                rest = _closed(nodes[k + 1 :])
                if before:
                    found.append(If(c, _closed(tuple(before)), rest, span=node.span))
                elif rest:
                    found.append(If(UnOp(UnaryOp.LOGICAL_NOT, c), rest, span=node.span))
                break
            case _:
                found.append(node)
    if any(isinstance(item, Return) for item in distinct(found)):
        raise apart("one of them returns from within a branch or a loop")
    return tuple(found)


def _stored_and_loaded(bodies: Iterable[tuple[Node, ...]]) -> tuple[set[str], set[str]]:
    stored: set[str] = set()
    loaded: set[str] = set()
    for item in (item for body in bodies for item in distinct(body)):
        match item:
            case Store(buffer=name):
                stored.add(name)
            case Load(buffer=name):
                loaded.add(name)
            case Atomic(buffer=name):
                stored.add(name)
                loaded.add(name)
    return stored, loaded


class _Places:
    """Where bodies access their buffers: the index of each access, as far as it follows from ids and numbers."""

    def __init__(self, bodies: Iterable[tuple[Node, ...]], number: Callable[[Expr], Expr]) -> None:
        self._found: dict[str, set[Expr | None]] = {}
        self._read: set[str] = set()
        for body in bodies:
            self._collect(body, number)

    def is_read_at_one_index(self, name: str) -> bool:
        """Whether it is read, and every invocation accesses one element of it only, wherever it does."""
        found = self._found.get(name, set())
        return name in self._read and len(found) == 1 and None not in found

    def _collect(self, body: tuple[Node, ...], number: Callable[[Expr], Expr]) -> None:
        items = list(distinct(body))
        bound: dict[str, list[Expr | None]] = {}
        for item in items:
            match item:
                case Let(name=name, value=value):
                    bound.setdefault(name, []).append(value)
                case Assign(name=name) | Loop(var=name):
                    bound.setdefault(name, []).append(None)
        known: dict[str, Expr | None] = {}

        def value_of(name: str) -> Expr | None:
            if name not in known:
                known[name] = None  # a name that is bound with its own help has no value here
                values = bound.get(name, [None])
                if len(values) == 1 and values[0] is not None:
                    known[name] = settled(values[0])
            return known[name]

        def settled(index: Expr) -> Expr | None:
            """The expression over ids, lengths and numbers alone."""

            def value(e: Expr) -> Expr:
                known = value_of(e.name) if isinstance(e, Var) else None
                return number(e) if known is None else known

            found = rewrite_expr(index, value)
            return None if any(isinstance(e, Var | Load | Atomic) for e in distinct(found)) else found

        for item in items:
            match item:
                case Store(buffer=name, index=index):
                    self._found.setdefault(name, set()).add(settled(index))
                case Load(buffer=name, index=index):
                    self._found.setdefault(name, set()).add(settled(index))
                    self._read.add(name)
                case Atomic(buffer=name):
                    self._found.setdefault(name, set()).add(None)


def _handed_on(
    body: tuple[Node, ...],
    arrays: Mapping[str, _Array],
    kept_locals: Mapping[str, str],
    dropped: set[str],
    lengths: Mapping[str, str],
) -> tuple[Node, ...]:
    """The body with locals in place of what is read again, and without the arrays that are gone."""

    def length(name: str) -> BufLen:
        return BufLen(lengths[name] if name in dropped else name)

    def expr(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer in kept_locals:
            return Var(kept_locals[e.buffer], dtype=e.dtype)
        return length(e.buffer) if isinstance(e, BufLen) else e

    def node(item: Node) -> Node | Sequence[Node]:
        if not isinstance(item, Store):
            return item
        name = item.buffer
        local = kept_locals.get(name)
        if local is None:
            return item
        t = arrays[name].element
        inside = Select(item.index < length(name), item.value, _zero(t))  # beyond the end nothing is kept
        kept = Assign(local, inside, span=item.span)
        return kept if name in dropped else (kept, item.replace(value=Var(local, dtype=t)))

    return rewrite(body, expr=expr, node=node)


def _zero(t: DataType) -> Expr:
    return lit(False if t.name == "bool" else 0.0 if t.is_float else 0, t)
