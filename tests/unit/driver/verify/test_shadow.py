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
from vyre.backends.reference import Schedule, run
from vyre.conform.programs.random import random_program
from vyre.conform.values.edge_values import u32_matrix, u32_witnesses
from vyre.driver import counters
from vyre.driver.contract import BackendRegistration, CompiledPipeline, VyreBackend
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig, HostResource, ResidentOwner, ResidentReadRange
from vyre.driver.guard import compile as pipeline
from vyre.driver.plan.outputs import OutputSlot, replace_output_buffers_preserving_slots
from vyre.driver.selection.registry import isolated
from vyre.driver.verify import samples
from vyre.driver.verify.shadow import (
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
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendError,
    BackendUnavailable,
    DeadlineExceeded,
    DeviceOutOfMemory,
    DispatchFailed,
    InvalidProgram,
    StepLimitExceeded,
    Trap,
    UnsupportedFeature,
)
from vyre.foundation.check.determinism import determinism
from vyre.foundation.ir.dtypes import f32
from vyre.foundation.ir.nodes import Atomic, If, InvocationId, Let, Load, Store, UnOp, Var, lit
from vyre.foundation.ir.ops import AtomicOp, UnaryOp
from vyre.foundation.ir.program import Program, read, read_write, write_only

from ....support.device_backends import registration_or_skip


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


GID = InvocationId(0)


@pytest.fixture(autouse=True)
def _unsaid(monkeypatch):
    """Every test is told once why something is not checked."""
    monkeypatch.setattr(samples, "_noted", {})


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
        own = None
        if out is not None:
            own = [OutputSlot() if isinstance(b, OutputSlot) else bytearray(memoryview(b).nbytes) for b in out]
        outputs = [bytearray(bytes(b)) for b in self.inner.dispatch(program, inputs, config, out=own)]
        if self.twist is not None:
            self.twist([bytes(b) for b in inputs], outputs)
        if out is None:
            return outputs
        targets = list(out)
        replace_output_buffers_preserving_slots(outputs, targets)
        return targets


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


HOW = pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async", "dispatch_batch"])


def dispatched(compiled, how, inputs, out):
    if how == "dispatch_batch":
        return compiled.dispatch_batch([inputs], out=[out])[0]
    result = getattr(compiled, how)(inputs, out=out)
    return {"dispatch_timed": lambda: result.outputs, "dispatch_async": lambda: result.result()}.get(
        how, lambda: result
    )()


@HOW
def test_a_divergence_that_is_raised_leaves_the_callers_memory_as_it_was(how):
    both, out, slot, same = shadowed(twist=one_more), bytearray(words(8, 9)), OutputSlot(), bytearray(words(3, 4))
    slot.put(words(1))
    for target in (out, slot, np.array([[8], [9]], np.uint32)):
        before = bytes(target)
        with pytest.raises(Diverged):
            dispatched(both, how, [words(1, 2)], [target])
        assert bytes(target) == before
    with pytest.raises(Diverged):
        dispatched(shadowed(INCREMENT, one_more), how, [same], [same])
    assert same == words(3, 4)


