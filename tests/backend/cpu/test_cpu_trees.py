"""Trees of steps through shared memory: loops around barriers written turn by turn, the lanes that a turn is meant for,
elements that lie apart, and what stays in registers between barriers. None of it may be seen in the bytes."""

import re

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    Out,
    barrier,
    bitcast,
    f32,
    f64,
    gid,
    i32,
    lid,
    shared,
    subgroup_add,
    subgroup_max,
    trap,
    u8,
    u16,
    u32,
    wg,
)
from vyre.backends.cpu.abi import PIECE_BITS, TRAPPED
from vyre.driver.contract.traps import told
from vyre.lower import LowerOptions, lower
from vyre.lower.kernel_ir import If, Loop, walk

from .test_cpu_emit import WIDTHS, Launched, case_of, expected

RANDOM = np.random.default_rng(22)
BY_TURNS = LowerOptions(by_turns=True)


def words_of(count):
    return RANDOM.integers(0, 1 << 32, count, dtype=np.uint32)


def agree(program, inputs, grid, widths=WIDTHS, **outputs):
    case = case_of(program, inputs, (grid, 1, 1), **outputs)
    want = expected(case)
    for width in widths:
        for options in (BY_TURNS, LowerOptions(), LowerOptions(by_turns=True, off={"fold", "bounds_checks"})):
            assert Launched(lower(program, options), case, width).outputs == want, (width, options)


def shape(kernel, **options):
    """Barriers, loops and branches of the kernel form."""
    items = list(walk(lower(kernel.program, LowerOptions(by_turns=True, **options)).body))
    return sum(i.op == "barrier" for i in items), sum(isinstance(i, Loop) for i in items), sum(
        isinstance(i, If) for i in items
    )  # fmt: skip


def blelloch(lanes):
    @vyre.kernel(workgroup=lanes)
    def kernel(x: In[u32], out: Out[u32], totals: Out[u32]):
        tile = shared(u32, 2 * lanes)
        t, first = lid.x, wg.x * (2 * lanes)
        tile[2 * t] = x[first + 2 * t]
        tile[2 * t + 1] = x[first + 2 * t + 1]
        offset = u32(1)
        d = u32(lanes)
        while d > 0:
            barrier()
            if t < d:
                a, b = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
                tile[b] = tile[b] + tile[a]
            offset = offset * 2
            d = d // 2
        barrier()
        if t == 0:
            totals[wg.x] = tile[2 * lanes - 1]
            tile[2 * lanes - 1] = 0
        d = u32(1)
        while d < 2 * lanes:
            offset = offset // 2
            barrier()
            if t < d:
                a, b = offset * (2 * t + 1) - 1, offset * (2 * t + 2) - 1
                was = tile[a]
                tile[a] = tile[b]
                tile[b] = tile[b] + was
            d = d * 2
        barrier()
        out[first + 2 * t] = tile[2 * t]
        out[first + 2 * t + 1] = tile[2 * t + 1]

    return kernel


@pytest.mark.check
@pytest.mark.parametrize("lanes", [4, 32, 64])
def test_a_scan_over_a_tree_has_a_turn_for_each_level_and_no_loop(lanes):
    kernel, levels = blelloch(lanes), lanes.bit_length()
    assert shape(kernel) == (2 * levels + 2, 0, 2 * levels + 1)
    assert shape(kernel, off={"turns"})[1] == 4
    x = words_of(6 * lanes)
    for count in (6 * lanes, 5 * lanes + 1):  # the last workgroup reads and writes beyond the end
        agree(kernel.program, [x[:count]], 3, out=count, totals=3)
    found = np.frombuffer(Launched(lower(kernel.program, BY_TURNS), case_of(
        kernel.program, [x], (3, 1, 1), out=x.size, totals=3), 16).outputs[0], np.uint32)  # fmt: skip
    sums = np.cumsum(x.reshape(3, -1), axis=1, dtype=np.uint32)
    assert (found.reshape(3, -1)[:, 1:] == sums[:, :-1]).all()


LANES = 40


