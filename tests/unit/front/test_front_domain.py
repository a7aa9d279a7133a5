"""How much of a kernel runs where the caller does not say: every element has its invocation, or the call is refused."""

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, barrier, gid, lid, shared, static_range, trap, u32, wg
from vyre.foundation.ir.nodes import InvocationId, Store, lit
from vyre.foundation.ir.program import Program, read_write

PLANE, SMALL = (10, 20), (4, 4)
WORD = np.uint32


@vyre.kernel(workgroup=(4, 4))
def two(width: u32, a: InOut[u32], b: InOut[u32]):
    if gid.x < width:
        a[gid.y * width + gid.x] = 1
        b[gid.y * width + gid.x] = 1


def zeros(*shape):
    return np.zeros(shape, WORD)


def test_results_of_one_shape_are_the_domain():
    a, b = zeros(*PLANE), zeros(*PLANE)
    two(20, a, b)
    assert a.all()
    assert b.all()


@pytest.mark.parametrize("shapes", [(SMALL, PLANE), (PLANE, SMALL), (SMALL, (4, 5))])
def test_results_that_differ_in_shape_are_refused_by_name(shapes):
    a, b = zeros(*shapes[0]), zeros(*shapes[1])
    listed = rf"a \({shapes[0][0]}, {shapes[0][1]}\), b \({shapes[1][0]}, {shapes[1][1]}\)"
    with pytest.raises(
        vyre.ArgumentValueError, match=rf"differ in shape: {listed}. Fix: pass domain=\(width, height\)"
    ):
        two(20, a, b)
    assert not a.any()
    assert not b.any()


@pytest.mark.parametrize("how", [{"domain": (20, 10)}, {"grid": (5, 3)}])
def test_a_caller_who_says_how_much_runs_may_differ(how):
    a, b = zeros(*SMALL), zeros(*PLANE)
    two(20, a, b, **how)
    assert a.all()
    assert b.all()


@pytest.mark.parametrize("other", [(200,), (201,), (10, 20, 3), (1, 10, 20)])
def test_a_result_of_other_axes_is_covered_or_refused(other):
    a, b = zeros(*PLANE), zeros(*other)
    if b.size <= a.size:
        two(20, a, b)
        assert a.all()
        assert b.all()
        return
    with pytest.raises(
        vyre.ArgumentValueError, match=r"b of shape \(.*\) has more elements than .* \(10, 20\).*Fix: pass dom"
    ):
        two(20, a, b)
    two(20, a, b, domain=(20, 10))
    assert a.all()


def test_a_result_of_more_axes_than_the_kernel_has_is_refused():
    with pytest.raises(
        vyre.ArgumentValueError, match=r"two has a 2-D workgroup and no result has 2 axes: a \(10, 20, 3\)"
    ):
        two(20, zeros(10, 20, 3), zeros(10, 20, 3))


# ---- axes that the kernel reads -------------------------------------------------------------------------------------


@vyre.kernel(workgroup=(64, 1))
def rows(a: InOut[u32], width: u32):
    if gid.x < width:
        a[gid.y * width + gid.x] += 1 + gid.y


@vyre.kernel(workgroup=64)
def slabs(a: InOut[u32], width: u32, height: u32):
    if gid.x < width:
        a[(wg.z * height + gid.y) * width + gid.x] += 1


@pytest.mark.parametrize("shape", [(1000, 3), (1, 1), (5, 200)])
def test_a_kernel_that_reads_y_runs_for_every_row(shape):
    a = zeros(*shape)
    rows(a, shape[1])
    assert np.array_equal(a, np.broadcast_to(np.arange(1, shape[0] + 1)[:, None], shape))


def test_a_kernel_that_reads_z_runs_for_every_slab():
    a = zeros(3, 5, 70)
    slabs(a, 70, 5)
    assert (a == 1).all()


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: rows(zeros(3000), 3),
            r"rows reads the y axis and no result has 2 axes: a \(3000,\).*domain=\(width, height\)",
        ),
        (lambda: rows(zeros(2, 3, 4), 4), r"rows reads the y axis and no result has 2 axes: a \(2, 3, 4\)"),
        (
            lambda: slabs(zeros(4, 5), 5, 4),
            r"slabs reads the z axis and no result has 3 axes.*\(width, height, depth\)",
        ),
    ],
)
def test_a_result_without_these_axes_is_refused(call, message):
    with pytest.raises(vyre.ArgumentValueError, match=f"(?s){message}"):
        call()