@HOW
def test_under_the_setting_too_the_callers_memory_stays_as_it_was(how, monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    out = bytearray(words(8, 9))
    with compiled_for(registration(one_more), REFERENCE) as compiled, pytest.raises(Diverged):
        dispatched(compiled, how, [words(1, 2)], [out])
    assert out == words(8, 9)


@HOW
def test_where_nothing_is_raised_the_callers_memory_has_the_main_outputs(how):
    for both in (shadowed(twist=one_more, on_divergence="log"), shadowed(twist=one_more, on_divergence=[].append)):
        out = bytearray(8)
        dispatched(both, how, [words(1, 2)], [out])
        assert out == words(2, 5)


def test_a_function_that_raises_leaves_the_callers_memory_as_it_was_too():
    def stop(error):
        raise SystemExit

    out = bytearray(words(8, 9))
    with pytest.raises(SystemExit):
        shadowed(twist=one_more, on_divergence=stop).dispatch([words(1, 2)], out=[out])
    assert out == words(8, 9)


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


FAILURES = {
    "failed": (OSError("gone"), "OSError: gone", "correct what it says"),
    "memory": (DeviceOutOfMemory("full", fix="use less"), "full", "use less"),
    "cost": (DeadlineExceeded("late", fix="wait"), "late", "raise VYRE_SHADOW_TIMEOUT"),
    "refused": (UnsupportedFeature("unknown to me", fix="lower it"), "unknown to me", "lower it"),
}


@pytest.mark.parametrize("reason", FAILURES)
@pytest.mark.parametrize("options", [{}, {"on_divergence": "log"}, {"sample_rate": 0.5}])
def test_whatever_goes_wrong_in_a_shadow_fails_no_dispatch_and_is_said_once(reason, options, caplog):
    error, says, fix = FAILURES[reason]
    before = counters.counters()
    both = ShadowedPipeline(Fixed(DOUBLE, words(2)), Fixed(DOUBLE, lambda _: error, id="broken"), **options)
    assert [both.dispatch([words(1)]) for _ in range(4)] == [[words(2)]] * 4
    sampled = 2 if "sample_rate" in options else 4
    assert (both.shadow.samples, both.shadow.divergences, dict(both.shadow.skips)) == (0, 0, {reason: sampled})
    assert changes(before).pop(f"shadow_skipped_{reason}") == sampled
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("vyre.shadow", "WARNING")
    assert record.getMessage().startswith(f"a dispatch of fixed was not checked ({reason}): {says}")
    assert f"[program={DOUBLE.fingerprint!r}]. Fix: {fix}" in record.getMessage()


def test_inputs_that_cannot_be_copied_fail_no_dispatch(monkeypatch):
    def no_memory(buffers):
        raise MemoryError

    both = shadowed()
    monkeypatch.setattr(samples, "copied", no_memory)
    assert both.dispatch([words(1)]) == [words(2)]
    assert dict(both.shadow.skips) == {"memory": 1}


def test_a_comparison_that_raises_fails_no_dispatch():
    def broken(name, data, element):
        raise KeyError(name)

    both = shadowed(compare=broken)
    assert both.dispatch([words(1)]) == [words(2)]
    assert dict(both.shadow.skips) == {"failed": 1}


def test_what_stops_the_caller_is_not_held_back():
    def interrupted(inputs):
        raise KeyboardInterrupt

    both = ShadowedPipeline(Fixed(DOUBLE, words(2)), Fixed(DOUBLE, interrupted), on_divergence="log")
    with pytest.raises(KeyboardInterrupt):
        both.dispatch([words(1)])


def test_what_took_the_reference_too_long_is_not_tried_again_nor_is_anything_larger():
    late = Fixed(DOUBLE, lambda given: DeadlineExceeded("late", fix="wait") if len(given[0]) >= 32 else [words(2)])
    both = ShadowedPipeline(Fixed(DOUBLE, words(2)), late)
    assert [both.dispatch([bytes(n)]) for n in (32, 32, 64, 4)] == [[words(2)]] * 4  # workgroups of 4 words
    assert (late.calls, both.shadow.samples, dict(both.shadow.skips)) == (2, 1, {"cost": 3})


def test_the_reference_has_the_time_that_the_setting_says():
    asked = []

    class Asked(Fixed):
        def dispatch(self, inputs, config=None, *, out=None):
            asked.append(config.timeout)
            return super().dispatch(inputs, config, out=out)

    both = ShadowedPipeline(Fixed(DOUBLE, words(2)), Asked(DOUBLE, words(2)))
    both.dispatch([words(1)], DispatchConfig(timeout=60))
    with vyre.config(shadow_timeout=0.5):
        both.dispatch([words(1)])
    assert asked == [10, 0.5]


def test_a_reference_that_runs_out_of_its_time_is_stopped():
    @vyre.kernel(workgroup=1)
    def long(out: Out[u32]):
        n = 0
        for k in range(1 << 31):
            n += k
        out[gid.x] = n

    with vyre.config(shadow_timeout=0.001):
        reference = pipeline.compile(REFERENCE.open(), long.program)
        both = ShadowedPipeline(Fixed(long.program, words(2)), reference)
        assert both.dispatch([], DispatchConfig(output_elements={"out": 1})) == [words(2)]
    assert dict(both.shadow.skips) == {"cost": 1}


def test_steps_are_counted_over_all_iterations():
    """Two invocations take two steps or more in every iteration."""
    compiled = REFERENCE.open().compile_native(INCREMENT, DEFAULT_CONFIG)
    explore, given = compiled.explore, [words(1, 2)]
    few, many = DispatchConfig(fixpoint_iterations=2), DispatchConfig(fixpoint_iterations=200)
    assert explore(given, few, max_steps=100).outputs == [words(3, 4)]
    with pytest.raises(StepLimitExceeded, match="took more steps than allowed"):
        explore(given, many, max_steps=100)
    with pytest.raises(StepLimitExceeded, match=r"4 invocations are too many to run in several orders .*Fix: use a sm"):
        explore(given, few, max_steps=3)
    compiled.close()
    with pytest.raises(DispatchFailed, match="the pipeline is closed"):
        explore(given, few, max_steps=100)


def test_a_label_is_counted_for_the_dispatch_and_not_for_its_shadow():
    both = shadowed()
    both.dispatch([words(1)], DispatchConfig(label="counted once"))
    assert (both.shadow.samples, counters.label_counters()["counted once"]) == (1, 1)


def test_a_sampled_dispatch_that_fails_passes_its_turn_on():
    both = shadowed(sample_rate=0.5)
    for _ in range(3):
        with pytest.raises(ArgumentValueError):
            both.dispatch([])
    both.dispatch([words(1)])
    assert both.shadow.samples == 1


@pytest.mark.parametrize(
    "options, text",
    [
        ({"sample_rate": 1.5}, "sample_rate=1.5 is not a share"),
        ({"sample_rate": -0.1}, "sample_rate=-0.1 is not a share"),
        ({"sample_rate": float("nan")}, "sample_rate=nan is not a share"),
        ({"sample_rate": True}, "sample_rate=True is not a share"),
        ({"sample_rate": "1"}, "sample_rate='1' is not a share"),
        ({"on_divergence": "print"}, "on_divergence='print' is not a reaction"),
        ({"compare": "nearly"}, "'nearly' is not a comparison"),
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


ORDERED = [words(1, 2, 3, 5), bytes(16), words(0)]
"""Three are kept, in some order."""


def test_a_program_whose_order_shows_is_skipped_with_one_note(caplog):
    assert COMPACT.determinism == "unproved"
    for twist in (None, reverse_kept):
        both = shadowed(COMPACT, twist)
        for _ in range(2):
            assert both.dispatch(ORDERED)[1] == words(3)
        assert (both.shadow.samples, dict(both.shadow.skips)) == (0, {"order": 2})
    (record,) = caplog.records
    assert "(order): the result depends on the order of invocations: run forward and reversed" in record.getMessage()
    assert "compare='unordered'" in record.getMessage().partition("Fix: ")[2]


@pytest.mark.parametrize("kept", [(2, 4, 5), ()])
def test_a_program_without_a_proof_is_compared_where_the_order_cannot_matter(kept):
    inputs = [words(*kept), bytes(4 * len(kept)), words(0)]
    both = shadowed(COMPACT)
    both.dispatch(inputs)
    assert (both.shadow.samples, both.shadow.skips) == (1, {})
    with pytest.raises(Diverged):
        shadowed(COMPACT, one_more).dispatch(inputs)


@vyre.kernel(workgroup=4)
def tally(x: In[u32], n: InOut[u32]):
    atomic_add(n, n[1] + x[gid.x], 1)


def test_what_an_atomic_returns_to_no_use_is_no_excuse():
    """The text does not show that no invocation adds to the element that all of them load."""
    assert tally.program.determinism == "unproved"
    inputs = [words(0, 0, 2, 2), words(0, 0, 0)]
    assert shadowed(tally.program).dispatch(inputs) == [words(2, 0, 2)]
    with pytest.raises(Diverged):
        shadowed(tally.program, one_more).dispatch(inputs)


def test_where_the_order_may_matter_the_same_bytes_are_compared_and_others_are_skipped(caplog):
    """Three invocations get a place each from one counter, and store the same there."""
    inputs = [words(5, 5, 5), bytes(12), words(0)]
    both = shadowed(COMPACT)
    both.dispatch(inputs)
    assert (both.shadow.samples, both.shadow.skips) == (1, {})
    assert caplog.records == []
    doubtful = shadowed(COMPACT, one_more)
    doubtful.dispatch(inputs)
    assert (doubtful.shadow.samples, dict(doubtful.shadow.skips)) == (0, {"order": 1})
    assert "outputs differ, and the order of invocations may be why: it uses what an atomic returns on" in caplog.text
    assert "test_shadow.py:" in caplog.text


def test_a_difference_that_only_a_rare_order_explains_is_none():
    """Forward and backwards give 1 3 1, and so does one order in three."""
    inputs = [words(1, 3, 1), bytes(12), words(0)]

    def another_order(given, outputs):
        outputs[0][:] = words(1, 1, 3)

    both = shadowed(COMPACT, another_order)
    both.dispatch(inputs)
    assert dict(both.shadow.skips) == {"order": 1}


@vyre.kernel(workgroup=4)
def last(x: In[u32], out: Out[u32]):
    """All write one place."""
    if gid.x < len(x):
        out[0] = x[gid.x]


def test_a_race_is_skipped_even_where_outputs_are_the_same(caplog):
    both = shadowed(last.program)
    both.dispatch([words(7, 7)])
    assert dict(both.shadow.skips) == {"order": 1}
    assert "race on out[0]" in caplog.text


def test_a_large_dispatch_without_a_proof_is_compared_first_and_judged_where_it_differs(monkeypatch, caplog):
    def twist(inputs, outputs):
        if inputs[0][0]:
            outputs[0][0] ^= 1

    zeros, wrong = bytes(64), words(*[2] * 16)
    monkeypatch.setattr(samples, "JUDGED_FIRST", 8)
    both = shadowed(last.program, twist)
    both.dispatch([zeros])
    assert (both.shadow.samples, both.shadow.skips) == (1, {})
    both.dispatch([wrong])
    assert dict(both.shadow.skips) == {"order": 1}
    monkeypatch.setattr(samples, "JUDGED", 8)
    both.dispatch([wrong])
    assert dict(both.shadow.skips) == {"order": 1, "cost": 1}
    assert "outputs differ, and it would take too long to tell whether the order" in caplog.text
    assert "Fix: check a smaller dispatch" in caplog.text


def test_a_reference_without_schedules_cannot_judge(caplog):
    both = ShadowedPipeline(Fixed(COMPACT, bytes(16), words(3)), Fixed(COMPACT, bytes(16), words(3)))
    both.dispatch(ORDERED)
    assert dict(both.shadow.skips) == {"order": 1}
    assert "the program is not proved deterministic: " in caplog.text


def racy_program(rng):
    """Eight invocations and four places that they share."""
    body = []
    for k in range(rng.randint(1, 4)):
        at = rng.choice([lit(rng.randrange(4)), GID % lit(4), GID, Load("n", GID % lit(4)) % lit(4)])
        body += rng.choice(
            [
                [Store("n", at, rng.choice([GID, lit(5), Load("n", lit(0))]))],
                [Let(f"old{k}", Atomic(AtomicOp.ADD, "n", at, lit(1)))],
                [Let(f"old{k}", Atomic(AtomicOp.ADD, "n", at, lit(1))), Store("out", GID, Var(f"old{k}"))],
                [If(Load("n", at).eq(lit(0)), [Store("out", at, GID)])],
            ]
        )
    return Program([read_write("n", 0, u32, 4), write_only("out", 1, u32, 8)], (4, 1, 1), body)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_invocations_is_taken_for_a_difference(seed):
    """A backend that is right, and takes invocations in another order than the reference."""

    class Otherwise(Doubtful):
        def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
            found = run(
                program,
                inputs,
                grid=config.grid_override,
                output_elements=config.output_elements,
                schedule=Schedule.seeded(seed),
            ).outputs
            if out is not None:
                for target, data in zip(out, found, strict=True):
                    memoryview(target).cast("B")[:] = data
            return found if out is None else list(out)

    rng = random.Random(seed)
    program = next(p for p in iter(lambda: racy_program(rng), None) if p.determinism == "unproved")
    both = ShadowedPipeline(*(pipeline.compile(b, program) for b in (Otherwise(), REFERENCE.open())))
    for k in range(4):
        both.dispatch([words(*[rng.randrange(k + 1) for _ in range(4)])], DispatchConfig(grid_override=(2, 1, 1)))
    assert both.shadow.divergences == 0
    assert both.shadow.samples + both.shadow.skips.total() == 4


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


def test_a_grid_that_no_proof_covers_is_judged():
    """Over two rows of workgroups every element is written twice."""
    both = shadowed(INCREMENT)
    both.dispatch([words(1, 2)], DispatchConfig(grid_override=(1, 2, 1)))
    assert (both.shadow.samples, dict(both.shadow.skips)) == (0, {"order": 1})
    assert both.dispatch([words(1, 2)], DispatchConfig(grid_override=(1, 1, 1))) == [words(2, 3)]
    assert both.shadow.samples == 1


# ---- traps ----------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=1)
def halve(x: In[u32], out: Out[u32]):
    if x[gid.x] % 2 == 1:
        vyre.trap("odd", x[gid.x])
    out[gid.x] = x[gid.x] // 2


class Trapping(Doubtful):
    """Traps when it is told to, whatever the program does."""

    def __init__(self, when):
        super().__init__()
        self.when = when

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        if self.when:
            raise Trap("the program trapped: odd", fix="mend it", tag="odd", address=1)
        return [bytearray(memoryview(inputs[0]).nbytes)]


@pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_both_trap_or_neither(how):
    def both(when):
        main = pipeline.compile(Trapping(when), halve.program)
        return ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), halve.program))

    def dispatched(pair, *values):
        result = getattr(pair, how)([words(*values)])
        return result.result() if how == "dispatch_async" else result

    agreeing = both(True)
    with pytest.raises(Trap):
        dispatched(agreeing, 2, 3)
    dispatched(right := both(False), 0, 0)
    assert (agreeing.shadow.samples, right.shadow.samples) == (1, 1)
    for when, value, found, expected in ((True, 0, "trap 'odd'", "outputs"), (False, 3, "outputs", "trap 'odd'")):
        with pytest.raises(Diverged, match="the outcome of doubtful differs from reference") as caught:
            dispatched(both(when), value)
        assert (caught.value.context["found"], caught.value.context["expected"]) == (found, expected)
        assert caught.value.event.difference.kind == "trap"


