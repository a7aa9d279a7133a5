"""A shadow returns what the main pipeline gave, checks an exact share of it, and says exactly what differs."""

import logging
import pickle
import random
import struct
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, gid, u32
from vyre.backends.reference import REGISTRATION as REFERENCE
from vyre.conform.generate import random_program
from vyre.conform.witness import u32_matrix, u32_witnesses
from vyre.driver import execute, pipeline
from vyre.driver.contract import BackendRegistration, CompiledPipeline, VyreBackend
from vyre.driver.registry import isolated
from vyre.driver.shadow import (
    BackendRejected,
    ConformanceError,
    ConformanceMatrix,
    Diverged,
    DivergenceEvent,
    EmptyMatrix,
    NotComparable,
    ReferenceRejected,
    ShadowedPipeline,
    assert_exhaustive_byte_identity,
    check_matrix,
)
from vyre.driver.values import DEFAULT_CONFIG, DispatchConfig, HostResource
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendError,
    BackendUnavailable,
    DispatchFailed,
    UnsupportedFeature,
)
from vyre.foundation.determinism import determinism
from vyre.foundation.dtypes import f32
from vyre.foundation.ir import InvocationId, Load, Store, UnOp
from vyre.foundation.ops import UnaryOp
from vyre.foundation.program import Program, read, write_only


@vyre.kernel(workgroup=4)
def double(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


@vyre.kernel(workgroup=4)
def increment(n: InOut[u32]):
    if gid.x < len(n):
        n[gid.x] = n[gid.x] + 1


@vyre.kernel(workgroup=1)
def compact(x: In[u32], kept: InOut[u32], count: InOut[u32]):
    """Keeps what is odd, in the order in which invocations come by."""
    if gid.x < len(x) and x[gid.x] % 2 == 1:
        kept[atomic_add(count, 0, 1)] = x[gid.x]


DOUBLE, INCREMENT, COMPACT = double.program, increment.program, compact.program
SINE = Program(
    [read("x", 0, f32), write_only("out", 1, f32)],
    (1, 1, 1),
    [Store("out", InvocationId(0), UnOp(UnaryOp.SIN, Load("x", InvocationId(0))))],
)


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


class Doubtful(VyreBackend, contract=1):
    """The reference under another name, whose outputs pass through `twist(inputs, outputs)`."""

    id = "doubtful"
    capability = REFERENCE.open().capability

    def __init__(self, twist=None):
        self.inner, self.twist, self.calls = REFERENCE.open(), twist, 0

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        self.calls += 1
        outputs = [bytearray(b) for b in self.inner.dispatch(program, inputs, config)]
        if self.twist is not None:
            self.twist([bytes(b) for b in inputs], outputs)
        if out is None:
            return outputs
        for target, data in zip(out, outputs, strict=True):
            memoryview(target).cast("B")[:] = data
        return list(out)


def one_more(inputs, outputs):
    """A mistake in the last element of the last output."""
    outputs[-1][-4] ^= 1


class Fixed(CompiledPipeline):
    """A pipeline that answers what it was told, and counts."""

    def __init__(self, program, *outputs, id="fixed"):
        self.program, self.outputs, self.calls = program, list(outputs), 0
        self.id, self.backend_id = f"{id}:0", id

    def dispatch(self, inputs, config=None, *, out=None):
        self.calls += 1
        answer = self.outputs[0](inputs) if callable(self.outputs[0]) else self.outputs
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


def shadowed(program=DOUBLE, twist=None, **options):
    main = pipeline.compile(Doubtful(twist), program)
    return ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), program), **options)


# ---- live -----------------------------------------------------------------------------------------------------------


def test_a_shadow_is_a_pipeline_that_gives_what_the_main_one_gives():
    with shadowed() as both:
        out = bytearray(8)
        assert both.id == both.main.id
        assert both.backend_id == "doubtful"
        assert both.dispatch([words(1, 2)]) == [words(2, 4)]
        (same,) = both.dispatch([words(3, 4)], out=[out])
        assert same is out
        assert out == words(6, 8)
        assert both.dispatch_timed([words(5)]).outputs == [words(10)]
        assert both.dispatch_async([words(6)]).result() == [words(12)]
        assert both.dispatch_batch([[words(7)], [words(8)]]) == [[words(14)], [words(16)]]
        assert (both.shadow.samples, both.shadow.divergences, list(both.shadow.events)) == (6, 0, [])
    with pytest.raises(DispatchFailed, match="the pipeline is closed"):
        both.main.dispatch([words(1)])
    with pytest.raises(DispatchFailed, match="the pipeline is closed"):
        both.reference.dispatch([words(1)])


