"""The key of a compiled pipeline: everything the compiler sees, and the reasons of a miss."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre import f32, f64, u32
from vyre.backends.reference.backend import ReferenceBackend
from vyre.driver.contract import BackendCapability, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.pipeline import (
    CURRENT_PIPELINE_CACHE_KEY_VERSION,
    LoweringOptions,
    PipelineCacheIdentity,
    PipelineCacheKey,
    PipelineCacheMissEvidence,
    PipelineCacheMissReason,
    PipelineDeviceFingerprint,
    PipelineFeatureFlags,
    dispatch_policy_cache_digest,
    dispatch_policy_cache_string,
    hex_encode,
    hex_short,
    pipelines_of,
    toolchain,
)
from vyre.driver.pipeline.key import digest_of
from vyre.driver.pipeline.toolchain import impacted_entries, sources, version_of
from vyre.driver.plan.specialize import (
    SpecCacheKey,
    SpecMap,
    specialized,
    versioned_specialization_artifact_key,
)
from vyre.errors import ArgumentValueError
from vyre.foundation.formats.blake3 import blake3
from vyre.foundation.ir.nodes import BinOp, Lit, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, output, read, uniform, workgroup
from vyre.foundation.meaning.mathlib import definition

FLAGS = list(PipelineFeatureFlags)


class Device(VyreBackend, contract=1):
    id = "device"

    def __init__(self, id="device", version="1", **capability):
        self.id, self.version = id, version
        self.capability = BackendCapability(**capability)

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise AssertionError("a key needs no dispatch")


def storing(value, *more, slot=0):
    body = [Store("out", Lit(u32, 0), Lit(u32, value))]
    return Program([output("out", slot, u32, 1), *more], (1, 1, 1), body)


def exponential(*more):
    body = [Store("out", Lit(u32, 0), UnOp(UnaryOp.EXP, lit(1.0, f32)))]
    return Program([output("out", 0, f32, 1), *more], (1, 1, 1), body)


def key(program=None, config=DEFAULT_CONFIG, backend=None, **options):
    return PipelineCacheKey.of(backend or Device(), program or storing(7), config, **options)


def willing(config=DEFAULT_CONFIG, program=None):
    """A key on a device that uses every field, of a program that every field may matter for."""
    uses = {"deadline": "cooperative", "grid_sync": True, "speculation": True, "persistent_threads": True}
    return key(program or exponential(), config, Device(exactness={"native": {"exp": 2}}, **uses))


# ---- programs -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-HS-1")
def test_equal_programs_built_apart_have_one_key_and_another_literal_has_another():
    assert key(storing(7)) == key(storing(7))
    assert key(storing(7)).digest() == key(storing(7)).digest()
    assert key(storing(7)) != key(storing(8))
    assert key(storing(7)).digest() != key(storing(8)).digest()


@pytest.mark.row("A-HS-2", "A-CK-10")
@pytest.mark.parametrize(
    "one, other",
    [
        (storing(7, slot=0), storing(7, slot=1)),
        (storing(7), storing(7, read("a", 1, u32))),
        (storing(7, read("a", 1, u32)), storing(7, read("b", 1, u32))),
        (storing(7, read("a", 1, u32)), storing(7, read("a", 1, u32, 4))),
        (storing(7, workgroup("s", u32, 4)), storing(7, workgroup("s", u32, 8))),
    ],
    ids=["slot", "another buffer", "name", "count", "workgroup memory"],
)
def test_whatever_changes_the_layout_changes_the_key(one, other):
    assert key(one) != key(other)
    assert key(one).differs(key(other)) == ("program",)


@pytest.mark.row("A-HS-3")
def test_validating_a_program_does_not_change_its_key():
    program = storing(7)
    before = key(program)
    program.validate()
    assert key(program) == before


# ---- configs --------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-HS-5")
def test_no_error_budget_and_an_error_budget_of_zero_are_one_key():
    assert willing(DispatchConfig(ulp_budget=0)) == willing()
    assert willing(DispatchConfig(ulp_budget=2)) != willing()


CHANGES = {
    "ulp_budget": DispatchConfig(ulp_budget=3),
    "workgroup_override": DispatchConfig(workgroup_override=(64, 1, 1)),
    "deadline": DispatchConfig(timeout=1.0),
    "cooperative": DispatchConfig(cooperative=True),
    "speculation": DispatchConfig(speculation="force"),
    "persistent_thread": DispatchConfig(persistent_thread="force"),
}


@pytest.mark.row("A-HS-4", "A-CK-1")
def test_each_code_changing_field_of_a_config_changes_the_key_and_names_itself():
    assert set(CHANGES) == set(LoweringOptions().facts())
    for name, config in CHANGES.items():
        assert willing(config).differs(willing()) == (name,)
        assert dispatch_policy_cache_digest(config) != dispatch_policy_cache_digest(DEFAULT_CONFIG)
    for name in ("speculation", "persistent_thread"):
        assert willing(DispatchConfig(**{name: "disable"})).differs(willing()) == ("feature_flags", name)
    assert key(config=DispatchConfig(workgroup_override=(64, 1, 1))) != key(
        config=DispatchConfig(workgroup_override=(128, 1, 1))
    )


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"workgroup_override"}))
def test_a_field_that_a_backend_ignores_is_not_in_its_key(name):
    assert key(exponential(), CHANGES[name]) == key(exponential())


@pytest.mark.parametrize(
    "program, budget, exactness",
    [
        (storing(7), 255, {"native": {"exp": 2}}),
        (exponential(), 1, {"native": {"exp": 2}}),
        (exponential(), 255, {"native": {}}),
        (exponential(), 255, {"native": "yes"}),
        (exponential(read("wide", 1, f64)), 255, {"native": {"exp": 2}}),
    ],
    ids=["no function", "a smaller budget", "none of its own", "nonsense", "with doubles"],
)
def test_a_budget_that_permits_nothing_is_not_in_the_key(program, budget, exactness):
    backend = Device(exactness=exactness)
    assert key(program, DispatchConfig(ulp_budget=budget), backend) == key(program, backend=backend)


def test_the_workgroup_that_a_program_declares_is_no_other_one():
    assert key(config=DispatchConfig(workgroup_override=(1, 1, 1))) == key()


@pytest.mark.parametrize(
    "config",
    [
        DispatchConfig(profile="default"),
        DispatchConfig(label="a"),
        DispatchConfig(max_output_bytes=4),
        DispatchConfig(grid_override=(2, 1, 1)),
        DispatchConfig(output_elements={"out": 1}),
        DispatchConfig(fixpoint_iterations=2),
        DispatchConfig(speculation="auto", persistent_thread="auto"),
    ],
)
def test_what_no_code_depends_on_leaves_the_key_alone(config):
    assert willing(config) == willing()


def test_how_long_a_deadline_is_does_not_change_the_key_but_having_one_does():
    assert willing(DispatchConfig(timeout=1.0)) == willing(DispatchConfig(timeout=0))
    assert willing(DispatchConfig(timeout=0)) != willing()


@pytest.mark.row("A-HS-4")
def test_the_text_of_a_policy_is_exact():
    config = DispatchConfig(ulp_budget=1, workgroup_override=(64, 1, 1), timeout=2.0, speculation="force")
    assert dispatch_policy_cache_string(config) == (
        "ulp_budget=1:deadline=yes:workgroup_override=64x1x1:speculation=force:persistent_thread=none:cooperative=no"
    )
    assert dispatch_policy_cache_string(DEFAULT_CONFIG) == (
        "ulp_budget=none:deadline=no:workgroup_override=none:speculation=none:persistent_thread=none:cooperative=no"
    )


def random_config(rng):
    modes = [None, "auto", "force", "disable"]
    return DispatchConfig(
        ulp_budget=rng.choice([None, 0, 1, 255]),
        workgroup_override=rng.choice([None, (64, 1, 1), (6, 41, 1)]),
        timeout=rng.choice([None, 0, 1.5]),
        label=rng.choice([None, "x"]),
        speculation=rng.choice(modes),
        persistent_thread=rng.choice(modes),
        cooperative=rng.random() < 0.5,
    )


@pytest.mark.row("A-HS-4")
def test_text_digest_options_and_the_config_for_the_compiler_agree_on_4096_configs():
    rng = random.Random(4)
    texts = {}
    for _ in range(4096):
        config = random_config(rng)
        options, text = LoweringOptions.of(config), dispatch_policy_cache_string(config)
        assert texts.setdefault(text, (options, dispatch_policy_cache_digest(config))) == (
            options,
            dispatch_policy_cache_digest(config),
        )
        compiled = options.config
        assert LoweringOptions.of(compiled) == options
        assert (compiled.label, compiled.max_output_bytes, compiled.output_elements) == (None, None, None)
    assert len({digest for _, digest in texts.values()}) == len(texts) > 100


def test_the_default_options_compile_with_the_default_config():
    assert LoweringOptions().config == LoweringOptions.of(DEFAULT_CONFIG).config == DEFAULT_CONFIG


# ---- devices and toolchains -----------------------------------------------------------------------------------------


@pytest.mark.row("A-CK-2", "A-CK-3", "A-CK-7")
@pytest.mark.parametrize(
    "backend, differing",
    [
        (Device(id="other"), {"backend_id", "toolchain", "device"}),
        (Device(version="2"), {"toolchain"}),
        (Device(f16=True), {"device", "feature_flags"}),
        (Device(exactness={"f32.div": "exact"}), {"device"}),
        (Device(extras={"driver": "1.2"}), {"device"}),
        (Device(api="Signals"), {"device"}),
        (Device(extras={"push_constants": True}), {"device", "feature_flags"}),
    ],
)
def test_backend_version_features_and_exactness_each_change_the_key(backend, differing):
    assert set(key(backend=backend).differs(key())) == differing
    assert key(backend=backend).digest() != key().digest()


def test_the_toolchain_names_the_compiler_and_a_backend_from_elsewhere_with_its_version():
    assert key().toolchain == "device 1"
    assert key(backend=Device(extras={"compiler": "cc 9"})).toolchain == "cc 9; device 1"
    assert key(backend=Device(extras={"compiler": "cc 9"})).differs(key()) == ("toolchain",)
    assert key(backend=ReferenceBackend()).toolchain == "reference"


def test_a_key_names_the_parts_that_make_its_code_and_the_functions_that_a_program_uses():
    foreign, own = key(), key(exponential(), backend=ReferenceBackend())
    common = [f"source.{part}" for part in toolchain.PARTS]
    assert [name for name, _ in foreign.lineage] == common
    assert [name for name, _ in own.lineage] == [*common, "source.backends/reference", "function.exp"]
    assert dict(own.lineage)["source.backends/reference"] == sources()["backends/reference"]
    assert len(set(sources().values())) == len(sources())
    assert set(sources()) >= {
        *toolchain.PARTS,
        *(f"backends/{id}" for id in ("reference", "cpu", "cuda", "opencl", "wgpu")),
    }


def test_of_functions_that_follow_from_another_program_a_difference_says_nothing():
    sine = Program([output("out", 0, f32, 1)], (1, 1, 1), [Store("out", Lit(u32, 0), UnOp(UnaryOp.SIN, lit(1.0, f32)))])
    assert key(exponential()).differs(key(sine)) == ("program",)


def test_a_backend_derived_from_one_of_this_package_has_its_source_in_the_key():
    class Derived(ReferenceBackend, contract=1):
        id, version = "derived", "7"

    found = key(backend=Derived())
    assert found.toolchain == "derived 7"
    assert "source.backends/reference" in dict(found.lineage)


def test_the_version_of_a_function_is_that_of_its_steps():
    found = {name: version_of(name) for name in ("exp", "log", "pow")}
    assert len(set(found.values())) == 3
    both = [definition(UnaryOp.EXP, t).fingerprint.encode() for t in (f32, f64)]
    assert found["exp"] == blake3(b"".join(both)).hex()[:16]
    with pytest.raises(KeyError):
        version_of("no such function")


def test_entries_are_impacted_by_the_parts_that_made_them_alone():
    own = dict(key(exponential(), backend=ReferenceBackend()).lineage)
    changed = {**own, "function.exp": "0" * 16}
    other = {**own, "source.backends/reference": "0" * 16}
    unknown = {**own, "function.nothing": "0" * 16}
    foreign = {"program": "x", "device": "y"}
    assert impacted_entries([own, changed, other, unknown, foreign]) == [False, True, True, True, False]


@pytest.mark.row("A-HS-7")
def test_a_fingerprint_differs_by_driver_text_by_extra_text_and_by_where_one_ends():
    parts = [("580.1", "a"), ("580.2", "a"), ("580.1", "b"), ("580.1a", ""), ("", "580.1a"), ("580.1", "")]
    prints = {PipelineDeviceFingerprint.from_parts(1, 2, *p) for p in parts}
    assert len(prints) == len(parts)
    assert PipelineDeviceFingerprint.from_parts(1, 2, "x") == PipelineDeviceFingerprint.from_parts(1, 2, "x")
    others = [PipelineDeviceFingerprint.from_parts(*ids, "x") for ids in ((1, 2), (2, 1), (1, 3))]
    assert len({p.digest() for p in others}) == 3
    assert len({p.cache_key(b"\1" * 32) for p in others}) == 3


@pytest.mark.parametrize("vendor, device", [(-1, 0), (0, 1 << 32)])
def test_a_device_id_that_does_not_fit_is_refused(vendor, device):
    with pytest.raises(ArgumentValueError, match=r"does not fit u32.*Fix: pass the 32-bit id"):
        PipelineDeviceFingerprint.from_parts(vendor, device, "x")
    PipelineDeviceFingerprint.from_parts(0, (1 << 32) - 1, "x")


# ---- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-CK-4")
def test_containment_of_flags():
    empty, every = PipelineFeatureFlags.empty(), PipelineFeatureFlags((1 << 9) - 1)
    assert [f.bits for f in FLAGS] == [1 << k for k in range(9)]
    for flag in FLAGS:
        assert flag.contains(empty)
        assert flag.contains(flag)
        assert every.contains(flag)
        assert not empty.contains(flag)
    for a, b in itertools.combinations(FLAGS, 2):
        assert a.union(b).contains(a)
        assert not a.contains(b)
        assert not a.contains(a.union(b))


def test_a_flag_says_that_the_device_has_it_and_the_config_allows_it():
    device = Device(speculation=True, persistent_threads=True, subgroup_ops=True)
    flags = PipelineFeatureFlags
    assert flags.of(device, LoweringOptions()) == flags.SPECULATIVE | flags.PERSISTENT_THREAD | flags.SUBGROUP_OPS
    forbidden = LoweringOptions(DispatchConfig(speculation="disable", persistent_thread="disable"))
    assert flags.of(device, forbidden) == flags.SUBGROUP_OPS
    assert flags.of(Device(), LoweringOptions()) == flags.empty()


# ---- version, digests, hex ------------------------------------------------------------------------------------------


@pytest.mark.row("A-CK-5", "A-CK-6")
def test_a_key_carries_the_current_version_and_another_version_is_another_key():
    assert key().version == CURRENT_PIPELINE_CACHE_KEY_VERSION
    newer = dataclasses.replace(key(), version=CURRENT_PIPELINE_CACHE_KEY_VERSION + 1)
    assert newer != key()
    assert newer.digest() != key().digest()
    assert newer.differs(key()) == ("version",)


def test_constants_in_place_of_numbers_change_the_key_and_each_is_named():
    body = [Store("out", Lit(u32, 0), BinOp(BinaryOp.ADD, Load("a", Lit(u32, 0)), Load("b", Lit(u32, 0))))]
    general = Program([output("out", 0, u32, 1), uniform("a", 1, u32, 1), uniform("b", 2, u32, 1)], (1, 1, 1), body)

    def of(**numbers):
        return key(specialized(general, SpecMap(numbers)))

    assert of(a=4).program == general.fingerprint != specialized(general, SpecMap({"a": 4})).fingerprint
    assert of(a=4).differs(of(a=5)) == ("specs.a",)
    assert of(a=4).differs(of(b=4)) == ("specs.a", "specs.b")
    elsewhere = key(specialized(general, SpecMap({"a": 4})), backend=Device(api="Signals"))
    assert elsewhere.specs != of(a=4).specs
    assert elsewhere.differs(of(a=4)) == ("device",)
    told = PipelineCacheMissEvidence.from_keys([elsewhere], of(a=4))
    assert told.reason is PipelineCacheMissReason.DEVICE_OR_RUNTIME_CHANGED
    assert of(a=4).differs(of()) == ("specs.a",)
    assert of(a=4) == of(a=4)
    assert len({of(a=4).digest(), of(a=5).digest(), of(b=4).digest(), of().digest()}) == 4
    twice = key(specialized(specialized(general, SpecMap({"a": 4})), SpecMap({"b": 5})))
    assert twice == of(a=4, b=5)
    assert of().specs == ""
    assert of(a=4).specs == versioned_specialization_artifact_key(
        CURRENT_PIPELINE_CACHE_KEY_VERSION,
        str(SpecCacheKey.of(general, SpecMap({"a": 4}))),
        hex_encode(of().device.digest()),
    )
    assert str(of(a=4).identity) != str(of(a=5).identity)
    evidence = PipelineCacheMissEvidence.from_keys([of(a=4)], of(a=5))
    assert (evidence.reason, evidence.differing) == ("program_changed", ("specs.a",))


@pytest.mark.row("A-HS-6")
def test_hex_forms():
    assert hex_encode(bytes([0x00, 0xFF, 0x1A, 0x0F])) == "00ff1a0f"
    assert hex_encode(b"") == ""
    assert hex_short(bytes(range(32))) == "0001020304050607"


PARTS = st.lists(st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(-3, 300), st.booleans()), max_size=4)


@given(PARTS, PARTS)
def test_a_digest_keeps_the_borders_and_kinds_of_its_parts(one, other):
    same = [(type(p), p) for p in one] == [(type(p), p) for p in other]
    assert (digest_of("d", *one) == digest_of("d", *other)) == same


# ---- identities and misses ------------------------------------------------------------------------------------------


def identity(program=b"p", policy=b"q", device=b"r"):
    return PipelineCacheIdentity.from_parts(program * 32, policy * 32, device * 32)


@pytest.mark.row("A-CK-7")
def test_an_identity_keeps_its_parts_and_changes_with_each():
    mine = identity()
    assert (mine.program_digest, mine.policy_digest, mine.device_fingerprint) == (b"p" * 32, b"q" * 32, b"r" * 32)
    others = [identity(program=b"x"), identity(policy=b"x"), identity(device=b"x")]
    assert len({i.digest for i in [mine, *others]}) == 4
    device = PipelineDeviceFingerprint.from_parts(1, 2, "x")
    of_program = PipelineCacheIdentity.from_program(storing(7), DEFAULT_CONFIG, device)
    assert of_program.program_digest.hex() == storing(7).fingerprint
    assert of_program.policy_digest == dispatch_policy_cache_digest(DEFAULT_CONFIG)
    assert of_program.device_fingerprint == device.digest()


REASONS = [
    ((0, 0, 0, 0), PipelineCacheMissReason.EMPTY_CACHE, "empty_cache"),
    ((3, 0, 0, 0), PipelineCacheMissReason.PROGRAM_CHANGED, "program_changed"),
    ((3, 2, 0, 0), PipelineCacheMissReason.DISPATCH_POLICY_CHANGED, "dispatch_policy_changed"),
    ((3, 2, 1, 0), PipelineCacheMissReason.DEVICE_OR_RUNTIME_CHANGED, "device_or_runtime_changed"),
    ((3, 2, 1, 1), PipelineCacheMissReason.KEY_ABSENT, "key_absent"),
]


@pytest.mark.row("A-CK-8", "A-CK-9")
@pytest.mark.parametrize("counts, reason, suffix", REASONS)
def test_counts_of_near_keys_give_the_reason_of_a_miss(counts, reason, suffix):
    evidence = PipelineCacheMissEvidence(*counts)
    assert evidence.reason is reason
    assert evidence.reason.metric_suffix == suffix


@pytest.mark.row("A-CK-8")
@pytest.mark.parametrize(
    "cached, reason",
    [
        ([], "empty_cache"),
        ([identity(program=b"x")], "program_changed"),
        ([identity(program=b"x"), identity(policy=b"x", device=b"x")], "dispatch_policy_changed"),
        ([identity(device=b"x"), identity(policy=b"x")], "device_or_runtime_changed"),
        ([identity(device=b"x"), identity()], "key_absent"),
    ],
)
def test_identities_give_the_same_reasons(cached, reason):
    assert PipelineCacheMissEvidence.from_identities(cached, identity()).reason == reason


def test_the_nearest_earlier_key_is_the_one_with_the_fewest_differences_and_the_latest_of_equals():
    wanted = willing(DispatchConfig(ulp_budget=2))
    far = willing(DispatchConfig(timeout=1.0), storing(8))
    near_old, near_new = willing(), willing(DispatchConfig(ulp_budget=9))
    evidence = PipelineCacheMissEvidence.from_keys([near_old, far, near_new], wanted)
    assert evidence.nearest == near_new.record
    assert evidence.differing == ("ulp_budget",)
    assert str(evidence) == "dispatch_policy_changed; the nearest earlier key differs in ulp_budget"
    assert PipelineCacheMissEvidence.from_keys([far, near_new, near_old], wanted).nearest == near_old.record


def test_a_key_that_was_seen_before_says_that_it_was_thrown_out():
    evidence = PipelineCacheMissEvidence.from_keys([key()], key())
    assert evidence.differing == ()
    assert str(evidence) == (
        "key_absent; the nearest earlier key differs in nothing: it was compiled before and thrown out"
    )
    assert str(PipelineCacheMissEvidence.from_keys([], key())) == "empty_cache"


def test_another_device_or_toolchain_is_told_from_another_policy():
    evidence = PipelineCacheMissEvidence.from_keys([key(backend=Device(version="2"))], key())
    assert evidence.reason is PipelineCacheMissReason.DEVICE_OR_RUNTIME_CHANGED
    assert evidence.differing == ("toolchain",)


# ---- devices --------------------------------------------------------------------------------------------------------


def test_the_device_a_backend_was_opened_on_is_part_of_its_keys():
    first, second = Device(), Device()
    assert first.device == ""
    assert key(backend=first) == key(backend=second)
    first.device, second.device = "board 0", "board 1"
    assert key(backend=first) != key(backend=second)
    assert key(backend=first).differs(key(backend=second)) == ("device",)
    cache = pipelines_of(first)
    before = cache.device_of(first)
    first.device = "board 1"
    assert before != cache.device_of(first) == PipelineDeviceFingerprint.of(second)