@vyre.kernel(workgroup=LANES)
def first_lanes(x: In[f32], out: Out[f32]):
    """Lanes of no multiple of a vector, down to none."""
    s = shared(f32, 2 * LANES)
    s[lid.x] = x[gid.x]
    s[lid.x + LANES] = -x[gid.x]
    for k in range(8):
        barrier()
        if lid.x < LANES >> k:
            s[lid.x] += s[lid.x + (LANES >> k)] * 3
        barrier()
        if lid.x <= u32(k):
            s[lid.x + 8] -= s[lid.x]
    barrier()
    out[gid.x] = s[lid.x]


@vyre.kernel(workgroup=LANES)
def distance(x: In[f32], out: Out[f32]):
    s = shared(f32, LANES)
    s[lid.x] = x[gid.x]
    d = u32(1)
    while d < LANES:
        barrier()
        mine = s[lid.x]
        if lid.x >= d:
            mine = mine + s[lid.x - d]
        barrier()
        s[lid.x] = mine
        d *= 2
    barrier()
    out[gid.x] = s[lid.x]


@vyre.kernel(workgroup=32)
def sorted_by_pairs(x: In[u32], out: Out[u32]):
    s = shared(u32, 32)
    t = lid.x
    s[t] = x[gid.x]
    k = u32(2)
    while k <= 32:
        j = k // 2
        while j > 0:
            barrier()
            other = t ^ j
            if other > t:
                a, b = s[t], s[other]
                if (a > b) == ((t & k) == 0):
                    s[t] = b
                    s[other] = a
            j //= 2
        k *= 2
    barrier()
    out[gid.x] = s[t]


@vyre.kernel(workgroup=LANES)
def with_others(x: In[f32], out: Out[f32]):
    """Several conditions, an `else`, a sum that all lanes bring along, and an end before the last turn."""
    s = shared(f32, LANES)
    s[lid.x] = x[gid.x]
    total = f32(0)
    for k in range(6):
        barrier()
        if lid.x < (20 >> k) and lid.x > u32(k):
            s[lid.x] *= 2
        else:
            total += f32(k)
        if lid.x == u32(k):
            total -= s[LANES - 1 - k]
        if k == 4:
            break
    out[gid.x] = total + s[lid.x]


@vyre.kernel(workgroup=LANES)
def leaves(x: In[f32], out: Out[f32]):
    s = shared(f32, LANES)
    s[lid.x] = x[gid.x]
    for k in range(4):
        barrier()
        if lid.x < (16 >> k):
            s[lid.x] += s[lid.x + (16 >> k)]
        if wg.x == 1 and k == 2:
            return
    out[gid.x] = s[lid.x]


@vyre.kernel(workgroup=LANES)
def unknown(x: In[f32], n: u32, out: Out[f32]):
    """As many turns as a number of the caller says; the turns inside are known."""
    s = shared(f32, LANES)
    s[lid.x] = x[gid.x]
    for k in range(n):
        for d in range(3):
            barrier()
            if lid.x < (8 >> d):
                s[lid.x + 16] += s[lid.x + d] + f32(k)
    d = n
    while d > 0:
        barrier()
        if lid.x < d:
            s[lid.x] += s[lid.x + d]
        d //= 2
    barrier()
    out[gid.x] = s[lid.x]


@vyre.kernel(workgroup=LANES)
def then_all(x: In[f32], out: Out[f32]):
    """All lanes meet behind a turn for the first ones: a subgroup of them, and one."""
    s = shared(f32, LANES)
    s[lid.x] = x[gid.x]
    total = f32(0)
    for k in range(3):
        barrier()
        if lid.x < (32 >> (2 * k)):
            s[lid.x] += s[lid.x + 32]
        barrier()
        total += subgroup_max(x[gid.x] * f32(k + 1) - 1000)
        barrier()
        if lid.x == 0:
            s[0] += 1
        total += subgroup_add(x[gid.x] - f32(k))
    out[gid.x] = total + s[lid.x]


@pytest.mark.check
@pytest.mark.parametrize("kernel, left", [
    (first_lanes, (17, 0)), (distance, (13, 0)), (sorted_by_pairs, (16, 0)), (with_others, (5, 0)), (leaves, (4, 0)),
    (unknown, (5, 3)), (then_all, (9, 0)),
], ids=lambda v: getattr(v, "__name__", None))  # fmt: skip
@pytest.mark.parametrize("groups", [1, 3])
def test_turns_are_written_one_after_the_other(kernel, left, groups):
    lanes = kernel.program.workgroup_size[0]
    assert shape(kernel)[:2] == left
    numbers = words_of(groups * lanes) if kernel is sorted_by_pairs else RANDOM.normal(size=groups * lanes).astype("f4")
    n = [np.array([5], np.uint32)] if kernel is unknown else []
    for count in (groups * lanes, groups * lanes - 5):
        agree(kernel.program, [numbers[:count], *n], groups, out=groups * lanes)


