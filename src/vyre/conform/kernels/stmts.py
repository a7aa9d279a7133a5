"""Random statements: locals, branches, loops, stores, atomics, and what a workgroup does together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from . import inputs
from .small import SmallExpressions
from .tree import BITS, FIELDS, FLOATS, NARROW, WIDE, WORDS, Array, E, Helper, S

DEPTH = 3
"""How deep blocks nest."""
MOST_TURNS = 48
"""How often a statement runs in one invocation, about."""
ORDER_FREE = ("atomic_add", "atomic_sub", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor")


@dataclass
class Owned:
    """A buffer that a lane writes at places of its own; `swapped`: by atomics, whose results it may use."""

    array: Array
    places: list[E]
    swapped: bool = False
    turn: int = 0

    def next(self) -> E:
        """The places in turn, so that a later store leaves what an earlier one wrote."""
        self.turn += 1
        return self.places[self.turn % len(self.places)]


@dataclass
class Bins:
    """A buffer that all lanes change by one order-free operation."""

    name: str
    t: str
    operation: str


@dataclass
class Around:
    """Where a statement stands."""

    depth: int = 0
    loop: bool = False
    leaves: bool = False  # whether it may return
    turns: int = 1
    helper: tuple[str, ...] = ()  # the types that the helper returns


class Statements(SmallExpressions):
    """Makes blocks of statements over the buffers that were declared."""

    outs: list[Owned]
    bins: list[Bins]
    left: int
    whiles: bool
    asserts: bool
    several: bool
    """Whether it has arrays of each lane, small values, and helpers with several results."""

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.scopes.append([])
        yield
        self.scopes.pop()

    def block(self, most: int, around: Around) -> tuple[S, ...]:
        """One to `most` statements in a scope of their own."""
        with self.scope():
            return self.sequence(self.rng.randint(1, most), around)

    def sequence(self, count: int, around: Around) -> tuple[S, ...]:
        made: list[S] = []
        for _ in range(count):
            self.left -= 1
            made += self.statement(around)
            if made and made[-1].op in ("break", "continue", "return"):
                break
        return tuple(made)

    def statement(self, around: Around) -> list[S]:
        kinds: list[tuple[int, Callable[[Around], list[S]]]] = [
            (7, self.let),
            (5, self.assign),
            (2, self.swap),
            (1, self.chain),
        ]
        if self.asserts:
            kinds += [(1, self.assertion)]
        if self.several:
            kinds += [(3, self.array), (3, self.small_let), (4, self.unpack)]
        if self.arrays():
            kinds += [(4, self.put), (4, self.mixed)]
        if not around.helper:
            kinds += [(8, self.store), (1, self.two_stores), (2, self.store_augment), (1, self.beyond)]
            kinds += [(3, self.change)] if self.bins else []
            kinds += [(4, self.exchange)] if any(o.swapped for o in self.outs) else []
        if around.depth < DEPTH and self.left > 0:
            kinds += [(4, self.branch), (2, self.joined)]
            if around.turns * 4 <= MOST_TURNS:
                kinds += [(3, self.counted), (1, self.unrolled), (1, self.each)]
                kinds += [(1, self.conditional)] if self.whiles else []
        if around.loop:
            kinds += [(3, self.jump)]
        elif around.leaves:
            kinds += [(1, self.leave)]
        makers = [make for weight, make in kinds for _ in range(weight)]
        return self.rng.choice(makers)(around)

    # -- locals

    def computed(self) -> str:
        """A type to compute with."""
        return str(self.pick(*self.types, *[t for t in self.types if t not in NARROW]))

    def let(self, around: Around) -> list[S]:
        t = self.computed()
        value = self.expr(t, 3)
        name = self.local(t)
        return [S("let", name, (value,)), *self.shown(t, name, around)]

    def shown(self, t: str, name: str, around: Around) -> list[S]:
        """A store of a new local, if a result has its type and room."""
        fitting = [o for o in self.outs if o.array.t == t and not o.swapped and len(o.places) > 1]
        if around.helper or not fitting or self.chance(0.3):
            return []
        out = self.rng.choice(fitting)
        return [S("store", out.array.name, (out.next(), E("var", t, data=name)))]

    def assign(self, around: Around) -> list[S]:
        names = [(n, t) for scope in self.scopes for n, t, mutable in scope if mutable]
        if not names:
            return self.let(around)
        name, t = self.rng.choice(names[-6:])
        if t in FIELDS and (sign := self.sign_of(t)) and self.chance(0.3):
            return [S("augment", (name, sign), (self.small_value(t, 2),))]
        if t in FIELDS or t in NARROW or t == "bool" or self.chance(0.5):
            return [S("assign", name, (self.any(t, 3),))]
        if t in FLOATS:
            sign = self.pick("+", "-", "*", "/")
            if t == "f32" and self.functions and self.chance(0.7):
                self.functions -= 1
                sign = self.pick("%", "**")
            return [S("augment", (name, sign), (self.divisor(t, 2) if sign == "%" else self.expr(t, 2),))]
        sign = self.pick("+", "-", "*", "^", "|", "&", "//", "%")
        return [S("augment", (name, sign), (self.divisor(t, 2),))]

    def swap(self, around: Around) -> list[S]:
        for t in self.rng.sample(self.types, len(self.types)):
            names = self.variables(t, mutable=True)
            if len(names) > 1:
                a, b = self.rng.sample(names, 2)
                values = (E("var", t, data=b), E("var", t, data=a) if self.chance(0.5) else self.expr(t, 2))
                return [S("swap", (a, b), values)]
        return self.let(around)

    def chain(self, around: Around) -> list[S]:
        t = self.computed()
        value = self.expr(t, 2)
        if value.op in ("num", "turn"):  # it would have a type of its own
            return self.let(around)
        return [S("chain", (self.local(t), self.local(t)), (value,))]

    # -- several values

    def small_let(self, around: Around) -> list[S]:
        smalls = self.smalls()
        if not smalls:
            return self.let(around)
        t = self.rng.choice(smalls)
        names = self.variables(t, mutable=True)
        value = self.small_value(t, 2)
        if names and self.chance(0.5):
            return [S("assign", self.rng.choice(names), (value,))]
        if value.op == "num":  # another name of a constant: its numbers would have no type
            value = E("make", t, tuple(self.any(kind, 1) for _, kind in FIELDS[t]))
        if self.chance(0.2):
            return [S("unpack", tuple(self.local(kind) for _, kind in FIELDS[t]), (value,))]
        name = self.local(t)
        return [S("let", name, (value,)), *self.shown(t, name, around)]

    def sign_of(self, t: str) -> str:
        """An operator that `x += y` and the like may have of small values of a type."""
        if t in ("Pair", "Body"):
            return ""
        return str(
            self.pick("+", "-", "*") if t == "c64" or FIELDS[t][0][1] == "f32" else self.pick("+", "-", "*", "^")
        )

    def array(self, around: Around) -> list[S]:
        return self.array_of(self.pick(self.computed(), *self.smalls()))

    def array_of(self, t: str) -> list[S]:
        count = self.pick(1, 2, 3, 4, 8, 9, 13)
        values = [self.any(t, 2) for _ in range(self.rng.randint(0, 2))]
        name = self.local(f"[{count}]{t}", mutable=False, stem="own")
        stores = [S("store", name, (self.place(count), value)) for value in values]
        return [S("local", (name, t, count)), *stores]

    def put(self, around: Around) -> list[S]:
        name, count, t = self.rng.choice(self.arrays())
        if t in FIELDS and (sign := self.sign_of(t)) and self.chance(0.3):
            return [S("store_augment", (name, sign), (self.place(count), self.small_value(t, 2)))]
        if t in FIELDS or t in NARROW or t == "bool" or self.chance(0.6):
            return [S("store", name, (self.place(count), self.any(t, 2)))]
        sign = self.pick("+", "-", "*") if t in FLOATS else self.pick("+", "-", "*", "^", "|", "&")
        return [S("store_augment", (name, sign), (self.place(count), self.expr(t, 2)))]

    def unpack(self, around: Around) -> list[S]:
        """`v1, v2 = h(x)`."""
        fitting = [h for h in self.helpers if h.more]
        if not fitting:
            return self.let(around)
        helper = self.rng.choice(fitting)
        made = self.needed(helper)
        found = self.called(helper, 3)
        if found is None:
            return made or self.let(around)
        types = (helper.returns, *helper.more)
        if self.chance(0.3):  # kept together
            self.made += 1
            whole = f"both{self.made}"
            names = [self.local(t) for t in types]
            items = [E("item", t, (E("var", "tuple", data=whole),), k) for k, t in enumerate(types)]
            return [*made, S("let", whole, (found,)), *(S("let", n, (i,)) for n, i in zip(names, items, strict=True))]
        names = [self.local(t) for t in types]
        return [*made, S("unpack", tuple(names), (found,))]

    def needed(self, helper: Helper) -> list[S]:
        """The arrays that a call of it takes and that are not there yet."""
        missing = [t[1:] for _, t in helper.params if t[0] == "&" and not self.arrays(t[1:])]
        return [s for t in missing for s in self.array_of(t)]

    def mixed(self, around: Around) -> list[S]:
        """An element of an array, and a call that may change it."""
        fitting = [h for h in self.helpers if not h.is_plain and not h.more and h.returns not in (*NARROW, "bool")]
        helper = self.rng.choice(fitting) if fitting else None
        if helper is None or helper.returns in FIELDS:
            return self.put(around)
        made = self.needed(helper)
        found = self.called(helper, 3)
        if found is None:
            return made or self.put(around)
        arrays = self.arrays(found.t)
        left = self.element(*self.rng.choice(arrays)) if arrays else self.leaf(found.t)
        right = self.element(*self.rng.choice(arrays)) if arrays else self.expr(found.t, 1)
        sign = self.pick("+", "-")
        if left.op in ("num", "turn"):
            left = found
        value = E(sign, found.t, (E(sign, found.t, (left, found)), right))
        return [*made, S("let", self.local(found.t), (value,))]

    # -- memory

    def two_stores(self, around: Around) -> list[S]:
        """`x[i], y[j] = a, b`."""
        plain = [o for o in self.outs if not o.swapped]
        if not plain:
            return self.let(around)
        pair = [self.rng.choice(plain), self.rng.choice(plain)]
        places = [o.next() for o in pair]
        values = [self.any(o.array.t, 2) for o in pair]
        return [S("stores", tuple(o.array.name for o in pair), (*places, *values))]

    def store(self, around: Around) -> list[S]:
        plain = [o for o in self.outs if not o.swapped]
        if not plain:
            return self.let(around)
        out = self.rng.choice(plain)
        return [S("store", out.array.name, (out.next(), self.any(out.array.t, 3)))]

    def store_augment(self, around: Around) -> list[S]:
        fitting = [o for o in self.outs if o.array.role == "inout" and not o.swapped and o.array.t not in NARROW]
        fitting = [o for o in fitting if o.array.t not in ("bool", "Pair", "Body")]
        if not fitting:
            return self.store(around)
        out = self.rng.choice(fitting)
        t = out.array.t
        if t in FIELDS:
            place, value = self.rng.choice(out.places), self.small_value(t, 2)
            return [S("store_augment", (out.array.name, self.sign_of(t)), (place, value))]
        sign = self.pick("+", "-", "*") if t in FLOATS else self.pick("+", "-", "*", "^", "|", "&")
        return [S("store_augment", (out.array.name, sign), (self.rng.choice(out.places), self.expr(t, 2)))]

    def beyond(self, around: Around) -> list[S]:
        """A store that no invocation may see the effect of."""
        plain = [o.array for o in self.outs if not o.swapped and not o.array.static]
        if not plain:
            return self.store(around)
        a = self.rng.choice(plain)
        axis = self.rng.randrange(len(a.shape)) if a.ranked else 0
        n = E("shape", "u32", data=(a.name, axis)) if a.ranked else E("len", "u32", data=a.name)
        below = E("-", "i32", (self.small(9, "i32"), E("num", "i32", data=("i32(9)", 9))))
        places = [n, E("+", "u32", (n, self.small(9))), below]
        places += [self.num_at(v) for v in (a.size, 0xFFFFFFFF, 0x40000000, 0x7FFFFFFF, 0x80000000) if v >= a.size]
        place = self.rng.choice(places)
        if a.ranked:
            indices = [self.small(9) for _ in a.shape]
            place = E("at", "u32", (*indices[:axis], place, *indices[axis + 1 :]), a.name)
        return [S("store", a.name, (place, self.any(a.t, 2)))]

    def change(self, around: Around) -> list[S]:
        bins = self.rng.choice(self.bins)
        at = self.expr("u32", 1) if self.chance(0.3) else E("%", "u32", (self.leaf("u32"), self.num_at(5)))
        return [S("atomic", ("", bins.operation, bins.name), (at, self.expr(bins.t, 2)))]

    def exchange(self, around: Around) -> list[S]:
        """An atomic on an element that the lane has for itself: its result is as good as any value."""
        out = self.rng.choice([o for o in self.outs if o.swapped])
        t, place = out.array.t, self.rng.choice(out.places)
        function = self.pick(*ORDER_FREE, "atomic_exchange", "atomic_cas")
        values = tuple(self.expr(t, 2) for _ in range(2 if function == "atomic_cas" else 1))
        name = self.local(t) if self.chance(0.7) else ""
        return [S("atomic", (name, function, out.array.name), (place, *values))]

    # -- flow

    def inner(self, around: Around, turns: int = 1, loop: bool | None = None) -> Around:
        return Around(
            around.depth + 1,
            around.loop if loop is None else loop,
            True,
            around.turns * turns,
            around.helper,
        )

    def branch(self, around: Around) -> list[S]:
        count = self.pick(1, 1, 1, 2, 3)
        conditions = tuple(self.truth(2) for _ in range(count))
        blocks = [self.block(3, self.inner(around)) for _ in range(count + self.chance(0.5))]
        return [S("if", None, conditions, tuple(blocks))]

    def joined(self, around: Around) -> list[S]:
        """A local that every arm assigns and that goes on behind them."""
        t = self.computed()
        count = self.pick(1, 1, 2)
        conditions = tuple(self.truth(2) for _ in range(count))
        blocks, values = [], []
        for _ in range(count + 1):
            with self.scope():
                quiet = Around(DEPTH, False, False, around.turns, around.helper)
                blocks.append(self.sequence(self.rng.randint(0, 2), quiet))
                values.append(self.expr(t, 2))
        name = self.local(t, mutable=False)  # if it were assigned before it is read, it would be a new local
        bodies = tuple((*b, S("let", name, (v,))) for b, v in zip(blocks, values, strict=True))
        return [S("if", None, conditions, bodies)]

    def counted(self, around: Around) -> list[S]:
        rng = self.rng
        n = rng.randint(0, 4)
        word = E(self.pick("%", "&"), "u32", (self.leaf("u32"), self.num_at(3)))
        signed = E("%", "i32", (self.leaf("i32"), self.num_at(4, "i32")))
        kind = rng.randrange(9)
        t, way = "u32", "range"
        args: tuple[E, ...] = (word,)
        match kind:
            case 0 | 1:
                args = (self.num_at(n),)
            case 2:
                start, step = rng.randint(0, 5), self.pick(1, 2, 3)
                args = tuple(self.num_at(v) for v in (start, start + n, step))
            case 3:
                start = rng.choice((-2, -1, 3))
                args = (self.num_at(start, "i32"), self.num_at(start - n, "i32"), self.num_at(-1, "i32"))
                t = "i32" if start < 0 or (n and start - n + 1 < 0) else "u32"
            case 4:
                args = (word, self.num_at(-1, "i32"), self.num_at(-self.pick(1, 2), "i32"))
            case 5:
                one = self.num_at(1)
                args = (E("-", "u32", (word, one)), self.num_at(-1, "i32"), self.num_at(-1, "i32"))
                way = "down from count"
            case 6:
                t, args = "i32", (self.num_at(-2, "i32"), signed)
            case 7:
                t, args = "i32", (signed, self.num_at(-3, "i32"), self.num_at(-2, "i32"))
            case 8:
                top = 0xFFFFFFFD
                args = (self.num_at(top), self.num_at(top + n % 3)) if n else (word, self.num_at(4))
        if way == "range" and all(a.op == "num" for a in args):
            turns = range(*(a.data[1] for a in args))
            t = "i32" if turns and min(turns[0], turns[-1]) < 0 else "u32"
        with self.scope():
            name = self.local(t, mutable=False, stem="k")
            body = self.sequence(rng.randint(1, 3), self.inner(around, 4, loop=True))
        return [S("for", (name, way), args, (body,))]

    def unrolled(self, around: Around) -> list[S]:
        n = self.rng.randint(0, 3)
        args = (self.num_at(n),) if self.chance(0.7) else (self.num_at(1), self.num_at(2 * n + 1), self.num_at(2))
        head: list[S] = []
        if len(args) == 1 and self.chance(0.25):  # a local that is known while compiling
            bound = self.local("u32", mutable=False, stem="m")
            head.append(S("let", bound, (self.named("u32", n) if self.chance(0.7) else args[0],)))
            args = (E("num", "u32", data=(bound, n)),)
        self.made = self.made + 1
        name = f"s{self.made}"
        self.turns.append(name)
        with self.scope():
            body = self.sequence(self.rng.randint(1, 2), self.inner(around, 4, loop=True))
        self.turns.pop()
        return [*head, S("for", (name, "static"), args, (body,))]

    def each(self, around: Around) -> list[S]:
        """`for x in TABLE`, also of tables that are written there, and of two at a time."""
        t = self.pick("u32", "f32")
        text, numbers = self.table(t)
        self.made += 1
        names = [f"s{self.made}"]
        rows: list[tuple[Any, ...]] = [(x,) for x in numbers]
        turns = self.float_turns if t == "f32" else self.turns
        added = [(turns, names[0])]
        if self.chance(0.4):
            self.made += 1
            names.insert(0, f"s{self.made}")
            added.append((self.turns, names[0]))
            if self.chance(0.5):
                text, rows = f"enumerate({text})", list(enumerate(numbers))
            else:
                other, more = self.table("u32")
                text, rows = f"zip({other}, {text})", list(zip(more, numbers, strict=False))
        for where, name in added:
            where.append(name)
        with self.scope():
            body = self.sequence(self.rng.randint(1, 2), self.inner(around, 4, loop=True))
        for where, _ in added:
            where.pop()
        return [S("each", (tuple(names), text, tuple(rows)), (), (body,))]

    def table(self, t: str) -> tuple[str, list[Any]]:
        """A captured table or one that is written out, and its numbers."""
        found, numbers = inputs.table(self.rng, t)
        if self.chance(0.3):
            return f"({', '.join(map(repr, numbers))},)", numbers
        name = f"C{len(self.captured)}"
        self.captured[name] = found
        return name, numbers

    def assertion(self, around: Around) -> list[S]:
        """What holds, whatever the operands are."""
        t = self.pick(*[t for t in self.types if t in WIDE])
        x = self.expr(t, 2)
        if x.op in ("num", "turn"):
            return self.let(around)
        held = self.pick(
            E("compare", "bool", (E("&", t, (x, self.num_at(7, t))), self.num_at(8, t)), ("<",)),
            E("compare", "bool", (E("popcount", t, (x,)), self.num_at(BITS[t], t)), ("<=",)),
            E("compare", "bool", (E("min", t, (x, self.leaf(t))), x), ("<=",)),
        )
        return [S("assert", "this holds", (held,))]

    def conditional(self, around: Around) -> list[S]:
        """`while`, with a counter that ends it."""
        name = self.local("u32", mutable=False, stem="w")
        below = E("compare", "bool", (E("var", "u32", data=name), self.num_at(1 + self.rng.randrange(4))), ("<",))
        condition = E("and", "bool", (below, self.truth(1))) if self.chance(0.6) else below
        with self.scope():
            body = self.sequence(self.rng.randint(1, 3), self.inner(around, 4, loop=True))
        step = S("augment", (name, "+"), (self.num_at(1),))
        return [S("let", name, (self.num_at(0),)), S("while", None, (condition,), ((step, *body),))]

    def jump(self, around: Around) -> list[S]:
        way = S(self.pick("break", "continue", "return"))
        if way.op == "return" and around.helper:
            if not self.several:
                way = S("break")
            else:
                way = S("return", None, tuple(self.any(t, 2) for t in around.helper))
        return [way] if self.chance(0.1) else [S("if", None, (self.truth(2),), ((way,),))]

    def leave(self, around: Around) -> list[S]:
        if not around.helper:
            return [S("return")]
        return [S("return", None, tuple(self.any(t, 2) for t in around.helper))]

    # -- helpers

    def helper(self, name: str) -> Helper:
        """A function of its own: locals, branches that return, loops; sometimes a buffer to read."""
        returns = str(self.pick(*[t for t in self.types if t not in NARROW]))
        params = [(f"p{k}", self.computed()) for k in range(self.rng.randint(1, 3))]
        more: tuple[str, ...] = ()
        written: list[tuple[str, str, bool]] = []
        if self.several:
            smalls = self.smalls()
            if smalls and self.chance(0.3):
                params.append((f"p{len(params)}", self.rng.choice(smalls)))
            if self.chance(0.5):
                more = tuple(self.pick(self.computed(), *smalls) for _ in range(self.rng.randint(1, 2)))
            elif smalls and self.chance(0.2):
                returns = self.rng.choice(smalls)
            if self.chance(0.5):
                t = self.pick(*[t for t in self.types if t not in NARROW], *smalls)
                params.insert(0, ("arr", f"&{t}"))
                written.append(("arr", f"[0]{t}", False))
        arrays = self.readable
        self.pure, self.readable = True, []
        if arrays and self.chance(0.25):
            t = self.rng.choice(arrays).t
            params.insert(0, ("buf", f"*{t}"))
            self.readable = [Array("buf", "in", t, (1,))]
        ids, self.ids, scopes, self.scopes = self.ids, [], self.scopes, [[]]
        noted = self.chance(0.5)
        self.scopes[0] += [(n, t, True) for n, t in params if t[0] not in "*&"] + written
        outs, self.outs, bins, self.bins, own, self.own = self.outs, [], self.bins, [], self.own, []
        self.left, whiles, self.whiles = 4, self.whiles, False  # a choice refuses helpers that may not end
        results = (returns, *more)
        body = self.sequence(self.rng.randint(0, 3), Around(1, False, False, 8, results))
        if not body or body[-1].op != "return":
            body = (*body, S("return", None, tuple(self.any(t, 3) for t in results)))
        self.pure, self.readable, self.ids, self.scopes = False, arrays, ids, scopes
        self.outs, self.bins, self.own, self.whiles = outs, bins, own, whiles
        return Helper(name, tuple(params), returns, body, noted, more)

    # -- workgroups

    def across(self, name: str, t: str, place: E) -> list[S]:
        """Every lane of the grid writes an element, all wait, and each reads any of them."""
        write = S("store", name, (place, self.expr(t, 2)))
        at = self.pick(E("^", "u32", (place, self.num_at(1))), E("+", "u32", (place, self.small(70))), self.small(9))
        return [write, S("grid_sync"), S("let", self.local(t), (E("load", t, (at,), name),))]

    def together(self, lanes: int, local: E, subgroups: bool) -> list[S]:
        """What all lanes of a workgroup do in step: exchange by shared memory and by subgroups."""
        made: list[S] = []
        for _ in range(self.rng.randint(1, 2)):
            if subgroups and self.chance(0.5):
                made.append(self.subgroup())
            else:
                made += self.exchanged(lanes, local)
        return made

    def subgroup(self) -> S:
        t = str(self.pick(*[t for t in ("u32", "i32", "f32") if t in self.types]))
        words = ("add", "mul", "min", "max") + (() if t == "f32" else ("and", "or", "xor"))
        match self.rng.randrange(6):
            case 0:
                value, lane = self.expr(t, 2), self.expr("u32", 1)
                return S("subgroup", (self.local(t), "subgroup_shuffle"), (value, lane))
            case 1:
                condition = self.truth(2)
                return S("subgroup", (self.local("u32"), "subgroup_ballot"), (condition,))
            case 2:
                return S("subgroup", (self.local("u32"), self.pick("subgroup_local_id", "subgroup_size")))
        value = self.expr(t, 2)
        return S("subgroup", (self.local(t), f"subgroup_{self.pick(*words)}"), (value,))

    def exchanged(self, lanes: int, local: E) -> list[S]:
        """Each lane writes an element, waits, and reads those of others; or all change a few by one atomic."""
        rng = self.rng
        self.made = self.made + 1
        name = f"tile{self.made}"
        if self.chance(0.25):
            t, count, operation = str(self.pick(*WORDS)), self.pick(1, 4, 8), self.pick(*ORDER_FREE)
            at = E("%", "u32", (self.leaf("u32"), self.num_at(9)))
            changed = S("atomic", ("", operation, name), (at, self.expr(t, 2)))
            if self.chance(0.4):
                changed = S("if", None, (self.truth(1),), ((changed,),))
            read = E("load", t, (E("&", "u32", (local, self.num_at(7))),), name)
            return [S("shared", (name, t, count)), changed, S("barrier"), S("let", self.local(t), (read,))]
        kinds = [self.computed(), *(self.smalls() if self.several else [])]
        t, count = str(self.pick(*kinds)), self.pick(lanes, lanes, lanes + 3, max(1, lanes - 1))
        write = S("store", name, (local, self.any(t, 2)))
        if self.chance(0.3):
            write = S("if", None, (self.truth(1),), ((write,),))
        at = rng.choice((
            E("^", "u32", (local, self.num_at(1))), E("+", "u32", (local, self.small(9))),
            E("%", "u32", (E("+", "u32", (local, self.small(40))), self.num_at(count))), self.expr("u32", 1),
            E("-", "u32", (self.num_at(lanes - 1), local)),
        ))  # fmt: skip
        if at.op in ("num", "turn"):
            at = local
        read = E("load", t, (at,), name)
        head = S("shared", (name, t, count))
        if t in WIDE + FLOATS and self.chance(0.3):
            start = self.expr(t, 1)
            total = self.local(t)
            sign = self.pick("+", "*") if t in FLOATS else self.pick("+", "^")
            turn = self.local("u32", mutable=False, stem="k")
            self.scopes[-1].remove((turn, "u32", False))
            step = S("augment", (total, sign), (read,))
            body = (write, S("barrier"), step, S("barrier"))
            loop = S("together", turn, (self.num_at(self.rng.randint(1, 3)),), (body,))
            return [head, S("let", total, (start,)), loop]
        return [head, write, S("barrier"), S("let", self.local(t), (read,))]
