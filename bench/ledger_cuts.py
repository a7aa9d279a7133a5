"""Does the test that the ledger names for a row fail when the row's caller no longer uses the name?

    python bench/ledger_cuts.py                  every row of docs/coverage.toml that has a caller, and a record
    python bench/ledger_cuts.py Resource launch  these rows only, without a record

For each row the package is copied, every use of the name inside its caller raises instead, and the row's test runs
against the copy. A row whose test does anything but fail there is a survivor: its test proves nothing about its caller.
A test that passes nowhere proves nothing either, so each is run once without a cut. Exit status 1: a survivor.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

from ledger import ROOT, outcome, rows, run
from record import record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these rows")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    chosen = [row for row in rows() if not asked.names or row.name in asked.names]
    if run(sorted({row.test for row in chosen}), ROOT / "src") != "passes":
        print("the tests of the ledger do not pass as they are. Fix: run them with `pytest` first")
        return 1
    survivors = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        for done, (row, does) in enumerate(zip(chosen, pool.map(outcome, chosen), strict=True), 1):
            print(f"{done}/{len(chosen)}  {does:>15}  {row.name}  {row.test}", flush=True)
            if does != "fails":
                survivors.append(row.name)
    if not asked.names:
        record("ledger_cuts", {"rows": len(chosen), "survivors": survivors})
    print(f"{len(chosen)} rows, {len(survivors)} survivors: {', '.join(survivors) or 'none'}")
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
