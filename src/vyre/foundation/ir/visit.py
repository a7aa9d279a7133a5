"""Walks over programs. Every one is iterative, because nesting depth is user data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar, cast

from .nodes import Expr, Node

T = TypeVar("T")
V = TypeVar("V", Expr, Node)


def children(item: Expr | Node) -> tuple[Expr, ...]:
    """The direct subexpressions, in evaluation order."""
    found: list[Expr] = []
    for name in item.expr_fields:
        value = getattr(item, name)
        if isinstance(value, tuple):
            found.extend(value)
        elif value is not None:
            found.append(value)
    return tuple(found)


def bodies(node: Node) -> tuple[tuple[Node, ...], ...]:
    """The statement lists directly inside a statement."""
    return tuple(getattr(node, name) for name in node.body_fields)


def walk(roots: Expr | Node | Iterable[Expr | Node]) -> Iterator[Expr | Node]:
    """Every statement and expression, parents first, in program order."""
    stack: list[Expr | Node] = [roots] if isinstance(roots, Expr | Node) else list(roots)[::-1]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, Node):
            for body in reversed(bodies(item)):
                stack.extend(reversed(body))
        stack.extend(reversed(children(item)))


def walk_nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """Every statement, parents first."""
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        yield node
        for body in reversed(bodies(node)):
            stack.extend(reversed(body))


def walk_exprs(roots: Expr | Iterable[Expr]) -> Iterator[Expr]:
    """Every expression below some expressions, parents first."""
    stack = [roots] if isinstance(roots, Expr) else list(roots)[::-1]
    while stack:
        item = stack.pop()
        yield item
        stack.extend(reversed(children(item)))


def distinct(roots: Expr | Node | Iterable[Expr | Node]) -> Iterator[Expr | Node]:
    """Every statement and expression once, however often it is shared."""
    stack: list[Expr | Node] = [roots] if isinstance(roots, Expr | Node) else list(roots)[::-1]
    seen: set[int] = set()
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, Node):
            for body in reversed(bodies(item)):
                stack.extend(reversed(body))
        stack.extend(reversed(children(item)))


Steps = Iterator["Steps"]


def run_nested(steps: Steps) -> None:
    """Run a walk written as a generator that yields the walks nested in it, without using Python's stack."""
    stack = [steps]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(inner)


class Scopes(Generic[T]):
    """What the names in scope stand for; leaving a scope forgets what was bound in it."""

    def __init__(self) -> None:
        self.names: dict[str, T] = {}
        self._undo: list[tuple[str, T | None, bool]] = []

    def enter(self) -> int:
        return len(self._undo)

    def leave(self, scope: int) -> None:
        while len(self._undo) > scope:
            name, old, bound = self._undo.pop()
            if bound:
                self.names[name] = cast("T", old)
            else:
                del self.names[name]

    def bind(self, name: str, value: T) -> None:
        self._undo.append((name, self.names.get(name), name in self.names))
        self.names[name] = value

    def get(self, name: str, default: T) -> T:
        return self.names.get(name, default)


def fold(root: Expr, combine: Callable[[Expr, tuple[T, ...]], T]) -> T:
    """Bottom-up: `combine` gets every expression with the results of its operands. Shared parts are seen once."""
    done: dict[int, T] = {}
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        item, ready = stack.pop()
        if id(item) in done:
            continue
        below = children(item)
        if ready:
            done[id(item)] = combine(item, tuple(done[id(c)] for c in below))
        else:
            stack.append((item, True))
            stack.extend((c, False) for c in below)
    return done[id(root)]


def in_order(root: Expr, leaf: Callable[[Expr], T | None], operation: Callable[[Expr, list[T]], T]) -> T:
    """Bottom-up in evaluation order: `leaf` gives the value of an expression without operands, or None for one that has
    some; `operation` gets those with the values of their operands. Shared parts are seen as often as they stand."""
    values: list[T] = []
    unvisited: list[tuple[Expr, bool]] = [(root, False)]
    while unvisited:
        e, ready = unvisited.pop()
        if ready:
            n = len(children(e))
            operands = values[len(values) - n :]
            del values[len(values) - n :]
            values.append(operation(e, operands))
        elif (found := leaf(e)) is not None:
            values.append(found)
        else:
            unvisited.append((e, True))
            unvisited.extend((c, False) for c in reversed(children(e)))
    return values[0]


def rewrite_expr(root: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Bottom-up: `change` sees every expression after its operands were rebuilt. Shared parts are rebuilt once."""
    done: dict[int, Expr] = {}
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        item, ready = stack.pop()
        if id(item) in done:
            continue
        if not ready:
            stack.append((item, True))
            stack.extend((c, False) for c in children(item))
            continue
        changes: dict[str, object] = {}
        for name in item.expr_fields:
            value = getattr(item, name)
            if isinstance(value, tuple):
                new: object = tuple(done[id(v)] for v in value)
                if any(a is not b for a, b in zip(value, cast("tuple[Expr, ...]", new), strict=True)):
                    changes[name] = new
            elif value is not None and done[id(value)] is not value:
                changes[name] = done[id(value)]
        done[id(item)] = change(item.replace(**changes) if changes else item)
    return done[id(root)]


def rewrite(
    nodes: Iterable[Node],
    *,
    expr: Callable[[Expr], Expr] | None = None,
    node: Callable[[Node], Node | Iterable[Node]] | None = None,
) -> tuple[Node, ...]:
    """Bottom-up over statements: expressions through `expr`, then each statement through `node`, which may return
    several statements (or none) in place of one."""

    def finish(item: Node, rebuilt: dict[str, tuple[Node, ...]]) -> Iterable[Node]:
        changes: dict[str, object] = {n: b for n, b in rebuilt.items() if b != getattr(item, n)}
        if expr is not None:
            for name in item.expr_fields:
                value = getattr(item, name)
                if value is not None and (new := rewrite_expr(value, expr)) is not value:
                    changes[name] = new
        item = item.replace(**changes) if changes else item
        result = item if node is None else node(item)
        return (result,) if isinstance(result, Node) else result

    top: list[Node] = []
    unvisited: list[tuple[Node, list[Node], dict[str, list[Node]] | None]] = [(n, top, None) for n in list(nodes)[::-1]]
    while unvisited:
        item, target, lists = unvisited.pop()
        if lists is not None:  # its own lists are rebuilt
            target.extend(finish(item, {name: tuple(body) for name, body in lists.items()}))
            continue
        lists = {name: [] for name in item.body_fields}
        unvisited.append((item, target, lists))
        for name in reversed(item.body_fields):
            unvisited.extend((child, lists[name], None) for child in reversed(getattr(item, name)))
    return tuple(top)
