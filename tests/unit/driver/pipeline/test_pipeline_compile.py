"""Compiling: admission first, then the cache, then the backend; and a config per dispatch."""

import json
import random
import struct

import pytest

from vyre import f32, u32
from vyre.conform.programs.random import random_program
from vyre.driver.contract import BackendCapability, CompiledPipeline, ReadyPending, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig, TimedDispatchResult
from vyre.driver.counters import counters
from vyre.driver.execute.pipeline import DriverPipeline
from vyre.driver.guard import compile as pipeline
from vyre.driver.pipeline import PassthroughPipeline, pipelines_of
from vyre.driver.plan import BindingPlan, LaunchPlan
from vyre.driver.selection.registry import acquire
from vyre.errors import (
    ArgumentTypeError,
    DispatchFailed,
    InvalidProgram,
    KernelCompileFailed,
    UnsupportedFeature,
    VyreError,
)
from vyre.foundation.ir.nodes import BinOp, Lit, Load, Store, UnOp, lit
from vyre.foundation.ir.ops import BinaryOp, UnaryOp
from vyre.foundation.ir.program import Program, output, read, write_only


def storing(value=7):
    return Program([output("out", 0, u32, 1)], (1, 1, 1), [Store("out", Lit(u32, 0), Lit(u32, value))])


def exponential():
    """A program with a function that an error budget is for."""
    body = [Store("out", Lit(u32, 0), UnOp(UnaryOp.EXP, lit(1.0, f32)))]
    return Program([output("out", 0, f32, 1)], (1, 1, 1), body)


def copying():
    """out[0] = a[0], both of any length."""
    body = [Store("out", Lit(u32, 0), Load("a", Lit(u32, 0)))]
    return Program([read("a", 0, u32), write_only("out", 1, u32)], (1, 1, 1), body)


class Recorder(VyreBackend, contract=1):
    """Compiles nothing; remembers which method ran with which config."""

    id = "recorder"

    def __init__(self):
        self.calls = []

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls.append(("dispatch", config))
        return [b"\7\0\0\0"]


