"""DispatchConfig: no opinion by default, checked when built, settled against a backend before anything runs."""

import copy
import pickle
from dataclasses import asdict, fields, replace
from datetime import timedelta

import numpy as np
import pytest

from vyre.driver.admission.program import PROFILES, settle_config
from vyre.driver.contract import BackendCapability, VyreBackend
from vyre.driver.contract.capability import FACTS
from vyre.driver.contract.values import (
    DEFAULT_CONFIG,
    OPTIONS,
    DispatchConfig,
    Option,
    PersistentThreadMode,
    SpeculationMode,
)
from vyre.driver.plan.launch import resolve_fixpoint_iterations
from vyre.driver.plan.outputs import enforce_output_budget
from vyre.errors import ArgumentTypeError, ArgumentValueError, BackendError, InvalidProgram, UnsupportedFeature

FULL = {
    "profile": "stress",
    "ulp_budget": 3,
    "timeout": 1.5,
    "label": "nightly",
    "max_output_bytes": 1 << 40,
    "workgroup_override": (64, 1, 1),
    "grid_override": (2, 3, 4),
    "fixpoint_iterations": 7,
    "speculation": SpeculationMode.AUTO,
    "persistent_thread": PersistentThreadMode.DISABLE,
    "cooperative": True,
    "output_elements": {"out": 9},
    "output_lengths": {"out": ("n", 2)},
    "determinism": "require",
}


class Mock(VyreBackend, contract=1):
    id = "mock"

    def __init__(self, **facts):
        self.capability = BackendCapability(**facts)

    def dispatch(self, program, inputs, config=None, *, out=None):
        return []


# -- the value --------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-CFG-1")
def test_by_default_every_field_has_no_opinion():
    assert {f.name: getattr(DispatchConfig(), f.name) for f in fields(DispatchConfig)} == {
        **dict.fromkeys(FULL),
        "cooperative": False,
    }
    assert DispatchConfig() == DEFAULT_CONFIG


@pytest.mark.row("A-CFG-3")
def test_a_copy_equals_the_original():
    config = DispatchConfig(**FULL)
    for other in (copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), config.with_()):
        assert other == config
        assert hash(other) == hash(config)


@pytest.mark.parametrize("name", FULL)
def test_each_field_is_part_of_equality(name):
    assert DispatchConfig(**{name: FULL[name]}) != DEFAULT_CONFIG
    assert DispatchConfig(**FULL) != DispatchConfig(**FULL).with_(**{name: getattr(DEFAULT_CONFIG, name)})


def test_a_config_keeps_its_own_copy_of_the_lengths():
    given = {"out": 1}
    config = DispatchConfig(output_elements=given)
    given["out"] = 2
    assert config.output_elements == {"out": 1}
    with pytest.raises(TypeError):
        config.output_elements["out"] = 3


def test_numbers_of_any_type_that_counts_are_taken_and_become_ints():
    n = np.int64(3)
    config = DispatchConfig(
        grid_override=[n, np.uint8(1), 1], ulp_budget=n, max_output_bytes=n, output_elements={"out": n}
    )
    assert config == DispatchConfig(
        grid_override=(3, 1, 1), ulp_budget=3, max_output_bytes=3, output_elements={"out": 3}
    )
    values = (*config.grid_override, config.ulp_budget, config.max_output_bytes, config.output_elements["out"])
    assert {type(v) for v in values} == {int}


def test_a_config_as_a_dict_makes_an_equal_config():
    config = DispatchConfig(**FULL)
    assert asdict(config) == FULL
    assert DispatchConfig(**asdict(config)) == config


def test_lengths_cannot_be_changed_in_any_way():
    held = DispatchConfig(output_elements={"out": 1}).output_elements
    for change in (
        lambda: held.update(out=2),
        lambda: held.pop("out"),
        lambda: held.popitem(),
        lambda: held.clear(),
        lambda: held.setdefault("b", 2),
        lambda: held.__delitem__("out"),
        lambda: held.__ior__({"b": 2}),
    ):
        with pytest.raises(TypeError, match=r"part of a frozen value\. Fix: make a new value"):
            change()
    assert held == {"out": 1}