@pytest.mark.row("A-SH-5")
@pytest.mark.parametrize(
    "rate, samples", [(0, 0), (1e-9, 1), (0.25, 250), (0.3, 300), (1 / 3, 334), (0.999, 999), (1, 1000)]
)
def test_an_exact_share_of_dispatches_is_sampled(rate, samples):
    main, reference = (Fixed(DOUBLE, words(2), id=name) for name in ("main", "reference"))
    both = ShadowedPipeline(main, reference, sample_rate=rate)
    assert {bytes(both.dispatch([words(1)])[0]) for _ in range(1000)} == {words(2)}
    assert (main.calls, reference.calls, both.shadow.samples) == (1000, samples, samples)


@pytest.mark.row("A-SH-5")
def test_the_first_dispatch_is_sampled_and_then_every_fourth():
    main, reference = (Fixed(DOUBLE, words(2), id=name) for name in ("main", "reference"))
    both = ShadowedPipeline(main, reference, sample_rate=0.25)
    seen = []
    for _ in range(9):
        both.dispatch([words(1)])
        seen.append(reference.calls)
    assert seen == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_threads_share_one_schedule():
    main, reference = (Fixed(DOUBLE, words(2), id=name) for name in ("main", "reference"))
    both = ShadowedPipeline(main, reference, sample_rate=0.5)
    threads = [threading.Thread(target=lambda: [both.dispatch([words(1)]) for _ in range(100)]) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert both.shadow.samples == 400


@pytest.mark.row("A-SH-6", "T23")
@pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_a_divergence_names_output_element_both_values_and_the_program(how):
    both = shadowed(twist=one_more)
    with pytest.raises(Diverged) as caught:
        getattr(both, how)([words(7, 8)], DispatchConfig(label="third run")).result()
    assert caught.value.context == {
        "output": "out",
        "element": 1,
        "found": "17 (0x00000011)",
        "expected": "16 (0x00000010)",
        "program": DOUBLE.fingerprint,
        "case": "live",
        "label": "third run",
    }
    assert str(caught.value).startswith("an output of doubtful differs from reference [")
    assert "Fix: report it to the author of backend doubtful: error.event has the inputs" in str(caught.value)
    event = caught.value.event
    assert (event.inputs, event.backend_output, event.reference_output) == (
        (words(7, 8),), (words(14, 17),), (words(14, 16),),
    )  # fmt: skip
    assert (event.backend, event.reference, event.program_fingerprint) == ("doubtful", "reference", DOUBLE.fingerprint)
    assert (event.difference.found, event.difference.expected, event.difference.byte_offset) == (17, 16, 4)
    assert list(both.shadow.events) == [event]


def test_a_divergence_travels_between_processes():
    both = shadowed(twist=one_more)
    with pytest.raises(Diverged) as caught:
        both.dispatch([words(7)])
    again = pickle.loads(pickle.dumps(caught.value))
    assert again == caught.value
    assert again.event == caught.value.event
    assert again != Diverged(again.message, fix=again.fix, **again.context)
    assert isinstance(again, BackendError)
    assert again.diagnostic().code == "C-LAW-001"


def test_asking_again_for_a_divergent_result_raises_again():
    pending = shadowed(twist=one_more).dispatch_async([words(7)])
    for _ in range(2):
        with pytest.raises(Diverged):
            pending.result()


@pytest.mark.row("A-SH-6")
def test_a_divergence_can_be_logged_and_the_main_outputs_returned(caplog):
    both = shadowed(twist=one_more, on_divergence="log")
    with caplog.at_level(logging.WARNING, "vyre.shadow"):
        assert both.dispatch([words(7)]) == [words(15)]
    assert len(both.shadow.events) == both.shadow.divergences == 1
    (record,) = caplog.records
    assert record.getMessage().startswith("error[C-LAW-001]: an output of doubtful differs from reference")
    assert "= help: report it to the author" in record.getMessage()


def test_a_divergence_can_be_handed_to_a_function():
    seen = []
    both = shadowed(twist=one_more, on_divergence=seen.append)
    assert both.dispatch([words(7)]) == [words(15)]
    assert [type(e) for e in seen] == [Diverged]


def test_only_the_latest_events_are_kept():
    both = shadowed(twist=one_more, on_divergence="log")
    for k in range(20):
        both.dispatch([words(k)])
    assert both.shadow.divergences == 20
    assert [e.inputs for e in both.shadow.events] == [(words(k),) for k in range(12, 20)]


def test_the_reference_sees_the_inputs_as_they_were():
    """Outputs written over the inputs must not reach the reference, which runs later."""
    both, memory = shadowed(INCREMENT), bytearray(words(1, 2, 3))
    assert both.dispatch([memory], out=[memory]) == [words(2, 3, 4)]
    assert both.dispatch_async([memory], out=[memory]).result() == [words(3, 4, 5)]
    assert both.shadow.samples == 2


def test_the_reference_gets_what_of_a_config_changes_the_result():
    both = shadowed(increment.program)
    config = DispatchConfig(grid_override=(1, 1, 1), timeout=60, max_output_bytes=100, profile="interactive")
    data = words(*range(10))
    assert both.dispatch([data], config) == [words(1, 2, 3, 4, 4, 5, 6, 7, 8, 9)]
    assert both.dispatch([data], DispatchConfig(workgroup_override=(2, 1, 1))) == [words(*range(1, 11))]


def test_the_config_of_the_main_pipeline_is_the_default_one():
    config = DispatchConfig(grid_override=(1, 1, 1))
    main = pipeline.compile(Doubtful(), INCREMENT, config)
    both = ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), INCREMENT))
    assert both.dispatch([words(*range(10))]) == [words(1, 2, 3, 4, 4, 5, 6, 7, 8, 9)]


