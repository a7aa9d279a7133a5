"""Every source of an f32 with every operator on compiled backends: do all give the bytes of the reference?

    python bench/float_sweep.py --backends cpu,opencl,wgpu     a table
    python bench/float_sweep.py --backends cuda,opencl:nvidia,wgpu:nvidia --json     devices by a part of their name; as
                                                  JSON, also written to bench/results/float_sweep.json

The programs are those of `vyre.conform.float_sweep`: what a compiler that forgets about subnormals would get wrong.
Exit status 1: a difference.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from typing import Any

from agree import Way, expected, opener, result, ways_of
from record import record

from vyre.conform.float_sweep import WAYS, full_cases
from vyre.errors import UnsupportedFeature

SHOWN = 50
"""Differences that a report spells out."""


def sweep(name: str, all_ways: bool, sources: str, seconds: float) -> dict[str, Any]:
    """The report on one backend."""
    device, open_backend = opener(name)
    ways: dict[str, Way] = ways_of(open_backend)
    chosen = list(ways) if all_ways else ["by itself"]
    facts = ways["by itself"].backend.capability
    runs: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    differences: list[str] = []
    expressions = programs = 0
    start = time.perf_counter()
    for case in (case for way in WAYS if sources in way[0] for case in full_cases(*way)):
        if time.perf_counter() - start > seconds:
            break
        if lacking := {"f16", "bf16"} & {t.name for t in case.types} - set(facts.types):
            refused[", ".join(sorted(lacking))] += 1
            continue
        programs += 1
        expressions += len(case.labels)
        for one in case.runs:
            wanted = expected(one)
            for way in chosen:
                found = result(ways[way], one)
                runs[way] += 1
                if isinstance(found, UnsupportedFeature):
                    refused[found.message] += 1
                elif isinstance(found, str) or isinstance(wanted, str):
                    differences.append(f"{way}: {case.name}: {found}")
                else:
                    differences += [f"{way}: {line}" for line in case.differences(found, wanted)]
    return {
        "device": device,
        "exactness": dict(facts.exactness),
        "facts": {k: v for k, v in facts.extras.items() if isinstance(v, str | bool | int)},
        "programs": programs,
        "expressions": expressions,
        "runs": dict(runs),
        "refused": dict(refused),
        "different": len(differences),
        "differences": differences[:SHOWN],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", default="cpu", help="ids, separated by commas; id:name for a certain device")
    parser.add_argument("--all-ways", action="store_true", help="also without improvements, flushing in software ...")
    parser.add_argument("--sources", default="", help="only sources whose name contains this")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time for each backend")
    parser.add_argument("--json", action="store_true", help="print JSON and write bench/results/<name>.json")
    parser.add_argument("--name", default="float_sweep", help="of the file")
    options = parser.parse_args()
    reports = {
        name: sweep(name, options.all_ways, options.sources, options.seconds) for name in options.backends.split(",")
    }
    if options.json:
        print(record(options.name, {"backends": reports}))
    else:
        for name, r in reports.items():
            print(f"{name}, {r['device']}: {r['programs']} programs, {r['expressions']} expressions,"
                  f" {sum(r['runs'].values())} runs, {r['different']} different, {r['seconds']} s")  # fmt: skip
            print(*(f"  {line}" for line in r["differences"]), sep="\n", end="\n" if r["differences"] else "")
            print(*(f"  refused: {why} ({n})" for why, n in r["refused"].items()), sep="\n")
    return 1 if any(r["different"] for r in reports.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