def test_every_field_says_what_it_is_about():
    for f in fields(DispatchConfig):
        about = f.metadata["about"]
        assert OPTIONS[f.name] is about
        assert about.doc
        assert about.doc in DispatchConfig.__doc__
        assert about.check(f.name, FULL[f.name]) == FULL[f.name]
        if about.code is not None:
            assert about.code.needs in FACTS if about.code.used is None else not about.code.needs


def test_a_field_without_what_it_is_about_fails_at_once():
    with pytest.raises(TypeError, match=r"'result', 'whole', and 'code'"):
        Option("a new field", lambda name, value: value)


def test_a_launch_of_several_goes_without_what_is_about_the_whole():
    one = DispatchConfig(**FULL).for_one_launch()
    gone = {"profile", "timeout", "max_output_bytes", "fixpoint_iterations", "determinism"}
    gone |= {"output_elements", "output_lengths"}
    assert one == DispatchConfig(**{name: value for name, value in FULL.items() if name not in gone})


def test_a_reference_gets_what_says_which_result_is_right():
    kept = {"label", "workgroup_override", "grid_override", "fixpoint_iterations", "output_elements", "output_lengths"}
    assert DispatchConfig(**FULL).for_reference() == DispatchConfig(**{name: FULL[name] for name in kept})


@pytest.mark.parametrize("value", ["prefer", True, 1, np.zeros(2), "Require"])
def test_a_demand_for_determinism_is_require_or_nothing(value):
    with pytest.raises(ArgumentValueError, match=r'is not a demand\. Fix: pass determinism="require", or nothing'):
        DispatchConfig(determinism=value)


@pytest.mark.parametrize("label", [None, "nightly"])
def test_an_error_names_the_label_only_where_there_is_one(label):
    config = DispatchConfig(label=label, max_output_bytes=1, fixpoint_iterations=0)
    for refuse in (lambda: enforce_output_budget(config, 2), lambda: resolve_fixpoint_iterations(config)):
        with pytest.raises((ArgumentValueError, InvalidProgram)) as caught:
            refuse()
        assert caught.value.context.get("label") == label
        assert ("label" in str(caught.value)) == (label is not None)


# -- the capability record --------------------------------------------------------------------------------------------


def test_a_capability_record_keeps_its_own_frozen_copies():
    extras, exactness = {"clock": {"mhz": [1]}}, {"f32": "exact"}
    record = BackendCapability(
        ops={"a", "b"}, types=["f16"], max_workgroup_size=[np.int64(8), 4, 2], exactness=exactness, extras=extras
    )
    extras["clock"]["mhz"].append(2)
    exactness["f64"] = "no"
    assert (record.ops, record.types) == (frozenset("ab"), frozenset(("f16",)))
    assert record.max_workgroup_size == (8, 4, 2)
    assert {type(n) for n in record.max_workgroup_size} == {int}
    assert (record.extras, record.exactness) == ({"clock": {"mhz": [1]}}, {"f32": "exact"})
    with pytest.raises(TypeError, match="frozen"):
        record.extras["more"] = 1


def test_equal_capability_records_have_one_hash_and_survive_copies():
    record = BackendCapability(ops=["b", "a"], types={"f16"}, f16=1, exactness={"a": 1, "b": 2}, extras={"x": [1]})
    same = BackendCapability(ops=("a", "b"), types=("f16",), f16=True, exactness={"b": 2, "a": 1}, extras={"x": [1]})
    for other in (same, pickle.loads(pickle.dumps(record)), copy.deepcopy(record), replace(record)):
        assert other == record
        assert hash(other) == hash(record)
        assert other.digest() == record.digest()
    assert asdict(record)["extras"] == {"x": [1]}
    assert record != replace(record, extras={"x": [1.0]})
    assert record != "a record"


