"""Buffers with a rank, and signed indices: the same bytes as NumPy on every backend."""

import numpy as np
import pytest

import vyre
from vyre import D1, D2, D3, D4, In, InOut, Out, atomic_add, barrier, f32, gid, i8, i32, i64, lid, shared, u32, u64
from vyre.backends import reference
from vyre.backends.cuda.build import kernel_code
from vyre.backends.cuda.compile import compile_text

from ...support.device_backends import registration_or_skip

SHAPES = [(5, 7), (1, 1), (1, 9), (9, 1), (0, 3), (3, 0), (33, 70), (64, 64)]


@pytest.fixture(scope="module", params=["reference", "cpu", "opencl", "wgpu", "cuda"])
def on(request):
    if request.param not in ("reference", "cpu"):
        registration_or_skip(request.param)
    return request.param


def around(x):
    p = np.pad(x, 1)
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]


@vyre.kernel(workgroup=(8, 8))
def unsigned_cross(x: In[u32, D2], out: Out[u32, D2]):
    i, j = gid.y, gid.x
    out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@vyre.kernel(workgroup=(16, 4))
def signed_cross(x: In[u32, D2], out: Out[u32, D2]):
    i, j = i32(gid.y), i32(gid.x)
    out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@vyre.kernel
def wide_cross(x: In[u32, D2], out: Out[u32, D2]):
    i, j = i64(gid.y), i64(gid.x)
    if gid.y < out.shape[0] and gid.x < out.shape[1]:
        out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[u64(i), j + 1]


@vyre.kernel(workgroup=(16, 2))
def looped_cross(x: In[u32, D2], out: Out[u32, D2]):
    i, j = i32(gid.y), i32(gid.x)
    total: u32 = 0
    for a in range(i - 1, i + 2):
        for b in range(j - 1, j + 2):
            if (a == i) != (b == j):
                total += x[a, b]
    out[i, j] = total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", [unsigned_cross, signed_cross, looped_cross], ids=lambda k: k.__name__)
def test_beyond_any_axis_there_is_zero(kernel, shape, on):
    x = np.random.default_rng(0).integers(1, 9, shape, np.uint32)
    try:
        found = kernel.on(on)(x)
    except vyre.UnsupportedFeature as e:
        if e.context["name"] == "long loops":  # which only an emulated device refuses
            pytest.skip(e.message)
        raise
    assert found.tobytes() == around(x).tobytes()


@pytest.mark.parametrize("shape", [(5, 7), (3, 0), (33, 70)])
def test_an_index_may_have_64_bits(shape, on):
    if on == "wgpu":
        pytest.skip("wgpu has no u64")
    x = np.random.default_rng(0).integers(1, 9, shape, np.uint32)
    assert wide_cross.on(on)(x, domain=shape[::-1]).tobytes() == around(x).tobytes()


@vyre.kernel(workgroup=64)
def shifted(x: InOut[u32, D2], by: i32, column: i64):
    if gid.x < 64:
        i = i32(gid.x) + by
        x[i, column] += 1
        x[i, 0] = 9
        atomic_add(x, (i, 1), 5)


@pytest.mark.parametrize("by", [0, -3, -64, -65, 5, 2**31 - 64])
def test_a_store_and_an_atomic_beyond_an_axis_do_nothing(by, on):
    if on == "wgpu":
        pytest.skip("wgpu has no i64")
    x, want = np.zeros((6, 4), np.uint32), np.zeros((6, 4), np.uint32)
    rows = [r for k in range(64) if 0 <= (r := k + by) < 6]
    want[rows, 2] += 1
    want[rows, 0] = 9
    want[rows, 1] += 5
    assert shifted.on(on)(x, by, 2).tolist() == want.tolist()
    for column in (-1, 4, 2**32 + 2, -(2**32) + 2):
        want[rows, 1] += 5
        assert shifted.on(on)(x, by, column).tolist() == want.tolist()


@vyre.kernel(workgroup=4)
def narrow(places: In[i8], x: In[f32], words: In[f32, 4], out: Out[f32, D1], more: Out[f32]):
    i = i32(gid.x)
    out[i] = x[places[i]] + words[places[i]]
    more[i - 1] = x[i - 2]


