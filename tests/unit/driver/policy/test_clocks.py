"""No clock decides: however it ticks, processes choose the same, find the same code, and give the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ....support import cached_kernels

SCRIPT = """
import json, random, sys, time
how, noise = sys.argv[1], random.Random(sys.argv[2])
plain = time.perf_counter_ns
def stepped(): return plain() // 65_536 * 65_536
def noisy(): return plain() + noise.randrange(10**9)
time.perf_counter_ns = {"stepped": stepped, "noisy": noisy, "plain": plain}[how]
time.perf_counter = lambda: time.perf_counter_ns() / 1e9

import vyre, cached_kernels
from vyre.driver.guard.compile import cache_key, explain


said = {}
for id in sys.argv[3:]:
    guard, program = vyre.acquire(id), cached_kernels.program(2)
    pipeline = vyre.compile(program, backend=guard)
    for _ in range(20):
        found = bytes(pipeline.dispatch([cached_kernels.X])[0])
        timed = pipeline.dispatch_timed([cached_kernels.X])
        assert bytes(timed.outputs[0]) == found
    told = explain(pipeline, [cached_kernels.X])
    choices = {d.what: d.choice for d in told.decisions if d.what not in ("cache", "code")}
    said[id] = [choices, cache_key(guard, program).digest().hex(), found.hex()]
    guard.shutdown()
print(json.dumps(said))
"""


def said(folder, how, seed, backends):
    environ = {**os.environ, "VYRE_CACHE": "on", "VYRE_CACHE_DIR": str(folder)}
    environ["PYTHONPATH"] = str(Path(cached_kernels.__file__).parent)
    words = [sys.executable, "-c", SCRIPT, how, str(seed), *backends]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.check
@pytest.mark.row("T11", "T12")
def test_processes_with_noisy_and_with_coarse_clocks_choose_the_same_and_share_their_code(tmp_path):
    from vyre.driver.selection.registry import registered_backends_by_precedence

    here = [r.id for r in registered_backends_by_precedence() if r.unavailable() is None and r.id != "reference"]
    wanted = said(tmp_path, "plain", 0, here)
    assert set(wanted) == set(here)
    assert all(len(choices) > 5 for choices, _, _ in wanted.values())
    for how, seed in (("noisy", 1), ("noisy", 2), ("stepped", 0)):
        assert said(tmp_path, how, seed, here) == wanted
