"""What a backend gets for nothing, what it may override, and what the contract refuses."""

import dataclasses
import inspect
import threading
import typing

import pytest

from vyre.driver import contract
from vyre.driver.contract import (
    CONTRACT_VERSION,
    BackendCapability,
    BackendPrecedence,
    CompiledPipeline,
    PendingDispatch,
    ReadyPending,
    VyreBackend,
    core_supported_ops,
)
from vyre.driver.contract.capability import FACTS
from vyre.driver.contract.profile import DeviceProfile, DeviceTimingQuality
from vyre.driver.contract.values import Dims, DispatchConfig, HostResource, ResidentReadRange, TimedDispatchResult
from vyre.driver.pipeline.compiler import pipelines_of
from vyre.errors import DispatchFailed, UnsupportedFeature
from vyre.foundation.ir.program import Program

from .doubles import FULL, FullBackend, MockBackend, echo
from .programs import ADD

EMPTY = Program.empty()
QUERIES = {
    "supports_subgroup_ops": False,
    "supports_f16": False,
    "supports_bf16": False,
    "supports_tensor_cores": False,
    "supports_async_compute": False,
    "supports_indirect_dispatch": False,
    "supports_grid_sync": False,
    "supports_speculation": False,
    "supports_persistent_threads": False,
    "supports_distributed_collectives": False,
    "is_distributed": False,
    "allows_host_grid_sync_split": True,
    "subgroup_size": None,
    "max_workgroup_size": (1, 1, 1),
    "max_workgroups_per_dimension": 1,
    "max_invocations_per_workgroup": 1,
    "max_storage_buffer_bytes": 0,
    "deadline": "none",
}


# ---- defaults -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-BE-1")
def test_a_minimal_backend_promises_nothing():
    backend = MockBackend()
    assert {name: getattr(backend, name) for name in QUERIES} == QUERIES
    assert backend.version == "unspecified"
    assert backend.supported_ops() == core_supported_ops()
    assert backend.device_lost() is False
    assert backend.metrics() == {}
    assert backend.pipeline_cache_snapshot() is None


@pytest.mark.row("A-BE-1")
def test_every_query_of_the_contract_is_in_the_table():
    properties = {n for n, member in vars(VyreBackend).items() if isinstance(member, property)}
    assert properties - {"id"} == set(QUERIES)


def test_a_query_is_documented_and_typed_by_the_field_of_the_record_that_answers_it():
    kinds = {f.name: f.type for f in dataclasses.fields(BackendCapability)}
    assert set(QUERIES) == set(contract.backend.QUERIES)
    for name, fact in contract.backend.QUERIES.items():
        query = getattr(VyreBackend, name)
        assert query.__doc__.lower() == f"{FACTS[fact].doc}.".lower()
        kind = "int" if name == "max_invocations_per_workgroup" else kinds[fact]
        assert inspect.get_annotations(query.fget) == {"return": kind}
        (stated,) = typing.get_args(query.__orig_class__)
        assert (
            (getattr(stated, "__forward_arg__", None) or stated.__name__) == kind if kind != "Dims" else stated is Dims
        )


def test_every_fact_of_the_record_is_documented():
    assert list(FACTS) == [f.name for f in dataclasses.fields(BackendCapability)]
    for name, fact in FACTS.items():
        assert f"{name}: {fact.doc}" in BackendCapability.__doc__


@pytest.mark.row("A-BE-2")
def test_lifecycle_hooks_of_a_minimal_backend_do_nothing():
    backend = MockBackend()
    before = vars(backend).copy()
    assert (backend.prepare(), backend.flush(), backend.shutdown(), backend.shutdown()) == (None,) * 4
    assert vars(backend) == before
    with pytest.raises(UnsupportedFeature, match=r"backend mock has no device recovery .*Fix: ") as e:
        backend.try_recover()
    assert e.value.context == {"name": "device recovery", "backend": "mock"}


@pytest.mark.row("A-BE-4")
def test_a_minimal_backend_compiles_nothing():
    assert MockBackend().compile_native(EMPTY, DispatchConfig()) is None


@pytest.mark.row("A-BE-6")
def test_borrowed_dispatch_is_dispatch_by_default():
    class Recording(MockBackend):
        def dispatch(self, *args, **options):
            self.seen = args, options
            return [b"result"]

    backend, config, out = Recording(), DispatchConfig(label="here"), [bytearray(6)]
    assert backend.dispatch_borrowed(EMPTY, [b"abc"], config, out=out) == [b"result"]
    assert backend.seen == ((EMPTY, [b"abc"], config), {"out": out})


def test_timed_dispatch_measures_the_host_by_default():
    timed = MockBackend().dispatch_timed(EMPTY, [b"abc"])
    assert timed == TimedDispatchResult([bytearray(b"abc")], timed.wall_ns, None, None, None)
    assert timed.wall_ns > 0


