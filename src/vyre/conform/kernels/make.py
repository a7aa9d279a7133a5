"""A random kernel with one call of it, from a seed."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

from ...foundation.integers import ceil_div
from . import inputs
from .stmts import ORDER_FREE, Around, Bins, Owned, Statements
from .tree import FIELDS, FLOATS, NARROW, Array, E, S, Tree
from .write import source

WORKGROUPS: dict[int, tuple[tuple[int, ...], ...]] = {
    1: ((1,), (2,), (7,), (16,), (31,), (32,), (33,), (64,), (64,), (64,), (100,), (128,), (256,)),
    2: ((8, 8), (8, 8), (16, 4), (1, 8), (3, 5), (32, 1), (64, 1), (1, 1), (16, 16)),
    3: ((4, 4, 4), (2, 3, 4), (8, 1, 2), (1, 1, 8), (4, 4, 1), (16, 1, 1)),
}
LENGTHS = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, 300)
RANKED = 0.3
"""How many of the arrays have several indices."""
SIDES = {2: (0, 1, 2, 3, 5, 7, 8, 9, 13, 16, 17), 3: (1, 2, 3, 4, 5, 7)}
MOST_LANES = 640


def random_kernel(seed: int) -> Tree:
    """The kernel of a seed; the same one on every machine."""
    attempts = (_Maker(random.Random(f"kernel {seed} {attempt}")).tree(seed) for attempt in count())
    return next(tree for tree in attempts if prod(tree.grid) * prod(tree.workgroup) <= MOST_LANES)


class _Maker(Statements):
    written: list[Array]
    count: int  # lanes of the domain
    rank: int  # its axes
    meeting: Array | None = None  # what lanes of the whole grid exchange values by

    def __init__(self, rng: random.Random) -> None:
        types = ["u32", "i32", "f32", "bool"]
        for share, more in ((0.5, NARROW), (0.25, ("u64", "i64")), (0.25, ("f16", "bf16")), (0.12, ("f64",))):
            if rng.random() < share:
                types += rng.sample(more, rng.randint(1, len(more)))
        super().__init__(rng, types)
        self.outs, self.bins, self.left = [], [], rng.randint(4, 16)
        self.functions = rng.choice((0, 0, 1, 2, 4))
        self.whiles = rng.random() < 0.15
        self.several = rng.random() < 0.5
        self.asserts = rng.random() < 0.1

    def tree(self, seed: int) -> Tree:
        rng = self.rng
        rank = rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 3))
        workgroup = rng.choice(WORKGROUPS[rank])
        lanes = prod(workgroup)
        dims = (rng.choice(LENGTHS),) if rank == 1 else tuple(rng.choice(SIDES[rank]) for _ in range(rank))
        alike = rng.random() < 0.4  # every array has the shape of the domain
        self.rank = rank
        way = rng.choice(("grid", "domain", "shapes", "shapes") if alike else ("grid", "domain"))
        grid = tuple(ceil_div(n, w) for n, w in zip(dims, workgroup, strict=True))
        if way == "grid":
            grid = tuple(max(0, min(g + rng.choice((-1, 0, 0, 1)), 40)) or 1 for g in grid)
        arrays, scalars = self.declared(dims, alike, way)
        i, guard = self.linear(dims, grid, workgroup, scalars)
        body = self.body(lanes, workgroup, i, guard)
        x, y, z = (*grid, 1, 1)[:3]
        call: tuple[Any, ...] = {"grid": ("grid", grid), "domain": ("domain", dims), "shapes": ("domain", dims)}[way]
        tree = Tree(
            seed, tuple(arrays), tuple(scalars), tuple(self.consts.items()), tuple(self.captured.items()),
            tuple(self.helpers), workgroup, (x, y, z), call,
            sized=way != "shapes" or not self.says_shapes(arrays) or rng.random() < 0.3,
            later=rng.random() < 0.1, body=body,
        )  # fmt: skip
        tree = without_unused(tree)
        generic = ""
        held = [t for t in self.types if t != "bool" and any(a.t == t for a in tree.arrays)]
        if rng.random() < 0.12 and held and not tree.helpers:
            generic = rng.choice(held)
        defaults = [(name, value) for name, t, value in tree.scalars if t not in (*FIELDS, generic)]
        defaults += tree.consts
        left_out = {name for name, value in defaults if math.isfinite(value) and rng.random() < 0.2}
        return replace(tree, left_out=frozenset(left_out), generic=generic)

    def stored_type(self) -> str:
        """What a buffer is of: a number, or a small value."""
        smalls = self.smalls()
        return str(self.rng.choice(smalls if self.several and self.rng.random() < 0.2 else self.types))

    # -- parameters

    def declared(self, dims: tuple[int, ...], alike: bool, way: str) -> tuple[list[Array], list[tuple[str, str, Any]]]:
        rng = self.rng
        self.count = prod(dims)
        shape = dims[::-1]
        if len(dims) == 1 and dims[0] % 2 == 0 and dims[0] and rng.random() < 0.2:
            shape = rng.choice(((dims[0] // 2, 2), (dims[0], 1), (2, dims[0] // 2)))
        arrays: list[Array] = []

        def shaped(static: bool) -> tuple[int, ...]:
            if alike:
                return shape
            n = int(rng.choice((prod(dims), prod(dims), rng.choice(LENGTHS))))
            return (max(n, 1) if static else n,)

        for k in range(rng.randint(1, 3)):
            t = self.stored_type()
            static = rng.random() < 0.12
            extent = shaped(static)
            ranked = rng.random() < RANKED and t not in FIELDS
            if ranked and not alike:
                extent = tuple(rng.choice((0, 1, 2, 3, 4, 5, 6, 7)) for _ in range(rng.randint(1, 4)))
            data = inputs.elements(rng, t, prod(extent))
            static = static and bool(prod(extent)) and not ranked
            arrays.append(Array(f"x{k}", "in", t, extent, data, static, rng.random() < 0.1, ranked=ranked))
        if rng.random() < 0.15:
            t, n = rng.choice(self.types), rng.randint(1, 5)
            arrays.append(Array("table", "uniform", t, (n,), inputs.elements(rng, t, n), True))
        self.readable = list(arrays)
        for k in range(rng.randint(0, 1) + (rng.random() < 0.2)):
            t = self.stored_type()
            extent, ranked = self.planes(shaped(False), alike, t)
            arrays.append(Array(f"io{k}", "inout", t, extent, inputs.elements(rng, t, prod(extent)), ranked=ranked))
        if rng.random() < 0.15:
            t, (extent, ranked) = rng.choice(("u32", "i32")), self.planes(shaped(False), alike, "u32")
            arrays.append(Array("swap", "inout", t, extent, inputs.elements(rng, t, prod(extent)), ranked=ranked))
        if rng.random() < 0.15 and (not alike or way != "shapes"):
            t, n = rng.choice(("u32", "i32")), rng.randint(1, 7)
            arrays.append(Array("bins", "inout", t, (n,), inputs.elements(rng, t, n)))
            self.bins.append(Bins("bins", t, rng.choice(ORDER_FREE)))
        if rng.random() < 0.05 and way != "shapes":
            t, n = rng.choice(self.types), rng.choice(LENGTHS)
            self.meeting = Array("meet", "inout", t, (n,), inputs.elements(rng, t, n))
            arrays.append(self.meeting)
        for k in range(rng.randint(1, 3)):
            t = rng.choice((self.stored_type(), self.stored_type(), "u32", "f32"))
            static = rng.random() < 0.1 and (len(dims) == 1 or not alike)
            extent = shaped(static)
            if not alike and self.count and rng.random() < 0.7:
                extent = (self.count * rng.choice((2, 3, 4, 8)),)
            given, ranked = rng.random() < 0.3, False
            if not static:
                extent, ranked = self.planes(extent, alike, t)
            static = static and bool(prod(extent))
            arrays.append(Array(f"out{k}", "out", t, extent, b"", static, False, given, ranked))
        rng.shuffle(arrays)
        self.written = [a for a in arrays if a.role in ("out", "inout") and a.name not in ("bins", "meet")]
        scalars = []
        for k in range(rng.choice((0, 0, 1, 2))):
            t = self.stored_type()
            scalars.append((f"a{k}", t, inputs.scalar(rng, t)))
            self.scopes[0].append((f"a{k}", t, False))
        return arrays, scalars

    def planes(self, shape: tuple[int, ...], alike: bool, t: str) -> tuple[tuple[int, ...], bool]:
        """The shape of a result, and whether the kernel sees its axes; of a line, those that it might be cut into."""
        rng = self.rng
        if rng.random() >= RANKED or t in FIELDS:
            return shape, False
        if alike:
            return shape, True
        for _ in range(rng.randint(0, 3)):
            width = rng.randint(1, 9)
            shape = (shape[0] // width, width, *shape[1:])
        return shape, True

    def says_shapes(self, arrays: list[Array]) -> bool:
        """Whether the inputs say how long the results are."""
        inputs = [a for a in arrays if a.role in ("in", "inout") and not a.static]
        outs = [a for a in arrays if a.role == "out"]
        if any(a.t in FIELDS for a in arrays):
            return False
        return all(any(not a.ranked or i.ranked for i in inputs) for a in outs)

    # -- ids

    def linear(
        self, dims: tuple[int, ...], grid: tuple[int, ...], workgroup: tuple[int, ...], scalars: list[Any]
    ) -> tuple[E, E | None]:
        """The number of a lane in the grid, and the condition under which it is one of the domain."""
        rng = self.rng
        axes = [E("id", "u32", data=("gid", a)) for a in "xyz"[: len(dims)]]
        whole = [g * w for g, w in zip(grid, workgroup, strict=True)]
        guarded = rng.random() < 0.6 and prod(dims) > 0
        extents = dims if guarded else whole
        terms: E = axes[-1]
        for k in reversed(range(len(dims) - 1)):
            terms = E("+", "u32", (E("*", "u32", (terms, self.extent(extents[k], scalars))), axes[k]))
        inside = [E("compare", "bool", (a, self.extent(n, scalars)), ("<",)) for a, n in zip(axes, dims, strict=True)]
        guard = (E("and", "bool", tuple(inside)) if len(inside) > 1 else inside[0]) if guarded else None
        return terms, guard

    def extent(self, n: int, scalars: list[Any]) -> E:
        """A side of the domain: a literal, a captured number, or an argument."""
        match self.rng.randrange(4):
            case 0:
                known = [name for name, t, value in scalars if t == "u32" and value == n]
                if not known and len(scalars) < 3:
                    known = [f"side{len(scalars)}"]
                    scalars.append((known[0], "u32", n))
                    self.scopes[0].append((known[0], "u32", False))
                return E("var", "u32", data=known[0]) if known else self.num_at(n)
            case 1:
                return self.named("u32", n)
        return self.num_at(n)

    def places(self, a: Array, i: E) -> list[E]:
        """Elements that belong to one lane: the same rule for every access to the array."""
        rng = self.rng
        if a.ranked:
            return [self.corner(a, i)]
        n = E("num", "u32", data=(str(a.size), a.size)) if a.static else E("len", "u32", data=a.name)
        one = self.num_at(1)
        match rng.randrange(10):
            case 0:
                return [E("-", "u32", (E("-", "u32", (n, one)), i))]
            case 1:
                return [E(rng.choice(("+", "-", "^")), "u32", (i, self.small(6)))]
            case 2 | 4 | 5 | 6 | 7 | 8 if self.count and a.size >= 2 * self.count:
                step = a.size // self.count
                scaled = E("*", "u32", (i, self.num_at(step)))
                return [E("+", "u32", (scaled, self.num_at(k))) for k in range(step)]
            case 3:
                return [E("-", "u32", (self.num_at(rng.randint(0, 300)), i))]
        return [i]

    def corner(self, a: Array, i: E) -> E:
        """The element of a lane in an array with a rank: its number, taken apart, or its ids."""
        rng, rank = self.rng, len(a.shape)
        indices = [E("id", "u32", data=("gid", axis)) for axis in reversed("xyz"[:rank])]
        if rank != self.rank or rng.random() < 0.6:
            indices = [i]
            for axis in reversed(range(1, rank)):
                n = E("shape", "u32", data=(a.name, axis))
                if a.shape[axis] and rng.random() < 0.5:
                    n = self.num_at(a.shape[axis])
                indices[:1] = [E("//", "u32", (indices[0], n)), E("%", "u32", (indices[0], n))]
        if rng.random() < 0.4:
            k = rng.randrange(rank)
            indices[k] = self.signed(indices[k])
        return E("at", "u32", tuple(indices), a.name)

    # -- the body

    def body(self, lanes: int, workgroup: tuple[int, ...], i: E, guard: E | None) -> tuple[S, ...]:
        rng = self.rng
        head: list[S] = []
        if guard is not None and i.op != "id":  # lanes outside of the domain would share the places of others
            i = E("choose", "u32", (guard, i, E("num", "u32", data=("0xffffffff", 0xFFFFFFFF))), "if")
        if i.op != "id" or rng.random() < 0.3:
            name = self.local("u32", mutable=False, stem="i")
            head.append(S("let", name, (i,)))
            i = E("var", "u32", data=name)
        axes = "xyz"[: len(workgroup)]  # a call without a domain asks how many of them a kernel reads
        self.ids = [i, i, i, *(E("id", "u32", data=("gid", a)) for a in axes)]
        self.ids += [E("id", "u32", data=("lid", rng.choice("xyz"))), E("id", "u32", data=("wg", rng.choice(axes)))]
        for a in self.written:
            places = self.places(a, i)
            self.outs.append(Owned(a, places, swapped=a.name == "swap"))
            if a.role == "inout" and a.name != "swap":
                self.own.append((a.name, a.t, places))
        seen = [a for a in self.readable if a.ranked and len(a.shape) > 1]
        if seen and rng.random() < 0.4:
            a = rng.choice(seen)
            head.append(S("extents", (tuple(self.local("u32", mutable=False, stem="n") for _ in a.shape), a.name)))
        if self.meeting is not None:
            head += self.across(self.meeting.name, self.meeting.t, i)
        for k in range(rng.choice((0, 1, 2, 2) if self.several else (0, 0, 0, 1, 2))):
            left = self.left
            self.helpers.append(self.helper(f"h{k}"))
            self.left = left
        if rng.random() < 0.25:
            head += self.together(lanes, self.local_id(workgroup), rng.random() < 0.4)
        if guard is None:
            return (*head, *self.rest(0))
        if rng.random() < 0.5:
            return (*head, S("if", None, (E("not", "bool", (guard,)),), ((S("return"),),)), *self.rest(0))
        with self.scope():
            return (*head, S("if", None, (guard,), (self.rest(1),)))

    def local_id(self, workgroup: tuple[int, ...]) -> E:
        found: E | None = None
        for axis in reversed(range(len(workgroup))):
            own = E("id", "u32", data=("lid", "xyz"[axis]))
            if found is None:
                found = own
            else:
                found = E("+", "u32", (E("*", "u32", (found, self.num_at(workgroup[axis]))), own))
        assert found is not None
        return found

    def rest(self, depth: int) -> tuple[S, ...]:
        """Statements, and at the end a store to every result."""
        made: list[S] = []
        while self.left > 0:
            made += self.sequence(self.rng.randint(1, 3), Around(depth))
        for out in self.outs:
            if not out.swapped:
                made.append(S("store", out.array.name, (out.next(), self.last(out.array.t))))
        return tuple(made)

    def last(self, t: str) -> E:
        """An expression that shows as many locals as it can."""
        names = self.variables(t)
        if names and t not in (*NARROW, *FIELDS, "bool") and self.chance(0.6):
            a, b = E("var", t, data=names[-1]), self.expr(t, 3)
            return E("+" if t in FLOATS else "^", t, (a, b))
        return self.any(t, 4)


def without_unused(tree: Tree) -> Tree:
    """Less the numbers and helpers that nothing names."""
    helpers = tree.helpers
    for helper in reversed(helpers):
        text = source(replace(tree, helpers=tuple(h for h in helpers if h is not helper)))
        if not re.search(rf"\b{helper.name}\(", text):
            helpers = tuple(h for h in helpers if h is not helper)
            tree = replace(tree, helpers=helpers)
    text = source(replace(tree, consts=()))
    used = set(re.findall(r"\b[CN]\d+\b", text))
    return replace(
        tree,
        captured=tuple(c for c in tree.captured if c[0] in used),
        consts=tuple(c for c in tree.consts if c[0] in used),
    )
