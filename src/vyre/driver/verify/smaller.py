"""A dispatch made smaller for as long as something about it stays true: fewer statements, simpler expressions, shorter
buffers, plainer inputs. Candidates need not be valid programs; the caller refuses those that are none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import VyreError
from ...foundation.check.typing import type_of
from ...foundation.ir.dtypes import DataType
from ...foundation.ir.nodes import Block, Expr, If, Let, Lit, Loop, Node, Region, lit
from ...foundation.ir.program import BufferDecl, Program
from ...foundation.ir.visit import bodies, children, rewrite, walk_nodes
from ..contract.values import DispatchConfig

V = TypeVar("V", Expr, Node)
Edit = Callable[[int, Node], "Node | tuple[Node, ...]"]
"""A statement, with its place among those that end before it -> what stands there instead."""


@dataclass(frozen=True, slots=True)
class Case:
    """One dispatch."""

    program: Program
    inputs: tuple[bytes, ...]
    config: DispatchConfig


def shrunk(case: Case, holds: Callable[[Case], bool]) -> Case:
    """The smallest dispatch found for which `holds` is still true; it is for the first."""
    before = None
    while case != before:
        before = case
        case = _fewer_statements(case, holds)
        for pass_ in (_unwrapped, _smaller_launch, _fewer_buffers, _simpler, _shorter, _plainer):
            case = _tried(case, holds, pass_)
    return case


def statement_count(program: Program) -> int:
    """Statements, without the blocks that only hold others."""
    return sum(not isinstance(n, Region | Block) for n in walk_nodes(program.entry))


def edited(program: Program, edit: Edit) -> Program:
    place = itertools.count()
    return program.replace(entry=rewrite(program.entry, node=lambda n: edit(next(place), n)))


def noted(found: list[V]) -> Callable[[V], V]:
    """A change that changes nothing, and lists what it sees."""

    def note(item: V) -> V:
        found.append(item)
        return item

    return note


# ---- passes ---------------------------------------------------------------------------------------------------------


def _tried(case: Case, holds: Callable[[Case], bool], candidates: Callable[[Case], Iterator[Case]]) -> Case:
    """Take the first candidate that holds, and go on among those of the new case where the old ones were left."""
    seen = 0
    while True:
        for k, candidate in enumerate(itertools.islice(candidates(case), seen, None)):
            if holds(candidate):
                case, seen = candidate, seen + k
                break
        else:
            return case


def _fewer_statements(case: Case, holds: Callable[[Case], bool]) -> Case:
    """Without some that end one after the other: first half of them, then a quarter, and so on."""
    size = sum(1 for _ in walk_nodes(case.program.entry))
    while size > 0:
        start = 0
        while start < sum(1 for _ in walk_nodes(case.program.entry)):
            candidate = _with(case, edited(case.program, _dropping(start, start + size)))
            if candidate.program != case.program and holds(candidate):
                case = candidate
            else:
                start += size
        size //= 2
    return case


def _dropping(start: int, stop: int) -> Edit:
    return lambda k, n: () if start <= k < stop and not isinstance(n, Region) else n


def _unwrapped(case: Case) -> Iterator[Case]:
    """What stands in a statement in place of it; a loop is run once."""
    nodes: list[Node] = []
    rewrite(case.program.entry, node=noted(nodes))
    for k, node in enumerate(nodes):
        if isinstance(node, If | Loop | Block):
            for body in bodies(node):
                inside = (Let(node.var, node.start), *body) if isinstance(node, Loop) else body
                yield _with(case, edited(case.program, _replacing(k, inside)))


def _replacing(at: int, nodes: tuple[Node, ...]) -> Edit:
    return lambda k, n: nodes if k == at else n


def _simpler(case: Case) -> Iterator[Case]:
    """An operand, or a number, in place of an expression; whole expressions first."""
    program = case.program
    exprs: list[Expr] = []
    rewrite(program.entry, expr=noted(exprs))
    types, elements = names_of(program)
    for at in reversed(range(len(exprs))):
        e = exprs[at]
        if isinstance(e, Lit):
            continue
        t = type_of(e, types, elements)
        for instead in (*(c for c in children(e) if type_of(c, types, elements) == t), *_numbers(t)):
            place = itertools.count()

            def swap(found: Expr, at: int = at, instead: Expr = instead, place: Iterator[int] = place) -> Expr:
                return instead if next(place) == at else found

            yield _with(case, program.replace(entry=rewrite(program.entry, expr=swap)))


def _numbers(t: DataType | None) -> Iterator[Expr]:
    for number in (1, 0):
        with suppress(VyreError):  # a type without literals
            if t is not None:
                yield lit(float(number) if t.is_float else number, t)


def names_of(program: Program) -> tuple[dict[str, DataType | None], dict[str, DataType]]:
    """The types of locals and of buffers' elements. Of two locals with one name, that of the later one."""
    elements = {b.name: b.element for b in program.buffers}
    types: dict[str, DataType | None] = {}
    for node in walk_nodes(program.entry):
        if isinstance(node, Let):
            types[node.name] = type_of(node.value, types, elements)
        elif isinstance(node, Loop):
            types[node.var] = type_of(node.start, types, elements)
    return types, elements


