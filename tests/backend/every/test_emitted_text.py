"""A program's text is the same in every process: nothing in it follows the order of a set.

Sets of steps are ordered by addresses, so each process also fills a part of its memory first.
"""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import vyre
from vyre import In, InOut, Out, gid, u32
from vyre.conform.kernels import check
from vyre.conform.kernels.make import random_kernel

from ...support.golden_programs import PROGRAMS

ROOT = Path(__file__).parents[3]


@vyre.kernel
def many_needs(x: In[u32], y: In[u32], n: u32, m: u32, io: InOut[u32], out: Out[u32]) -> None:
    """The check of a tile has to ask for several sums and differences that do not wrap."""
    i = (gid.x + n) * m - n - m - 3
    j = gid.x * n + m * 5 - gid.x
    if i - m < len(x) - n - m and j - n - m < len(y) - m - 7 and i + j + n < len(io) - n - 1:
        io[i + j] = x[i - m] + y[j - n]
        out[i - n - m] = x[i + n] + y[j + m]


def programs():
    """The small ones that are kept, random ones, and one for what is asked of a tile."""
    yield from ((name, make()) for name, make in PROGRAMS.items())
    yield "many needs", many_needs.program
    for seed in range(12):
        tree = random_kernel(seed)
        kernel = check.built(tree)
        constants = check.constants(tree)
        yield f"kernel {seed}", kernel.specialize(**constants) if constants else kernel.program


SCRIPT = """
import hashlib, random
held = [bytearray(random.randrange(1, 4000)) for _ in range({junk})][::2]
from tests.backend.every.test_emitted_text import programs, texts
for name, text in texts({backend!r}):
    print(name, hashlib.sha256(text.encode()).hexdigest())
"""


def texts(backend):
    """What the compiler would get of every program that the backend has a text for."""
    emit = import_module(f"vyre.backends.{backend}").REGISTRATION.emit
    for name, program in programs():
        try:
            yield name, emit(program)
        except vyre.VyreError as e:  # a barrier of the whole grid, which only cuda has in one launch
            yield name, str(e)


def digests(backend, seed, junk):
    command = [sys.executable, "-c", SCRIPT.format(backend=backend, junk=junk)]
    env = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.check
@pytest.mark.parametrize("backend", ["cpu", "cuda", "opencl", "wgpu"])
def test_a_program_has_the_same_text_in_every_process(backend):
    first = digests(backend, 1, 0)
    assert len(first) > 20
    assert digests(backend, 2, 30_000) == first


def test_what_is_asked_of_a_tile_has_several_parts():
    text = dict(texts("cpu"))["many needs"]
    assert text.count("and i1") > 5
