"""An `assert` of a kernel stops the dispatch, and says where it stands and which invocation failed, everywhere."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, Trap, barrier, const, f32, gid, i32, lid, shared, u32
from vyre.lower import lower

from ..cuda.test_cuda_text import cubin, nvrtc_or_skip

BACKENDS = ("reference", "cpu", "opencl", "wgpu", "cuda")
HERE = __file__
SOURCE = Path(__file__).read_text("utf-8").splitlines()


def line_of(text):
    """Of the one line with this text, as `file:line`."""
    (found,) = [k for k, line in enumerate(SOURCE, 1) if line.strip() == text]
    return f"{HERE}:{found}"


@pytest.fixture(params=BACKENDS)
def on(request):
    try:
        vyre.acquire(request.param).shutdown()
    except vyre.BackendUnavailable as e:
        pytest.skip(str(e))
    return request.param


@vyre.kernel
def roots(x: In[f32], n: u32, out: Out[f32]):
    i = gid.x
    if i < len(out):
        assert x[i] >= 0.0, "x must not be negative"
        assert n != 7
        out[i] = vyre.sqrt(x[i])


@vyre.device
def below(v: f32, limit: f32) -> f32:
    assert v < limit, "over the limit"
    return v * 2.0


@vyre.kernel(workgroup=8)
def meeting(x: InOut[f32]):
    tile = shared(f32, 8)
    tile[lid.x] = x[gid.x]
    barrier()
    total = f32(0.0)
    for k in range(8):
        total += tile[k]
        if k == 6:
            assert total < 1000.0, "the sum of seven"
    barrier()
    x[gid.x] = below(tile[7 - lid.x], 500.0) + below(total, 5000.0)


def test_one_that_holds_changes_no_byte(on):
    x = np.linspace(0, 5, 100, dtype=np.float32)
    assert roots.on(on)(x, 3).tobytes() == np.sqrt(x).tobytes()
    out = meeting.on(on)(np.arange(16, dtype=np.float32))
    assert out.tobytes() == meeting.on("reference")(np.arange(16, dtype=np.float32)).tobytes()


@pytest.mark.parametrize("at", [0, 63, 64, 99])
def test_one_that_fails_names_its_line_its_text_and_the_invocation(on, at):
    x = np.ones(100, np.float32)
    x[at] = -1.0
    with pytest.raises(Trap) as caught:
        roots.on(on)(x, 3)
    place = line_of('assert x[i] >= 0.0, "x must not be negative"')
    assert caught.value.message == f"{place}: assertion failed: x must not be negative"
    assert caught.value.context["invocation"] == (at, 0, 0)
    assert f"roots.step(..., invocation={(at, 0, 0)})" in caught.value.fix


def test_without_a_text_it_says_the_condition(on):
    with pytest.raises(Trap) as caught:
        roots.on(on)(np.ones(1, np.float32), 7)
    assert caught.value.message == f"{line_of('assert n != 7')}: assertion failed: n != 7"


def test_nothing_is_written_when_one_fails(on):
    out = np.full(4, 9.0, np.float32)
    with pytest.raises(Trap):
        roots.on(on)(np.array([1, 1, -1, 1], np.float32), 3, out=out)
    assert out.tolist() == [9.0] * 4


def test_nan_fails_a_comparison(on):
    with pytest.raises(Trap, match="x must not be negative"):
        roots.on(on)(np.array([np.nan], np.float32), 3)


def test_one_in_a_loop_between_barriers(on):
    x = np.zeros(16, np.float32)
    x[9] = 2000.0
    with pytest.raises(Trap, match="the sum of seven") as caught:
        meeting.on(on)(x)
    assert 8 <= caught.value.context["invocation"][0] < 16
    assert x[9] == 2000.0


def test_one_in_a_helper_names_the_line_of_the_helper(on):
    x = np.zeros(16, np.float32)
    x[15] = 600.0  # only the first call of the helper has so small a limit
    with pytest.raises(Trap) as caught:
        meeting.on(on)(x)
    place = line_of('assert v < limit, "over the limit"')
    assert caught.value.message == f"{place}: assertion failed: over the limit"
    assert caught.value.context["invocation"] == (8, 0, 0)


def test_a_started_call_says_the_same(on):
    pending = roots.on(on).start(np.array([-1.0], np.float32), 3)
    with pytest.raises(Trap, match="x must not be negative") as caught:
        pending.result()
    assert caught.value.message.startswith(line_of('assert x[i] >= 0.0, "x must not be negative"'))


def test_a_raw_dispatch_has_the_text_and_the_invocation(on):
    pipe = vyre.compile(roots.program, backend=on)
    with pytest.raises(Trap) as caught:
        pipe.dispatch(
            [np.array([1, -1], np.float32), np.uint32(3).tobytes()], vyre.DispatchConfig(output_elements={"out": 2})
        )
    assert caught.value.context["tag"] == "assertion failed: x must not be negative"
    assert caught.value.context["invocation"] == (1, 0, 0)


@vyre.kernel
def twins(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        assert x[gid.x] != 1, "same text"
        assert x[gid.x] != 2, "same text"
        if x[gid.x] == 3:
            vyre.trap("mine", 77)
        out[gid.x] = x[gid.x]


@pytest.mark.parametrize("value", [1, 2])
def test_two_with_one_text_are_told_apart(on, value):
    with pytest.raises(Trap) as caught:
        twins.on(on)(np.array([value], np.uint32))
    place = line_of(f'assert x[gid.x] != {value}, "same text"')
    assert caught.value.message == f"{place}: assertion failed: same text"


def test_a_trap_says_its_place_too(on):
    with pytest.raises(Trap) as caught:
        twins.on(on)(np.array([3], np.uint32))
    place = line_of('vyre.trap("mine", 77)')
    assert caught.value.message == f"{place}: the program trapped: mine"
    assert caught.value.context["address"] == 77


def test_the_place_is_that_of_the_kernel_that_was_called(on):
    """Kernels that differ in their lines alone share their code."""

    def define(shift):
        return vyre.kernel(
            source="\n" * shift + "def k(x: InOut[u32]):\n    assert x[0] == 0, 'zero'\n    x[0] = x[0] + 0"
        )

    first, second = define(0), define(5)
    assert first.program.fingerprint == second.program.fingerprint
    for kernel, line in ((first, 2), (second, 7), (first, 2)):
        with pytest.raises(Trap, match=rf":{line}: assertion failed: zero"):
            kernel.on(on)(np.ones(1, np.uint32))


def test_nvrtc_takes_the_text():
    nvrtc_or_skip()
    for kernel in (roots, meeting, twins):
        assert cubin(lower(kernel.program), "sm_90")


# ---- what needs no device --------------------------------------------------------------------------------------------


@vyre.kernel
def rows(x: InOut[u32], *, width: const = 4):
    assert width % 4 == 0, "width is a multiple of 4"
    if gid.x < len(x):
        x[gid.x] = x[gid.x] // width


def test_one_that_is_false_while_compiling_is_refused_there():
    assert rows.on("reference")(np.array([8], np.uint32)).tolist() == [2]
    with pytest.raises(vyre.KernelError) as caught:
        rows(np.zeros(4, np.uint32), width=6)
    assert "assertion failed: width is a multiple of 4" in caught.value.message
    assert caught.value.text[caught.value.offset - 1 : caught.value.end_offset - 1] == "width % 4 == 0"


@vyre.kernel
def chosen(mode: u32, out: Out[u32, 1]):
    if mode == 1:
        out[0] = 5
    else:
        assert False, "no such mode"  # noqa: B011, PT015


def test_assert_false_stops_only_those_who_get_there():
    assert chosen.on("cpu")(1).tolist() == [5]
    with pytest.raises(Trap, match="no such mode"):
        chosen.on("cpu")(2)


def test_it_needs_no_more_invocations_than_the_kernel_without_it():
    @vyre.kernel
    def plain(x: In[f32], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = x[gid.x]

    @vyre.kernel
    def asserted(x: In[f32], out: Out[f32]):
        if gid.x < len(out):
            assert x[gid.x] == x[gid.x]
            out[gid.x] = x[gid.x]

    x = np.zeros(1000, np.float32)
    assert asserted.on("cpu").explain(x).grid == plain.on("cpu").explain(x).grid


def test_a_kernel_of_asserts_alone_looks_at_every_element():
    @vyre.kernel
    def finite(x: In[f32]):
        assert vyre.is_finite(x[gid.x]), "not finite"

    x = np.zeros(1000, np.float32)
    assert finite(x) is None
    x[999] = np.inf
    with pytest.raises(Trap, match="not finite") as caught:
        finite(x)
    assert caught.value.context["invocation"] == (999, 0, 0)


def test_one_that_was_sent_keeps_its_text():
    def make():
        @vyre.kernel
        def k(x: InOut[i32]):
            assert x[0] > 0, "positive"
            x[0] = x[0] - 1

        return k

    arrived = pickle.loads(pickle.dumps(make()))
    with pytest.raises(Trap, match=r"^the program trapped: assertion failed: positive"):
        arrived.on("cpu")(np.zeros(1, np.int32))


PROGRAM = """
import numpy as np
import vyre
from vyre import InOut, Trap, f32, gid


def make(limit):
    @vyre.kernel
    def k(x: InOut[f32]):
        if gid.x < len(x):
            assert x[gid.x] < limit, "over"
            x[gid.x] = x[gid.x] + 1.0
    return k


try:
    make(5.0).on("reference")(np.arange(9, dtype=np.float32))
except Trap as e:
    print(e.message.rpartition(":")[0][-22:], e.context["invocation"])
"""


@pytest.mark.parametrize("options", [[], ["-O"], ["-OO"]], ids=" ".join)
def test_pythons_own_switch_does_not_matter(tmp_path, options):
    """`-O` makes Python drop an assert, and with it the variable around the kernel that only the assert reads."""
    file = tmp_path / "asserting.py"
    file.write_text(PROGRAM, "utf-8")
    command = [sys.executable, "-B", *options, str(file)]  # optimised bytecode is not left beside the interpreter's own
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("(5, 0, 0)"), done.stderr
