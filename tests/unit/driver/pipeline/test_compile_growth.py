"""Programs that grow: our part of compiling them grows no faster, that of the compilers behind us has limits, and the
bytes stay those of the reference."""

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre.backends.cpu import compile as compiling
from vyre.backends.cpu.backend import CpuBackend
from vyre.backends.cpu.build import Switches, kernel_text
from vyre.backends.cpu.devices import host
from vyre.backends.reference import run
from vyre.driver.admission.program import why_not
from vyre.driver.guard import compile as pipelines
from vyre.driver.selection.registry import acquire
from vyre.errors import UnsupportedFeature
from vyre.foundation.check.determinism import determinism
from vyre.foundation.check.validate import validate
from vyre.foundation.ir.dtypes import f32, u32
from vyre.foundation.ir.nodes import (
    Assign,
    Barrier,
    BinOp,
    If,
    InvocationId,
    Let,
    Load,
    Loop,
    Return,
    Store,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import UnaryOp
from vyre.foundation.ir.program import Program, output, read, read_write
from vyre.foundation.ir.report import Capabilities
from vyre.foundation.meaning import mathlib

from ....support.device_backends import IDS, registration_or_skip

emitting = importlib.import_module("vyre.backends.cpu.emit.kernel")
G = InvocationId(0)


def bench():
    """The families of `bench/compile_growth.py`."""
    place = Path(__file__).parents[4] / "bench"
    spec = importlib.util.spec_from_file_location("compile_growth", place / "compile_growth.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(place))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(place))
    return module


FAMILIES = bench()


def rotating(n, around=()):
    """Locals that hand a value on, one in each turn of a loop: the first one differs between lanes after n turns."""
    names = [f"a{k}" for k in range(n)]
    turn = [Assign(a, Var(b)) for a, b in pairwise(names)]
    turn.append(Assign(names[-1], Load("x", G)))
    body = [*(Let(a, lit(0)) for a in names), Loop("k", lit(0), lit(n + 1), (*turn, *around))]
    return Program([read("x", 0, u32), output("out", 1, u32, 64)], (32, 1, 1), [*body, Store("out", G, Var("a0"))])


def calls_of(work):
    """How many calls Python makes: time that no other process can change."""
    count = 0

    def look(frame, event, _):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def compile_it(program):
    validate(program, Capabilities.everything())
    determinism(program)
    kernel_text(program, host(), Switches())


@pytest.mark.check
@pytest.mark.parametrize(
    "name, n",
    [("sins", 4), ("loops", 20), ("branches", 40), ("nested", 64), ("barriers", 20), ("live_locals", 20),
     ("accesses", 30), ("buffers", 20), ("atomics", 20), ("helpers", 30), ("matrix", 20)],
)  # fmt: skip
def test_twice_the_program_is_twice_the_work(name, n):
    small, large = (calls_of(lambda size=size: compile_it(FAMILIES.program_of(name, size))) for size in (2 * n, 4 * n))
    assert large <= 3 * small  # pairs of accesses are compared, up to a limit


def test_values_that_go_around_in_loops_are_not_followed_for_ever():
    small, large = (calls_of(lambda size=size: compile_it(rotating(size))) for size in (60, 120))
    assert large <= 2.2 * small


# ---- the same bytes -------------------------------------------------------------------------------------------------


def expected(program, inputs):
    return [bytes(o) for o in run(program, inputs, grid=(2, 1, 1)).outputs]


@pytest.mark.parametrize("around", [(), (Barrier(),)])
@pytest.mark.parametrize("n", [3, 40])
def test_values_that_go_around_in_loops_arrive(n, around):
    program, x = rotating(n, around), np.arange(64, dtype=np.uint32).tobytes()
    assert [bytes(o) for o in acquire("cpu").dispatch(program, [x])] == expected(program, [x])


def mixed():
    """Loops, branches, a trap-free return, shared values and floats, with accesses that need their tests."""
    step = [
        Let("v", Load("x", G)),
        If(G.eq(5), (Return(),)),
        Loop("k", lit(0), lit(3), (Store("y", G, Load("y", G) + Var("v")),)),
        Let("s", UnOp(UnaryOp.SIN, Var("v"))),
        Store("y", G + 1000, Var("s")),
        Store("out", G, Var("s") * Load("x", G + 1)),
    ]
    return Program([read("x", 0, f32), read_write("y", 1, f32), output("out", 2, f32, 70)], (32, 1, 1), step)


@pytest.mark.parametrize("thorough, quick, large", [(10**9, 10**9, 10**9), (0, 10**9, 10**9), (0, 0, 10**9), (0, 0, 0)])
def test_a_large_program_is_compiled_with_less_effort_and_to_the_same_bytes(monkeypatch, thorough, quick, large):
    monkeypatch.setattr(compiling, "_THOROUGH", thorough)
    monkeypatch.setattr(compiling, "_QUICK", quick)
    monkeypatch.setattr(emitting, "_LARGE", large)
    program = mixed()
    inputs = [np.linspace(-9, 9, 70, dtype=np.float32).tobytes(), np.ones(80, np.float32).tobytes()]
    found = run(program, inputs, grid=(3, 1, 1))
    backend = CpuBackend()
    got = backend.dispatch(program, inputs, vyre.DispatchConfig(grid_override=(3, 1, 1)))
    assert [bytes(o) for o in got] == [bytes(o) for o in found.outputs]
    assert ("@safe" in kernel_text(program, backend.host, backend.switches)[1].text) == (large > 0)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_steps_count_what_is_written_and_what_it_stands_for():
    def steps(*body):
        return Program([output("out", 0, f32, 4)], (4, 1, 1), body).stats.steps

    empty = steps()
    assert steps(Store("out", G, lit(1.0))) - empty == 3
    assert steps(Barrier()) - empty == 50
    assert steps(Loop("k", lit(0), lit(4), ())) - empty == 52
    for op in mathlib.functions():
        call = UnOp(op, lit(1.0)) if isinstance(op, UnaryOp) else BinOp(op, lit(1.0), lit(1.0))
        written = 3 if isinstance(op, UnaryOp) else 4
        assert steps(Store("out", G, call)) - empty == written + mathlib.steps(op)
    assert 50 < mathlib.steps(UnaryOp.EXP2) < mathlib.steps(UnaryOp.SIN) < 600


def test_a_small_blob_that_stands_for_much_is_refused_before_it_is_written_out(monkeypatch):
    backend = acquire("cpu")
    most = backend.capability.max_steps
    assert most > 0
    body = [Let(f"v{k}", UnOp(UnaryOp.TAN, lit(1.0))) for k in range(most // mathlib.steps(UnaryOp.TAN) + 1)]
    program = Program([output("out", 0, f32, 1)], (1, 1, 1), body)
    blob = program.to_wire()
    monkeypatch.setattr(mathlib, "expand", None)  # nobody comes to it
    assert len(blob) < 32 * len(body)
    assert "steps to compile" in why_not(vyre.Program.from_wire(blob), backend)


@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_every_backend_that_compiles_says_how_much(id):
    registration_or_skip(id)
    assert acquire(id).capability.max_steps >= 10_000


def returning(n):
    """A branch in which invocations end one after the other."""
    steps = [part for k in range(n) for part in (If(Load("x", G).eq(k), (Return(),)), Store("y", G, lit(k)))]
    return Program([read("x", 0, u32), read_write("y", 1, u32)], (32, 1, 1), [If(Load("x", G) < 100, tuple(steps))])


def test_returns_that_follow_each_other_in_a_branch_are_limited():
    backend, x = acquire("cpu"), np.arange(64, dtype=np.uint32).tobytes()
    most = returning(200)
    config = vyre.DispatchConfig(grid_override=(2, 1, 1))
    assert [bytes(o) for o in backend.dispatch(most, [x, bytes(256)], config)] == expected(most, [x, bytes(256)])
    with pytest.raises(UnsupportedFeature, match=r"more than 200 returns.*Fix: return once"):
        pipelines.compile(backend, returning(201))


def kept(values, lanes):
    """A workgroup whose invocations keep so many words across a barrier."""
    names = [f"v{k}" for k in range(values)]
    body = [*(Let(v, Load("x", G + k)) for k, v in enumerate(names)), Barrier()]
    total = Var(names[0])
    for v in names[1:]:
        total = total + Var(v)
    return Program([read("x", 0, u32), output("out", 1, u32, lanes)], (lanes, 1, 1), [*body, Store("out", G, total)])


def test_memory_across_barriers_is_limited(monkeypatch):
    monkeypatch.setattr(emitting, "_MOST_SCRATCH", 8 * 64 * 4)
    backend = acquire("cpu")
    x = np.arange(80, dtype=np.uint32)
    (out,) = backend.dispatch(kept(8, 64), [x.tobytes()])
    assert np.frombuffer(out, np.uint32).tolist() == [sum(range(k, k + 8)) for k in range(64)]
    with pytest.raises(UnsupportedFeature, match=r"take 2304 bytes for a workgroup of 64; max is 2048.*Fix: choose a "):
        pipelines.compile(backend, kept(9, 64))
