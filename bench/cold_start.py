"""From the start of a process to the first result of saxpy, where an earlier process compiled it.

    make .bench/.installed && .bench/bin/python bench/cold_start.py --json

Each contender is a script of its own that makes its arrays, calls saxpy once and says when the result was there; its
compiler may keep what it likes in a cache, which a first, unmeasured process fills. Then rounds: every contender in
random order, by the clock and by the processor's time of all threads. A ratio is a contender's median over ours, with
a bootstrap interval of 95 %. Goal: none is shorter than ours but NumPy, which compiles nothing. Besides, in a process
each: how long `vyre.compile` takes for saxpy where the compiler is loaded and the database open; at most 3 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from record import record

SIZES = (1000, 1_000_000)
RESAMPLES = 2000
SLOWEST_S = 600
CLEAR, CLEAR_ROUNDS = 5, 2
"""A contender that always took so many times our longest is left out after so many rounds."""
HEAD = "import sys\nimport numpy as np\n"
ARRAYS = "n = int(sys.argv[1])\nx = np.linspace(0, 1, n, dtype=np.float32)\ny = np.ones(n, np.float32)\n"
TAIL = """
import time
there, busy = time.monotonic_ns(), time.process_time_ns()
import json
assert np.allclose(z, 2.0 * x + y)
print(json.dumps([there, busy]))
"""
SCRIPTS = {
    "numpy": HEAD + ARRAYS + "z = np.float32(2.0) * x + y\n",
    "vyre": HEAD
    + """import vyre
from vyre import In, Out, f32, gid

@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]

"""
    + ARRAYS
    + "z = saxpy(2.0, x, y)\n",
    "numba cache=True": HEAD
    + """import numba

@numba.njit(cache=True)
def saxpy(alpha, x, y):
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = alpha * x[i] + y[i]
    return out

"""
    + ARRAYS
    + "z = saxpy(np.float32(2.0), x, y)\n",
    "torch.compile": HEAD
    + """import torch

@torch.compile
def saxpy(alpha, x, y):
    return alpha * x + y

"""
    + ARRAYS
    + "z = saxpy(2.0, torch.from_numpy(x), torch.from_numpy(y)).numpy()\n",
    "jax persistent cache": HEAD
    + """import jax

@jax.jit
def saxpy(alpha, x, y):
    return alpha * x + y

"""
    + ARRAYS
    + "z = np.asarray(saxpy(np.float32(2.0), x, y))\n",
    "taichi offline cache": HEAD
    + """import os
import taichi as ti
ti.init(arch=ti.cpu, offline_cache=True, offline_cache_file_path=os.environ["TAICHI_CACHE"], log_level=ti.ERROR)

@ti.kernel
def saxpy(alpha: ti.f32, x: ti.types.ndarray(dtype=ti.f32, ndim=1), y: ti.types.ndarray(dtype=ti.f32, ndim=1),
          out: ti.types.ndarray(dtype=ti.f32, ndim=1)):
    for i in x:
        out[i] = alpha * x[i] + y[i]

"""
    + ARRAYS
    + "z = np.empty_like(x)\nsaxpy(2.0, x, y, z)\n",
}

FROM_DISK_MS = 3.0
FROM_DISK = """import json, time
import vyre
from vyre import In, Out, f32, gid

@vyre.kernel(workgroup=256)
def other(x: In[f32], out: Out[f32]) -> None:
    out[gid.x] = x[gid.x] + 1.0

@vyre.kernel(workgroup=256)
def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]) -> None:
    i = gid.x
    if i < len(out):
        out[i] = alpha * x[i] + y[i]

vyre.compile(other.program, backend="cpu")
program = saxpy.program
start, busy = time.monotonic_ns(), time.process_time_ns()
vyre.compile(program, backend="cpu")
print(json.dumps([start, time.monotonic_ns(), (time.process_time_ns() - busy) / 1e6]))
"""


def from_disk(script: Path, env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds in which a pipeline is there: on the clock, and of the processor."""
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, check=True)
    start, end, busy = json.loads(done.stdout)
    return (end - start) / 1e6, busy


def package(name: str) -> str:
    return name.split()[0].split(".")[0]


