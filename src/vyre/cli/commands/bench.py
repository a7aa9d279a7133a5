"""vyre bench: first and warm times of each backend on this machine, with intervals and whether the bytes agree."""

from __future__ import annotations

import os
import platform
import random
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ...errors import ArgumentValueError, BackendError, BackendUnavailable
from ...foundation.durations import duration
from ..app import Json, app
from ..inputs.calls import (
    Domain,
    Grid,
    Inputs,
    Request,
    Sizes,
    Timeout,
    collected_warnings,
    interruptible,
    plain,
    request,
    same_bytes,
    warn,
)
from ..inputs.programs import Loaded, load, whole
from ..output import others_on_stderr, print_json, print_table, progress

if TYPE_CHECKING:
    from ...driver.observe.evidence import EvidenceBundle
    from ...front.arrays import Array

RESAMPLES = 1000
"""Draws of a bootstrap; the interval's ends then move by less than the times themselves."""
DEFAULT_SIZE = 1 << 20


class Machine(TypedDict):
    processor: str
    cores: int
    system: str
    python: str
    vyre: str


class Row(TypedDict):
    """One backend on one kernel. Times are of whole calls from Python; `low` and `high` bound the median by 95 %.

    `equal`: the bytes are those of the first row of the kernel; where they are not, the setting `evidence` keeps a
    dispatch in the file `evidence`. With `error`, nothing was measured.
    """

    kernel: str
    backend: str
    device: str | None
    elements: int
    nbytes: int
    first_ns: int | None
    warm_ns: int | None
    low_ns: int | None
    high_ns: int | None
    rounds: int
    gigabytes_per_s: float | None
    blake3: str | None
    equal: bool | None
    evidence: str | None
    error: str | None


class Document(TypedDict):
    machine: Machine
    rounds: int
    rows: list[Row]
    absent: dict[str, str]
    warnings: list[str]


