"""The examples run under a shadow of everything and under a share that logs, and nothing differs."""

import logging
import sys
from importlib import import_module

import numpy as np
import pytest

from vyre.driver import counters

from ...support.device_backends import registration_or_skip
from ...support.example_files import EXAMPLES, load

EDGES = np.array([[0, 1], [1, 2], [3, 4], [5, 5]])
SMALL = {
    "bfs": lambda m, on: m.search(7, EDGES, 0, on),
    "black_scholes": lambda m, on: m.solve(*m.market(40, seed=1), 0.03, on),
    "connected_components": lambda m, on: m.solve(7, EDGES, on),
    "crc32": lambda m, on: m.solve([b"", b"a", b"abc" * 30], on),
    "floyd_warshall": lambda m, on: m.solve(m.random_graph(9, 0.3, seed=1), on),
    "image_filter": lambda m, on: m.solve(m.drawing(16, 9), np.array(next(iter(m.FILTERS.values())), np.int32), on),
    "kmeans": lambda m, on: m.solve(points := m.clouds(30, 3, 2, seed=1), m.far_apart(points, 3), 5, on),
    "label_propagation": lambda m, on: m.connected_parts(7, EDGES, on),
    "life": lambda m, on: m.solve(np.eye(5, 32, dtype=np.uint8), 3, on),
    "mandelbrot": lambda m, on: m.solve(-2.2, 1.2, 0.3, (9, 12), 20, on),
    "multi_scan": lambda m, on: m.solve(b"a cat and a hat" * 9, [b"cat", b"at", b"hat "], on),
    "nbody": lambda m, on: m.solve(*m.ball(9, seed=1), 1 / 128, 3, on),
    "sha256": lambda m, on: m.solve([b"", b"abc" * 30], on),
    "spmv": lambda m, on: m.solve(*m.random_matrix(9, 11, 4, seed=1), np.ones(11, np.float32), on),
}
SETTINGS = pytest.mark.parametrize("setting", ["1", "0.01,log"])


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    registration_or_skip("cpu")
    monkeypatch.setenv("VYRE_BACKEND", "cpu")


@pytest.fixture
def shadow(monkeypatch, setting, caplog):
    """Under the setting, something is compared and all of it is the same; nothing that is sampled is skipped."""
    monkeypatch.setenv("VYRE_SHADOW", setting)
    monkeypatch.setenv("VYRE_SHADOW_TIMEOUT", "600")  # also on a machine that does much else
    before = counters.counters()
    with caplog.at_level(logging.WARNING, "vyre.shadow"):
        yield
    seen = {name: n - before[name] for name, n in counters.counters().items() if name.startswith("shadow_")}
    assert seen.pop("shadow_samples") > 0
    assert seen.pop("shadow_ns") > 0
    assert not any(seen.values()), seen
    assert [r.getMessage() for r in caplog.records if r.name == "vyre.shadow"] == []


def test_every_example_is_here():
    names = {path.stem for path in EXAMPLES.glob("*.py") if not path.stem.startswith("demo")}
    assert names == SMALL.keys()


@SETTINGS
@pytest.mark.parametrize("name", SMALL)
def test_an_example_gives_the_same_under_a_shadow(name, setting, request):
    module = load(name)
    plain = SMALL[name](module, "cpu")
    request.getfixturevalue("shadow")
    for a, b in zip(plain, SMALL[name](module, "cpu"), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.check
@pytest.mark.timeout(600)
@SETTINGS
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_as_a_program_under_a_shadow(name, setting, shadow):
    assert load(name).main() == 0


@pytest.mark.check
@pytest.mark.timeout(600)
@SETTINGS
def test_the_demo_runs_under_a_shadow(setting, shadow, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(EXAMPLES)
    names = [path.stem for path in EXAMPLES.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    demo = import_module("demo")
    assert demo.main(["--quick", "--json", "--backend", "cpu", "--output", str(tmp_path)]) == 0
