"""Decisions are values: the funnel branches on them and counts them, and explain prints the same ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vyre
from vyre.backends.reference import REGISTRATION
from vyre.driver import counters
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.plan.stages import decide_launch
from vyre.driver.policy.code import (
    BUFFER,
    EXACT,
    INLINE,
    OWN,
    SHARED,
    WITHIN,
    choose_floats,
    choose_layout,
    choose_parameters,
)
from vyre.driver.policy.geometry import (
    ALONE,
    ALONG_X,
    ALONG_Y,
    DECLARED,
    GIVEN,
    GROUPED,
    IN_MEMORY,
    INFERRED,
    JOINED,
    OVERRIDDEN,
    WIDE,
    choose_block,
    choose_lanes,
    choose_threads,
    choose_workgroup,
    grid_from,
)
from vyre.driver.policy.launch import (
    BY_BACKEND,
    BY_DRIVER,
    COOPERATIVE,
    NEVER,
    NONE,
    PLAIN,
    RECORDED_BYTES,
    SEQUENCE,
    WHEN_REPEATED,
    LaunchCosts,
    choose_deadline,
    choose_recording,
)
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import IndirectDispatch, InvocationId, Load, Store
from vyre.foundation.ir.program import Program, read, read_write
from vyre.runtime.device import Artifact

from ....support.device_backends import open_or_skip


class Device(vyre.VyreBackend, contract=1):
    id = "decided"

    def __init__(self, **facts):
        self.capability = vyre.BackendCapability(max_workgroups_per_dimension=8, **facts)

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise NotImplementedError


@vyre.kernel(workgroup=1)
def plain(x: vyre.In[vyre.u32], y: vyre.Out[vyre.u32]):
    y[vyre.gid.x] = x[vyre.gid.x]


@vyre.kernel(workgroup=1)
def waiting(x: vyre.InOut[vyre.u32], y: vyre.Out[vyre.u32]):
    x[vyre.gid.x] = 1
    vyre.grid_sync()
    y[vyre.gid.x] = x[vyre.gid.x ^ 1]


WHOLE = {"grid_sync": True, "host_grid_sync_split": False}


@pytest.mark.parametrize(
    "facts, kernel, grid, holds, config, choice, launches",
    [
        ({}, plain, (8, 1, 1), True, DEFAULT_CONFIG, PLAIN, None),
        ({}, plain, (9, 1, 1), True, DEFAULT_CONFIG, SEQUENCE, 2),
        ({}, plain, (9, 17, 1), True, DEFAULT_CONFIG, SEQUENCE, 6),
        ({}, waiting, (8, 1, 1), True, DEFAULT_CONFIG, SEQUENCE, 2),
        ({"grid_sync": True}, waiting, (8, 1, 1), True, DEFAULT_CONFIG, COOPERATIVE, None),
        ({"grid_sync": True}, waiting, (8, 1, 1), False, DEFAULT_CONFIG, SEQUENCE, 2),
        ({"grid_sync": True}, waiting, (8, 1, 1), False, DispatchConfig(cooperative=True), COOPERATIVE, None),
        (WHOLE, waiting, (8, 1, 1), False, DEFAULT_CONFIG, COOPERATIVE, None),
    ],
)  # fmt: skip
def test_a_dispatch_is_one_launch_where_the_device_takes_it_whole(facts, kernel, grid, holds, config, choice, launches):
    decided = decide_launch(kernel.program, Device(**facts), config, grid, holds=holds)
    assert (decided.what, decided.choice, decided.numbers.get("launches")) == ("launch", choice, launches)
    assert decided.reason


@pytest.mark.parametrize(
    "deadline, timeout, choice", [("none", None, NONE), ("none", 1.0, BY_DRIVER), ("cooperative", 1.0, BY_BACKEND)]
)
def test_the_driver_keeps_a_deadline_that_the_backend_does_not(deadline, timeout, choice):
    decided = choose_deadline(timeout, backend="decided", keeps=deadline)
    assert decided.choice == choice
    assert decided.numbers == ({} if timeout is None else {"timeout_s": timeout})


@pytest.mark.parametrize("kernel, choice", [(plain, PLAIN), (waiting, SEQUENCE)])
def test_what_explain_prints_is_what_the_funnel_decides_and_counts(kernel, choice):
    call, x = kernel.on("cpu"), np.arange(64, dtype=np.uint32)
    explained = call.explain(x).choice("launch")
    before = counters.decision_counters().get(("launch", choice), 0)
    call(x.copy(), config=DispatchConfig(label=f"decided {choice}", timeout=30))
    call(x.copy(), config=DispatchConfig(label=f"decided {choice}", timeout=30))  # planned once
    assert counters.decision_counters()["launch", choice] > before
    assert counters.decision_counters()["deadline", BY_BACKEND] >= 1
    assert explained == choice


# ---- what a dispatch runs over --------------------------------------------------------------------------------------

GID = InvocationId(0)
COPY = Program([read("x", 0, u32), read_write("y", 1, u32)], (4, 1, 1), [Store("y", GID, Load("x", GID))])
MEASURED = Program(
    [read("n", 0, u32), read_write("y", 1, u32)], (4, 1, 1), [IndirectDispatch("n", 0), Store("y", GID, GID)]
)
WORDS = np.arange(12, dtype=np.uint32)
WORKGROUPS = np.array([3, 1, 1], np.uint32)


def told(pipeline, inputs, config=None):
    return {d.what: d for d in pipeline.explain(inputs, config).decisions}


def grown(before):
    after = counters.decision_counters()
    return {made: n - before.get(made, 0) for made, n in after.items() if n != before.get(made, 0)}


@pytest.mark.parametrize("backend", ["cpu", "reference", "opencl", "wgpu"])
@pytest.mark.parametrize(
    "program, inputs, config, workgroup, grid",
    [
        (COPY, [WORDS, WORDS], DispatchConfig(), DECLARED, INFERRED),
        (COPY, [WORDS, WORDS], DispatchConfig(workgroup_override=(2, 1, 1)), OVERRIDDEN, INFERRED),
        (COPY, [WORDS, WORDS], DispatchConfig(grid_override=(3, 1, 1)), DECLARED, GIVEN),
        (MEASURED, [WORKGROUPS, WORDS], DispatchConfig(), DECLARED, IN_MEMORY),
    ],
)
def test_a_workgroup_and_a_grid_are_counted_and_explained_and_no_byte_shows_it(
    backend, program, inputs, config, workgroup, grid
):
    opened = open_or_skip(backend) if backend in ("opencl", "wgpu") else vyre.acquire(backend)
    pipeline, before = pipelines.compile(opened, program), counters.decision_counters()
    assert np.array_equal(np.frombuffer(pipeline.dispatch(inputs, config)[0], np.uint32), WORDS)
    assert {made: n for made, n in grown(before).items() if made[0] in ("workgroup", "grid")} == {
        ("workgroup", workgroup): 1,
        ("grid", grid): 1,
    }
    found = told(pipeline, inputs, config)
    assert (found["workgroup"].choice, found["grid"].choice) == (workgroup, grid)
    size = config.workgroup_override or (4, 1, 1)
    assert found["workgroup"].reason.startswith(f"{size[0]}x1x1: ")
    assert found["grid"].reason.startswith(f"{12 // size[0]}x1x1: ")


def test_where_a_grid_comes_from_is_said_in_words():
    assert str(grid_from((3, 1, 1), memory="n", given="grid_override")) == (
        "grid: in memory (3x1x1: the program takes it from n)"
    )
    assert str(grid_from((3, 1, 1), given="grid_override")) == "grid: given (3x1x1: grid_override)"
    assert str(grid_from((3, 2, 1), covers="covers all")) == "grid: inferred (3x2x1: covers all)"
    assert str(choose_workgroup((4, 1, 1), None)) == "workgroup: declared (4x1x1: the program declares it)"
    assert str(choose_workgroup((4, 1, 1), (8, 2, 1))) == "workgroup: overridden (8x2x1: workgroup_override)"


@pytest.mark.parametrize("options", [{}, {"domain": 7}, {"grid": 2}, {"y": np.zeros(12, np.uint32)}])
def test_a_call_is_explained_without_a_config_that_its_caller_did_not_write(options):
    found = plain.on("cpu").explain(WORDS, **options)
    assert "grid_override" not in str(found)
    assert "output_elements" not in str(found)
    assert found.choice("config") == "default"
    assert found.choice("grid") == (GIVEN if options.keys() & {"domain", "grid"} else INFERRED)


def test_a_call_is_explained_with_the_config_that_its_caller_wrote():
    config = DispatchConfig(grid_override=(12, 1, 1), label="mine")
    found = {d.what: str(d) for d in plain.on("cpu").explain(WORDS, config=config).decisions}
    assert found["config"] == "config: this call (it sets label, grid_override)"
    assert found["grid"] == "grid: given (12x1x1: config.grid_override of the call)"


def test_determinism_is_decided_where_it_is_demanded_and_explained_where_not():
    pipeline, before = pipelines.compile(vyre.acquire("cpu"), COPY), counters.decision_counters()
    pipeline.dispatch([WORDS, WORDS])
    assert ("determinism", "proved") not in grown(before)
    assert told(pipeline, [WORDS, WORDS])["determinism"].choice == "proved"
    demanding = DispatchConfig(determinism="require")
    pipeline.dispatch([WORDS, WORDS], demanding)
    assert grown(before)["determinism", "proved"] == 1
    assert [d.what for d in pipeline.explain([WORDS, WORDS], demanding).decisions].count("determinism") == 1
    assert told(pipeline, [WORDS, WORDS], DispatchConfig(grid_override=(3, 2, 1)))["determinism"].choice == "unproved"


# ---- code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget, facts, choice",
    [
        (None, {"native": ["exp"]}, EXACT),
        (0, {"native": ["exp"]}, EXACT),
        (1, {}, EXACT),
        (1, {"native": ["exp"]}, WITHIN),
        (1, {"native": ["exp"], "has_functions": False}, EXACT),
        (1, {"native": ["exp"], "float64": True}, EXACT),
    ],
)
def test_floats_are_exact_unless_a_budget_and_the_device_say_otherwise(budget, facts, choice):
    assert choose_floats(budget, **facts).choice == choice


def test_floats_are_counted_when_a_config_is_first_seen():
    exactly = REGISTRATION.open()  # which counts nothing

    class Near(Device):
        id = "near"

        def __init__(self):
            self.capability = vyre.BackendCapability(
                ops=None,
                max_workgroup_size=(64, 1, 1),
                max_workgroups_per_dimension=9,
                exactness={"native": {"exp": 2}},
            )

        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            return exactly.dispatch(program, inputs, config.with_(ulp_budget=None), out=out)

    @vyre.kernel(workgroup=4)
    def growth(x: vyre.InOut[vyre.f32]):
        x[vyre.gid.x] = vyre.exp(x[vyre.gid.x])

    pipeline, x = pipelines.compile(Near(), growth.program), np.ones(4, np.float32)
    before, config = counters.decision_counters(), DispatchConfig(ulp_budget=2)
    exact = pipeline.dispatch([x])
    assert pipeline.dispatch([x], config) == pipeline.dispatch([x], config) == exact
    assert {made: n for made, n in grown(before).items() if made[0] == "floats"} == {
        ("floats", EXACT): 1,
        ("floats", WITHIN): 1,
    }
    assert str(told(pipeline, [x], config)["floats"]) == (
        "floats: within ulp_budget (each operation within 2 ulp: the device's own exp may be used)"
    )
    assert told(pipeline, [x])["floats"].choice == EXACT


@pytest.mark.parametrize("nbytes, room, choice", [(32, 32, INLINE), (36, 32, BUFFER), (32, 0, BUFFER), (0, 32, INLINE)])
def test_parameters_are_inline_where_the_device_has_room(nbytes, room, choice):
    decided = choose_parameters(nbytes, room)
    assert (decided.what, decided.choice) == ("parameters", choice)
    assert decided.numbers == {"bytes": nbytes, "inline_bytes": room}


def test_where_parameters_are_is_counted_and_explained_and_no_byte_shows_it():
    inline = open_or_skip("wgpu")
    if not inline.session().device.immediate_bytes:
        pytest.skip("this device takes no parameters with a launch")
    results = []
    for backend, choice in ((inline, INLINE), (type(inline)(immediates=False), BUFFER)):
        before = counters.decision_counters()
        pipeline = pipelines.compile(backend, COPY)
        results.append(bytes(pipeline.dispatch([WORDS, WORDS])[0]))
        found, counted = told(pipeline, [WORDS, WORDS]), grown(before)
        assert (found["parameters"].choice, counted["parameters", choice]) == (choice, 1)
        assert ("var<immediate>" in pipeline.native.source) == (choice == INLINE)
        stored = Artifact.from_bytes(pipeline.native.serialize()).facts
        assert stored.decisions == pipeline.native.built.facts.decisions == (found["parameters"],)
        backend.shutdown()
    assert results == [WORDS.tobytes()] * 2


def test_code_with_the_same_table_shares_a_layout_and_says_so():
    assert (choose_layout(2, known=False).choice, choose_layout(2, known=True).choice) == (OWN, SHARED)
    backend = open_or_skip("wgpu")
    other = Program(COPY.buffers, (8, 1, 1), COPY.entry)  # the same buffers
    third = Program([read_write("x", 0, u32), read_write("y", 1, u32)], (4, 1, 1), COPY.entry)
    groups = []
    for program, choice in ((COPY, OWN), (other, SHARED), (third, OWN)):
        before = counters.decision_counters()
        pipeline = pipelines.compile(backend, program)
        assert bytes(pipeline.dispatch([WORDS, WORDS])[-1]) == WORDS.tobytes()
        assert grown(before)["layout", choice] == 1
        assert told(pipeline, [WORDS, WORDS])["layout"].choice == choice
        groups.append(pipeline.native.require_open().groups)
    assert groups[0] is groups[1]
    assert groups[0] is not groups[2]
    backend.shutdown()


# ---- blocks and recordings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "workgroup, facts, choice",
    [
        ((63, 1, 1), {}, JOINED),
        ((64, 1, 1), {}, ALONE),
        ((65, 1, 1), {}, JOINED),
        ((96, 1, 1), {}, ALONE),
        ((16, 1, 1), {"apart": False}, ALONE),
        ((16, 2, 1), {}, ALONE),
        ((16, 1, 1), {"each": 2}, WIDE),
    ],
)
def test_small_workgroups_whose_invocations_are_apart_are_joined(workgroup, facts, choice):
    assert choose_block(workgroup, **{"apart": True, "each": 1, "step": 32} | facts).choice == choice


@pytest.mark.parametrize(
    "x, y, choice",
    [
        (0, None, ALONG_X), (-3, -3, ALONG_X), (-3, 1, ALONG_Y), (2, 3, ALONG_Y), (-3, 0, ALONG_X), (-3, -1, ALONG_X),
        (None, 1, ALONG_Y), (None, 0, GROUPED), (None, None, GROUPED),
    ],
)  # fmt: skip
def test_vectors_lie_along_the_axis_whose_neighbours_access_neighbours(x, y, choice):
    assert choose_lanes(x, y).choice == choice


def test_a_block_has_the_threads_with_which_most_run():
    decided = choose_threads(lambda size: 900 // size)
    assert (decided.choice, decided.numbers) == ("128", {"threads": 128, "together": 896})


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_recording_is_paid_back_by_the_run_at_which_it_is_made_and_not_before(launch, record, replay):
    first = LaunchCosts(launch, record, replay).first_recorded_run
    if launch <= replay:
        assert first is None
    else:
        assert first is not None
        assert first * (launch - replay) >= record
        assert first == 1 or (first - 1) * (launch - replay) < record


@pytest.mark.parametrize(
    "costs, nbytes, differs, choice",
    [
        (LaunchCosts(5, 20, 1), RECORDED_BYTES, None, WHEN_REPEATED),
        (LaunchCosts(5, 20, 1), RECORDED_BYTES + 1, None, NEVER),
        (LaunchCosts(5, 20, 1), None, None, WHEN_REPEATED),
        (LaunchCosts(5, 20, 1), None, "its grid lies in memory", NEVER),
        (LaunchCosts(5, 20, 5), 0, None, NEVER),
        (LaunchCosts(), 0, None, NEVER),
    ],
)
def test_a_dispatch_is_recorded_if_that_is_faster_and_every_run_is_alike(costs, nbytes, differs, choice):
    decided = choose_recording(costs, copied_bytes=nbytes, differs=differs)
    assert (decided.what, decided.choice) == ("recording", choice)
    assert differs is None or decided.reason == differs