def test_a_negative_index_is_no_element_of_a_flat_buffer(on):
    places = np.int8([0, 3, -1, -128, 127, 4])
    x = np.float32([1, 2, 3, 4])
    out, more = narrow.on(on)(places, x, x, sizes={"out": 6, "more": 5})
    assert out.tolist() == [2, 8, 0, 0, 0, 0]
    assert more.tolist() == [0, 1, 2, 3, 4]


@vyre.kernel(workgroup=(4, 2, 2))
def box(x: In[u32, D3], out: Out[u32, D3]):
    k, i, j = gid.z, gid.y, gid.x
    depth, height, width = x.shape
    if k < depth and i < height and j < width:
        out[k, i, j] = x[k, i, j] + x[k - 1, i, j] * 10 + len(x) * 100 + x.size + u32(x.ndim)


def test_three_axes(on):
    x = np.arange(60, dtype=np.uint32).reshape(3, 4, 5)
    below = np.concatenate([np.zeros((1, 4, 5), np.uint32), x[:-1]])
    assert (box.on(on)(x) == x + below * 10 + 300 + 60 + 3).all()


@vyre.device
def picked(x: In[u32, D4], a, b):
    return x[a, b, 1, 0] + x.shape[-1]


@vyre.kernel(workgroup=(4, 4))
def four(x: In[u32, D4], out: InOut[u32, D2]):
    out[gid.y, gid.x] += picked(x, gid.y, i32(gid.x) - 1)


def test_four_axes_and_helpers(on):
    x = np.arange(5 * 6 * 2 * 3, dtype=np.uint32).reshape(5, 6, 2, 3)
    want = np.full((5, 7), 100 + 3, np.uint32)
    want[:, 1:] += x[:, :, 1, 0]
    assert (four.on(on)(x, np.full((5, 7), 100, np.uint32)) == want).all()


@vyre.kernel(workgroup=(8, 8))
def transposed(x: In[f32, D2], out: Out[f32, D2]):
    tile = shared(f32, 72)
    tile[lid.y * 9 + lid.x] = x[gid.y, gid.x]
    barrier()
    out[gid.x - lid.x + lid.y, gid.y - lid.y + lid.x] = tile[lid.x * 9 + lid.y]


def test_a_transposition_through_memory_of_the_workgroup(on):
    x = np.random.default_rng(1).random((19, 30), np.float32)
    assert transposed.on(on)(x, sizes={"out": (30, 19)}, domain=(32, 24)).tobytes() == x.T.tobytes()


@vyre.kernel(workgroup=(16, 4))
def product(a: In[f32, D2], b: In[f32, D2], out: Out[f32, D2]):
    i, j = gid.y, gid.x
    if i < out.shape[0] and j < out.shape[1]:
        acc = 0.0
        for k in range(a.shape[1]):
            acc += a[i, k] * b[k, j]
        out[i, j] = acc


@pytest.mark.parametrize("rows", [9, 4, 12])
def test_a_matrix_product_reads_zero_below_a_matrix_that_is_too_short(rows, on):
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 5, (7, 9)).astype(np.float32), rng.integers(0, 5, (rows, 11)).astype(np.float32)
    n = min(9, rows)
    assert (product.on(on)(a, b, sizes={"out": (7, 11)}) == a[:, :n] @ b[:n]).all()


@vyre.kernel(workgroup=(64, 4))
def guarded(x: In[f32, D2], out: Out[f32, D2]):
    i, j = i32(gid.y), i32(gid.x)
    h, w = i32(x.shape[0]), i32(x.shape[1])
    if i > 0 and i < h - 1 and j > 0 and j < w - 1:
        out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@vyre.kernel(workgroup=(64, 4))
def guarded_by_another(x: In[f32, D2], out: Out[f32, D2]):
    i, j = gid.y, gid.x
    h, w = out.shape
    if i > 0 and i < h - 1 and j > 0 and j < w - 1:
        out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]


@pytest.mark.parametrize("kernel", [guarded, guarded_by_another], ids=lambda k: k.__name__)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (2, 2), (3, 3), (6, 200), (40, 9)])
def test_conditions_that_make_tests_of_axes_needless_change_no_byte(kernel, shape, on):
    x = np.random.default_rng(3).integers(0, 9, shape).astype(np.float32)
    want = np.zeros(shape, np.float32)
    want[1:-1, 1:-1] = around(x)[1:-1, 1:-1]
    assert kernel.on(on)(x).tobytes() == want.tobytes()


