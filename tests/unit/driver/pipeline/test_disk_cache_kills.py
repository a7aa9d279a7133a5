"""Processes that are killed while they compile leave a sound cache; readers see whole entries only."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vyre.driver.pipeline.store import DiskPipelineCache

from ....support import cached_kernels
from .test_disk_cache import child, environ, key

SCRIPT = Path(cached_kernels.__file__)
WORKERS, PROGRAMS = 4, 200
LONG_S = 1200
"""A busy machine compiles 200 programs in minutes."""
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")

WORK = """
import os, random, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import vyre, cached_kernels
from vyre.backends.cpu.build import emitted_text
from vyre.driver.guard.compile import compile_with_telemetry
emitted_text(cached_kernels.program(0))
x = cached_kernels.X

def work(source):
    while True:
        guard = vyre.acquire("cpu")
        for k in source.sample(range(int(sys.argv[2])), 8):
            built = compile_with_telemetry(guard, cached_kernels.program(k))
            found = np.frombuffer(built.pipeline.dispatch([x])[0], np.float32)
            assert np.allclose(found, np.exp(x * 0.25) * k + x, rtol=1e-4), f"program {k} from {built.tier} is another"
        guard.shutdown()

for line in sys.stdin:
    word, number = line.split()
    if word == "reap":
        print(os.waitstatus_to_exitcode(os.waitpid(int(number), 0)[1]), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        try:
            work(random.Random(int(number)))
        finally:
            os._exit(1)  # it would go on for ever
    print(pid, flush=True)
"""
"""Starts a process for each line "start SEED": a fork of one that has loaded all it needs, and opened nothing."""


class Workers:
    """So many processes that compile at once."""

    def __init__(self, folder):
        words = [sys.executable, "-c", WORK, str(SCRIPT.parent), str(PROGRAMS)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.parent = subprocess.Popen(words, env=environ(folder), **pipes)
        self.running = []
        for seed in range(WORKERS):
            self.start(seed)

    def ask(self, *words):
        self.parent.stdin.write(" ".join(map(str, words)) + "\n")
        self.parent.stdin.flush()
        return int(self.parent.stdout.readline())

    def start(self, seed):
        self.running.append(self.ask("start", seed))

    def kill(self, at):
        pid = self.running.pop(at)
        os.kill(pid, signal.SIGKILL)
        assert self.ask("reap", pid) == -signal.SIGKILL, "it ended by itself: what it raised stands above"

    def end(self):
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        self.parent.communicate()


def killed(folder, kills, seed):
    """So many processes of several that compile at once are killed, each at a random moment."""
    source = random.Random(seed)
    store = DiskPipelineCache(folder / "pipelines", readonly=False)
    workers = Workers(folder)
    try:
        for n in range(kills):
            time.sleep(source.uniform(0, 0.3))
            workers.kill(source.randrange(WORKERS))
            if n % 10 == 9:
                sound(folder)
                with store.database().writing() as connection:  # so that there is something to compile
                    connection.execute("DELETE FROM entries WHERE rowid % 2 = ?", (n // 10 % 2,))
            workers.start(WORKERS + n)
    finally:
        workers.end()
        store.database().close()


def sound(folder):
    """No row is damaged, and neither is the file."""
    store = DiskPipelineCache(folder / "pipelines", readonly=False)
    assert store.verify() == []
    with store.database().borrowed() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    counts = dict(store.summary().counts)
    assert counts["quarantined"] == 0
    store.database().close()
    return counts


def survives(folder, kills, seed):
    """What the cache counted meanwhile."""
    plain = child(folder / "plain", "cpu", PROGRAMS, timeout=LONG_S)
    killed(folder, kills, seed)
    counts = sound(folder)
    after = child(folder, "cpu", PROGRAMS, timeout=LONG_S)
    assert after["each"] == plain["each"]
    assert child(folder, "cpu", PROGRAMS, timeout=LONG_S)["tiers"] == ["disk"] * PROGRAMS
    return {"counts": counts, "loaded in the end": after["tiers"].count("disk")}


@pytest.mark.check
@pytest.mark.timeout(1200)
def test_processes_killed_while_they_compile_leave_a_sound_cache(tmp_path):
    survives(tmp_path, kills=30, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_processes_killed_while_they_compile_leave_a_sound_cache(tmp_path):
    survives(tmp_path, kills=1000, seed=2)


WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.unit.driver.pipeline.test_disk_cache import key
from vyre.driver.pipeline.store import DiskPipelineCache
store = DiskPipelineCache(Path(sys.argv[2]), readonly=False)
print("ready", flush=True)
for n in range(int(sys.argv[4])):
    store.save(key(), sys.argv[3].encode() * 5000)
"""


@pytest.mark.check
@pytest.mark.row("T1", "A-DC-11")
def test_who_reads_while_others_write_sees_one_of_them_whole(tmp_path):
    folder = tmp_path / "cache" / "pipelines"
    root = str(Path(__file__).parents[4])
    words = [sys.executable, "-c", WRITE, root, str(folder)]
    pipes = {"stdout": subprocess.PIPE, "text": True, "cwd": root}
    running = [subprocess.Popen([*words, letter, "40"], env={**os.environ}, **pipes) for letter in "abcdefgh"]
    reader, seen = DiskPipelineCache(folder, readonly=False), set()
    try:
        for process in running:
            assert process.stdout.readline() == "ready\n"
        while any(process.poll() is None for process in running):
            found = reader.load(key())
            reader.give_up(key())
            if found is not None:
                assert (len(found), len(set(found))) == (5000, 1)
                seen.add(found[:1])
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert [process.returncode for process in running] == [0] * 8
    assert reader.load(key()) is not None
    assert reader.summary().counts.get("quarantined", 0) == 0
    assert reader.metrics()["vyre_pipeline_cache_disk_errors_total"] == 0
    reader.database().close()
