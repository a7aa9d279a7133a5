"""The launches of the cuda backend in an older checkout and in this one, in turns: did the host's part become slower?

    python bench/cuda_turns.py OLDER --commit 6a09e12 --turns 5      OLDER holds src/ and bench/ of that commit
    python bench/cuda_turns.py OLDER --commit 6a09e12 --json         also written to bench/results/cuda_turns.json

Each turn is a process of `bench/cuda.py --rows ...` of each checkout, in random order, so that what slows the machine
slows both. A row has the median over turns of our time, and of our speed in terms of each peer's; `new over old` is the
median of the ratio of the two times within a turn, with its smallest and largest.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

from record import HERE, record

ROW = re.compile(r"^(?P<row>\S.{20}) (?P<peer>\S.{22}) +(?P<ours>[\d.]+) +(?P<theirs>[\d.]+) +(?P<ratio>[\d.]+) *\[")


def measured(checkout: Path, rows: str) -> dict[str, tuple[float, float]]:
    """Our microseconds and the ratio, by row and peer."""
    path = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(checkout / "bench" / "cuda.py"), "--rows", rows]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    found = {
        f"{m['row'].strip()} / {m['peer'].strip()}": (float(m["ours"]), float(m["ratio"]))
        for m in map(ROW.match, done.stdout.splitlines())
        if m is not None
    }
    if not found:
        raise SystemExit(f"{checkout} measured nothing: {(done.stdout + done.stderr)[-1000:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("older", type=Path)
    parser.add_argument("--commit", required=True, help="of the older checkout")
    parser.add_argument("--rows", default="launch,batch,trip")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    checkouts = {"old": args.older.resolve(), "new": HERE.parent.resolve()}
    turns: list[dict[str, dict[str, tuple[float, float]]]] = []
    for k in range(args.turns):
        order = random.sample(sorted(checkouts), 2)
        turns.append({name: measured(checkouts[name], args.rows) for name in order})
        print(f"turn {k + 1} of {args.turns}", file=sys.stderr, flush=True)
    rows = []
    for name in (n for n in turns[0]["new"] if all(n in t["old"] and n in t["new"] for t in turns)):
        quotients = [t["new"][name][0] / t["old"][name][0] for t in turns]
        line: dict[str, object] = {"row": name}
        for side in ("old", "new"):
            line[f"{side} us"] = statistics.median(t[side][name][0] for t in turns)
            line[f"{side} speed over peer"] = statistics.median(t[side][name][1] for t in turns)
        rows.append(line | {"new over old": statistics.median(quotients), "range": [min(quotients), max(quotients)]})
        print(" ".join(f"{k}: {v:.3f}" if isinstance(v, float) else f"{k}: {v}" for k, v in rows[-1].items()))
    if args.json:
        record("cuda_turns", {"older_commit": args.commit, "turns": args.turns, "rows": rows})


if __name__ == "__main__":
    main()
