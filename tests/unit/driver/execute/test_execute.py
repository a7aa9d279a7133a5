"""The funnel: what a warm call does not do again, what is counted, what is refused, and what explain says."""

import asyncio
import gc
import json
import pickle
import struct
import threading
import weakref
from collections import UserList
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from vyre import u32
from vyre.driver import counters
from vyre.driver.contract import BackendCapability, CompiledPipeline, FuturePending, ReadyPending, VyreBackend
from vyre.driver.contract.registration import BackendRegistration, DeviceInfo
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig, HostResource, ResidentHandle
from vyre.driver.counters import decision_counters
from vyre.driver.execute.pipeline import run_batch, run_one
from vyre.driver.guard import compile as pipeline
from vyre.driver.guard.compile import explain
from vyre.driver.pipeline.compiler import attach_store
from vyre.driver.plan import OutputSlot
from vyre.driver.policy.decision import Decision
from vyre.driver.selection.registry import acquire, isolated
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeadlineExceeded,
    DispatchFailed,
    InvalidProgram,
    UnsupportedFeature,
    VyreError,
)
from vyre.foundation.ir.nodes import IndirectDispatch, InvocationId, Lit, Load, Store
from vyre.foundation.ir.program import Program, output, read, write_only

ONE = struct.pack("<I", 1)


def storing():
    return Program([output("out", 0, u32, 1)], (1, 1, 1), [Store("out", Lit(u32, 0), Lit(u32, 7))])


def copying(workgroup=4):
    """out[i] = a[i], of any length."""
    i = InvocationId(0)
    return Program([read("a", 0, u32), write_only("out", 1, u32)], (workgroup, 1, 1), [Store("out", i, Load("a", i))])


class Echo(CompiledPipeline):
    """Gives back copies of its inputs, or of what it was told to."""

    backend_id, id = "echo", "echo:1"

    def __init__(self):
        self.calls, self.error, self.outputs = [], None, None

    def dispatch(self, inputs, config=None, *, out=None):
        self.calls.append((inputs, config, out))
        if self.error is not None:
            raise self.error
        if out is not None:
            return list(out)
        return [bytes(b) for b in inputs] if self.outputs is None else self.outputs

    def dispatch_resident(self, resources, config=None):
        self.calls.append((resources, config, None))
        return [r for r in resources if isinstance(r, ResidentHandle)]


class EchoBackend(VyreBackend, contract=1):
    id = "echo"
    capability = BackendCapability(
        max_workgroup_size=(64, 1, 1), max_workgroups_per_dimension=1000, deadline="cooperative"
    )

    def __init__(self):
        self.native = Echo()

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise AssertionError("it compiles")

    def compile_native(self, program, config):
        return self.native


@pytest.fixture
def counted():
    """Calls give what the counters changed by since the last call."""
    last = counters.counters()

    def since():
        nonlocal last
        now = counters.counters()
        changed = {name: now[name] - last[name] for name in now if now[name] != last[name]}
        last = now
        return changed

    return since


# ---- the warm path --------------------------------------------------------------------------------------------------


def test_a_shape_is_planned_once_and_a_config_object_settled_once(counted):
    compiled = pipeline.compile(EchoBackend(), copying())
    config = DispatchConfig(label="warm")
    counted()
    compiled.dispatch([bytes(8)])
    assert counted() == {
        "plain_dispatches": 1, "routes_opened": 1, "plans_made": 1, "input_bytes": 8, "output_bytes": 8,
    }  # fmt: skip
    compiled.dispatch([bytearray(8)])
    compiled.dispatch([memoryview(bytes(8))])
    compiled.dispatch([np.zeros(2, np.uint32)])
    assert counted() == {"plain_dispatches": 3, "input_bytes": 24, "output_bytes": 24}
    compiled.dispatch([bytes(12)])
    assert counted()["plans_made"] == 1
    compiled.dispatch([bytes(8)], config)
    assert counted()["routes_opened"] == 1
    for same in (config, DispatchConfig(label="warm"), pickle.loads(pickle.dumps(config))):
        compiled.dispatch([bytes(8)], same)
    assert counted() == {"plain_dispatches": 3, "input_bytes": 24, "output_bytes": 24}


def test_the_lengths_of_given_outputs_are_part_of_the_shape(counted):
    compiled = pipeline.compile(acquire("reference"), copying())
    data, out = struct.pack("<2I", 3, 4), [bytearray(8)]
    assert compiled.dispatch([data], out=out) == out
    assert out == [bytearray(data)]
    counted()
    compiled.dispatch([data], out=out)
    assert "plans_made" not in counted()
    with pytest.raises(ArgumentValueError, match="output"):
        compiled.dispatch([data], out=[bytearray(6)])
    compiled.dispatch([data])
    assert counted()["plans_made"] == 1


