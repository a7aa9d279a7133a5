"""The entry of the reference backend: what it takes, what it refuses, what it hands back."""

import array
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre.backends.reference as reference
from vyre.backends.reference import OobReport, RunResult, Schedule, run
from vyre.backends.reference.backend import ReferenceBackend
from vyre.backends.reference.engines import numpy_engine
from vyre.backends.reference.engines.memory import BufferState, Memory, element_nbytes
from vyre.driver.contract.values import DispatchConfig
from vyre.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    DeadlineExceeded,
    DeviceOutOfMemory,
    InvalidProgram,
    StepLimitExceeded,
    Trap,
    UnsupportedFeature,
)  # fmt: skip
from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import f32, i4, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (  # fmt: skip
    AllReduce,
    Atomic,
    BinOp,
    Broadcast,
    BufferRef,
    BufLen,
    Call,
    If,
    IndirectDispatch,
    InvocationId,
    Let,
    Load,
    Loop,
    Opaque,
    OpaqueNode,
    Store,
    UnOp,
    Var,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, CollectiveOp, OpaqueOp
from vyre.foundation.ir.program import Access, BufferDecl, Program, output, read, read_write, workgroup, write_only

gid = InvocationId(0)
ENGINES = ["scalar", "numpy", "auto"]


def words(*values):
    return struct.pack(f"<{len(values)}I", *values)


def copy_program(element=u32, count=0):
    return Program(
        [read("x", 0, element, count), write_only("out", 1, element)], (4, 1, 1), [Store("out", gid, Load("x", gid))]
    )


# ---- inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_and_outputs_go_by_slot_and_not_by_declaration(engine):
    buffers = [read_write("c", 2, u32, 1), read("b", 1, u32, 1), output("d", 3, u32, 1), read("a", 0, u32, 1)]
    total = Load("a", lit(0)) * lit(100) + Load("b", lit(0)) * lit(10) + Load("c", lit(0))
    program = Program(buffers, (1, 1, 1), [Store("d", lit(0), total), Store("c", lit(0), lit(9))])
    assert run(program, [words(1), words(2), words(3)], grid=(1, 1, 1), engine=engine).outputs == [words(9), words(123)]


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_are_neither_changed_nor_shared(engine):
    program = Program([read_write("x", 0, u32)], (1, 1, 1), [Store("x", lit(0), lit(5))])
    data = bytearray(words(1, 2))
    (out,) = run(program, [data], grid=(1, 1, 1), engine=engine).outputs
    assert out == words(5, 2)
    assert data == words(1, 2)
    out[:] = bytes(8)
    assert data == words(1, 2)


@pytest.mark.parametrize(
    "given",
    [words(1, 2), bytearray(words(1, 2)), memoryview(words(1, 2)), array.array("I", [1, 2]),
     np.array([1, 2], dtype=np.uint32), np.array([1, 9, 2, 9], dtype=np.uint32)[::2], np.array([[1], [2]], np.uint32)],
    ids=lambda g: type(g).__name__,
)  # fmt: skip
def test_anything_that_holds_bytes_is_an_input(given):
    assert run(copy_program(), [given], grid=(1, 1, 1), output_elements={"out": 2}).outputs == [words(1, 2)]


def test_an_empty_array_is_an_input():
    result = run(copy_program(), [np.zeros((0, 3), np.uint32)], grid=(1, 1, 1), output_elements={"out": 0})
    assert result.outputs == [b""]


@pytest.mark.parametrize("given", [[1, 2], 5, "text", None])
def test_an_object_without_bytes_is_refused(given):
    with pytest.raises(ArgumentTypeError, match=r"buffer 0 is .*, which holds no bytes.*Fix: pass bytes"):
        run(copy_program(), [given], grid=(1, 1, 1), output_elements={"out": 2})


@pytest.mark.parametrize("count", [0, 2])
def test_the_number_of_inputs_must_be_right(count):
    with pytest.raises(ArgumentValueError, match=f"expected 1 input.* received {count}.*Fix: .*: x"):
        run(copy_program(), [words(1)] * count, grid=(1, 1, 1), output_elements={"out": 2})
    with pytest.raises(ArgumentValueError, match=r"in this order: nothing"):
        run(Program.empty(), [b""], grid=(1, 1, 1))


@pytest.mark.parametrize("nbytes", [4, 12])
def test_a_static_buffer_needs_its_exact_length(nbytes):
    with pytest.raises(ArgumentValueError, match=f"'x' has {nbytes} bytes: expected 8 bytes.*Fix: pass 2 elements"):
        run(copy_program(count=2), [bytes(nbytes)], grid=(1, 1, 1), output_elements={"out": 2})


@pytest.mark.parametrize("element, nbytes", [(u32, 7), (u16, 3), (u64, 12)])
def test_a_runtime_sized_buffer_needs_whole_elements(element, nbytes):
    with pytest.raises(ArgumentValueError, match=r"no multiple of.*Fix: pass whole elements"):
        run(copy_program(element), [bytes(nbytes)], grid=(1, 1, 1), output_elements={"out": 2})


def test_an_input_longer_than_an_index_reaches_is_refused(monkeypatch):
    monkeypatch.setattr("vyre.driver.plan.binding.U32_MAX", 3)
    with pytest.raises(ArgumentValueError, match=r"more elements than an index reaches.*at most 3"):
        Memory.build(copy_program(), [bytes(16)], {"out": 1})


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=40))
def test_bytes_come_back_as_they_went_in(data):
    (out,) = run(copy_program(u8), [data], grid=(10, 1, 1), output_elements={"out": len(data)}).outputs
    assert out == data