def test_an_error_of_the_main_pipeline_is_its_own():
    both = shadowed()
    with pytest.raises(ArgumentValueError, match="expected 1 input"):
        both.dispatch([])
    with pytest.raises(ArgumentTypeError, match="inputs is list_iterator"):
        both.dispatch(iter([words(1)]))
    with pytest.raises(ArgumentTypeError):
        both.dispatch([7])
    assert both.shadow.samples == 0


def test_a_reference_that_raises_is_reported_with_its_error():
    both = ShadowedPipeline(Fixed(DOUBLE, words(2)), Fixed(DOUBLE, lambda _: OSError("gone"), id="broken"))
    with pytest.raises(ReferenceRejected, match=r"broken does not run the program: OSError: gone .*Fix: follow") as e:
        both.dispatch([words(1)])
    assert isinstance(e.value.__cause__, OSError)
    assert both.shadow.divergences == 0


def test_resident_outputs_cannot_be_compared():
    with pytest.raises(UnsupportedFeature, match=r"resident outputs stay on the device .*Fix: .*VYRE_SHADOW"):
        shadowed().dispatch_resident([HostResource(words(1))])


@pytest.mark.parametrize(
    "options, text",
    [
        ({"sample_rate": 1.5}, "sample_rate=1.5 is no share"),
        ({"sample_rate": -0.1}, "sample_rate=-0.1 is no share"),
        ({"sample_rate": float("nan")}, "sample_rate=nan is no share"),
        ({"sample_rate": True}, "sample_rate=True is no share"),
        ({"sample_rate": "1"}, "sample_rate='1' is no share"),
        ({"on_divergence": "print"}, "on_divergence='print' is no reaction"),
        ({"compare": "nearly"}, "'nearly' is no comparison"),
    ],
)
def test_impossible_options_are_refused(options, text):
    with pytest.raises(ArgumentValueError, match=text):
        shadowed(**options)


def test_pipelines_of_two_programs_have_nothing_to_compare():
    with pytest.raises(ArgumentValueError, match="compiled from different programs"):
        ShadowedPipeline(Fixed(DOUBLE), Fixed(INCREMENT))
    with pytest.raises(ArgumentTypeError, match="object does not say which program it runs"):
        ShadowedPipeline(object(), Fixed(INCREMENT))


