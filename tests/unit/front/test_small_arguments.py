"""Arrays of small values: which are taken, and what comes back."""

from typing import NamedTuple

import numpy as np
import pytest

import vyre
from vyre import D2, In, InOut, Out, RaceDetected, c64, f32, gid, vec3


class Body(NamedTuple):
    position: vec3
    mass: f32


BODY = np.dtype([("position", np.float32, 3), ("mass", np.float32)])


@vyre.kernel
def turned(z: InOut[c64]) -> None:
    if gid.x < len(z):
        z[gid.x] = z[gid.x] * 2j


@vyre.kernel
def heavier(bodies: InOut[Body]) -> None:
    if gid.x < len(bodies):
        bodies[gid.x] = bodies[gid.x]._replace(mass=2.0)


@vyre.kernel
def grown(v: InOut[vec3], out: Out[c64]) -> None:
    if gid.x < len(v):
        out[gid.x] = c64(v[gid.x].x, v[gid.x].y)
        v[gid.x] = v[gid.x] * 2.0


@vyre.kernel
def masses(bodies: In[Body], out: Out[f32]) -> None:
    if gid.x < len(bodies):
        out[gid.x] = bodies[gid.x].mass


@vyre.kernel
def length_of(z: In[c64], out: Out[f32]) -> None:
    if gid.x < len(z):
        out[gid.x] = z[gid.x].imag


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_the_callers_own_array_comes_back(backend):
    z = np.ones(3, np.complex64)
    assert turned.on(backend)(z) is z
    assert z.tolist() == [2j] * 3
    for bodies in (np.zeros(3, BODY), np.zeros((3, 4), np.float32)):
        assert heavier.on(backend)(bodies) is bodies
        assert np.all(bodies["mass"] == 2 if bodies.dtype.names else bodies[:, 3] == 2)
    v, out = np.ones((3, 3), np.float32), np.zeros(3, np.complex64)
    assert all(a is b for a, b in zip(grown.on(backend)(v, out=out), (v, out), strict=True))
    assert (v[0, 0], out[0]) == (2, 1 + 1j)
    pending = turned.on(backend).start(z)
    assert pending.result() is z
    assert z.tolist() == [-4] * 3


def test_a_result_that_is_made_is_as_numpy_shows_such_values():
    _, made = grown(np.ones((2, 3), np.float32))
    assert made.dtype == np.complex64
    assert made.tolist() == [1 + 1j] * 2


def test_inputs_come_in_either_byte_order():
    bodies = np.zeros(3, BODY)
    bodies["mass"] = [1, 2, 3]
    mixed = bodies.astype([("position", ">f4", 3), ("mass", "<f4")])
    rows = bodies.view(np.float32).reshape(3, 4).astype(">f4")
    for given in (bodies, bodies.astype(BODY.newbyteorder()), mixed, rows):
        assert masses(given).tolist() == [1, 2, 3]
    z = np.array([1j, 2j], np.complex64)
    assert length_of(z.astype(">c8")).tolist() == [1, 2]


@pytest.mark.parametrize(
    "kernel, given",
    [
        (turned, np.ones(3, ">c8")),
        (heavier, np.zeros(3, BODY.newbyteorder(">"))),
        (heavier, np.zeros((3, 4), ">f4")),
    ],
)
def test_results_go_to_arrays_of_the_machines_byte_order(kernel, given):
    with pytest.raises(vyre.ArgumentValueError, match="receives a result and is not in native byte order") as caught:
        kernel(given)
    assert "newbyteorder" in caught.value.fix


def test_fields_of_another_type_are_named():
    with pytest.raises(vyre.ArgumentTypeError, match=r"holds \[\('position', '<f4', \(3,\)\), \('mass', '<f8'\)\] in"):
        masses(np.zeros(2, [("position", np.float32, 3), ("mass", np.float64)]))
    with pytest.raises(vyre.ArgumentTypeError, match="bodies holds fields a, b in shape"):
        masses(np.zeros(2, [("a", np.float32), ("b", np.float64)]))


def test_a_race_names_the_element_as_the_kernel_does():
    @vyre.kernel(workgroup=(4, 4))
    def left(x: InOut[f32, D2]):
        if gid.y < x.shape[0] and gid.x < x.shape[1]:
            x[gid.y, gid.x] = x[gid.y, gid.x + 1]

    @vyre.kernel(workgroup=4)
    def lighter(bodies: InOut[Body]):
        if gid.x < len(bodies):
            bodies[gid.x // 2] = bodies[gid.x]

    with pytest.raises(RaceDetected, match=r"^race on x\[[0-3], [0-3]\]\n"):
        left(np.zeros((4, 4), np.float32), check_races=True)
    with pytest.raises(RaceDetected, match=r"^race on bodies\[[0-3]\]\.(position\.[xyz]|mass)\n"):
        lighter(np.zeros(4, BODY), check_races=True)