def test_a_trap_that_is_logged_is_still_raised(caplog):
    main = pipeline.compile(Trapping(True), halve.program)
    both = ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), halve.program), on_divergence="log")
    with pytest.raises(Trap):
        both.dispatch([words(2)])
    assert "the outcome of doubtful differs" in caplog.text


@vyre.kernel(workgroup=1)
def first_wins(x: In[u32], n: InOut[u32]):
    if atomic_add(n, 0, 1) == 0 and x[gid.x] == 1:
        vyre.trap("one was first", gid.x)


@pytest.mark.parametrize("compare", ["bytes", "unordered"])
def test_a_trap_that_depends_on_the_order_is_skipped(compare, caplog):
    main = pipeline.compile(Trapping(True), first_wins.program)
    both = ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), first_wins.program), compare=compare)
    with pytest.raises(Trap):
        both.dispatch([words(0, 1), words(0)])
    assert dict(both.shadow.skips) == {"order": 1}
    why = {"bytes": "run forward and reversed, only one of the two traps", "unordered": "only one of the two trapped"}
    assert why[compare] in caplog.text


# ---- memory of the device -------------------------------------------------------------------------------------------


def cpu_shadowed(program, **options):
    registration = registration_or_skip("cpu")
    main = pipeline.compile(registration.open(), program)
    return ShadowedPipeline(main, pipeline.compile(REFERENCE.open(), program), **options)


