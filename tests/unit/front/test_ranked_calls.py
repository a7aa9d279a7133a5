"""Calls of kernels with ranked buffers: shapes, how much runs, and every way in which arrays and kernels travel."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import vyre
from vyre import D1, D2, D3, In, InOut, Out, Uniform, atomic_add, const, f32, gid, i32, lid, u8, u32, wg
from vyre.foundation.formats.parse import parse_program


@vyre.kernel(workgroup=(8, 4))
def double(x: In[f32, D2], out: Out[f32, D2]):
    out[gid.y, gid.x] = x[gid.y, gid.x] * 2.0


@vyre.kernel(workgroup=(4, 4))
def add_row(shapes: In[f32, D1], x: InOut[f32, D2], *, times: const = 1):
    for _ in range(times):
        x[gid.y, gid.x] += shapes[gid.x]


@vyre.kernel
def rows(x: In[u32, D2], out: Out[u32, D1]):
    total: u32 = 0
    for j in range(x.shape[1]):
        total += x[gid.x, j]
    out[gid.x] = total


@vyre.kernel
def count(x: In[u32, D2], bins: InOut[u32]):
    i, j = gid.y, gid.x
    if i < len(x) and j < x.shape[1]:
        atomic_add(bins, x[i, j], 1)


@vyre.kernel(workgroup=(4, 2, 2))
def fill(out: Out[u32, D3]):
    out[gid.z, gid.y, gid.x] = 1


@pytest.fixture
def x():
    return np.random.default_rng(0).random((30, 50), np.float32)


def test_the_shape_is_that_of_the_array_in_this_call(x):
    for part in (x, x[:3], x[:, :7], x[::2, ::5], np.asfortranarray(x), x[:0], x[:, :0]):
        assert np.array_equal(double(part), part * 2)


def test_the_signature_comes_back_from_the_kernel():
    assert str(double.params[0].annotation) == "In[f32, D2]"
    assert [p.rank for p in fill.params] == [3]
    assert "shapes" in str(double.program)
    assert double.__annotations__["out"] == Out[f32, D2]


@pytest.mark.parametrize(
    "array, said, fix",
    [
        (
            np.zeros(6, np.float32),
            "x has 1 axis and the kernel declares In[f32, D2]",
            "x.reshape(height, width), or declare it In[f32, D1]",
        ),
        (np.zeros((2, 2, 2), np.float32), "x has 3 axes", "or declare it In[f32, D3]"),
        (np.zeros((1,) * 5, np.float32), "x has 5 axes", "or declare it In[f32]"),
        (np.zeros((), np.float32), "x has 0 axes", "or declare it In[f32]"),
    ],
)
def test_an_array_of_another_rank_is_refused(array, said, fix):
    with pytest.raises(vyre.ArgumentValueError) as e:
        double(array)
    assert said in str(e.value)
    assert fix in e.value.fix


def test_an_axis_is_no_longer_than_a_signed_index_reaches():
    @vyre.kernel
    def first(x: In[u8, D2], out: Out[u32]):
        out[0] = u32(x[0, 0])

    long = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), ((1 << 31) + 1, 1), (0, 0))
    with pytest.raises(vyre.ArgumentValueError, match=r"at most 2147483648\. Fix: split it, or declare it In\[u8\]"):
        first(long, sizes={"out": 1})


# ---- results --------------------------------------------------------------------------------------------------------


def test_a_result_has_the_shape_that_is_asked_for():
    assert fill(sizes={"out": (3, 5, 7)}).sum() == 105
    assert fill(domain=(7, 5, 3)).shape == (3, 5, 7)
    given = np.zeros((2, 3, 4), np.uint32)
    assert fill(out=given) is given
    assert given.all()
    assert rows(np.ones((4, 6), np.uint32), sizes={"out": 4}).tolist() == [6] * 4


@pytest.mark.parametrize(
    "options, said, fix",
    [
        ({}, "nothing says how long out is", 'sizes={"out": (height, width, depth)}'),
        ({"sizes": {"out": 8}}, "out would have shape (8,)", 'sizes={"out": (height, width, depth)}'),
        ({"domain": (4, 4)}, "out would have shape (4, 4)", 'sizes={"out": (height, width, depth)}'),
        (
            {"out": np.zeros((4, 4), np.uint32)},
            "out has 2 axes",
            "out.reshape(height, width, depth), or declare it Out[u32, D2]",
        ),
        (
            {"out": np.zeros((2, 2, 2), np.uint32), "sizes": {"out": (2, 4, 1)}},
            "sizes asks for (2, 4, 1)",
            "drop sizes",
        ),
    ],
)
def test_a_result_of_another_rank_is_refused(options, said, fix):
    with pytest.raises(vyre.ArgumentValueError) as e:
        fill(**options)
    assert said in str(e.value)
    assert fix in e.value.fix


def test_inputs_with_another_rank_do_not_say_the_shape_of_a_result():
    @vyre.kernel(workgroup=(8, 8))
    def weighted(x: In[f32, D2], weights: In[f32, D1], out: Out[f32, D2]):
        out[gid.y, gid.x] = x[gid.y, gid.x] * weights[0]

    x = np.ones((3, 4), np.float32)
    assert (weighted(x, np.float32([2, 9])) == 2).all()
    with pytest.raises(
        vyre.ArgumentValueError, match=r'the inputs differ .*Fix: pass sizes={"out": \(height, width\)}'
    ):
        double_two(x, x[:2])


@vyre.kernel
def double_two(a: In[f32, D2], b: In[f32, D2], out: Out[f32, D2]):
    out[gid.y, gid.x] = a[gid.y, gid.x] + b[gid.y, gid.x]


# ---- how much runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (9, 17), (0, 3), (3, 0)])
@pytest.mark.parametrize("workgroup", [64, (8, 8), (1, 16), (4, 2, 2)])
def test_every_element_of_a_plane_is_written(shape, workgroup):
    @vyre.kernel(workgroup=workgroup)
    def ones(x: In[u32, D2], out: Out[u32, D2], turned: Out[u32, D2], left: InOut[u32, D2]):
        out[gid.y, gid.x] = 1
        turned[gid.x, gid.y] = 1
        left[i32(gid.y) - 1, gid.x] = 1

    x = np.zeros(shape, np.uint32)
    out, turned, left = ones(x, left=np.zeros(shape, np.uint32), sizes={"out": shape, "turned": shape[::-1]})
    assert out.all()
    assert turned.all()
    assert left.all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (9, 100), (0, 3), (3, 0)])
def test_every_element_that_is_read_by_id_counts(shape):
    x = np.random.default_rng(1).integers(0, 8, shape, np.uint32)
    assert count(x, np.zeros(8, np.uint32)).tolist() == np.bincount(x.reshape(-1), minlength=8).tolist()


def test_the_neighbour_on_the_left_alone_does_not_count_beside_the_element_itself():
    @vyre.kernel(workgroup=(4, 4))
    def pairs(x: In[u32, D2], n: InOut[u32]):
        if x[gid.y, gid.x] == x[gid.y, gid.x - 1] + 1:
            atomic_add(n, 0, 1)

    x = np.arange(12, dtype=np.uint32).reshape(3, 4) + 1
    told = pairs.explain(x, np.zeros(1, np.uint32))
    assert told.grid == (1, 1, 1)
    assert pairs(x, np.zeros(1, np.uint32))[0] == 9 + 1  # and row 0 of column 0, beside which there is 0


def test_groups_that_take_a_row_each():
    @vyre.kernel(workgroup=32)
    def rows_of_groups(x: InOut[u32, D2]):
        for j in range(lid.x, x.shape[1], 32):
            x[wg.x, j] += 1

    x = np.zeros((7, 70), np.uint32)
    rows_of_groups(x, grid=7)
    assert (x == 1).all()


def test_explain_says_which_invocations_a_plane_has(x):
    told = double.explain(x)
    assert told.grid == (7, 8, 1)
    assert "covers 50x30, the invocations that write out" in str(told)


# ---- ways in --------------------------------------------------------------------------------------------------------


def test_a_started_call_and_threads(x):
    pending = double.start(x)
    assert np.array_equal(pending.result(), x * 2)
    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(lambda n: double(x[:n]), range(1, 20)), 1):
            assert np.array_equal(found, x[:k] * 2)


def test_a_parameter_may_have_the_name_of_the_hidden_one(x):
    before = x.copy()
    row = np.arange(50, dtype=np.float32)
    assert "shapes_" in str(add_row.program)
    add_row(row, x)
    add_row(shapes=row, x=x, times=3)
    assert np.allclose(x, before + 4 * row)


def test_a_kernel_from_a_factory_travels_with_its_ranks(x):
    def made(k):
        @vyre.kernel(workgroup=(8, 8))
        def scale(a: In[f32, D2], out: Out[f32, D2], by: f32 = 3.0):
            out[gid.y, gid.x] = a[gid.y, gid.x] * by * k

        return scale

    arrived = pickle.loads(pickle.dumps(made(2)))
    assert np.array_equal(arrived(x), x * 3 * 2)
    assert np.array_equal(arrived(x, 2.0), x * 2 * 2)
    with pytest.raises(vyre.ArgumentValueError, match="a has 1 axis"):
        arrived(x[0])


def test_the_program_takes_the_shapes_as_one_more_table(x):
    kernel = vyre.Kernel.of_program(parse_program(str(double.program)), "again")
    assert kernel.params[-1].name == "shapes"
    found = kernel(x, shapes=np.uint32([30, 50, 30, 50]), sizes={"out": (30, 50)}, domain=(50, 30))
    assert np.array_equal(found, x * 2)
    raw = vyre.compile(double.program).dispatch(
        [x, np.uint32([30, 50, 30, 50])],
        vyre.DispatchConfig(grid_override=(7, 8, 1), output_elements={"out": 1500}),
    )[0]
    assert bytes(raw) == (x * 2).tobytes()


@pytest.mark.parametrize("backend", ["cpu", "opencl", "wgpu"])
def test_arrays_on_a_device_have_shapes(backend, x):
    try:
        on_device = vyre.to_device(x, backend)
    except vyre.BackendUnavailable as e:
        pytest.skip(e.message)
    for part in (on_device, vyre.to_device(x[:5], backend)):
        for _ in range(3):
            found = double(part)
            assert found.shape == part.shape
            assert np.array_equal(found.numpy(), part.numpy() * 2)
    made = vyre.to_device(np.zeros((30, 50), np.float32), backend)
    for _ in range(3):
        double(on_device, out=made)
    assert np.array_equal(made.numpy(), x * 2)
    with pytest.raises(vyre.ArgumentValueError, match="x has 1 axis"):
        double(vyre.to_device(x[0], backend))
    assert "7x8x1" in str(double.explain(on_device))


def test_a_sequence_repeats_for_each_shape(x):
    @vyre.sequence
    def four_times(a):
        return double(double(a))

    for part in (x, x[:5], x, x[:, :3].copy()):
        assert np.array_equal(np.asarray(four_times(part)), part * 4)


def test_arrays_of_others_have_shapes(x):
    class Shown:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert np.array_equal(double(Shown(x)), x * 2)
    assert np.array_equal(double(memoryview(x)), x * 2)


def test_a_shadow_sees_the_same_shapes(x, monkeypatch):
    with vyre.config(shadow=1.0):
        assert np.array_equal(double.on("cpu")(x), x * 2)


def test_an_annotation_may_be_text():
    @vyre.kernel(workgroup=(8, 8))
    def later(x: "In[f32, D2]", out: "Out[f32, D2]") -> None:
        out[gid.y, gid.x] = x[gid.y, gid.x]

    assert later(np.ones((2, 3), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    "make, said, fix",
    [
        (lambda: Uniform[f32, D2], "has a rank and no fixed length", "write In[f32, D2]"),
        (lambda: In[f32, "D2"], "not a number", "D1, D2, D3 or D4"),
    ],
)
def test_what_has_no_rank(make, said, fix):
    with pytest.raises(vyre.ArgumentTypeError) as e:
        make()
    assert said in str(e.value)
    assert fix in e.value.fix


def test_an_axis_whose_index_is_an_id_counts_also_where_the_other_index_is_read():
    @vyre.kernel
    def scattered(x: In[u32, D2], out: InOut[u32, D2]):
        out[gid.y, x[gid.y, gid.x]] = 1

    x = np.zeros((6, 10), np.uint32)
    found, wanted = (np.zeros((9, 12), np.uint32) for _ in range(2))
    scattered(x, found)
    scattered(x, wanted, domain=(64, 9))
    assert found.tobytes() == wanted.tobytes()
    assert found[:, 0].tolist() == [1] * 9