def test_a_config_that_is_changed_by_nobody_but_replaced_is_seen():
    """Identity is only a shortcut: another object at the same address is another config."""
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    for k in range(300):
        compiled.dispatch([bytes(4)], DispatchConfig(label=f"l{k % 150}"))
        assert backend.native.calls[-1][1].label == f"l{k % 150}"


def test_an_input_too_few_and_an_output_too_many_are_not_taken_for_a_known_shape():
    compiled = pipeline.compile(EchoBackend(), copying())
    compiled.dispatch([bytes(4)], out=[bytearray(4)])
    for inputs, out in (([], [bytearray(4), bytearray(4)]), ([bytes(4), bytes(4)], []), ([bytes(4), bytes(4)], None)):
        with pytest.raises(VyreError, match="Fix: "):
            compiled.dispatch(inputs, out=out)


def test_a_new_config_for_every_call_and_a_new_length_for_every_call_grow_nothing():
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    for k in range(1200):
        compiled.dispatch([bytes(4 * k)], DispatchConfig(label=str(k)))
        compiled.dispatch([bytes(4 * k)])
        backend.native.calls.clear()
    assert len(compiled._runs) == len(compiled._held) <= 64
    assert len(compiled._routes) <= 64
    assert len(compiled.route(None)._plans) <= 1024


def test_a_forgotten_config_object_does_not_stay_alive():
    compiled = pipeline.compile(EchoBackend(), copying())
    first = compiled.route(DispatchConfig(label="first"))
    gone = weakref.ref(first.run)
    del first
    for k in range(130):
        compiled.dispatch([bytes(4)], DispatchConfig(label=str(k)))
    gc.collect()
    assert gone() is None


def test_threads_get_the_bytes_of_a_serial_run():
    compiled = pipeline.compile(acquire("reference"), copying())
    failures = []

    def work(k):
        for n in range(1, 30):
            data = struct.pack(f"<{n}I", *range(k, k + n))
            config = DispatchConfig(label=f"t{n % 3}") if n % 2 else None
            if bytes(compiled.dispatch([data], config)[0]) != data:
                failures.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs, message",
    [
        ([], r"expected 1 input buffer\(s\) and received 0"),
        ([ONE, ONE], r"expected 1 input buffer\(s\) and received 2"),
        ([bytes(5)], "no multiple of 4"),
        (["text"], "buffer 0 is str, which holds no bytes"),
        ([None], "buffer 0 is NoneType"),
    ],
)
def test_inputs_that_do_not_fit_the_program_never_reach_the_backend(inputs, message, counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    compiled.dispatch([ONE])
    counted()
    for call in (compiled.dispatch, compiled.dispatch_timed, compiled.dispatch_async):
        with pytest.raises((ArgumentValueError, ArgumentTypeError), match=message) as caught:
            call(inputs, DispatchConfig(label="mine"))
        assert caught.value.context["label"] == "mine"
    assert len(backend.native.calls) == 1
    assert "plain_dispatches" not in counted()


@pytest.mark.parametrize("inputs", [iter([ONE]), {"a": ONE}, None, 5])
def test_inputs_that_are_no_list_are_refused_also_when_their_lengths_are_known(inputs):
    compiled = pipeline.compile(EchoBackend(), copying())
    compiled.dispatch([ONE])
    with pytest.raises(ArgumentTypeError, match=r"inputs is .*, not a list.*Fix: pass inputs as a list of buffers"):
        compiled.dispatch(inputs)


def test_outputs_that_are_no_list_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"out is int, not a list"):
        pipeline.compile(EchoBackend(), copying()).dispatch([ONE], out=5)


def test_a_config_that_is_none_is_refused_by_type():
    with pytest.raises(ArgumentTypeError, match=r"config is dict.*Fix: pass DispatchConfig"):
        pipeline.compile(EchoBackend(), copying()).dispatch([ONE], {"timeout": 1})


COOPERATIVE = DispatchConfig(cooperative=True)  # one launch, or none


def test_a_grid_that_must_be_one_launch_and_cannot_is_refused():
    class Cooperative(EchoBackend):
        capability = BackendCapability(max_workgroup_size=(64, 1, 1), max_workgroups_per_dimension=1000, grid_sync=True)

    compiled = pipeline.compile(Cooperative(), copying(), COOPERATIVE)
    compiled.dispatch([bytes(4 * 4 * 1000)])
    with pytest.raises(InvalidProgram, match=r"axis 0.*max is 1000"):
        compiled.dispatch([bytes(4 * 4 * 1000 + 4)])


