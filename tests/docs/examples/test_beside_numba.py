"""Ten kernels beside numba's: as short, the bytes of flat kernels on every backend, and numba's values where it is."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from ...support import flat_kernels
from ...support.device_backends import registration_or_skip
from ...support.example_files import BACKENDS, EXAMPLES, load

FOLDER = EXAMPLES / "beside_numba"
compare = load("beside_numba/compare")
NAMES = [
    "chacha20", "fft", "jacobi", "lennard_jones", "levenshtein", "matmul", "median", "nbody", "raytracer", "sobel",
]  # fmt: skip


@pytest.fixture(params=[*BACKENDS[:2], *(pytest.param(id, marks=pytest.mark.check) for id in BACKENDS[2:])])
def backend(request):
    return registration_or_skip(request.param).id


def test_there_are_ten():
    assert compare.NAMES == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_about_as_short_as_that_of_numba(name):
    ours, theirs = compare.lines_of_kernels(name), compare.lines_of_kernels(f"{name}_numba")
    assert 7 < ours <= 1.1 * theirs


def test_lines_are_those_of_code_in_kernels_helpers_and_types(tmp_path, monkeypatch):
    text = '''
import vyre


class Pair:
    """What it is."""

    a: int


@vyre.kernel(
    workgroup=4,
)
def k(x):
    """More
    of it."""
    # a remark

    x[0] = 1


def solve(x):
    k(x)
'''
    (tmp_path / "some.py").write_text(text, "utf-8")
    monkeypatch.setattr(compare, "FOLDER", tmp_path)
    assert compare.lines_of_kernels("some") == 2 + 5


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_those_of_a_kernel_over_flat_arrays(name, backend):
    module = load(f"beside_numba/{name}")
    found = module.solve(*module.sample(), backend)
    flat = getattr(flat_kernels, name)(*module.sample(), backend)
    assert np.any(found)
    assert found.shape == flat.shape
    assert found.tobytes() == flat.tobytes()


def test_the_cipher_is_that_of_its_standard():
    """RFC 8439, section 2.4.2: the key stream of its example."""
    chacha20 = load("beside_numba/chacha20")
    start, message = chacha20.sample()
    stream = chacha20.solve(start, np.zeros_like(message), "cpu").tobytes()
    assert stream[:16].hex() == "224f51f3401bd9e12fde276fb8631ded"


def test_transforms_distances_and_products_are_those_of_numpy():
    fft, levenshtein, matmul = (load(f"beside_numba/{name}") for name in ("fft", "levenshtein", "matmul"))
    (x,) = fft.sample()
    assert np.allclose(fft.solve(x, "cpu"), np.fft.fft(x), atol=1e-4)
    assert levenshtein.solve(*levenshtein.sample(), "cpu").tolist() == [3, 0, 6, 3, 15]
    a, b = matmul.sample()
    assert np.allclose(matmul.solve(a, b, "cpu"), a @ b, rtol=1e-5)


@pytest.mark.parametrize("words", [[b"x" * 32], [b"short", b"y" * 40]])
def test_a_word_that_is_too_long_is_refused(words):
    with pytest.raises(ValueError, match="at most 31 letters"):
        load("beside_numba/levenshtein").packed(words)


@pytest.mark.parametrize(
    "theirs, agrees",
    [
        (np.float32([1, 2.0001]), True),
        (np.float32([1, 2.01]), False),
        (np.float32([1]), False),
        (np.float64([1, 2]), False),
    ],
)
def test_floats_agree_nearly(theirs, agrees):
    assert compare.agree(np.float32([1, 2]), theirs) is agrees


def test_integers_agree_to_the_bit():
    assert not compare.agree(np.uint32([10**9]), np.uint32([10**9 + 1]))


@pytest.mark.check
def test_it_runs_as_a_program_and_says_what_numba_gives():
    done = subprocess.run(
        [sys.executable, FOLDER / "compare.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"VYRE_BACKEND": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == compare.NAMES
    said = "numba is not installed" if find_spec("numba") is None else "agree"
    assert all(row.endswith(said) for row in rows)


def test_the_page_shows_kernels_as_they_are():
    page = (EXAMPLES.parent / "docs" / "how-to" / "from-numba.md").read_text("utf-8")
    for name in ("sobel", "sobel_numba"):
        text = (FOLDER / f"{name}.py").read_text("utf-8")
        assert text[text.index("def sobel") : text.index("\n\n\ndef solve")] in page
