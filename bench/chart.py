"""Draw the recorded speeds against their peers: python bench/chart.py

Reads bench/results/cpu.json and cuda.json, and writes docs/assets/bench-{cpu,cuda}.svg. One bar for each row: our speed
in terms of the best peer's, the line of its interval of 95 %, and who that peer is. What misses its goal is drawn so.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
ASSETS = ROOT / "docs" / "assets"
LEFT, RIGHT, TOP, STEP, BAR = 230, 170, 58, 30, 16
TITLES = {
    "launch": "launch, time of the host",
    "launch, wait": "launch and wait",
    "batch of 32": "32 launches, time of the host",
    "batch of 32, wait": "32 launches and wait",
    "xor": "u32 xor, 256 M",
    "workgroups of 1": "a loop, workgroups of 1",
    "sum": "f32 sum, 256 M",
    "scan": "u32 prefix sum, 256 M",
    "scan, f32": "f32 prefix sum, 256 M",
    "histogram": "256 bins of 256 MB",
    "host, ordinary": "host to host, 64 MB",
    "host, pinned": "host to host, pinned",
    "trip, 64 words": "host to host, 64 words",
    "trip, 4096 words": "host to host, 4096 words",
    "black_scholes": "Black-Scholes, 64 M, exact",
    "black_scholes, ulp 4": "Black-Scholes, 4 ulp allowed",
}
SCALE = 92
"""Width of a doubling."""
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328; }
  .head { font-weight: 600; font-size: 15px; } .small { font-size: 11.5px; fill: #59636e; }
  .met { fill: #2f8f6b; } .missed { fill: #c2762b; } .grid { stroke: #d1d9e0; } .one, .range { stroke: #1f2328; }
  .range { stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } .grid { stroke: #3d444d; } .one, .range { stroke: #e6edf3; }
    .met { fill: #3fa27c; } .missed { fill: #d68a3c; }
  }
"""


@dataclass(frozen=True)
class Bar:
    title: str
    ratio: float
    low: float
    high: float
    peer: str
    goal: float | None

    @property
    def met(self) -> bool:
        return self.high >= (self.goal or 1.0)


def cpu_bars(found: dict[str, Any]) -> list[Bar]:
    rows = [r for r in found["rows"].values() if "ratio" in r]
    return [Bar(r["title"], r["ratio"], *r["interval"], r["best_peer"], r["goal"] or None) for r in rows]


def cuda_bars(found: dict[str, Any]) -> list[Bar]:
    """The best peer of each row, that is, the one that ours compares worst with."""
    best: dict[str, dict[str, Any]] = {}
    for r in found["rows"]:
        if "ratio" in r and r["ratio"] < best.get(r["row"], {"ratio": math.inf})["ratio"]:
            best[r["row"]] = r
    return [Bar(TITLES.get(name, name), r["ratio"], *r["interval"], r["peer"], r["goal"]) for name, r in best.items()]


def svg(bars: list[Bar], heading: str, below: str) -> str:
    """The chart; a logarithmic axis, so that twice and half are equally far from one."""
    first = math.floor(math.log2(min(min(b.low for b in bars), 0.5)))
    last = math.ceil(math.log2(max(max(b.high for b in bars), 2)))
    scale = min(SCALE, 560 / (last - first))

    def x(value: float) -> float:
        return round(LEFT + (math.log2(value) - first) * scale, 1)

    width, height = round(x(2.0**last) + RIGHT), TOP + STEP * len(bars) + 40
    end = TOP + STEP * len(bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(heading)}">',
        f"<style>{STYLE}</style>",
        f'<text class="head" x="12" y="24">{escape(heading)}</text>',
        f'<text class="small" x="12" y="42">{escape(below)}</text>',
    ]
    for power in range(first, last + 1):
        at = x(2.0**power)
        label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        parts.append(f'<line class="{"one" if power == 0 else "grid"}" x1="{at}" y1="{TOP}" x2="{at}" y2="{end}"/>')
        parts.append(f'<text class="small" x="{at}" y="{end + 18}" text-anchor="middle">{label}</text>')
    for k, b in enumerate(bars):
        y = TOP + STEP * k + (STEP - BAR) // 2
        middle = y + BAR / 2
        start, stop = sorted((x(1.0), x(b.ratio)))
        kind = "met" if b.met else "missed"
        said = f"{b.ratio:.2f} x {b.peer}" + ("" if b.met or not b.goal else f" (goal {b.goal:.2f})")
        parts += [
            f'<text x="{LEFT - 12}" y="{middle + 4.5}" text-anchor="end">{escape(b.title)}</text>',
            f'<rect class="{kind}" x="{start}" y="{y}" width="{round(max(stop - start, 1.5), 1)}" height="{BAR}"/>',
            f'<line class="range" x1="{x(b.low)}" y1="{middle}" x2="{x(b.high)}" y2="{middle}"/>',
            f'<text class="small" x="{max(x(b.high), x(1.0)) + 8}" y="{middle + 4}">{escape(said)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def drawings() -> dict[str, str]:
    """The charts of all records that are there, by file name."""
    found = {}
    for name, bars in (("cpu", cpu_bars), ("cuda", cuda_bars)):
        source = RESULTS / f"{name}.json"
        if not source.exists():
            continue
        told = json.loads(source.read_text("utf-8"))
        machine = told["device"] if "device" in told else f"{told['machine']}, {told['cores']} cores"
        heading = f"{name} backend: speed against the fastest of its peers (1 = as fast)"
        below = f"{machine}, {told['date'][:10]}, commit {told['commit'][:7]}; thin lines: intervals of 95 %"
        found[f"bench-{name}.svg"] = svg(bars(told), heading, below)
    return found


def main() -> None:
    for name, text in drawings().items():
        (ASSETS / name).write_text(text, "utf-8")
        print(f"wrote {(ASSETS / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
