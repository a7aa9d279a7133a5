"""Kernels called with NumPy arrays: results agree with NumPy, and every wrong argument is refused with a fix."""

import array
import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vyre
from vyre import (
    In,
    InOut,
    Out,
    Uniform,
    atomic_add,
    barrier,
    bf16,
    const,
    f16,
    f32,
    f64,
    gid,
    i32,
    lid,
    shared,
    u8,
    u32,
    u64,
    wg,
)
from vyre.front.arrays import ARRAY_DTYPES
from vyre.front.bind import OutputPlan


@vyre.kernel(workgroup=64)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]


@vyre.kernel(workgroup=64)
def histogram(x: In[u32], bins: InOut[u32]):
    if gid.x < len(x):
        atomic_add(bins, x[gid.x] % len(bins), 1)


@vyre.kernel(workgroup=64)
def block_sums(x: In[u32], out: Out[u32]):
    tile = shared(u32, 64)
    t = lid.x
    tile[t] = x[gid.x]
    barrier()
    s = u32(32)
    while s > 0:
        if t < s:
            tile[t] += tile[t + s]
        barrier()
        s >>= 1
    if t == 0:
        out[wg.x] = tile[0]


@vyre.kernel(workgroup=(8, 8))
def blur(image: In[f32], width: u32, height: u32, out: Out[f32]):
    if gid.x < width and gid.y < height:
        total = 0.0
        for dy in range(3):
            for dx in range(3):
                x = min(max(gid.x + dx, 1) - 1, width - 1)
                y = min(max(gid.y + dy, 1) - 1, height - 1)
                total += image[y * width + x]
        out[gid.y * width + gid.x] = total / 9.0


@vyre.kernel(workgroup=64)
def copy_words(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x]


@vyre.kernel(workgroup=64)
def negate(x: In[vyre.bool_], out: Out[vyre.bool_]):
    if gid.x < len(out):
        out[gid.x] = not x[gid.x]


@vyre.kernel(workgroup=64)
def split(x: InOut[u32], low: Out[u8], high: Out[u8]):
    if gid.x < len(x):
        low[gid.x] = u8(x[gid.x])
        high[gid.x] = u8(x[gid.x] >> 8)
        x[gid.x] = x[gid.x] + 1


@vyre.kernel(workgroup=4)
def scale(x: In[f32], factors: Uniform[f32, 3], out: Out[f32], *, which: const = 0):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * factors[which]


@vyre.kernel(workgroup=4)
def four(out: Out[u32, 4]):
    out[gid.x] = gid.x


@vyre.kernel
def last_id(x: In[f32], out: Out[f32]):
    out[0] = x[gid.x % len(x)] + f32(gid.x)


def blurred(image: np.ndarray) -> np.ndarray:
    padded = np.pad(image, 1, mode="edge")
    total = np.zeros_like(image)
    for dy in range(3):
        for dx in range(3):
            total += padded[dy : dy + image.shape[0], dx : dx + image.shape[1]]
    return total / np.float32(9)


# ---- results


