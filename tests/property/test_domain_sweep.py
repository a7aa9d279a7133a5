"""A call that does not say how much runs gives what any larger domain gives, or is refused: random guarded kernels.

In these kernels every access is inside `if index < len(array)`, so an invocation too many changes nothing.
"""

import linecache
import random

import numpy as np
import pytest

import vyre

from ..support.domain_kernels import nested_kernel
from ..support.tiers import first_quick

LENGTHS = (1, 63, 64, 65, 1000)
NUMBERS = (1, 3, 8, 64, 100, 700)
WORD = np.uint32

LINE = (
    "gid.x", "gid.x + 3", "gid.x + n", "gid.x - 3", "gid.x * 2 + 1", "gid.x * n", "gid.x * n + 2", "gid.x // 2",
    "gid.x // n", "gid.x // len(x)", "gid.x % 8", "gid.x % n", "gid.x % len(x)", "gid.x & 31", "gid.x & n", "gid.x ^ 5",
    "gid.x ^ n", "len(x) - 1 - gid.x", "n - 1 - gid.x", "wg.x * 64 + lid.x", "wg.x * 64 + 63 - lid.x",
    "wg.x * 32 + lid.x", "wg.x", "wg.x + n", "lid.x", "(wg.x << 6) | lid.x",
    "gid.x // n * n + gid.x % n", "(gid.x + 5) // 3 + gid.x",
    "gid.x // 4 % 16", "min(gid.x, len(x) - 1)", "max(gid.x, n)", "gid.x * gid.x", "saturating_sub(gid.x, 3)",
    "gid.x << 1", "gid.x >> 2", "2 * (gid.x // n) + gid.x % 2",
    "gid.x - gid.x % 4", "(len(x) - gid.x) * 2", "0", "n",
)  # fmt: skip
PLANE = (
    "gid.y * w + gid.x", "gid.x * h + gid.y", "(h - 1 - gid.y) * w + gid.x", "gid.y * w + w - 1 - gid.x",
    "(gid.y * w + gid.x) * 3 + 1", "(wg.y * 4 + lid.y) * w + wg.x * 8 + lid.x", "gid.y", "gid.x", "gid.y + gid.x",
    "(gid.y + 1) * w + gid.x", "gid.y // 2 * w + gid.x // 2", "wg.y * 8 + wg.x", "gid.y % 4 * w + gid.x % 4", "0",
)  # fmt: skip
GUARDS = (
    ("if {i} < len(x):", 1), ("if {i} < len(x) and {j} < len(out):", 1), ("if gid.x < len(x) and {i} < len(x):", 1),
    ("if gid.x < n and {i} < len(x):", 1), ("if not {i} >= len(x):", 1), ("if len(x) > {i}:", 1),
    ("if {i} + 1 <= len(x):", 1), ("inside = {i} < len(x)\nif inside:", 1),
    ("if {i} >= len(x):\n    return\nif n > 0:", 1),
    ("if 2 < {i} < len(x):", 1), ("if i32({i}) < i32(len(x)) and i32({i}) >= 0:", 1),
    ("for i in range({i}, len(x), 96):\n    if i < len(x):", 2),
    ("for i in range({i}, len(x)):\n    if i < len(x):", 2),
    ("for k in range(n):\n    if {i} + k < len(x):", 2), ("for k in range(3):\n    if {i} * 3 + k < len(x):", 2),
    ("i = {i}\nwhile i < len(x):\n    i += 96\n    if i < len(x):", 2),
    ("i = {i}\nwhile i < len(x):\n    i += n\n    if i < len(x):", 2),
)  # fmt: skip
"""With how deep the block is inside of which an access to x is allowed."""
COUNTS = (
    "if gid.x < n:",
    "if gid.x < n * n:",
    "if gid.x // len(x) < len(x):",
    "if gid.x // n < n and gid.x % n < len(x):",
)
WRITES = (
    "if {j} < len(out):\n    out[{j}] = 7", "if {j} < len(out):\n    atomic_add(out, {j}, {v} + 1)",
    "if {v} > 3:\n    out[0] = 1", "atomic_add(out, 0, {v})", "atomic_max(out, 0, gid.x)",
    "if wg.x < len(out):\n    atomic_add(out, wg.x, {v} + 1)", "if {v} < len(out):\n    atomic_add(out, {v}, 1)",
    "if {v} < len(out):\n    out[{v}] = 3",
)  # fmt: skip