def resident(backend, *values):
    handle = backend.allocate_resident(4 * len(values))
    backend.upload_resident([(handle, 0, words(*values))])
    return handle


def read_back(backend, handle):
    return bytes(backend.download_resident([ResidentReadRange(handle, 0, handle.nbytes)])[0])


def test_dispatches_over_memory_of_the_device_are_checked():
    both = cpu_shadowed(DOUBLE)
    backend = both.main.backend
    x, out = resident(backend, 1, 2, 3), resident(backend, 9, 9, 9)
    assert both.dispatch_resident([x, out]) == [out]
    (fresh,) = both.dispatch_resident([HostResource(words(4, 5))])
    assert (read_back(backend, out), read_back(backend, fresh)) == (words(2, 4, 6), words(8, 10))
    assert (both.shadow.samples, both.shadow.divergences, both.shadow.skips) == (2, 0, {})


def test_memory_that_a_dispatch_changes_is_read_before_it():
    both = cpu_shadowed(INCREMENT)
    n = resident(both.main.backend, 1, 2, 3)
    for _ in range(2):
        both.dispatch_resident([n])
    assert read_back(both.main.backend, n) == words(3, 4, 5)
    assert (both.shadow.samples, both.shadow.divergences, both.shadow.skips) == (2, 0, {})