@app.command()
def bench(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE[:KERNEL]]", help="What to measure; without it, four small kernels.")
    ] = None,
    inputs: Inputs = None,
    backends: Annotated[
        str | None,
        typer.Option("--backends", metavar="ID,ID", help="Backends to measure; without it, all but the reference."),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", help="Warm calls of each backend.")] = 21,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="N", help=f"Elements of the built-in kernels; {DEFAULT_SIZE} without it."),
    ] = None,
    sizes: Sizes = None,
    domain: Domain = None,
    grid: Grid = None,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Measure kernels on every backend of this machine.

    The first call opens the backend, and compiles or loads. Warm calls take turns, one of each backend per round, so
    that a machine that slows down slows all of them. The median has an interval of 95 %, by bootstrap. Times are of
    whole calls from Python with arrays in host memory, copies to the device and back included. GB/s counts the bytes of
    all arguments and results once. Exit code 1: no backend ran, or bytes differ.
    """
    if rounds < 1:
        raise ArgumentValueError(f"--rounds {rounds} measures nothing", fix="write --rounds 5 or more")
    for option, value in (("--input", inputs), ("--sizes", sizes), ("--domain", domain), ("--grid", grid)):
        if file is None and value is not None:
            raise ArgumentValueError(f"{option} needs a FILE", fix=f"name a file with a kernel, or drop {option}")
    if file is not None and size is not None:
        raise ArgumentValueError("--size is for the built-in kernels", fix="write --input x=random:N, or drop --size")
    if file is None:
        asked = builtin_requests(DEFAULT_SIZE if size is None else whole(size, f"--size {size}"), timeout)
    else:
        asked = [request(load(file), inputs, sizes, domain, grid, timeout)]
    with others_on_stderr():
        names, absent = wanted_backends(backends)
        document = measure(asked, names, rounds, absent)
    print_json(plain(document)) if as_json else show(document)
    measured = [row for row in document["rows"] if row["error"] is None]
    raise typer.Exit(0 if measured and all(row["equal"] for row in measured) else 1)


# ---- what and where -------------------------------------------------------------------------------------------------


def builtin_requests(size: int, timeout: float | None) -> list[Request]:
    from ..parts import bench_kernels as kernels

    given: list[tuple[str, list[str]]] = [
        ("xor", [f"x=random:{size}@1", f"y=random:{size}@2"]),
        ("saxpy", ["alpha=2.0", f"x=random:{size}@1", f"y=random:{size}@2"]),
        ("total", [f"x=random:{size}@1", "out=zeros:1"]),
        ("histogram", [f"x=random:{size}@1", f"bins=zeros:{kernels.BINS}"]),
    ]
    return [
        request(Loaded(getattr(kernels, name), "built in", "python"), inputs, timeout=timeout) for name, inputs in given
    ]


def wanted_backends(listed: str | None) -> tuple[list[str], dict[str, str]]:
    """Those that are named, or all that are there; and why the others are not."""
    from ...driver.selection.registry import backend_registration, registered_backends_by_precedence

    if listed is not None:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        for name in names:
            if backend_registration(name.partition(":")[0]) is None:
                known = ", ".join(b.id for b in registered_backends_by_precedence())
                raise BackendUnavailable(f"there is no backend {name}", fix=f"use some of: {known}", backend=name)
        if not names:
            raise ArgumentValueError("--backends names no backend", fix="write --backends cpu,reference")
        return list(dict.fromkeys(names)), {}
    names, absent = [], {}
    for listing in registered_backends_by_precedence():
        why = listing.problem() or listing.unavailable()
        if why is not None:
            absent[listing.id] = why
        elif listing.registration.kind == "oracle" or not listing.registration.dispatches:
            absent[listing.id] = "only measured when asked for"
        elif listing.registration.kind != "distributed":
            names.append(listing.id)
    if not names:
        raise BackendUnavailable(
            "no backend here can be measured", fix="see `vyre doctor`, or write --backends reference"
        )
    return names, absent


def machine() -> Machine:
    from ... import __version__

    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        vyre=__version__,
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^model name\s*:\s*(.+)$", file.read(1 << 16), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine() or "unknown"


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(asked: Sequence[Request], names: Sequence[str], rounds: int, absent: dict[str, str]) -> Document:
    with collected_warnings() as said, progress("measuring", len(asked) * len(names) * (rounds + 1)) as step:
        rows = interruptible(lambda: [row for each in asked for row in _measure_one(each, names, rounds, step)])
    return Document(machine=machine(), rounds=rounds, rows=rows, absent=absent, warnings=said)


def _measure_one(asked: Request, names: Sequence[str], rounds: int, step: Callable[..., None]) -> Iterator[Row]:
    from ...foundation.formats.blake3 import blake3

    first: dict[str, tuple[list[Array], int]] = {}
    failed: dict[str, str] = {}
    for name in names:
        step(f"{asked.kernel.__name__} on {name}")
        try:
            first[name] = asked.run(asked.kernel.on(name))
        except BackendError as e:  # any other is about the arguments, which are wrong for every backend
            failed[name] = str(e)
    times: dict[str, list[int]] = {name: [] for name in first}
    for k in range(rounds if first else 0):
        turn = list(first)
        for name in turn[k % len(turn) :] + turn[: k % len(turn)]:
            _, took = asked.run(asked.kernel.on(name))
            times[name].append(took)
            step(f"{asked.kernel.__name__} on {name}")
    right = next(iter(first.values()))[0] if first else []
    arrays = [i.value for i in asked.inputs.values() if hasattr(i.value, "nbytes")]
    nbytes = sum(a.nbytes for a in (*arrays, *right))
    elements = max((a.size for a in (*arrays, *right)), default=0)
    for name in names:
        row = Row(
            kernel=asked.kernel.__name__,
            backend=name,
            device=None,
            elements=elements,
            nbytes=nbytes,
            first_ns=None,
            warm_ns=None,
            low_ns=None,
            high_ns=None,
            rounds=rounds,
            gigabytes_per_s=None,
            blake3=None,
            equal=None,
            evidence=None,
            error=failed.get(name),
        )
        if name in first:
            results, first_ns = first[name]
            median, low, high = median_with_interval(times[name])
            told = asked._replace(kernel=asked.kernel.on(name)).explain()
            row["device"] = told.choice("device")
            row["first_ns"], row["warm_ns"], row["low_ns"], row["high_ns"] = first_ns, median, low, high
            row["gigabytes_per_s"] = round(nbytes / median, 3)
            row["blake3"] = blake3(b"".join(a.tobytes() for a in results)).hex()
            row["equal"] = same_bytes(results, right)
            if not row["equal"] and (file := kept(asked, name, next(iter(first)))) is not None:
                row["evidence"] = str(file)
        yield row


def kept(asked: Request, name: str, right: str) -> Path | None:
    """Where the setting `evidence` keeps what two backends give that differ, if it does."""
    from ...driver.verify import evidence

    def both() -> EvidenceBundle:
        mine, theirs = (asked._replace(kernel=asked.kernel.on(each)).evidence() for each in (name, right))
        return replace(mine, expected=theirs.outcome)

    return evidence.keep(both)


def median_with_interval(times: Sequence[int], seed: int = 0) -> tuple[int, int, int]:
    """The median and, by bootstrap, the ends of its 95 % interval.

    >>> median_with_interval([5, 5, 5])
    (5, 5, 5)
    """
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(times, k=len(times))) for _ in range(RESAMPLES))
    low, high = medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]
    return int(statistics.median(times)), int(low), int(high)


def show(document: Document) -> None:
    found = document["machine"]
    print(f"{found['processor']}, {found['cores']} cores, {found['system']}, Python {found['python']}")
    print(f"on this machine, just now; warm: median of {document['rounds']} calls [95 % interval]")
    print_table(("kernel", "backend", "first", "warm", "interval", "GB/s", "bytes"), [*map(_cells, document["rows"])])
    for name, why in document["absent"].items():
        print(f"not measured: {name}, {why}")
    for row in document["rows"]:
        if row["error"] is not None:
            print(f"{row['kernel']} on {row['backend']}: {row['error']}", file=sys.stderr)
        if row["evidence"] is not None:
            print(f"evidence: vyre replay {row['evidence']}")
    warn(document["warnings"])


def _cells(row: Row) -> tuple[str, ...]:
    if row["error"] is not None:
        return row["kernel"], row["backend"], "", "", "", "", "not measured"
    assert row["first_ns"] and row["warm_ns"] and row["low_ns"] and row["high_ns"]
    return (
        row["kernel"],
        row["backend"],
        duration(row["first_ns"]),
        duration(row["warm_ns"]),
        f"[{duration(row['low_ns'])} - {duration(row['high_ns'])}]",
        f"{row['gigabytes_per_s']:.2f}",
        f"equal {(row['blake3'] or '')[:8]}" if row["equal"] else "DIFFERENT",
    )
