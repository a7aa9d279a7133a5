"""Random kernels whose indices, conditions and turns come from memory that a thread of the caller changes meanwhile.

Run as a program, with the first seed, how many, and the seconds for each: every array lies between pages that nothing
may touch, at their very edge, so an access out of bounds ends the process.
"""

import ctypes
import linecache
import mmap
import random
import sys
import threading
import time

import numpy as np

import vyre
from vyre.backends.cpu import CpuBackend
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines

HEAD = "import vyre\nfrom vyre import *\n\n\n@vyre.kernel\n"
PARAMETERS = (
    "w: In[u32], x: In[u32], t8: In[u8], n: u32, o: Out[u32], o8: Out[u8], o64: Out[u64], io: InOut[u32], "
    "bins: InOut[u32], big: Out[u32]"
)
LENGTHS = {
    "w": (1, 2, 8, 64), "x": (1, 5, 64, 100, 500), "t8": (1, 8, 64, 129), "o": (1, 16, 64, 65, 200), "o8": (1, 64, 65),
    "o64": (1, 33, 64), "io": (1, 64, 100), "bins": (1, 8, 64), "big": (64, 70, 1 << 16, (1 << 20) + 5),
}  # fmt: skip
TYPES = {"t8": np.uint8, "o8": np.uint8, "o64": np.uint64}
CHANGES = (0, 1, 2, 5, 63, 64, 200, 1000, 100_000, 0x40000000, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


class Writer:
    """Writes the body of a kernel."""

    def __init__(self, rng):
        self.rng, self.lines, self.locals, self.made, self.left = rng, [], [], 0, rng.randint(2, 8)

    def pick(self, *items):
        return self.rng.choice(items)

    def say(self, depth, line):
        self.lines.append("    " * depth + line)

    def name(self):
        self.made += 1
        return f"v{self.made}"

    def element(self, depth=0):
        at = self.pick("0", "1", "gid.x", "gid.x & 7", self.value(depth - 1) if depth > 0 else "1")
        return f"{self.pick('w', 'w', 'x', 'io')}[{at}]"

    def value(self, depth):
        roll = self.rng.random()
        if depth <= 0 or roll < 0.15:
            return self.pick("gid.x", "lid.x", "wg.x", "n", "len(o)", "len(x)", "7", "64", *self.locals)
        if roll < 0.4:
            return self.element(depth)
        a, b = self.value(depth - 1), self.value(depth - 1)
        return self.pick(
            f"u32(t8[{a}])", f"({a} + {b})", f"({a} - {b})", f"(u32({a}) * {self.pick(2, 3, 64)})", f"({a} ^ 5)",
            f"(u32({a}) & {self.pick(7, 63, 255)})", f"(u32({a}) >> {self.pick(1, 24)})", f"(u32({a}) << 2)",
            f"min({a}, u32({b}))", f"(u32({a}) % len(o))", f"({a} // (n | 1))", f"u32(u64({a}) + u64({b}))",
            f"select({self.condition()}, u32({a}), u32({b}))", f"u32(i32({a}) - 3)", f"u32(f32({a}))",
        )  # fmt: skip

    def condition(self):
        limit = self.pick("len(o)", "len(x)", "len(io)", "n", "64", self.element())
        return f"u32({self.value(1)}) {self.pick('<', '<', '<=', '>=', '>', '==')} u32({limit})"

    def block(self, depth):
        known = len(self.locals)
        for _ in range(self.rng.randint(1, 2)):
            self.statement(depth)
        del self.locals[known:]

    def statement(self, depth):
        self.left -= 1
        place = self.pick(self.value(2), f"(gid.x & 31) + {self.element()}", self.value(1), f"{self.element()} - 1")
        match self.rng.randrange(12 if self.left > 0 and depth < 4 else 6):
            case 0 | 1:
                self.say(depth, f"{self.pick('o', 'o', 'o8', 'o64', 'io')}[u32({place})] = 7")
            case 2:
                self.say(depth, f"atomic_{self.pick('add', 'max', 'xor')}(bins, u32({place}), 1)")
            case 3:
                name = self.name()
                self.say(depth, f"{name} = atomic_add(io, u32({place}), 1)")
                self.locals.append(name)
            case 4:
                self.say(depth, f"o[u32({place})] = u32({self.value(2)})")
            case 5:
                name = self.name()
                self.say(depth, f"{name} = u32({self.value(2)})")
                self.locals.append(name)
            case 6 | 7 | 8:
                self.say(depth, f"if {self.condition()}:")
                self.block(depth + 1)
            case 9:
                self.say(depth, f"if {self.condition()}:")
                self.say(depth + 1, "return")
            case _:
                name = self.name()
                self.say(depth, f"for {name} in range({self.element()} % 9, {self.element()} % 40):")
                self.locals.append(name)
                self.block(depth + 1)
                self.locals.remove(name)

    def text(self):
        if self.rng.random() < 0.3:
            for line in ("tile = shared(u32, 64)", f"tile[lid.x % 64] = {self.element(1)}", "barrier()"):
                self.say(1, line)
            self.say(1, f"v0 = tile[{self.pick('lid.x ^ 1', f'{self.element()} & 31', '63 - lid.x')}]")
            self.locals.append("v0")
        if self.rng.random() < 0.3:
            self.say(1, f"big[gid.x] = {self.element()}")
        self.block(1)
        return f"{HEAD}def k({PARAMETERS}):\n" + "\n".join(self.lines) + "\n"


def between_pages(nbytes, at_end):
    """Bytes at the end, or at the start, of pages with others around them that no access may touch."""
    page, around = mmap.PAGESIZE, 32
    pages = -(-nbytes // page)
    memory = mmap.mmap(-1, (pages + 2 * around) * page)
    found = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for first in (0, around + pages):
        assert protect(found.ctypes.data + first * page, around * page, 0) == 0
    start = around * page + (pages * page - nbytes if at_end else 0)
    return found[start : start + nbytes]


def changing(arrays, over):
    """Fill them with one number after the other."""
    rng = random.Random(1)
    while not over.is_set():
        for a in arrays:
            a[:] = rng.choice(CHANGES) & np.iinfo(a.dtype).max
            a[0] = 0
            a[-1] = 3


def attack(seed, seconds, backend):
    """Dispatch a kernel for so long; how often that was."""
    rng = random.Random(seed)
    text, name = Writer(rng).text(), f"<restless {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {"__name__": name}
    try:
        exec(compile(text, name, "exec"), scope)
    except vyre.KernelError:  # a number that does not fit, a branch that cannot be
        return 0
    program = scope["k"].program
    at_end = rng.random() < 0.7
    arrays = {
        key: between_pages(rng.choice(counts) * np.dtype(t).itemsize, at_end).view(t)
        for key, counts in LENGTHS.items()
        for t in (TYPES.get(key, np.uint32),)
    }
    number = np.array([rng.choice((1, 5, 64))], np.uint32)
    inputs = [arrays.get(b.name, number) for b in program.host_inputs]
    out = [arrays[b.name] for b in program.host_outputs]
    grid = (len(arrays["big"]) // 64 + 1, 2, 1) if "big[gid.x]" in text else (1, 50_000, rng.choice((2, 8)))
    pipeline, over, done = pipelines.compile(backend, program), threading.Event(), 0
    thread = threading.Thread(target=changing, args=([arrays[key] for key in ("w", "x", "t8", "io")], over))
    thread.start()
    try:
        end = time.monotonic() + seconds
        while not done or time.monotonic() < end:  # tiles of one workgroup: many checks
            pipeline.dispatch(inputs, DispatchConfig(grid_override=grid), out=out)
            done += 1
    finally:
        over.set()
        thread.join()
    return done


if __name__ == "__main__":
    first, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    opened = CpuBackend(threads=1)
    ran = 0
    for seed in range(first, first + count):
        print("seed", seed, flush=True)
        ran += attack(seed, seconds, opened) > 0
    print("ran", ran)