@pytest.mark.parametrize(
    "facts, error, message",
    [
        ({"ops": "abc"}, ArgumentTypeError, "ops='abc' is not a set of names"),
        ({"ops": 5}, ArgumentTypeError, "ops=5 is not a set of names"),
        ({"types": [1]}, ArgumentTypeError, "types=[1] is not a set of names"),
        ({"max_workgroup_size": (1, 1)}, ArgumentTypeError, "is not three numbers"),
        ({"max_workgroup_size": None}, ArgumentTypeError, "max_workgroup_size is None"),
        ({"max_shared_bytes": -1}, ArgumentValueError, "max_shared_bytes=-1 is out of range"),
        ({"max_shared_bytes": None}, ArgumentTypeError, "max_shared_bytes is None"),
        ({"subgroup_size": 1.5}, ArgumentTypeError, "subgroup_size=1.5 is not a whole number"),
        ({"deadline": "soon"}, ArgumentValueError, "deadline='soon' is not one of its texts"),
        ({"deadline": ["none"]}, ArgumentValueError, "deadline=['none'] is not one of its texts"),
        ({"memory_model": 3}, ArgumentTypeError, "memory_model=3 is not text"),
        ({"extras": [1]}, ArgumentTypeError, "extras is list, not a mapping"),
        ({"extras": {"x": {1, 2}}}, ArgumentValueError, "extras does not survive JSON"),
        ({"extras": {1: 2}}, ArgumentValueError, "extras does not survive JSON: a key is not text"),
        ({"exactness": {"x": float("nan")}}, ArgumentValueError, "exactness does not survive JSON"),
    ],
)
def test_a_capability_record_is_checked_when_it_is_built(facts, error, message):
    with pytest.raises(error) as caught:
        BackendCapability(**facts)
    assert message in str(caught.value)
    assert "Fix: " in str(caught.value)


@pytest.mark.row("A-CFG-4")
@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 1e12, float("inf"), 1 << 100])
def test_any_time_from_zero_up_is_a_timeout(timeout):
    assert DispatchConfig(timeout=timeout).timeout == timeout
    assert isinstance(DispatchConfig(timeout=timeout).timeout, float)


def test_a_time_beyond_any_number_is_forever():
    assert DispatchConfig(timeout=10**400).timeout == float("inf")


def test_a_timedelta_is_taken_in_seconds():
    assert DispatchConfig(timeout=timedelta(milliseconds=250)).timeout == 0.25


