"""Random kernels do what the same source does in Python: control flow, jumps, helpers, effects in expressions."""

from __future__ import annotations

import linecache
import random

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, device, static_range, u32
from vyre.backends import reference
from vyre.foundation.language import stmts
from vyre.foundation.language.kernel import build_program, read_source

pytestmark = pytest.mark.check

MASK = 0xFFFFFFFF
HELPER = """
def helper(p, q):
    if p % 3 == 0:
        return q + 1
    r = p
    if q % 4 > 1:
        if p % 5 == 2:
            return r * 3
        s = q
    else:
        s = 2
    r += s
    for t in range(q % 3):
        if t == 1:
            continue
        r = r * 2 + t
    return r
"""


class Word(int):
    """A u32 of Python."""


def _wrapping(name):
    return lambda self, other: Word(getattr(int, name)(int(self), int(other)) & MASK)


for _name in ("add", "mul", "xor", "or", "and", "mod"):
    setattr(Word, f"__{_name}__", _wrapping(f"__{_name}__"))
    setattr(Word, f"__r{_name}__", _wrapping(f"__r{_name}__"))


class Words(list):
    """A buffer of Python."""

    def __getitem__(self, i):
        return Word(super().__getitem__(i))

    def __setitem__(self, i, value):
        super().__setitem__(i, int(value) & MASK)


def python_atomic_add(buffer, i, value):
    old = buffer[i]
    buffer[i] = old + value
    return old


