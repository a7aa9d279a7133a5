"""How much of a kernel runs where the caller does not say: every element has its invocation, or the call is refused."""

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, gid, lid, u32, wg
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
    assert found_elsewhere(x, sizes={"out": 1}, domain=999).tolist() == [999]