@pytest.mark.parametrize(
    "field, value, error, text",
    [
        ("timeout", float("nan"), ArgumentValueError, "timeout=nan is not a time"),
        ("timeout", -1e-9, ArgumentValueError, "is not a time"),
        ("timeout", timedelta(seconds=-1), ArgumentValueError, "is not a time"),
        ("timeout", "1", ArgumentTypeError, "timeout='1' is not a time"),
        ("timeout", True, ArgumentTypeError, "is not a time"),
        ("ulp_budget", 256, ArgumentValueError, "ulp_budget=256 is out of range"),
        ("ulp_budget", -1, ArgumentValueError, "ulp_budget=-1 is out of range"),
        ("ulp_budget", 1.0, ArgumentTypeError, "is not a whole number"),
        ("max_output_bytes", 1 << 64, ArgumentValueError, "max_output_bytes=18446744073709551616 is out of range"),
        ("fixpoint_iterations", 1 << 32, ArgumentValueError, "fixpoint_iterations=4294967296 is out of range"),
        ("workgroup_override", (1, 1), ArgumentTypeError, "workgroup_override=(1, 1) is not three numbers"),
        ("workgroup_override", "123", ArgumentTypeError, "is not three numbers"),
        ("grid_override", (1, 1 << 32, 1), ArgumentValueError, "grid_override.y=4294967296 is out of range"),
        ("grid_override", (1, 1, True), ArgumentTypeError, "grid_override.z=True is not a whole number"),
        ("speculation", "maybe", ArgumentValueError, "use one of: auto, force, disable"),
        ("persistent_thread", 1, ArgumentValueError, "persistent_thread=1 is not a mode"),
        ("profile", 3, ArgumentTypeError, "profile is not text"),
        ("label", b"x", ArgumentTypeError, "label is not text"),
        ("grid_override", b"abc", ArgumentTypeError, "is not three numbers"),
        ("grid_override", bytearray(3), ArgumentTypeError, "is not three numbers"),
        ("grid_override", (1, None, 1), ArgumentTypeError, "is not three numbers"),
        ("cooperative", 1, ArgumentTypeError, "cooperative=1 is not a bool"),
        ("cooperative", None, ArgumentTypeError, "cooperative=None is not a bool"),
        ("output_elements", 5, ArgumentTypeError, "output_elements is int, not a mapping"),
        ("output_elements", [("out", 1)], ArgumentTypeError, "output_elements is list, not a mapping"),
        ("output_elements", {1: 1, "out": 1}, ArgumentTypeError, "output_elements has the key 1, which is not a name"),
        ("output_elements", {"out": None}, ArgumentTypeError, "output_elements['out'] is None"),
        ("output_elements", {"o": -1}, ArgumentValueError, "output_elements['o']=-1 is out of range"),
    ],
)
def test_what_no_field_can_hold_is_refused_when_built(field, value, error, text):
    with pytest.raises(error) as caught:
        DispatchConfig(**{field: value})
    assert text in str(caught.value)
    assert "Fix: " in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value


@pytest.mark.parametrize(
    "field, value",
    [
        ("ulp_budget", 0),
        ("ulp_budget", 255),
        ("max_output_bytes", (1 << 64) - 1),
        ("fixpoint_iterations", 0xFFFFFFFF),
        ("grid_override", (0, 0xFFFFFFFF, 1)),
        ("output_elements", {"o": 0xFFFFFFFF}),
    ],
)
def test_the_last_value_in_range_is_accepted(field, value):
    assert getattr(DispatchConfig(**{field: value}), field) == value


def test_modes_may_be_written_as_words_and_dims_as_lists():
    config = DispatchConfig(speculation="force", persistent_thread="auto", grid_override=[1, 2, 3])
    assert config.speculation is SpeculationMode.FORCE
    assert config.persistent_thread is PersistentThreadMode.AUTO
    assert config.grid_override == (1, 2, 3)


# -- settled against a backend ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [DEFAULT_CONFIG, DispatchConfig(timeout=1.0, label="x"), DispatchConfig(profile="default")]
)
def test_a_config_with_nothing_to_fill_in_is_returned_as_it_is(config):
    assert settle_config(config, Mock()) is config


@pytest.mark.row("A-CFG-5")
@pytest.mark.parametrize("count", [1, 2, 4095])
def test_iterations_pass_unchanged(count):
    assert settle_config(DispatchConfig(fixpoint_iterations=count), Mock()).fixpoint_iterations == count


@pytest.mark.row("A-CFG-5")
def test_zero_iterations_are_refused_naming_the_field_and_the_backend():
    with pytest.raises(InvalidProgram) as caught:
        settle_config(DispatchConfig(fixpoint_iterations=0), Mock())
    assert "fixpoint_iterations" in str(caught.value)
    assert "mock" in str(caught.value)
    assert "Fix: " in str(caught.value)


ASKED = [
    ({"cooperative": True}, {"grid_sync": True}, "no grid-wide synchronisation, which cooperative=True asks for"),
    ({"speculation": "force"}, {"speculation": True}, 'no speculation, which speculation="force" asks for'),
    (
        {"persistent_thread": "force"},
        {"persistent_threads": True},
        'no persistent threads, which persistent_thread="force" asks for',
    ),
]