def test_a_flat_result_takes_a_domain():
    a = zeros(3000)
    rows(a, 3, domain=(3, 1000))
    assert a.all()


def test_device_arrays_have_the_same_domain():
    a = vyre.to_device(zeros(1000, 3), "cpu")
    rows(a, 3)
    assert a.numpy().all()
    with pytest.raises(vyre.ArgumentValueError, match="differ in shape"):
        two(20, vyre.to_device(zeros(*SMALL), "cpu"), vyre.to_device(zeros(*PLANE), "cpu"))


def test_a_program_that_reads_y_needs_a_grid():
    program = Program([read_write("out", 0, vyre.u32, 8)], (4, 1, 1), [Store("out", InvocationId(1), lit(1))])
    with vyre.backends.cpu.REGISTRATION.open() as backend:
        with pytest.raises(
            vyre.InvalidProgram, match=r"reads the y axis has no natural grid.*Fix: pass .*grid_override"
        ):
            backend.dispatch(program, [bytes(32)])
        (out,) = backend.dispatch(program, [bytes(32)], vyre.DispatchConfig(grid_override=(1, 8, 1)))
    assert np.frombuffer(out, WORD).all()


# ---- one axis -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=8)
def scatter(place: In[u32], out: Out[u32]):
    if gid.x < len(place):
        i = gid.x
        out[place[i]] = i + 1


@vyre.kernel(workgroup=8)
def count(key: In[u32], counts: InOut[u32]):
    if gid.x < len(key):
        atomic_add(counts, key[gid.x], 1)


@vyre.kernel(workgroup=8)
def look_up(which: In[u32], table: In[u32], out: Out[u32]):
    out[gid.x] = table[which[gid.x]]


@vyre.kernel(workgroup=8)
def both(a: InOut[u32], b: InOut[u32]):
    a[gid.x] = 1
    b[gid.x] = 1


def test_every_element_that_an_invocation_reads_for_itself_has_one():
    place = np.full(200, 99, WORD)
    place[[0, 199]] = 5, 3
    found = scatter(place, sizes={"out": 16})
    assert found[[3, 5]].tolist() == [200, 1]


def test_atomics_count_every_element():
    counts = zeros(4)
    count(np.arange(1000, dtype=WORD) % 4, counts)
    assert counts.tolist() == [250] * 4


def test_two_results_of_one_axis_are_covered_to_the_last_element():
    for sizes in ((16, 200), (200, 16)):
        a, b = zeros(sizes[0]), zeros(sizes[1])
        both(a, b)
        assert a.all()
        assert b.all()


@pytest.mark.parametrize(
    "call, groups",
    [
        (
            lambda: look_up.explain(np.zeros(9, WORD), np.zeros(1000, WORD), sizes={"out": 9}),
            2,
        ),  # a table has no invocations
        (lambda: scatter.explain(np.zeros(17, WORD), sizes={"out": 8}), 3),
        (lambda: scatter.explain(np.zeros(8, WORD), sizes={"out": 17}), 3),
        (lambda: count.explain(np.zeros(17, WORD), zeros(8)), 3),
        (lambda: both.explain(zeros(8), zeros(17)), 3),
    ],
)
def test_no_more_runs_than_is_asked_for(call, groups):
    assert call().grid == (groups, 1, 1)


@vyre.kernel(workgroup=8)
def found_by_parts(x: In[u32], out: Out[u32]):
    i = wg.x * 8 + lid.x
    if i < len(x) and x[i] == 999:
        out[0] = i


@vyre.kernel(workgroup=8)
def found_elsewhere(x: In[u32], out: Out[u32]):
    i = gid.x + 1
    if i < len(x) and x[i] == 999:
        out[0] = i


def test_an_id_that_is_put_together_counts_as_the_id():
    x = np.arange(1000, dtype=WORD)
    assert found_by_parts(x, sizes={"out": 1}).tolist() == [999]
    assert found_elsewhere(x, sizes={"out": 1}).tolist() == [999]