class Writer:
    """Writes one random kernel over the locals a, b, c, the buffers x and io, and the output out."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loop_variables: list[str] = []
        self.budget, self.names = 30, 0
        head = ["def k(x: In[u32], io: InOut[u32], out: Out[u32]):", "    a, b, c = x[0], x[1], x[2]"]
        self.lines = head
        while self.budget > 0:
            self.block(1, loop=False)
        self.say(1, "out[0], out[1], out[2] = a, b, c")
        self.source = "\n".join(self.lines) + "\n"

    def say(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def pick(self, *items: str) -> str:
        return self.random.choice(items)

    def number(self, below: int) -> int:
        return self.random.randrange(below)

    def value(self, depth: int = 2, *, effects: bool = True) -> str:
        kind = self.number(10) if depth else 0
        below = [self.value(depth - 1, effects=effects and kind != 7) for _ in range(2)] if kind > 2 else ["", ""]
        match kind:
            case 0 | 1:
                return self.pick("a", "b", "c", "x[0]", "x[1]", str(self.number(5)), *self.loop_variables)
            case 2:
                return f"io[{self.number(3)}]"
            case 6:
                return f"helper({below[0]}, {below[1]})"
            case 7:
                return f"({below[0]} if {self.condition()} else {below[1]})"
            case 8 if effects:
                return f"atomic_add(io, {self.number(3)}, {below[0]})"
            case 9:
                return f"({below[0]} % {self.number(6) + 1})"
        return f"({below[0]} {self.pick('+', '*', '^', '|', '&')} {below[1]})"

    def condition(self) -> str:
        a, b = self.value(1, effects=False), self.value(1, effects=False)
        if self.number(3):
            return f"{a} % 4 {self.pick('<', '==', '!=', '>=')} {b} % 4"
        return f"({a} % 3 < 2 {self.pick('and', 'or')} not {b} % 5 > 1)"

    def range(self) -> str:
        n = self.number
        return self.pick(
            f"range({n(5)})", f"range({n(3)}, {n(8)}, {n(2) + 1})", "range(a % 4)", "range(a % 4 + 2, b % 3, -1)",
            f"static_range({n(4)})", "range(c % 5, -1, -2)",
        )  # fmt: skip

    def block(self, depth: int, *, loop: bool) -> None:
        for _ in range(self.number(3) + 1):
            self.budget -= 1
            if self.statement(depth, loop=loop):
                return

    def statement(self, depth: int, *, loop: bool) -> bool:
        """One statement; True when it leaves the block."""
        kind = self.number(14) if depth < 5 and self.budget > 0 else self.number(5)
        match kind:
            case 0 | 1 | 2:
                self.say(depth, f"{self.pick('a', 'b', 'c')} {self.pick('=', '+=', '^=')} {self.value()}")
            case 3:
                self.say(depth, f"io[{self.value(1)} % 3] {self.pick('=', '+=')} {self.value()}")
            case 4:
                self.say(depth, f"a, b = {self.value(1)}, {self.value(1)}")
            case 5 | 6:
                self.say(depth, f"if {self.condition()}:")
                self.block(depth + 1, loop=loop)
                for word in ([f"elif {self.condition()}:"], [], ["else:"])[self.number(3)]:
                    self.say(depth, word)
                    self.block(depth + 1, loop=loop)
            case 7 | 8:
                self.names += 1
                self.say(depth, f"for i{self.names} in {self.range()}:")
                self.loop_variables.append(f"i{self.names}")
                self.block(depth + 1, loop=True)
                self.loop_variables.pop()
            case 9:
                self.names += 1
                name = f"w{self.names}"
                self.say(depth, f"{name} = 0")
                self.say(depth, f"while {name} < {max(self.number(4), 1)} and {self.condition()}:")
                self.say(depth + 1, f"{name} += 1")
                self.block(depth + 1, loop=True)
            case 10 if loop and self.number(4):
                self.say(depth, f"if {self.condition()}:")
                self.say(depth + 1, self.pick("break", "continue"))
            case 10 if loop:
                self.say(depth, self.pick("break", "continue"))
                return True
            case 11 | 12:
                self.names += 1
                name = f"v{self.names}"
                for k in range(self.number(3) + 1):
                    self.say(depth, f"{'el' if k else ''}if {self.condition()}:")
                    self.block(depth + 1, loop=loop)
                    self.say(depth + 1, f"{name} = {self.value(1)}")
                self.say(depth, "else:")
                self.say(depth + 1, f"{name} = {self.value(1)}")
                if loop and self.number(2):
                    self.say(depth, f"if {self.condition()}:")
                    self.say(depth + 1, self.pick("break", "continue"))
                self.say(depth, f"{self.pick('a', 'b', 'c')} += {name}")
            case _:
                self.say(depth, f"if {self.condition()} and c % 4 == 3:")
                self.say(depth + 1, "out[0], out[1], out[2] = c, a, b")
                self.say(depth + 1, "return")
        return False


def define(source, filename, **names):
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {"In": In, "Out": Out, "InOut": InOut, "u32": u32, **names}
    exec(compile(source, filename, "exec"), scope)
    return scope


PLAIN_HELPER = define(HELPER, "<helper>")["helper"]
DEVICE_HELPER = device(PLAIN_HELPER)


def check(seed: int) -> bool:
    """Compare one kernel with Python; False when its nesting is more than a program may have."""
    writer = Writer(seed)
    name = f"<random {seed}>"
    x, io = [writer.number(20) for _ in range(3)], [1, 2, 3]
    kernel = define(writer.source, name, static_range=static_range, atomic_add=atomic_add, helper=DEVICE_HELPER)["k"]
    try:
        program = build_program(read_source(kernel, 1), {})
    except vyre.KernelError as e:
        if "deep" in e.message:
            return False
        raise
    python = define(writer.source, name, static_range=range, atomic_add=python_atomic_add, helper=PLAIN_HELPER)["k"]
    want_io, want_out = Words(io), Words([0, 0, 0])
    python(Words(x), want_io, want_out)
    for engine in ("scalar", "numpy"):
        inputs = [np.array(x, np.uint32), np.array(io, np.uint32)]
        done = reference.run(program, inputs, grid=(1, 1, 1), output_elements={"out": 3}, engine=engine)
        got = [np.frombuffer(o, np.uint32).tolist() for o in done.outputs]
        assert got == [list(want_io), list(want_out)], f"{engine}\n{writer.source}"
    return True


@pytest.mark.parametrize("start", range(0, 90, 30))
def test_random_kernels_agree_with_python(start):
    assert sum(check(seed) for seed in range(start, start + 30)) > 20


@pytest.mark.parametrize("start", range(120, 210, 30))
def test_random_kernels_agree_with_python_where_nothing_nests(start, monkeypatch):
    monkeypatch.setattr(stmts, "MANY_GUARDS", 1)
    monkeypatch.setattr(stmts, "MANY_ARMS", 1)
    assert sum(check(seed) for seed in range(start, start + 30)) > 20


@pytest.mark.fuzz
@pytest.mark.parametrize("start", range(1000, 11_000, 500))
def test_many_random_kernels_agree_with_python(start):
    assert sum(check(seed) for seed in range(start, start + 500)) > 300
