"""A caller's thread may write to memory that a dispatch reads. Any number may come of it, but no access out of bounds:
what an access was found to be in bounds with is what it is made with."""

import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vyre
from vyre import In, InOut, Out, atomic_add, barrier, f32, gid, lid, shared, u8, u32
from vyre.backends.cpu.emit.kernel import Target, emit
from vyre.backends.cpu.emit.lanes import Lanes
from vyre.backends.cpu.emit.tile_check import plan_checks, without
from vyre.backends.cpu.emit.uniformity import Variance
from vyre.conform.programs.random import random_program
from vyre.foundation.ir.program import Program, workgroup
from vyre.lower import improve, lower
from vyre.lower.from_program import build
from vyre.lower.instructions import function_of
from vyre.lower.kernel_ir import PURE, If, walk

from ...support.lower_oracle import Dispatch
from ...unit.lower.test_bounds_checks import OUT, A, P, _Maker, is_valid, one_access, random_kernel, words

NUMBERS = (0, 0, 1, 2, 3, 5, 8, 15, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


@vyre.kernel(workgroup=64)
def offset(w: In[u32], o: Out[u32]):
    o[(gid.x & 63) + w[0]] = 7


@vyre.kernel(workgroup=64)
def guarded(w: In[u32], o: Out[u32]):
    if w[0] < len(o):
        o[w[0]] = 7


@vyre.kernel(workgroup=64)
def returned(w: In[u32], o: Out[u32]):
    if w[0] >= len(o):
        return
    o[w[0]] = gid.x


@vyre.kernel(workgroup=64)
def bounded(w: In[u32], o: Out[u32]):
    if (gid.x & 63) < w[0]:
        o[gid.x & 63] = 7
        o[w[0] - 1] = 8


@vyre.kernel(workgroup=64)
def looped(w: In[u32], o: Out[u32]):
    for k in range(w[0]):
        o[k] = k


@vyre.kernel(workgroup=64)
def counted(w: In[u32], o: InOut[u32]):
    atomic_add(o, (gid.x & 31) + w[0], 1)


@vyre.kernel(workgroup=64)
def followed(w: In[u32], o: Out[u32]):
    o[(gid.x & 31) + w[w[1] & 1]] = 7


@vyre.kernel(workgroup=64)
def narrow(w: In[u8], o: Out[u32]):
    o[(gid.x & 63) + u32(w[0])] = 7


STEERED = (offset, guarded, returned, bounded, looped, counted, followed, narrow)

# ---- an interpreter whose memory changes with every load ------------------------------------------------------------


class Fast(Dispatch):
    """Where the check passes, the conditions that it settles are left out, as in the fast version of the emitter. What
    is known in a block of lanes that passes must be so in each of them."""

    def __init__(self, kernel, *args, **options):
        checks = plan_checks(kernel, lambda held: Variance(kernel, 16, 1, True, held=held, fast=True))
        self.held, self.block, kernel.check = checks.held, checks.block, checks.tile
        self.blocks = 0
        super().__init__(kernel, *args, **options)
        if self.block:
            self.functions |= {i: function_of(i, False) for i in self.block.code if i.op in PURE and i.args}

    def body(self):
        return without(self.kernel.body, self.held) if self.fits else self.kernel.body

    def lane(self, body, env):
        inside = self.fits and self.block and self.passes(env["ids"]["gid"])
        env["picks"] = self.block.picks if inside else {}
        yield from super().lane(body, env)
        for item in walk(self.kernel.body) if inside else ():
            if isinstance(item, If) and id(item.condition) in self.block.held and item.condition in env:
                assert env[item.condition] == self.block.held[id(item.condition)]
        self.blocks += bool(inside)

    def passes(self, gid):
        """Whether some block around the lane does."""
        env, ends = {}, [(x - self.rng.choice((0, 0, 1, 9)), x + self.rng.choice((0, 0, 1, 9))) for x in gid]
        ends = [(max(low, 0), high) for low, high in ends]
        for i in self.block.code:
            if i.op in ("gid_lo", "gid_hi"):
                env[i] = ends[i.attr][i.op == "gid_hi"]
            elif i.op == "len":
                env[i] = self.length[i.attr]
            else:
                env[i] = self.taken[i] if i.op == "load" else self.pure(i, env)
        least, most, ok = (env[i] for i in (self.block.least, self.block.most, self.block.ok))
        return ok and least <= ends[0][0] and ends[0][1] <= most

    def step(self, i, env):
        super().step(i, env)
        if id(i) in env["picks"]:
            assert env[i] == env[env["picks"][id(i)]]


def run_restless(program, lengths, seed, grid=(3, 1, 1)):
    """How many accesses were not tested. One out of bounds fails."""
    inputs = [words(*([1] * lengths.get(b.name, 0))) for b in program.host_inputs]
    untested = 0
    for run in (Dispatch, Fast):
        kernel = build(program)
        improve(kernel)
        chosen = {b.name: 64 for b in program.host_outputs if b not in program.host_inputs}
        done = run(kernel, program, inputs, grid, chosen, seed=seed, restless=NUMBERS)
        done.run()
        untested += done.untested
    return untested


@pytest.mark.parametrize("kernel", STEERED, ids=lambda k: k.__name__)
def test_no_untested_access_is_out_of_bounds_while_memory_changes(kernel):
    assert sum(run_restless(kernel.program, {"w": 2, "o": 64}, seed) for seed in range(20))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32))