def indented(text: str, depth: int) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in text.split("\n"))


def line_kernel(rng: random.Random, name: str) -> str:
    i, j = rng.choice(LINE), rng.choice(LINE)
    if rng.random() < 0.15:
        guard, depth, v = rng.choice(COUNTS), 1, "1"
    else:
        guard, depth = rng.choice(GUARDS)
        v = "x[i]" if "range({i}" in guard or "while" in guard else f"x[({i})]"
        if "k in range" in guard:
            v = f"x[({i}) + k]" if "range(n)" in guard else f"x[({i}) * 3 + k]"
    guard = guard.format(i=f"({i})", j=f"({j})")
    write = rng.choice(WRITES).format(j=f"({j})", v=v)
    if "d.x" not in guard + write and "wg.x" not in guard + write:
        return line_kernel(rng, name)  # a kernel without ids runs as the driver decides
    return (
        f"@vyre.kernel\ndef {name}(x: In[u32], n: u32, out: InOut[u32]):\n"
        f"{indented(guard, 1)}{indented(write, 1 + depth)}"
    )


def plane_kernel(rng: random.Random, name: str) -> str:
    i, j = rng.choice(PLANE), rng.choice(PLANE)
    guard = rng.choice(
        ("if gid.x < w and gid.y < h and ({i}) < len(x):", "if gid.y < h and gid.x < w:\n    if ({i}) < len(x):")
    )
    depth = 2 + guard.count("\n")
    write = rng.choice(WRITES).format(j=f"({j})", v=f"x[({i})]")
    return (
        f"@vyre.kernel(workgroup=(8, 4))\ndef {name}(x: In[u32], w: u32, h: u32, out: InOut[u32]):\n"
        f"{indented(guard.format(i=i), 1)}{indented(write, depth)}"
    )


def kernels(texts: dict[str, str], module: str) -> dict[str, vyre.Kernel]:
    """Those that the language takes: it refuses loops that would begin below zero."""
    scope: dict[str, object] = {"__name__": module}
    for name, body in texts.items():
        text, filename = f"import vyre\nfrom vyre import *\n{body}", f"{module} {name}"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        try:
            exec(compile(text, filename, "exec"), scope)
        except vyre.KernelError as e:
            if "wraps where it is below zero" not in str(e) and "wraps to a large number" not in str(e):
                raise
    return {name: scope[name] for name in texts if name in scope}


def numbers_for(rng: random.Random, kernel: vyre.Kernel) -> tuple[int, ...]:
    if len(kernel.params) == 4:
        return rng.choice((1, 8, 13, 32)), rng.choice((1, 4, 9))
    return (rng.choice(NUMBERS),)


def larger(grid, kernel, numbers, *lengths):
    """A domain of at least four times as many invocations along each axis that the kernel reads."""
    x, y, _ = (g * s for g, s in zip(grid, kernel.workgroup, strict=True))
    if len(kernel.params) == 4:
        return max(4 * x, 100), max(4 * y, 100)
    return max(4 * x, 5000, min(lengths[0] * lengths[1], 20_000), min(4 * numbers[0] ** 2, 40_000))


