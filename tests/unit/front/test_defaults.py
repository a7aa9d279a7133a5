"""Numbers of a kernel that have defaults, and numbers that go by name only."""

import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, const, f32, gid, i32, u32

X = np.arange(4, dtype=np.float32)
LIMIT = np.float32(2.5)


@vyre.kernel(workgroup=8)
def affine(x: In[f32], out: Out[f32], scale: f32 = 2, offset: f32 = LIMIT, flip: bool = False):
    if gid.x < len(x):
        y = x[gid.x] * scale + offset
        out[gid.x] = -y if flip else y


@vyre.kernel(workgroup=8)
def stepped(x: InOut[f32], *, step: f32, times: i32 = -1, n: const = 3):
    if gid.x < len(x):
        x[gid.x] += step * f32(times) * n


every_backend = pytest.mark.parametrize("backend", ["reference", "cpu"])


@every_backend
def test_a_number_that_is_left_out_has_its_default(backend):
    k = affine.on(backend)
    assert k(X).tolist() == [2.5, 4.5, 6.5, 8.5]
    assert k(X, 3.0).tolist() == [2.5, 5.5, 8.5, 11.5]
    assert k(X, offset=0.0).tolist() == [0, 2, 4, 6]
    assert k(X, 1.0, flip=True).tolist() == [-2.5, -3.5, -4.5, -5.5]
    assert k(offset=1, x=X, scale=1).tolist() == [1, 2, 3, 4]
    out = np.zeros(4, np.float32)
    assert k(X, 1.0, 0.0, True, out=out) is out
    assert out.tolist() == [0, -1, -2, -3]
    assert k.start(X).result().tolist() == [2.5, 4.5, 6.5, 8.5]


@every_backend
def test_a_number_behind_a_star_goes_by_name(backend):
    k = stepped.on(backend)
    assert k(X.copy(), step=1.0).tolist() == [-3, -2, -1, 0]
    assert k(X.copy(), step=1.0, times=2, n=1).tolist() == [2, 3, 4, 5]
    assert k(x=X.copy(), times=0, step=1.0).tolist() == [0, 1, 2, 3]


def test_on_a_device_too():
    x = vyre.to_device(X, "cpu")
    assert affine(x).numpy().tolist() == [2.5, 4.5, 6.5, 8.5]
    assert affine(x, offset=0.0).numpy().tolist() == [0, 2, 4, 6]
    for _ in range(3):  # the calls that are remembered
        assert affine(x, 1.0).numpy().tolist() == [2.5, 3.5, 4.5, 5.5]
        assert affine(x).numpy().tolist() == [2.5, 4.5, 6.5, 8.5]


def test_defaults_travel_and_are_shown():
    got = pickle.loads(pickle.dumps(vyre.Kernel(affine.__wrapped__, 8)))
    assert got.on("reference")(X).tolist() == [2.5, 4.5, 6.5, 8.5]
    assert "scale: f32 = 2" in str(inspect.signature(affine))
    assert affine.on("reference").explain(X).backend == "reference"


@pytest.mark.parametrize(
    "call, message, fix",
    [
        (lambda: affine(), "affine needs x", "call affine(x, scale=2, offset=2.5, flip=False)"),
        (lambda: affine(X, 1, 2, True, 5), "takes 4 positional arguments and 5 were given", "scale=2"),
        (lambda: affine(X, scale="a"), "scale is a str", "pass float(scale)"),
        (lambda: affine(X, 1.0, scale=2.0), "scale is given twice", "call affine(x, scale=2"),
        (lambda: stepped(X.copy()), "stepped needs step", "call stepped(x, step=..., times=-1)"),
        (lambda: stepped(X.copy(), 1.0), "takes 1 positional arguments and 2 were given", "step=..."),
    ],
)
def test_what_is_missing_or_too_much_is_said_with_the_defaults(call, message, fix):
    with pytest.raises(vyre.ArgumentTypeError) as caught:
        call()
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_a_program_is_the_same_with_and_without_defaults():
    def plain(x: In[f32], out: Out[f32], n: u32):
        if gid.x < len(x):
            out[gid.x] = x[gid.x] + f32(n)

    def optional(x: In[f32], out: Out[f32], n: u32 = 7):
        if gid.x < len(x):
            out[gid.x] = x[gid.x] + f32(n)

    assert vyre.kernel(plain).program.to_wire() == vyre.kernel(optional).program.to_wire()


def test_the_command_line_asks_for_no_number_that_has_a_default(tmp_path):
    path = tmp_path / "k.py"
    path.write_text(
        "import vyre\nfrom vyre import Out, gid, u32\n\n@vyre.kernel\ndef k(out: Out[u32], n: u32 = 7):\n"
        "    if gid.x < len(out):\n        out[gid.x] = n\n"
    )
    command = [sys.executable, "-m", "vyre", "run", str(path), "--sizes", "out=2", "--backend", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "7" in done.stdout
