"""Admission: a program runs here, could run elsewhere, or is wrong everywhere; the text says which, where and why."""

import pickle
import random
from dataclasses import replace

import pytest

from vyre.conform.programs.random import random_program
from vyre.driver.admission import program as admission
from vyre.driver.admission.program import (
    PROFILES,
    admit,
    capabilities_of,
    validate_program_for_backend,
    why_not,
)
from vyre.driver.contract import BackendCapability, VyreBackend, core_supported_ops
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.selection.registry import acquire
from vyre.errors import InvalidProgram, UnsupportedFeature
from vyre.foundation.check.requirements import op_ids
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import bf16, f16, f64, i64, u32, u64
from vyre.foundation.ir.nodes import (
    AllGather,
    AllReduce,
    AsyncLoad,
    AsyncStore,
    AsyncWait,
    Atomic,
    Barrier,
    Block,
    Broadcast,
    Call,
    Cast,
    IndirectDispatch,
    InvocationId,
    Let,
    LocalId,
    Opaque,
    OpaqueNode,
    ReduceScatter,
    Region,
    Return,
    Store,
    SubgroupLocalId,
    Trap,
    WorkgroupId,
    lit,
)
from vyre.foundation.ir.ops import LITERAL_IDS, AtomicOp, CollectiveOp, Ordering
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup
from vyre.foundation.ir.report import CAPABILITY_BITS

ROOMY = BackendCapability(
    max_workgroup_size=(64, 64, 64),
    max_invocations_per_workgroup=256,
    max_shared_bytes=1024,
    max_storage_buffer_bytes=0,
)
OUT = output("out", 0, u32, 4)


class Mock(VyreBackend, contract=1):
    id = "mock"

    def __init__(self, capability=ROOMY, **changes):
        self.capability = replace(capability, **changes)

    def dispatch(self, program, inputs, config=None, *, out=None):
        return []


def program(*body, buffers=(OUT,), size=(1, 1, 1)):
    return Program(buffers, size, body or (Store("out", lit(0), lit(1)),))


def store(value, at=None):
    return Store("out", lit(0) if at is None else at, value)


@pytest.fixture(autouse=True)
def forget_everything():
    admission.clear()


# -- operations -------------------------------------------------------------------------------------------------------

COLLECTIVE_IDS = {f"vyre.node.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")}


@pytest.mark.row("A-OPS-1")
def test_core_operations_hold_return_and_barrier_but_no_trap_and_no_collective():
    core = core_supported_ops()
    assert {"vyre.node.return", "vyre.node.barrier"} <= core
    assert core.isdisjoint({"vyre.node.trap"} | COLLECTIVE_IDS)