def test_no_untested_access_of_a_random_kernel_is_out_of_bounds_while_memory_changes(seed):
    rng = random.Random(seed)
    body = one_access(_Maker(rng), rng.randrange(4))
    one = Program([A, P, OUT, workgroup("s", u32, 1)], rng.choice(((1, 1, 1), (4, 1, 1), (3, 2, 1))), body)
    for program in (one, random_kernel(rng)):
        if is_valid(program):
            lengths = {"a": rng.choice((0, 2, 9)), "p": 5, "out": rng.choice((1, 5, 16, 40))}
            run_restless(program, lengths, seed, rng.choice(((1, 1, 1), (3, 1, 1), (2, 2, 1))))


# ---- the text that the compiler gets --------------------------------------------------------------------------------

_NAME = re.compile(r"%[\w.]+")
_BOUND = re.compile(r"%(?:buffer|mine)\d+\b")
_READS = re.compile(r"= (?:load |call .*@llvm\.masked\.(?:load|gather))")
_STEERS = tuple(map(re.compile, (
    r"getelementptr .*, (?:i64|<.*>) (%[\w.]+)$",
    r"br i1 (%[\w.]+),",
    r"select i1 (%[\w.]+), ptr",
    r"masked\..*<\d+ x i1> (%[\w.]+)",
)))  # fmt: skip
"""What an index, a condition or a mask is in a line."""


def functions(text):
    """name -> lines"""
    found = re.findall(r"^define internal \w+ @(\w+)\(.*?\{\n(.*?)^\}", text, re.M | re.S)
    return {name: body.splitlines() for name, body in found}


def loose_loads(lines):
    """Reads of bound memory that decide about an access, and that the compiler could make again: there is no `freeze`
    on the way, or they are said to read memory that never changes."""
    made = {}
    for line in lines:
        name, is_value, rest = line.strip().partition(" = ")
        if is_value:
            made[name] = line, _NAME.findall(rest)
    bound = set()
    for name, (line, operands) in made.items():  # addresses are made before they are used
        moved = any(word in line for word in ("getelementptr", "select", "ptrmask"))
        if moved and any(_BOUND.fullmatch(o) or o in bound for o in operands[:3]):
            bound.add(name)
    unvisited = [(match[1], False) for line in lines for form in _STEERS if (match := form.search(line))]
    seen, found = set(), []
    while unvisited:
        name, frozen = at = unvisited.pop()
        if at in seen or name not in made:
            continue
        seen.add(at)
        line, operands = made[name]
        if not _READS.search(line):
            unvisited.extend((o, frozen or "= freeze " in line) for o in operands)
        elif any(o in bound for o in operands) and (not frozen or "!invariant" in line):
            found.append(line)
    return found


@vyre.kernel(workgroup=64)
def sparse(rows: In[u32], cols: In[u32], x: In[f32], o: Out[f32]):
    if gid.x < len(o):
        total = f32(0)
        for k in range(rows[gid.x], rows[gid.x + 1]):
            total = total + x[cols[k]]
        o[gid.x] = total


@vyre.kernel(workgroup=64)
def between(w: In[u32], at: In[u8], o: InOut[u32]):
    kept = shared(u32, 64)
    kept[lid.x] = o[gid.x] + w[0]
    barrier()
    last = u32(at[kept[63 - lid.x]])
    if last < len(o):
        o[last] = kept[lid.x]


@pytest.mark.parametrize("width", [1, 16])
@pytest.mark.parametrize("kernel", [*STEERED, sparse, between], ids=lambda k: k.__name__)
def test_a_load_that_steers_is_frozen(kernel, width):
    text = emit(lower(kernel.program), Target(width=width, mxcsr=True)).text
    found = {name: loose_loads(lines) for name, lines in functions(text).items()}
    assert "= freeze " in text
    assert not any(found.values()), found
    thawed = re.sub(r"(%\S+) = freeze (\S+|<.*?>) (%\S+)", r"\1 = add \2 \3, zeroinitializer", text)
    assert any(loose_loads(lines) for lines in functions(thawed).values())  # or the test sees nothing