# ---- what an index asks for: each kernel notes in `out` that it saw the 999 at the end of x -------------------------


@vyre.kernel(workgroup=8)
def by_pairs(x: In[u32], w: u32, out: Out[u32]):
    for k in range(2):
        if x[gid.x * 2 + k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def halved(x: In[u32], w: u32, out: Out[u32]):
    if x[gid.x // 2] == 999 and gid.x % 2 == 1:
        out[0] = 1


@vyre.kernel(workgroup=8)
def in_rows(x: In[u32], w: u32, out: Out[u32]):
    for k in range(gid.x * w, gid.x * w + w):
        if x[k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def from_the_end(x: In[u32], w: u32, out: Out[u32]):
    if x[len(x) - 1 - gid.x] == 999:
        out[0] = 1


@vyre.kernel(workgroup=8)
def moved(x: In[u32], w: u32, out: Out[u32]):
    i = gid.x
    i += w
    if x[min(i, len(x) - 1)] == 999:
        out[0] = 1


@vyre.kernel(workgroup=8)
def split(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    if row > 0 and x[row * w + column] == 999:
        out[(row - 1) * 2 % 2] = 1


@vyre.kernel(workgroup=8)
def by_workgroup(x: In[u32], w: u32, out: Out[u32]):
    for k in range(4):
        if x[wg.x * 4 + k] == 999:
            out[0] = 1


@vyre.kernel(workgroup=8)
def to_the_left(x: In[u32], w: u32, out: Out[u32]):
    if gid.x > 0 and x[gid.x - 1] == 999:
        out[0] = 1


SEEN = [
    (by_pairs, 63),
    (halved, 250),
    (in_rows, 125),
    (from_the_end, 125),
    (moved, 125),
    (split, 125),
    (by_workgroup, 250),
    (to_the_left, 126),
]


@pytest.mark.parametrize("kernel, groups", SEEN, ids=lambda k: getattr(k, "__name__", None))
def test_what_is_written_elsewhere_runs_for_every_element_it_reads(kernel, groups):
    x = np.arange(1000, dtype=WORD)
    found = kernel(x, 4, sizes={"out": 1})
    assert found.tolist() == [1]
    assert kernel.explain(x, 4, sizes={"out": 1}).grid == (groups, 1, 1)


@vyre.kernel(workgroup=8)
def by_rows_of(x: In[u32], w: u32, out: Out[u32]):
    out[0] = x[gid.x // w]


@vyre.kernel(workgroup=8)
def mixed(x: In[u32], w: u32, out: Out[u32]):
    out[0] = x[gid.x ^ w]


@vyre.kernel(workgroup=8)
def striding(x: In[u32], w: u32, out: Out[u32]):
    for i in range(gid.x, len(x), 64):
        out[0] = x[i]


@vyre.kernel(workgroup=8)
def walking(x: In[u32], w: u32, out: Out[u32]):
    i = gid.x
    while i < len(x):
        out[0] = x[i]
        i += w


@pytest.mark.parametrize("kernel", [by_rows_of, mixed, striding, walking], ids=lambda k: k.__name__)
def test_what_is_not_clear_is_refused_with_both_domains(kernel):
    x = np.arange(1000, dtype=WORD)
    with pytest.raises(
        vyre.ArgumentValueError,
        match=rf"{kernel.__name__} reads x of 1000 elements .* writes out of 1 .*Fix: pass domain=1000 .* domain=1$",
    ):
        kernel(x, 64, sizes={"out": 1})
    kernel(x, 64, sizes={"out": 1}, domain=1)
    kernel(x, 64, sizes={"out": 1000})  # arrays of one length agree


# ---- natural kernels whose result says how much runs ----------------------------------------------------------------


@vyre.kernel(workgroup=8)
def differences(x: In[u32], w: u32, out: Out[u32]):
    out[gid.x] = x[gid.x + 1] - x[gid.x]


@vyre.kernel(workgroup=8)
def part(x: In[u32], w: u32, out: Out[u32]):
    out[gid.x] = x[gid.x + w]


@vyre.kernel(workgroup=8)
def sums_of_rows(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    for k in range(w):
        s += x[gid.x * w + k]
    out[gid.x] = s


@vyre.kernel(workgroup=8)
def pooled(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    out[row * w + column] = x[2 * row * 2 * w + 2 * column]


@vyre.kernel(workgroup=8)
def turned(x: In[u32], w: u32, out: Out[u32]):
    row = gid.x // w
    column = gid.x % w
    out[column * 4 + row] = x[2 * row * 2 * w + 2 * column]


@vyre.kernel(workgroup=8)
def flipped(x: In[u32], w: u32, out: Out[u32]):
    out[w - 1 - gid.x] = x[(gid.x ^ 1) % w]


@vyre.kernel(workgroup=8)
def in_turn(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    if gid.x == 0:
        for i in range(len(x)):
            s += x[i]
        out[0] = s


@vyre.kernel(workgroup=8)
def round_a_ring(x: In[u32], w: u32, out: Out[u32]):
    out[0] = x[gid.x % 4]


@vyre.kernel(workgroup=8)
def strided(x: In[u32], w: u32, out: Out[u32]):
    s = 0
    for i in range(gid.x, len(x), 16):
        s += x[i]
    out[gid.x] = s


RESULTS_DECIDE = [differences, part, sums_of_rows, pooled, turned, flipped, in_turn, round_a_ring, strided]


@pytest.mark.parametrize("kernel", RESULTS_DECIDE, ids=lambda k: k.__name__)
def test_a_result_that_is_written_by_id_says_how_much_runs(kernel):
    assert kernel.explain(zeros(1000), 4, sizes={"out": 16}).grid == (2, 1, 1)


@vyre.kernel(workgroup=8)
def checked(x: In[u32], out: Out[u32]):
    out[gid.x] = x[gid.x]
    if x[gid.x] == 999:
        trap("too large", gid.x)


def test_an_invocation_that_may_stop_the_dispatch_runs():
    with pytest.raises(vyre.VyreError, match="too large"):
        checked(np.arange(1000, dtype=WORD), sizes={"out": 16})


@vyre.kernel(workgroup=8)
def halves(x: In[u32], out: Out[u32]):
    if gid.x % 2 == 0:
        out[gid.x // 2] = x[0] + gid.x


@vyre.kernel(workgroup=8)
def one_of_a_group(w: u32, out: Out[u32]):
    if lid.x == 0:
        out[wg.x] = wg.x + w


@vyre.kernel(workgroup=8)
def row_of_a_group(x: In[u32], w: u32, out: Out[u32]):
    tile = shared(u32, 8)
    for k in range(lid.x, w, 8):
        tile[lid.x] += x[wg.x * w + k]
    barrier()
    if lid.x == 0:
        out[wg.x] = tile[0] + tile[1]


def test_a_result_that_several_invocations_share_is_written_to_its_end():
    assert halves(zeros(1), sizes={"out": 100}).tolist() == list(range(0, 200, 2))
    assert one_of_a_group(1, sizes={"out": 100}).tolist() == list(range(1, 101))


def test_a_workgroup_for_each_element_runs_for_short_rows_too():
    x = np.arange(200, dtype=WORD)
    assert np.array_equal(row_of_a_group(x, 2, sizes={"out": 100}), x.reshape(100, 2).sum(1))


# ---- two axes -------------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=(4, 4))
def splat(x: In[u32], w: u32, out: Out[u32]):
    if gid.x < w:
        out[x[gid.y * w + gid.x]] = 1


@vyre.kernel(workgroup=(4, 4))
def inside(x: In[u32], w: u32, out: Out[u32]):
    if gid.x > 0 and gid.x < w - 1 and gid.y > 0:
        out[(gid.y - 1) * (w - 2) + gid.x - 1] = x[gid.y * w + gid.x]


@vyre.kernel(workgroup=(4, 4))
def blocks(x: In[u32], w: u32, out: Out[u32]):
    if lid.x == 0 and lid.y == 0:
        out[wg.y * (w // 4) + wg.x] = x[gid.y * w + gid.x]


@pytest.mark.parametrize("kernel", [splat, inside, blocks], ids=lambda k: k.__name__)
def test_inputs_of_a_scatter_that_are_larger_are_refused(kernel):
    with pytest.raises(
        vyre.ArgumentValueError,
        match=r"writes out of shape \(4, 4\) .* reads x of shape \(10, 20\).*Fix: pass domain=\(20, 10\) .*\(4, 4\)$",
    ):
        kernel(zeros(*PLANE), 20, sizes={"out": SMALL})
    kernel(zeros(*PLANE), 20, sizes={"out": SMALL}, domain=(20, 10))


def test_flat_inputs_of_a_scatter_count_too():
    with pytest.raises(vyre.ArgumentValueError, match=r"x of shape \(200,\).*Fix: pass domain=\(width, height\)"):
        splat(zeros(200), 20, sizes={"out": SMALL})
    assert splat(zeros(*PLANE), 20, sizes={"out": PLANE})[0, 0] == 1


@vyre.kernel(workgroup=(4, 4))
def across(w: u32, a: InOut[u32]):
    if gid.y < w:
        a[gid.x * w + gid.y] += 1


def test_a_result_that_is_written_across_is_refused_unless_it_is_square():
    a = zeros(*PLANE)
    with pytest.raises(
        vyre.ArgumentValueError,
        match=r"a of shape \(10, 20\) with gid.y along its last.*Fix: pass domain=\(10, 20\)",
    ):
        across(20, a)
    across(20, a, domain=(10, 20))
    assert (a == 1).all()
    square = zeros(12, 12)
    across(12, square)
    assert (square == 1).all()


@vyre.kernel(workgroup=(4, 4))
def product(x: In[u32], y: In[u32], n: u32, k: u32, out: Out[u32]):
    row = wg.y * 4 + lid.y
    column = gid.x
    s = 0
    for i in range(k):
        s += x[row * k + i] * y[i * n + column]
    if column < n:
        out[row * n + column] = s


@vyre.kernel(workgroup=(4, 4))
def grey(x: In[u32], n: u32, k: u32, out: Out[u32]):
    if gid.x < n and gid.y < k:
        out[(k - 1 - gid.y) * n + gid.x] = x[(gid.y * n + gid.x) * 3]


@vyre.kernel(workgroup=(4, 4))
def two_rows_each(x: In[u32], n: u32, k: u32, out: Out[u32]):
    for r in range(2):
        row = wg.y * 8 + lid.y + 4 * r
        if gid.x < n and row < k:
            out[row * n + gid.x] = x[(row * n + gid.x) * 3]


def test_larger_inputs_of_a_plane_that_is_written_by_id_are_natural():
    x, y = np.ones((10, 50), WORD), np.ones((50, 20), WORD)
    assert (product(x, y, 20, 50, sizes={"out": PLANE}) == 50).all()
    for kernel in (grey, two_rows_each):
        assert (kernel(np.ones((*PLANE, 3), WORD), 20, 10, sizes={"out": PLANE}) == 1).all()


@vyre.kernel(workgroup=8)
def mixing(x: In[u32], w: u32, out: Out[u32]):
    a = w
    b = gid.x
    for _ in static_range(60):
        a = a * a + b
        b = b * b // (a + 3)
    out[a] = x[b]


def test_an_index_of_many_products_is_not_followed_for_ever():
    with pytest.raises(vyre.ArgumentValueError, match="domain=1000"):
        mixing(zeros(1000), 3, sizes={"out": 16})


@vyre.kernel(workgroup=(8, 8))
def any_above(image: In[u32], w: u32, out: Out[u32]):
    if gid.x < w and image[gid.y * w + gid.x] > 5:
        out[0] = 1


@vyre.kernel(workgroup=(8, 8))
def any_in_row(image: In[u32], w: u32, out: Out[u32]):
    if gid.x < w and image[gid.y * w + gid.x] > 5:
        out[gid.y] = 1


@pytest.mark.parametrize("kernel, shape", [(any_above, (1, 1)), (any_in_row, (20, 1))])
def test_an_axis_of_one_element_is_no_reason_to_run_a_part_of_the_input(kernel, shape):
    image = np.zeros((20, 30), WORD)
    image[-1, -1] = 9
    with pytest.raises(vyre.ArgumentValueError, match=r"is not clear.*Fix: pass domain=\(30, 20\)"):
        kernel(image, 30, sizes={"out": shape})
    assert kernel(image, 30, sizes={"out": shape}, domain=(30, 20)).ravel()[-1] == 1