@pytest.mark.row("A-OPS-2")
@pytest.mark.parametrize(
    "node, op_id",
    [
        (Let("x", lit(0)), "vyre.node.let"),
        (ir.Assign("x", lit(0)), "vyre.node.assign"),
        (Store("b", lit(0), lit(0)), "vyre.node.store"),
        (ir.If(lit(True), ()), "vyre.node.if"),
        (ir.Loop("i", lit(0), lit(1), ()), "vyre.node.loop"),
        (Return(), "vyre.node.return"),
        (Block(()), "vyre.node.block"),
        (Barrier(), "vyre.node.barrier"),
        (Region("g", ()), "vyre.node.region"),
        (IndirectDispatch("b", 0), "vyre.node.indirect_dispatch"),
        (AsyncLoad("a", "b", lit(0), lit(0), "t"), "vyre.node.async_load"),
        (AsyncStore("a", "b", lit(0), lit(0), "t"), "vyre.node.async_store"),
        (AsyncWait("t"), "vyre.node.async_wait"),
        (Trap(lit(0), "t"), "vyre.node.trap"),
        (AllReduce("b", CollectiveOp.SUM, 0), "vyre.node.all_reduce"),
        (AllGather("a", "b", 0), "vyre.node.all_gather"),
        (ReduceScatter("a", "b", CollectiveOp.SUM, 0), "vyre.node.reduce_scatter"),
        (Broadcast("b", 0, 0), "vyre.node.broadcast"),
        (OpaqueNode("my.node", b""), "my.node"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_ids_of_statements_never_change(node, op_id):
    assert op_ids(node)[0] == op_id


@pytest.mark.row("A-OPS-3")
def test_a_default_backend_refuses_a_collective_by_its_id():
    p = program(AllReduce("b", CollectiveOp.SUM, 0), buffers=(read_write("b", 0, u32),))
    with pytest.raises(UnsupportedFeature) as caught:
        admit(p, Mock())
    assert "vyre.node.all_reduce" in str(caught.value)
    assert "at entry.0.body.0" in str(caught.value)
    assert "Fix: " in str(caught.value)
    assert caught.value.context["backend"] == "mock"
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value


@pytest.mark.row("A-OPS-4")
def test_a_backend_without_operations_refuses_a_lone_return():
    with pytest.raises(UnsupportedFeature) as caught:
        admit(program(Return(), buffers=()), Mock(ops=frozenset()))
    assert "backend mock does not run the program; it lacks vyre.node.region, vyre.node.return:" in str(caught.value)
    assert "Fix: choose a backend whose supported_ops() holds it" in str(caught.value)


def test_every_single_missing_operation_is_refused_and_nothing_else():
    full = acquire("reference").capability
    rng = random.Random(5)
    for seed in range(40):
        p = random_program(random.Random(seed)).program
        admit(p, Mock(full))
        gone = frozenset(rng.sample(sorted(full.ops - {*LITERAL_IDS.values()}), 6))  # literals come with their type
        weak = Mock(full, ops=full.ops - gone)
        refused = why_not(p, weak)
        assert (refused is None) == gone.isdisjoint(p.ops())
        if refused is not None:
            assert all(op in refused for op in gone & p.ops())


def test_a_backend_may_know_a_call_that_others_do_not():
    p = program(store(Call("my.op", (lit(1),))))
    with pytest.raises(UnsupportedFeature, match=r"lacks my\.op.*\n.*call of 'my\.op'"):
        admit(p, Mock())
    admit(p, Mock(ops=core_supported_ops() | {"my.op"}))


def test_supported_ops_that_a_class_computes_count_like_those_of_its_record():
    class Computing(Mock):
        def supported_ops(self):
            return frozenset({*core_supported_ops(), "vyre.node.trap"})

    traps = program(Trap(lit(0), "t"))
    admit(traps, Computing())
    with pytest.raises(UnsupportedFeature, match="lacks trap"):
        admit(traps, Mock())


# -- capabilities -----------------------------------------------------------------------------------------------------

PAIR = (read_write("a", 0, u32, 4), read_write("b", 1, u32, 4))
NEEDS = {
    "subgroup": (program(store(SubgroupLocalId())), {"ops": {"vyre.subgroup_local_id"}}),
    "int64": (program(Let("x", lit(1, u64))), {"types": frozenset(("u64", "i64"))}),
    "float16": (program(Let("x", Cast(f16, lit(1.0)))), {"types": frozenset(("f16",))}),
    "bfloat16": (program(Let("x", Cast(bf16, lit(1.0)))), {"types": frozenset(("bf16",))}),
    "float64": (program(Let("x", lit(1.0, f64))), {"types": frozenset(("f64",))}),
    "trap": (program(Trap(lit(0), "t")), {"ops": {"vyre.node.trap"}}),
    "indirect": (program(IndirectDispatch("a", 0), buffers=PAIR), {"ops": {"vyre.node.indirect_dispatch"}}),
    "collectives": (program(AllGather("a", "b", 0), buffers=PAIR), {"ops": {"vyre.node.all_gather"}}),
    "async copy": (
        program(AsyncLoad("a", "b", lit(0), lit(4), "t"), AsyncWait("t"), buffers=PAIR),
        {"ops": {"vyre.node.async_load", "vyre.node.async_wait"}},
    ),
    "grid sync": (program(store(lit(1)), Barrier(Ordering.GRID_SYNC), store(lit(2))), {"grid_sync": True}),
}


def offering(**changes):
    if "ops" in changes:
        changes["ops"] = core_supported_ops() | changes["ops"]
    return Mock(**changes)


@pytest.mark.parametrize("name", NEEDS)
def test_a_capability_that_is_missing_is_named_and_one_that_is_offered_admits(name):
    p, offer = NEEDS[name]
    with pytest.raises(UnsupportedFeature) as caught:
        admit(p, Mock())
    assert f"backend mock does not run the program; it lacks {name}" in str(caught.value)
    assert caught.value.context["name"].startswith(name)
    assert "at entry.0" in str(caught.value) or "at buffers" in str(caught.value)
    admit(p, offering(**offer))


def test_the_names_cover_every_capability_but_workgroup_atomics_which_come_with_atomics():
    assert {n.replace(" ", "_") for n in NEEDS} == {*CAPABILITY_BITS} - {"workgroup_atomics"}
    shared = (OUT, workgroup("s", u32, 4))
    p = program(Let("x", Atomic(AtomicOp.ADD, "s", lit(0), lit(1))), buffers=shared)
    admit(p, Mock())
    with pytest.raises(UnsupportedFeature, match=r"lacks workgroup atomics, vyre\.atomic"):
        admit(p, Mock(ops=core_supported_ops() - {"vyre.atomic"}))


def test_native_half_floats_are_offered_without_being_listed_twice():
    assert capabilities_of(Mock(f16=True)).float16
    assert capabilities_of(Mock(bf16=True)).bfloat16
    assert not capabilities_of(Mock()).float16


def test_both_64_bit_integers_or_none():
    assert not capabilities_of(Mock(types=frozenset(("u64",)))).int64
    assert capabilities_of(Mock(types=frozenset(("u64", "i64")))).int64
    admit(program(Let("x", lit(-1, i64))), Mock(types=frozenset(("u64", "i64"))))


def test_a_capability_bit_without_the_operation_admits_nothing():
    with pytest.raises(UnsupportedFeature, match="lacks subgroup"):
        admit(NEEDS["subgroup"][0], Mock(subgroup_ops=True))


@pytest.mark.row("A-VAL-6")
def test_all_that_is_missing_is_listed_at_once():
    p = program(
        Let("a", Cast(f16, lit(1.0))),
        Let("b", lit(1.0, f64)),
        Let("c", SubgroupLocalId()),
        Let("d", lit(1, u64)),
        Trap(lit(0), "t"),
    )
    with pytest.raises(UnsupportedFeature) as caught:
        admit(p, Mock())
    assert "lacks subgroup, int64, float16, float64, trap" in str(caught.value)
    assert "and " in str(caught.value).splitlines()[-1]
    assert "more" in str(caught.value).splitlines()[-1]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", range(3))
def test_a_workgroup_axis_at_the_limit_passes_and_one_above_does_not(axis):
    def sized(n):
        return program(size=tuple(n if i == axis else 1 for i in range(3)))

    admit(sized(64), Mock())
    with pytest.raises(UnsupportedFeature, match=f"workgroup axis {axis} is 65; max is 64"):
        admit(sized(65), Mock())


def test_the_product_of_the_axes_has_its_own_limit():
    admit(program(size=(64, 4, 1)), Mock())
    with pytest.raises(UnsupportedFeature, match="260 invocations per workgroup, of which the target runs 256"):
        admit(program(size=(52, 5, 1)), Mock())


@pytest.mark.row("A-VAL-4")
def test_a_backend_that_says_nothing_runs_single_invocations():
    admit(program(), Mock(BackendCapability()))
    with pytest.raises(UnsupportedFeature, match="workgroup axis 0 is 64; max is 1"):
        admit(program(size=(64, 1, 1)), Mock(BackendCapability()))


@pytest.mark.parametrize("count, fits", [(256, True), (257, False)])
def test_workgroup_memory_is_limited(count, fits):
    p = program(store(lit(1)), buffers=(OUT, workgroup("s", u32, count)))
    assert (why_not(p, Mock()) is None) == fits
    if not fits:
        assert "1028 bytes of workgroup memory, of which the target has 1024" in why_not(p, Mock())


@pytest.mark.parametrize("limit, fits", [(16, True), (15, False), (0, True)])
def test_a_buffer_over_the_binding_limit_is_refused_where_the_limit_is_known(limit, fits):
    refused = why_not(program(), Mock(max_storage_buffer_bytes=limit))
    assert (refused is None) == fits
    if not fits:
        assert "buffer 'out' has 16 bytes; max is 15" in refused
        assert "Fix: choose a smaller workgroup or smaller buffers, or another backend" in refused


# -- the workgroup of the config --------------------------------------------------------------------------------------


def override(*size):
    return DispatchConfig(workgroup_override=size)


def test_a_program_that_knows_only_global_ids_takes_any_workgroup():
    p = program(store(lit(1), at=InvocationId(0)), size=(65, 1, 1))
    with pytest.raises(UnsupportedFeature):
        admit(p, Mock())
    admit(p, Mock(), override(64, 1, 1))
    with pytest.raises(UnsupportedFeature, match="workgroup axis 1 is 65; max is 64"):
        admit(p, Mock(), override(1, 65, 1))
    with pytest.raises(InvalidProgram, match="workgroup_override"):
        admit(p, Mock(), override(0, 1, 1))


@pytest.mark.parametrize(
    "body, buffers",
    [
        ((store(LocalId(0)),), (OUT,)),
        ((store(WorkgroupId(2)),), (OUT,)),
        ((store(lit(1)),), (OUT, workgroup("s", u32, 1))),
        ((store(lit(1)), Barrier(), store(lit(2))), (OUT,)),
        ((store(SubgroupLocalId()),), (OUT,)),
    ],
    ids=["lid", "wg", "shared", "barrier", "subgroup"],
)
def test_a_program_whose_meaning_depends_on_its_workgroup_keeps_it(body, buffers):
    full = Mock(acquire("reference").capability)
    p = program(*body, buffers=buffers, size=(4, 1, 1))
    admit(p, full)
    admit(p, full, override(4, 1, 1))
    with pytest.raises(InvalidProgram, match="workgroup_override") as caught:
        admit(p, full, override(8, 1, 1))
    assert "Fix: drop workgroup_override" in str(caught.value)


# -- wrong everywhere -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "p, code",
    [
        (program(Store("nowhere", lit(0), lit(0))), "V064"),
        (program(store(Opaque("my.kind", b""))), "V030"),
        (program(None), "V217"),
        (Program(("no buffer",), (1, 1, 1), ()), "V217"),
        (program(size=(0, 1, 1)), "V106"),
        (program(Store("nowhere", lit(0), lit(0)), Trap(lit(0), "t")), "V064"),
    ],
)
def test_a_wrong_program_is_invalid_and_not_merely_unsupported(p, code):
    with pytest.raises(InvalidProgram) as caught:
        admit(p, Mock())
    assert code in str(caught.value)
    assert [i for i in caught.value.issues if i.code == code]


def test_why_not_is_the_text_of_the_refusal():
    traps = program(Trap(lit(0), "t"))
    with pytest.raises(UnsupportedFeature) as caught:
        admit(traps, Mock())
    assert why_not(traps, Mock()) == str(caught.value)
    assert why_not(program(), Mock()) is None


def test_the_whole_check_covers_config_program_and_workgroup():
    validate_program_for_backend(Mock(), program())
    settled = validate_program_for_backend(Mock(), program(), DispatchConfig(profile="interactive"))
    assert settled.timeout == PROFILES["interactive"]["timeout"]
    for bad in (
        DispatchConfig(fixpoint_iterations=0),
        DispatchConfig(cooperative=True),
        override(65, 1, 1),
        DispatchConfig(profile="nobody"),
    ):
        with pytest.raises((InvalidProgram, UnsupportedFeature)):
            validate_program_for_backend(Mock(), program(), bad)
    with pytest.raises(UnsupportedFeature, match="lacks trap"):
        validate_program_for_backend(Mock(), program(Trap(lit(0), "t")))


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def checks(monkeypatch):
    done = []
    real = admission._check

    def counted(p, backend):
        done.append(backend.id)
        real(p, backend)

    monkeypatch.setattr(admission, "_check", counted)
    return done


@pytest.mark.row("A-VAL-7", "A-VAL-9")
def test_a_program_is_checked_once_per_capability(checks):
    p, one, same, weak = program(size=(64, 1, 1)), Mock(), Mock(), Mock(max_workgroup_size=(32, 1, 1))
    for backend in (one, one, same, one, same):
        admit(p, backend)
    assert len(checks) == 1
    admit(Program.from_wire(p.to_wire()), one)
    assert len(checks) == 1, "an equal program is known by its fingerprint"
    with pytest.raises(UnsupportedFeature, match="max is 32"):
        admit(p, weak)
    assert len(checks) == 2, "a weaker device of the same id is asked itself"
    admit(p, one)
    assert len(checks) == 2
    admission.clear()
    admit(Program.from_wire(p.to_wire()), one)
    assert len(checks) == 3


def test_a_refusal_is_not_remembered_as_success(checks):
    traps = program(Trap(lit(0), "t"))
    for _ in range(2):
        with pytest.raises(UnsupportedFeature):
            admit(traps, Mock())
    assert len(checks) == 2


@pytest.mark.row("A-VAL-5")
def test_the_memory_is_bounded_and_forgets_the_least_recent(checks, monkeypatch):
    monkeypatch.setattr(admission, "REMEMBERED", 2)
    blobs = [program(store(lit(n))).to_wire() for n in range(3)]
    for i in (0, 1, 0, 2):
        admit(Program.from_wire(blobs[i]), Mock())
    assert len(checks) == 3
    admit(Program.from_wire(blobs[0]), Mock())
    assert len(checks) == 3
    admit(Program.from_wire(blobs[1]), Mock())
    assert len(checks) == 4
    assert len(admission._admitted) == 2


def test_a_buffer_of_any_length_is_not_measured_before_it_has_one():
    p = Program((OUT, read("x", 1, u32)), (1, 1, 1), (store(ir.Load("x", lit(0))),))
    admit(p, Mock(max_storage_buffer_bytes=16))
