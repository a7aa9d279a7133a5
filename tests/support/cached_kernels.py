"""A process that compiles some programs on a backend, runs them, and says where each came from.

    python cached_kernels.py BACKEND COUNT [FIRST]     COUNT programs, the first of them number FIRST

It prints one JSON document: `tiers`, a digest of all results, how often the backend compiled, and what the disk tier
counted. With `VYRE_TEST_GO`, it begins when a file of that name is there.
"""

import hashlib
import json
import os
import re
import sys
import time

import numpy as np

import vyre
from vyre import In, Out, const, f32, gid
from vyre.driver.guard.compile import compile_with_telemetry

X = np.linspace(-3, 3, 500, dtype=np.float32)


@vyre.kernel(workgroup=64)
def curve(x: In[f32], out: Out[f32], *, k: const = 1):
    if gid.x < len(out):
        out[gid.x] = vyre.exp(x[gid.x] * 0.25) * f32(k) + x[gid.x]


def program(k):
    return curve.specialize(k=k)


def report(backend, count, first=0):
    guard = vyre.acquire(backend)
    calls, compile_native = [], guard.inner.compile_native
    guard.inner.compile_native = lambda *args: calls.append(args) or compile_native(*args)
    tiers, results, digests = [], hashlib.sha256(), []
    for k in range(first, first + count):
        build = compile_with_telemetry(guard, program(k))
        tiers.append(build.tier)
        outputs = bytes(build.pipeline.dispatch([X.tobytes()])[0])
        digests.append(hashlib.sha256(outputs).hexdigest())
        results.update(outputs)
    disk = re.compile("vyre_pipeline_cache_disk_(.*)_total")
    counts = {m[1]: n for name, n in guard.pipelines.metrics().items() if (m := disk.fullmatch(name))}
    return {
        "tiers": tiers,
        "results": results.hexdigest(),
        "each": digests,
        "compiled": len(calls),
        "disk": counts,
    }


if __name__ == "__main__":
    if (go := os.environ.get("VYRE_TEST_GO")) is not None:
        vyre.acquire(sys.argv[1])
        print("ready", flush=True)
        while not os.path.exists(go):
            time.sleep(0.001)
    print(json.dumps(report(sys.argv[1], *map(int, sys.argv[2:]))))