def wrong_on_the_device(program):
    """A shadowed pipeline whose last word of the last output is 7, and what its dispatches gave."""
    both, given = cpu_shadowed(program), []
    backend, run_right = both.main.backend, both.main.dispatch_resident

    def wrong(resources, config=None):
        kept = run_right(resources, config)
        given.extend(kept)
        backend.upload_resident([(kept[-1], kept[-1].nbytes - 4, words(7))])
        return kept

    both.main.dispatch_resident = wrong
    return both, backend, given


def test_a_wrong_result_on_the_device_is_found_and_memory_is_put_back():
    both, backend, _ = wrong_on_the_device(DOUBLE)
    x, out = resident(backend, 1, 2), resident(backend, 8, 9)
    with pytest.raises(Diverged) as caught:
        both.dispatch_resident([x, out])
    assert (caught.value.context["element"], caught.value.event.inputs) == (1, (words(1, 2),))
    assert "memory" not in caught.value.context
    assert read_back(backend, out) == words(8, 9)


def test_memory_of_the_device_that_a_dispatch_changes_is_put_back():
    both, backend, _ = wrong_on_the_device(INCREMENT)
    n = resident(backend, 1, 2)
    with pytest.raises(Diverged):
        both.dispatch_resident([n])
    assert read_back(backend, n) == words(1, 2)


def test_memory_that_a_divergent_dispatch_allocated_is_freed():
    both, backend, given = wrong_on_the_device(DOUBLE)
    with pytest.raises(Diverged):
        both.dispatch_resident([HostResource(words(4, 5))])
    with pytest.raises(InvalidProgram, match="freed"):
        read_back(backend, given[0])