@pytest.mark.row("A-BE-5")
def test_asynchronous_dispatch_is_done_at_once_by_default():
    class Counting(MockBackend):
        calls = 0

        def dispatch(self, program, inputs, config=None, *, out=None):
            self.calls += 1
            return echo(inputs)

    backend = Counting()
    handles = [backend.dispatch_async(EMPTY, [data]) for data in (b"a", b"b", b"c")]
    assert backend.calls == 3
    assert all(isinstance(h, ReadyPending) and h.is_ready() for h in handles)
    assert [h.result() for h in reversed(handles)] == [[b"c"], [b"b"], [b"a"]]
    assert backend.calls == 3


@pytest.mark.row("A-BE-5")
def test_a_dispatch_that_fails_fails_when_it_is_started():
    class Failing(MockBackend):
        def dispatch(self, *args, **options):
            raise DispatchFailed("the machine is on fire", fix="put it out")

    with pytest.raises(DispatchFailed, match="the machine is on fire"):
        Failing().dispatch_async(EMPTY, [])


RESIDENT = {
    "resident buffer allocation": lambda b: b.allocate_resident(4),
    "resident buffer upload": lambda b: b.upload_resident([]),
    "resident buffer download": lambda b: b.download_resident([]),
    "resident buffer release": lambda b: b.free_resident(None),
    "resident dispatch": lambda b: b.dispatch_resident([]),
}


@pytest.mark.row("A-BE-10", "A-BUF-4", "A-BUF-5")
@pytest.mark.parametrize("feature", RESIDENT)
def test_residency_is_refused_by_default_naming_the_feature_and_the_backend(feature):
    class NoDispatch(MockBackend):
        def dispatch(self, *args, **options):
            pytest.fail("a host dispatch would hide the copies")

    with pytest.raises(UnsupportedFeature, match="backend mock has no") as e:
        RESIDENT[feature](NoDispatch())
    assert e.value.context == {"name": feature, "backend": "mock"}
    assert e.value.fix


@pytest.mark.row("C-dp-1")
def test_the_profile_of_a_minimal_backend_is_the_conservative_one():
    assert MockBackend().device_profile() == DeviceProfile.conservative("mock")
    profile = DeviceProfile()
    assert profile.backend == "unknown"
    assert profile.timing_quality is DeviceTimingQuality.HOST_ONLY
    assert (profile.max_native_int_width, profile.max_workgroup_size, profile.max_invocations_per_workgroup) == (
        32,
        (1, 1, 1),
        1,
    )
    assert [str(q) for q in DeviceTimingQuality] == [
        "host_only", "host_enqueue_wait", "device_timestamps", "hardware_counters",
    ]  # fmt: skip


def test_a_profile_says_what_the_backend_answers():
    class Capable(MockBackend):
        capability = FULL

    profile = Capable().device_profile()
    assert profile == DeviceProfile(
        backend="mock",
        supports_subgroup_ops=True,
        supports_indirect_dispatch=True,
        supports_distributed_collectives=True,
        supports_f16=True,
        supports_bf16=True,
        supports_tensor_cores=True,
        has_subgroup_shuffle=True,
        max_workgroup_size=(256, 128, 64),
        max_invocations_per_workgroup=512,
        max_storage_buffer_binding_size=1 << 30,
        subgroup_size=32,
    )


def test_invocations_per_workgroup_follow_its_size_unless_stated():
    class Wide(MockBackend):
        capability = BackendCapability(max_workgroup_size=(8, 4, 2))

    assert Wide().max_invocations_per_workgroup == 64


def test_a_backend_is_a_context():
    backend = FullBackend()
    with backend as same:
        assert same is backend
        assert dict(backend.calls) == {"prepare": 1}
    assert dict(backend.calls) == {"prepare": 1, "flush": 1, "shutdown": 1}


# ---- overrides ------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-BE-3")
def test_a_full_backend_answers_with_its_own_record():
    backend: VyreBackend = FullBackend()
    answers = {name: getattr(backend, name) for name in QUERIES}
    assert answers == {
        **dict.fromkeys((n for n, default in QUERIES.items() if default is False), True),
        "allows_host_grid_sync_split": False,
        "subgroup_size": 32,
        "max_workgroup_size": (256, 128, 64),
        "max_workgroups_per_dimension": 65535,
        "max_invocations_per_workgroup": 512,
        "max_storage_buffer_bytes": 1 << 30,
        "deadline": "host",
    }
    assert backend.version == "9.8.7"
    assert backend.supported_ops() == FULL.ops