@vyre.kernel(workgroup=8)
def too_many(out: Out[u32]):
    s = shared(u32, 8)
    for k in range(3000):
        for j in range(20):
            barrier()
            if lid.x < k % 8:
                s[lid.x] += k + j
    barrier()
    out[gid.x] = s[lid.x]


@vyre.kernel(workgroup=8)
def no_tree(out: Out[u32]):
    s = shared(u32, 8)
    for k in range(3):
        barrier()
        s[lid.x] += k
    out[gid.x] = s[lid.x]


@pytest.mark.check
def test_loops_stay_where_there_are_too_many_turns_or_all_lanes_do_the_same():
    assert shape(too_many)[1] >= 1
    assert len(list(walk(lower(too_many.program, BY_TURNS).body))) < 1_500
    assert shape(no_tree)[1] == 1
    agree(no_tree.program, [], 2, out=16)


def test_only_who_runs_the_lanes_of_a_turn_alone_asks_for_turns():
    assert shape(first_lanes)[1] == 0
    assert any(isinstance(i, Loop) for i in walk(lower(first_lanes.program).body))


@vyre.kernel(workgroup=LANES)
def stops(x: In[u32], out: Out[u32]):
    s = shared(u32, LANES)
    s[lid.x] = x[gid.x]
    for k in range(3):
        barrier()
        if lid.x < (32 >> k):
            if s[lid.x] == 0:
                trap("zero", lid.x + 100 * u32(k))
            s[lid.x] = s[lid.x] * 3
    out[gid.x] = s[lid.x]


@pytest.mark.check
@pytest.mark.parametrize("zero", [0, 7, 15, 20, 31, 35])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_trap_in_a_turn_says_where_it_was(zero, width):
    x = np.arange(1, 2 * LANES + 1, dtype=np.uint32)
    x[LANES + zero] = 0
    case = case_of(stops.program, [x], (2, 1, 1), out=x.size)

    def trapped(options):
        launched = Launched(lower(stops.program, options), case, width, chunk=1)
        lists = told(launched.lists, PIECE_BITS, 64, ["zero"], launched.row, launched.rows)
        return launched.words[TRAPPED], lists

    plain = trapped(LowerOptions())
    assert trapped(BY_TURNS) == plain
    assert bool(plain[0]) == (zero < 32)


# ---- elements that lie apart ----------------------------------------------------------------------------------------


def apart(stride, offset, element, group=32):
    @vyre.kernel(workgroup=group)
    def kernel(x: In[element], out: Out[element]):
        out[gid.x * stride + (stride - 1 - offset)] = x[stride * gid.x + offset]

    return kernel