def check(seed: int, count: int, backend: str = "cpu") -> tuple[int, list[str]]:
    """How many calls ran, and why others were refused; those that ran gave what more invocations give."""
    rng = random.Random(seed)
    texts = {f"k{n}": (plane_kernel if n % 4 == 3 else line_kernel)(rng, f"k{n}") for n in range(count)}
    ran, refused = 0, []
    for name, made in kernels(texts, f"<domain {seed}>").items():
        kernel = made.on(backend)
        for _ in range(3):
            lengths, numbers = (rng.choice(LENGTHS), rng.choice(LENGTHS)), numbers_for(rng, kernel)
            x = np.array([rng.choice((0, 1, 2, 5, 9, 70)) for _ in range(lengths[0])], WORD)
            found, more = np.zeros((2, lengths[1]), WORD)
            try:
                grid = kernel.explain(x, *numbers, found).grid
                kernel(x, *numbers, found)
            except vyre.ArgumentValueError as e:
                refused.append(str(e))
                continue
            ran += 1
            domain = larger(grid, kernel, numbers, *lengths)
            kernel(x, *numbers, more, domain=domain)
            assert np.array_equal(found, more), (
                f"{texts[name]}\nlengths {lengths}, numbers {numbers}: grid {grid} and domain {domain} differ at "
                f"{np.flatnonzero(found != more)[:5]}: {found[found != more][:5]} and {more[found != more][:5]}"
            )
    return ran, refused


@pytest.mark.parametrize("seed", first_quick(range(16), 5))
@pytest.mark.check
def test_more_invocations_change_nothing(seed):
    ran, refused = check(seed, 32)
    assert ran > len(refused) > 0  # the grammar has both
    assert all("Fix: pass domain=" in text for text in refused)


def test_more_invocations_change_nothing_on_the_reference():
    check(1, 16, "reference")


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_more_invocations_change_nothing_in_many_kernels(seed):
    check(seed, 40)


# ---- kernels of nested blocks ---------------------------------------------------------------------------------------


def check_nested(seed: int) -> int:
    """How many of some calls of a kernel ran; each gave what a larger domain gives."""
    rng, text, module = random.Random(seed), nested_kernel(seed), f"<nested {seed}>"
    linecache.cache[module] = (len(text), None, text.splitlines(True), module)
    scope: dict[str, object] = {"__name__": module}
    try:
        exec(compile(text, module, "exec"), scope)
    except vyre.KernelError:  # numbers that do not fit
        return 0
    kernel, ran = scope["k"].on("cpu"), 0
    rank = 1 + max("xyz".index(axis) for axis in "xyz" if f".{axis}" in text)
    for _ in range(3):
        lengths, (n, m) = (
            [rng.choice((1, 7, 63, 64, 65, 200, 1000)) for _ in range(5)],
            rng.choices((1, 3, 8, 40, 100), k=2),
        )
        x, y = (np.array([rng.choice((0, 1, 2, 3, 9, 70)) for _ in range(count)], WORD) for count in lengths[:2])
        found, more = ([np.zeros(count, WORD) for count in lengths[2:]] for _ in range(2))
        try:
            grid = kernel.explain(x, y, n, m, *found).grid
            kernel(x, y, n, m, *found)
        except vyre.ArgumentValueError as e:
            if "Fix: pass domain=" not in str(e):
                raise
            continue
        least = {1: (rng.choice((3000, 300_000)),), 2: (130, 300), 3: (50, 50, 40)}[rank]
        domain = tuple(max(3 * g * w, k) for g, w, k in zip(grid, kernel.workgroup, least, strict=False))
        kernel(x, y, n, m, *more, domain=domain)
        assert all(map(np.array_equal, found, more)), f"{text}\n{lengths=} {n=} {m=} {grid=} {domain=}"
        ran += 1
    return ran


@pytest.mark.parametrize("first", [0, 20])
def test_more_invocations_change_nothing_in_nested_blocks(first):
    assert sum(map(check_nested, range(first, first + 20))) > 10


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 6000, 100))
def test_more_invocations_change_nothing_in_many_nested_blocks(first):
    assert sum(map(check_nested, range(first, first + 100))) > 50
