"""Results that are not cleared because a call's numbers say that all of them is stored: no byte may show it."""

import numpy as np
import pytest

import vyre
from vyre import D2, In, Out, f32, gid, u32
from vyre.backends.cpu.device import ffi
from vyre.backends.cpu.run import filled, warm
from vyre.backends.cpu.run.filled import Filled


def _framed(height: u32, width: u32, x: In[u32], out: Out[u32]) -> None:
    j, i = gid.x, gid.y
    if i < height and j < width:
        at = i * width + j
        if i > 0 and j > 0 and i < height - 1 and j < width - 1:
            out[at] = x[at] + 1
        else:
            out[at] = x[at] | 1


framed = vyre.kernel(workgroup=(8, 4))(_framed)
framed_lines = vyre.kernel(workgroup=(64, 1))(_framed)


@vyre.kernel(workgroup=64)
def counted(n: u32, out: Out[u32]):
    if gid.x < n:
        out[gid.x] = gid.x + 1


@vyre.kernel(workgroup=(8, 8))
def ranked(x: In[f32, D2], out: Out[f32, D2]):
    if gid.y < x.shape[0] and gid.x < x.shape[1]:
        out[gid.y, gid.x] = x[gid.y, gid.x] + 1.0


@pytest.fixture
def asked(monkeypatch):
    """What was found, for results of any size, which begin full of other bytes."""
    found = []
    by = Filled.by
    monkeypatch.setattr(warm, "FILLED_BYTES", 1)
    monkeypatch.setattr(Filled, "by", lambda self, buffers: found.append(by(self, buffers)) or found[-1])
    return found


def dirty(*shape, dtype=np.uint32):
    return np.frombuffer(b"\xa5" * (int(np.prod(shape)) * 4), dtype).reshape(shape).copy()


@pytest.mark.parametrize("kernel", [framed, framed_lines], ids=["8x4", "64x1"])
@pytest.mark.parametrize(
    "height, width, domain, length, full",
    [
        (20, 30, (30, 20), 600, True),
        (20, 30, (30, 20), 599, True),
        (20, 30, (30, 20), 601, False),
        (20, 29, (30, 20), 600, False),
        (19, 30, (30, 20), 570, True),
        (20, 30, (30, 8), 600, False),
        (20, 200, (64, 20), 600, False),
        (20, 0, (30, 20), 600, False),
        (1 << 31, 2, (30, 20), 40, True),
    ],
)
def test_a_plane_is_cleared_where_its_numbers_leave_some_of_it(kernel, height, width, domain, length, full, asked):
    x, out = np.arange(length, dtype=np.uint32) * 2, dirty(length)
    on = kernel.on("cpu")
    for _ in range(2):
        got = on(height, width, x, out=out, domain=domain)
        assert np.array_equal(got, kernel.on("reference")(height, width, x, sizes={"out": length}, domain=domain))
        got[:] = 0xA5A5A5A5
    assert asked == [full] * 2


def test_numbers_that_change_are_looked_at_anew(asked):
    out = dirty(300)
    for n in (*range(295, 305), *range(290, 302)):
        counted.on("cpu")(n, out=out, domain=300)
        assert np.array_equal(out, np.where(np.arange(300) < n, np.arange(300) + 1, 0))
        out[:] = 7
    assert asked == [n >= 300 for n in (*range(295, 305), *range(290, 302))]


def test_answers_are_forgotten_when_they_are_many(monkeypatch):
    monkeypatch.setattr(filled, "_MOST_KEPT", 3)
    found = Filled((None, [(0, True, ["load", "u32", [0, 0]])]), 1, (1, 50), (1, 1, 1), (64, 1, 1))
    for n in (*range(45, 55), 50, 49):
        words = np.array([n], np.uint32)
        assert found.by([ffi.from_buffer(words)]) == (n >= 50)
        assert len(found._found) <= 3


def test_a_word_beyond_the_end_of_its_buffer_is_not_read():
    found = Filled((None, [(0, True, ["load", "u32", [0, 1]])]), 1, (1, 50), (1, 1, 1), (64, 1, 1))
    assert not found.by([ffi.NULL])


def test_arrays_of_two_axes_are_filled_where_their_shapes_agree(asked):
    x = np.arange(35, dtype=np.float32).reshape(5, 7)
    for shape in ((5, 7), (4, 7), (5, 6), (6, 7), (5, 9)):
        out = dirty(*shape, dtype=np.float32)
        got = ranked.on("cpu")(x, out=out, domain=(7, 5))
        want = np.zeros(shape, np.float32)
        want[: min(5, shape[0]), : min(7, shape[1])] = x[: shape[0], : shape[1]] + 1
        assert np.array_equal(got, want)
    assert True in asked
    assert False in asked


def test_results_of_their_own_in_used_pages_are_cleared_too():
    n = 1 << 19  # pooled, and large enough to be asked for
    on = counted.on("cpu")
    for k in (n, n - 1, n, 0):
        got = on(k, sizes={"out": n}, domain=n)
        assert np.array_equal(got[:k], np.arange(1, k + 1, dtype=np.uint32))
        assert not got[k:].any()
        got[:] = 9


def test_explain_tells_whether_a_result_is_cleared():
    def choice(kernel, *given, **options):
        found = kernel.on("cpu").explain(*given, **options)
        return next(d.choice for d in found.decisions if d.what == "clearing")

    assert choice(counted, 5, sizes={"out": 1 << 19}, domain=1 << 19) == "asked"
    assert choice(counted, 5, sizes={"out": 64}, domain=64) == "yes"
    assert choice(vyre.kernel(_all), sizes={"out": 64}, domain=64) == "no"


def _all(out: Out[u32]) -> None:
    out[gid.x] = gid.x