@pytest.mark.row("A-BE-3")
def test_hooks_of_a_full_backend_fire_once_per_call():
    backend = FullBackend()
    handle = backend.allocate_resident(4)
    backend.upload_resident([(handle, 1, b"xy")])
    assert backend.download_resident([ResidentReadRange(handle, 0, 3)]) == [b"\0xy"]
    backend.dispatch_resident([])
    backend.free_resident(handle)
    assert backend.dispatch(EMPTY, [b"a"]) == [b"a"]
    assert backend.dispatch_borrowed(EMPTY, [b"a"]) == [b"a"]
    assert backend.dispatch_timed(EMPTY, [b"a"]).device_ns == 5
    assert backend.dispatch_async(EMPTY, [b"a"]).result() == [b"a"]
    assert backend.compile_native(EMPTY, DispatchConfig()).id.startswith("full:")
    assert backend.metrics() == {"launches": 7}
    assert backend.device_profile().compute_units == 132
    backend.lost = True
    assert backend.device_lost()
    backend.try_recover()
    assert not backend.device_lost()
    for hook in (backend.prepare, backend.flush, backend.shutdown, backend.supported_ops):
        hook()
    snapshot = backend.pipeline_cache_snapshot()
    assert (snapshot.hits, snapshot.misses) == (3, 4)
    assert backend.calls.pop("device_lost") == 2
    assert backend.calls.pop("download_resident") == 2
    assert set(backend.calls.values()) == {1}


def test_the_full_backend_overrides_everything_that_may_be():
    final = {name for name, m in vars(VyreBackend).items() if isinstance(m, property)}
    members = {name for name in vars(VyreBackend) if not name.startswith("_")} - final - {"contract", "id"}
    overridden = set(vars(FullBackend))
    assert members - overridden == set()


# ---- pipelines ------------------------------------------------------------------------------------------------------


class EchoPipeline(CompiledPipeline):
    id = "mock:echo"
    backend_id = "mock"

    def __init__(self):
        self.seen = []

    def dispatch(self, inputs, config=None, *, out=None):
        self.seen.append(config)
        return echo(inputs, out)


@pytest.mark.row("A-CP-1")
def test_a_batch_keeps_its_order_and_its_config():
    pipeline, config = EchoPipeline(), DispatchConfig(label="batch")
    assert pipeline.dispatch_batch([[b"a"], [b"b"], [b"c"]], config) == [[b"a"], [b"b"], [b"c"]]
    assert pipeline.seen == [config] * 3
    assert pipeline.dispatch_batch([]) == []


@pytest.mark.row("A-CP-2")
def test_a_batch_writes_into_the_buffers_it_is_given():
    slots = [[bytearray(1)], [bytearray(1)]]
    results = EchoPipeline().dispatch_batch([[b"a"], [b"b"]], out=slots)
    assert slots == [[b"a"], [b"b"]]
    assert all(got[0] is given[0] for got, given in zip(results, slots, strict=True))


@pytest.mark.row("A-CP-2")
def test_a_batch_refuses_outputs_for_another_number_of_batches():
    with pytest.raises(DispatchFailed, match=r"outputs do not match the batches .*Fix: "):
        EchoPipeline().dispatch_batch([[b"a"], [b"b"]], out=[[bytearray(1)]])


def test_a_pipeline_is_timed_and_asynchronous_by_default():
    pipeline = EchoPipeline()
    timed = pipeline.dispatch_timed([b"a"])
    assert (timed.outputs, timed.device_ns) == ([b"a"], None)
    assert timed.wall_ns > 0
    pending = pipeline.dispatch_async([b"b"])
    assert pending.is_ready()
    assert pending.result() == [b"b"]


def test_a_pipeline_without_residency_names_its_backend():
    with pytest.raises(UnsupportedFeature, match="pipelines of backend mock have no resident dispatch"):
        EchoPipeline().dispatch_resident([HostResource()])


def test_a_pipeline_is_a_context_that_closes():
    backend = FullBackend()
    with backend.compile_native(ADD, DispatchConfig()) as pipeline:
        pipeline.dispatch([b"a"])
        pipeline.dispatch_timed([b"a"])
        pipeline.dispatch_async([b"a"])
        assert pipeline.dispatch_batch([[b"a"]]) == [[b"a"]]
        assert pipeline.dispatch_resident([HostResource()]) == [HostResource()]
    pipeline = EchoPipeline()
    with pipeline:
        pass
    assert pipeline.close() is None
    assert dict(backend.calls) == {"compile_native": 1} | {
        f"pipeline.{name}": 1
        for name in ("dispatch", "dispatch_timed", "dispatch_async", "dispatch_batch", "dispatch_resident", "close")
    }


# ---- the seal -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-BE-11")
def test_a_backend_from_outside_must_say_its_contract():
    with pytest.raises(TypeError, match=r"Mine does not say .* Fix: write class Mine\(VyreBackend, contract=1\)"):

        class Mine(VyreBackend):
            pass


