"""A kernel that differs, made smaller for as long as it still differs.

Statements are dropped, blocks replace the statements around them, and expressions those they are part of. A
candidate in which the order of invocations shows is dropped: the model runs both ways.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from .make import without_unused
from .model import expected
from .tree import E, S, Tree, statements
from .write import source

OWN_PLACE = ("store", "stores", "store_augment", "atomic")
"""Statements of which the first expressions say which elements are the lane's own."""


def shrunk(tree: Tree, differs: Callable[[Tree], bool], most: int = 400) -> Tree:
    """The smallest kernel found with `most` tries."""
    left = most
    found = True
    while found and left > 0:
        found = False
        for candidate in smaller(tree):
            left -= 1
            if left < 0:
                break
            if _still(candidate, differs):
                tree, found = candidate, True
                break
    return tree


def _still(tree: Tree, differs: Callable[[Tree], bool]) -> bool:
    try:
        return expected(tree) == expected(tree, backwards=True) and differs(tree)
    except Exception:  # a name that is gone, a type that no longer fits: not a kernel
        return False


def smaller(tree: Tree) -> Iterator[Tree]:
    """Kernels that are a little smaller, the much smaller ones first."""
    shared = any(s.op in ("shared", "grid_sync") for s in statements(tree.body))
    for body in _without(tree.body, shared):
        yield without_unused(replace(tree, body=body))
    for k, helper in enumerate(tree.helpers):
        for body in _without(helper.body, shared):
            yield replace(tree, helpers=(*tree.helpers[:k], replace(helper, body=body), *tree.helpers[k + 1 :]))
    named = set(re.findall(r"\w+", source(replace(tree, arrays=(), scalars=()))))
    for a in tree.arrays:
        if a.name not in named:
            yield replace(tree, arrays=tuple(b for b in tree.arrays if b is not a), sized=True)
    for scalar in tree.scalars:
        if scalar[0] not in named:
            yield replace(tree, scalars=tuple(s for s in tree.scalars if s is not scalar))
    for k, a in enumerate(tree.arrays):
        if a.role in ("in", "inout") and not a.static and a.size > 1 and tree.call:
            half, size = a.size // 2, len(a.data) // a.size
            for data in (a.data[: half * size], a.data[half * size :]):
                less = replace(a, shape=(len(data) // size,), data=data)
                yield replace(tree, arrays=(*tree.arrays[:k], less, *tree.arrays[k + 1 :]), sized=True)
    if tree.later:
        yield replace(tree, later=False)
    for body in _simplified(tree.body):
        yield without_unused(replace(tree, body=body))


def _without(body: tuple[S, ...], shared: bool) -> Iterator[tuple[S, ...]]:
    """The block less some statements, here or further in."""
    if len(body) > 3:
        half = len(body) // 2
        yield body[half:]
        yield body[:half]
    for k, s in enumerate(body):
        if s.op not in ("barrier", "grid_sync") or not shared:
            yield (*body[:k], *body[k + 1 :])
        for block in s.bodies:
            yield (*body[:k], *block, *body[k + 1 :])
    for k, s in enumerate(body):
        for n, block in enumerate(s.bodies):
            for less in _without(block, shared):
                yield (*body[:k], replace(s, bodies=(*s.bodies[:n], less, *s.bodies[n + 1 :])), *body[k + 1 :])


def _simplified(body: tuple[S, ...]) -> Iterator[tuple[S, ...]]:
    for k, s in enumerate(body):
        for n, e in enumerate(s.args):
            if s.op in OWN_PLACE and n < (len(s.data) if s.op == "stores" else 1):
                continue
            for simple in _parts(e):
                yield (*body[:k], replace(s, args=(*s.args[:n], simple, *s.args[n + 1 :])), *body[k + 1 :])
        for n, block in enumerate(s.bodies):
            for less in _simplified(block):
                yield (*body[:k], replace(s, bodies=(*s.bodies[:n], less, *s.bodies[n + 1 :])), *body[k + 1 :])


def _parts(e: E) -> Iterator[E]:
    """The expression with a part in place of the whole, outermost first."""
    if not e.args:
        return
    for arg in e.args:
        if arg.t == e.t:
            yield arg
    if e.t == "bool":
        yield E("num", "bool", data=("True", True))
    elif e.op not in ("load", "num"):
        one = ("1.0", 1.0) if e.t in ("f16", "bf16", "f32", "f64") else ("1", 1)
        yield E("num", e.t, data=one)
    for k, arg in enumerate(e.args):
        for part in _parts(arg):
            yield replace(e, args=(*e.args[:k], part, *e.args[k + 1 :]))