def proved(case):
    return case.program.determinism != "unproved" and determinism(case.program, case.grid).verdict == "proved"


@pytest.mark.parametrize("seed", range(30))
def test_any_single_wrong_bit_is_found_in_any_deterministic_program(seed):
    rng = random.Random(seed)
    case = next(c for c in iter(lambda: random_program(rng), None) if proved(c))
    program = case.program
    config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
    right = ShadowedPipeline(*(pipeline.compile(b, program) for b in (Doubtful(), REFERENCE.open())))
    outputs = right.dispatch(case.inputs, config)
    assert right.shadow.samples == 1
    filled = [k for k, data in enumerate(outputs) if len(data)]
    where = rng.choice(filled)
    at, bit = rng.randrange(len(outputs[where])), rng.randrange(8)

    def flip(inputs, made):
        made[where][at] ^= 1 << bit

    wrong = ShadowedPipeline(*(pipeline.compile(b, program) for b in (Doubtful(flip), REFERENCE.open())))
    with pytest.raises(Diverged) as caught:
        wrong.dispatch(case.inputs, config)
    assert caught.value.event.difference.output == program.host_outputs[where].name
    assert caught.value.event.difference.byte_offset == at
    assert caught.value.context["program"] == program.fingerprint


# ---- what can be compared -------------------------------------------------------------------------------------------


def test_a_program_whose_order_is_open_is_refused_with_a_fix():
    assert COMPACT.determinism == "unproved"
    with pytest.raises(NotComparable, match=r"not proved deterministic: .*Fix: .*compare='unordered'") as caught:
        shadowed(COMPACT)
    assert caught.value.context["program"] == COMPACT.fingerprint
    assert caught.value.diagnostic().code == "C-DET-001"


def reverse_kept(inputs, outputs):
    outputs[0][:] = np.frombuffer(outputs[0], "<u4")[::-1].tobytes()


def test_an_order_free_comparison_ignores_the_order_and_nothing_else():
    inputs = [words(1, 2, 3, 5), bytes(16), words(0)]
    both = shadowed(COMPACT, reverse_kept, compare="unordered")
    assert both.dispatch(inputs) == [words(0, 5, 3, 1), words(3)]
    with pytest.raises(Diverged) as caught:
        shadowed(COMPACT, one_more, compare="unordered").dispatch(inputs)
    assert caught.value.context["output"] == "count"


def test_the_comparison_can_be_the_callers_own():
    def total(name, data, element):
        return words(int(np.frombuffer(data, "<u4").sum())) if name == "kept" else data

    def move_one(inputs, outputs):
        values = np.frombuffer(outputs[0], "<u4")
        values[0] += 1
        values[1] -= 1

    inputs = [words(1, 2, 3, 5), bytes(16), words(0)]
    assert shadowed(COMPACT, move_one, compare=total).dispatch(inputs) == [words(2, 2, 5, 0), words(3)]
    with pytest.raises(Diverged):
        shadowed(COMPACT, move_one, compare="unordered").dispatch(inputs)


def test_a_grid_that_no_proof_covers_is_refused():
    """Over two rows of workgroups every element is written twice."""
    both = shadowed(INCREMENT)
    with pytest.raises(NotComparable, match="not proved deterministic"):
        both.dispatch([words(1, 2)], DispatchConfig(grid_override=(1, 2, 1)))
    assert both.dispatch([words(1, 2)], DispatchConfig(grid_override=(1, 1, 1))) == [words(2, 3)]


def test_a_workgroup_with_rows_that_no_proof_covers_is_refused():
    """The grid has one workgroup, and the workgroup that the caller asks for has two rows."""
    both = shadowed(INCREMENT)
    config = DispatchConfig(grid_override=(1, 1, 1), workgroup_override=(2, 2, 1))
    with pytest.raises(NotComparable, match="not proved deterministic"):
        both.dispatch([words(1, 2)], config)
    assert both.dispatch([words(1, 2)], config.with_(workgroup_override=(2, 1, 1))) == [words(2, 3)]