def test_a_grid_that_lies_in_memory_is_checked_at_every_call():
    program = Program(
        [read("groups", 0, u32), write_only("out", 1, u32)],
        (1, 1, 1),
        [IndirectDispatch("groups", 0), Store("out", InvocationId(0), Lit(u32, 1))],
    )

    class Indirect(EchoBackend):
        capability = BackendCapability(
            ops=EchoBackend().supported_ops() | program.ops(),
            max_workgroups_per_dimension=8,
            indirect_dispatch=True,
            grid_sync=True,
        )

    compiled = pipeline.compile(Indirect(), program, COOPERATIVE)
    compiled.dispatch([struct.pack("<3I", 8, 1, 1)])
    with pytest.raises(InvalidProgram, match="max is 8"):
        compiled.dispatch([struct.pack("<3I", 9, 1, 1)])


# ---- budget and labels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["dispatch", "dispatch_timed", "dispatch_async"])
def test_a_planned_result_over_the_budget_is_refused_before_it_runs(ask):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying(), DispatchConfig(max_output_bytes=8))
    getattr(compiled, ask)([bytes(8)])
    with pytest.raises(ArgumentValueError, match=r"12 bytes exceeds max_output_bytes=8.*Fix: raise DispatchConfig"):
        getattr(compiled, ask)([bytes(12)])
    assert len(backend.native.calls) == 1


def test_a_backend_that_hands_back_more_than_the_budget_is_refused():
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying(), DispatchConfig(max_output_bytes=8))
    backend.native.outputs = [bytes(8)]
    compiled.dispatch([bytes(8)])
    backend.native.outputs = [bytes(5), bytes(4)]
    for call in (compiled.dispatch, compiled.dispatch_timed, lambda i: compiled.dispatch_async(i).result()):
        with pytest.raises(ArgumentValueError, match="9 bytes exceeds max_output_bytes=8"):
            call([bytes(8)])