@pytest.mark.check
@pytest.mark.parametrize("element, dtype", [(u8, "u1"), (u16, "u2"), (i32, "i4"), (f32, "f4"), (f64, "f8")])
@pytest.mark.parametrize("stride", [2, 3, 4, 5])
def test_elements_apart_are_read_and_written_alone(stride, element, dtype):
    program = apart(stride, stride // 2, element).program
    for count in (32 * stride * 3, 32 * stride * 3 - 1, 70 * stride - 3):
        x = RANDOM.integers(0, 200, count).astype(dtype)
        agree(program, [x], 3, out=count)


def test_strides_are_shuffles_up_to_four_and_gathers_beyond():
    def text(stride):
        program = apart(stride, 1, f32).program
        case = case_of(program, [np.zeros(32 * stride, "f4")], out=32 * stride)
        return Launched(lower(program), case, 16).text.split("@safe")[0]

    for stride in (2, 3, 4):
        assert not re.search("gather|scatter", text(stride))
        assert text(stride).count("masked.store") == stride
    assert "masked.store" not in text(5)


@vyre.kernel(workgroup=48)
def moved(x: In[u32], out: Out[u32]):
    """Indices that are no multiple of an id after all, or wrap on their way."""
    s = shared(u32, 4 * 48)
    t = lid.x
    s[4 * t] = x[gid.x]
    barrier()
    s[(t << 1) + 1] = x[gid.x] + 1
    barrier()
    s[u32(3 * i32(t) - 1 + 1)] += 5
    barrier()
    a = s[2 * (t + 5) - 10] + s[(t - 3) * 4 + 12]
    out[gid.x] = a + s[t * t % 190] + s[(2 * t) ^ 1] + s[190 - 3 * t] + s[0 - 2 * (0 - t)]


def test_indices_that_only_look_like_multiples():
    agree(moved.program, [words_of(96)], 2, out=96)


# ---- what stays in registers ----------------------------------------------------------------------------------------


def tiles(side):
    @vyre.kernel(workgroup=(side, side))
    def kernel(n: u32, a: In[f32], b: In[f32], out: Out[f32]):
        left = shared(f32, side * side)
        right = shared(f32, side * side)
        total = f32(0)
        for t in range(n // side):
            left[lid.y * side + lid.x] = a[gid.y * n + t * side + lid.x]
            right[lid.y * side + lid.x] = b[(t * side + lid.y) * n + gid.x]
            barrier()
            for k in range(side):
                total += left[lid.y * side + k] * right[k * side + lid.x]
            barrier()
        out[gid.y * n + gid.x] = total

    return kernel.program


def special(*shape):
    """Numbers with zeros of both signs, subnormals, infinities, and NaNs with a sign and a payload among them."""
    found = RANDOM.normal(size=shape).astype(np.float32)
    bits = np.array([0, 1 << 31, 1, 0x807FFFFF, 0x00800000, 0x7F800000, 0xFF800001, 0x7FC12345], np.uint32)
    where = RANDOM.integers(0, found.size, max(found.size // 40, 1))
    found.reshape(-1).view(np.uint32)[where] = RANDOM.choice(bits, where.size)
    return found


@pytest.mark.check
@pytest.mark.parametrize("side, groups", [(4, 3), (8, 2), (16, 2)])
def test_tiles_of_a_product_give_the_bytes_of_the_reference(side, groups):
    n = side * groups
    program = tiles(side)
    case = case_of(program, [np.array([n], np.uint32), special(n, n), special(n, n)], (groups, groups, 1), out=n * n)
    want = expected(case)
    for width in WIDTHS:
        found = Launched(lower(program, BY_TURNS), case, width)
        assert found.outputs == want
        within = found.text.split("@safe")[0]
        resident = side == 16 and width == 16  # the sums of a workgroup: 16 vectors, which no stretch keeps in memory
        assert ("%scratch2048" in within) == (side == 16 and not resident)


@vyre.kernel(workgroup=16)
def phases(n: u32, x: In[f32], out: Out[f32]):
    """A local that is set in a branch, in a loop, after a barrier and not at all."""
    s = shared(f32, 16)
    best, count = x[gid.x], u32(0)
    for k in range(n):
        s[lid.x] = best
        barrier()
        if lid.x % 3 == k % 3:
            best = s[15 - lid.x] * 2
            count += 1
        barrier()
        if k == 2:
            count += 10
        s[lid.x] = x[(gid.x * 7) % len(x)]
        barrier()
        best += s[(lid.x * 5) % 16]
    if n > 3:
        barrier()
        best = -best
    out[gid.x] = best + f32(count)


@pytest.mark.check
@pytest.mark.parametrize("n", [0, 1, 3, 6])
def test_locals_of_one_block_live_across_barriers(n):
    agree(phases.program, [np.array([n], np.uint32), special(48)], 3, out=48)
    agree(phases.program, [np.array([n], np.uint32), special(41)], 3, out=45)


@vyre.kernel(workgroup=32)
def bits(x: In[f32], out: Out[f32], words: Out[u32]):
    s = shared(f32, 32)
    s[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = s[31 - lid.x]
    words[gid.x] = bitcast(u32, s[lid.x ^ 1])


@pytest.mark.check
def test_a_nan_that_went_through_shared_memory_has_the_canonical_bits():
    x = special(64)
    x.view(np.uint32)[:4] = 0xFFC12345, 0x7F800001, 1, 0x80000001
    agree(bits.program, [x], 2, out=64, words=64)
