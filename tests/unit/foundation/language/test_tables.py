"""Tables of numbers that a kernel captures, and names that stand for a number known while compiling."""

from __future__ import annotations

import enum
import itertools
import linecache
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vyre
from vyre import Out, barrier, const, f32, gid, i32, lid, shared, static_range, u32
from vyre.foundation.ir.nodes import Let, Lit, Loop
from vyre.foundation.ir.visit import walk_nodes
from vyre.foundation.language.kernel import build_program, read_source

counter = itertools.count()
OFFSETS = ((-1, 0), (1, 0), (0, -1), (0, 1))
WEIGHTS = [0.25, 0.5, 0.25]
MATRIX = np.array([[1, 2, 3], [4, 5, 6]], np.int64)


class Size(NamedTuple):
    width: int
    height: int = 3


@dataclass
class Inner:
    taps: tuple[int, ...] = (1, 2, 1)


@dataclass(frozen=True)
class Settings:
    scale: float
    inner: Inner = field(default_factory=Inner)
    label: str = "a"


class Mode(enum.Enum):
    FAST = 7


SIZE, SETTINGS = Size(5), Settings(1.5)


def run(function, backend="reference", *, count=1, dtype=u32, **consts):
    return vyre.kernel(workgroup=4)(function).on(backend)(sizes={"out": count}, domain=4, **consts).tolist()


every_backend = pytest.mark.parametrize("backend", ["reference", "cpu"])


@every_backend
def test_a_tuple_is_indexed_by_numbers_known_while_compiling(backend):
    def k(out: Out[i32], *, n: const = 2):
        out[0] = OFFSETS[0][0]
        out[1] = OFFSETS[n][1]
        out[2] = OFFSETS[-1][1]
        for j in static_range(4):
            out[3 + j] = OFFSETS[j][0] * 10 + OFFSETS[j][1]

    assert run(k, backend, count=7) == [-1, -1, 1, -10, 10, -1, 1]
    assert run(k, backend, count=7, n=3)[1] == 1


@every_backend
def test_a_loop_over_a_table_is_unrolled(backend):
    def k(out: Out[f32]):
        total = f32(0)
        for w in WEIGHTS:
            total += w
        for i, w in enumerate(WEIGHTS):
            out[i] = w
        for a, b in zip(WEIGHTS, SIZE):  # noqa: B905 - kernels know no strict
            total += a * b
        out[3] = total

    program = vyre.kernel(k).program
    assert not [n for n in walk_nodes(program.entry) if isinstance(n, Loop)]
    assert run(k, backend, count=4) == [0.25, 0.5, 0.25, 1 + 0.25 * 5 + 0.5 * 3]


@every_backend
def test_a_loop_takes_pairs_apart_and_may_be_left(backend):
    def k(out: Out[i32]):
        at = u32(0)
        for dx, dy in OFFSETS:
            if dx == 0 and gid.x < 2:
                break
            out[at] = dx * 10 + dy
            at += 1
        for row in ((1, 2), (3, 4)):
            out[3 + row[0]] = row[1]

    assert run(k, backend, count=7) == [-10, 10, -1, 1, 2, 0, 4]


def test_arrays_are_indexed_by_one_or_two_numbers():
    def k(out: Out[u32]):
        out[0] = MATRIX[1, 2] + MATRIX[0][1]
        row = MATRIX[1]
        out[1] = row[0] + len(row) + len(MATRIX)
        for column in row:
            out[2] = out_of(column)

    @vyre.device
    def out_of(x):
        return x + 1

    assert run(k, count=3) == [8, 9, 7]


def test_fields_are_numbers():
    def k(out: Out[f32]):
        out[0] = SIZE.width * SIZE[1] + len(SIZE)
        out[1] = SETTINGS.scale
        settings = SETTINGS.inner
        for k, tap in enumerate(settings.taps):
            out[2 + k] = tap
        width, height = SIZE
        out[5] = f32(width - height)
        out[6] = Mode.FAST.value

    assert run(k, count=7) == [17, 1.5, 1, 2, 1, 2, 7]


def test_a_table_is_captured_when_the_kernel_is_defined():
    table, settings = [1, 2], Inner((5, 6))

    @vyre.kernel(workgroup=1)
    def k(out: Out[u32], *, n: const = 0):
        out[0] = table[n] + settings.taps[n] * 10

    table[:] = [9]
    settings.taps = ()
    assert k.on("reference")(sizes={"out": 1}).tolist() == [51]
    assert k.on("reference")(sizes={"out": 1}, n=1).tolist() == [62]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20), st.data())
def test_any_list_is_read_as_python_reads_it(numbers, data):
    at = data.draw(st.integers(-len(numbers), len(numbers) - 1))

    def k(out: Out[i32]):
        out[0] = numbers[at]
        for j, number in enumerate(numbers):
            out[j + 1] = number

    got = vyre.kernel(workgroup=1)(k).on("reference")(sizes={"out": len(numbers) + 1}, domain=1)
    assert got.tolist() == [numbers[at], *numbers]


# ---- names that stand for numbers -----------------------------------------------------------------------------------

K = 3


@every_backend
def test_a_name_for_a_number_is_that_number_where_one_is_needed(backend):
    def k(out: Out[u32]):
        m = K * 2
        for j in static_range(m):
            step = j * 2
            for _ in static_range(step):
                out[j] = step

    assert run(k, backend, count=6) == [0, 2, 4, 6, 8, 10]