# ---- outputs --------------------------------------------------------------------------------------------------------


def test_the_caller_sizes_outputs_that_have_no_count():
    assert run(copy_program(), [words(1, 2)], grid=(1, 1, 1), output_elements={"out": 3}).outputs == [words(1, 2, 0)]


def test_an_output_that_nothing_sizes_names_the_way_out():
    program = Program([write_only("out", 0, u32)], (1, 1, 1), [Store("out", lit(0), lit(1))])
    with pytest.raises(ArgumentValueError, match=r"how long output 'out' is.*Fix: .*sizes={\"out\": n}"):
        run(program, [], grid=(1, 1, 1))


@pytest.mark.parametrize("sizes", [{"x": 1}, {"nobody": 1}])
def test_only_outputs_are_sized(sizes):
    with pytest.raises(ArgumentValueError, match=r"not an output whose length.*Fix: name one of: out"):
        run(copy_program(), [words(1)], grid=(1, 1, 1), output_elements=sizes)


@pytest.mark.parametrize("n", [-1, 2**32, 1.5, True])
def test_a_size_is_a_whole_number(n):
    with pytest.raises(ArgumentValueError, match=r"is not a length for output 'out'.*Fix: use a whole number"):
        run(copy_program(), [words(1)], grid=(1, 1, 1), output_elements={"out": n})


def test_a_size_may_repeat_but_not_change_a_static_count():
    program = Program([output("out", 0, u32, 2)], (1, 1, 1), [Store("out", lit(0), lit(1))])
    assert run(program, [], grid=(1, 1, 1), output_elements={"out": 2}).outputs == [words(1, 0)]
    with pytest.raises(ArgumentValueError, match=r"'out' has 2 elements and the caller asks for 3.*Fix: drop"):
        run(program, [], grid=(1, 1, 1), output_elements={"out": 3})


def ranged(start, end, count=4, access=Access.WRITE_ONLY):
    out = BufferDecl("out", 0, access, u32, count, output_byte_range=(start, end))
    return Program([out], (4, 1, 1), [Store("out", gid, gid + lit(1))])


def test_an_output_range_cuts_the_output():
    assert run(ranged(4, 12), [], grid=(1, 1, 1)).outputs == [words(2, 3)]


def test_an_output_range_sizes_an_output_that_has_no_count():
    assert run(ranged(4, 8, 0), [], grid=(1, 1, 1)).outputs == [words(2)]


