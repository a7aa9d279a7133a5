"""Does memory grow with the number of different programs? Resident bytes after 1,000 and after 10,000 of them.

    python bench/cpu_memory.py --json     also written to bench/results/cpu_memory.json

Exit status 1: more than 64 MiB between the two.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path

from record import record

from vyre.driver.selection.registry import acquire
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import InvocationId, Load, Store, lit
from vyre.foundation.ir.program import Program, read_write

ALLOWED = 64 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="write bench/results/cpu_memory.json")
    parser.add_argument("--programs", type=int, default=10_000)
    options = parser.parse_args()
    backend, i = acquire("cpu"), InvocationId(0)
    after: dict[int, int] = {}
    start = time.perf_counter()
    for k in range(options.programs):
        program = Program([read_write("n", 0, u32)], (4, 1, 1), [Store("n", i, Load("n", i) + lit(k))])
        (found,) = backend.dispatch(program, [(1).to_bytes(4, "little")])
        if int.from_bytes(bytes(found), "little") != 1 + k:
            raise SystemExit(f"program {k} gave {bytes(found)!r}")
        if (k + 1) in (options.programs // 10, options.programs):
            gc.collect()
            after[k + 1] = resident()
    first, last = after.values()
    report = {
        "resident_bytes": after,
        "growth_bytes": last - first,
        "allowed_bytes": ALLOWED,
        "ms_per_program": round((time.perf_counter() - start) / options.programs * 1e3, 2),
    }
    print(record("cpu_memory", report) if options.json else json.dumps(report, indent=2))
    return 1 if last - first > ALLOWED else 0


if __name__ == "__main__":
    raise SystemExit(main())
