"""The charts in the documentation are those of the recorded measurements."""

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def chart():
    spec = importlib.util.spec_from_file_location("bench_chart", ROOT / "bench" / "chart.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_chart"] = module  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_every_chart_is_drawn_from_its_record(chart):
    drawn = chart.drawings()
    assert drawn
    for name, text in drawn.items():
        assert (ROOT / "docs" / "assets" / name).read_text("utf-8") == text, "draw them again: python bench/chart.py"


def test_a_bar_tells_its_ratio_its_peer_and_what_it_missed(chart):
    bars = [chart.Bar("a & b", 2.0, 1.9, 2.1, "numba", 1.0), chart.Bar("c", 0.5, 0.4, 0.6, "torch", 0.95)]
    text = chart.svg(bars, "heading", "below")
    root = ElementTree.fromstring(text)
    said = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a & b", "2.00 x numba", "0.50 x torch (goal 0.95)"} <= set(said)
    kinds = [r.get("class") for r in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert kinds == ["met", "missed"]
    width = float(root.get("width"))
    assert all(0 <= float(line.get("x1")) <= float(line.get("x2")) <= width for line in root.iter() if line.get("x1"))


def test_a_row_of_several_peers_is_drawn_against_the_best_of_them(chart):
    rows = [
        {"row": "scan", "ratio": 2.7, "interval": [2.6, 2.8], "peer": "torch int64", "goal": 1.0},
        {"row": "scan", "ratio": 0.9, "interval": [0.8, 1.0], "peer": "torch int32", "goal": 1.0},
    ]
    (bar,) = chart.cuda_bars({"rows": rows})
    assert (bar.peer, bar.ratio, bar.met) == ("torch int32", 0.9, True)