@pytest.mark.parametrize("kernel", [k for k in STEERED if k is not narrow], ids=lambda k: k.__name__)
def test_what_the_check_has_read_is_not_read_again(kernel):
    found = functions(emit(lower(kernel.program), Target(width=16, mxcsr=True)).text)
    slot = next(b.slot for b in lower(kernel.program).buffers if b.name == "w")
    for name in ("fast", "stream", "even"):
        assert f"%buffer{slot}" not in "\n".join(found.get(name, ()))
    assert f"%buffer{slot}" in "\n".join(found["tiles"])


def test_random_programs_read_what_steers_once(monkeypatch):
    """Of what an instruction gave, nothing is computed anew that reads memory."""
    value = Lanes.value

    def watched(self, ins):
        assert id(ins) in self.known or id(ins) in self.phases.spilled or ins.op in PURE or ins.op == "get"
        return value(self, ins)

    monkeypatch.setattr(Lanes, "value", watched)
    for seed in range(30):
        kernel = lower(random_program(random.Random(seed)).program)
        for width in (1, 16):
            text = emit(kernel, Target(width=width, mxcsr=not kernel.soft_flush)).text
            assert not any(map(loose_loads, functions(text).values())), seed


# ---- threads --------------------------------------------------------------------------------------------------------

RACE = """
import mmap, sys, threading
import numpy as np
import tests.backend.every.test_changing_memory as here
from vyre.backends.cpu import CpuBackend
from vyre.driver.guard import compile as pipelines
from vyre.driver.contract.values import DispatchConfig

kernel, rounds = getattr(here, sys.argv[1]), int(sys.argv[2])
around = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
around[:] = 0xAB
first = 1 << 19
out = around[first : first + 288].view(np.uint32)
dtype = np.uint8 if kernel is here.narrow else np.uint32
w, large = np.zeros(2, dtype), 200 if dtype is np.uint8 else 1000
config = DispatchConfig(grid_override=(1, 50000, 8))  # tiles of one workgroup: many checks
pipeline = pipelines.compile(CpuBackend(threads=1), kernel.program)
inputs = [out if b.name == "o" else w for b in kernel.program.host_inputs]
over = threading.Event()

def change():
    while not over.is_set():
        for _ in range(100):
            w[0] = large
            w[0] = 1
            w[1] = 1
            w[1] = 0

thread = threading.Thread(target=change)
thread.start()
try:
    for k in range(rounds):
        pipeline.dispatch(inputs, config, out=[out])
        if not ((around[:first] == 0xAB).all() and (around[first + 288 :] == 0xAB).all()):
            sys.exit(f"written outside of the buffer in dispatch {k}")
finally:
    over.set()
    thread.join()
"""


@pytest.mark.parametrize("kernel", [offset, returned, looped], ids=lambda k: k.__name__)
def test_nothing_is_written_outside_of_a_buffer_while_a_thread_changes_an_index(kernel):
    done = subprocess.run(
        [sys.executable, "-c", RACE, kernel.__name__, "8"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("kernel", STEERED, ids=lambda k: k.__name__)
def test_nothing_is_written_outside_of_a_buffer_for_long(kernel):
    done = subprocess.run([sys.executable, "-c", RACE, kernel.__name__, "2000"], cwd=Path(__file__).parents[3])
    assert done.returncode == 0


@pytest.mark.parametrize(
    "first, count, seconds",
    [
        pytest.param(0, 12, 0.2, marks=pytest.mark.check),
        *(
            pytest.param(k, 100, 0.6, marks=[pytest.mark.sweep, pytest.mark.timeout(900)])
            for k in range(100, 1100, 100)
        ),
    ],
)
def test_random_kernels_touch_nothing_outside_of_their_buffers_while_a_thread_changes_them(first, count, seconds):
    """An access beyond an array meets a page that ends the process."""
    words = [sys.executable, "-m", "tests.support.restless_kernels", *map(str, (first, count, seconds))]
    done = subprocess.run(words, cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (done.returncode, done.stdout[-20:], done.stderr)
    assert int(done.stdout.split()[-1]) > count // 2


@vyre.kernel(workgroup=64)
def wrapped(d: InOut[u32], c: In[u32], src: In[u32], out: Out[u32]):
    a = d[0] - 1
    c0 = c[0]
    if c0 <= a:
        out[gid.x] = src[a - c0]


def test_an_index_whose_steps_wrap_is_computed_in_the_width_of_the_language():
    """a is 2^32 - 1 although it is made of 0: in 64 bits the same steps lead far outside."""
    words = np.arange(100, 164, dtype=np.uint32)
    arrays = {"d": np.zeros(64, np.uint32), "c": np.array([0xFFFFFFF0], np.uint32), "src": words}
    results = {}
    for name in ("cpu", "reference"):
        _, results[name] = wrapped.on(name)(**{k: v.copy() for k, v in arrays.items()}, sizes={"out": 64})
    assert np.array_equal(results["cpu"], results["reference"])
    assert results["cpu"][0] == words[15]