@pytest.mark.row("A-BE-11")
def test_a_backend_for_another_contract_is_refused():
    with pytest.raises(TypeError, match=rf"implements contract {CONTRACT_VERSION + 1} and this is .* Fix: "):

        class Mine(VyreBackend, contract=CONTRACT_VERSION + 1):
            pass


def test_a_subclass_of_a_sealed_backend_need_not_repeat_it():
    class Child(MockBackend):
        pass

    assert Child().id == "mock"


def test_id_and_dispatch_are_required():
    assert VyreBackend.__abstractmethods__ == {"dispatch", "id"}
    members = {"id": "mine", "dispatch": MockBackend.dispatch}
    for missing in members:
        rest = {name: member for name, member in members.items() if name != missing}
        half = type(VyreBackend)("Half", (VyreBackend,), rest, contract=1)
        with pytest.raises(TypeError, match=rf"abstract .*{missing}"):
            half()


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_queries_cannot_be_overridden(name):
    with pytest.raises(TypeError, match=rf"Mine overrides {name}, .* Fix: set capability = BackendCapability"):
        type("Mine", (MockBackend,), {name: True})


@pytest.mark.parametrize("name", ["supports_sub_group_ops", "supports_F16", "supports_"])
def test_a_misspelt_capability_is_refused(name):
    with pytest.raises(TypeError, match=rf"defines {name}, which the contract does not know. Fix: correct the spel"):
        type("Mine", (MockBackend,), {name: True})


# ---- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-VAL-8")
def test_a_capability_record_defaults_to_the_least():
    record = BackendCapability()
    assert record == MockBackend.capability
    assert hash(record) == hash(BackendCapability())
    assert (record.ops, record.types, record.extras, record.exactness) == (None, frozenset(), {}, {})


@pytest.mark.parametrize("field", [f for f in FULL.__dataclass_fields__ if f != "dispatches"])
def test_every_fact_is_in_the_digest_of_a_capability_record(field):
    default = BackendCapability()
    changed = BackendCapability(**{field: getattr(FULL, field)})
    assert changed.digest() != default.digest()
    assert changed != default


def test_an_unknown_precedence_is_the_last():
    assert BackendPrecedence("mine").rank == contract.PRECEDENCE_UNKNOWN == 0xFFFFFFFF


@pytest.mark.row("A-PD-2")
def test_pending_is_used_through_its_abstract_type():
    pending: PendingDispatch = MockBackend().dispatch_async(EMPTY, [b"a"])
    assert pending.is_ready()
    assert pending.await_result() == [b"a"]
    assert inspect.isabstract(PendingDispatch)


@pytest.mark.row("A-PD-3")
def test_a_result_is_handed_out_once():
    pending = MockBackend().dispatch_async(EMPTY, [b"a"])
    pending.result()
    with pytest.raises(DispatchFailed, match=r"the result was already taken\. Fix: "):
        pending.result()


def test_of_many_threads_one_gets_the_result():
    pending = MockBackend().dispatch_async(EMPTY, [b"a"])
    got = []

    def take():
        try:
            got.append(pending.result())
        except DispatchFailed as e:
            got.append(type(e))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got.count([b"a"]) == 1
    assert got.count(DispatchFailed) == 7


def test_a_mixin_cannot_override_what_the_capability_record_says():
    class Faster:
        @property
        def max_workgroup_size(self):
            return (1024, 1, 1)

    with pytest.raises(TypeError, match=r"Mine overrides max_workgroup_size, .* Fix: set capability"):

        class Mine(Faster, VyreBackend, contract=1):
            id = "mine"

    class Misspelt:
        supports_subgroups = True

    with pytest.raises(TypeError, match="defines supports_subgroups, which the contract does not know"):

        class Other(Misspelt, MockBackend):
            pass


def test_a_mixin_that_shuts_down_ends_pipelines_too():
    class Closing:
        closed = 0

        def shutdown(self):
            self.closed += 1

    class Mine(Closing, MockBackend):
        pass

    backend = Mine()
    cache = pipelines_of(backend)
    before = cache.epoch
    backend.shutdown()
    assert (backend.closed, cache.epoch) == (1, before + 1)


@pytest.mark.parametrize("contract", [True, 1.0, "1"])
def test_a_contract_that_is_no_whole_number_is_refused(contract):
    with pytest.raises(TypeError, match=r"which is not a version\. Fix: write class Mine\(VyreBackend, contract=1\)"):

        class Mine(VyreBackend, contract=contract):
            id = "mine"


def test_an_author_may_use_the_name_pipelines():
    class Mine(MockBackend):
        def __init__(self):
            self._pipelines = {"mine": 1}

    backend = Mine()
    pipelines_of(backend)
    backend.shutdown()
    assert backend._pipelines == {"mine": 1}