def test_an_output_range_must_lie_inside():
    program = ranged(4, 8, 0, Access.READ_WRITE)
    assert run(program, [words(0, 0)], grid=(1, 1, 1)).outputs == [words(2)]
    with pytest.raises(InvalidProgram, match=r"range 4:8 of output 'out' is outside.*Fix: bind at least 8 bytes"):
        run(program, [words(0)], grid=(1, 1, 1))


def test_memory_that_is_not_there_is_reported(monkeypatch):
    class Nowhere:
        def __new__(cls, nbytes):
            raise MemoryError

    monkeypatch.setattr("vyre.backends.reference.engines.memory.bytearray", Nowhere, raising=False)
    with pytest.raises(DeviceOutOfMemory, match=r"no memory for buffer 'out'.*Fix: use a smaller buffer"):
        BufferState.zeros(output("out", 0, u32, 1), 1)


def test_an_element_type_without_storage_is_refused():
    with pytest.raises(InvalidProgram, match=r"type i4, which programs cannot store.*Fix: use a number type"):
        element_nbytes(read("x", 0, i4))


def test_buffers_are_padded_to_words():
    memory = Memory.build(copy_program(u8), [b"abcde"], {"out": 0})
    assert [len(s.data) for s in memory.buffers.values()] == [8, 4]
    assert [s.nbytes for s in memory.buffers.values()] == [5, 0]


# ---- grid -----------------------------------------------------------------------------------------------------------

INDIRECT = Program(
    [read("grid", 0, u32), output("out", 1, u32, 8)],
    (2, 1, 1),
    [IndirectDispatch("grid", 4), Store("out", gid, lit(1))],
)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("groups", [0, 1, 3])
def test_a_grid_may_come_from_memory(groups, engine):
    result = run(INDIRECT, [words(99, groups, 1, 1)], grid=(4, 1, 1), engine=engine)
    assert result.outputs == [words(*[1] * 2 * groups, *[0] * (8 - 2 * groups))]


def test_a_grid_from_memory_needs_twelve_bytes():
    with pytest.raises(InvalidProgram, match=r"no grid in buffer 'grid'.*Fix: bind at least 16 bytes"):
        run(INDIRECT, [words(99, 1, 1)], grid=(1, 1, 1))


@pytest.mark.parametrize("grid", [(2**30 + 1, 1, 1), (1, 2**32 + 1, 1)])
def test_ids_must_fit_u32(grid):
    with pytest.raises(ArgumentValueError, match=r"not every global id fits.*Fix: split the work"):
        run(copy_program(), [b""], grid=grid, output_elements={"out": 0})


@pytest.mark.parametrize("grid", [(-1, 1, 1), (1, 1, -7)])
def test_a_grid_has_no_negative_axis(grid):
    with pytest.raises(ArgumentValueError, match=rf"no {min(grid)} workgroups.*Fix: use 0 or more"):
        run(copy_program(), [b""], grid=grid, output_elements={"out": 0})


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_grid_leaves_zeros(engine):
    result = run(copy_program(), [words(7)], grid=(0, 1, 1), output_elements={"out": 1}, engine=engine)
    assert (result.outputs, result.steps) == ([words(0)], 0)


# ---- what is refused ------------------------------------------------------------------------------------------------


def one(*body):
    return Program([read_write("x", 0, u32, 1), read_write("f", 1, f32, 1)], (1, 1, 1), body)