@given(n=st.integers(0, 300), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_saxpy_agrees_with_numpy_at_every_size(n, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal(n).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    assert np.array_equal(saxpy(1.5, x, y), np.float32(1.5) * x + y)


def test_an_inout_array_is_updated_in_place_and_returned():
    x = np.arange(1000, dtype=np.uint32)
    bins = np.zeros(7, np.uint32)
    assert histogram(x, bins) is bins
    assert np.array_equal(bins, np.bincount(x % 7, minlength=7))


def test_sizes_gives_the_length_of_an_output_that_follows_no_input():
    x = np.arange(1000, dtype=np.uint32)
    sums = block_sums(x, sizes={"out": 16})
    assert np.array_equal(sums, np.add.reduceat(x, range(0, 1000, 64)))


@pytest.mark.parametrize("shape", [(480, 640), (1, 1000), (1000, 1)])
def test_a_stencil_agrees_with_numpy_at_odd_shapes(shape):
    image = np.random.default_rng(3).random(shape, np.float32)
    out = blur(image, shape[1], shape[0])
    assert out.shape == shape
    assert np.array_equal(out, blurred(image))


def test_an_output_that_is_also_an_input_gives_the_disjoint_result():
    image = np.random.default_rng(4).random((40, 50), np.float32)
    expected = blur(image, 50, 40)
    assert blur(image, 50, 40, out=image) is image
    assert np.array_equal(image, expected)


def test_an_output_that_overlaps_part_of_an_input_gives_the_disjoint_result():
    memory = np.arange(100, dtype=np.uint32)
    expected = memory[:90].copy()
    copy_words(memory[:90], out=memory[10:])
    assert np.array_equal(memory[10:], expected)


def test_several_results_come_as_a_tuple_in_slot_order():
    x = np.arange(1000, dtype=np.uint32)
    same, low, high = split(x)
    assert same is x
    assert np.array_equal(x, np.arange(1000) + 1)
    assert np.array_equal(low, (np.arange(1000) & 255).astype(np.uint8))
    assert np.array_equal(high, (np.arange(1000) >> 8).astype(np.uint8))


def test_empty_arrays_give_empty_results():
    assert saxpy(1.0, np.zeros(0, np.float32), np.zeros(0, np.float32)).shape == (0,)
    assert blur(np.zeros((0, 5), np.float32), 5, 0).shape == (0, 5)
    bins = np.zeros(3, np.uint32)
    assert histogram(np.zeros(0, np.uint32), bins).tolist() == [0, 0, 0]


def test_bool_arrays_travel_as_words_and_come_back_as_bool():
    x = np.array([True, False, True])
    out = negate(x)
    assert out.dtype == np.bool_
    assert out.tolist() == [False, True, False]
    into = np.zeros(3, np.bool_)
    assert negate(x, out=into) is into
    assert into.tolist() == [False, True, False]


def test_strided_read_only_and_foreign_endian_inputs_are_copied():
    x = np.arange(20, dtype=np.uint32)
    assert copy_words(x[::2]).tolist() == list(range(0, 20, 2))
    frozen = np.arange(4, dtype=np.uint32)
    frozen.setflags(write=False)
    assert copy_words(frozen).tolist() == [0, 1, 2, 3]
    assert copy_words(np.arange(4, dtype=">u4")).tolist() == [0, 1, 2, 3]


def test_buffer_protocol_objects_are_inputs():
    assert copy_words(array.array("I", [3, 4])).tolist() == [3, 4]
    assert copy_words(memoryview(np.array([5], np.uint32))).tolist() == [5]


ELEMENTS = [vyre.u8, vyre.u16, u32, u64, vyre.i8, vyre.i16, i32, vyre.i64, f16, bf16, f32, f64, vyre.bool_]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_an_array_is_taken_for_its_own_element_type_and_no_other(element):
    @vyre.kernel(workgroup=4)
    def same(x: In[element], out: Out[element]):
        if gid.x < len(out):
            out[gid.x] = x[gid.x]

    right = ARRAY_DTYPES[element.name]
    for dtype in {*ARRAY_DTYPES.values(), np.dtype("c8"), np.dtype("M8[s]"), np.dtype("S4"), np.dtype("V4")}:
        x = np.zeros(2, dtype)
        if dtype == right:
            assert np.array_equal(same(x, out=np.ones(2, dtype)), x)
            continue
        for call in (lambda x=x: same(x), lambda x=x: same(np.zeros(2, right), out=x)):
            with pytest.raises(vyre.ArgumentTypeError) as e:
                call()
            assert f"holds {dtype} and the kernel declares {element.name}" in str(e.value)


def test_the_bits_of_other_elements_are_taken_where_the_caller_says_so():
    with pytest.raises(
        TypeError, match=r"x holds float32 .* u32.*Fix: x.astype\(np.uint32\) for .*, x.view\(np.uint32\)"
    ):
        copy_words(np.float32([1.0]))
    with pytest.raises(TypeError, match=r"x holds >f4 .*Fix: x.astype\(np.uint32\)$"):
        copy_words(np.array([1.0], ">f4"))
    with pytest.raises(TypeError, match="x holds float32"):
        copy_words(array.array("f", [1.0]))
    assert copy_words(np.float32([1.0]).view(np.uint32)).tolist() == [0x3F800000]
    assert copy_words(np.int32([-1]).view(np.uint32)).tolist() == [0xFFFFFFFF]


def test_bfloat_arrays_are_their_bits():
    @vyre.kernel(workgroup=4)
    def widen(x: In[bf16], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = f32(x[gid.x])

    assert widen(np.uint16([0x3F80])).tolist() == [1.0]
    for dtype, fix in (("f4", "astype(ml_dtypes.bfloat16).view(np.uint16)"), ("i2", "Fix: x.view(np.uint16)")):
        with pytest.raises(TypeError) as e:
            widen(np.ones(1, dtype))
        assert fix in str(e.value)


def test_the_shape_of_the_inputs_is_the_shape_of_the_output():
    x = np.ones((3, 5), np.float32)
    assert saxpy(1.0, x, x).shape == (3, 5)


def test_compile_time_parameters_are_passed_by_name():
    x, factors = np.ones(3, np.float32), np.array([2, 3, 4], np.float32)
    assert scale(x, factors).tolist() == [2, 2, 2]
    assert scale(x, factors, which=2).tolist() == [4, 4, 4]
    assert scale.specialize(which=1) is scale.specialize(which=1)
    assert scale.specialize(which=1) != scale.program


def test_grid_and_domain_choose_how_much_runs():
    x = np.arange(1, 201, dtype=np.uint32)
    assert np.count_nonzero(copy_words(x, grid=1)) == 64
    assert np.count_nonzero(copy_words(x, grid=(2, 1, 1))) == 128
    assert np.count_nonzero(copy_words(x, domain=65)) == 128
    assert np.count_nonzero(copy_words(x, grid=0)) == 0


def test_a_domain_shapes_an_output_that_nothing_else_sizes():
    @vyre.kernel(workgroup=(4, 4))
    def ramp(width: u32, out: Out[u32]):
        if gid.x < width:
            out[gid.y * width + gid.x] = gid.y * 100 + gid.x

    image = ramp(6, domain=(6, 4))
    assert image.shape == (4, 6)
    assert image[3, 5] == 305


def test_names_and_none_work_for_outputs():
    x = np.arange(5, dtype=np.uint32)
    into = np.zeros(5, np.uint32)
    assert copy_words(x=x, out=into) is into
    assert copy_words(x, out=None).tolist() == [0, 1, 2, 3, 4]


def test_on_names_the_backend():
    x = np.arange(5, dtype=np.uint32)
    assert copy_words.on("reference")(x).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "dtype, value, expected",
    [
        (u8, 255, 255),
        (i32, -(2**31), -(2**31)),
        (u64, 2**64 - 1, 2**64 - 1),
        (f32, 3, 3.0),
        (f32, np.float64(0.1), np.float32(0.1)),
        (f64, 0.1, 0.1),
        (f16, 0.5, 0.5),
        (f32, float("inf"), float("inf")),
        (f32, np.float32(2.5), 2.5),
        (u32, np.int64(7), 7),
        (u32, np.array(7), 7),
    ],
)
def test_numbers_reach_the_kernel_exactly(dtype, value, expected):
    assert echo(dtype)(value, sizes={"out": 1}).tolist() == [expected]


def test_a_kernel_travels_by_name():
    assert pickle.loads(pickle.dumps(copy_words)) is copy_words
    assert pickle.loads(pickle.dumps(copy_words.on("reference"))).backend == "reference"
    assert copy.deepcopy(copy_words) is copy.copy(copy_words) is copy_words


def test_bfloat_numbers_are_rounded_to_nearest_even():
    assert echo(bf16)(1 + 2.0**-8 + 2.0**-40, sizes={"out": 1}).tolist() == [0x3F81]  # once, not through f32
    assert echo(bf16)(1.0, sizes={"out": 1}).tolist() == [0x3F80]
    assert echo(bf16)(1.00390625, sizes={"out": 1}).tolist() == [0x3F80]
    assert echo(bf16)(1.01171875, sizes={"out": 1}).tolist() == [0x3F82]


def echo(dtype):
    @vyre.kernel(workgroup=1)
    def one(value: dtype, out: Out[dtype]):
        out[0] = value

    return one


# ---- refusals

F = np.ones(4, np.float32)
W = np.arange(4, dtype=np.uint32)


@pytest.mark.parametrize(
    "call, error, message, fix",
    [
        (lambda: copy_words(W.astype(np.int64)), TypeError, "int64", "x.astype(np.uint32)"),
        (lambda: saxpy(1.0, F.astype(np.float64), F), TypeError, "float64", "x.astype(np.float32)"),
        (lambda: saxpy(1.0, W, F), TypeError, "uint32", "x.astype(np.float32)"),
        (lambda: copy_words(W.astype(bool)), TypeError, "bool", "x.astype(np.uint32)"),
        (lambda: negate(W), TypeError, "uint32", "x.astype(bool)"),
        (lambda: copy_words([1, 2]), TypeError, "list", "np.array(x, dtype=np.uint32)"),
        (lambda: copy_words((1, 2)), TypeError, "tuple", "np.array(x, dtype=np.uint32)"),
        (lambda: copy_words(5), TypeError, "int", "pass a NumPy array of uint32"),
        (lambda: copy_words("abcd"), TypeError, "str", "pass a NumPy array of uint32"),
        (lambda: copy_words(object()), TypeError, "object", "pass a NumPy array of uint32"),
        (lambda: copy_words(None), TypeError, "NoneType", "pass a NumPy array of uint32"),
        (lambda: saxpy(1.0, F, F[:3]), ValueError, "differ", 'sizes={"out": n}'),
        (lambda: saxpy(1.0, F, F.reshape(2, 2)), ValueError, "differ", 'sizes={"out": n}'),
        (lambda: scale(F, F), ValueError, "4 elements", "pass 3 elements"),
        (lambda: last_id(F), ValueError, "how far gid.x goes", "pass domain=(number of invocations)"),
        (lambda: echo(u32)(1), ValueError, "how long out is", 'sizes={"out": n}'),
        (lambda: copy_words(W, out=[0]), TypeError, "list", "NumPy array of uint32"),
        (lambda: copy_words(W, out=np.zeros(8, np.uint32)[::2]), ValueError, "contiguous", "ascontiguousarray"),
        (lambda: copy_words(W, out=np.broadcast_to(W, (4,))), ValueError, "read-only", "out.copy()"),
        (lambda: copy_words(W, out=np.zeros(4, ">u4")), ValueError, "byte order", "newbyteorder"),
        (lambda: copy_words(W, out=np.zeros(4, np.int64)), TypeError, "int64", "pass an array of uint32"),
        (lambda: copy_words(W, sizes={"nope": 3}), TypeError, "nope", "use one of: out"),
        (lambda: copy_words(W, sizes={"out": 3}, out=W.copy()), ValueError, "asks for 3", "drop sizes"),
        (lambda: four(sizes={"out": 3}), ValueError, "declared with 4", "drop sizes"),
        (lambda: copy_words(W, sizes={"out": -3}), ValueError, "negative", "0 or more"),
        (lambda: copy_words(W, sizes={"out": 2.5}), TypeError, "not a size", "whole number"),
        (lambda: copy_words(W, grid=1, domain=4), TypeError, "both", "domain="),
        (lambda: copy_words(W, grid=(1, 1, 1, 1)), ValueError, "4 axes", "(x, y, z)"),
        (lambda: copy_words(W, grid=(1 << 28, 1, 1)), ValueError, "u32", "several dispatches"),
        (lambda: copy_words(W, grid=True), TypeError, "not a size", "whole number"),
        (lambda: copy_words(), TypeError, "needs x", "call copy_words(x)"),
        (lambda: copy_words(W, W), TypeError, "takes 1", "by name"),
        (lambda: copy_words(W, x=W), TypeError, "twice", "call copy_words(x)"),
        (lambda: copy_words(W, y=W), TypeError, "no parameter y", "use one of: x, out"),
        (lambda: saxpy("2", F, F), TypeError, "str", "float(alpha)"),
        (lambda: saxpy(F, F, F), TypeError, "shape (4,)", "float(alpha)"),
        (lambda: saxpy(True, F, F), TypeError, "bool", "float(alpha)"),
        (lambda: saxpy(1e39, F, F), ValueError, "does not fit f32", "smaller number"),
        (lambda: saxpy(10**400, F, F), ValueError, "does not fit f32", "smaller number"),
        (lambda: echo(u32)(-1, sizes={"out": 1}), ValueError, "does not fit u32", "0 to 4294967295"),
        (lambda: echo(u32)(1.0, sizes={"out": 1}), TypeError, "float", "int(value)"),
        (lambda: echo(u32)(True, sizes={"out": 1}), TypeError, "bool", "int(value)"),
        (lambda: echo(vyre.bool_)(1, sizes={"out": 1}), TypeError, "int", "True or False"),
        (lambda: echo(bf16)(3.4e38, sizes={"out": 1}), ValueError, "does not fit bf16", "smaller number"),
        (lambda: copy_words.on("nope")(W), vyre.BackendUnavailable, "nope", "reference"),
        (lambda: copy_words.on("no pe")(W), vyre.BackendUnavailable, "no pe", "reference"),
        (lambda: copy_words.specialize(n=1), TypeError, "n", "use one of: none"),
        (lambda: copy_words(b"abcd"), TypeError, "uint8", "np.frombuffer(x, np.uint32)"),
        (lambda: copy_words(array.array("d", [1.0])), TypeError, "x holds float64", "np.asarray(x).astype(np.uint32)"),
        (
            lambda: copy_words(array.array("f", [1.0])),
            TypeError,
            "x holds float32",
            "np.asarray(x).view(np.uint32)",
        ),
        (lambda: copy_words(np.ma.masked_array(W, W > 2)), TypeError, "masked", "x.filled(...)"),
        (lambda: copy_words(W, out=np.ma.masked_array(W)), TypeError, "MaskedArray", "NumPy array of uint32"),
        (lambda: copy_words(W, sizes=4), TypeError, "sizes is a int", "sizes={"),
        (lambda: copy_words.on(None), TypeError, "NoneType", "name a backend"),
        (lambda: saxpy(np.longdouble("1e4000"), F, F), ValueError, "does not fit f32", "smaller number"),
        (lambda: echo(u32)(10**5000, sizes={"out": 1}), ValueError, "does not fit u32", "4294967295"),
        (lambda: vyre.kernel(workgroup_size=64), TypeError, "no option workgroup_size", "workgroup=64"),
        (lambda: vyre.kernel(None), TypeError, "NoneType", "workgroup=64"),
        (lambda: vyre.kernel(5), TypeError, "int", "@vyre.kernel(workgroup=64)"),
        (lambda: saxpy[4, 256](2.0, F, F), TypeError, "saxpy[...] launches nothing", "call saxpy(alpha, x, y): "),
        (lambda: saxpy[4, 256](2.0, F, F), TypeError, "nothing", "or domain=(how many invocations), or grid=4;"),
        (lambda: saxpy[4, 256](2.0, F, F), TypeError, "nothing", "are in @vyre.kernel(workgroup=256)"),
        (lambda: saxpy[(2, 3), (8, 8)](2.0, F, F), TypeError, "nothing", "grid=(2, 3); threads of a block"),
        (lambda: saxpy[lambda meta: (1,)](2.0, F, F), TypeError, "nothing", "or grid=(number of workgroups); "),
    ],
)
def test_a_wrong_argument_is_refused_with_a_fix(call, error, message, fix):
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, vyre.VyreError)
    text = str(caught.value)
    assert message in text.partition("Fix: ")[0]
    assert fix in text.partition("Fix: ")[2]


def test_a_kernel_has_no_elements():
    with pytest.raises(TypeError, match="'Kernel' object is not iterable"):
        iter(saxpy)


def test_two_written_arguments_that_share_memory_are_refused():
    memory = np.zeros(16, np.uint8)
    x = np.arange(8, dtype=np.uint32)
    with pytest.raises(vyre.ArgumentValueError, match=r"low and high.*Fix: pass high\.copy\(\)"):
        split(x, low=memory[:8], high=memory[4:12])
    assert x.tolist() == list(range(8))
    split(x, low=memory[:8], high=memory[8:])


def test_a_missing_compile_time_value_is_asked_for():
    @vyre.kernel(workgroup=1)
    def needs(out: Out[u32], *, n: const):
        out[0] = n

    with pytest.raises(vyre.ArgumentTypeError, match=r"Fix: pass n=\.\.\."):
        needs(sizes={"out": 1})
    assert needs(n=5, sizes={"out": 1}).tolist() == [5]


def test_nothing_of_the_callers_is_written_when_a_call_fails():
    @vyre.kernel(workgroup=1)
    def fails(x: InOut[u32]):
        x[0] = 9
        vyre.trap("boom", 3)

    x = np.zeros(1, np.uint32)
    with pytest.raises(vyre.Trap, match="boom"):
        fails(x)
    assert x.tolist() == [0]


def test_a_kernel_shows_its_signature():
    assert repr(saxpy) == "<kernel saxpy(alpha: scalar f32, x: in f32, y: in f32, out: out f32) workgroup=(64, 1, 1)>"
    assert saxpy.__name__ == "saxpy"


# ---- arguments that are nothing

ONES = np.ones(3, np.float32)


@pytest.mark.parametrize("size", [1 << 32, 1 << 40, (1 << 20, 1 << 20), (1 << 33, 1 << 33)])
def test_an_output_beyond_u32_indices_is_refused(size):
    with pytest.raises(vyre.ArgumentValueError, match=r"at most 4294967295.*Fix: split"):
        saxpy(1.0, ONES, ONES, sizes={"out": size})


def no_memory(*_):
    raise MemoryError


def test_memory_that_is_not_there_is_an_error_of_its_own(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(OutputPlan.fresh, "__defaults__", (no_memory,))
        with pytest.raises(vyre.DeviceOutOfMemory, match=r"result out.*Fix: ask for a smaller one"):
            saxpy(1.0, ONES, ONES)
    monkeypatch.setattr("vyre.front.call.np.zeros", no_memory)
    with pytest.raises(vyre.DeviceOutOfMemory, match=r"result out.*Fix: ask for a smaller one"):
        saxpy(1.0, ONES, ONES, domain=0)


class JunkInterface:
    @property
    def __array_interface__(self):
        return {"shape": "none", "typestr": 3}


class JunkDLPack:
    def __dlpack_device__(self):
        raise KeyError("no device")

    def __dlpack__(self, **options):
        raise AssertionError


@pytest.mark.parametrize("value", [JunkInterface(), JunkDLPack()])
def test_an_object_whose_array_protocol_fails_is_refused(value):
    with pytest.raises(vyre.ArgumentTypeError, match=r"x cannot be read as an array.*Fix: pass a NumPy array"):
        saxpy(1.0, value, ONES)


def test_select_wants_the_program_of_a_kernel():
    with pytest.raises(vyre.ArgumentTypeError, match=r"select\(\) got a Kernel.*Fix: pass kernel\.program"):
        vyre.select(saxpy)
