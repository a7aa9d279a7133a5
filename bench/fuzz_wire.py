"""Throw damaged and random bytes at the wire reader: verdicts, the slowest blob, the memory it took.

    python bench/fuzz_wire.py            100,000 mutations and 10,000 random blobs, a table
    python bench/fuzz_wire.py --json     the same as JSON, also written to bench/results/wire_fuzz.json

Four mutations in five are sealed again, so that they reach the parser. Exit status 1 means that an exception other than
WireError came out, that an accepted blob did not read back the same, or that a blob took over two seconds.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

from record import record

from vyre.conform.programs.wire_noise import corpus, judge, mutate, noise, seal
from vyre.foundation.formats.wire import decode, encode
from vyre.foundation.ir.nodes import Assign, Block, Expr, SubgroupLocalId
from vyre.foundation.ir.program import Program

MAX_SECONDS_PER_BLOB = 2.0


def blobs(rng: random.Random, mutations: int, noises: int) -> Iterator[tuple[str, bytes]]:
    good = corpus(rng)
    for k in range(mutations):
        blob = mutate(rng, good)
        if k % 5 and len(blob) >= 40:
            yield "sealed mutation", seal(blob)
        else:
            yield "plain mutation", blob
    for _ in range(noises):
        yield "random", noise(rng)


def dense_blob() -> bytes:
    """One full record of what weighs most in memory for its bytes: long chains of unary operators."""
    chain: Expr = SubgroupLocalId()
    for _ in range(60):
        chain = -chain
    return encode(Program.of_entry((), (1, 1, 1), [Block((Assign("", chain),) * 33_000)]))


def measure(seed: int, mutations: int, noises: int) -> dict[str, Any]:
    rng = random.Random(seed)
    verdicts: dict[str, Counter[str]] = {}
    failures: list[dict[str, str]] = []
    worst_s, worst_bytes, total_bytes = 0.0, 0, 0
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    for family, blob in blobs(rng, mutations, noises):
        start = time.perf_counter()
        try:
            verdict = judge(blob)
        except Exception as error:
            verdict = f"raised {type(error).__name__}"
        took = time.perf_counter() - start
        total_bytes += len(blob)
        if took > worst_s:
            worst_s, worst_bytes = took, len(blob)
        verdicts.setdefault(family, Counter())[verdict] += 1
        if verdict == "changed" or verdict.startswith("raised") or took > MAX_SECONDS_PER_BLOB:
            failures.append({"verdict": verdict, "seconds": f"{took:.3f}", "blob": blob.hex()})
    seconds = time.perf_counter() - begin
    rss_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    peak = 0
    tracemalloc.start()
    for _, blob in blobs(random.Random(seed + 1), min(mutations, 2000), min(noises, 500)):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        judge(blob)
        peak = max(peak, tracemalloc.get_traced_memory()[1] - before)
    tracemalloc.stop()

    dense = dense_blob()
    start = time.perf_counter()
    decode(dense)
    dense_s = time.perf_counter() - start
    tracemalloc.start()
    decode(dense)
    dense_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "seed": seed,
        "mutations": mutations,
        "random_blobs": noises,
        "seconds": round(seconds, 1),
        "mean_blob_bytes": round(total_bytes / (mutations + noises)),
        "verdicts": {family: dict(counts.most_common()) for family, counts in verdicts.items()},
        "worst_seconds_per_blob": round(worst_s, 4),
        "worst_blob_bytes": worst_bytes,
        "peak_bytes_per_blob": peak,
        "max_rss_growth_kib": rss_after - rss_before,
        "dense_blob": {
            "bytes": len(dense),
            "seconds": round(dense_s, 2),
            "peak_bytes": dense_peak,
            "peak_per_byte": round(dense_peak / len(dense), 1),
        },
        "failures": failures[:20],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=100_000)
    parser.add_argument("--random", type=int, default=10_000, dest="noises")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    result = measure(options.seed, options.mutations, options.noises)
    if options.json:
        print(record("wire_fuzz", result))
    else:
        for family, counts in result["verdicts"].items():
            print(f"{family:<16}", "  ".join(f"{name} {n}" for name, n in counts.items()))
        for name in ("seconds", "worst_seconds_per_blob", "peak_bytes_per_blob", "max_rss_growth_kib", "dense_blob"):
            print(f"{name:<24} {result[name]}")
        for failure in result["failures"]:
            print("FAILED", failure, file=sys.stderr)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
