"""How small and how large can a u32 value be in a tile of workgroups? As numbers where they are known now, as code that
the tile runs first where they are not.

A range carries the conditions under which it holds; a condition that fails only means that accesses are tested. Steps
in u64 do not wrap while the conditions hold, because everything is compared with 2^32 before it could.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import partial, reduce
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from ...foundation.integers import U32_MAX
from ..instructions import COMPARES, INSTRUCTIONS
from ..kernel_ir import (
    FLOATS,
    PURE,
    SIGNED_STEPS,
    Bound,
    Buffer,
    CheckCode,
    Ins,
    Kernel,
    Local,
    TileCheck,
    needed_by,
    walk,
)

_HUGE = 1 << 62
_DEPTH = 40
_SLICE = 64
_FUEL = 200
"""Questions that one proof asks."""
MOST_SIGNED = (1 << 31) - 1
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_PLACES = frozenset(("gid", "wid", "lid", "lane", "index", "gid_lo", "gid_hi"))

Relations: TypeAlias = dict[Ins, list[tuple[Ins, int]]]


class Range(NamedTuple):
    """`lo` <= value <= `hi` <= `top`, a number, if all of `needs` hold. A `top` above `U32_MAX` was never compared."""

    lo: Bound
    hi: Bound
    top: int
    needs: frozenset[Ins] = frozenset()


ANY = Range(0, U32_MAX, U32_MAX)


class Signed(NamedTuple):
    """`least` <= `lo` <= value <= `hi` <= `most` as an i32 if all of `needs` hold: two numbers, and bounds in i64."""

    lo: Bound
    hi: Bound
    least: int
    most: int
    needs: frozenset[Ins] = frozenset()


class Ranges:
    """Ranges of values under the facts that hold at the present place of a walk over the kernel.

    Their code goes on after that of the check which the kernel has already: both read memory once.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.code = CheckCode(kernel.check.body if kernel.check else ())
        self.above: Relations = {}  # value -> (bound, k): value + k <= bound
        self.below: Relations = {}  # value -> (bound, k): bound + k <= value
        self.sums: Relations = {}  # value -> (sum, k): sum is value + k, and `above` knows it
        self._log: list[tuple[Relations, Ins]] = []
        self._ranges: dict[Ins, Range] = {}
        self._asking: set[Ins] = set()
        self._cuts = 0  # questions that went in circles or too far
        self.fuel = 0  # questions left
        self._exact: dict[Ins, Ins | None] = {**kernel.check.loads} if kernel.check else {}
        self._tops: dict[Local, int] | None = None
        self._words: dict[Any, Ins] | None = None
        self._word_of: dict[Ins, Ins | None] = {}

    # -- facts

    def enter(self) -> tuple[int, dict[Ins, Range]]:
        return len(self._log), self._ranges

    def leave(self, scope: tuple[int, dict[Ins, Range]]) -> None:
        while len(self._log) > scope[0]:
            facts, value = self._log.pop()
            facts[value].pop()
        self._ranges = scope[1]

    def assume(self, condition: Ins, truth: bool) -> None:
        """The condition is known to be true (or false) from here on."""
        unvisited = [(condition, truth)]
        signed: list[tuple[Ins, Ins, int]] = []
        while unvisited:
            c, truth = unvisited.pop()
            if c.op == "not":
                unvisited.append((c.args[0], not truth))
            elif c.op == ("and" if truth else "or") and c.dtype == "bool":
                unvisited += [(c.args[0], truth), (c.args[1], truth)]
            elif c.op in COMPARES and c.args[0].dtype == "u32":
                self._compare(c.op, c.args[0], c.args[1], truth)
            elif c.op in _OPPOSITE and c.args[0].dtype == "i32":
                op = c.op if truth else _OPPOSITE[c.op]
                a, b = c.args if op in ("lt", "le") else c.args[::-1]
                signed.append((a, b, int(op in ("lt", "gt"))))
        signed.sort(key=lambda pair: pair[0].op != "const")  # lower bounds first: what they bound is not below zero
        for a, b, k in signed:
            low, high = self.word(a), self.word(b)
            if low is not None and high is not None and self._is_natural(low):
                self._at_most(low, high, k)
                self._at_most(high, self._known_word("const", (), MOST_SIGNED), 0)

    def _is_natural(self, word: Ins) -> bool:
        """Whether the i32 of these bits is known not to be below zero."""
        self.fuel = _FUEL
        found = self.of(word)
        return found.top <= MOST_SIGNED and not found.needs

    def word(self, v: Ins, deep: int = 0) -> Ins | None:
        """The u32 of the same bits as an i32, if its range can be known: the one of the kernel where that has it."""
        if v.dtype == "u32":
            return v
        if v.op == "convert" and v.args[0].dtype == "u32":
            return v.args[0]
        if v.dtype == "i32" and v.op == "const":
            return self._known_word("const", (), v.attr)
        if v.dtype != "i32" or v.op not in ("add", "sub", "mul"):
            return None
        if v not in self._word_of:
            parts = [self.word(a, deep + 1) for a in v.args] if deep < _DEPTH else []
            known = tuple(p for p in parts if p is not None)
            self._word_of[v] = self._known_word(v.op, known) if len(known) == len(v.args) else None
        return self._word_of[v]

    def _known_word(self, op: str, args: tuple[Ins, ...], attr: Any = None) -> Ins:
        if self._words is None:
            items = (i for i in walk(self.kernel.body) if isinstance(i, Ins) and i.dtype == "u32")
            self._words = {_shape(i): i for i in items if i.op in ("const", "add", "sub", "mul")}
        made = Ins(op, "u32", args, attr)
        return self._words.setdefault(_shape(made), made)

    def _compare(self, op: str, a: Ins, b: Ins, truth: bool) -> None:
        if op in ("gt", "ge"):
            op, a, b = ("lt" if op == "gt" else "le"), b, a
        if op in ("eq", "ne"):
            if (op == "eq") == truth:
                self._at_most(a, b, 0)
                self._at_most(b, a, 0)
            elif a.op == "const" and a.attr == 0:
                self._at_most(a, b, 1)
            elif b.op == "const" and b.attr == 0:
                self._at_most(b, a, 1)
        elif truth:
            self._at_most(a, b, int(op == "lt"))
        else:
            self._at_most(b, a, int(op == "le"))

    def _at_most(self, a: Ins, b: Ins, k: int) -> None:
        """a + k <= b"""
        self._note(self.above, a, b, k)
        self._note(self.below, b, a, k)
        if a.op == "add":
            for x, step in (a.args, a.args[::-1]):
                if step.op == "const":
                    self._note(self.sums, x, a, step.attr)
        self._ranges = {}

    def _note(self, facts: Relations, value: Ins, other: Ins, k: int) -> None:
        facts.setdefault(value, []).append((other, k))
        self._log.append((facts, value))

    def check(self, conditions: Set[Ins], read: Iterable[Ins] = ()) -> TileCheck:
        """That these steps of the code hold; in its order, which a set has not. It has the loads `read` too."""
        ok = self.code.all_of([step for step in self.code.body if step in conditions])
        needed = needed_by(self.code.body, {ok, *read})
        loads = {v: found for v, found in self._exact.items() if v.op == "load" and found in needed}
        return TileCheck([i for i in self.code.body if i in needed], ok, loads)

    def proof(self, condition: Ins, truth: bool) -> list[Ins] | None:
        """What a tile must meet so that the condition has this truth for every lane; None where that is unknown."""
        needs: list[Ins] = []
        unvisited = [(condition, truth)]
        while unvisited:
            c, truth = unvisited.pop()
            if c.op == "not":
                unvisited.append((c.args[0], not truth))
            elif c.dtype == "bool" and c.op == ("and" if truth else "or"):
                unvisited += [(c.args[0], truth), (c.args[1], truth)]
            elif c.op in _OPPOSITE and c.args[0].dtype in ("u32", "i32"):
                op = c.op if truth else _OPPOSITE[c.op]
                a, b = c.args if op in ("lt", "le") else c.args[::-1]
                found = self.ordered({"gt": "lt", "ge": "le"}.get(op, op), a, b)
                if found is None:
                    return None
                needs += found
            elif c.op == ("ne" if truth else "eq") and c.args[0].dtype in ("u32", "i32"):
                ways = [
                    way for way in (self.ordered("lt", *c.args), self.ordered("lt", *c.args[::-1])) if way is not None
                ]
                if not ways:
                    return None
                needs += ways[0] if [] in ways or len(ways) == 1 else [self.code.any_of(ways)]
            else:
                return None
        return needs

    def ordered(self, op: str, a: Ins, b: Ins) -> list[Ins] | None:
        """What a tile must meet so that a < b (or <=) for every lane, two u32 or i32; None where that is unknown."""
        low, high = self.word(a), self.word(b)
        found = None if low is None or high is None else self._ordered_words(op, low, high, a.dtype)
        if found is not None or a.dtype == "u32":
            return found
        self.fuel = _FUEL
        x, y = self.signed(a), self.signed(b)
        fits = x is not None and y is not None and self.code.compare(op, x.hi, y.lo, "i64")
        if x is None or y is None or fits is False:
            return None
        return [*x.needs, *y.needs, *([] if fits is True else [fits])]

    def _ordered_words(self, op: str, a: Ins, b: Ins, dtype: str) -> list[Ins] | None:
        self.fuel = _FUEL
        low, high = self.settled(self.of(a)), self.settled(self.of(b))
        if low.hi == U32_MAX or (high.lo == 0 and low.hi != 0):
            return None
        found = [self.code.compare(op, low.hi, high.lo)]
        if dtype == "i32":  # which are the same numbers where they are not below zero
            found += [self.code.compare("le", r.hi, MOST_SIGNED) for r in (low, high)]
        if False in found:
            return None
        return [*low.needs, *high.needs, *(fits for fits in found if isinstance(fits, Ins))]

    # -- values that are the same for the whole dispatch

    def exact(self, value: Ins) -> Ins | None:
        """Code for a value that depends on nothing but lengths and read-only memory; it computes as the kernel does."""
        exact, room = self._exact, _SLICE
        unvisited = [value]
        while unvisited:
            v = unvisited[-1]
            if v not in exact:
                missing = [a for a in v.args if a not in exact]
                args = [a for a in (exact.get(a) for a in v.args) if a is not None]
                room -= 1
                if not room or not self._is_fixed(v) or len(args) + len(missing) < len(v.args):
                    exact[v] = None
                elif missing:
                    unvisited.append(missing[0])
                    continue
                else:
                    exact[v] = self.code.emit(v.op, v.dtype, *args, attr=v.attr)
            unvisited.pop()
        return exact[value]

    def _is_fixed(self, v: Ins) -> bool:
        if v.op == "load":
            return not v.attr.writable and v.dtype not in FLOATS
        return v.op in PURE and v.op not in _PLACES and v.dtype not in FLOATS

    def length(self, buffer: Buffer) -> Bound:
        if buffer.shared:
            return buffer.count
        return self.code.emit("convert", "u64", self.code.emit("len", "u32", attr=buffer))

    # -- ranges

    def of(self, value: Ins) -> Range:
        """The range of a u32 value."""
        found = self._ranges.get(value)
        if found is None:
            if value in self._asking or self.fuel <= 0 or len(self._asking) > _DEPTH:
                self._cuts += 1
                return ANY
            self.fuel -= 1
            cuts = self._cuts
            self._asking.add(value)
            found = self._narrowed(value, self._plain(value))
            self._asking.discard(value)
            if self._cuts == cuts or not self._asking:  # else another question may find out more
                self._ranges[value] = found
        return found

    def settled(self, r: Range) -> Range:
        """The range with a top that is a u32; `ANY` where that can never be."""
        if r.top <= U32_MAX:
            return r
        fits = self.code.compare("le", r.hi, U32_MAX)
        if isinstance(fits, bool):
            return r._replace(top=U32_MAX) if fits else ANY
        return r._replace(top=U32_MAX, needs=r.needs | {fits})

    def _narrowed(self, value: Ins, r: Range) -> Range:
        code = self.code
        for bound, k in self.above.get(value, ()):
            other = self.settled(self.of(bound))
            if other.hi == U32_MAX:
                continue
            hi = code.less_by(other.hi, k)
            if r.top > U32_MAX or (r.needs and not other.needs) or r.hi == U32_MAX:
                r = Range(0, hi, other.top, other.needs)  # simpler, and never worse than a wrapped value
            else:
                r = Range(r.lo, code.do("min", r.hi, hi), min(r.top, other.top), r.needs | other.needs)
        r = self._through_sum(value, r)
        for bound, k in self.below.get(value, ()):
            if bound.op == "const":
                r = r._replace(lo=code.do("max", r.lo, bound.attr + k))
            elif (fixed := self.exact(bound)) is not None:
                least = code.do("add", code.emit("convert", "u64", fixed), k)
                r = r._replace(lo=code.do("max", r.lo, least))
        return r

    def _through_sum(self, value: Ins, r: Range) -> Range:
        """value + c < bound says something about value as well, provided that the sum does not wrap."""
        code = self.code
        for total, step in self.sums.get(value, ()):
            for bound, k in self.above.get(total, ()):
                other = self.settled(self.of(bound))
                fits = code.compare("le", code.do("add", r.hi, step), U32_MAX)
                if r.top > U32_MAX or r.hi == U32_MAX or other.hi == U32_MAX or fits is False:
                    continue
                needs = r.needs | other.needs | (frozenset() if fits is True else {fits})
                r = Range(r.lo, code.do("min", r.hi, code.less_by(other.hi, k + step)), r.top, needs)
        return r

    def _plain(self, v: Ins) -> Range:
        """By definition, without facts."""
        if v.dtype != "u32":
            return ANY
        code, op = self.code, v.op
        match op:
            case "const":
                return Range(v.attr, v.attr, v.attr)
            case "gid" | "wid":
                lo, hi = (code.emit(end, "u64", attr=v.attr) for end in ("gid_lo", "gid_hi"))
                size = self.kernel.workgroup[v.attr] if op == "wid" else 1
                return Range(code.do("div", lo, size), code.do("div", hi, size), U32_MAX // size)
            case "lid":
                size = self.kernel.workgroup[v.attr]
                return Range(0, size - 1, size - 1)
            case "lane":
                return Range(0, 32, 32)
            case "index":
                return self._counter(v)
            case "get":
                top = self._top(v.attr)
                return Range(0, top, top)
        bounds = INSTRUCTIONS[op].bounds
        if bounds is not None:
            low, top = bounds(v.dtype, v.attr)
            return Range(low, top, top)
        fixed = self.exact(v)
        if fixed is not None:
            word = code.emit("convert", "u64", fixed)
            return Range(word, word, U32_MAX)
        if op == "load" and v.attr.element.name in ("u8", "u16"):
            return Range(0, top := 255 if v.attr.element.name == "u8" else 65535, top)
        if op == "convert" and v.args[0].dtype == "bool":
            return Range(0, 1, 1)
        if op == "convert" and v.args[0].dtype == "i32":
            return self._natural(v.args[0])
        if op in _RULES:
            return getattr(self, f"_{op}")(*v.args)  # type: ignore[no-any-return]
        return ANY

    # -- ranges of numbers with a sign

    def signed(self, v: Ins) -> Signed | None:
        """The range of an i32, or of the i32 with the bits of a u32; None where nothing is known."""
        self.fuel -= 1
        code, op = self.code, v.op
        if v.dtype not in ("u32", "i32") or self.fuel <= 0:
            return None
        if op == "const":
            number = (v.attr + MOST_SIGNED + 1) % (U32_MAX + 1) - MOST_SIGNED - 1
            return Signed(number, number, number, number)
        if (fixed := self.exact(v)) is not None:
            word = code.emit("convert", "i64", fixed if v.dtype == "i32" else code.emit("convert", "i32", fixed))
            return Signed(word, word, -MOST_SIGNED - 1, MOST_SIGNED)
        if op == "convert" and v.args[0].dtype in ("u32", "i32"):
            return self.signed(v.args[0])
        if op in SIGNED_STEPS and (v.dtype == "i32" or op not in ("min", "max")):
            pair = [self.signed(a) for a in v.args]
            found = None if None in pair else self._in_i32(op, *pair)  # type: ignore[arg-type]
            if found is not None or v.dtype == "i32":
                return found
        if v.dtype == "i32":
            return None
        r = self.settled(self.of(v))
        fits = r.hi != U32_MAX and code.compare("le", r.hi, MOST_SIGNED)
        if fits is False:
            return None
        needs = r.needs if fits is True else r.needs | {fits}
        lo, hi = (b if isinstance(b, int) else code.emit("convert", "i64", b) for b in (r.lo, r.hi))
        return Signed(lo, hi, 0, min(r.top, MOST_SIGNED), needs)

    def _in_i32(self, op: str, x: Signed, y: Signed) -> Signed | None:
        """What a step makes of two ranges, provided that it does not wrap."""
        code = self.code
        step, low, high = partial(code.with_sign, op), -MOST_SIGNED - 1, MOST_SIGNED
        numbers = [SIGNED_STEPS[op](a, b) for a, b in product((x.least, x.most), (y.least, y.most))]
        ends = [step(x.lo, y.hi), step(x.hi, y.lo)] if op == "sub" else [step(x.lo, y.lo), step(x.hi, y.hi)]
        if op == "mul":
            ends += [step(x.lo, y.hi), step(x.hi, y.lo)]
            ends = [reduce(partial(code.with_sign, least), ends) for least in ("min", "max")]
        fits = [code.compare("le", low, ends[0], "i64")] if min(numbers) < low else []
        fits += [code.compare("le", ends[1], high, "i64")] if max(numbers) > high else []
        if False in fits:
            return None
        needs = x.needs | y.needs | {f for f in fits if isinstance(f, Ins)}
        return Signed(ends[0], ends[1], max(min(numbers), low), min(max(numbers), high), needs)

    def _natural(self, v: Ins) -> Range:
        """Of the u32 with the bits of an i32 that is not below zero."""
        s = self.signed(v)
        fits = s is not None and (s.least >= 0 or self.code.compare("le", 0, s.lo, "i64"))
        if s is None or fits is False:
            return ANY
        lo, hi = (b if isinstance(b, int) else self.code.emit("convert", "u64", b) for b in (s.lo, s.hi))
        return Range(lo, hi, s.most, s.needs if fits is True else s.needs | {fits})

    def _top(self, local: Local) -> int:
        """A bound of a local over all its `set`s: conditions here say nothing about which one ran last."""
        if self._tops is None:
            self._tops = {}
            for item in walk(self.kernel.body):
                if isinstance(item, Ins) and item.op == "set":
                    self._tops[item.attr] = max(self._tops.get(item.attr, 0), _limit(item.args[0]))
        return self._tops.get(local, U32_MAX)

    def _counter(self, v: Ins) -> Range:
        start, stop = self.settled(self.of(v.attr.start)), self.settled(self.of(v.attr.stop))
        hi = self.code.less_by(stop.hi, 1)  # of 0 there is no iteration
        return Range(start.lo, hi, max(stop.top - 1, 0), start.needs | stop.needs)

    def _pair(self, a: Ins, b: Ins, settle: bool = True) -> tuple[Range, Range, frozenset[Ins]]:
        x, y = self.of(a), self.of(b)
        if settle or (max(x.top, y.top) > U32_MAX and x.top * y.top >= _HUGE):
            x, y = self.settled(x), self.settled(y)
        return x, y, x.needs | y.needs

    def _add(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b, False)
        return self._grown("add", x, y, x.top + y.top, needs)

    def _mul(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b, False)
        return self._grown("mul", x, y, x.top * y.top, needs)

    def _shl(self, a: Ins, n: Ins) -> Range:
        if n.op != "const":
            return ANY
        x, k = self.of(a), 1 << n.attr
        x = self.settled(x) if x.top * k >= _HUGE else x
        return self._grown("mul", x, Range(k, k, k), x.top * k, x.needs)

    def _grown(self, op: str, x: Range, y: Range, top: int, needs: frozenset[Ins]) -> Range:
        lo, hi = self.code.do(op, x.lo, y.lo), self.code.do(op, x.hi, y.hi)
        if (isinstance(hi, int) and hi > U32_MAX) or (U32_MAX in (x.hi, y.hi) and hi not in (x.hi, y.hi)):
            return ANY
        return Range(lo, hi, top, needs)

    def _sub(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b)
        hi = self.code.less_by(x.hi, y.lo)
        top = x.top - (y.lo if isinstance(y.lo, int) else 0)
        if self.is_at_most(b, a):
            return Range(self.code.less_by(x.lo, y.hi), hi, max(top, 0), needs)
        fits = self.code.compare("le", y.hi, x.lo)
        if fits is False:
            return ANY
        return Range(self.code.do("sub", x.lo, y.hi), hi, max(top, 0), needs if fits is True else needs | {fits})

    def is_at_most(self, a: Ins, b: Ins) -> bool:
        """Whether a <= b is known without any check."""
        if a is b or any(bound is b for bound, _ in self.above.get(a, ())):
            return True
        x = self.of(a)
        if x.top > U32_MAX or x.needs:
            return False
        if any(bound.op == "const" and x.top <= bound.attr + k for bound, k in self.below.get(b, ())):
            return True
        y = self.of(b)
        return isinstance(y.lo, int) and x.top <= y.lo and y.top <= U32_MAX and not y.needs

    def _shr(self, a: Ins, n: Ins) -> Range:
        x = self.settled(self.of(a))
        k = 1 << n.attr if n.op == "const" else 1
        lo = self.code.do("div", x.lo, k) if n.op == "const" else 0
        return Range(lo, self.code.do("div", x.hi, k), x.top // k, x.needs)

    def _div(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b)
        least = self.code.do("max", y.lo, 1)
        lo = self.code.do("div", x.lo, self.code.do("max", y.hi, 1))
        return Range(lo, self.code.do("div", x.hi, least), x.top, needs)

    def _rem(self, a: Ins, b: Ins) -> Range:
        x, y = self.of(a), self.settled(self.of(b))
        rest = Range(0, self.code.less_by(y.hi, 1), max(y.top - 1, 0), y.needs)
        if x.top > U32_MAX or x.hi == U32_MAX or x.needs:
            return rest
        return Range(0, self.code.do("min", x.hi, rest.hi), min(x.top, rest.top), rest.needs)

    def _and(self, a: Ins, b: Ins) -> Range:
        x, y = self.of(a), self.of(b)
        found = [r for r in (x, y) if r.top <= U32_MAX and not r.needs]
        if not found:
            return ANY
        r = min(found, key=lambda r: r.top)
        return Range(0, r.hi, r.top)

    def _or(self, a: Ins, b: Ins) -> Range:
        x, y = self.of(a), self.of(b)
        top = max(x.top, y.top)
        if top > U32_MAX:
            return ANY
        hi = (1 << top.bit_length()) - 1
        return Range(0, hi, hi, x.needs | y.needs)

    _xor = _or

    def _min(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b)
        return Range(self.code.do("min", x.lo, y.lo), self.code.do("min", x.hi, y.hi), min(x.top, y.top), needs)

    def _max(self, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b)
        return Range(self.code.do("max", x.lo, y.lo), self.code.do("max", x.hi, y.hi), max(x.top, y.top), needs)

    def _select(self, condition: Ins, a: Ins, b: Ins) -> Range:
        x, y, needs = self._pair(a, b)
        known = self.exact(condition)
        if known is None:
            return Range(self.code.do("min", x.lo, y.lo), self.code.do("max", x.hi, y.hi), max(x.top, y.top), needs)
        lo, hi = (
            self.code.emit("select", "u64", known, self.code.value(p), self.code.value(q))
            for p, q in ((x.lo, y.lo), (x.hi, y.hi))
        )
        return Range(lo, hi, max(x.top, y.top), needs)


def _shape(v: Ins) -> Any:
    """What two equal steps share."""
    return v.op, v.attr if v.op == "const" else None, v.args


def _limit(v: Ins) -> int:
    """A number that a value never exceeds, from its definition alone."""
    if v.op == "load" and v.attr.element.name in ("u8", "u16"):
        return 255 if v.attr.element.name == "u8" else 65535
    if v.op == "and":
        return min(a.attr if a.op == "const" else U32_MAX for a in v.args)
    return int(v.attr) if v.op == "const" else U32_MAX


_RULES = frozenset(("add", "sub", "mul", "shl", "shr", "div", "rem", "and", "or", "xor", "min", "max", "select"))
