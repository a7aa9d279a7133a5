"""A capability is a promise: what a backend says yes to runs, and what it has not is refused before it starts."""

import ast
import json
import os
from pathlib import Path

import pytest

from vyre.driver.admission.program import why_not
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import registered_backends
from vyre.errors import VyreError
from vyre.foundation.ir.dtypes import bf16, f16, f64, i64, u32, u64
from vyre.foundation.ir.nodes import (
    Barrier,
    BinOp,
    Call,
    Cast,
    InvocationId,
    Load,
    Opaque,
    Store,
    SubgroupSize,
    Trap,
    lit,
)
from vyre.foundation.ir.ops import BinaryOp, Ordering
from vyre.foundation.ir.program import Program, read, read_write, write_only

from .conftest import GAPS, required_backends
from .doubles import MockBackend
from .programs import ADD, unwords, words

GID = InvocationId(0)
OUT = write_only("out", 1, u32)


def storing(value):
    return Program([read("x", 0, u32), OUT], (4, 1, 1), [Store("out", GID, value)])


def through(t):
    """u32 to `t` and back."""
    return storing(Cast(u32, Cast(t, Load("x", GID))))


def across_the_grid():
    """Every invocation reads what another workgroup wrote before the grid-wide barrier."""
    seen = Load("n", BinOp(BinaryOp.BIT_XOR, GID, lit(4)))
    return Program(
        [read("x", 0, u32), OUT, read_write("n", 2, u32)],
        (4, 1, 1),
        [Store("n", GID, Load("x", GID)), Barrier(Ordering.GRID_SYNC), Store("out", GID, seen)],
    )


FEATURES = {
    "grid-wide barriers": across_the_grid(),
    "f16": through(f16),
    "bf16": through(bf16),
    "f64": through(f64),
    "u64": through(u64),
    "i64": through(i64),
    "subgroups": storing(SubgroupSize()),
    "traps": Program([read("x", 0, u32), OUT], (4, 1, 1), [Trap(lit(0), "never")]),
    "a call": storing(Call("someone.else", (lit(1),))),
    "an extension": storing(Opaque("someone.elses", b"")),
}


@pytest.mark.row("A-BE-13")
@pytest.mark.parametrize("feature", FEATURES)
def test_a_program_is_either_admitted_or_refused_before_it_starts(backend, feature):
    program, inputs, config = FEATURES[feature], [words(1, 2, 3, 4)], DispatchConfig(output_elements={"out": 4})
    if feature == "grid-wide barriers":
        inputs, config = [words(0, 0, 0, 0, 1, 2, 3, 4), words(*[9] * 8)], DispatchConfig(output_elements={"out": 8})
    why = why_not(program, backend)
    if why is not None:
        with pytest.raises(VyreError, match="Fix: "):
            backend.dispatch(program, inputs, config)
        with pytest.raises(VyreError, match="Fix: "):
            backend.compile_native(program, config)
    elif feature != "traps":
        expected = [32] * 4 if feature == "subgroups" else [1, 2, 3, 4]
        assert unwords(backend.dispatch(program, inputs, config)[0])[:4] == expected


@pytest.mark.row("A-BE-13")
@pytest.mark.parametrize("feature", FEATURES)
def test_a_minimal_backend_admits_none_of_it(feature):
    assert why_not(FEATURES[feature], MockBackend()) is not None


@pytest.mark.row("A-BE-13")
def test_a_native_feature_is_also_an_admitted_one(backend):
    for query, feature in {
        "supports_f16": "f16",
        "supports_bf16": "bf16",
        "supports_subgroup_ops": "subgroups",
    }.items():
        if getattr(backend, query):
            assert why_not(FEATURES[feature], backend) is None


def test_what_every_backend_runs_is_run(backend):
    from vyre.driver.contract import core_supported_ops

    assert backend.supported_ops() >= core_supported_ops()
    assert why_not(ADD, backend) is None


def test_limits_are_real_numbers(backend):
    x, y, z = backend.max_workgroup_size
    assert min(x, y, z, backend.max_workgroups_per_dimension) >= 1
    assert 1 <= backend.max_invocations_per_workgroup <= x * y * z
    assert backend.max_storage_buffer_bytes >= 0
    assert backend.subgroup_size is None or backend.subgroup_size >= 1
    assert backend.deadline in ("none", "cooperative", "host")


def test_a_workgroup_beyond_the_limit_is_refused(backend):
    x = backend.max_workgroup_size[0]
    program = Program([OUT], (x + 1, 1, 1), [Store("out", GID, lit(1))])
    with pytest.raises(VyreError, match=rf"{x + 1}.*Fix: "):
        backend.dispatch(program, [], DispatchConfig(output_elements={"out": 4}))


def test_the_capability_record_is_frozen_data(backend):
    record = backend.capability
    with pytest.raises(AttributeError):
        record.f16 = True
    json.loads(record.digest())
    assert record.dispatches


def test_the_reference_says_what_it_has():
    from vyre.driver.selection.registry import acquire

    backend = acquire("reference")
    assert not backend.supports_subgroup_ops
    assert why_not(FEATURES["subgroups"], backend) is None  # logical subgroups, without native ones
    assert not backend.supports_indirect_dispatch
    assert backend.deadline == "cooperative"


# ---- the suite itself -----------------------------------------------------------------------------------------------


def test_required_backends_are_registered():
    assert required_backends() <= {r.id for r in registered_backends()}


def test_gaps_name_backends_and_tests_that_exist():
    tests = {
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert {test for _, test in GAPS} <= tests
    assert {id for id, _ in GAPS} <= {r.id for r in registered_backends()}


def test_a_required_backend_that_is_missing_fails_and_another_is_skipped(monkeypatch):
    from vyre.driver.contract import BackendRegistration
    from vyre.driver.selection.registry import isolated

    from .conftest import open_or_skip

    with isolated(BackendRegistration(id="absent", open=MockBackend, unavailable=lambda: "no such device")):
        monkeypatch.setitem(os.environ, "VYRE_REQUIRE_BACKENDS", "other,absent")
        with pytest.raises(pytest.fail.Exception, match="absent is required and not available: no such device"):
            open_or_skip("absent")
        monkeypatch.setitem(os.environ, "VYRE_REQUIRE_BACKENDS", "")
        with pytest.raises(pytest.skip.Exception, match="absent: no such device"):
            open_or_skip("absent")
