"""The graph examples reach what plain Python finds, in one call, also on a device without a grid-wide barrier."""

import importlib.util
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vyre.backends.reference.backend import CAPABILITY, ReferenceBackend
from vyre.driver import counters
from vyre.driver.contract import BackendRegistration
from vyre.driver.selection.registry import isolated

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bfs, label_propagation = load("bfs"), load("label_propagation")


class Splitting(ReferenceBackend, contract=1):
    """No grid-wide barrier, and few workgroups per launch."""

    id = "splitting"
    capability = replace(CAPABILITY, grid_sync=False, max_workgroups_per_dimension=2)


@pytest.fixture(params=["whole", "split"])
def backend(request):
    if request.param == "whole":
        yield "reference"
        return
    with isolated(BackendRegistration(id="splitting", open=lambda device=None: Splitting())):
        yield "splitting"


def neighbours_of(vertices, edges):
    found = [set() for _ in range(vertices)]
    for a, b in edges.tolist():
        found[a].add(b)
        found[b].add(a)
    return found


def searched(around, source):
    """Distances from `source`, by a queue."""
    distance, queue = {source: 0}, deque([source])
    while queue:
        v = queue.popleft()
        for w in around[v] - distance.keys():
            distance[w] = distance[v] + 1
            queue.append(w)
    return distance


def graph(kind):
    rng = np.random.default_rng(3)
    match kind:
        case "random":
            return 200, rng.integers(0, 200, (230, 2))
        case "line":
            path = rng.permutation(150)
            return 150, np.stack([path[:-1], path[1:]], axis=1)
        case "apart":
            return 70, np.zeros((0, 2), np.int64)
    raise AssertionError(kind)


GRAPHS = pytest.mark.parametrize("kind", ["random", "line", "apart"])


@GRAPHS
def test_label_propagation_finds_the_connected_parts(kind, backend):
    vertices, edges = graph(kind)
    around = neighbours_of(vertices, edges)
    labels = label_propagation.connected_parts(vertices, edges, backend)
    assert labels.tolist() == [min(searched(around, v)) for v in range(vertices)]


@GRAPHS
def test_the_search_finds_distances_and_parents(kind, backend):
    vertices, edges = graph(kind)
    around = neighbours_of(vertices, edges)
    truth = searched(around, source=7)
    distance, parent = bfs.search(vertices, edges, 7, backend)
    assert distance.tolist() == [truth.get(v, bfs.UNSEEN) for v in range(vertices)]
    nearer = [min((w for w in around[v] if truth[w] < truth[v]), default=bfs.UNSEEN) for v in truth]
    assert [parent[v] for v in truth] == nearer
    assert all(parent[v] == bfs.UNSEEN for v in range(vertices) if v not in truth)


def test_a_search_ends_when_its_frontier_is_empty():
    vertices, edges = graph("random")
    before = counters.counters()
    with isolated(BackendRegistration(id="splitting", open=lambda device=None: Splitting())):
        distance, _ = bfs.search(vertices, edges, 7, "splitting")
    now = counters.counters()
    steps = int(distance[distance != bfs.UNSEEN].max())
    assert (
        now["split_passes"] - before["split_passes"] == steps + 2
    )  # one finds nobody, and one sees that nothing changed
    assert now["fixpoints_reached"] - before["fixpoints_reached"] == 1


@pytest.mark.parametrize("module", [bfs, label_propagation])
def test_an_example_runs_as_a_program(module, capsys):
    assert module.main() == 0
    assert "600 vertices" in capsys.readouterr().out
