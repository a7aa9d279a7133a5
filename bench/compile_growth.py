"""What a small program costs to compile, stage by stage, as it grows: which stage is worse than linear?

    python bench/compile_growth.py                  every family at n, 2n and 4n, with the growth exponent of each stage
    python bench/compile_growth.py sins loops       these families alone
    python bench/compile_growth.py --json           also written to bench/results/compile_growth.json

Each program is compiled in a process of its own, so that its peak of memory is its own. The exponent is the slope from
2n to 4n on a logarithmic scale: 1 is linear, 2 quadratic. Exit status 1: a stage of ours that takes more than
`WORTH_S` grows faster than `ALLOWED`.
"""

from __future__ import annotations

import argparse
import json
import linecache
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from record import record

ALLOWED = 1.4
WORTH_S = 0.25
BOUNDED = ("llvm", "determinism")
"""Stages with a limit: the compiler of the target by the steps that a program may have, and pairs of accesses."""

HEADER = "from vyre import *\n"


def kernel_text(lines: list[str], *, args: str = "x: In[f32], out: Out[f32]", before: str = "", wg: int = 64) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"{HEADER}{before}@kernel(workgroup={wg})\ndef grown({args}):\n{body}\n"


def sins(n: int) -> str:
    """One after another."""
    return kernel_text(["v = x[gid.x]", *["v = sin(v)"] * n, "out[gid.x] = v"])


def sins_apart(n: int) -> str:
    """Side by side."""
    return kernel_text(["v = x[gid.x]", "s = v", *(f"s = s + sin(v * {k + 1}.0)" for k in range(n)), "out[gid.x] = s"])


def loops(n: int) -> str:
    lines = ["v = x[gid.x]"]
    for k in range(n):
        lines += [f"for i{k} in range(u32(v)):", f"    v = v + x[i{k}]"]
    return kernel_text([*lines, "out[gid.x] = v"])


def branches(n: int) -> str:
    lines = ["v = x[gid.x]"]
    for k in range(n):
        lines += [f"if v > {k}.0:", f"    v = v * {k}.5 + x[{k}]"]
    return kernel_text([*lines, "out[gid.x] = v"])


