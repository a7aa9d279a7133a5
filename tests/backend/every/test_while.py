"""A `while` goes on until its condition is false: a loop of a program has at most 2^32 - 1 turns, and it has more."""

import struct

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, gid, lid, shared, u32, u64
from vyre.backends import reference
from vyre.backends.cuda.emit.coarsen import cuda_code
from vyre.conform.programs.random import Case
from vyre.foundation.ir.build import Builder
from vyre.foundation.ir.dtypes import u32 as word
from vyre.foundation.ir.nodes import InvocationId, Loop, lit
from vyre.foundation.ir.visit import walk_nodes
from vyre.foundation.language.kernel import build_program, read_source
from vyre.lower import PASSES, LowerOptions, lower
from vyre.lower.kernel_ir import show, walk

from ...support.device_backends import open_or_skip, registration_or_skip
from ...support.wgpu_raw import run_case
from ..cuda.test_cuda_text import cubin, nvrtc_or_skip

MANY = 24
"""More than a few turns, and fewer than the square of a few."""


def plain(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    turns = u32(0)
    while n > 0:
        n -= 1
        turns += 1
    out[gid.x] = turns


def jumping(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    turns = u32(0)
    while True:
        if n == 0:
            break
        n -= 1
        if n % 3 == 0:
            continue
        turns += 1
    out[gid.x] = turns


def nested(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    turns = u32(0)
    while n > 0:
        m = n
        while m > 0:
            m -= 1
            turns += 1
        n -= 1
    out[gid.x] = turns


def leaving(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    while True:
        out[gid.x] = n
        if n % 8 == 7:
            return
        n += 1


def meeting(x: In[u32], out: Out[u32]):
    """All lanes go round as often as the largest of them asks for."""
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    turns = u32(0)
    while turns < x[5]:
        barrier()
        tile[(lid.x + turns) % 8] += 1
        barrier()
        turns += 1
    out[gid.x] = tile[lid.x]


GIVEN = [0, 1, 5, 6, 23, MANY, 12, 3]
WANTED = {
    plain: GIVEN,
    jumping: [sum(k % 3 != 0 for k in range(n)) for n in GIVEN],
    nested: [n * (n + 1) // 2 for n in GIVEN],
    leaving: [n + 7 - n % 8 for n in GIVEN],
    meeting: [n + MANY for n in GIVEN],
}
INPUT = struct.pack("<8I", *GIVEN)


def program_of(fn):
    return build_program(read_source(fn, 8), {})


def unpacked(outputs):
    return list(struct.unpack("<8I", bytes(outputs[0])))


@pytest.fixture(params=[5, 0xFFFFFFFF], ids=["5 turns", "all turns"])
def turns(request, monkeypatch):
    """Of one loop of a program."""
    monkeypatch.setattr("vyre.foundation.ir.build.FOREVER", request.param)
    return request.param


@pytest.mark.parametrize("fn", WANTED, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("engine", ["scalar", "numpy"])
def test_it_does_not_end_with_the_turns_of_a_loop(engine, fn, turns):
    done = reference.run(program_of(fn), [INPUT], grid=(1, 1, 1), output_elements={"out": 8}, engine=engine)
    assert unpacked(done.outputs) == WANTED[fn]


@pytest.mark.parametrize("fn", WANTED, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("id", ["cpu", pytest.param("opencl", marks=pytest.mark.sweep)])
def test_compiled_code_goes_on_too(id, fn, turns):
    with open_or_skip(id) as backend:
        config = vyre.DispatchConfig(output_elements={"out": 8}, grid_override=(1, 1, 1))
        assert unpacked(backend.dispatch(program_of(fn), [INPUT], config)) == WANTED[fn]


@pytest.mark.sweep
@pytest.mark.parametrize("fn", WANTED, ids=lambda fn: fn.__name__)
def test_the_text_for_wgpu_goes_on_too(fn, turns):
    """On the device itself: a backend refuses loops that it cannot count where the device has a limit."""
    case = Case(program_of(fn), (INPUT,), (1, 1, 1), {"out": 8})
    assert unpacked(run_case(case)) == WANTED[fn]


def test_nvrtc_takes_the_text():
    nvrtc_or_skip()
    for fn in WANTED:
        kernel = lower(program_of(fn))
        assert ("while (" in cuda_code(kernel).text) == (fn not in (leaving, meeting))
        assert cubin(kernel, "sm_90")


# ---- two loops become one -------------------------------------------------------------------------------------------


def loops(program, off=()):
    return [
        (i.endless, i.live.name) for i in walk(lower(program, LowerOptions(off=frozenset(off))).body) if i.op == "loop"
    ]


def test_two_loops_with_one_flag_become_one_without_a_count():
    assert loops(program_of(plain)) == [(True, "go")]
    assert loops(program_of(nested)) == [(True, "go"), (True, "go_1")]
    assert "endless while go" in show(lower(program_of(plain)))
    assert loops(program_of(plain), PASSES) == [(False, "go")] * 2
    assert loops(program_of(leaving)) == [(False, "go")] * 2  # lanes that leave may need the count
    for name in PASSES:
        assert loops(program_of(plain), {name})[0][0] == (name not in ("dce", "endless"))


def counting(again=0xFFFFFFFF, turn=0xFFFFFFFF, first=0, use="", other=False):
    b = Builder(8)
    out = b.read_write("out", word)
    go, more = b.let("go", True), b.let("more", True)
    with (
        b.loop("again", first, again) as outer,
        b.if_(go),
        b.loop("turn", 0, turn) as inner,
        b.if_(more if other else go),
    ):
        b.store(out, InvocationId(0), {"again": outer, "turn": inner}.get(use, lit(1)))
        b.assign(more, False)
        b.assign(go, False)
    return b.program()


@pytest.mark.parametrize(
    "how",
    [{"again": 7}, {"turn": 0xFFFFFFFE}, {"first": 1}, {"use": "again"}, {"use": "turn"}, {"other": True}],
    ids=str,
)
def test_loops_whose_count_matters_keep_it(how):
    assert loops(counting()) == [(True, "go")]
    assert not any(endless for endless, _ in loops(counting(**how)))


def test_a_program_shows_both_loops():
    nodes = [n for n in walk_nodes(program_of(plain).entry) if isinstance(n, Loop)]
    assert [n.stop for n in nodes] == [lit(0xFFFFFFFF)] * 2


# ---- for real -------------------------------------------------------------------------------------------------------


def random_numbers(state: InOut[u32], count: In[u64]):
    s = state[0]
    n = u64(0)
    while n < count[0]:
        s = s * 1664525 + 1013904223
        n += 1
    state[0] = s


@pytest.mark.sweep
def test_more_turns_than_a_word_counts():
    """The generator has a period of 2^32: five numbers more are its first five."""
    s = 12345
    for _ in range(5):
        s = (s * 1664525 + 1013904223) % (1 << 32)
    state = np.array([12345], np.uint32)
    kernel = vyre.kernel(workgroup=1)(random_numbers).on("cpu")
    kernel(state, np.array([(1 << 32) + 5], np.uint64), domain=1)
    assert state[0] == s


@vyre.kernel(workgroup=16)
def stays(x: In[u32], out: Out[u32]):
    y = x[gid.x]
    while y != 5:
        y = y * 1
    out[gid.x] = y


@vyre.kernel(workgroup=16)
def never_comes_behind(x: In[u32], out: Out[u32]):
    y = x[gid.x]
    while y != 1:
        y = y * 3
    out[gid.x] = 7


@pytest.mark.parametrize("kernel", [stays, never_comes_behind], ids=lambda k: k.__name__)
@pytest.mark.parametrize("backend", ["reference", "cpu", "opencl"])
@pytest.mark.check
def test_what_stands_behind_a_while_that_never_ends_is_not_reached(backend, kernel):
    """Also where nothing that it computes is used."""
    registration_or_skip(backend)
    with pytest.raises(vyre.DeadlineExceeded):
        kernel.on(backend)(np.zeros(16, np.uint32), config=vyre.DispatchConfig(timeout=1.0))
