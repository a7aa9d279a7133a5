"""Random expressions of every type, from what is in scope."""

from __future__ import annotations

import math
import random
from typing import Any

from . import inputs
from .numbers import OPERATORS, number
from .tree import BITS, FLOATS, FUNCTIONS, INTS, NARROW, NO_WAY, PAIRED, WORDS, Array, E, Helper, limits

ROUNDINGS = ("floor", "ceil", "round", "trunc", "sign")
UNARY = ("neg", "neg", "abs", "abs", "sqrt", *ROUNDINGS, "reciprocal", "inverse_sqrt")
BITS_OF = ("popcount", "clz", "ctz", "reverse_bits", "~", "neg")
U32_ONLY = ("abs_diff", "saturating_add", "saturating_sub", "saturating_mul", "mul_high")
TESTS = ("is_nan", "is_inf", "is_finite")
SIGNS = ("==", "!=", "<", "<=", ">", ">=")


class Expressions:
    """Makes expressions. `types` is the palette of the kernel."""

    def __init__(self, rng: random.Random, types: list[str]) -> None:
        self.rng, self.types = rng, types
        self.scopes: list[list[tuple[str, str, bool]]] = [[]]
        self.turns: list[str] = []  # variables of loops that are unrolled
        self.float_turns: list[str] = []  # those over tables of fractions
        self.readable: list[Array] = []
        self.own: list[tuple[str, str, list[E]]] = []  # buffers of which a lane reads its own elements
        self.ids: list[E] = []
        self.captured: dict[str, Any] = {}
        self.consts: dict[str, Any] = {}
        self.helpers: list[Helper] = []
        self.made = 0
        self.functions = 0  # of the math library, that may still be written
        self.pure = False  # inside a helper: no ids, no memory but its own parameters

    # -- small choices

    def pick(self, *items: Any) -> Any:
        return self.rng.choice(items)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def variables(self, t: str, mutable: bool = False) -> list[str]:
        return [n for scope in self.scopes for n, kind, m in scope if kind == t and (m or not mutable)]

    def local(self, t: str, mutable: bool = True, stem: str = "v") -> str:
        """A new name in the innermost scope."""
        self.made += 1
        name = f"{stem}{self.made}"
        self.scopes[-1].append((name, t, mutable))
        return name

    # -- numbers

    def num(self, t: str, value: int | float | bool | None = None) -> E:
        """A plain number: a literal, a captured name, a compile-time parameter, or an expression of those."""
        rng = self.rng
        if value is None:
            turns = self.turns + self.float_turns if t in FLOATS else self.turns
            if turns and t != "bool" and t not in NARROW and self.chance(0.3):
                return E("turn", t, data=rng.choice(turns))
            if t not in NARROW and t != "bool" and self.chance(0.15):
                return self.folded(t)
            if t not in NARROW and t != "bool" and self.chance(0.05):
                return self.of_table(t)
            value = inputs.plain(rng, t)
        if self.chance(0.35) or (isinstance(value, float) and math.isnan(value)):
            return self.named(t, value)
        if isinstance(value, float) and math.isinf(value):
            return E("num", t, data=("1e999" if value > 0 else "-1e999", value))
        return E("num", t, data=(self.spelled(value), value))

    def spelled(self, value: int | float | bool) -> str:
        """One of the ways in which Python writes a number."""
        if isinstance(value, bool) or self.chance(0.6):
            return repr(value)
        if isinstance(value, float):
            text = repr(value)
            ways = [
                f"{value:.17e}",
                f"{value:.17E}",
                text.replace("0.", ".", 1) if text.lstrip("-")[:2] == "0." else text,
            ]
            return str(self.pick(*ways, text[:-1] if text.endswith(".0") and "e" not in text else text))
        return str(self.pick(hex(value), bin(value), oct(value), f"{value:_}", f"{value:#_X}".replace("X", "x")))

    def of_table(self, t: str) -> E:
        """An element of a captured table."""
        name = f"C{len(self.captured)}"
        self.captured[name], numbers = inputs.table(self.rng, t)
        k = self.rng.randrange(len(numbers))
        return E("num", t, data=(f"{name}[{k}]", numbers[k]))

    def named(self, t: str, value: int | float | bool) -> E:
        known = self.captured
        if not self.pure and self.chance(0.2) and len(self.consts) < 2:
            name = f"N{len(self.consts)}"
            self.consts[name] = value
            return E("num", t, data=(name, value))
        name = f"C{len(known)}"
        known[name] = inputs.captured(self.rng, value)
        kept = known[name].item() if type(known[name]).__module__ == "numpy" else known[name]
        return E("num", t, data=(name, kept))

    def folded(self, t: str) -> E:
        """Computed while compiling, by Python's rules for numbers; the result has to fit."""
        a, b = (self.number_of(t) for _ in range(2))
        x, y = a.data[1], b.data[1]
        sign = self.pick("+", "-", "*", "min", "max")
        if sign in ("min", "max"):
            if isinstance(x, int) and isinstance(y, int):
                result: Any = min(x, y) if sign == "min" else max(x, y)
            else:
                result = OPERATORS["f64"][sign](float(x), float(y))
            text = f"{sign}({a.data[0]}, {b.data[0]})"
        else:
            result = x + y if sign == "+" else x - y if sign == "-" else x * y
            text = f"({a.data[0]} {sign} {b.data[0]})"
        if t in FLOATS:
            fits = isinstance(result, float) or abs(result) < 1 << 60
            fits = fits and (not math.isfinite(result) or math.isfinite(number(result, t)))
        else:
            fits = limits(t)[0] <= result <= limits(t)[1]
        return E("num", t, data=(text, result)) if fits else a

    def number_of(self, t: str) -> E:
        """A literal or a name."""
        value = inputs.plain(self.rng, t)
        if isinstance(value, float) and not math.isfinite(value):
            return self.named(t, value)
        return self.named(t, value) if self.chance(0.5) else E("num", t, data=(repr(value), value))

    def small(self, below: int, t: str = "u32") -> E:
        value = self.rng.randrange(below)
        return E("num", t, data=(str(value), value))

    # -- leaves

    def leaf(self, t: str) -> E:
        rng = self.rng
        names = self.variables(t)
        if names and self.chance(0.45):
            return E("var", t, data=rng.choice(names[-6:]))
        arrays = [a for a in self.readable if a.t == t]
        if arrays and self.chance(0.7):
            return self.load(rng.choice(arrays))
        own = [o for o in self.own if o[1] == t]
        if own and self.chance(0.5):
            name, _, places = rng.choice(own)
            return E("load", t, (rng.choice(places),), name)
        if t == "u32" and self.ids and self.chance(0.4):
            return self.id()
        if self.chance(0.35) or (self.pure and not names):
            return self.num(t)
        return self.converted(t, 0)

    def id(self) -> E:
        return self.rng.choice(self.ids)

    def load(self, a: Array) -> E:
        if a.ranked:
            return E(
                "load", a.t, (E("at", "u32", tuple(self.along(a, k) for k in range(len(a.shape))), a.name),), a.name
            )
        at = self.index(a)
        if a.static and at.op in ("num", "turn"):  # a plain index beyond a known length is refused
            at = self.small(a.size)
        return E("load", a.t, (at,), a.name)

    def length(self, a: Array) -> E:
        if a.static:
            return E("num", "u32", data=(f"len({a.name})", a.size))
        return E(self.pick("len", "size"), "u32", data=a.name)

    def along(self, a: Array, axis: int) -> E:
        """An index along an axis of an array with a rank, and beyond."""
        match self.rng.randrange(6):
            case 0:
                return self.small(a.shape[axis] + 2)
            case 1:
                one = self.num_at(1)
                return E("-", "u32", (E("-", "u32", (E("shape", "u32", data=(a.name, axis)), one)), self.id()))
            case 2 | 3:
                return self.signed(self.id())
            case 4 if (found := self.any_integer()) is not None:
                return found
        return self.id() if self.chance(0.7) else self.leaf("u32")

    def signed(self, i: E) -> E:
        """An id less a little, which may be below zero."""
        t = self.pick("i32", "i32", "i32", *[t for t in ("i64",) if t in self.types])
        return E(self.pick("-", "-", "+"), t, (E("cast", t, (i,)), self.small(4, t)))

    def any_integer(self) -> E | None:
        """A value of any type that an index may have."""
        found = self.leaf(self.pick(*[t for t in self.types if t in INTS]))
        return None if found.op in ("num", "turn") else found

    def index(self, a: Array) -> E:
        """Any element of an array that is only read, and beyond."""
        rng, n = self.rng, self.length(a)
        if self.pure:
            names = self.variables("u32")
            at = E("var", "u32", data=rng.choice(names)) if names else self.small(4)
            return self.rng.choice((at, E("%", "u32", (at, self.num_at(5)))))
        i = self.id()
        c = self.small(9)
        match rng.randrange(13):
            case 0 | 1 | 2 | 3:
                return i
            case 4:
                return E(self.pick("+", "-", "^", "*"), "u32", (i, c))
            case 5:
                return E("+", "u32", (E("*", "u32", (i, self.num_at(rng.randint(2, 4)))), c))
            case 6:
                return E("-", "u32", (E("-", "u32", (n, self.num_at(1))), i))
            case 7:
                divisor = self.num_at(3) if n.op == "num" else n
                return E("%", "u32", (self.leaf("u32"), divisor)) if n.op != "num" else E("//", "u32", (i, divisor))
            case 8:
                return E("&", "u32", (self.leaf("u32"), self.num_at(7)))
            case 9:
                value = self.pick(0, 1, 5, a.size, 0xFFFFFFFF, 0x40000000, 0x80000001)
                return E("num", "u32", data=(str(value), value))
            case 10:
                return self.leaf("u32") if self.chance(0.5) else self.expr("u32", 1)
            case 11 if self.chance(0.7):
                found = self.signed(i) if self.chance(0.5) else self.any_integer()
                return self.leaf("u32") if found is None else found
            case _:
                return E("cast", "u32", (self.leaf(self.pick(*self.numeric())),))

    def numeric(self) -> list[str]:
        return [t for t in self.types if t != "bool" and (t, "u32") not in NO_WAY]

    # -- expressions

    def expr(self, t: str, depth: int) -> E:
        if depth <= 0 or self.chance(0.1):
            return self.leaf(t)
        if t == "bool":
            return self.condition(depth)
        if t in NARROW:
            return self.narrow(t, depth)
        if self.chance(0.07):
            return self.choose(t, depth)
        if self.chance(0.06) and (found := self.call(t, depth)) is not None:
            return found
        return self.floating(t, depth) if t in FLOATS else self.whole(t, depth)

    def choose(self, t: str, depth: int) -> E:
        arms = (self.expr(t, depth - 1), self.expr(t, depth - 1))
        return E("choose", t, (self.truth(depth - 1), *arms), self.pick("if", "select"))

    def narrow(self, t: str, depth: int) -> E:
        """A narrow integer is stored, compared, chosen and converted; nothing else."""
        return self.choose(t, depth) if self.chance(0.2) else self.converted(t, depth - 1)

    def converted(self, t: str, depth: int) -> E:
        sources = [s for s in self.types if s != t and (s, t) not in NO_WAY and (depth > 0 or self.at_hand(s))]
        if not sources:
            return self.num(t)
        source = self.rng.choice(sources)
        return E("cast", t, (self.expr(source, depth),))

    def at_hand(self, t: str) -> bool:
        """Whether something of this type can be named without a conversion."""
        return bool(self.variables(t) or [a for a in self.readable if a.t == t] or (t == "u32" and self.ids))

    def call(self, t: str, depth: int) -> E | None:
        fitting = [h for h in self.helpers if h.returns == t and h.is_plain]
        return self.called(self.rng.choice(fitting), depth) if fitting else None

    def arrays(self, t: str = "") -> list[tuple[str, int, str]]:
        """Arrays of the lane in scope: name, elements, type."""
        return []

    def called(self, helper: Helper, depth: int) -> E | None:
        buffers, args = [], []
        for _, kind in helper.params:
            if kind[0] == "*":
                arrays = [a.name for a in self.readable if a.t == kind[1:] and not a.static and not a.ranked]
                if not arrays or self.pure:
                    return None
                buffers.append(self.rng.choice(arrays))
            elif kind[0] == "&":
                own = [name for name, _, _ in self.arrays(kind[1:])]
                if not own:
                    return None
                buffers.append(self.rng.choice(own))
            else:
                args.append(self.any(kind, depth - 2))
        return E("call", helper.returns, tuple(args), (helper.name, tuple(buffers)))

    def any(self, t: str, depth: int) -> E:
        """An expression of any type, small values too."""
        return self.expr(t, depth)

    def floating(self, t: str, depth: int) -> E:
        if t == "f32" and self.functions and self.chance(0.15):
            return self.function(depth)
        roll = self.rng.random()
        if roll < 0.30:
            return E(self.pick("+", "-", "*", "/"), t, (self.expr(t, depth - 1), self.expr(t, depth - 1)))
        if roll < 0.42:
            sign = self.pick("+", "-", "*", "/")
            pair = [self.expr(t, depth - 1), self.num(t)]
            self.rng.shuffle(pair)
            return E(sign, t, tuple(pair))
        if roll < 0.50:
            count = 3 if self.chance(0.1) else 2
            return E(self.pick("min", "max"), t, tuple(self.expr(t, depth - 1) for _ in range(count)))
        if roll < 0.53:
            return E("copysign", t, (self.expr(t, depth - 1), self.expr(t, depth - 1)))
        if roll < 0.66:
            return E(self.pick(*UNARY), t, (self.expr(t, depth - 1),))
        if roll < 0.76:
            return self.identity(t, depth)
        if roll < 0.84 and t == "f32":
            return E("fma", t, tuple(self.expr(t, depth - 1) for _ in range(3)))
        if roll < 0.92 and t == "f32":
            return E("bitcast", t, (self.expr(self.pick(*WORDS), depth - 1),))
        return self.converted(t, depth - 1)

    def function(self, depth: int) -> E:
        """One of f32 that the math library defines."""
        self.functions -= 1
        roll = self.rng.random()
        x = self.expr("f32", depth - 1)
        if roll < 0.6:
            return E(self.pick(*FUNCTIONS), "f32", (x,))
        if roll < 0.9:
            op = self.pick(*PAIRED)
            return E(op, "f32", (x, self.divisor("f32", depth - 1) if op == "%" else self.expr("f32", depth - 1)))
        count = E("num", "i32", data=("-3", -3)) if self.chance(0.2) else self.expr("i32", depth - 1)
        return E("ldexp", "f32", (x, count))

    def identity(self, t: str, depth: int) -> E:
        """An expression that a compiler that knows school algebra would shorten."""
        x = self.leaf(t) if self.chance(0.7) else self.expr(t, depth - 1)
        y = self.leaf(t)
        zero, minus, one, two = (self.num(t, v) for v in (0.0, -0.0, 1.0, 2.0))
        forms = [
            E("+", t, (x, zero)), E("+", t, (x, minus)), E("+", t, (zero, x)), E("-", t, (x, zero)),
            E("-", t, (x, minus)), E("-", t, (zero, x)), E("-", t, (minus, x)), E("*", t, (x, one)),
            E("*", t, (one, x)), E("/", t, (x, one)), E("*", t, (x, zero)), E("-", t, (x, x)), E("/", t, (x, x)),
            E("-", t, (E("+", t, (x, y)), x)), E("+", t, (E("-", t, (x, y)), y)), E("neg", t, (E("neg", t, (x,)),)),
            E("abs", t, (E("neg", t, (x,)),)), E("*", t, (x, self.num(t, -1.0))), E("min", t, (x, x)),
            E("max", t, (x, zero)), E("max", t, (x, minus)), E("min", t, (x, zero)), E("/", t, (zero, x)),
            E("*", t, (E("*", t, (x, two)), self.num(t, 0.5))), E("/", t, (x, two)), E("+", t, (x, x)),
            E("/", t, (one, E("/", t, (one, x)))), E("/", t, (x, zero)), E("sqrt", t, (E("*", t, (x, x)),)),
            E("choose", t, (E("compare", "bool", (x, zero), ("==",)), zero, x), "if"),
            E("choose", t, (E("compare", "bool", (x, y), ("<",)), x, y), "select"),
            E("neg", t, (E("-", t, (x, y)),)), E("*", t, (E("sign", t, (x,)), E("abs", t, (x,)))),
        ]  # fmt: skip
        if t == "f32":
            forms += [
                E("fma", t, (zero, zero, x)), E("fma", t, (x, one, zero)), E("fma", t, (x, one, minus)),
                E("fma", t, (x, y, zero)), E("+", t, (E("*", t, (x, y)), self.leaf(t))),
                E("bitcast", t, (E("bitcast", "u32", (x,)),)), E("fma", t, (one, x, y)),
                E("bitcast", t, (E("&", "u32", (E("bitcast", "u32", (x,)), self.num("u32", 0x7FFFFFFF))),)),
                E("bitcast", t, (E("^", "u32", (E("bitcast", "u32", (x,)), self.num("u32", 0x80000000))),)),
            ]  # fmt: skip
        return self.rng.choice(forms)

    def whole(self, t: str, depth: int) -> E:
        roll = self.rng.random()
        if roll < 0.30:
            return E(self.pick("+", "-", "*", "&", "|", "^"), t, (self.expr(t, depth - 1), self.expr(t, depth - 1)))
        if roll < 0.40:
            return E(self.pick("//", "%"), t, (self.expr(t, depth - 1), self.divisor(t, depth - 1)))
        if roll < 0.54:
            sign = self.pick("<<", ">>", "rotate_left", "rotate_right")
            return E(sign, t, (self.expr(t, depth - 1), self.amount(t, depth - 1)))
        if roll < 0.60:
            pair = (self.expr(t, depth - 1), self.expr(t, depth - 1))
            return E(self.pick("min", "max") if not self.decided(*pair) else "|", t, pair)
        if roll < 0.70:
            return E(self.pick(*BITS_OF, *(("abs",) if t[0] == "i" else ())), t, (self.expr(t, depth - 1),))
        if roll < 0.76 and t == "u32":
            return E(self.pick(*U32_ONLY), t, (self.expr(t, depth - 1), self.expr(t, depth - 1)))
        if roll < 0.86:
            return self.whole_identity(t, depth)
        if t == "i32" and roll < 0.88 and self.functions:
            self.functions -= 1
            return E("frexp_exponent", t, (self.expr("f32", depth - 1),))
        if roll < 0.93 and t in WORDS:
            other = "f32" if "f32" in self.types and self.chance(0.7) else self.pick(*WORDS)
            return E("bitcast", t, (self.expr(other, depth - 1),))
        return self.converted(t, depth - 1)

    def divisor(self, t: str, depth: int) -> E:
        """Anything but a plain zero, which the language refuses."""
        found = self.expr(t, depth)
        if found.op == "turn" or (found.op == "num" and found.data[1] == 0):
            return E("num", t, data=("3", 3))
        return found

    def amount(self, t: str, depth: int) -> E:
        """A count of places: a plain one lies inside the width."""
        if self.chance(0.4):
            return self.small(BITS[t])
        found = self.expr("u32", depth)
        return self.small(BITS[t]) if found.op in ("num", "turn") else found

    def whole_identity(self, t: str, depth: int) -> E:
        x = self.leaf(t) if self.chance(0.7) else self.expr(t, depth - 1)
        y = self.leaf(t)
        low, high = limits(t)
        zero, one, ones = (self.num(t, v) for v in (0, 1, -1 if low else high))
        power = self.num(t, 1 << self.rng.randrange(1, BITS[t] - 1))
        k = self.small(BITS[t])
        less = "!=" if self.decided(x, y) else "<"
        least = zero if low else one  # no unsigned number is asked whether it is below zero
        forms = [
            E("*", t, (x, zero)), E("-", t, (x, x)), E("^", t, (x, x)), E("|", t, (x, zero)), E("&", t, (x, ones)),
            E("//", t, (x, one)), E("%", t, (x, one)), E("//", t, (x, ones)), E("%", t, (x, ones)),
            E("//", t, (x, power)), E("%", t, (x, power)), E("*", t, (x, power)), E("~", t, (E("~", t, (x,)),)),
            E("neg", t, (E("neg", t, (x,)),)), E("+", t, (E("-", t, (x, y)), y)), E(">>", t, (E("<<", t, (x, k)), k)),
            E("<<", t, (E(">>", t, (x, k)), k)), E("//", t, (E("*", t, (x, power)), power)), E("-", t, (zero, x)),
            E("&", t, (x, E("-", t, (x, one)))), E("min", t, (E("max", t, (x, least)), self.num(t, 255 & high))),
            E("+", t, (E("*", t, (E("//", t, (x, power)), power)), E("%", t, (x, power)))),
            E("choose", t, (E("compare", "bool", (x, y), (less,)), x, y), "if"), E("|", t, (x, E("~", t, (x,)))),
            E(">>", t, (x, self.num_at(BITS[t] - 1))), E("//", t, (x, E("-", t, (y, y)))), E("rotate_left", t, (x, k)),
        ]  # fmt: skip
        if x.op not in ("num", "turn"):  # a plain zero as a divisor is refused
            forms += [E("//", t, (x, x)), E("%", t, (x, x)), E("%", t, (zero, x)), E("//", t, (one, x))]
        return self.rng.choice(forms)

    def num_at(self, value: int, t: str = "u32") -> E:
        return E("num", t, data=(str(value), value))

    # -- truths

    def truth(self, depth: int) -> E:
        """A condition: a bool, or a u32 that is not zero."""
        return self.expr("u32", depth) if self.chance(0.08) else self.condition(depth)

    def condition(self, depth: int) -> E:
        roll = self.rng.random()
        if depth <= 0 or roll < 0.08:
            if self.at_hand("bool") and self.chance(0.5):
                return self.leaf("bool")
            return self.compare(0)
        if roll < 0.62:
            return self.compare(depth - 1)
        if roll < 0.74:
            return E(self.pick("and", "or"), "bool", tuple(self.truth(depth - 1) for _ in range(self.pick(2, 2, 3))))
        if roll < 0.82:
            return E("not", "bool", (self.truth(depth - 1),))
        floats = [t for t in self.types if t in FLOATS]
        if roll < 0.92 and floats:
            return E(self.pick(*TESTS), "bool", (self.expr(self.pick(*floats), depth - 1),))
        if roll < 0.95:
            pair = (self.condition(depth - 1), self.condition(depth - 1))
            if self.chance(0.5):
                return E("compare", "bool", pair, (self.pick("==", "!="),))
            return E(self.pick("&", "|", "^"), "bool", pair)
        return self.converted("bool", depth - 1)

    def compare(self, depth: int) -> E:
        """Two or three values of one type; floats meet the numbers that a careless compiler mistakes."""
        t = self.pick(*[t for t in self.types if t != "bool"], *["f32"] * ("f32" in self.types))
        a = self.expr(t, depth)
        if t == "f32" and self.chance(0.25):
            a = E("bitcast", t, (self.expr(self.pick(*WORDS), depth),))
        b = self.num(t) if self.chance(0.5) else self.expr(t, depth)
        if self.chance(0.06):
            b = a
        if a.op not in ("num", "turn") and self.chance(0.1):
            args = (self.num(t), a, self.num(t) if self.chance(0.5) else b)
            signs = ("==", "!=") if self.decided(*args) else (self.pick("<", "<="), self.pick("<", "<=", "=="))
            return E("compare", "bool", args, signs)
        pair = (a, b) if self.chance(0.8) else (b, a)
        return E("compare", "bool", pair, (self.pick("==", "!=") if self.decided(*pair) else self.pick(*SIGNS),))

    @staticmethod
    def decided(*args: E) -> bool:
        """Whether a 0 meets a type that has nothing below it: the language refuses to ask which is smaller."""
        return args[0].t[0] == "u" and any(a.op == "num" and a.data[1] == 0 for a in args)
