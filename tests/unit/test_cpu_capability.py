"""Whatever the cpu backend says yes to is proved: a program needs it, its text shows it, and its bytes are right."""

import re
from dataclasses import fields, replace

import numpy as np
import pytest
from tests.contract.programs import LONG, words

import vyre
from vyre import In, Out, bf16, f16, f32, f64, gid, i64, u32, u64
from vyre.backends.cpu import CpuBackend
from vyre.backends.cpu.build import kernel_text
from vyre.backends.reference import run
from vyre.driver.admission import why_not
from vyre.driver.contract import BackendCapability
from vyre.driver.values import DispatchConfig
from vyre.errors import DeadlineExceeded, VyreError
from vyre.foundation.dtypes import u32 as u32_type
from vyre.foundation.ir import Barrier, InvocationId, Load, Store, SubgroupReduce
from vyre.foundation.ops import Ordering, ReduceOp
from vyre.foundation.program import Program, read_write

N = 100
GID = InvocationId(0)


@vyre.kernel(workgroup=64)
def with_u64(x: In[u32], out: Out[u64]):
    if gid.x < len(out):
        out[gid.x] = u64(x[gid.x]) * u64(0x123456789)


@vyre.kernel(workgroup=64)
def with_i64(x: In[u32], out: Out[i64]):
    if gid.x < len(out):
        out[gid.x] = (i64(x[gid.x]) * i64(-0x123456789)) >> 7


@vyre.kernel(workgroup=64)
def with_f64(x: In[u32], out: Out[f64]):
    if gid.x < len(out):
        out[gid.x] = f64(x[gid.x]) / f64(3.0)


@vyre.kernel(workgroup=64)
def with_f16(x: In[u32], out: Out[f16]):
    if gid.x < len(out):
        out[gid.x] = f16(f32(x[gid.x])) / f16(3.0)


@vyre.kernel(workgroup=64)
def with_bf16(x: In[u32], out: Out[bf16]):
    if gid.x < len(out):
        out[gid.x] = bf16(f32(x[gid.x])) / bf16(3.0)


@vyre.kernel(workgroup=64)
def long_way(x: In[u32], out: Out[u32]):
    v = x[gid.x]
    for k in range(1 << 26):
        v = v * 3 + k
    out[gid.x] = v


TYPES = {
    "u64": (with_u64, r"mul (<\d+ x )?i64", ("u64", "i64")),
    "i64": (with_i64, r"ashr (<\d+ x )?i64", ("u64", "i64")),
    "f64": (with_f64, r"fdiv (<\d+ x )?double", ("f64",)),
    "f16": (with_f16, r"store i16|store .*<\d+ x i16>|v\d+i16", ("f16",)),
    "bf16": (with_bf16, r"store i16|store .*<\d+ x i16>|v\d+i16", ("bf16",)),
}
NATIVE = {"f16": (with_f16, r"fdiv (<\d+ x )?half"), "bf16": (with_bf16, r"fdiv (<\d+ x )?bfloat")}
ACROSS = Program(
    [read_write("n", 0, u32_type)],
    (4, 1, 1),
    [Store("n", GID, GID), Barrier(Ordering.GRID_SYNC), Store("n", GID, Load("n", GID ^ 4))],
)
SUBGROUP = Program([read_write("n", 0, u32_type)], (32, 1, 1), [Store("n", GID, SubgroupReduce(ReduceOp.ADD, GID))])


def claims(capability):
    """Everything that the record says yes to, by name."""
    flags = [f.name for f in fields(capability) if getattr(capability, f.name) is True]
    deadlines = [] if capability.deadline == "none" else [f"deadline {capability.deadline}"]
    return [*flags, *(f"type {t}" for t in sorted(capability.types)), *deadlines]


def text_of(backend, program, *, poll=False):
    return kernel_text(program, backend.host, backend.switches, poll=poll)[1]


def prove(backend, claim):
    """Raise unless the claim is true."""
    word, _, rest = claim.partition(" ")
    if word == "type":
        kernel, shown, lacking = TYPES[rest]
        assert re.search(shown, text_of(backend, kernel.program)), f"the text does not show {claim}"
        without = replace(backend.capability, types=backend.capability.types - set(lacking), f16=False, bf16=False)
        assert why_not(kernel.program, like(without)) is not None, f"the program does not need {claim}"
        same_as_the_reference(backend, kernel.program)
    elif claim in NATIVE:
        kernel, shown = NATIVE[claim]
        assert re.search(shown, text_of(backend, kernel.program)), f"the text does not show {claim}"
        same_as_the_reference(backend, kernel.program)
    elif claim == "deadline cooperative":
        polled, plain = (text_of(backend, LONG, poll=poll) for poll in (True, False))
        assert polled.count("load atomic") > plain.count("load atomic")
        with pytest.raises(DeadlineExceeded):
            backend.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.05))
    elif claim == "async_compute":
        x = np.arange(64, dtype=np.uint32)
        pending = backend.dispatch_async(long_way.program, [x], DispatchConfig(timeout=60))
        assert not pending.is_ready()
        pending.result()
        assert pending.is_ready()
    elif claim == "grid_sync":
        assert why_not(ACROSS, backend) is None
        text_of(backend, ACROSS)
    elif claim == "subgroup_ops":
        assert re.search(r"shuffle\.sync|subgroup", text_of(backend, SUBGROUP))
    elif claim == "dispatches":
        same_as_the_reference(backend, with_f64.program)
    elif claim == "host_grid_sync_split":
        from vyre.driver.guard import guarded

        found = guarded(backend).dispatch(ACROSS, [bytes(32)])[0]
        assert np.frombuffer(found, np.uint32).tolist() == [k ^ 4 for k in range(8)]
    else:
        raise AssertionError(f"nobody knows how to prove {claim}")


def like(capability):
    """A backend that cannot run and only says what it has."""
    found = object.__new__(CpuBackend)
    found.capability = capability
    return found


def same_as_the_reference(backend, program):
    x = (np.arange(N, dtype=np.uint32) * 40503) & 0xFFFF
    expected = run(program, [x], output_elements={"out": N}, grid=(2, 1, 1)).outputs
    assert [bytes(o) for o in backend.dispatch(program, [x])] == expected


@pytest.fixture(scope="module")
def backend():
    made = CpuBackend(threads=2)
    yield made
    made.shutdown()


@pytest.mark.parametrize("claim", claims(CpuBackend().capability))
def test_every_claim_is_true(backend, claim):
    prove(backend, claim)


@pytest.mark.parametrize(
    "change",
    [{name: True} for name in (f.name for f in fields(BackendCapability) if f.type == "bool")]
    + [{"types": frozenset(("u32x4",))}, {"deadline": "host"}],
    ids=str,
)
def test_a_claim_that_is_not_true_is_found_out(change):
    """A record that says yes to anything more does not pass: the proofs are real."""
    true = CpuBackend(threads=2)
    honest = set(claims(true.capability))
    true.capability = replace(true.capability, **change)
    (new,) = set(claims(true.capability)) - honest or (None,)
    if new is not None:
        with pytest.raises((AssertionError, KeyError, VyreError)):
            prove(true, new)
    else:
        assert honest >= set(claims(true.capability))
    true.shutdown()
