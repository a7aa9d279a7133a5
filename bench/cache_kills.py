"""Processes that compile at once are killed at random moments: is the cache still sound, and no wrong byte served?

    python bench/cache_kills.py --kills 1000 --json    bench/results/cache_kills.json

Four processes at a time compile, store, load and run 200 programs of the cpu backend in random order. After every tenth
kill the database is opened, checked by SQLite, and every entry against its digest; at the end each program's results
are compared with those of a cache that nothing was killed over. `make soak` runs the same; exit status 1: not sound.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from record import HERE, record

sys.path.insert(0, str(HERE.parent))


def main() -> int:
    from tests.unit.driver.pipeline import test_disk_cache_kills as kills

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    begun, problem = time.monotonic(), None
    with tempfile.TemporaryDirectory(prefix="vyre-kills-") as folder:
        place = Path(folder)
        try:
            found = kills.survives(place, options.kills, options.seed)
        except AssertionError as e:
            problem, found = str(e)[:2000], {}
    result = {
        "kills": options.kills,
        "seed": options.seed,
        "processes": kills.WORKERS,
        "programs": kills.PROGRAMS,
        "seconds": round(time.monotonic() - begun),
        "load": round(os.getloadavg()[0], 1),
        "sound": problem is None,
        "problem": problem,
        **found,
    }
    print(record("cache_kills", result) if options.json else result)
    return 0 if problem is None else 1


if __name__ == "__main__":
    raise SystemExit(main())