class Borrowing(Recorder):
    """Overrides every way to dispatch."""

    def dispatch_borrowed(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls.append(("borrowed", config))
        return [b"\7\0\0\0"]

    def dispatch_timed(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls.append(("timed", config))
        return TimedDispatchResult([b"\7\0\0\0"], 5, device_ns=3)

    def dispatch_async(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls.append(("async", config))
        return ReadyPending([b"\7\0\0\0"])


class Native(CompiledPipeline):
    backend_id = "native"

    def __init__(self, config):
        self.id, self.compiled_with, self.seen = "native:x", config, []

    def dispatch(self, inputs, config=None, *, out=None):
        self.seen.append(config)
        return [struct.pack("<I", self.compiled_with.ulp_budget or 0)]


class NativeBackend(VyreBackend, contract=1):
    """Bakes its compile-time config into what it compiles, as an error budget does."""

    id = "native"
    capability = BackendCapability(
        max_workgroup_size=(64, 1, 1),
        max_workgroups_per_dimension=8,
        deadline="cooperative",
        exactness={"native": {"exp": 2}},
    )

    def __init__(self):
        self.pipelines = []

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise AssertionError("it compiles")

    def compile_native(self, program, config):
        self.pipelines.append(Native(config))
        return self.pipelines[-1]


# ---- passthrough ----------------------------------------------------------------------------------------------------


@pytest.mark.row("A-PL-1")
def test_ten_dispatches_of_a_passthrough_reach_the_backend_ten_times():
    backend = Recorder()
    compiled = pipeline.compile(backend, storing())
    for _ in range(10):
        assert compiled.dispatch([]) == [b"\7\0\0\0"]
    assert len(backend.calls) == 10


@pytest.mark.row("A-PL-3")
def test_ids_start_with_the_backend():
    program = storing()
    assert pipeline.compile(Recorder(), program).id == f"recorder:passthrough:{program.fingerprint[:16]}"
    assert pipeline.compile(NativeBackend(), program).id == "native:x"
    assert pipeline.compile(acquire("reference"), program).id.startswith("reference:")


@pytest.mark.row("A-PL-6")
def test_each_way_to_dispatch_reaches_the_backends_own():
    backend = Borrowing()
    compiled = pipeline.compile(backend, storing())
    compiled.dispatch([])
    assert compiled.dispatch_timed([]).device_ns == 3
    assert compiled.dispatch_async([]).result() == [b"\7\0\0\0"]
    compiled.dispatch_batch([[], []])
    assert [name for name, _ in backend.calls] == ["borrowed", "timed", "async", "borrowed", "borrowed"]


def test_a_passthrough_by_itself_uses_its_config_unless_it_is_given_one():
    backend = Borrowing()
    own, given = DispatchConfig(label="own"), DispatchConfig(label="given")
    direct = PassthroughPipeline(backend, storing(), own)
    direct.dispatch([])
    direct.dispatch([], given)
    direct.dispatch_timed([])
    direct.dispatch_async([], given)
    assert [config.label for _, config in backend.calls] == ["own", "given", "own", "given"]


@pytest.mark.row("A-PL-7")
@pytest.mark.parametrize(
    "given, used", [(None, "compiled"), (DispatchConfig(), "compiled"), (DispatchConfig(label="call"), "call")]
)
def test_a_dispatch_uses_the_compile_time_config_unless_it_brings_another(given, used):
    backend = Borrowing()
    compiled = pipeline.compile(backend, storing(), DispatchConfig(label="compiled"))
    compiled.dispatch([], given)
    compiled.dispatch_timed([], given)
    compiled.dispatch_async([], given)
    compiled.dispatch_batch([[]], given)
    assert [config.label for _, config in backend.calls] == [used] * 4


def test_handles_that_share_code_keep_their_own_configs():
    backend = Recorder()
    one = pipeline.compile(backend, storing(), DispatchConfig(label="one"))
    two = pipeline.compile(backend, storing())
    assert one.native is two.native
    two.dispatch([])
    one.dispatch([])
    assert [config.label for _, config in backend.calls] == [None, "one"]


# ---- native ---------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-PL-8")
def test_what_the_backend_compiled_is_what_runs():
    backend = NativeBackend()
    compiled = pipeline.compile(backend, storing())
    assert compiled.native is backend.pipelines[0]
    compiled.dispatch([])
    assert backend.pipelines[0].seen == [DEFAULT_CONFIG]


def test_a_backend_compiles_with_the_fields_of_the_key_and_no_others():
    backend = NativeBackend()
    config = DispatchConfig(label="a", ulp_budget=2, timeout=1.5, max_output_bytes=64, grid_override=(2, 1, 1))
    pipeline.compile(backend, exponential(), config)
    seen = backend.pipelines[0].compiled_with
    assert seen == DispatchConfig(ulp_budget=2, timeout=float("inf"))


def test_a_dispatch_that_needs_other_code_gets_it_through_the_cache():
    backend = NativeBackend()
    compiled = pipeline.compile(backend, exponential())
    before = counters()["recompiled_routes"]
    exact, loose = DispatchConfig(label="exact"), DispatchConfig(ulp_budget=9)
    results = [compiled.dispatch([], c)[0][0] for c in (exact, loose, None, loose, DispatchConfig(ulp_budget=9))]
    assert results == [0, 9, 0, 9, 9]
    assert len(backend.pipelines) == 2
    assert counters()["recompiled_routes"] - before == 1
    assert pipeline.compile_with_telemetry(backend, exponential(), loose).cache_hit


@pytest.mark.parametrize(
    "config, compilations",
    [
        (DispatchConfig(timeout=1.0), 2),
        (DispatchConfig(workgroup_override=(2, 1, 1)), 2),
        (DispatchConfig(ulp_budget=0), 1),
        (DispatchConfig(grid_override=(2, 1, 1)), 1),
        (DispatchConfig(max_output_bytes=4), 1),
        (DispatchConfig(fixpoint_iterations=2), 1),
    ],
)
def test_only_fields_that_change_code_compile_again(config, compilations):
    backend = NativeBackend()
    compiled = pipeline.compile(backend, storing())
    compiled.dispatch([], config)
    assert len(backend.pipelines) == compilations
    assert backend.pipelines[-1].seen == [config]


def test_a_dispatch_config_that_the_backend_cannot_keep_is_refused_with_its_label():
    compiled = pipeline.compile(NativeBackend(), storing())
    with pytest.raises(UnsupportedFeature, match=r"cooperative") as caught:
        compiled.dispatch([], DispatchConfig(cooperative=True, label="mine"))
    assert caught.value.context["label"] == "mine"


def test_a_pipeline_keeps_its_code_when_the_cache_has_thrown_it_out(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "1")
    backend = NativeBackend()
    compiled = pipeline.compile(backend, storing(1))
    pipeline.compile(backend, storing(2))
    compiled.dispatch([], DispatchConfig(label="a new lane"))
    assert len(backend.pipelines) == 2


# ---- telemetry ------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-PL-4")
def test_a_build_reports_what_was_compiled():
    program = exponential()
    build = pipeline.compile_with_telemetry(NativeBackend(), program, DispatchConfig(ulp_budget=2))
    manifest = json.loads(build.manifest.to_json())
    assert manifest == {
        "schema": 1,
        "backend_id": "native",
        "pipeline_id": build.pipeline.id,
        "program_digest": program.fingerprint,
        "dispatch_policy": "ulp_budget=2:deadline=no:workgroup_override=none:speculation=none:persistent_thread=none:"
        "cooperative=no",
        "key_digest": build.pipeline.key.digest().hex(),
        "cache_hit": False,
    }


@pytest.mark.row("A-PL-5", "A-PL-9")
def test_prewarming_dispatches_nothing_and_the_second_time_it_is_a_hit():
    backend = Recorder()
    cold, hot = pipeline.prewarm(backend, storing()), pipeline.prewarm(backend, storing())
    assert backend.calls == []
    assert (cold.cache_hit, hot.cache_hit) == (False, True)
    assert cold.pipeline_id == cold.manifest.pipeline_id == pipeline.compile(backend, storing()).id
    snapshot = pipelines_of(backend).snapshot()
    assert (snapshot.hits, snapshot.misses, snapshot.entries) == (2, 1, 1)


def test_a_miss_explains_itself_and_a_hit_has_nothing_to_explain():
    backend = NativeBackend()
    first = pipeline.compile_with_telemetry(backend, exponential())
    second = pipeline.compile_with_telemetry(backend, exponential(), DispatchConfig(ulp_budget=3, timeout=1.0))
    third = pipeline.compile_with_telemetry(backend, exponential())
    assert first.evidence.reason == "empty_cache"
    assert second.evidence.reason == "dispatch_policy_changed"
    assert second.evidence.nearest == first.pipeline.key.record
    assert second.evidence.differing == ("ulp_budget", "deadline")
    assert third.evidence is None


def test_two_instances_of_a_backend_do_not_share_pipelines():
    one, two = NativeBackend(), NativeBackend()
    assert pipeline.compile(one, storing()).native is not pipeline.compile(two, storing()).native


@pytest.mark.row("A-PL-2")
def test_programs_built_apart_share_one_pipeline():
    backend = NativeBackend()
    handles = [pipeline.compile(backend, storing()), pipeline.compile(backend, Program.from_wire(storing().to_wire()))]
    assert handles[0].native is handles[1].native
    assert len(backend.pipelines) == 1


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-PL-10")
@pytest.mark.parametrize("entry", [(), (Store("out", Lit(u32, 0), Lit(u32, 7)),)])
def test_a_program_that_is_not_wrapped_in_regions_is_refused(entry):
    program = Program.of_entry([output("out", 0, u32, 1)], (1, 1, 1), entry)
    with pytest.raises(InvalidProgram, match=r"top-level Region-wrapped Program.*Fix: build it with Program") as caught:
        pipeline.compile(Recorder(), program, DispatchConfig(label="mine"))
    assert caught.value.context["label"] == "mine"


def test_a_program_the_backend_does_not_run_is_refused_before_it_compiles():
    backend = NativeBackend()
    wide = Program([output("out", 0, u32, 1)], (128, 1, 1), [Store("out", Lit(u32, 0), Lit(u32, 7))])
    with pytest.raises(UnsupportedFeature, match="axis 0 is 128; max is 64"):
        pipeline.compile(backend, wide)
    with pytest.raises(UnsupportedFeature, match="axis 0 is 65; max is 64"):
        pipeline.compile(backend, storing(), DispatchConfig(workgroup_override=(65, 1, 1)))
    assert backend.pipelines == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((storing(), Recorder()), "backend is Program, not a VyreBackend"),
        ((Recorder(), b"program"), "program is bytes, not a Program"),
        ((Recorder(), storing(), {"timeout": 1}), "config is dict"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ArgumentTypeError, match=message + ".*Fix: "):
        pipeline.compile(*arguments)


def test_a_failing_compilation_carries_the_label():
    class Failing(NativeBackend):
        def compile_native(self, program, config):
            raise KernelCompileFailed("rejected", fix="report the kernel")

    with pytest.raises(KernelCompileFailed) as caught:
        pipeline.compile(Failing(), storing(), DispatchConfig(label="mine"))
    assert caught.value.context == {"label": "mine"}


def test_a_closed_pipeline_is_refused_and_the_others_still_run():
    backend = NativeBackend()
    one, two = pipeline.compile(backend, storing()), pipeline.compile(backend, storing())
    with one:
        one.dispatch([])
    one.close()
    for call in (one.dispatch, one.dispatch_timed, one.dispatch_async):
        with pytest.raises(VyreError, match=r"the pipeline is closed.*Fix: compile the program again"):
            call([])
    two.dispatch([])


# ---- on the reference -----------------------------------------------------------------------------------------------


@pytest.mark.row("A-PL-15")
def test_plan_compile_and_dispatch_give_the_product_of_sum_and_difference():
    a, b = Load("a", Lit(u32, 0)), Load("b", Lit(u32, 0))
    value = BinOp(BinaryOp.MUL, BinOp(BinaryOp.ADD, a, b), BinOp(BinaryOp.SUB, a, b))
    program = Program(
        [read("a", 0, u32, 1), read("b", 1, u32, 1), output("out", 2, u32, 1)],
        (1, 1, 1),
        [Store("out", Lit(u32, 0), value)],
    )
    inputs = [struct.pack("<I", 13), struct.pack("<I", 7)]
    bindings = BindingPlan.from_inputs(program, inputs)
    assert LaunchPlan.prepare(program, bindings).grid == (1, 1, 1)
    backend = acquire("reference")
    (out,) = pipeline.compile(backend, program).dispatch(inputs)
    assert struct.unpack("<I", out) == (120,)
    assert backend.dispatch(program, inputs) == [out]


@pytest.mark.row("A-CP-6")
@pytest.mark.parametrize("seed", range(20))
def test_a_pipeline_gives_the_bytes_of_a_direct_dispatch(seed):
    case = random_program(random.Random(seed))
    config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements or None)
    backend = acquire("reference")
    direct = [bytes(b) for b in backend.dispatch(case.program, case.inputs, config)]
    compiled = pipeline.compile(backend, case.program, config)
    assert isinstance(compiled, DriverPipeline)
    assert [bytes(b) for b in compiled.dispatch(case.inputs)] == direct
    assert [bytes(b) for b in compiled.dispatch_async(case.inputs).result()] == direct
    assert [[bytes(b) for b in outs] for outs in compiled.dispatch_batch([case.inputs] * 2)] == [direct] * 2
    out = [bytearray(len(b)) for b in direct]
    assert compiled.dispatch(case.inputs, out=out) == out == direct


def test_a_workgroup_override_at_dispatch_gives_the_same_bytes():
    program = copying()
    compiled = pipeline.compile(acquire("reference"), program)
    data = struct.pack("<4I", 1, 2, 3, 4)
    assert compiled.dispatch([data]) == compiled.dispatch([data], DispatchConfig(workgroup_override=(4, 1, 1)))


@pytest.mark.parametrize("wrong", [b"code", 5, lambda inputs: inputs])
def test_a_backend_that_compiles_to_something_else_is_refused(wrong):
    class Odd(NativeBackend):
        def compile_native(self, program, config):
            return wrong

    with pytest.raises(KernelCompileFailed, match=r"backend native compiled .* not a CompiledPipeline.*Fix: correct"):
        pipeline.compile(Odd(), storing())


def test_a_foreign_exception_while_compiling_is_typed_and_not_remembered():
    class Flaky(NativeBackend):
        failing = True

        def compile_native(self, program, config):
            if self.failing:
                raise OSError("no disk")
            return super().compile_native(program, config)

    backend = Flaky()
    with pytest.raises(DispatchFailed, match=r"backend native raised OSError while compiling: no disk") as caught:
        pipeline.compile(backend, storing())
    assert isinstance(caught.value.__cause__, OSError)
    backend.failing = False
    assert pipeline.compile(backend, storing()).id == "native:x"
