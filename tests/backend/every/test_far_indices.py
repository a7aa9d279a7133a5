"""Indices at and beyond the ends of a buffer, up to the last u32, known to the compiler or not: loads give zero, stores
and atomics do nothing, and no text is refused."""

import pytest

from vyre.backends.reference import run
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded
from vyre.foundation.ir.dtypes import BY_NAME, u32
from vyre.foundation.ir.nodes import Atomic, Let, Load, LocalId, Store, Var, lit
from vyre.foundation.ir.ops import AtomicOp
from vyre.foundation.ir.program import Program, read, read_write, workgroup

from ...support.device_backends import open_or_skip

LENGTH = 5
INDICES = (
    0, 1, 4, 5, 1 << 29, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 4, (1 << 32) - 1,
)  # fmt: skip
"""Times the size of an element, some of them are in bounds again in 32 bits."""


def folded(index):
    """A constant that the lowering finds: a workgroup of one invocation has no other local id than 0."""
    return LocalId(0) + lit(index ^ 1) + lit((index - (index ^ 1)) & 0xFFFFFFFF)


FORMS = {
    "constants": lambda k: lit(INDICES[k]),
    "folded constants": lambda k: folded(INDICES[k]),
    "values": lambda k: Load("at", lit(k)),
}
ELEMENTS = ("u32", "i32", "f32", "bool", "u8", "i8", "u16", "f16", "u64", "i64")
OPS = (AtomicOp.ADD, AtomicOp.EXCHANGE, AtomicOp.MAX)


@pytest.fixture(scope="module", params=["cpu", "cuda", "opencl", "wgpu"])
def backend(request):
    opened = guarded(open_or_skip(request.param))
    yield opened
    opened.shutdown()


def program_of(element, form, make):
    """One invocation that does something to a bound and a shared buffer at each index in turn; where a constant cannot
    be inside of the shared one, a program that says so is refused."""
    t = BY_NAME[element]
    body = [Store("s", lit(k), Load("x", lit(k))) for k in range(LENGTH)]
    for k, index in enumerate(INDICES):
        body += make("y", k, FORMS[form](k), t)
        if form != "constants" or index < LENGTH:
            body += make("s", k, FORMS[form](k), t)
    body += [Store("z", lit(4 * len(INDICES) + k), Load("s", lit(k))) for k in range(LENGTH)]
    bound = [read("x", 0, t), read_write("y", 1, t), read_write("z", 2, t), read("at", 3, u32)]
    return Program([*bound, workgroup("s", t, LENGTH)], (1, 1, 1), body)


def read_and_write(buffer, k, at, t):
    place = 2 * k + (buffer == "s")
    loads = [Store("z", lit(place), Load(buffer, at)), Store("z", lit(place + 2 * len(INDICES)), Load("x", at))]
    return [*loads, Store(buffer, at, Load("x", lit((k + 1) % LENGTH)))]


def change(buffer, k, at, t):
    name, place = f"{buffer}{k}", 2 * k + (buffer == "s")
    return [
        Let(name, Atomic(OPS[k % 3], buffer, at, lit(k + 3, t))),
        Store("z", lit(place), Var(name)),
        Let(f"{name}c", Atomic(AtomicOp.COMPARE_EXCHANGE, buffer, at, lit(7, t), lit(9, t))),
        Store("z", lit(place + 2 * len(INDICES)), Var(f"{name}c")),
    ]


def agree(backend, program):
    size = {b.name: b.element.size for b in program.bound_buffers}
    numbers = [1, 0, 1, 1, 0] if program.bound_buffers[0].element.name == "bool" else [3, 4, 5, 6, 7]
    inputs = {
        "x": numbers,
        "y": numbers[::-1],
        "z": [0] * (4 * len(INDICES) + LENGTH),
        "at": INDICES,
    }
    given = [b"".join(v.to_bytes(size[b.name], "little") for v in inputs[b.name]) for b in program.host_inputs]
    expected = [bytes(o) for o in run(program, given, grid=(1, 1, 1)).outputs]
    found = pipelines.compile(backend, program).dispatch(given, DispatchConfig(grid_override=(1, 1, 1)))
    assert [bytes(o) for o in found] == expected


def pairs(elements):
    """Of elements and forms; those that differ least from the others wait for the sweep."""
    quick = {("u32", "folded constants"), ("u8", "constants"), ("u64", "values"), ("i32", "constants")}
    return [
        pytest.param(element, form, marks=() if (element, form) in quick else pytest.mark.sweep)
        for element in elements
        for form in FORMS
    ]


@pytest.mark.parametrize("element, form", pairs(ELEMENTS))
def test_an_index_beyond_the_end_reads_zero_and_writes_nothing(backend, element, form):
    agree(backend, program_of(element, form, read_and_write))


@pytest.mark.parametrize("element, form", pairs(("u32", "i32")))
def test_an_atomic_beyond_the_end_does_nothing(backend, element, form):
    agree(backend, program_of(element, form, change))