@pytest.mark.parametrize("label", [None, "mine"])
def test_the_label_is_in_the_error_of_a_failing_dispatch_and_the_failure_is_counted(label, counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    config = DispatchConfig(label=label, max_output_bytes=64)
    compiled.dispatch([ONE], config)
    calls = (compiled.dispatch, compiled.dispatch_timed, compiled.dispatch_async)
    for call in (*calls, lambda i, c: compiled.dispatch_resident([], c)):
        backend.native.error = DispatchFailed("the device is busy", fix="wait", asked=1)
        backend.native.dispatch_resident = backend.native.dispatch
        counted()
        with pytest.raises(DispatchFailed) as caught:
            call([ONE], config)
        assert caught.value.context == {"asked": 1} | ({} if label is None else {"label": label})
        assert counted()["failed_dispatches"] == 1


def test_the_label_is_in_the_error_of_a_dispatch_that_fails_later():
    class Later(ReadyPending):
        def _wait(self, timeout):
            raise DispatchFailed("the device went away", fix="wait")

    backend = EchoBackend()
    backend.native.dispatch_async = lambda inputs, config=None, *, out=None: Later([])
    compiled = pipeline.compile(backend, copying(), DispatchConfig(label="mine"))
    pending = compiled.dispatch_async([ONE])
    assert pending.is_ready()
    with pytest.raises(DispatchFailed) as caught:
        pending.result()
    assert caught.value.context["label"] == "mine"


def test_a_labelled_pending_dispatch_can_be_awaited_and_is_taken_once():
    compiled = pipeline.compile(acquire("reference"), copying(), DispatchConfig(label="mine"))

    async def wait():
        return await compiled.dispatch_async([ONE])

    assert asyncio.run(wait()) == [bytearray(ONE)]
    pending = compiled.dispatch_async([ONE])
    pending.result(timeout=10)
    with pytest.raises(DispatchFailed, match="already taken"):
        pending.result()


def test_dispatches_are_counted_by_label_and_labels_are_bounded():
    compiled = pipeline.compile(EchoBackend(), copying())
    for _ in range(3):
        compiled.dispatch([ONE], DispatchConfig(label="counted by label"))
    compiled.dispatch_timed([ONE], DispatchConfig(label="counted by label"))
    for k in range(600):
        compiled.dispatch([ONE], DispatchConfig(label=f"many {k}"))
    found = counters.label_counters()
    assert found["counted by label"] == 4
    assert found["many 599"] == 1
    assert found[""] >= 300
    assert len(found) <= 256 * (len(counters._live) + 1)


def test_labels_of_threads_that_ended_are_kept_the_rarest_giving_way():
    compiled = pipeline.compile(EchoBackend(), copying())

    def work(k):
        for _ in range(2):
            compiled.dispatch([ONE], DispatchConfig(label="in threads"))
        for n in range(200):
            compiled.dispatch([ONE], DispatchConfig(label=f"thread {k} {n}"))

    before = sum(counters.label_counters().values())
    for k in range(4):
        thread = threading.Thread(target=work, args=(k,))
        thread.start()
        thread.join()
    assert counters.label_counters()["in threads"] == 8
    assert sum(counters.label_counters().values()) - before == 4 * 202
    assert len(counters._ended.labels) <= 257


# ---- what a backend hands back --------------------------------------------------------------------------------------


def all_ways(compiled):
    return (
        compiled.dispatch,
        lambda inputs, **kw: compiled.dispatch_timed(inputs, **kw).outputs,
        lambda inputs, **kw: compiled.dispatch_async(inputs, **kw).result(),
        lambda inputs, out=None: run_batch(compiled, [inputs], out=None if out is None else [out])[0],
    )


@pytest.mark.parametrize(
    "returned, message",
    [
        (None, "it returned NoneType"),
        ((ONE,), "it returned tuple"),
        ([], r"it returned buffers of \[\] bytes and \[4\] were planned"),
        ([bytes(3)], r"it returned buffers of \[3\] bytes"),
        ([bytes(2), bytes(2)], r"it returned buffers of \[2, 2\] bytes"),
        ([None], "it returned something that holds no bytes"),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_a_backend_that_does_not_return_what_was_planned_is_refused(returned, message, given, counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    backend.native.dispatch = lambda inputs, config=None, *, out=None: returned
    out = {"out": [bytearray(4)]} if given else {}
    for call in all_ways(compiled):
        for _ in range(2):  # cold and warm
            with pytest.raises(DispatchFailed, match=message) as caught:
                call([ONE], **out)
            assert "backend echo broke its contract" in str(caught.value)
            assert "Fix: correct the backend's dispatch: " in str(caught.value)
    assert counted()["failed_dispatches"] == 8


def test_a_pending_dispatch_that_fails_says_the_same_again_and_counts_once(counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    backend.native.outputs = [bytes(3)]
    pending = compiled.dispatch_async([ONE])
    assert "failed_dispatches" not in counted()
    for _ in range(2):
        with pytest.raises(DispatchFailed, match="broke its contract"):
            pending.result()
    assert counted()["failed_dispatches"] == 1


def test_a_wait_that_ends_is_no_failed_dispatch(counted):
    backend, future = EchoBackend(), Future()
    backend.native.dispatch_async = lambda inputs, config=None, *, out=None: FuturePending(future)
    pending = pipeline.compile(backend, copying()).dispatch_async([ONE])
    with pytest.raises(DeadlineExceeded, match="has not ended yet"):
        pending.result(0)
    assert "failed_dispatches" not in counted()
    future.set_exception(OSError("gone"))
    with pytest.raises(DispatchFailed, match="backend echo raised OSError: gone"):
        pending.result(0)
    assert counted()["failed_dispatches"] == 1


def test_outputs_of_a_backend_that_ignores_out_are_copied_there():
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    backend.native.dispatch = lambda inputs, config=None, *, out=None: [bytes(b) for b in inputs]
    for call in all_ways(compiled):
        out = (bytearray(4),)
        found = call([ONE], out=out)
        assert type(found) is list
        assert found[0] is out[0]
        assert out[0] == ONE
        slot = OutputSlot(4)
        assert call([ONE], out=[slot]) == [slot]
        assert bytes(slot) == ONE


def test_a_timed_or_pending_result_of_another_type_is_refused():
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    backend.native.dispatch_timed = backend.native.dispatch_async = lambda inputs, config=None, *, out=None: [ONE]
    with pytest.raises(DispatchFailed, match=r"it returned list.*return a TimedDispatchResult"):
        compiled.dispatch_timed([ONE])
    backend.native.dispatch_timed = lambda inputs, config=None, *, out=None: SimpleNamespace(outputs=[ONE])
    with pytest.raises(DispatchFailed, match="it returned SimpleNamespace"):
        compiled.dispatch_timed([ONE], out=[bytearray(4)])
    with pytest.raises(DispatchFailed, match=r"it returned list.*return a PendingDispatch"):
        compiled.dispatch_async([ONE])


def test_a_foreign_exception_of_a_backend_becomes_a_failed_dispatch(counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    config = DispatchConfig(label="mine")
    compiled.dispatch([ONE], config)
    backend.native.error = ValueError("odd")
    backend.native.dispatch_resident = backend.native.dispatch
    calls = (compiled.dispatch, compiled.dispatch_timed, compiled.dispatch_async, compiled.dispatch_resident)
    for call in calls:
        counted()
        with pytest.raises(
            DispatchFailed, match=r"backend echo raised ValueError: odd.*Fix: read the chained"
        ) as caught:
            call([ONE], config)
        assert caught.value.__cause__ is backend.native.error
        assert caught.value.context == {"backend": "echo", "pipeline": "echo:1", "label": "mine"}
        assert counted()["failed_dispatches"] == 1
    backend.native.error = KeyboardInterrupt()
    for call in calls:
        with pytest.raises(KeyboardInterrupt):
            call([ONE])


def odd_bind(plan, config):
    raise ValueError("odd")


@pytest.mark.parametrize("id, error, timeout", [("cpu", DeadlineExceeded, 1e-9), ("echo", DispatchFailed, None)])
def test_a_dispatch_that_cannot_be_bound_is_one_that_failed(id, error, timeout, counted):
    backend = EchoBackend() if id == "echo" else acquire("cpu")
    compiled, config = pipeline.compile(backend, copying()), DispatchConfig(timeout=timeout, label="mine")
    if id == "echo":
        backend.native.bind = odd_bind
    else:
        compiled.dispatch([ONE], DispatchConfig(timeout=60.0))  # so that the code is there, in any time
    ways = {"plain": compiled.dispatch, "timed": compiled.dispatch_timed, "async": compiled.dispatch_async}
    for way, call in ways.items():
        for _ in range(2):  # nothing of it is kept
            counted()
            with pytest.raises(error) as caught:
                call([ONE], config)
            assert caught.value.context["label"] == "mine"
            found = counted()
            assert found[f"{way}_dispatches"] == found["failed_dispatches"] == 1
            assert "plans_made" not in found


def test_a_bind_that_gives_something_else_is_refused(counted):
    backend = EchoBackend()
    backend.native.bind = lambda plan, config: backend.native.dispatch
    counted()
    with pytest.raises(DispatchFailed, match=r"bind returned method.*Fix: .*: return a contract.Bound from bind"):
        pipeline.compile(backend, copying()).dispatch([ONE])
    assert counted()["failed_dispatches"] == 1


# ---- what the warm path must not skip -------------------------------------------------------------------------------


def test_outputs_that_cannot_be_written_are_refused_also_when_their_lengths_are_known():
    compiled = pipeline.compile(EchoBackend(), copying())
    compiled.dispatch([bytes(8)], out=[bytearray(8)])
    frozen = np.zeros(2, np.uint32)
    frozen.flags.writeable = False
    for target, message in ((bytes(8), "read-only bytes"), (frozen, "read-only"), (np.zeros(4, "u4")[::2], "contig")):
        for _ in range(2):
            with pytest.raises(ArgumentTypeError, match=message):
                compiled.dispatch([bytes(8)], out=[target])


def test_inputs_of_another_sequence_type_are_checked_at_every_call(counted):
    compiled = pipeline.compile(EchoBackend(), copying())
    compiled.dispatch([ONE])
    with pytest.raises(ArgumentTypeError, match="inputs is set, not a list"):
        compiled.dispatch({ONE})
    counted()
    compiled.dispatch((ONE,))
    assert "plans_made" not in counted()
    compiled.dispatch(UserList([ONE]))
    assert counted()["plans_made"] == 1


def twice():
    """Two outputs, a and b, of one element each."""
    stores = [Store(name, Lit(u32, 0), Lit(u32, 7)) for name in "ab"]
    return Program([write_only("a", 0, u32, 1), write_only("b", 1, u32, 1)], (1, 1, 1), stores)


def test_two_outputs_that_share_memory_are_refused():
    compiled = pipeline.compile(EchoBackend(), twice(), DispatchConfig(grid_override=(1, 1, 1)))
    same, slot, base = bytearray(4), OutputSlot(4), bytearray(8)
    for out in ([same, same], [slot, slot], [memoryview(base)[0:4], memoryview(base)[3:7]]):
        for ask in (compiled.dispatch, compiled.dispatch_timed, compiled.dispatch_async):
            with pytest.raises(ArgumentValueError, match=r"outputs 0 and 1 share memory.*Fix: pass separate buffers"):
                ask([], out=out)
    apart = [memoryview(base)[4:8], memoryview(base)[0:4]]
    assert compiled.dispatch([], out=apart) == apart
    with pytest.raises(ArgumentValueError, match="share memory"):  # also warm
        compiled.dispatch([], out=[same, same])
    with pytest.raises(ArgumentValueError, match="share memory"):  # lengths that were planned before, and other views
        compiled.dispatch([], out=[memoryview(base)[0:4], memoryview(base)[3:7]])


# ---- counters -------------------------------------------------------------------------------------------------------


def test_counters_of_threads_that_ended_are_kept(counted):
    compiled = pipeline.compile(EchoBackend(), copying())
    compiled.dispatch([ONE])
    counted()
    for _ in range(3):
        threads = [threading.Thread(target=lambda: [compiled.dispatch([ONE]) for _ in range(50)]) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert counted()["plain_dispatches"] == 600
    assert len(counters._live) < 12


def test_each_way_to_dispatch_has_a_counter(counted):
    compiled = pipeline.compile(EchoBackend(), copying())
    handle = ResidentHandle(1, 2, 4)
    counted()
    compiled.dispatch_timed([ONE])
    compiled.dispatch_async([ONE]).result()
    assert compiled.dispatch_resident([HostResource(ONE), handle]) == [handle]
    run_batch(compiled, [[ONE], [ONE]])
    run_one(compiled, [ONE])
    found = counted()
    assert (found["timed_dispatches"], found["async_dispatches"], found["resident_dispatches"]) == (1, 1, 1)
    assert (found["batches"], found["plain_dispatches"]) == (1, 3)


# ---- one and many ---------------------------------------------------------------------------------------------------


def test_run_one_is_a_dispatch_also_of_a_pipeline_from_elsewhere():
    foreign, config, out = Echo(), DispatchConfig(label="x"), [bytearray(4)]
    assert run_one(foreign, [ONE], config, out=out) == out
    assert foreign.calls == [([ONE], config, out)]
    assert run_batch(foreign, [[ONE], [ONE]]) == [[ONE], [ONE]]


@pytest.mark.parametrize("batches, out, what", [(5, None, "batches is int"), ([[ONE]], 5, "out is int")])
def test_batches_that_are_no_list_are_refused(batches, out, what):
    for compiled in (pipeline.compile(EchoBackend(), copying()), Echo()):
        with pytest.raises(ArgumentTypeError, match=rf"{what}, not a list.*Fix: pass .* as a list of lists"):
            compiled.dispatch_batch(batches, out=out)


@pytest.mark.row("A-CP-1")
def test_a_batch_keeps_its_order_also_over_different_lengths():
    compiled = pipeline.compile(acquire("reference"), copying())
    data = [struct.pack(f"<{n}I", *range(n)) for n in (3, 1, 4, 1, 5)]
    assert [bytes(outs[0]) for outs in run_batch(compiled, [[d] for d in data])] == data
    assert run_batch(compiled, []) == []


@pytest.mark.row("A-CP-2", "A-CP-4")
def test_a_batch_writes_into_the_callers_buffers_and_counts_their_bytes(counted):
    compiled = pipeline.compile(acquire("reference"), copying())
    first, second = bytearray(4), np.zeros(1, np.uint32)
    counted()
    results = run_batch(compiled, [[ONE], [ONE]], out=[[first], [second]])
    assert results[0][0] is first
    assert results[1][0] is second
    assert (bytes(first), second.tobytes()) == (ONE, ONE)
    found = counted()
    assert (found["plain_dispatches"], found["input_bytes"], found["output_bytes"]) == (2, 8, 8)


@pytest.mark.row("A-CP-2")
@pytest.mark.parametrize("given", [0, 1, 3])
def test_outputs_that_do_not_match_the_batches_are_refused(given):
    compiled = pipeline.compile(EchoBackend(), copying())
    with pytest.raises(DispatchFailed, match=r"outputs do not match the batches.*Fix: pass one list of outputs"):
        run_batch(compiled, [[ONE], [ONE]], out=[[bytearray(4)]] * given)


def test_a_failing_batch_says_where_it_failed():
    compiled = pipeline.compile(EchoBackend(), copying())
    with pytest.raises(ArgumentValueError) as caught:
        run_batch(compiled, [[ONE], [ONE], [bytes(3)]], DispatchConfig(label="b"))
    assert caught.value.context["batch_index"] == 2
    assert caught.value.context["label"] == "b"


def test_output_slots_of_any_length_are_passed_through():
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    slots = [OutputSlot(16)]
    for _ in range(2):
        assert compiled.dispatch([ONE], out=slots) == slots
    assert len(backend.native.calls) == 2


def test_a_pipeline_without_resident_dispatch_says_so():
    with pytest.raises(UnsupportedFeature, match="resident dispatch"):
        pipeline.compile(acquire("reference"), copying()).dispatch_resident([])


# ---- explain --------------------------------------------------------------------------------------------------------


def test_explain_shows_the_plan_and_runs_nothing(counted):
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    counted()
    explained = compiled.explain([bytes(40)], DispatchConfig(timeout=2.5, label="x"))
    assert backend.native.calls == []
    assert counted() == {}
    assert (explained.backend, explained.grid, explained.workgroup) == ("echo", (3, 1, 1), (4, 1, 1))
    assert (explained.invocations, explained.output_bytes) == (12, 40)
    assert [(b.slot, b.name, b.role, b.elements) for b in explained.bindings] == [
        (0, "a", "input", 10),
        (1, "out", "output", 10),
    ]
    assert explained.key["program"] == copying().fingerprint
    assert json.loads(json.dumps(explained.to_dict()))["decisions"][0]["what"] == "backend"
    text = str(explained)
    for line in (
        "grid 3x1x1 of workgroup 4x1x1, 12 invocations",
        "config: this call (it sets timeout, label)",
        "code: to be compiled (no pipeline has this key)",
        "cache: miss (dispatch_policy_changed; the nearest earlier key differs in deadline)",
        "workgroup: declared (4x1x1: the program declares it)",
        "grid: inferred (3x1x1: covers the 10 elements of out, the longest output, in workgroups of 4)",
        "launch: plain (the device takes the whole grid)",
        "determinism: proved (for grids with one workgroup along y and z)",
        "deadline: kept by the backend (2.5 s, kept by backend echo as: cooperative)",
    ):
        assert line in text
    assert "recording" not in text  # before it is compiled


def decisions(explained):
    return {d.what: (d.choice, d.reason) for d in explained.decisions}


def test_explain_tells_native_code_from_a_passthrough_and_knows_the_cache(monkeypatch):
    monkeypatch.setenv("VYRE_PIPELINE_CACHE_ENTRIES", "1")
    backend = EchoBackend()
    compiled = pipeline.compile(backend, copying())
    found = decisions(compiled.explain([ONE]))
    assert found["config"][0] == "compile time"
    assert found["code"] == ("native", "backend echo compiled it")
    assert found["cache"] == ("held", "still in memory")
    assert found["launch"] == ("plain", "the device takes the whole grid")
    assert found["recording"] == ("never", "backend echo records no launches")
    pipeline.compile(backend, storing())
    assert decisions(compiled.explain([ONE]))["cache"] == ("held", "no longer in memory; this pipeline keeps it")

    class Plain(EchoBackend):
        id = "plain"
        compile_native = VyreBackend.compile_native

    explained = pipeline.compile(Plain(), copying()).explain([ONE])
    assert decisions(explained)["code"] == ("passthrough", "backend plain compiles nothing ahead")
    assert "plain:passthrough:" in str(explained)


def test_explain_of_a_program_on_a_backend_compiles_nothing():
    backend = EchoBackend()
    before = decisions(explain(storing(), [], backend=backend))
    assert before["backend"] == ("echo", "the caller chose it")
    assert before["config"] == ("default", "nothing is asked for")
    assert before["cache"] == ("miss", "empty_cache")
    pipeline.compile(backend, storing())
    after = decisions(explain(storing(), [], backend=backend))
    assert after["cache"] == ("memory", "a pipeline with this key was compiled before")
    assert "buffers:" in str(explain(storing(), [], backend=backend))


def test_the_cache_says_and_counts_where_code_came_from():
    before = decision_counters()
    backend = EchoBackend()
    for _ in range(2):
        pipeline.compile(backend, copying())
    explain(storing(), [], backend=backend)
    changed = {what: n - before.get(what, 0) for what, n in decision_counters().items() if n != before.get(what, 0)}
    assert changed == {("cache", "miss"): 1, ("cache", "memory"): 1, ("code", "native"): 1}


def test_a_store_that_cannot_be_read_does_not_fail_an_explanation():
    class Gone:
        def __getattr__(self, name):
            raise OSError("the disk is gone")

    backend = EchoBackend()
    attach_store(backend, Gone())
    assert decisions(explain(storing(), [], backend=backend))["cache"] == ("miss", "empty_cache")


@pytest.mark.parametrize(
    "config, workgroup, grid",
    [
        (
            DispatchConfig(workgroup_override=(2, 1, 1)),
            ("overridden", "2x1x1: workgroup_override"),
            ("inferred", "5x1x1: covers the 10 elements of out, the longest output, in workgroups of 2"),
        ),
        (
            DispatchConfig(grid_override=(7, 1, 1)),
            ("declared", "4x1x1: the program declares it"),
            ("given", "7x1x1: grid_override"),
        ),
    ],
)
def test_explain_gives_the_reason_of_the_geometry(config, workgroup, grid):
    found = decisions(pipeline.compile(EchoBackend(), copying()).explain([bytes(40)], config))
    assert (found["workgroup"], found["grid"]) == (workgroup, grid)


def test_explain_asks_the_code_what_was_decided_about_it(monkeypatch):
    backend, asked = EchoBackend(), []
    compiled, said = pipeline.compile(backend, copying()), Decision("recording", "recorded", "twice")
    monkeypatch.setattr(type(compiled.native), "decisions", lambda self, *about: [asked.append(about), (said,)][1])
    assert decisions(compiled.explain([ONE]))["recording"] == ("recorded", "twice")
    assert decisions(explain(copying(), [ONE], backend=backend))["recording"] == ("recorded", "twice")
    (plan, config, memory), _ = asked
    assert compiled.decisions(plan, config, memory) == (said,)
    assert (plan.launch.grid, config, memory) == ((1, 1, 1), compiled.config, "host")


@pytest.mark.parametrize(
    "config, found",
    [
        (DispatchConfig(), ("proved", "for grids with one workgroup along y and z")),
        (DispatchConfig(grid_override=(9, 2, 1)), ("unproved", "store and store of two invocations may meet in 'out'")),
        (DispatchConfig(grid_override=(9, 1, 2)), ("unproved", "store and store of two invocations may meet in 'out'")),
    ],
)
def test_explain_says_whether_a_schedule_can_change_this_dispatch(config, found):
    assert decisions(pipeline.compile(EchoBackend(), copying()).explain([bytes(40)], config))["determinism"] == found


def test_explain_says_that_a_proof_is_for_any_grid_or_for_this_one():
    backend, i, row = EchoBackend(), InvocationId(0), InvocationId(1)
    reading = Program([read("a", 0, u32), write_only("out", 1, u32)], (1, 1, 1), [])
    assert decisions(explain(reading, [ONE], backend=backend))["determinism"] == ("proved", "for every grid")
    rows = Program([write_only("out", 0, u32, 32)], (1, 1, 1), [Store("out", row * 8 + i, i)])
    for x, expected in ((8, ("proved", "for this grid")), (9, "unproved")):
        told = explain(rows, [], DispatchConfig(grid_override=(x, 4, 1)), backend=backend)
        found = decisions(told)["determinism"]
        assert found == expected or found[0] == expected
    assert (told.choice("determinism"), told.choice("nothing")) == ("unproved", None)


def test_explain_refuses_what_a_dispatch_would_refuse():
    compiled = pipeline.compile(EchoBackend(), copying())
    with pytest.raises(ArgumentValueError) as caught:
        compiled.explain([bytes(3)], DispatchConfig(label="x"))
    assert caught.value.context["label"] == "x"


@pytest.mark.parametrize("config", [{"timeout": 1}, {}, 0])
def test_explain_refuses_a_config_of_another_type(config):
    backend = EchoBackend()
    for target in (storing(), pipeline.compile(backend, storing())):
        with pytest.raises(ArgumentTypeError, match=r"config is (dict|int).*Fix: pass DispatchConfig"):
            explain(target, [], config, backend=backend)


def test_explain_names_the_device_where_one_was_opened():
    backend = EchoBackend()
    assert "device" not in decisions(explain(storing(), [], backend=backend))
    backend.device = "board 1"
    explained = explain(storing(), [], backend=backend)
    assert decisions(explained)["device"] == ("board 1", "the backend was opened on it")


def test_explain_says_why_this_device():
    class Boards(EchoBackend):
        id = "boards"

        def __init__(self, device=None):
            super().__init__()
            self.device = f"board {device or 0}"

    infos = (DeviceInfo(0, "board 0"), DeviceInfo(1, "board 1"))
    record = BackendRegistration(id="boards", open=Boards, devices=lambda: infos)
    with isolated(record):
        for name, why in (("boards", "the best of its devices"), ("boards:board 1", "boards:board 1 asks for it")):
            with acquire(name) as opened:
                assert decisions(explain(storing(), [], backend=opened))["device"] == (opened.device, why)


@pytest.mark.parametrize("target", [None, Echo(), b"program"])
def test_explain_needs_a_pipeline_or_a_program_and_a_backend(target):
    with pytest.raises(ArgumentTypeError, match=r"no dispatch to explain.*Fix: pass a compiled pipeline"):
        explain(target, [], backend=EchoBackend())
    with pytest.raises(ArgumentTypeError, match="no dispatch to explain"):
        explain(storing(), [])