@pytest.mark.row("T23")
def test_a_budget_is_granted_only_where_an_operation_may_be_approximated():
    one, next_to_one = struct.pack("<f", 1), (0x3F800001).to_bytes(4, "little")
    config = DispatchConfig(ulp_budget=1)
    copy = Program(SINE.buffers, (1, 1, 1), [Store("out", InvocationId(0), Load("x", InvocationId(0)))])

    def apart(program):
        return ShadowedPipeline(Fixed(program, next_to_one), Fixed(program, one, id="reference"))

    both = apart(SINE)
    assert both.dispatch([one], config) == [next_to_one]
    assert both.shadow.worst_ulps == 1
    with pytest.raises(Diverged, match=r"\[ulps=1\]"):
        both.dispatch([one])
    with pytest.raises(Diverged):
        apart(copy).dispatch([one], config)


# ---- VYRE_SHADOW ----------------------------------------------------------------------------------------------------


def registration(twist=None):
    return BackendRegistration(id="doubtful", open=lambda device=None: Doubtful(twist))


@contextmanager
def compiled_for(*backends, program=DOUBLE):
    """A pipeline of the doubtful backend, when these are all there are."""
    with isolated(*backends), vyre.compile(program, backend="doubtful") as compiled:
        yield compiled


def changes(before):
    return {name: n - before[name] for name, n in execute.counters().items() if n != before[name] and "shadow" in name}


