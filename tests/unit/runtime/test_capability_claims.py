"""Whatever a compiled backend says yes to is proved: a program needs it, its text shows it, and its bytes are right.
Whatever it says no to is refused by name before anything is lowered; or it runs, and the text shows how without it.
"""

import re
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module

import numpy as np
import pytest
from tests.contract.programs import LONG, words

import vyre
from vyre import In, Out, bf16, f16, f32, f64, gid, i64, u32, u64
from vyre.backends.reference import run
from vyre.driver.admission.program import why_not
from vyre.driver.contract import BackendCapability
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.errors import DeadlineExceeded, UnsupportedFeature, VyreError
from vyre.foundation.ir.dtypes import u32 as u32_type
from vyre.foundation.ir.nodes import AllGather, Barrier, IndirectDispatch, InvocationId, Load, Store, SubgroupReduce
from vyre.foundation.ir.ops import Ordering, ReduceOp
from vyre.foundation.ir.program import Program, read, read_write

from ...support.busy_devices import under_way
from ...support.device_backends import IDS, open_or_skip

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
def plain(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3


@vyre.kernel(workgroup=64)
def said(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        print("x", x[gid.x])
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def patient(x: In[u32], out: Out[u32]):
    """Not more turns than any device takes."""
    v = x[gid.x & 63]
    for k in range(20_000):
        v = v * 3 + k
    if gid.x < len(out):
        out[gid.x] = v


@vyre.kernel(workgroup=64)
def slow(x: In[u32], out: Out[u32]):
    """A second or less on anything, but more turns than some devices take."""
    v = x[gid.x & 63]
    for k in range(1 << 24):
        v = v * 3 + k
    if gid.x < len(out):
        out[gid.x] = v


PROGRAMS = {
    "u64": (with_u64, ("u64", "i64"), "int64"),
    "i64": (with_i64, ("u64", "i64"), "int64"),
    "f64": (with_f64, ("f64",), "float64"),
    "f16": (with_f16, ("f16",), "float16"),
    "bf16": (with_bf16, ("bf16",), "bfloat16"),
}
"""Type -> a program that needs it, the types without which it cannot be had, what a refusal calls it."""
ACROSS = Program(
    [read_write("n", 0, u32_type), read_write("out", 1, u32_type)],
    (4, 1, 1),
    [Store("n", GID, GID), Barrier(Ordering.GRID_SYNC), Store("out", GID, Load("n", GID ^ 4))],
)
SUBGROUP = Program([read_write("n", 0, u32_type)], (32, 1, 1), [Store("n", GID, SubgroupReduce(ReduceOp.ADD, GID))])
INDIRECT = Program(
    [read("at", 0, u32_type), read_write("n", 1, u32_type)],
    (4, 1, 1),
    [IndirectDispatch("at", 0), Store("n", GID, GID + 1)],
)
GATHERED = Program([read("x", 0, u32_type), read_write("n", 1, u32_type)], (4, 1, 1), [AllGather("x", "n", 0)])

SHOWN = {
    "cpu": {
        "u64": r"mul (<\d+ x )?i64",
        "i64": r"ashr (<\d+ x )?i64",
        "f64": r"fdiv (<\d+ x )?double",
        "f16": r"store i16|store .*<\d+ x i16>|v\d+i16",
        "bf16": r"store i16|store .*<\d+ x i16>|v\d+i16",
    },
    "cuda": {
        "u64": r"\(ulong\)\w+ \* 4886718345ull",
        "i64": r"= mul_i64\(\(long\)\w+, -4886718345ll\) >> 7ull",
        "f64": r"\(double\)\w+ / 3\.0",
        "f16": r"= store_f16\(.*round_f16\(",
        "bf16": r"= store_bf16\(.*round_bf16\(",
    },
    "opencl": {
        "u64": r"\(ulong\)\w+ \* 4886718345ul",
        "i64": r"= mul_i64\(\(long\)\w+, -4886718345l\) >> 7ul",
        "f64": r"\(double\)\w+ / 3\.0|div_f64\(\(double\)\w+, 3\.0\)",
        "f16": r"= store_f16\(.*round_f16\(",
        "bf16": r"= store_bf16\(.*round_bf16\(",
    },
    "wgpu": {
        "u64": r"= mul_u64\(",
        "i64": r"= shr_i64\(",
        "f64": r"\bf64\b",
        "f16": r"round_f16\((?s:.*)store_f16\((quiet_f32|v\d+\))",
        "bf16": r"round_bf16\((?s:.*)store_bf16\((quiet_f32|v\d+\))",
    },
}
"""What the text of such a program must show, native or emulated."""
NATIVE = {
    "cpu": {
        "f16": r"fdiv (<\d+ x )?half",
        "bf16": r"fdiv (<\d+ x )?bfloat",
        "subgroup_ops": r"shuffle\.sync|subgroup",
    },
    "cuda": {
        "f16": r"(add|mul|fma)\.rn(\.ftz)?\.f16",
        "bf16": r"(add|mul|fma)\.rn(\.ftz)?\.bf16",
        "subgroup_ops": r"__(shfl|shfl_xor|ballot)_sync\(",
        "grid_sync": r"atomicAdd\(arrived(?s:.*)grid_barrier\(arrived\);",
    },
    "opencl": {"f16": r"\bhalf\b", "bf16": r"bfloat", "subgroup_ops": r"\bsub_group_|shuffle|shfl"},
    "wgpu": {"f16": r"\bf16\b", "bf16": r"bfloat", "subgroup_ops": r"enable subgroups|\bsubgroup(Add|Shuffle)"},
}
"""What only a device that has it itself is told."""
NEEDING = {"f16": with_f16.program, "bf16": with_bf16.program, "subgroup_ops": SUBGROUP}

FLAGS = [f.name for f in fields(BackendCapability) if f.type == "bool"]
CLAIMS = [*FLAGS, *(f"type {t}" for t in PROGRAMS), "deadline cooperative", "deadline host"]


def claims(capability):
    """Everything that the record says yes to, by name."""
    found = [name for name in FLAGS if getattr(capability, name)]
    return {*found, *(f"type {t}" for t in capability.types), f"deadline {capability.deadline}"} - {"deadline none"}


def text_of(backend, program, *, poll=False):
    if backend.id == "cpu":
        build = import_module("vyre.backends.cpu.build")
        return build.kernel_text(program, backend.host, backend.switches, poll=poll)[1].text
    return backend.build(backend.session().device, program, poll=poll).source


def like(backend, capability):
    """A backend that cannot run and only says what it has."""
    found = object.__new__(type(backend))
    found.capability = capability
    return found


def same_as_the_reference(backend, program):
    x = (np.arange(N, dtype=np.uint32) * 40503) & 0xFFFF
    expected = run(program, [x], output_elements={"out": N}, grid=(2, 1, 1)).outputs
    assert [bytes(o) for o in backend.dispatch(program, [x])] == expected


# ---- yes ------------------------------------------------------------------------------------------------------------


def prove(backend, claim):
    """Raise unless the claim is true."""
    word, _, rest = claim.partition(" ")
    if word == "type":
        kernel, lacking, _ = PROGRAMS[rest]
        without = replace(backend.capability, types=backend.capability.types - set(lacking), f16=False, bf16=False)
        assert why_not(kernel.program, like(backend, without)) is not None, f"the program does not need {claim}"
        assert re.search(SHOWN[backend.id][rest], text_of(backend, kernel.program)), f"the text does not show {claim}"
        same_as_the_reference(backend, kernel.program)
    elif claim in NEEDING:
        program = NEEDING[claim]
        assert re.search(NATIVE[backend.id][claim], text_of(backend, program)), f"the text does not show {claim}"
        if claim != "subgroup_ops":
            same_as_the_reference(backend, program)
    elif word == "deadline":
        prove_deadline(backend, rest)
    elif claim == "async_compute":
        prove_async(backend)
    elif claim == "grid_sync":
        assert why_not(ACROSS, backend) is None
        shown = re.search(NATIVE[backend.id]["grid_sync"], text_of(backend, ACROSS))
        assert shown, "the text does not show a barrier of the grid"
        found = backend.dispatch(ACROSS, [bytes(32), bytes(32)], DispatchConfig(cooperative=True))[1]
        assert np.frombuffer(found, np.uint32).tolist() == [k ^ 4 for k in range(8)]
    elif claim == "indirect_dispatch":
        assert re.search(r"indirect", text_of(backend, INDIRECT)), "the host takes the grid"
    elif claim == "dispatches":
        same_as_the_reference(backend, plain.program)
    elif claim == "host_grid_sync_split":
        found = guarded(backend).dispatch(ACROSS, [bytes(32), bytes(32)])[1]
        assert np.frombuffer(found, np.uint32).tolist() == [k ^ 4 for k in range(8)]
    elif claim == "prints":
        same_as_the_reference(backend, said.program)
    else:
        raise AssertionError(f"there is no proof of {claim}")


def prove_deadline(backend, how):
    """`cooperative`: the code looks at a clock or a flag, and the device is as good as before. `host`: it does not."""
    polled, unpolled = (text_of(backend, slow.program, poll=poll) for poll in (True, False))
    assert (polled != unpolled) is (how == "cooperative")
    with pytest.raises(DeadlineExceeded):
        take_too_long(guarded(backend), how)
    assert how == "host" or not backend.device_lost()
    same_as_the_reference(guarded(backend), plain.program)


def take_too_long(backend, how):
    for program in (LONG, slow.program, patient.program):
        with suppress(UnsupportedFeature):
            backend.compile_native(program, DispatchConfig(timeout=60))
    if how == "cooperative":
        backend.dispatch(LONG, [words(0)], DispatchConfig(timeout=0.05))
        return
    x = np.arange(64, dtype=np.uint32)
    try:
        backend.dispatch(slow.program, [x], DispatchConfig(timeout=0.01))
    except UnsupportedFeature:  # too many turns for this device: as many, by many invocations
        backend.dispatch(patient.program, [x], DispatchConfig(timeout=0.1, output_elements={"out": 1 << 21}))


def prove_async(backend):
    """Work that takes a while is not done when the call returns."""
    x = np.arange(64, dtype=np.uint32)
    backend.dispatch(patient.program, [x])  # not to be counted: the first one compiles

    def start(bits):
        config = DispatchConfig(output_elements={"out": 1 << bits})
        return backend.dispatch_async(patient.program, [x], config), config

    pending, config = under_way(start, range(8, 28, 2))
    assert bytes(pending.result()[0]) == bytes(backend.dispatch(patient.program, [x], config)[0])
    assert pending.is_ready()


# ---- no -------------------------------------------------------------------------------------------------------------


def refuse(backend, claim, monkeypatch):
    """Raise unless what is not there is refused by name, or emulated."""
    word, _, rest = claim.partition(" ")

    def compile_native(*_):
        raise AssertionError("it was compiled")

    if claim in NEEDING:
        program = NEEDING[claim]
        assert not re.search(NATIVE[backend.id][claim], text_of(backend, program)), f"{claim} is there after all"
        return
    if claim == "indirect_dispatch":
        found = backend.dispatch(INDIRECT, [words(2, 1, 1), bytes(64)])[0]
        assert np.frombuffer(found, np.uint32).tolist() == [*range(1, 9), *[0] * 8], "the host takes the grid"
        return
    monkeypatch.setattr(backend, "compile_native", compile_native)
    x = np.zeros(N, np.uint32)
    if word == "type":
        kernel, _, name = PROGRAMS[rest]
        attempt = kernel.program, [x], DispatchConfig()
    else:
        attempt, name = {
            "grid_sync": ((plain.program, [x], DispatchConfig(cooperative=True)), "grid-wide synchronisation"),
            "prints": ((said.program, [x, bytes(1 << 18)], DispatchConfig()), "limits"),
            "speculation": ((plain.program, [x], DispatchConfig(speculation="force")), "speculation"),
            "persistent_threads": (
                (plain.program, [x], DispatchConfig(persistent_thread="force")),
                "persistent threads",
            ),
            "distributed_collectives": ((GATHERED, [x, x], DispatchConfig()), "all_gather"),
            "host_grid_sync_split": ((ACROSS, [bytes(32), bytes(32)], DispatchConfig()), "grid sync"),
        }[claim]
    with pytest.raises(UnsupportedFeature, match="Fix: ") as caught:
        guarded(backend).dispatch(*attempt)
    assert name in caught.value.context["name"]


UNASKED = {"tensor_cores", "distributed", "deadline cooperative", "deadline host", "dispatches", "async_compute"}
"""What no program and no config can ask for, so that nothing is to be refused."""


# ---- the tests ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=("cpu", *IDS))
def backend(request):
    opened = open_or_skip(request.param)
    yield opened
    opened.shutdown()


@pytest.fixture
def fresh(backend):
    """One whose record a test may change: nobody has looked at it yet."""
    opened = open_or_skip(backend.id)
    yield opened
    opened.shutdown()


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_yes_is_proved_and_a_no_is_refused(backend, claim, monkeypatch):
    if claim in claims(backend.capability):
        prove(backend, claim)
    elif claim not in UNASKED:
        refuse(backend, claim, monkeypatch)


def test_the_record_claims_nothing_else(backend):
    assert claims(backend.capability) <= set(CLAIMS)


@pytest.mark.parametrize("t", PROGRAMS)
def test_without_its_type_a_program_is_refused(fresh, t, monkeypatch):
    _, lacking, _ = PROGRAMS[t]
    types = fresh.capability.types - set(lacking)
    fresh.capability = replace(fresh.capability, types=types, f16=False, bf16=False)
    refuse(fresh, f"type {t}", monkeypatch)


def test_without_a_split_a_barrier_of_the_whole_grid_is_refused(fresh, monkeypatch):
    fresh.capability = replace(fresh.capability, host_grid_sync_split=False, grid_sync=False)
    refuse(fresh, "host_grid_sync_split", monkeypatch)


# a kernel that prints stores words, as any other: whether a backend offers it is a choice
@pytest.mark.parametrize("claim", [*(c for c in CLAIMS if c != "prints"), "type u32x4"])
def test_a_yes_that_is_not_true_is_found_out(fresh, claim):
    """A record that says yes to anything more does not pass: the proofs are real."""
    word, _, rest = claim.partition(" ")
    if claim in claims(fresh.capability):
        return
    change = {word: True}
    if word == "type":
        change = {"types": fresh.capability.types | {rest}}
    elif word == "deadline":
        change = {"deadline": rest}
    fresh.capability = replace(fresh.capability, **change)
    assert claim in claims(fresh.capability)
    with pytest.raises((AssertionError, LookupError, VyreError)):
        prove(fresh, claim)
