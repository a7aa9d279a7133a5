"""Neighbouring elements moved at once: where that is done, and that no byte shows it."""

import os
import random

import pytest

from vyre.backends.cuda.emit.coarsen import KernelText
from vyre.backends.cuda.emit.packed_access import cuda_text, runs_of
from vyre.backends.cuda.emit.text import build_options
from vyre.backends.reference import run
from vyre.conform.programs.random import Case
from vyre.conform.programs.random_values import random_bytes
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard.backend import guarded
from vyre.foundation.ir.dtypes import bf16, bool_, f16, f32, f64, i8, i16, u8, u16, u32, u64
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Barrier,
    BinOp,
    BufLen,
    If,
    InvocationId,
    Let,
    Load,
    Loop,
    Select,
    Store,
    SubgroupReduce,
    Trap,
    Var,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp, BinaryOp, ReduceOp
from vyre.foundation.ir.program import Program, read, read_write, write_only
from vyre.lower import LowerOptions, lower

from ...support import cuda_host
from ...support.device_backends import open_or_skip

GID = InvocationId(0)
RANDOM = int(os.environ.get("VYRE_RANDOM_PROGRAMS", "36"))
OFF = frozenset(("privatize_atomics",))
TYPES = (u8, i8, u16, i16, u32, u64, f16, bf16, f32, f64, bool_)
IO = [read("a", 0, u32), read_write("c", 1, u32), read_write("d", 2, u32)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("host")


def lowered(program):
    return lower(program, LowerOptions(soft_flush=program.requirements.float64, off=OFF, firm=True))


def found(*body, buffers=IO):
    """The runs: what they do to which buffer, and with how many elements."""
    runs = dict.fromkeys(runs_of(lowered(Program(buffers, (64, 1, 1), body))).values())
    return sorted((run.last.op, run.buffer.name, len(run.members)) for run in runs)


def loads(base, count=4, buffer="a"):
    return [Let(f"{buffer}{k}", Load(buffer, base + k)) for k in range(count)]


def stores(base, count=4, buffer="c", value="a"):
    return [Store(buffer, base + k, Var(f"{value}{k}")) for k in range(count)]


FOUR = GID * 4
RUNS = {
    "loads and stores": ([*loads(FOUR), *stores(FOUR)], [("load", "a", 4), ("store", "c", 4)]),
    "a shift": ([*loads(GID << 2), *stores(GID << 3)], [("load", "a", 4), ("store", "c", 4)]),
    "eight are two of four": ([*loads(FOUR, 8), *stores(FOUR, 8)], [("load", "a", 4)] * 2 + [("store", "c", 4)] * 2),
    "pairs": ([*loads(GID * 2, 2), *stores(GID * 2, 2)], [("load", "a", 2), ("store", "c", 2)]),
    "six are four and two": (
        [*loads(FOUR, 6), *stores(FOUR, 6)],
        [("load", "a", n) for n in (2, 4)] + [("store", "c", n) for n in (2, 4)],
    ),
    "a multiple behind a sum": ([*loads(FOUR + 8), *stores(FOUR - 4)], [("load", "a", 4), ("store", "c", 4)]),
    "a multiple of a length": (loads(BufLen("c") * 4 + FOUR) + stores(FOUR), [("load", "a", 4), ("store", "c", 4)]),
    "a mask": ([*loads(GID & 0xFFFFFFFC), *stores(FOUR)], [("load", "a", 4), ("store", "c", 4)]),
    "one of two multiples": (
        [*loads(Select(BufLen("c") > GID, FOUR, GID * 8)), *stores(FOUR)],
        [("load", "a", 4), ("store", "c", 4)],
    ),
    "any order": ([*reversed(loads(FOUR)), *reversed(stores(FOUR))], [("load", "a", 4), ("store", "c", 4)]),
    "in a loop": (
        [Loop("k", lit(0), lit(3), [*loads(FOUR + Var("k") * 256), *stores(FOUR + Var("k") * 256)])],
        [("load", "a", 4), ("store", "c", 4)],
    ),
    "stores to two buffers in turn": (
        [*loads(FOUR), *[Store(b, FOUR + k, Var(f"a{k}")) for k in range(4) for b in "cd"]],
        [("load", "a", 4), ("store", "c", 4), ("store", "d", 4)],
    ),
    "in place": ([*loads(FOUR, buffer="c"), *stores(FOUR, value="c")], [("load", "c", 4), ("store", "c", 4)]),
    "an atomic on the way": (
        [*loads(FOUR)[:2], Let("x", Atomic(AtomicOp.ADD, "d", lit(0), lit(1))), *loads(FOUR)[2:], *stores(FOUR)],
        [("load", "a", 2), ("load", "a", 2), ("store", "c", 4)],
    ),
    "a store on the way": (
        [
            *loads(FOUR, buffer="c")[:2],
            Store("c", GID, lit(1)),
            *loads(FOUR, buffer="c")[2:],
            *stores(FOUR, buffer="d", value="c"),
        ],
        [("load", "c", 2), ("load", "c", 2), ("store", "d", 4)],
    ),
    "a load on the way": (
        [*loads(FOUR), *stores(FOUR)[:2], Let("x", Load("c", lit(9))), *stores(FOUR)[2:], Store("d", GID, Var("x"))],
        [("load", "a", 4), ("store", "c", 2), ("store", "c", 2)],
    ),
    "a branch on the way": (
        [*loads(FOUR), *stores(FOUR)[:2], If(Var("a0") > 3, [Store("d", GID, lit(1))]), *stores(FOUR)[2:]],
        [("load", "a", 4), ("store", "c", 2), ("store", "c", 2)],
    ),
    "another place on the way": (
        [*loads(FOUR), *stores(FOUR)[:2], Store("c", GID, lit(1)), *stores(FOUR)[2:]],
        [("load", "a", 4), ("store", "c", 2), ("store", "c", 2)],
    ),
    "a trap on the way": (
        [*loads(FOUR), *stores(FOUR)[:2], If(Var("a0") > 3, [Trap(GID, "big")]), *stores(FOUR)[2:]],
        [("load", "a", 4), ("store", "c", 2), ("store", "c", 2)],
    ),
    "neighbours of no multiple": ([*loads(GID), *stores(GID)], []),
    "neighbours of a product with three": ([*loads(GID * 3), *stores(GID * 3)], []),
    "behind a multiple": ([*loads(FOUR + 1, 1), *loads(FOUR + 2, 1), *stores(FOUR + 1, 1)], []),
    "a local": ([Let("i", FOUR), Assign("i", Var("i") + GID), *loads(Var("i")), *stores(Var("i"))], []),
    "every other": (
        [Let("a0", Load("a", FOUR)), Let("a1", Load("a", FOUR + 2)), *stores(FOUR, 1), Store("d", FOUR, Var("a1"))],
        [],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_neighbours_from_a_multiple_on_are_runs(name):
    body, expected = RUNS[name]
    assert found(*body) == expected


@pytest.mark.parametrize("element, count", [(u8, 16), (i16, 8), (f16, 8), (f32, 4), (bool_, 4), (u64, 2), (f64, 2)])
def test_a_run_has_sixteen_bytes(element, count):
    body = [Store("c", GID * 16 + k, Load("a", GID * 16 + k)) for k in range(16)]
    runs = found(*body, buffers=[read("a", 0, element), write_only("c", 1, element)])
    assert runs == [("load", "a", count)] * (16 // count) + [("store", "c", count)] * (16 // count)


def test_a_barrier_ends_runs():
    body = [*loads(FOUR)[:2], Barrier(), *loads(FOUR)[2:], *stores(FOUR)]
    assert found(*body) == [("load", "a", 2), ("load", "a", 2), ("store", "c", 4)]


def test_the_text_asks_where_the_buffer_begins_and_where_it_ends():
    text = cuda_text(lowered(Program(IO[:2], (64, 1, 1), [*loads(FOUR), *stores(FOUR)])))
    assert "(ulong)buf_a % sizeof(Pack<uint, 4>) == 0ull && at3 + 3u < len_a" in text
    assert text.count("*(const Pack<uint, 4> *)(buf_a + ") == text.count("*(Pack<uint, 4> *)(buf_c + ") == 1


def test_read_only_memory_is_read_as_such_and_lengths_are_words():
    """The compiler takes the read-only path for memory that is `const` and `__restrict__`."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    kernel = lowered(Program(IO[:2], (64, 1, 1), [*loads(FOUR), *stores(FOUR)]))
    text = cuda_text(kernel)
    assert "const uint *__restrict__ buf_a" in text
    assert "const uint len_a" in text
    program = nvrtc.nvrtcCreateProgram(text.encode(), b"run.cu", 0, [], [])[1]
    options = [b"--gpu-architecture=compute_90", *(o.encode() for o in build_options(False))]
    assert nvrtc.nvrtcCompileProgram(program, len(options), options)[0] == nvrtc.nvrtcResult.NVRTC_SUCCESS
    ptx = bytes(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, ptx)
    assert b"ld.global.nc.v4" in ptx
    assert b"st.global.v4" in ptx


# ---- bytes ---------------------------------------------------------------------------------------------------------


def expected_of(case):
    result = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in result.outputs]


def plain(kernel):
    return KernelText(cuda_text(kernel), kernel.workgroup)


def random_runs(rng):
    """Invocations that move several neighbours of two buffers each, in some order, with other work in between."""
    element = rng.choice(TYPES)
    each = rng.choice((2, 3, 4, 6, 8, 16))
    stride = rng.choice([n for n in (each, 4, 8, 12, 16, 32) if n >= each])  # every place belongs to one invocation
    groups, size = rng.randint(1, 4), rng.choice((1, 8, 33))
    some = groups * size * stride
    lengths = [max(0, some + rng.choice((0, 0, 1, -1, -3, 7, -some // 2))) for _ in range(2)]
    base = {name: GID * stride + rng.choice((0, 0, 4, 1)) for name in ("a", "c")}
    order = list(range(each))
    rng.shuffle(order)
    body = [Let(f"x{k}", Load("a", base["a"] + k)) for k in order]
    in_place = rng.random() < 0.5
    rng.shuffle(order)
    for k in order:
        if rng.random() < 0.1:
            body.append(
                If(
                    BinOp(BinaryOp.LT, GID, lit(rng.randrange(40))),
                    [Store("c", base["c"] + rng.randrange(each), Var("x0"))],
                )
            )
        if in_place and rng.random() < 0.2:
            body.append(Let(f"y{k}", Load("c", base["c"] + rng.randrange(each))))
            body.append(
                Store("c", base["c"] + k, Select(BinOp(BinaryOp.EQ, Var(f"y{k}"), Var("x0")), Var("x0"), Var(f"x{k}")))
            )
        else:
            body.append(Store("c", base["c"] + k, Var(f"x{k}")))
    if rng.random() < 0.4:
        body = [If(BinOp(BinaryOp.LT, GID, BufLen(rng.choice("ac"))), body)]
    buffers = [read("a", 0, element), (read_write if in_place else write_only)("c", 1, element)]
    inputs = [random_bytes(rng, element, n) for n in lengths[: 1 + in_place]]
    program, outputs = Program(buffers, (size, 1, 1), body), {} if in_place else {"c": lengths[1]}
    return Case(program, tuple(inputs), (groups, 1, 1), outputs)


@pytest.mark.parametrize("block", range(6))
@pytest.mark.check
def test_random_runs_give_the_bytes_of_the_reference(block, folder):
    for k in range(block, RANDOM, 6):
        case = random_runs(random.Random(k))
        for shift in (0, 1):
            assert cuda_host.run_case(case, folder, shift=shift, code=plain) == expected_of(case), (k, shift)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 127, 128, 130])
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_every_length_and_address_is_done_up_to_its_end(n, shift, folder):
    program = Program(IO[:2], (8, 1, 1), [*loads(FOUR), *stores(FOUR)])
    inputs = tuple(random_bytes(random.Random(n), u32, m) for m in (n, 130))
    case = Case(program, inputs, (5, 1, 1), {})
    assert cuda_host.run_case(case, folder, shift=shift, code=plain) == expected_of(case)


def test_runs_around_what_lanes_exchange(folder):
    body = [
        *loads(FOUR),
        Let("sum", SubgroupReduce(ReduceOp.ADD, Var("a3"))),
        *[Store("c", FOUR + k, Var(f"a{k}") + Var("sum")) for k in range(4)],
    ]
    program = Program(IO[:2], (64, 1, 1), body)
    inputs = tuple(random_bytes(random.Random(1), u32, n) for n in (700, 650))
    case = Case(program, inputs, (3, 1, 1), {})
    assert found(*body, buffers=IO[:2]) == [("load", "a", 4), ("store", "c", 4)]
    assert cuda_host.run_case(case, folder, code=plain) == expected_of(case)


def test_a_device_gives_the_bytes_of_the_reference():
    backend = guarded(open_or_skip("cuda"))
    for k in range(RANDOM):
        case = random_runs(random.Random(k))
        config = DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
        assert [bytes(o) for o in backend.dispatch(case.program, case.inputs, config)] == expected_of(case), k
    backend.shutdown()
