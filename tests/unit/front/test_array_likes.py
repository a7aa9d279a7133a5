"""Arguments that are no NumPy arrays: what shows its memory is read and written there; a copy is never written to."""

import array
import ctypes

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, f32, gid, u8

START = [1.0, 2.0, 3.0, 4.0]


@vyre.kernel(workgroup=8)
def doubled(x: In[f32], out: Out[f32]):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] * 2.0


@vyre.kernel(workgroup=8)
def double(x: InOut[f32]):
    if gid.x < len(x):
        x[gid.x] = x[gid.x] * 2.0


@vyre.kernel(workgroup=8)
def count(x: InOut[u8]):
    if gid.x < len(x):
        x[gid.x] = u8(gid.x)


class Holder:
    """An object that shows an array in one way, and in no other."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return len(self.held)

    def tolist(self):
        return self.held.tolist()


class Interface(Holder):
    @property
    def __array_interface__(self):
        return self.held.__array_interface__


class Exporter(Holder):
    def __dlpack__(self, **options):
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()


class Converted(Holder):
    def __array__(self, dtype=None, copy=None):
        return self.held


class Copied(Holder):
    def __array__(self, dtype=None, copy=None):
        return self.held.copy()


class Table(ctypes.Array):
    _type_, _length_ = ctypes.c_float, 4

    def tolist(self):
        return list(self)


def floats():
    return np.array(START, np.float32)


SHARE = {
    "ctypes": lambda: Table(*START),
    "array": lambda: array.array("f", START),
    "memoryview": lambda: memoryview(bytearray(floats())).cast("f"),
    "interface": lambda: Interface(floats()),
    "dlpack": lambda: Exporter(floats()),
    "converted": lambda: Converted(floats()),
    "memmap": lambda: floats().view(np.memmap),
}
every_way = pytest.mark.parametrize("make", SHARE.values(), ids=SHARE)
every_backend = pytest.mark.parametrize("backend", ["reference", "cpu"])


@every_backend
@every_way
def test_an_object_is_read(make, backend):
    assert doubled.on(backend)(make()).tolist() == [2, 4, 6, 8]
    assert doubled.on(backend)(Copied(floats())).tolist() == [2, 4, 6, 8]


@every_backend
@every_way
def test_an_object_is_updated_in_its_own_memory(make, backend):
    x = make()
    got = double.on(backend)(x)
    assert x.tolist() == got.tolist() == [2, 4, 6, 8]
    assert double.on(backend).start(x).result().tolist() == x.tolist() == [4, 8, 12, 16]


@every_backend
@every_way
def test_an_object_receives_a_result_in_its_own_memory(make, backend):
    out = make()
    doubled.on(backend)(floats() + 1, out=out)
    assert out.tolist() == [4, 6, 8, 10]
    doubled.on(backend)(out, out=out)  # read and written at once
    assert out.tolist() == [8, 12, 16, 20]


def test_what_shows_copies_is_not_written_to():
    for call in (lambda x: double(x), lambda x: doubled(floats(), out=x)):
        with pytest.raises(
            vyre.ArgumentTypeError,
            match=r"receives a result and is a Copied that shows copies of its elements. Fix: pass np.array\(",
        ):
            call(Copied(floats()))


def read_only(held):
    held.flags.writeable = False
    return held


@pytest.mark.parametrize(
    "value, message, fix",
    [
        (Interface(read_only(floats())), "read-only", "np.array(x), and take the result from there"),
        (memoryview(floats().tobytes()).cast("f"), "read-only", "np.array(x), and take the result from there"),
        (Converted(np.arange(8, dtype="f4")[::2]), "not contiguous", "np.ascontiguousarray(x) and copy it back"),
        (Converted(floats().astype(">f4")), "not in native byte order", "newbyteorder"),
        (Converted(np.arange(4.0)), "x holds float64 and the kernel declares f32", "pass an array of float32"),
        ((ctypes.c_double * 4)(), "x holds float64", "pass an array of float32"),
        (Converted("text"), "x cannot be read as an array", "pass a NumPy array"),
        (bytearray(16), "x holds uint8", "pass an array of float32"),
        (START, "receives a result and is a list", "pass a NumPy array of float32"),
        (np.float32(3), "receives a result and is a float32", "pass a NumPy array of float32"),
        (Converted, "receives a result and is a type", "pass a NumPy array of float32"),
    ],
)
def test_what_cannot_take_a_result_is_refused(value, message, fix):
    with pytest.raises(vyre.VyreError) as caught:
        double(value)
    said, _, how = str(caught.value).partition("Fix: ")
    assert message in said
    assert fix in how


@pytest.mark.parametrize(
    "value, message, fix",
    [
        (Converted(np.arange(4.0)), "x holds float64 and the kernel declares f32", "np.asarray(x).astype(np.float32)"),
        (Converted([1, 2]), "x cannot be read as an array", "pass a NumPy array"),
        (Exporter(np.array(["a"])), "x cannot be read as an array", "pass a NumPy array"),
        (np.float32(3), "x is a float32, not an array", "pass a NumPy array of float32"),
        (Converted, "x is a type, not an array", "pass a NumPy array of float32"),
    ],
)
def test_what_is_no_array_of_the_declared_type_is_refused(value, message, fix):
    with pytest.raises(vyre.ArgumentTypeError) as caught:
        doubled(value)
    said, _, how = str(caught.value).partition("Fix: ")
    assert message in said
    assert fix in how


def test_bytes_are_elements_of_one_byte():
    data = bytearray(5)
    count.on("reference")(data)
    assert data == bytes(range(5))
    with pytest.raises(vyre.ArgumentValueError, match=r"read-only. Fix: pass np.array\(x\)"):
        count(bytes(5))


def test_an_empty_object_takes_an_empty_result():
    x = Copied(np.empty(0, np.float32))
    assert doubled.on("reference")(x, out=x).tolist() == []


def test_a_tensor_is_an_argument():
    torch = pytest.importorskip("torch")
    x = torch.tensor(START)
    assert doubled.on("reference")(x).tolist() == [2, 4, 6, 8]
    double.on("cpu")(x)
    assert x.tolist() == [2, 4, 6, 8]
    with pytest.raises(vyre.ArgumentTypeError, match=r"cannot be read as an array(?s:.*)detach"):
        doubled(torch.tensor(START, requires_grad=True))


def test_a_column_is_read():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": floats(), "b": floats() * 3})
    assert doubled.on("reference")(frame["a"]).tolist() == [2, 4, 6, 8]
    assert doubled.on("cpu")(frame["b"]).tolist() == [6, 12, 18, 24]
    with pytest.raises(vyre.ArgumentTypeError, match="x holds float64"):
        doubled(frame["a"].astype("float64"))


def test_a_column_is_written_only_where_the_frame_sees_it():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(floats())
    if np.asarray(column).flags.writeable:
        double.on("reference")(column)
        assert column.tolist() == [2, 4, 6, 8]
    else:  # a pandas that copies on write
        with pytest.raises(vyre.ArgumentValueError, match="receives a result and is read-only"):
            double.on("reference")(column)
        assert column.tolist() == START