def test_an_error_says_where_memory_could_not_be_put_back(monkeypatch):
    both, backend, _ = wrong_on_the_device(DOUBLE)
    x, out, right = resident(backend, 1, 2), resident(backend, 8, 9), backend.upload_resident

    def once(ranges):
        monkeypatch.setattr(backend, "upload_resident", lambda ranges: 1 / 0)
        right(ranges)

    monkeypatch.setattr(backend, "upload_resident", once)
    with pytest.raises(Diverged, match=r"\[memory='as the dispatch left it: ZeroDivisionError"):
        both.dispatch_resident([x, out])
    assert read_back(backend, out) == words(2, 7)


def test_an_error_of_the_callers_own_says_it_in_a_note():
    def stop(error):
        out.release()
        raise KeyError

    out = memoryview(bytearray(8))
    with pytest.raises(KeyError) as caught:
        shadowed(twist=one_more, on_divergence=stop).dispatch([words(1, 2)], out=[out])
    assert caught.value.__notes__[0].startswith("memory is as the dispatch left it: ")


def test_device_memory_that_cannot_be_read_fails_no_dispatch(monkeypatch):
    both = cpu_shadowed(DOUBLE)
    x, out = resident(both.main.backend, 1, 2), resident(both.main.backend, 0, 0)

    def unreadable(ranges, *, out=None):
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(both.main.backend, "download_resident", unreadable)
        assert both.dispatch_resident([x, out]) == [out]
    assert dict(both.shadow.skips) == {"failed": 1}
    assert read_back(both.main.backend, out) == words(2, 4)


def test_a_pipeline_without_memory_of_a_device_says_so_itself():
    with pytest.raises(UnsupportedFeature, match="have no resident dispatch"):
        shadowed().dispatch_resident([HostResource(words(1))])


def test_the_environment_samples_an_exact_share_of_resident_dispatches(monkeypatch):
    registration_or_skip("cpu")
    monkeypatch.setenv("VYRE_SHADOW", "0.5")
    before = counters.counters()
    x = vyre.to_device(np.arange(8, dtype=np.uint32), "cpu")
    for _ in range(4):
        assert np.array_equal(double(x).numpy(), np.arange(8) * 2)
    assert changes(before)["shadow_samples"] == 2


class Hosted(Doubtful):
    """Has memory that stays, and runs nothing over it."""

    id = "hosted"

    def __init__(self):
        super().__init__()
        self.owner, self.memory = ResidentOwner("hosted"), {}

    def allocate_resident(self, nbytes):
        self.memory[len(self.memory)] = bytearray(nbytes)
        return self.owner.handle(len(self.memory) - 1, nbytes)

    def upload_resident(self, ranges):
        for handle, at, data in ranges:
            view = memoryview(data).cast("B")
            self.memory[handle.id][at : at + view.nbytes] = view

    def download_resident(self, ranges, *, out=None):
        found = [self.memory[r.resource.id][r.byte_offset : r.byte_offset + r.byte_len] for r in ranges]
        for target, data in zip(out or (), found, strict=False):
            memoryview(target).cast("B")[:] = data
        return found if out is None else list(out)

    def free_resident(self, resource):
        self.memory[resource.id] = bytearray()


def test_device_arrays_that_go_through_the_host_are_sampled_as_often(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "0.5")
    before = counters.counters()
    with isolated(REFERENCE, BackendRegistration(id="hosted", open=lambda device=None: Hosted())):
        x = vyre.to_device(np.arange(8, dtype=np.uint32), "hosted")
        for _ in range(4):
            assert np.array_equal(double(x).numpy(), np.arange(8) * 2)
    assert changes(before)["shadow_samples"] == 2


def test_a_workgroup_with_rows_that_no_proof_covers_is_judged():
    """The grid has one workgroup, and the workgroup that the caller asks for has two rows."""
    both = shadowed(INCREMENT)
    config = DispatchConfig(grid_override=(1, 1, 1), workgroup_override=(2, 2, 1))
    both.dispatch([words(1, 2)], config)
    assert (both.shadow.samples, dict(both.shadow.skips)) == (0, {"order": 1})
    assert both.dispatch([words(1, 2)], config.with_(workgroup_override=(2, 1, 1))) == [words(2, 3)]
    assert both.shadow.samples == 1


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
    return {name: n - before[name] for name, n in counters.counters().items() if n != before[name] and "shadow" in name}


