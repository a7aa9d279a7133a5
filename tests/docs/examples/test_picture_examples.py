"""Mandelbrot and connected components: what other software gives, and the same bytes on every backend that is here."""

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components as scipy_components

from vyre.backends import reference

from ...support import example_files
from ...support.example_files import load, smaller

mandelbrot, components = map(load, ("mandelbrot", "connected_components"))

backend = example_files.backend


# ---- Mandelbrot -----------------------------------------------------------------------------------------------------


def stepped(left, top, step, shape, most):
    """The same steps over arrays: NumPy rounds each operation to f32, and fuses none."""
    left, top, step = map(np.float32, (left, top, step))
    height, width = shape
    c_re = np.broadcast_to(left + step * np.arange(width, dtype=np.float32), shape)
    c_im = np.broadcast_to((top - step * np.arange(height, dtype=np.float32))[:, None], shape)
    re, im = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    taken, inside = np.zeros(shape, np.uint32), np.ones(shape, bool)
    for _ in range(most):
        inside &= ~(re * re + im * im > 4)
        following = re * re - im * im + c_re, np.float32(2) * re * im + c_im
        re, im = np.where(inside, following[0], re), np.where(inside, following[1], im)
        taken += inside
    assert re.dtype == im.dtype == np.float32
    return taken


VIEWS = {
    "all of it": (-2.2, 1.2, 0.05, (49, 64), 60),
    "an edge": (-0.7463, 0.1112, 0.00002, (30, 40), 400),
    "one point": (0.0, 0.0, 0.0, (1, 1), 10),
    "far away": (2.5, 2.5, 1.0, (3, 5), 10),
    "no step": (-2.2, 1.2, 0.05, (3, 5), 0),
}


@pytest.mark.parametrize("view", VIEWS)
def test_counts_are_to_the_bit_those_of_numpy(view, backend):
    left, top, step, (height, width), most = VIEWS[view]
    shape = smaller(backend, (min(height, 9), min(width, 12)), (height, width))
    most = smaller(backend, min(most, 60), most)
    found = mandelbrot.solve(left, top, step, shape, most, backend)
    assert found.shape == shape
    assert found.tobytes() == stepped(left, top, step, shape, most).tobytes()


def test_points_whose_fate_is_known(backend):
    for c, taken in ((0, 50), (-1, 50), (-2, 50), (1, 3), (0.5, 5), (-3, 1)):
        assert mandelbrot.solve(c, 0, 0, (1, 1), 50, backend).item() == taken


def test_the_set_is_its_own_mirror_image(backend):
    counts = mandelbrot.solve(-2, 0.5, 0.125, (9, 16), 40, backend)
    assert np.array_equal(counts, counts[::-1])
    assert len(np.unique(counts)) > 5


def test_a_picture_in_letters_goes_from_light_to_dark():
    counts = mandelbrot.solve(-2.2, 1.2, 0.05, (49, 64), 500, "cpu")
    assert set(mandelbrot.drawn(counts, 500)) >= {" ", ".", ":", "=", "@"}
    assert mandelbrot.drawn(mandelbrot.solve(0, 0, 0, (2, 3), 1, "cpu"), 1) == "\n"


# ---- connected components -------------------------------------------------------------------------------------------


def from_scipy(vertices, edges):
    """The smallest vertex of each vertex's component."""
    matrix = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(vertices, vertices))
    _, component = scipy_components(matrix, directed=False)
    smallest = np.full(vertices, vertices)
    np.minimum.at(smallest, component, np.arange(vertices))
    return smallest[component].astype(np.uint32)


def graph(kind, vertices):
    rng = np.random.default_rng(vertices)
    order = rng.permutation(vertices)
    if kind == "chain":
        return np.stack([order[:-1], order[1:]], axis=1)
    if kind == "chain in order":
        return np.stack([np.arange(vertices - 1), np.arange(1, vertices)], axis=1)
    if kind == "star":
        return np.stack([np.full(vertices - 1, order[0]), order[1:]], axis=1)
    if kind == "loops and twins":
        return np.repeat(np.stack([order[:9], order[:9]], axis=1), 3, axis=0)
    return rng.integers(0, vertices, (int(vertices * {"sparse": 0.4, "dense": 3.0, "none": 0}[kind]), 2))


@pytest.mark.parametrize("kind", ["sparse", "dense", "none", "chain", "chain in order", "star", "loops and twins"])
def test_components_are_those_of_scipy(kind, backend):
    vertices = smaller(backend, 60, 3000)
    edges = graph(kind, vertices)
    found = components.solve(vertices, edges, backend)
    assert found.tobytes() == from_scipy(vertices, edges).tobytes()


def test_a_graph_without_vertices_has_no_components(backend):
    assert components.solve(0, np.zeros((0, 2), np.int64), backend).tolist() == []
    assert components.solve(1, np.zeros((0, 2), np.int64), backend).tolist() == [0]


@pytest.mark.parametrize("edge", [(0, 3), (-1, 0)])
def test_an_edge_beyond_the_vertices_is_refused(edge):
    with pytest.raises(ValueError, match="an edge leads beyond the 3 vertices"):
        components.solve(3, np.array([edge]))


def test_no_schedule_changes_a_pass():
    assert components.hook.program.determinism == "proved"
    assert components.shorten.program.determinism == "proved for grids with one workgroup along y and z"
    words = np.arange(8, dtype=np.uint32)
    seen = reference.run(
        components.hook.program, inputs=[words, words[::-1].copy(), words, words], grid=(1, 1, 1), detect_races=True
    )
    assert seen.races == ()


def test_a_long_chain_takes_few_passes(monkeypatch):
    passes = []
    plain = components.shorten.on("cpu")

    class Counting:
        def on(self, backend):
            return lambda labels: passes.append(0) or plain(labels)

    monkeypatch.setattr(components, "shorten", Counting())
    edges = graph("chain", 20_000)
    assert set(components.solve(20_000, edges, "cpu").tolist()) == {0}
    assert len(passes) < 20


# ---- as programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, says",
    [(mandelbrot, "stay for 500 steps"), (components, "20000 vertices, 12000 edges")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_example_runs_as_a_program(module, says, monkeypatch, capsys):
    monkeypatch.setenv("VYRE_BACKEND", "cpu")
    assert module.main() == 0
    printed = capsys.readouterr().out
    assert says in printed
    label, checksum = printed.splitlines()[-1].split()
    assert label == "blake3"
    assert len(bytes.fromhex(checksum)) == 16