@pytest.mark.parametrize(
    "program, message",
    [
        (one(Store("x", lit(0), Call("some.op", (lit(1),)))), "a call of some.op"),
        (one(Store("x", lit(0), Call("some.op", (BufferRef("x"),)))), "a call of some.op"),
        (one(Store("x", lit(0), Opaque("some.kind", b""))), "the extension some.kind"),
        (one(OpaqueNode("some.kind", b"")), "the extension some.kind"),
        (one(Store("x", lit(0), BinOp(OpaqueOp(0x80000001), lit(1), lit(1)))), "the operator opaque_0x80000001"),
        (one(Store("x", lit(0), UnOp(OpaqueOp(0x80000001), lit(1)))), "the operator opaque_0x80000001"),
        (one(Let("a", Atomic(OpaqueOp(0x80000001), "x", lit(0), lit(1)))), "the operator opaque_0x80000001"),
    ],
)
def test_what_no_engine_knows_is_an_unsupported_feature(program, message):
    with pytest.raises(UnsupportedFeature, match=f"does not run {message}.*Fix: "):
        run(program, [words(0), words(0)], grid=(1, 1, 1))


def test_an_invalid_program_is_refused_with_its_findings():
    program = one(Store("x", lit(0), Var("nobody")), Store("nowhere", lit(0), lit(1)))
    with pytest.raises(InvalidProgram, match=r"V\d{3}: .* and \d+ more.*Fix: ") as e:
        run(program, [words(0), words(0)], grid=(1, 1, 1))
    assert {"V066", "V064"} <= {issue.code for issue in e.value.issues}
    with pytest.raises(InvalidProgram):
        run(program, [words(0), words(0)], grid=(1, 1, 1))


def test_a_program_is_checked_once(monkeypatch):
    program = copy_program()
    run(program, [b""], grid=(1, 1, 1), output_elements={"out": 0})
    monkeypatch.setattr("vyre.backends.reference.engines.run.validate", None)
    assert run(program, [b""], grid=(1, 1, 1), output_elements={"out": 0}).outputs == [b""]


@pytest.mark.parametrize("node", [AllReduce("x", CollectiveOp.SUM, 1), Broadcast("x", 1, 0)])
def test_collectives_between_devices_are_refused(node):
    from vyre.backends.reference.engines.tape import compile_tape

    with pytest.raises(InvalidProgram, match=r"V046"):
        run(one(node), [words(0), words(0)], grid=(1, 1, 1))
    with pytest.raises(UnsupportedFeature, match=r"collectives between devices.*Fix: use group 0"):
        compile_tape(one(node), traced=False)


@pytest.mark.parametrize(
    "program, error, message",
    [
        (one(Store("x", lit(0), Var("v"))), InvalidProgram, "variable 'v' is not bound"),
        (one(Store("y", lit(0), lit(1))), InvalidProgram, "buffer 'y' is not declared"),
        (one(Store("x", lit(0), Call("some.op", ()))), UnsupportedFeature, "does not run calls"),
        (one(Store("x", lit(0), Opaque("k", b""))), UnsupportedFeature, "does not run opaque expressions"),
        (one(Store("x", lit(0), BufferRef("x"))), UnsupportedFeature, "does not run buffer references"),
        (one(OpaqueNode("k", b"")), UnsupportedFeature, "does not run opaque statements"),
        (one(ir.Node()), UnsupportedFeature, "does not run Node statements"),
        (one(Store("x", lit(0), BinOp(OpaqueOp(1), lit(1), lit(1)))), UnsupportedFeature, "does not run BinOp with"),
        (one(Store("x", lit(0), lit(1) + lit(True))), InvalidProgram, "has no type"),
    ],
)
def test_a_tape_of_an_invalid_program_says_what_is_wrong(program, error, message):
    from vyre.backends.reference.engines.tape import compile_tape

    with pytest.raises(error, match=f"{message}.*Fix: "):
        compile_tape(program, traced=False)


# ---- engines --------------------------------------------------------------------------------------------------------


def test_an_unknown_engine_is_refused():
    with pytest.raises(ArgumentValueError, match=r"'fast' is not an engine.*Fix: use one of: auto, numpy, scalar"):
        run(Program.empty(), [], grid=(1, 1, 1), engine="fast")


@pytest.mark.parametrize("options", [{"schedule": "reversed"}, {"detect_races": True}])
def test_the_numpy_engine_has_one_schedule_and_sees_no_races(options):
    with pytest.raises(UnsupportedFeature, match=r'Fix: use engine="scalar"'):
        run(Program.empty(), [], grid=(1, 1, 1), engine="numpy", **options)
    assert run(Program.empty(), [], grid=(1, 1, 1), **options).outputs == []


