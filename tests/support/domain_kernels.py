"""Random kernels in which an invocation too many changes nothing: nested ifs, returns, loops, helpers, locals that
branches change, and arithmetic of other types, in grids of one to three axes. Every read is inside
`if index < len(array)`, every id of several axes has a bound of its own, and all stores have one value.
"""

import random

HEAD = """import vyre
from vyre import *

CAP = 50
TAB = (3, 1, 12)


@vyre.device
def shorter(a):
    if a > 10:
        return a - 10
    return a * 2


@vyre.device
def distance(a, b):
    t = a
    if b < a:
        t = a - b
    return t

"""
PARAMETERS = (
    "x: In[u32], y: In[u32], n: u32, m: u32, out: InOut[u32], most: InOut[u32], seen: InOut[u32], *, N: const = 37"
)
WORKGROUPS = {1: ((64,),), 2: ((8, 4), (4, 8), (1, 16), (16, 1)), 3: ((4, 2, 2), (2, 2, 4))}


class Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng, self.rank = rng, rng.choice((1, 1, 1, 2, 2, 3))
        self.axes, self.workgroup = "xyz"[: self.rank], rng.choice(WORKGROUPS[self.rank])
        self.lines: list[str] = []
        self.locals: list[str] = []
        self.made, self.left = 0, rng.randint(2, 9)

    def pick(self, *items):
        return self.rng.choice(items)

    def say(self, depth, line):
        self.lines.append("    " * depth + line)

    def name(self, stem="v"):
        self.made += 1
        return f"{stem}{self.made}"

    def place(self):
        """The number of an invocation in the grid, in one of several ways."""
        if self.rank == 1:
            return self.pick("gid.x", "gid.x", "(wg.x * 64 + lid.x)")
        if self.rank == 2:
            return self.pick("(gid.y * n + gid.x)", "(gid.x * m + gid.y)")
        return "((gid.z * m + gid.y) * n + gid.x)"

    def leaf(self):
        axis = self.pick(*self.axes)
        number = self.pick("1", "2", "3", "7", "64", "0xFFFFFFFF", "n", "m", "CAP", "N", "len(x)", "len(out)")
        return self.pick(self.place(), self.place(), f"gid.{axis}", f"wg.{axis}", f"lid.{axis}", number, *self.locals)

    def value(self, depth):
        if depth <= 0 or self.rng.random() < 0.25:
            return f"u32({self.leaf()})"
        a, b = self.value(depth - 1), self.value(depth - 1) if self.rng.random() < 0.4 else f"u32({self.leaf()})"
        return self.pick(
            f"({a} + {b})", f"({a} + {b})", f"({a} - {b})", f"({b} - {a})", f"({a} * {b})", f"({a} // ({b} | 1))",
            f"({a} % ({b} | 1))", f"({a} {self.pick('&', '|', '^')} {b})", f"({a} << {self.pick(0, 1, 5, 31)})",
            f"({a} >> {self.pick(1, 5, 31)})", f"{self.pick('min', 'max', 'abs_diff', 'saturating_sub')}({a}, {b})",
            f"mul_high({a}, {b})", f"select({self.condition(0, depth - 1)}, {a}, {b})", f"u32(-i32({a}))", f"(~{a})",
            f"u32(u64({a}) + 1)", f"u32(u8({a}))", f"u32(f32({a}))", f"popcount({a})", f"reverse_bits({a})",
            f"rotate_left({a}, 1)", f"shorter({a})", f"distance({a}, {b})", f"u32({a} < {b})", f"(TAB[1] + {a})",
            f"({a} * {a})", f"({a} + {b} - {a})", f"({b} - 1 - {a})",
        )  # fmt: skip

    def condition(self, depth, size=2):
        if depth > 0 and self.rng.random() < 0.4:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return self.pick(f"({a} and {b})", f"({a} or {b})", f"(not {a})")
        op, a = self.pick("<", "<", "<", "<=", ">", ">=", "==", "!="), self.value(size)
        b = self.pick("n", "len(x)", "len(y)", "len(out)", "n * m", "200", self.value(min(size, 1)))
        kind = self.pick("u32", "u32", "u32", "u32", "i32", "u64", "f32")
        return f"{kind}({a}) {op} {kind}({b})"

    def write(self, depth):
        value = "1"
        if self.rng.random() < 0.8:
            array, at = self.pick("x", "x", "y"), self.name("at")
            self.say(depth, f"{at} = {self.value(2)}")
            more = self.pick("", "", f" and {array}[{at}] > 2", f" and {self.condition(1)}")
            self.say(depth, f"if {at} < len({array}){more}:")
            depth, value = depth + 1, self.pick("1", f"({array}[{at}] + 1)", f"{array}[{at}]")
        to = self.pick(self.value(2), self.value(1), self.place(), "0", value)
        operation = self.pick(
            "atomic_add(out, u32({0}), u32({1}))", "atomic_max(most, u32({0}), u32({1}))", "seen[u32({0})] = 9"
        )
        self.say(depth, operation.format(to, value))

    def block(self, depth):
        known = len(self.locals)
        for _ in range(self.rng.randint(1, 3)):
            self.left -= 1
            self.statement(depth)
        del self.locals[known:]

    def statement(self, depth):
        match self.rng.randrange(10 if self.left > 0 and depth < 5 else 3):
            case 0 | 1:
                self.write(depth)
            case 2 | 3:
                name = self.name()
                self.say(depth, f"{name} = {self.value(2)}")
                self.locals.append(name)
            case 4 | 5:
                self.say(depth, f"if {self.condition(2)}:")
                self.block(depth + 1)
                if self.rng.random() < 0.3:
                    self.say(depth, "else:")
                    self.block(depth + 1)
            case 6 if self.locals:
                self.say(depth, f"if {self.condition(1)}:")
                self.say(depth + 1, f"{self.pick(*self.locals)} {self.pick('=', '+=', '-=')} {self.value(1)}")
            case 7:
                self.say(depth, f"if {self.condition(1)}:")
                self.say(depth + 1, "return")
            case 8:
                name = self.name("k")
                self.say(depth, f"for {name} in range({self.pick('3', 'n % 5', '2, 5', f'{self.value(1)} % 4')}):")
                body = self.locals
                self.locals = [*body, f"({name} + 0)"]  # which nothing assigns
                self.write(depth + 1)
                self.locals = body
            case _:
                name = self.name("k")
                self.say(depth, f"for {name} in range({self.place()}, len(x), {self.pick(64, 96, 1000)}):")
                self.say(depth + 1, f"if {name} < len(x){self.pick('', f' and x[{name}] > 1')}:")
                self.say(depth + 2, self.pick(f"atomic_add(out, {name}, x[{name}] + 1)", f"seen[{name}] = 9"))

    def text(self, name):
        if self.rank == 1:
            self.block(1)
        else:
            ends = {"x": self.pick("n", "n", "len(x)"), "y": "m", "z": self.pick("3", "m")}
            inside = " and ".join(f"gid.{a} < {ends[a]}" for a in self.axes)
            if self.rng.random() < 0.5:
                self.say(1, f"if {inside}:")
                self.block(2)
            else:
                self.say(1, f"if not ({inside}):")
                self.say(2, "return")
                self.block(1)
        workgroup = self.workgroup[0] if self.rank == 1 else self.workgroup
        body = "\n".join(self.lines)
        return f"@vyre.kernel(workgroup={workgroup})\ndef {name}({PARAMETERS}):\n{body}\n"


def nested_kernel(seed: int) -> str:
    """The text of a kernel that reads an id. (One that reads none runs for each element of its largest array.)"""
    attempts = (Writer(random.Random(f"{seed} {k}")).text("k") for k in range(100))
    return HEAD + "\n" + next(t for t in attempts if "gid." in t or "wg." in t)
