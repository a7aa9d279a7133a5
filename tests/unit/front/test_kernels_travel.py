"""Kernels between processes: by name where a module has them, else as their programs."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, Uniform, const, f32, gid, u32

X = np.arange(5, dtype=np.uint32)


@vyre.kernel(workgroup=8)
def at_the_top(x: In[u32], out: Out[u32]):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] + 1


def scaled(factor, number=f32):
    @vyre.kernel(workgroup=8)
    def scale(x: In[u32], by: number, w: Uniform[u32, 2], out: Out[u32]):
        """Scales."""
        if gid.x < len(x):
            out[gid.x] = x[gid.x] * factor + w[1] + u32(by)

    return scale


def powers(**consts):
    @vyre.kernel(workgroup=8)
    def power(x: InOut[u32], *, n: const, plus: const = 0):
        if gid.x < len(x):
            y = u32(1)
            for _ in static_range(n):
                y *= x[gid.x]
            x[gid.x] = y + plus

    if consts:
        power.specialize(**consts)
    return power


static_range = vyre.static_range


def sent(thing):
    return pickle.loads(pickle.dumps(thing))


def test_a_kernel_of_a_module_travels_as_its_name():
    assert sent(at_the_top) is at_the_top
    assert sent(at_the_top.on("reference")) is at_the_top.on("reference")
    assert len(pickle.dumps(at_the_top)) < 200


def test_a_kernel_of_a_function_travels_as_its_program():
    k = scaled(3)
    got = sent(k)
    assert got is not k
    assert got.program == k.program
    assert got.program.fingerprint == k.program.fingerprint
    assert (got.params, got.workgroup, got.__name__, got.__doc__, got.__qualname__, got.__module__) == (
        k.params, k.workgroup, "scale", "Scales.", k.__qualname__, __name__,
    )  # fmt: skip
    args = X, 2.0, X[:2]
    want = k.on("reference")(*args).tolist()
    assert want == [3, 6, 9, 12, 15]
    for travelled in (got, sent(sent(k))):
        assert travelled.on("reference")(*args).tolist() == travelled(*args).tolist() == want
    assert repr(got) == repr(k)


def test_a_backend_travels_with_it():
    assert sent(scaled(3).on("reference")).backend == "reference"
    assert sent(scaled(3)).backend is None


def test_a_copy_is_the_kernel_itself():
    k = scaled(3)
    assert copy.deepcopy([k])[0] is copy.copy(k) is k


def test_a_name_that_means_another_kernel_is_not_sent(monkeypatch):
    one, two = scaled(3), scaled(4)
    for k in (one, two):
        k.__qualname__ = "scale"
    monkeypatch.setattr(sys.modules[__name__], "scale", one, raising=False)
    assert sent(one) is one
    assert sent(two).program == two.program


def test_programs_of_compile_time_values_travel_as_far_as_they_exist():
    got = sent(powers(n=2, plus=1))
    assert got.on("reference")(X.copy(), n=2, plus=1).tolist() == [1, 2, 5, 10, 17]
    with pytest.raises(
        vyre.ArgumentValueError,
        match=r"none for n=3, plus=0. Fix: call kernel.specialize\(n=3, plus=0\) before sending it, or define it at",
    ):
        got.on("reference")(X.copy(), n=3)
    with pytest.raises(vyre.ArgumentTypeError, match="needs a value for its compile-time parameter n"):
        sent(powers()).on("reference")(X.copy())


def test_a_kernel_of_a_program_travels():
    got = sent(vyre.Kernel.of_program(at_the_top.program, "named"))
    assert got.__name__ == "named"
    assert got.on("reference")(X).tolist() == [1, 2, 3, 4, 5]


SCRIPT = """
import multiprocessing
import numpy as np
import vyre
from vyre import In, Out, gid, u32


@vyre.kernel
def plain(x: In[u32], out: Out[u32]):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] + 1


def make(factor):
    @vyre.kernel
    def made(x: In[u32], out: Out[u32]):
        if gid.x < len(x):
            out[gid.x] = x[gid.x] * factor
    return made


def main():
    x = np.arange(4, dtype=np.uint32)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for k in (plain, make(3), make(5).on("reference")):
            print(pool.apply(k, (x,)).tolist())


MAIN
"""


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:3]


GAVE = ["[1, 2, 3, 4]", "[0, 3, 6, 9]", "[0, 5, 10, 15]"]


def test_kernels_reach_a_process_that_was_spawned(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("MAIN", 'if __name__ == "__main__":\n    main()'))
    assert run(script) == GAVE


def test_a_kernel_of_the_command_line_reaches_a_process_that_was_spawned():
    """There is no module that the other process could import."""
    assert run("-c", SCRIPT.replace("MAIN", "main()")) == GAVE