@pytest.mark.parametrize("shape", [(6, 40), (3, 64), (12, 10), (1, 1)])
def test_an_array_of_another_shape_than_the_condition_asks_about(shape, on):
    x = np.random.default_rng(4).integers(1, 9, (6, 40)).astype(np.float32)
    out = np.zeros(shape, np.float32)
    wide = np.zeros((14, 66), np.float32)
    wide[:6, :40] = x
    want = np.zeros(shape, np.float32)
    want[1:-1, 1:-1] = around(wide)[: shape[0], : shape[1]][1:-1, 1:-1]
    assert guarded_by_another.on(on)(x, out=out).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "words", [(4, 6, 4, 6), (6, 4, 4, 6), (0, 0, 0, 0), (2**32 - 1, 2**32 - 1, 1, 2**31), (3, 9, 7, 1)]
)
def test_a_dispatch_takes_any_words_for_shapes_and_stays_in_its_buffers(words, on):
    program = unsigned_cross.program
    x = np.arange(24, dtype=np.uint32)
    config = vyre.DispatchConfig(grid_override=(1, 1, 1), output_elements={"out": 24})
    shapes = np.array(words, np.uint32)
    wanted = reference.run(program, [x, shapes], grid=(1, 1, 1), output_elements={"out": 24}).outputs[0]
    found = vyre.compile(program, backend=on).dispatch([x, shapes], config)[0]
    assert bytes(found) == bytes(wanted)
    if words == (4, 6, 4, 6):
        assert bytes(found) == around(x.reshape(4, 6)).tobytes()


@pytest.mark.parametrize("name", [name for name, k in globals().items() if isinstance(k, vyre.Kernel)])
def test_nvrtc_takes_the_text_for_cuda(name):
    _, code, options = kernel_code(globals()[name].program)
    try:
        found = compile_text(code.text, "sm_90", options)
    except vyre.BackendUnavailable as e:
        pytest.skip(e.message)
    assert found.startswith(b"\x7fELF")


# ---- indices that were read through indices -------------------------------------------------------------------------


@vyre.kernel
def followed(x: In[u32], at: In[i32], narrow: In[i8], rows: In[u32, D2], out: Out[u32, D2], n: InOut[u32]):
    """An index out of bounds reads zero, and zero is a place."""
    k = gid.x
    if k < len(at):
        out[k, 0] = x[x[at[k]]]
        out[k, 1] = x[x[x[narrow[k]]]]
        out[k, 2] = x[rows[at[k], 1]]
        out[k, 3] = rows[x[at[k]], rows[at[k], narrow[k]]]
        atomic_add(n, x[at[k]], 1)


def test_what_is_read_outside_is_zero_also_as_an_index(on):
    x = np.array([3, 0, 7, 1, 900, 2], np.uint32)
    rows = np.array([[4, 1], [0, 5], [2**32 - 1, 0]], np.uint32)
    at = np.array([0, 1, 2, 5, 6, -1, -128, 2**31 - 1, -(2**31)], np.int32)
    narrow = np.array([1, 0, -1, 5, 4, 127, -128, 2, -3], np.int8)

    def read(a, *index):
        return int(a[index]) if all(0 <= i < n for i, n in zip(index, a.shape, strict=True)) else 0

    wanted, hits = np.zeros((len(at), 4), np.uint32), np.zeros(6, np.uint32)
    for k, (i, j) in enumerate(zip(at.tolist(), narrow.tolist(), strict=True)):
        wanted[k, 0] = read(x, read(x, i))
        wanted[k, 1] = read(x, read(x, read(x, j)))
        wanted[k, 2] = read(x, read(rows, i, 1))
        wanted[k, 3] = read(rows, read(x, i), read(rows, i, j))
        if read(x, i) < len(hits):
            hits[read(x, i)] += 1
    n = np.zeros(6, np.uint32)
    out, _ = followed.on(on)(x, at, narrow, rows, n, sizes={"out": (len(at), 4)}, domain=(len(at),))
    assert np.array_equal(out, wanted)
    assert np.array_equal(n, hits)