def test_the_environment_shadows_whatever_is_dispatched(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = counters.counters()
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
    before = counters.counters()
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
    before = counters.counters()
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
    before = counters.counters()
    with compiled_for(registration(), REFERENCE) as compiled:
        for _ in range(10):
            compiled.dispatch([words(1)])
    assert changes(before)["shadow_samples"] == 3


def test_the_environment_can_ask_for_a_log(monkeypatch, caplog):
    monkeypatch.setenv("VYRE_SHADOW", "1, log")
    with compiled_for(registration(one_more), REFERENCE) as compiled, caplog.at_level(logging.WARNING, "vyre.shadow"):
        assert compiled.dispatch([words(1)]) == [words(3)]
    assert [r.name for r in caplog.records] == ["vyre.shadow"]


def test_the_environment_can_name_an_order_free_comparison(monkeypatch, caplog):
    backends = registration(reverse_kept), REFERENCE
    for setting, counted in (("1", "shadow_skipped_order"), ("1,unordered", "shadow_samples")):
        monkeypatch.setenv("VYRE_SHADOW", setting)
        before = counters.counters()
        with compiled_for(*backends, program=COMPACT) as compiled:
            assert compiled.dispatch(ORDERED) == [words(0, 5, 3, 1), words(3)]
        assert changes(before)[counted] == 1
    assert "VYRE_SHADOW=1,unordered" in caplog.text


def shadow_of_plan(compiled):
    (found,) = (d for d in compiled.explain([words(1)]).decisions if d.what == "shadow")
    return found.choice, found.reason, dict(found.numbers)


@pytest.mark.parametrize(
    "asked, told",
    [
        (None, ("none", "VYRE_SHADOW is not set", {})),
        ("0", ("none", "VYRE_SHADOW=0 asks for none", {})),
        (
            "0.25,log",
            (
                "a share",
                "VYRE_SHADOW=0.25,log: an oracle computes this share of the dispatches again",
                {"share": 0.25},
            ),
        ),
        ("1", ("all", "VYRE_SHADOW=1: an oracle computes every dispatch again", {"share": 1})),
    ],
)
def test_a_plan_says_whether_it_is_shadowed(monkeypatch, asked, told):
    monkeypatch.delenv("VYRE_SHADOW", raising=False)
    if asked is not None:
        monkeypatch.setenv("VYRE_SHADOW", asked)
    with compiled_for(registration(), REFERENCE) as compiled:
        before = counters.decision_counters()
        assert shadow_of_plan(compiled) == told
        assert counters.decision_counters() == before
        compiled.dispatch([words(1)])
        after = counters.decision_counters().get(("shadow", told[0]), 0)
        assert after - before.get(("shadow", told[0]), 0) == (asked is not None)


def test_the_plan_of_an_oracle_says_that_it_has_no_shadow(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "0.5")
    with isolated(REFERENCE), vyre.compile(DOUBLE, backend="reference") as compiled:
        why = "VYRE_SHADOW=0.5, and reference is an oracle: others are compared with it"
        assert shadow_of_plan(compiled) == ("none", why, {})


def test_an_oracle_is_not_held_against_itself(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = counters.counters()
    with isolated(REFERENCE), vyre.compile(DOUBLE, backend="reference") as compiled:
        assert compiled.dispatch([words(1)]) == [words(2)]
    assert changes(before) == {}


def test_without_an_oracle_a_shadow_of_everything_is_refused_and_a_share_is_skipped(monkeypatch, caplog):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    text = r"no oracle is registered\. Fix: install one, or unset VYRE_SHADOW"
    with compiled_for(registration()) as compiled, pytest.raises(BackendUnavailable, match=text):
        compiled.dispatch([words(1)])
    for setting in ("0.5", "1,log"):
        monkeypatch.setenv("VYRE_SHADOW", setting)
        with compiled_for(registration()) as compiled:
            assert compiled.dispatch([words(1)]) == [words(2)]
    (record,) = caplog.records
    assert "(refused): VYRE_SHADOW=0.5 asks for a shadow and no oracle is registered" in record.getMessage()


@pytest.mark.parametrize("setting", ["1", "1,log", "0.01"])
@pytest.mark.parametrize("program", [DOUBLE, COMPACT], ids=["proved", "unproved"])
def test_a_program_that_the_oracle_does_not_run_is_skipped_with_one_note(monkeypatch, caplog, setting, program):
    class Narrow(Doubtful):
        id = "narrow"

        def supported_ops(self):
            return frozenset()

    narrow = BackendRegistration(id="narrow", kind="oracle", open=lambda device=None: Narrow())
    inputs = [words(1)] if program is DOUBLE else ORDERED
    monkeypatch.setenv("VYRE_SHADOW", setting)
    before = counters.counters()
    with compiled_for(registration(), narrow, program=program) as compiled:
        for _ in range(2):
            compiled.dispatch(inputs)
    assert changes(before)["shadow_skipped_refused"] == (1 if setting == "0.01" else 2)
    (record,) = caplog.records
    assert "(refused): backend narrow does not run the program" in record.getMessage()


def test_a_share_logs_what_differs(monkeypatch, caplog):
    monkeypatch.setenv("VYRE_SHADOW", "0.5")
    before = counters.counters()
    with compiled_for(registration(one_more), REFERENCE) as compiled:
        assert [compiled.dispatch([words(1)]) for _ in range(4)] == [[words(3)]] * 4
    assert changes(before)["shadow_divergences"] == 2
    assert len(caplog.records) == 2
    assert "= help: report it to the author of backend doubtful" in caplog.text


def test_a_share_in_code_raises_where_that_is_asked_for():
    with pytest.raises(Diverged):
        shadowed(twist=one_more, sample_rate=0.5, on_divergence="raise").dispatch([words(1)])
    assert shadowed(twist=one_more, sample_rate=0.5).dispatch([words(1)]) == [words(3)]


def test_a_mistake_in_the_time_limit_is_said_before_anything_runs(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "0.5,log")
    monkeypatch.setenv("VYRE_SHADOW_TIMEOUT", "soon")
    text = "VYRE_SHADOW_TIMEOUT='soon' is not a time to wait"
    with compiled_for(registration(), REFERENCE) as compiled, pytest.raises(ArgumentValueError, match=text):
        compiled.dispatch([words(1)])


# ---- what the call decided ------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=4)
def squares(out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = gid.x * gid.x


@vyre.kernel(workgroup=4)
def gather(x: In[u32], at: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[at[gid.x]]


@pytest.mark.parametrize("setting", ["1", "0.01", "1,log"])
def test_lengths_that_a_call_decides_reach_the_reference(monkeypatch, setting):
    monkeypatch.setenv("VYRE_SHADOW", setting)
    before = counters.counters()
    x, at = np.arange(9, dtype=np.uint32), np.array([3, 1], np.uint32)
    with isolated(registration(), REFERENCE):
        assert squares(sizes={"out": 3}).tolist() == [0, 1, 4]
        assert squares(out=np.empty(4, np.uint32)).tolist() == [0, 1, 4, 9]
        assert squares.start(sizes={"out": 2}).result().tolist() == [0, 1]
        assert gather(x, at, sizes={"out": 2}).tolist() == [3, 1]
        assert gather(x, at, out=np.empty(2, np.uint32)).tolist() == [3, 1]
        assert squares(sizes={"out": 7}, grid=1).tolist() == [0, 1, 4, 9, 0, 0, 0]
    seen = changes(before)
    del seen["shadow_ns"]
    assert seen == {"shadow_samples": 6 if setting != "0.01" else seen["shadow_samples"]}


@pytest.mark.parametrize("how", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_the_lengths_of_given_outputs_reach_the_reference(how):
    both, out = shadowed(squares.program), bytearray(12)
    result = getattr(both, how)([], out=[out])
    if how == "dispatch_async":
        result.result()
    assert out == words(0, 1, 4)
    assert both.dispatch_batch([[]], out=[[bytearray(4)]]) == [[words(0)]]
    assert both.dispatch([], out=[OutputSlot()], config=DispatchConfig(output_elements={"out": 2}))
    assert (both.shadow.samples, both.shadow.skips) == (3, {})


def test_a_started_dispatch_is_checked_once():
    both = shadowed(twist=one_more)
    pending = both.dispatch_async([words(7)])
    for _ in range(3):
        with pytest.raises(Diverged):
            pending.result()
    assert (both.shadow.samples, both.shadow.divergences) == (1, 1)


def test_a_deadline_bounds_the_dispatch_and_not_its_shadow():
    slow = Fixed(DOUBLE, words(2), id="reference")
    both = ShadowedPipeline(pipeline.compile(Doubtful(), DOUBLE), slow)
    with pytest.raises(DeadlineExceeded):
        both.dispatch([words(1)], DispatchConfig(timeout=0))
    assert slow.calls == 0
    assert both.dispatch([words(1)], DispatchConfig(timeout=60)) == [words(2)]
    assert slow.calls == 1


def test_many_threads_are_checked_each_with_its_own_inputs(monkeypatch):
    monkeypatch.setenv("VYRE_SHADOW", "1")
    before = counters.counters()
    failures = []

    def work(k):
        try:
            for n in range(10):
                memory = bytearray(words(k, n))
                compiled.dispatch([memory], out=[memory])
                assert memory == words(k + 1, n + 1)
        except BaseException as e:
            failures.append(e)

    with compiled_for(registration(), REFERENCE, program=INCREMENT) as compiled:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert failures == []
    assert changes(before)["shadow_samples"] == 60


@pytest.mark.parametrize("value", ["often", "2", "-1", "nan", "0.5,sorted", "log"])
def test_a_variable_that_is_no_share_is_refused(monkeypatch, value):
    monkeypatch.setenv("VYRE_SHADOW", value)
    text = rf"VYRE_SHADOW='{value}' is not a share .*Fix: set VYRE_SHADOW to"
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
