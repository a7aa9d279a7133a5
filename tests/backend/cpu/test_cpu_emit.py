"""The emitter of the cpu backend: the reference's bytes from every version of the code, and what launches rely on."""

import random
import re

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, barrier, f32, gid, lid, shared, trap, u8, u16, u32, wg
from vyre.backends.cpu.abi import NEXT, PIECE_BITS, STOP, TRAPPED
from vyre.backends.cpu.compile import compile_object, optimize
from vyre.backends.cpu.device import ffi, load
from vyre.backends.cpu.devices import library
from vyre.backends.cpu.emit.kernel import Target, emit
from vyre.backends.reference import run
from vyre.backends.reference.engines.memory import Memory
from vyre.conform.programs.random import Case, random_program
from vyre.driver.contract.traps import TOLD_BITS, told
from vyre.errors import MOST_TRAPS
from vyre.foundation.ir.dtypes import BY_NAME, i32
from vyre.foundation.ir.nodes import (
    Assign,
    Barrier,
    BinOp,
    Cast,
    If,
    Let,
    Load,
    LocalId,
    Loop,
    Return,
    Store,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    Var,
    lit,
)
from vyre.foundation.ir.ops import BinaryOp, ReduceOp
from vyre.foundation.ir.program import Program, output, read, read_write, workgroup
from vyre.lower import lower
from vyre.lower.from_program import build
from vyre.lower.kernel_ir import Ins, Kernel, TileCheck, walk
from vyre.lower.uniformity import mark_uniform

WIDTHS = (1, 4, 8, 16)
BLOCK, BLOCKS = 12, 8


def lowered(program, *, soft_flush=None, poll=False):
    soft = program.requirements.float64 if soft_flush is None else soft_flush
    kernel = build(program, soft_flush=soft)
    kernel.poll = poll
    mark_uniform(kernel)
    return kernel


class Launched:
    """One launch of a kernel over copies of the inputs; `words` is what the code left of the launch.

    Stores go past the cache where they can, unless `stream` is 0.
    """

    def __init__(self, kernel: Kernel, case: Case, width: int, *, chunk=3, stop=0, private=None, stream=1):
        emitted = emit(kernel, Target(width=width, mxcsr=not kernel.soft_flush))
        self.text = emitted.text
        code = load(compile_object(emitted.text))
        memory = Memory.build(case.program, case.inputs, case.output_elements)
        states = [memory.buffers[b.name] for b in kernel.buffers if not b.shared]
        addresses = [int(ffi.cast("uintptr_t", ffi.from_buffer(s.data))) for s in states]
        pointers = ffi.new("uint64_t[]", addresses or [0])
        lengths = ffi.new("uint64_t[]", [s.count for s in states] or [0])
        copies = ffi.new("uint64_t[]", len(pointers))
        for slot, copy in (private or {}).items():
            copies[slot] = int(ffi.cast("uintptr_t", ffi.from_buffer(copy)))
        scratch = np.full(emitted.scratch_bytes + 64, 0xA5, np.uint8)
        start = -(-scratch.ctypes.data // 64) * 64
        worker = ffi.new("uint64_t[]", [start, int(ffi.cast("uintptr_t", copies)), (1 << 64) - 1])
        x, y, z = case.grid
        at = [int(ffi.cast("uintptr_t", p)) for p in (pointers, lengths)]
        self.lists = ffi.new("uint64_t[]", TOLD_BITS // PIECE_BITS * MOST_TRAPS)
        self.row, self.rows = (g * w for g, w in zip(case.grid[:2], case.program.workgroup_size[:2], strict=True))
        lists = int(ffi.cast("uintptr_t", self.lists))
        traps = [0, lists, self.row, self.rows]
        self.words = ffi.new("int64_t[]", [*at, x, y, z, x * y * z, chunk, 0, stop, *traps, stream])
        code.run(self.words, worker)
        self.outputs = [bytes(o) for o in memory.outputs()]


def expected(case):
    found = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements)
    return [bytes(o) for o in found.outputs]


def case_of(program, inputs=(), grid=(1, 1, 1), **output_elements):
    return Case(program, tuple(np.ascontiguousarray(x).tobytes() for x in inputs), grid, output_elements)


def agree(case, widths=WIDTHS, **options):
    """As it was built, and improved: with a check that covers accesses, loops side by side, and guards that hold."""
    want = expected(case)
    for width in widths:
        for kernel in (lowered(case.program), lower(case.program)):
            got = Launched(kernel, case, width, **options).outputs
            assert got == want, f"width {width}, {'' if kernel.check else 'not '}checked"


def words(*values):
    return np.array(values, np.uint32)


# ---- random programs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.check
def test_random_programs_give_the_bytes_of_the_reference(block):
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        case = random_program(random.Random(seed))
        want = expected(case)
        for width in (1, WIDTHS[1 + seed % 3]):
            kernel = lowered(case.program, soft_flush=True if seed % 5 == 0 else None, poll=seed % 7 == 0)
            assert Launched(kernel, case, width).outputs == want, f"seed {seed}, width {width}\n{case.program}"


def test_one_program_gives_one_text():
    for seed in range(20):
        texts = {emit(lower(random_program(random.Random(seed)).program), Target(width=8)).text for _ in range(3)}
        assert len(texts) == 1


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(40))
def test_many_random_programs_give_the_bytes_of_the_reference(block):
    for seed in range(50_000 + block * 100, 50_100 + block * 100):
        case = random_program(random.Random(seed))
        want = expected(case)
        for width in WIDTHS:
            assert Launched(lowered(case.program), case, width).outputs == want, f"seed {seed}, width {width}"