def test_auto_takes_numpy_where_it_can_and_scalar_elsewhere(monkeypatch):
    calls = []
    from vyre.backends.reference.engines import numpy_engine, scalar

    for engine in (numpy_engine, scalar):
        plain = engine.execute
        monkeypatch.setattr(engine, "execute", lambda *a, f=plain, n=engine.__name__: calls.append(n) or f(*a))
    program = one(Store("x", lit(0), lit(1)))
    for options in ({}, {"schedule": Schedule.seeded(1)}, {"raise_on_race": True}):
        assert run(program, [words(0), words(0)], grid=(1, 1, 1), **options).outputs[0] == words(1)
    monkeypatch.setattr(numpy_engine, "can_run", lambda *_: "not today")
    run(program, [words(0), words(0)], grid=(1, 1, 1))
    assert [c.rsplit(".")[-1] for c in calls] == ["numpy_engine", "scalar", "scalar", "scalar"]


@pytest.mark.parametrize("engine", ENGINES)
def test_both_engines_trap_stop_and_count_alike(engine):
    buffers = [output("out", 0, u32, 4), read("x", 1, u32)]
    program = Program(buffers, (8, 1, 1), [
        If(BufLen("x").eq(0), [ir.Trap(lit(5), "empty")]),
        Loop("i", lit(0), Load("x", gid), [Let("t", Var("i"))]),
        Store("out", gid, Load("x", gid)),
    ])  # fmt: skip
    result = run(program, [words(1, 2)], grid=(1, 1, 1), engine=engine)
    assert result.outputs == [words(1, 2, 0, 0)]
    assert result.oob == OobReport(loads=12, stores=4)
    with pytest.raises(Trap):
        run(program, [b""], grid=(1, 1, 1), engine=engine)
    with pytest.raises(StepLimitExceeded):
        run(program, [words(10**9)], grid=(1, 1, 1), engine=engine, max_steps=1000)


def test_the_package_names_what_it_offers():
    assert reference.RunResult is RunResult
    offered = ["REGISTRATION", "OobReport", "Race", "ReferenceBackend", "RunResult", "Schedule", "run"]
    assert reference.__all__ == offered
    assert all(getattr(reference, name) for name in offered)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'"):
        reference.nothing  # noqa: B018


def test_shared_memory_is_not_bound():
    program = Program([workgroup("tile", u32, 2), output("out", 0, u32, 1)], (1, 1, 1), [Store("tile", lit(0), lit(1))])
    memory = Memory.build(program, [])
    assert list(memory.buffers) == ["out"]
    assert {name: bytes(s.data) for name, s in memory.shared().items()} == {"tile": bytes(8)}


def test_an_atomic_add_is_the_same_on_both_engines():
    program = Program([read_write("n", 0, u32, 1)], (64, 1, 1), [Let("o", Atomic(AtomicOp.ADD, "n", lit(0), gid))])
    results = [run(program, [words(0)], grid=(4, 1, 1), engine=e).outputs for e in ENGINES]
    assert results == [[words(sum(range(256)))]] * 3


# ---- the backend ----------------------------------------------------------------------------------------------------

ENDLESS = [(1 << 30,) * 3, ((1 << 32) - 1,) * 3]


@pytest.mark.parametrize("grid", ENDLESS)
@pytest.mark.parametrize("body", [[], [Store("out", lit(0), InvocationId(2))]])
def test_a_deadline_ends_a_grid_without_end(body, grid):
    program = Program(
        [read("grid", 0, u32, 3), output("out", 1, u32, 1)], (1, 1, 1), [IndirectDispatch("grid", 0), *body]
    )
    with pytest.raises(DeadlineExceeded):
        ReferenceBackend().dispatch(program, [words(*grid)], DispatchConfig(timeout=0.2))


