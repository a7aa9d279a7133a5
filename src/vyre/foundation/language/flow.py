"""Where control and names go, read off the syntax before anything is compiled."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

Names = frozenset[str]


def jumps(node: ast.stmt, *kinds: type[ast.stmt]) -> bool:
    """Whether a statement may leave the iteration around it; loops inside keep their own jumps."""
    unvisited = [node]
    while unvisited:
        item = unvisited.pop()
        if isinstance(item, kinds or (ast.Break, ast.Continue)):
            return True
        if isinstance(item, ast.If):
            unvisited += [*item.body, *item.orelse]
    return False


def returns(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Return) for n in ast.walk(node))


def always_returns(body: Sequence[ast.stmt]) -> bool:
    last = body[-1] if body else None
    while isinstance(last, ast.If):
        if not always_returns(last.body):
            return False
        last = last.orelse[-1] if last.orelse else None
    return isinstance(last, ast.Return)


def is_elif(orelse: Sequence[ast.stmt]) -> bool:
    return len(orelse) == 1 and isinstance(orelse[0], ast.If)


def arms(node: ast.If) -> list[list[ast.stmt]]:
    """The bodies of `if`, `elif`, ..., and of `else`, which is empty where there is none."""
    found = [node.body]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        found.append(node.body)
    return [*found, node.orelse]


def assigned(body: Iterable[ast.stmt]) -> Names | None:
    """Names that have a value wherever control leaves these statements at their end; None where it never does."""
    found: Names = frozenset()
    for node in body:
        match node:
            case ast.Assign(targets=targets):
                found |= {name for target in targets for name in _stored(target)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                found |= {name}
            case ast.If():
                inner = assigned_in_every(arms(node))
                if inner is None:
                    return None
                found |= inner
            case ast.Return() | ast.Break() | ast.Continue():
                return None
    return found


def assigned_in_every(bodies: Iterable[Sequence[ast.stmt]]) -> Names | None:
    """Names that have a value whichever of the bodies control came through."""
    found = [names for names in map(assigned, bodies) if names is not None]
    return frozenset.intersection(*found) if found else None


def read_first(body: Iterable[ast.stmt], name: str) -> bool:
    """Whether these statements may read the value that `name` has before them."""
    return _first_use(body, name) == "read"


def _stored(target: ast.expr) -> Names:
    match target:
        case ast.Name(id=name):
            return frozenset((name,))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return frozenset().union(*map(_stored, items))
    return frozenset()


def _reads(node: ast.AST | None, name: str) -> bool:
    return node is not None and any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in ast.walk(node)
    )


def _first_use(body: Iterable[ast.stmt], name: str) -> str:
    """What becomes of a name: read, replaced (or control gone), or untouched."""
    for node in body:
        match node:
            case ast.If():
                uses = {_first_use(arm, name) for arm in arms(node)}
                if "read" in uses or any(_reads(t, name) for t in _tests(node)):
                    return "read"
                if uses == {"replaced"}:
                    return "replaced"
            case ast.For(target=ast.Name(id=target), iter=source) if target == name:
                return "read" if _reads(source, name) else "replaced"
            case ast.For(iter=source, body=inner) | ast.While(test=source, body=inner):
                if _reads(source, name) or _first_use(inner, name) == "read":
                    return "read"
            case ast.AugAssign(target=ast.Name(id=target), value=value):
                if target == name or _reads(value, name):
                    return "read"
            case _:
                if _reads(node, name):
                    return "read"
                if isinstance(node, ast.Return | ast.Break | ast.Continue) or name in (assigned([node]) or ()):
                    return "replaced"
    return "untouched"


def _tests(node: ast.If) -> list[ast.expr]:
    found = [node.test]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        node = node.orelse[0]
        found.append(node.test)
    return found