# ---- ids, rows and edges --------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def saxpy(a: In[f32], x: In[f32], y: In[f32], out: Out[f32]):
    if gid.x < len(out):
        out[gid.x] = a[0] * x[gid.x] + y[gid.x]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 1000])
def test_saxpy_of_any_length(n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n), np.float32)
    agree(case_of(saxpy.program, [np.float32([3.5]), x, y], (-(-n // 64) or 1, 1, 1), out=n))


@vyre.kernel(workgroup=(5, 3))
def plane(x: In[u32], out: Out[u32]):
    out[gid.y * 20 + gid.x] = x[gid.x + gid.y] + 100 * gid.y


@vyre.kernel(workgroup=(16, 4, 2))
def solid(out: Out[u32]):
    out[(gid.z * 8 + gid.y) * 32 + gid.x] = lid.x + 100 * lid.y + 1000 * lid.z + 10000 * wg.x


def test_planes_and_solids_number_their_invocations():
    agree(case_of(plane.program, [np.arange(40, dtype=np.uint32)], (4, 2, 1), out=120))
    agree(case_of(solid.program, [], (2, 2, 2), out=32 * 8 * 4))


@vyre.kernel(workgroup=7)
def odd_groups(out: Out[u32]):
    out[gid.x] = lid.x * 1000 + wg.x


def test_workgroups_that_are_no_multiple_of_a_vector():
    agree(case_of(odd_groups.program, [], (9, 1, 1), out=60))


@vyre.kernel(workgroup=32)
def shifted(x: In[u32], y: In[u8], out: Out[u32]):
    out[gid.x] = x[gid.x - 1] + u32(y[gid.x + 4294967294])


def test_rows_that_begin_below_zero_wrap():
    x, y = np.arange(1, 65, dtype=np.uint32), np.arange(100, 164, dtype=np.uint8)
    agree(case_of(shifted.program, [x, y], (2, 1, 1), out=64))


@vyre.kernel(workgroup=32)
def wild(x: In[u32], narrow: In[u16], out: InOut[u32], small: InOut[u8]):
    out[x[gid.x]] = u32(narrow[x[gid.x] * 3]) + x[x[gid.x]]
    small[x[gid.x] * 2] = u8(gid.x)


def test_wild_indices_are_absorbed():
    x = np.arange(64, dtype=np.uint32)
    np.random.default_rng(0).shuffle(x)
    x[[3, 9, 40]] = [0xFFFFFFFF, 0x80000000, 64]
    narrow = np.arange(7, 7 + 67, dtype=np.uint16)
    agree(case_of(wild.program, [x, narrow, np.zeros(64, np.uint32), np.zeros(99, np.uint8)], (2, 1, 1)))


def test_the_element_of_the_last_active_lane_is_within_its_vector_where_no_lane_is_active():
    @vyre.kernel(workgroup=32)
    def k(x: In[u32], out: InOut[u32]):
        if x[gid.x] > 7:
            out[3] = 100 % x[gid.x]

    llvm = library()
    context = llvm.create_context()
    module = llvm.parse_assembly(emit(lower(k.program), Target(width=16, mxcsr=True)).text, context)
    optimize(module)
    text = str(module)
    module.close()
    context.close()
    assert re.search(r"extractelement <16 x i32> %\S+, i32 %", text)
    counted = re.findall(r"(%\S+) = [^=\n]*@llvm\.ctlz\.i16\(", text)
    assert counted
    for number in counted:  # LLVM takes the element before the test for an active lane: it may count none
        (frozen,) = re.findall(rf"(%\S+) = freeze i16 {number}\n", text)
        assert re.search(rf"= and i16 {frozen}, 15\n", text)


def test_bytes_are_gathered_from_any_alignment():
    @vyre.kernel(workgroup=16)
    def pick(at: In[u32], x: In[u8], out: Out[u32]):
        out[gid.x] = u32(x[at[gid.x]])

    kernel = lowered(pick.program)
    at = words(*np.random.default_rng(1).permutation(16))
    for skip in range(4):
        data = np.arange(skip, 40 + skip, dtype=np.uint8)
        agree(case_of(pick.program, [at, data], out=16))
    assert "masked.gather" in emit(kernel, Target(width=16)).text


@vyre.kernel(workgroup=(6, 4))
def transposed(x: In[u32], out: Out[u32]):
    if gid.x < 21 and gid.y < 13:
        out[gid.x * 13 + gid.y] = x[gid.y * 21 + gid.x]


@vyre.kernel(workgroup=16)
def running_sums(x: In[u32], out: Out[u32]):
    total = u32(0)
    for k in range(9):
        total = total + x[gid.x * 9 + k]
        out[gid.x * 9 + k] = total


@vyre.kernel(workgroup=16)
def chunk_sums(x: In[f32], out: Out[f32]):
    total = f32(0.0)
    start = gid.x * 9
    for k in range(9):
        if gid.x % 4 < 2:
            total = total + x[start + k] + x[start + 2 * k]
    out[gid.x] = total


def test_lanes_that_go_all_over_memory():
    x = np.arange(21 * 13, dtype=np.uint32)
    agree(case_of(transposed.program, [x], (4, 4, 1), out=21 * 13))
    agree(case_of(running_sums.program, [np.arange(400, dtype=np.uint32)], (3, 1, 1), out=440))
    agree(case_of(chunk_sums.program, [np.random.default_rng(0).random(390, np.float32)], (3, 1, 1), out=45))


def test_they_are_computed_lane_by_lane():
    for kernel in (transposed, running_sums, chunk_sums):
        text = emit(lower(kernel.program), Target(width=16)).text
        assert "gather" not in text
        assert "scatter" not in text


# ---- control flow ---------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=16)
def collatz(x: In[u32], out: Out[u32]):
    n = x[gid.x]
    steps = u32(0)
    while n > 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps = steps + 1
    out[gid.x] = steps


def test_lanes_leave_a_loop_one_by_one():
    agree(case_of(collatz.program, [np.arange(64, dtype=np.uint32)], (4, 1, 1), out=64))


@vyre.kernel(workgroup=16)
def early(x: In[u32], out: InOut[u32]):
    out[gid.x] = 1
    for k in range(x[gid.x]):
        if k == 3:
            return
        if (x[gid.x] & 1) == 1 and k == 2:
            out[gid.x] = 77
            return
        out[gid.x] = out[gid.x] + k + 1
    out[gid.x] = out[gid.x] + 1000


def test_lanes_return_from_nested_loops_and_branches():
    agree(case_of(early.program, [np.arange(48, dtype=np.uint32) % 7, np.zeros(48, np.uint32)], (3, 1, 1)))


@vyre.kernel(workgroup=16)
def found_first(x: In[u32], out: Out[u32]):
    for k in range(4294967295):
        if x[k] == gid.x:
            out[gid.x] = k
            return


def test_a_loop_ends_when_every_lane_has_returned():
    agree(case_of(found_first.program, [words(*reversed(range(32)))], (2, 1, 1), out=32))


@vyre.kernel(workgroup=(16, 4))
def matmul(n: In[u32], a: In[f32], b: In[f32], out: Out[f32]):
    if gid.x < n[0] and gid.y < n[0]:
        total = f32(0.0)
        for k in range(n[0]):
            total = total + a[gid.y * n[0] + k] * b[k * n[0] + gid.x]
        out[gid.y * n[0] + gid.x] = total


@pytest.mark.parametrize("n", [1, 16, 37, 64])
def test_rows_of_a_loop_are_computed_side_by_side(n):
    a, b = np.random.default_rng(n).standard_normal((2, n * n), np.float32)
    agree(case_of(matmul.program, [words(n), a, b], (-(-n // 16), -(-n // 4), 1), out=n * n))


@vyre.kernel(workgroup=64)
def mandelbrot(out: Out[u32]):
    if gid.x >= len(out):
        return
    cx = f32(gid.x % 32) * 0.09 - 2.0
    cy = f32(gid.x // 32) * 0.12 - 1.2
    x, y, n = f32(0.0), f32(0.0), u32(0)
    while n < 40 and x * x + y * y <= 4.0:
        x, y = x * x - y * y + cx, 2.0 * x * y + cy
        n = n + 1
    out[gid.x] = n


@pytest.mark.parametrize("n", [1, 64, 640])
def test_lanes_that_left_a_loop_keep_what_is_used_after_it(n):
    agree(case_of(mandelbrot.program, [], (10, 1, 1), out=n))


def test_a_loop_that_is_entered_again_begins_afresh_for_every_lane():
    @vyre.kernel(workgroup=16)
    def again(x: In[u32], out: Out[u32]):
        total = u32(0)
        kept = u32(0)
        for k in range(3):
            n = x[gid.x] + k
            while n > 3:
                n = n - 3
                kept = kept + 1
                total = total + n * kept
        out[gid.x] = total

    agree(case_of(again.program, [np.arange(32, dtype=np.uint32) * 7 % 19], (2, 1, 1), out=32))


def test_nothing_is_read_before_the_return_that_protects_it():
    """The load needs no test behind the return, so it must stay there."""

    @vyre.kernel(workgroup=16)
    def protected(at: In[u32], x: In[u32], out: Out[u32]):
        if at[0] >= len(x):
            return
        out[gid.x] = x[at[0]] + gid.x

    for at in (5, 0x7FFFFFFF):
        agree(case_of(protected.program, [words(at), np.arange(9, dtype=np.uint32)], out=16))


def test_guards_of_whole_tiles_leave_no_mask():
    text = emit(lower(saxpy.program), Target(width=16)).text
    fast = text.partition("@fast(")[2].partition("\n}")[0]
    assert "masked" not in fast
    assert "icmp ult <16" not in fast
    assert "masked" in text


def test_a_guard_inside_one_that_cannot_be_told_for_a_tile_stays():
    @vyre.kernel(workgroup=16)
    def inner(x: In[u32], out: Out[u32]):
        place = gid.x * 8 | gid.x // 16
        if place < len(x):  # noqa: SIM102 - one inside the other
            if gid.x < len(out):
                out[gid.x] = x[place]

    agree(case_of(inner.program, [np.arange(40, dtype=np.uint32)], (3, 1, 1), out=48))


# ---- barriers, subgroups --------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=(8, 8))
def transpose(x: In[u32], out: Out[u32]):
    tile = shared(u32, 64)
    total = u32(0)
    for k in range(3):
        tile[lid.y * 8 + lid.x] = x[gid.y * 16 + gid.x] + k
        barrier()
        total = total + tile[lid.x * 8 + lid.y] * (k + 1)
        barrier()
    out[gid.y * 16 + gid.x] = total


def test_locals_live_across_barriers():
    agree(case_of(transpose.program, [np.arange(256, dtype=np.uint32)], (2, 2, 1), out=256))


@vyre.kernel(workgroup=(16, 16))
def tiled(n: In[u32], a: In[f32], b: In[f32], out: Out[f32]):
    left = shared(f32, 256)
    right = shared(f32, 256)
    total = f32(0.0)
    for t in range(n[0] // 16):
        left[lid.y * 16 + lid.x] = a[gid.y * n[0] + t * 16 + lid.x]
        right[lid.y * 16 + lid.x] = b[(t * 16 + lid.y) * n[0] + gid.x]
        barrier()
        for k in range(16):
            total = total + left[lid.y * 16 + k] * right[k * 16 + lid.x]
        barrier()
    out[gid.y * n[0] + gid.x] = total


def test_tiles_of_shared_memory():
    a, b = np.random.default_rng(0).standard_normal((2, 48 * 48), np.float32)
    agree(case_of(tiled.program, [words(48), a, b], (3, 3, 1), out=48 * 48))


def after_a_return(condition):
    """Lanes return after a barrier inside a branch that all take; the others go on behind it."""
    x = LocalId(0)
    return Program(
        [read("n", 0, i32, 1), output("out", 1, i32, 24), workgroup("tile", i32, 24)],
        (24, 1, 1),
        [
            Let("seen", lit(0)),
            Let("sum", lit(5)),
            If(
                BinOp(BinaryOp.GT, Load("n", lit(0)), lit(0, i32)),
                [
                    Store("tile", x, Cast(i32, x)),
                    Barrier(),
                    If(condition, [Return()]),
                    Loop("k", lit(0), lit(4), [Assign("seen", BinOp(BinaryOp.ADD, Var("seen"), Var("k")))]),
                    Assign("sum", BinOp(BinaryOp.ADD, Var("sum"), x)),
                ],
            ),
            Store(
                "out",
                x,
                BinOp(
                    BinaryOp.ADD,
                    Load("tile", BinOp(BinaryOp.SUB, lit(23), x)),
                    Cast(i32, BinOp(BinaryOp.ADD, Var("seen"), Var("sum"))),
                ),
            ),
        ],
    )


@pytest.mark.parametrize("limit", [0, 3, 16, 20, 24])
@pytest.mark.parametrize("n", [0, 1])
def test_lanes_that_returned_stay_away_from_later_stretches(limit, n):
    program = after_a_return(BinOp(BinaryOp.GE, LocalId(0), lit(limit)))
    agree(case_of(program, [np.int32([n])]))


def test_a_return_of_all_lanes_ends_the_workgroup_before_a_barrier():
    @vyre.kernel(workgroup=8)
    def maybe(n: In[u32], out: Out[u32]):
        tile = shared(u32, 8)
        if n[wg.x] == 0:
            return
        tile[lid.x] = gid.x
        barrier()
        out[gid.x] = tile[7 - lid.x] + 1

    agree(case_of(maybe.program, [words(1, 0, 2)], (3, 1, 1), out=24))


@pytest.mark.parametrize(
    "dtype, lanes",
    [
        pytest.param(dtype, lanes, marks=() if (dtype, lanes) in (("u32", 31), ("f32", 70)) else pytest.mark.check)
        for dtype in ("u32", "i32", "f32")
        for lanes in (1, 31, 32, 33, 70, 96)
    ],
)
def test_subgroup_operations(dtype, lanes):
    t = BY_NAME[dtype]
    ops = [op for op in ReduceOp if dtype != "f32" or op.text in ("add", "mul", "min", "max")]
    x = LocalId(0)
    load = Load("x", x)
    body = [Store(op.text, x, SubgroupReduce(op, load)) for op in ops]
    body.append(Store("shuffled", x, SubgroupShuffle(load, Load("at", x))))
    odd = BinOp(BinaryOp.BIT_AND, Load("at", x), lit(1))
    body.append(Store("ballots", x, BinOp(BinaryOp.ADD, SubgroupBallot(odd), SubgroupLocalId())))
    buffers = [read("x", 0, t, lanes), read("at", 1, u32, lanes), read_write("shuffled", 2, t, lanes)]
    buffers += [read_write("ballots", 3, u32, lanes)]
    buffers += [read_write(op.text, 4 + k, t, lanes) for k, op in enumerate(ops)]
    rng = np.random.default_rng(lanes)
    data = rng.integers(-50, 50, lanes).astype({"u32": np.uint32, "i32": np.int32, "f32": np.float32}[dtype])
    if dtype == "f32":
        data *= np.float32(1e-20)
    at = rng.integers(0, 40, lanes).astype(np.uint32)
    zeros = [np.zeros(lanes, np.uint32)] * (2 + len(ops))
    case = case_of(Program(buffers, (lanes, 1, 1), body), [data, at, *zeros])
    want = expected(case)
    for width in WIDTHS:
        for soft in (False, True):
            assert Launched(lowered(case.program, soft_flush=soft), case, width).outputs == want


# ---- atomics --------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=64)
def histogram(x: In[u8], bins: InOut[u32]):
    vyre.atomic_add(bins, u32(x[gid.x]), 1)


@vyre.kernel(workgroup=33)
def counts(x: In[u32], total: InOut[u32], most: InOut[u32], old: Out[u32]):
    tile = shared(u32, 2)
    vyre.atomic_add(tile, x[gid.x] & 1, 1)
    vyre.atomic_max(most, 0, x[gid.x])
    if x[gid.x] > 20:
        vyre.atomic_add(total, 0, x[gid.x])
    barrier()
    old[gid.x] = tile[x[gid.x] & 1]


def test_atomics_count_every_lane_once():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, 640).astype(np.uint8)
    agree(case_of(histogram.program, [x, np.zeros(200, np.uint32)], (10, 1, 1)))
    x = rng.integers(0, 100, 99).astype(np.uint32)
    agree(case_of(counts.program, [x, words(7), words(9)], (3, 1, 1), old=99))


def test_a_private_copy_takes_the_atomics():
    x = np.random.default_rng(0).integers(0, 256, 640).astype(np.uint8)
    bins = np.zeros(256, np.uint32)
    case = case_of(histogram.program, [x, bins], (10, 1, 1))
    (want,) = expected(case)
    for width in WIDTHS:
        kernel = lowered(histogram.program)
        (buffer,) = (b for b in kernel.buffers if b.name == "bins")
        buffer.private = True
        for item in walk(kernel.body):
            if item.op == "atomic":
                item.used = False
        assert Launched(kernel, case, width).outputs == [want]
        copy = bytearray(1024)
        launched = Launched(kernel, case, width, private={buffer.slot: copy})
        assert bytes(copy) == want
        assert launched.outputs == [bytes(1024)]
        assert "atomicrmw" in launched.text


@vyre.kernel(workgroup=16)
def exchanges(x: InOut[u32], old: Out[u32]):
    old[gid.x * 2] = vyre.atomic_exchange(x, gid.x, gid.x + 100)
    old[gid.x * 2 + 1] = vyre.atomic_cas(x, gid.x, 105, 7)


def test_atomics_give_what_was_there():
    agree(case_of(exchanges.program, [np.arange(30, dtype=np.uint32)], (2, 1, 1), old=64))


# ---- launches -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=16)
def careful(x: In[u32], out: Out[u32]):
    out[gid.x] = 1
    if x[gid.x] > 30:
        trap("too big", x[gid.x] + 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_trap_tells_who_and_where(width):
    x = np.zeros(64, np.uint32)
    x[37] = 40
    launched = Launched(lowered(careful.program), case_of(careful.program, [x], (4, 1, 1), out=64), width, chunk=1)
    assert launched.words[TRAPPED] == 1
    assert told(launched.lists, PIECE_BITS, 64, ["too big"], launched.row, launched.rows) == [
        ("too big", 41, (37, 0, 0), "")
    ]
    assert launched.words[STOP] == 0
    assert launched.words[NEXT] >= 4


@pytest.mark.parametrize("width", WIDTHS)
def test_a_program_that_does_not_trap_says_nothing(width):
    launched = Launched(
        lowered(careful.program), case_of(careful.program, [np.zeros(64, np.uint32)], (4, 1, 1), out=64), width
    )
    assert launched.words[TRAPPED] == launched.words[STOP] == 0


def endless(body):
    return Program(
        [output("out", 0, u32, 16)],
        (16, 1, 1),
        [Loop("k", lit(0), lit(0xFFFFFFFF), [Loop("j", lit(0), lit(0xFFFFFFFF), body)])],
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_who_is_told_to_stop_leaves_a_loop(width):
    from threading import Timer

    body = [Store("out", LocalId(0), BinOp(BinaryOp.ADD, Var("j"), LocalId(0)))]
    program = endless(body)
    kernel = lowered(program, poll=True)
    emitted = emit(kernel, Target(width=width))
    code = load(compile_object(emitted.text))
    out = ffi.new("uint32_t[]", 16)
    pointers, lengths = ffi.new("void *[]", [out]), ffi.new("int64_t[]", [16])
    shared_words = ffi.new("int64_t[]", 15)
    for k, p in enumerate((pointers, lengths)):
        shared_words[k] = int(ffi.cast("intptr_t", p))
    for k in range(2, 7):
        shared_words[k] = 1

    def stop():
        shared_words[STOP] = 1

    timer = Timer(0.05, stop)
    timer.start()
    code.run(shared_words, ffi.new("int64_t[]", [0, 0, -1, 0]))
    timer.join()
    assert shared_words[NEXT] == 1


def test_nothing_runs_when_the_flag_is_up_already():
    launched = Launched(lowered(saxpy.program), case_of(saxpy.program, [np.zeros(1, np.float32)] * 3, out=1), 8, stop=1)
    assert launched.words[NEXT] == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_the_check_of_a_tile_chooses_the_version_without_tests(width):
    """With a check that knows the lengths, covered accesses are plain in one version; edges still give zeros."""
    program = odd_groups.program
    kernel = lowered(program)
    (store,) = (i for i in walk(kernel.body) if i.op == "store")
    store.covered = True
    high = Ins("gid_hi", "u64", attr=0)
    length = Ins("len", "u32", attr=store.attr)
    wide = Ins("convert", "u64", (length,))
    ok = Ins("lt", "bool", (high, wide))
    kernel.check = TileCheck([high, length, wide, ok], ok)
    case = case_of(program, [], (50, 1, 1), out=331)
    for chunk in (1, 7, 50):
        launched = Launched(kernel, case, width, chunk=chunk)
        assert launched.outputs == expected(case)
    fast, safe = (launched.text.partition(f"@{name}(")[2].partition("\n}")[0] for name in ("fast", "safe"))
    assert "%length0" in safe
    assert "%length0" not in fast


def test_the_vector_unit_flushes_only_inside():
    tiny = np.float32(1e-40)
    x = np.full(64, 1e-38, np.float32)
    case = case_of(saxpy.program, [np.float32([1e-2]), x, x], out=64)
    agree(case)
    assert tiny + tiny > 0
    text = emit(lowered(saxpy.program), Target(width=8, mxcsr=True)).text
    assert "ldmxcsr" in text
    assert "denormal-fp-math" in text
    soft = emit(lowered(saxpy.program, soft_flush=True), Target(width=8, mxcsr=True)).text
    assert "ldmxcsr" in soft, "the caller's mode is not ours either way"
    assert "denormal-fp-math" not in soft
    assert "ldmxcsr" not in emit(lowered(saxpy.program, soft_flush=True), Target(width=8)).text


@vyre.kernel(workgroup=(8, 8))
def one_place(a: Out[u32], b: Out[u32], n: u32):
    a[128] = gid.x  # beyond the end: whatever this computes, it computes on one path only
    b[gid.y * 8 + gid.x] = gid.x // n


@vyre.kernel(workgroup=16)
def one_place_of_some(a: InOut[u32], b: Out[u32], n: u32):
    if gid.x % 3 == 1:
        a[n] = gid.x ^ 5
        b[gid.x] = (gid.x ^ 5) // n + gid.x * gid.x


@vyre.kernel(workgroup=16)
def trap_of_some(b: Out[u32], n: u32):
    if gid.x % 3 == 1:
        if n * gid.x == 1000:
            trap("here", gid.x * n)
        b[gid.x] = (gid.x * n) // 7 + gid.x * gid.x


@pytest.mark.check
def test_what_is_computed_for_one_place_is_not_known_behind_it():
    n = np.uint32([3])
    agree(case_of(one_place.program, [n], (1, 2, 1), a=128, b=128))
    agree(case_of(one_place_of_some.program, [np.zeros(2, np.uint32), n], (3, 1, 1), b=48))
    agree(case_of(trap_of_some.program, [n], (3, 1, 1), b=48))