def environ(folder: Path) -> dict[str, str]:
    """Every cache in a folder of its own, and bytecode where Python keeps it."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE" and not k.startswith("VYRE_")}
    return kept | {
        "VYRE_CACHE_DIR": str(folder / "vyre"),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
        "TAICHI_CACHE": str(folder / "taichi"),
    }


def once(script: Path, size: int, env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds to the first result: on the clock, and of the processor."""
    start = time.monotonic_ns()
    words = [sys.executable, str(script), str(size)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SLOWEST_S, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    there, busy = json.loads(done.stdout.splitlines()[-1])
    return (there - start) / 1e6, busy / 1e6


def is_clear(theirs: list[tuple[float, float]], ours: list[tuple[float, float]]) -> bool:
    """Whether a contender is so much slower that a few rounds are enough."""
    return len(theirs) >= CLEAR_ROUNDS and min(theirs) > (CLEAR * max(ours)[0], 0)


def ratio(theirs: list[float], ours: list[float]) -> list[float]:
    """The ratio of medians, and the bounds of its 95 % interval."""
    draw = random.Random(8)
    found = sorted(
        statistics.median(draw.choices(theirs, k=len(theirs))) / statistics.median(draw.choices(ours, k=len(ours)))
        for _ in range(RESAMPLES)
    )
    at = (len(found) * 25 // 1000, len(found) * 975 // 1000)
    return [round(statistics.median(theirs) / statistics.median(ours), 2), *(round(found[k], 2) for k in at)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout and in bench/results")
    options = parser.parse_args()
    order, absent = random.Random(5), {}
    with tempfile.TemporaryDirectory(prefix="vyre-cold-start-") as name:
        folder, scripts = Path(name), {}
        env = environ(folder)
        for contender, text in SCRIPTS.items():
            if find_spec(package(contender)) is None:
                absent[contender] = "not installed"
                continue
            script = folder / f"saxpy_{package(contender)}.py"
            script.write_text(text + TAIL)
            try:
                first = {str(size): round(once(script, size, env)[0], 1) for size in SIZES}
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                absent[contender] = str(e)[:200]
                continue
            scripts[contender] = script
            print(f"{contender}: first processes {first} ms", file=sys.stderr)
        load = os.getloadavg()[0]
        script = folder / "from_disk.py"
        script.write_text(FROM_DISK)
        from_disk(script, env)  # compiles both
        loads = [from_disk(script, env) for _ in range(options.rounds)]
        times: dict[int, dict[str, list[tuple[float, float]]]] = {n: {c: [] for c in scripts} for n in SIZES}
        for round_ in range(options.rounds):
            turns = [(size, contender) for size in SIZES for contender in scripts]
            for size, contender in order.sample(turns, len(turns)):
                if not is_clear(times[size][contender], times[size]["vyre"]):
                    times[size][contender].append(once(scripts[contender], size, env))
            print(f"round {round_ + 1} of {options.rounds}", file=sys.stderr)
    rows: dict[str, dict[str, dict[str, object]]] = {}
    met = True
    for size, by_contender in times.items():
        ours = [list(column) for column in zip(*by_contender["vyre"], strict=True)]
        for contender, taken in by_contender.items():
            clock, busy = (list(column) for column in zip(*taken, strict=True))
            row = rows.setdefault(str(size), {})[contender] = {
                "rounds": len(taken),
                "median_ms": round(statistics.median(clock), 1),
                "least_ms": round(min(clock), 1),
                "processor_ms": round(statistics.median(busy), 1),
            }
            if contender != "vyre":
                row["times ours"] = by_clock = ratio(clock, ours[0])
                row["times ours, of the processor"] = ratio(busy, ours[1])
                met = met and (contender == "numpy" or by_clock[1] > 1)
    quick = statistics.median(clock for clock, _ in loads) <= FROM_DISK_MS
    result = {
        "cores": os.cpu_count(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "rounds": options.rounds,
        "versions": {package(c): metadata.version(package(c)) for c in scripts},
        "not measured": absent,
        "elements": rows,
        "pipeline from disk": {
            "median_ms": round(statistics.median(clock for clock, _ in loads), 2),
            "least_ms": round(min(clock for clock, _ in loads), 2),
            "processor_ms": round(statistics.median(busy for _, busy in loads), 2),
        },
        "goals met": {"shortest": met, "pipeline from disk": quick},
    }
    if options.json:
        print(record("cold_start", result))
    else:
        print(json.dumps(result, indent=2))
    return 0 if met and quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