@every_backend
def test_sizes_helpers_and_further_names_take_such_a_name(backend):
    @vyre.device
    def power(x, n: const):
        y = u32(1)
        for _ in static_range(n):
            y *= x
        return y

    def k(out: Out[u32], *, n: const = 2):
        m = K * n
        half = m // 2
        tile = shared(u32, m + 1)
        tile[lid.x] = lid.x
        barrier()
        out[0] = tile[1] + power(u32(2), half) + power(u32(3), n) + u32(OFFSETS[half][1])

    assert [d.count for d in vyre.kernel(k).program.buffers if d.name.startswith("tile")] == [7]
    assert run(k, backend) == [1 + 8 + 9 + 1]
    with pytest.raises(vyre.KernelError, match="shared memory of -2 elements"):
        vyre.kernel(k).specialize(n=-1)


def test_such_names_count_as_the_kernel_counts():
    """`m - 3` of a u32 wraps: it is no -1 in Python's sense."""
    assert "4294967295 turns" in refused("m = 2\nfor i in static_range(m - 3):\n    pass").message
    assert "the index 2147483648" in refused("m = 2\nat = (m - 4) // 2 + 1\nv = WEIGHTS[at]").message
    assert "the index -5 lies outside" in refused("m: i32 = 2\nv = WEIGHTS[m - 7]").message


@pytest.mark.parametrize(
    "text",
    [
        "m = 2\nm = 3\nt = shared(u32, m)",
        "m = 2\nm += 1\nt = shared(u32, m)",
        "m = 2\nfor i in range(3):\n    m = i\nfor j in static_range(m):\n    pass",
        "m = gid.x\nfor j in static_range(m):\n    pass",
        "if gid.x > 1:\n    m = 2\nelse:\n    m = 3\nfor j in static_range(m):\n    pass",
    ],
)
def test_a_name_that_changes_stands_for_no_number(text):
    assert "known while compiling" in refused(text).message


def test_programs_stay_as_they_were():
    """A name is a local of its type still: what it meets is checked as before."""

    def k(out: Out[u32]):
        m = K * 2
        out[0] = m

    assert Let("m", Lit(u32, 6)) in list(walk_nodes(vyre.kernel(k).program.entry))
    assert "`+` of u32 and f32" in refused("m = 2\nv = m + f32(gid.x)").message


# ---- what is refused ------------------------------------------------------------------------------------------------


def refused(body: str) -> vyre.KernelError:
    source = "def k(out: Out[u32]):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    filename = f"<table {next(counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope = {**globals()}
    exec(compile(source, filename, "exec", dont_inherit=True), scope)
    with pytest.raises(vyre.KernelError) as caught:
        build_program(read_source(scope["k"], 64), {})
    return caught.value


@pytest.mark.parametrize(
    "body, under, message, fix",
    [
        ("out[0] = WEIGHTS[gid.x]", "gid.x", "`WEIGHTS` is not known while compiling", "Uniform[f32, 3]"),
        ("for i in range(3):\n    v = WEIGHTS[i]", "i", "not known while compiling", "loop with static_range(3)"),
        ("v = WEIGHTS[3]", "3", "the index 3 lies outside the 3 elements", "use 0 to 2"),
        ("v = WEIGHTS[-4]", "-4", "the index -4 lies outside", "use 0 to 2"),
        ("v = WEIGHTS[0.0]", "0.0", "the index 0.0 is not a whole number", "whole numbers"),
        ("v = WEIGHTS[True]", "True", "the index True is not", "whole numbers"),
        ("v = WEIGHTS[0:1]", "0:1", "slices are not part of kernels", "WEIGHTS[0]"),
        ("v = WEIGHTS[0, 1]", "1", "`WEIGHTS[0]` is a number", "leave this index out"),
        ("v = WEIGHTS + 1.0", "WEIGHTS", "`WEIGHTS` is a list, not a number", "write WEIGHTS[0]"),
        ("v = SIZE + 1", "SIZE", "`SIZE` is a Size, not a number", "write SIZE.width"),
        ("v = SIZE.depth", "SIZE.depth", "the Size `SIZE` has no `.depth`", "use one of: width, height"),
        ("v = MATRIX.T", "MATRIX.T", "the ndarray `MATRIX` has no `.T`", "MATRIX[0] and len(MATRIX)"),
        ("v = SETTINGS.label", "SETTINGS.label", "`SETTINGS.label` is a str, not a number", "parameter"),
        ("WEIGHTS[0] = 1", "WEIGHTS", "`WEIGHTS` is a list, not a buffer", "WEIGHTS: In[f32]"),
        ("w = WEIGHTS\nw = 3", "WEIGHTS", "`WEIGHTS` is a list, not a number", "WEIGHTS[0]"),
        ("a, b, c = SIZE", "a, b, c", "2 values for 3 targets", "as many names"),
        ("a, b = MATRIX", "a", "`a` gets no number", "unpack numbers"),
        ("for a, b in WEIGHTS:\n    pass", "a, b", "a number for 2 targets", "as many names"),
        ("for a, b, c in OFFSETS:\n    pass", "a, b, c", "2 values for 3 targets", "as many names"),
        ("for out in WEIGHTS:\n    pass", "out", "another meaning", "another name"),
        ("for out[0] in WEIGHTS:\n    pass", "out[0]", "a name for its variable", "for i in range(n)"),
        ("for i, j in zip(out, WEIGHTS):\n    pass", "i, j", "a loop has one variable", "x[i] inside"),
        ("for w in WEIGHTS:\n    w = 2.0", "w", "known while compiling and cannot be assigned", "another name"),
        ("for row in MATRIX:\n    row = 2", "row", "known while compiling and cannot be assigned", "another name"),
    ],
)
def test_what_a_table_cannot_do(body, under, message, fix):
    error = refused(body)
    assert error.text[error.offset - 1 : error.end_offset - 1] == under
    assert message in error.message
    assert fix in error.fix