@given(
    st.tuples(*[st.integers(1, (1 << 32) - 1)] * 3),
    st.integers(0, (1 << 96) - 1),
    st.integers(1, 300),
)
def test_coordinates_follow_linear_indices_of_any_size(extent, first, count):
    first %= extent[0] * extent[1] * extent[2]
    linear = [first + k for k in range(count)]
    strides = (1, extent[0], extent[0] * extent[1])
    for axis in range(3):
        expected = [n // strides[axis] % extent[axis] for n in linear]
        assert numpy_engine._axis(first, count, extent, axis).tolist() == expected


def released():
    view = memoryview(bytearray(4))
    view.release()
    return view


WORD = Program([read("x", 0, u32), output("out", 1, u32, 1)], (1, 1, 1), [Store("out", lit(0), Load("x", lit(0)))])
X = words(7)


@pytest.mark.parametrize(
    "program, inputs, options, error, message",
    [
        ("code", [X], {}, ArgumentTypeError, r"program is a str.*Fix: pass a Program"),
        (None, [X], {}, ArgumentTypeError, r"program is a NoneType.*kernel\.program"),
        (WORD, [X], {"config": None}, ArgumentTypeError, r"config is a NoneType.*Fix: pass DispatchConfig"),
        (WORD, [X], {"config": {}}, ArgumentTypeError, r"config is a dict.*Fix"),
        (WORD, None, {}, ArgumentTypeError, r"inputs is a NoneType, not a list.*one buffer for each.*inputs"),
        (WORD, (x for x in [X]), {}, ArgumentTypeError, r"inputs is a generator.*Fix"),
        (WORD, {X}, {}, ArgumentTypeError, r"inputs is a set.*Fix"),
        (WORD, [X], {"out": 5}, ArgumentTypeError, r"out is a int, not a list.*one buffer for each.*outputs"),
        (WORD, [X], {"out": iter([bytearray(4)])}, ArgumentTypeError, r"out is a list_iterator.*Fix"),
        (WORD, [released()], {}, ArgumentValueError, r"inputs\[0\] is a memoryview whose memory was released.*Fix"),
        (WORD, [X], {"out": [released()]}, ArgumentValueError, r"out\[0\] is a memoryview whose memory.*Fix"),
    ],
)
@pytest.mark.parametrize("method", ["dispatch", "dispatch_async"])
def test_a_dispatch_of_the_wrong_things_says_which(method, program, inputs, options, error, message):
    with ReferenceBackend() as backend, pytest.raises(error, match=message):
        getattr(backend, method)(program, inputs, **options)


FORKED = """
import os, sys
import numpy as np
import vyre
from vyre import In, Out, gid, u32
from vyre.backends.reference.backend import ReferenceBackend

@vyre.kernel(workgroup=4)
def twice(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2

x = np.arange(4, dtype=np.uint32)
kernel = twice.on("reference")
kernel.start(x).result()
backend = ReferenceBackend()
args = twice.program, [x], vyre.DispatchConfig(output_elements={"out": 4})
pipe = backend.compile_native(twice.program, vyre.DispatchConfig())
backend.dispatch_async(*args).result()
child = os.fork()
if not child:
    for attempt in (
        lambda: backend.dispatch(*args),
        lambda: backend.dispatch_async(*args),
        lambda: backend.compile_native(args[0], args[2]),
        lambda: pipe.dispatch([x], args[2]),
    ):
        try:
            attempt()
        except vyre.DispatchFailed as e:
            assert "Fix: use the spawn start method, or acquire the backend in the child" in str(e)
        else:
            os._exit(3)
    backend.flush()
    backend.shutdown()
    assert kernel(x).tolist() == [0, 2, 4, 6]  # it opens a backend of its own
    assert kernel.start(x).result().tolist() == [0, 2, 4, 6]
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert backend.dispatch_async(*args).result()
assert kernel.start(x).result().tolist() == [0, 2, 4, 6]
sys.exit(code)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_is_told_to_open_its_own(tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED, "utf-8")
    done = subprocess.run([sys.executable, script], timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