def _fewer_buffers(case: Case) -> Iterator[Case]:
    """Without one that nothing names; if something does, it is no program."""
    for b in case.program.buffers:
        buffers = tuple(other for other in case.program.buffers if other is not b)
        kept = [data for given, data in zip(case.program.host_inputs, case.inputs, strict=True) if given is not b]
        sizes = {n: count for n, count in (case.config.output_elements or {}).items() if n != b.name}
        said: Mapping[str, Any] = case.config.output_lengths or {}
        lengths = {n: word for n, word in said.items() if b.name not in (n, word[0])}
        config = case.config.with_(output_elements=sizes or None, output_lengths=lengths or None)
        yield Case(case.program.replace(buffers=buffers), tuple(kept), config)


def _smaller_launch(case: Case) -> Iterator[Case]:
    """One workgroup, or half as many; one invocation of it, or half as many; one iteration."""
    if case.config.fixpoint_iterations is not None:
        yield Case(case.program, case.inputs, case.config.with_(fixpoint_iterations=None))
    grid = case.config.grid_override
    for less in _less(grid) if grid is not None else ():
        yield Case(case.program, case.inputs, case.config.with_(grid_override=less))
    if case.config.workgroup_override is not None:
        yield Case(case.program, case.inputs, case.config.with_(workgroup_override=None))
    for less in _less(case.program.workgroup_size):
        yield _with(case, case.program.replace(workgroup_size=less))


def _less(dims: tuple[int, int, int]) -> Iterator[tuple[int, ...]]:
    for axis, size in enumerate(dims):
        for less in sorted({1, size // 2} - {0, size}):
            yield (*dims[:axis], less, *dims[axis + 1 :])


def _shorter(case: Case) -> Iterator[Case]:
    """One element of a buffer, or half of them, from its start or its end."""
    given = {b.name: k for k, b in enumerate(case.program.host_inputs)}
    sizes = case.config.output_elements or {}
    for b in case.program.buffers:
        size = b.element.size or 1
        k = given.get(b.name)
        now = len(case.inputs[k]) // size if k is not None else sizes.get(b.name, b.count)
        for less in sorted({1, now // 2} - {0, now} if now > 1 else ()):
            program = case.program if not b.count else _recounted(case.program, b, less)
            if k is None:
                config = case.config.with_(output_elements={**sizes, b.name: less}) if b.name in sizes else case.config
                yield Case(program, case.inputs, config)
                continue
            for part in (case.inputs[k][: less * size], case.inputs[k][-less * size :]):
                yield Case(program, (*case.inputs[:k], part, *case.inputs[k + 1 :]), case.config)


def _recounted(program: Program, buffer: BufferDecl, count: int) -> Program:
    return program.replace(buffers=tuple(b.replace(count=count) if b is buffer else b for b in program.buffers))


def _plainer(case: Case) -> Iterator[Case]:
    """Zeros in place of an input, of its halves, and so on to its single elements, or where it has many, 64ths."""
    for k, data in enumerate(case.inputs):
        step = len(data)
        least = max(case.program.host_inputs[k].element.size or 1, step // 64)
        while step >= least and step > 0:
            for start in range(0, len(data), step):
                plain = data[:start] + bytes(len(data[start : start + step])) + data[start + step :]
                if plain != data:
                    yield Case(case.program, (*case.inputs[:k], plain, *case.inputs[k + 1 :]), case.config)
            step //= 2


def _with(case: Case, program: Program) -> Case:
    return Case(program, case.inputs, case.config)