def test_the_environment_shadows_whatever_is_dispatched(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = execute.counters()
    with compiled_for(registration(), REFERENCE) as compiled:
        assert compiled.dispatch([words(1, 2)]) == [words(2, 4)]
        assert compiled.dispatch_timed([words(3)]).outputs == [words(6)]
        assert compiled.dispatch_async([words(4)]).result() == [words(8)]
        assert compiled.dispatch_batch([[words(5)]]) == [[words(10)]]
    seen = changes(before)
    assert seen.pop("shadow_ns") > 0
    assert seen == {"shadow_samples": 4}


@pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_the_environment_finds_wrong_bytes(monkeypatch, how):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = execute.counters()
    with compiled_for(registration(one_more), REFERENCE) as compiled:
        with pytest.raises(Diverged, match=rf"\[element=1\].*\[output='out'\].*{DOUBLE.fingerprint}"):
            getattr(compiled, how)([words(1, 2)]).result()
        with pytest.raises(Diverged, match=r"\[batch_index=0\]"):
            compiled.dispatch_batch([[words(1)]])
    assert changes(before).get("shadow_divergences") == 2


def test_calls_of_a_kernel_are_shadowed_too(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    with isolated(registration(one_more), REFERENCE), pytest.raises(Diverged):
        double(np.arange(4, dtype=np.uint32))


def test_without_the_variable_or_at_zero_nothing_is_computed_again(monkeypatch):
    before = execute.counters()
    for value in (None, "", "0", "0.0"):
        if value is None:
            monkeypatch.delenv("VYRE_SHADOW", raising=False)
        else:
            monkeypatch.setenv("VYRE_SHADOW", value)
        with compiled_for(registration(one_more), REFERENCE) as compiled:
            assert compiled.dispatch([words(1)]) == [words(3)]
    assert changes(before) == {}


def test_a_share_of_dispatches_is_sampled_by_each_pipeline(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "0.25")
    before = execute.counters()
    with compiled_for(registration(), REFERENCE) as compiled:
        for _ in range(10):
            compiled.dispatch([words(1)])
    assert changes(before)["shadow_samples"] == 3


def test_the_environment_can_ask_for_a_log(monkeypatch, caplog):
    monkeypatch.setenv("VYRE_SHADOW", "1, log")
    with compiled_for(registration(one_more), REFERENCE) as compiled, caplog.at_level(logging.WARNING, "vyre.shadow"):
        assert compiled.dispatch([words(1)]) == [words(3)]
    assert [r.name for r in caplog.records] == ["vyre.shadow"]


def test_the_environment_can_name_an_order_free_comparison(monkeypatch):
    inputs = [words(1, 2, 3, 5), bytes(16), words(0)]
    backends = registration(reverse_kept), REFERENCE
    monkeypatch.setenv("VYRE_SHADOW", "1")
    with (
        compiled_for(*backends, program=COMPACT) as compiled,
        pytest.raises(NotComparable, match="VYRE_SHADOW=1,unordered"),
    ):
        compiled.dispatch(inputs)
    monkeypatch.setenv("VYRE_SHADOW", "1,unordered")
    with compiled_for(*backends, program=COMPACT) as compiled:
        assert compiled.dispatch(inputs) == [words(0, 5, 3, 1), words(3)]


def test_a_plan_says_whether_it_is_shadowed(monkeypatch):
    def shadow(compiled):
        (found,) = (d for d in compiled.explain([words(1)]).decisions if d.what == "shadow")
        return found.choice, found.reason

    monkeypatch.delenv("VYRE_SHADOW", raising=False)
    with compiled_for(registration(), REFERENCE) as compiled:
        assert shadow(compiled) == ("none", "VYRE_SHADOW is not set")
        monkeypatch.setenv("VYRE_SHADOW", "0.25,log")
        assert shadow(compiled)[0] == "0.25,log"


def test_an_oracle_is_not_held_against_itself(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = execute.counters()
    with isolated(REFERENCE), vyre.compile(DOUBLE, backend="reference") as compiled:
        assert compiled.dispatch([words(1)]) == [words(2)]
    assert changes(before) == {}


def test_without_an_oracle_a_shadow_is_refused(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    text = r"no oracle is registered\. Fix: install one, or unset VYRE_SHADOW"
    with compiled_for(registration()) as compiled, pytest.raises(BackendUnavailable, match=text):
        compiled.dispatch([words(1)])


def test_a_program_that_the_oracle_does_not_run_is_refused(monkeypatch):
    class Narrow(Doubtful):
        id = "narrow"

        def supported_ops(self):
            return frozenset()

    narrow = BackendRegistration(id="narrow", kind="oracle", open=lambda device=None: Narrow())
    monkeypatch.setenv("VYRE_SHADOW", "1")
    with (
        compiled_for(registration(), narrow) as compiled,
        pytest.raises(ReferenceRejected, match="narrow does not run the program") as caught,
    ):
        compiled.dispatch([words(1)])
    assert isinstance(caught.value.__cause__, UnsupportedFeature)


@pytest.mark.parametrize("value", ["often", "2", "-1", "nan", "0.5,sorted", "log"])
def test_a_variable_that_is_no_share_is_refused(monkeypatch, value):
    monkeypatch.setenv("VYRE_SHADOW", value)
    text = rf"VYRE_SHADOW='{value}' is no share .*Fix: set VYRE_SHADOW to"
    with compiled_for(registration(), REFERENCE) as compiled, pytest.raises(ArgumentValueError, match=text):
        compiled.dispatch([words(1)])


# ---- lists of cases -------------------------------------------------------------------------------------------------

RIGHT = REFERENCE.open().dispatch


@pytest.mark.row("A-SH-1")
@pytest.mark.parametrize("check", [check_matrix, assert_exhaustive_byte_identity])
def test_no_cases_prove_nothing(check):
    with pytest.raises(EmptyMatrix, match=r"there are no cases to check\. Fix: push"):
        check(pipeline.compile(Doubtful(), DOUBLE), DOUBLE, RIGHT, ConformanceMatrix())


def test_the_witnesses_are_fixed():
    words = u32_witnesses()
    assert len(set(words)) == len(words) == 36
    assert words[:12] == (
        0, 1, 2, 3, 0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x7FFFFFFF, 0xAAAAAAAA, 0x55555555, 0xDEADBEEF, 0xCAFEF00D,
    )  # fmt: skip


@pytest.mark.row("A-SH-2")
def test_a_right_pipeline_passes_every_witness():
    backend = Doubtful()
    compiled = pipeline.compile(backend, DOUBLE)
    assert_exhaustive_byte_identity(compiled, DOUBLE, RIGHT, u32_matrix())
    assert backend.calls == 36
    report = check_matrix(compiled, DOUBLE, RIGHT, u32_matrix())
    assert (report.cases, report.errors, report.ok) == (36, (), True)


@pytest.mark.row("A-SH-3")
def test_one_wrong_answer_is_found_and_every_witness_still_runs_once():
    dead = words(0xDEADBEEF)
    seen = []

    def wrong_once(inputs, outputs):
        seen.append(inputs[0])
        if inputs == [dead]:
            outputs[0][:] = words(1)

    def reference(program, inputs, config):
        assert seen[-1] == inputs[0]  # the backend was first
        return RIGHT(program, inputs, config)

    with pytest.raises(Diverged) as caught:
        assert_exhaustive_byte_identity(pipeline.compile(Doubtful(wrong_once), DOUBLE), DOUBLE, reference, u32_matrix())
    assert seen == [words(w) for w in u32_witnesses()]
    event = caught.value.event
    assert isinstance(event, DivergenceEvent)
    assert event.case_label == caught.value.context["case"] == "u32:0xdeadbeef"
    assert (event.inputs, event.backend_output) == ((dead,), (words(1),))
    assert event.reference_output == (words(0xBD5B7DDE),)


def test_a_grid_that_no_proof_covers_fails_its_case_and_no_other():
    matrix = ConformanceMatrix()
    matrix.push("two", [words(1, 2)])
    matrix.push("of the wrong length", [bytes(3)])
    compiled = Fixed(INCREMENT, lambda inputs: [words(2, 3)])
    rows = check_matrix(compiled, INCREMENT, RIGHT, matrix, DispatchConfig(grid_override=(1, 2, 1)))
    assert [type(e) for e in rows.errors] == [NotComparable, ReferenceRejected]
    row = check_matrix(compiled, INCREMENT, RIGHT, matrix, DispatchConfig(grid_override=(1, 1, 1)))
    assert [type(e) for e in row.errors] == [ReferenceRejected]


@pytest.mark.row("A-SH-4")
def test_a_case_that_one_side_rejects_is_named_and_the_others_run():
    calls = []

    def picky(inputs):
        calls.append(inputs[0])
        if inputs[0] == words(2):
            return DispatchFailed("it is two", fix="send another number")
        return [words(struct.unpack("<I", inputs[0])[0] * 2 & 0xFFFFFFFF)]

    def reference(program, inputs, config):
        if inputs[0] == words(3):
            raise RuntimeError("it is three")
        return RIGHT(program, inputs, config)

    report = check_matrix(Fixed(DOUBLE, picky), DOUBLE, reference, u32_matrix())
    assert len(calls) == 36
    assert [(type(e), e.context["case"]) for e in report.errors] == [
        (BackendRejected, "u32:0x00000002"), (ReferenceRejected, "u32:0x00000003"),
    ]  # fmt: skip
    assert all(isinstance(e, ConformanceError) for e in report.errors)
    first, second = report.errors
    assert str(first).startswith("fixed does not run the case: it is two [")
    assert "Fix: follow the fix of the backend, or correct the case" in str(first)
    assert isinstance(first.__cause__, DispatchFailed)
    assert str(second).startswith("the reference does not run the program: RuntimeError: it is three [")
    with pytest.raises(BackendRejected):
        assert_exhaustive_byte_identity(Fixed(DOUBLE, picky), DOUBLE, reference, u32_matrix())


def test_an_interrupt_ends_the_cases():
    class Interrupting(Fixed):
        def dispatch(self, inputs, config=None, *, out=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_matrix(Interrupting(DOUBLE), DOUBLE, RIGHT, u32_matrix())


def test_cases_of_a_program_whose_order_is_open_are_refused_before_they_run():
    matrix = ConformanceMatrix()
    matrix.push("odd", [words(1, 2, 3), bytes(12), words(0)])
    backend = Doubtful()
    compiled = pipeline.compile(backend, COMPACT)
    with pytest.raises(NotComparable):
        check_matrix(compiled, COMPACT, RIGHT, matrix)
    assert backend.calls == 0
    assert check_matrix(compiled, COMPACT, RIGHT, matrix, compare="unordered").ok


@pytest.mark.row("A-SH-8")
def test_a_report_says_how_far_apart_floats_were():
    x = struct.pack("<f", 1)
    matrix = ConformanceMatrix()
    matrix.push("one", [x])
    near = Fixed(SINE, struct.pack("<I", 0x3F800002))
    report = check_matrix(near, SINE, lambda *_: [x], matrix, DispatchConfig(ulp_budget=2))
    assert (report.ok, report.worst_ulps) == (True, 2)
    assert not check_matrix(near, SINE, lambda *_: [x], matrix, DispatchConfig(ulp_budget=1)).ok