@pytest.mark.row("A-CFG-6")
@pytest.mark.parametrize("asked, offered, text", ASKED)
def test_what_is_forced_needs_a_backend_that_has_it(asked, offered, text):
    config = DispatchConfig(**asked, label="nightly")
    with pytest.raises(UnsupportedFeature) as caught:
        settle_config(config, Mock())
    assert f"backend mock has {text}" in str(caught.value)
    assert "[label='nightly']" in str(caught.value)
    assert "Fix: drop " in str(caught.value)
    assert settle_config(config, Mock(**offered)) is config


@pytest.mark.parametrize("mode", ["auto", "disable"])
def test_what_is_not_forced_needs_nothing(mode):
    config = DispatchConfig(speculation=mode, persistent_thread=mode)
    assert settle_config(config, Mock()) is config


@pytest.mark.parametrize("field", ["workgroup_override", "grid_override"])
@pytest.mark.parametrize("axis", range(3))
def test_an_axis_of_zero_is_refused_naming_the_backend(field, axis):
    dims = tuple(0 if i == axis else 2 for i in range(3))
    with pytest.raises(InvalidProgram) as caught:
        settle_config(DispatchConfig(**{field: dims}), Mock())
    assert f"{field} {dims} has zero-sized dimensions: axis {axis} is 0" in str(caught.value)
    assert caught.value.context["backend"] == "mock"
    settle_config(DispatchConfig(**{field: (1, 1, 1)}), Mock())


# -- profiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_fills_in_what_is_not_set(name):
    settled = settle_config(DispatchConfig(profile=name), Mock())
    assert settled == DispatchConfig(profile=name, **PROFILES[name])
    assert settle_config(settled, Mock()) is settled, "settling twice changes nothing"


def test_a_field_that_is_set_wins_over_the_profile():
    settled = settle_config(DispatchConfig(profile="stress", timeout=0), Mock())
    assert settled.timeout == 0
    assert settled.speculation is SpeculationMode.DISABLE


def test_an_unknown_profile_is_refused_with_the_known_ones():
    backend = Mock(extras={"profiles": {"night": {"timeout": 9.0}}})
    with pytest.raises(UnsupportedFeature) as caught:
        settle_config(DispatchConfig(profile="turbo", label="nightly"), backend)
    assert "backend mock has no profile 'turbo'" in str(caught.value)
    assert "[label='nightly']" in str(caught.value)
    assert caught.value.fix == "use one of: default, interactive, night, stress"


def test_a_backend_adds_profiles_and_may_redefine_ours():
    own = {"night": {"timeout": 9.0, "speculation": "force"}, "interactive": {"timeout": 0.5}}
    backend = Mock(speculation=True, extras={"profiles": own})
    assert settle_config(DispatchConfig(profile="night"), backend).speculation is SpeculationMode.FORCE
    assert settle_config(DispatchConfig(profile="interactive"), backend).timeout == 0.5
    assert settle_config(DispatchConfig(profile="stress"), backend).timeout == PROFILES["stress"]["timeout"]


def test_what_a_profile_forces_needs_a_backend_that_has_it():
    backend = Mock(extras={"profiles": {"night": {"speculation": "force"}}})
    with pytest.raises(UnsupportedFeature, match="no speculation"):
        settle_config(DispatchConfig(profile="night"), backend)


@pytest.mark.parametrize("field", ["cooperative", "profile", "label", "speed"])
def test_a_profile_that_sets_what_no_profile_can_set_is_the_backends_mistake(field):
    backend = Mock(extras={"profiles": {"night": {field: True}}})
    with pytest.raises(BackendError, match=f"profile 'night' of backend mock sets {field}") as caught:
        settle_config(DispatchConfig(profile="night"), backend)
    assert "timeout" in caught.value.fix


def test_a_config_is_frozen():
    with pytest.raises(AttributeError):
        DEFAULT_CONFIG.timeout = 1.0
    assert replace(DEFAULT_CONFIG, timeout=1.0).timeout == 1.0