def nested(n: int) -> str:
    """Blocks of eight branches, one inside the other."""
    lines = ["v = x[gid.x]"]
    for k in range(max(n // 8, 1)):
        lines += [f"{'    ' * d}if v > {k * 8 + d}.0:" for d in range(8)]
        lines += [f"{'    ' * 8}v = v + x[{k}]"]
    return kernel_text([*lines, "out[gid.x] = v"])


def barriers(n: int) -> str:
    """Pairs of a store and a load of shared memory, each behind a barrier."""
    lines = ["t = shared(f32, 64)", "v = x[gid.x]"]
    for _ in range(n):
        lines += ["t[lid.x] = v", "barrier()", "v = v + t[63 - lid.x]", "barrier()"]
    return kernel_text([*lines, "out[gid.x] = v"])


def live(n: int) -> str:
    """Values that live across a barrier."""
    lines = [f"v{k} = x[gid.x * {n} + {k}]" for k in range(n)]
    lines += ["barrier()", "s = 0.0", *(f"s = s + v{k}" for k in range(n))]
    return kernel_text([*lines, "out[gid.x] = s"])


def live_locals(n: int) -> str:
    """Locals that change on both sides of a barrier."""
    lines = [f"v{k} = x[gid.x * {n} + {k}]" for k in range(n)]
    lines += [f"v{k} = v{k} + 1.0" for k in range(n)]
    lines += ["barrier()", *(f"v{k} = v{k} * 2.0" for k in range(n)), "s = 0.0", *(f"s = s + v{k}" for k in range(n))]
    return kernel_text([*lines, "out[gid.x] = s"])


def accesses(n: int) -> str:
    return kernel_text([f"out[gid.x * {n} + {k}] = x[gid.x * {n} + {n - 1 - k}]" for k in range(n)])


def buffers(n: int) -> str:
    args = ", ".join([*(f"b{k}: In[f32]" for k in range(n)), "out: Out[f32]"])
    return kernel_text(["s = 0.0", *(f"s = s + b{k}[gid.x]" for k in range(n)), "out[gid.x] = s"], args=args)


def atomics(n: int) -> str:
    lines = [f"atomic_add(out, gid.x % {k + 7}, x[gid.x] + {k})" for k in range(n)]
    return kernel_text(lines, args="x: In[u32], out: InOut[u32]")


def expressions(n: int) -> str:
    """Long statements: sums of 40 terms."""
    terms = [f"x[gid.x + {k}] * {k}.5" for k in range(40)]
    return kernel_text([f"out[gid.x + {k}] = {' + '.join(terms)}" for k in range(max(n // 40, 1))])


def helpers(n: int) -> str:
    before = (
        "@device\ndef step(a: f32, b: f32) -> f32:\n    c = a * b\n    if c > 1.0:\n        c = c - a\n    return c\n"
    )
    return kernel_text(["v = x[gid.x]", *(f"v = step(v, {k}.5)" for k in range(n)), "out[gid.x] = v"], before=before)


def unrolled(n: int) -> str:
    return kernel_text(["v = x[gid.x]", f"for k in static_range({n}):", "    v = v * 1.5 + x[k]", "out[gid.x] = v"])


def matrix(n: int) -> str:
    """Many locals in one loop: a tile of results in registers."""
    lines = [f"c{k} = 0.0" for k in range(n)]
    lines += ["for i in range(len(x)):", "    a = x[i]", *(f"    c{k} = c{k} + a * x[i + {k}]" for k in range(n))]
    return kernel_text([*lines, *(f"out[gid.x * {n} + {k}] = c{k}" for k in range(n))])


FAMILIES: dict[str, tuple[Callable[[int], str], int]] = {
    "sins": (sins, 25),
    "sins_apart": (sins_apart, 25),
    "loops": (loops, 50),
    "branches": (branches, 100),
    "nested": (nested, 100),
    "barriers": (barriers, 100),
    "live": (live, 100),
    "live_locals": (live_locals, 100),
    "accesses": (accesses, 100),
    "buffers": (buffers, 100),
    "atomics": (atomics, 100),
    "expressions": (expressions, 400),
    "helpers": (helpers, 100),
    "unrolled": (unrolled, 250),
    "matrix": (matrix, 50),
}
"""What grows, and the smallest size."""


def program_of(name: str, n: int) -> Any:
    """The kernel of a family."""
    return program_from(FAMILIES[name][0](n), f"{name} {n}")


def program_from(text: str, name: str) -> Any:
    """The kernel `grown` of a text, which is there to be read as a file would be."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": name}
    exec(compile(text, file, "exec"), space)
    return space["grown"].program


def measure(name: str, n: int) -> dict[str, float]:
    """Seconds of the processor for each stage, and the peak of memory in MiB above what it was before."""
    from vyre.backends.cpu.build import Switches, soft_flush
    from vyre.backends.cpu.compile import compile_object
    from vyre.backends.cpu.devices import host as this_host
    from vyre.backends.cpu.emit.kernel import Target, emit
    from vyre.foundation.check.validate import validate
    from vyre.foundation.ir.report import Capabilities
    from vyre.foundation.meaning import mathlib
    from vyre.lower.from_program import build
    from vyre.lower.options import PASSES
    from vyre.lower.passes import RUN
    from vyre.lower.uniformity import mark_uniform

    host = this_host()
    compile_object("define void @f() {\n  ret void\n}\n")
    program_of("unrolled", 2)
    taken: dict[str, float] = {}
    start = time.process_time()

    def note(stage: str) -> None:
        nonlocal start
        now = time.process_time()
        taken[stage] = now - start
        start = time.process_time()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    program = program_of(name, n)
    note("front")
    validate(program)
    validate(program, Capabilities.everything())
    note("validate")
    program.determinism  # noqa: B018 - computed by asking
    note("determinism")
    program.fingerprint  # noqa: B018
    note("fingerprint")
    expanded = mathlib.expand(program)
    note("mathlib")
    kernel = build(expanded, soft_flush=soft_flush(program, host, Switches()))
    note("build")
    for one in PASSES:
        RUN[one](kernel)
        note(one)
    mark_uniform(kernel)
    note("uniform")
    emitted = emit(kernel, Target(width=host.vector_bits // 32, mxcsr=host.x86))
    note("emit")
    compile_object(emitted.text)
    note("llvm")
    taken["total"] = sum(taken.values())
    taken["peak_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    taken["text_kib"] = len(emitted.text) / 1024
    return {stage: round(value, 4) for stage, value in taken.items()}


def grown(name: str, n: int, seconds: float) -> dict[str, float] | None:
    """What `measure` says in a process of its own, or None where it took too long."""
    command = [sys.executable, __file__, "--one", name, str(n)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{name} {n}: {done.stderr}")
    return dict(json.loads(done.stdout))


def exponent(small: float, large: float) -> float | None:
    return None if small <= 0 or large <= 0 else round(math.log2(large / small), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--json", action="store_true", help="write bench/results/compile_growth.json")
    parser.add_argument("--seconds", type=float, default=120, help="for one program")
    parser.add_argument("--scale", type=int, default=1, help="start with programs that many times as large")
    parser.add_argument("--one", nargs=2, metavar=("FAMILY", "N"), help="one program, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return 0
    found: dict[str, Any] = {}
    worse = []
    for name in options.families or FAMILIES:
        least = FAMILIES[name][1] * options.scale
        rows = {n: grown(name, n, options.seconds) for n in (least, 2 * least, 4 * least)}
        small, large = rows[2 * least], rows[4 * least]
        slopes: dict[str, float | None] = {}
        if small and large:
            slopes = {stage: exponent(small[stage], value) for stage, value in large.items()}
            for stage, slope in slopes.items():
                ours = stage not in (*BOUNDED, "total", "peak_mib", "text_kib")
                if ours and large[stage] > WORTH_S and slope is not None and slope > ALLOWED:
                    worse.append(f"{name}: {stage} {slope}")
        found[name] = {"sizes": rows, "exponents": slopes}
        show(name, rows, slopes)
    if options.json:
        record("compile_growth", {"families": found})
    print("worse than linear:", "; ".join(worse) or "no stage of ours")
    return 1 if worse else 0


def show(name: str, rows: dict[int, dict[str, float] | None], slopes: dict[str, float | None]) -> None:
    print(f"== {name}")
    for n, row in rows.items():
        if row is None:
            print(f"  {n:6} took too long")
            continue
        stages = (f"{s} {v * 1e3:.0f}" for s, v in row.items() if s not in ("peak_mib", "text_kib") and v >= 0.02)
        print(f"  {n:6} {row['peak_mib']:6.0f} MiB {row['text_kib']:7.0f} KiB  ms: {', '.join(stages)}")
    last = list(rows.values())[-1]
    if slopes and last:
        told = (f"{s} {v}" for s, v in slopes.items() if last[s] >= 0.02)
        print(f"  growth {', '.join(told)}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
