"""One program on every backend of this machine, and one answer: the first thing to run.

The program follows bodies that attract each other for 2,000 steps and prices an option on where each of them ends. Each
backend prints the blake3 of all of it. Beneath stand other libraries with the same maths, a race that is found, why a
plain call runs where it runs, and how long calls take. A picture and a report are written below build/demo.

The exit status is 0 when all answers are the same, 1 when they are not or nothing ran, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import Any

import black_scholes
import demo_program
import nbody
import numpy as np
from demo_peers import WHY, departs, peers
from demo_program import BODIES, DT, STEPS, Answer, beginning, compute, draw, price_many, turned, turned_rightly
from demo_report import png, render
from demo_screen import Row, Screen

import vyre
from vyre.backends import reference

ABOUT_CALLS = (
    "Whole calls, from NumPy arrays to NumPy arrays, on this machine in this run. First: the first call in this "
    "process, which opens the device, compiles or loads, and runs. Warm: the median of those after it. One step is the "
    "pull of all bodies on each other, so small that it shows what a call costs by itself. Another machine, or this "
    "one when it is busy, gives other times and the same bytes."
)


def places(named: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Devices that can be asked here, by the name that asks for them, and backends that cannot, with the reason."""
    if named:
        return [_named(name) for name in named], []
    found: list[Row] = []
    absent: list[Row] = []
    for listing in vyre.registered_backends_by_precedence():
        try:
            devices = vyre.devices(listing.id)
            if not devices:
                vyre.acquire(listing.id)  # which says why
        except vyre.VyreError as error:
            reason = error.message.removeprefix(f"backend {listing.id} is not available: ")
            absent.append({"backend": listing.id, "reason": reason})
            continue
        for device in devices:
            name = listing.id if len(devices) == 1 else f"{listing.id}:{device.index}"
            found.append({"backend": name, "device": device.name, "emulated": device.emulated})
    return found, absent


def _named(name: str) -> Row:
    vyre.acquire(name)  # or an error that lists the choices
    id, _, wanted = name.partition(":")
    id, wanted = id.strip(), wanted.strip()
    devices = [d for d in vyre.devices(id) if wanted in ("", str(d.index)) or wanted.lower() in d.name.lower()]
    device = min(devices, key=lambda d: d.emulated)
    return {"backend": name, "device": device.name, "emulated": device.emulated}


def answer(place: Row, steps: int, options: int, tick: Callable[[int], None]) -> tuple[Row, Answer | None]:
    """The row of one backend. What goes wrong there is said in the row, and the others go on."""
    start = time.perf_counter()
    try:
        found = compute(place["backend"], steps, tick)
        seconds = time.perf_counter() - start
        many = price_many(place["backend"], options, repeat=21)
    except Exception as error:
        return place | {"error": f"{type(error).__name__}: {error}", "blake3": None, "calls": None}, None
    calls = {"first": found.seconds[0], "warm": median(found.seconds[1:]), "many": median(many)}
    row = {"error": None, "blake3": found.blake3, "seconds": seconds, "price": float(found.calls[0]), "calls": calls}
    return place | row, found


def verdict(rows: Sequence[Row]) -> tuple[bool, str]:
    digests = [row["blake3"] for row in rows if row["blake3"]]
    different = len(set(digests))
    if different == 1:
        return True, f"{len(digests)} of {len(rows)} gave the same bytes"
    return False, f"{len(digests)} backends gave {different} answers" if digests else "no backend ran the program"


def peer_rows(ours: Answer, steps: int) -> Iterator[Row]:
    """The same maths in each library that is installed."""
    for name, load in peers():
        row: Row = {"name": name, "version": "", "error": None, "blake3": None}
        try:
            if (loaded := load()) is None:
                continue
            row["version"], run = loaded
            theirs = run(steps)
            row |= {"blake3": theirs.blake3, "departs": departs(ours, theirs), "price": float(theirs.calls[0])}
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        yield row


def planted_race() -> Row:
    """What the race detector says of a kernel that forgets a barrier, and of the same kernel with it."""
    words = np.arange(8, dtype=np.uint32)

    def watched(kernel: vyre.Kernel, *, strict: bool) -> tuple[reference.Race, ...]:
        sizes = {"out": len(words)}
        run = reference.run(
            kernel.program, [words], grid=(1, 1, 1), output_elements=sizes, detect_races=True, raise_on_race=strict
        )
        return run.races

    (race,) = watched(turned, strict=False)
    fix = ""
    try:
        watched(turned, strict=True)
    except vyre.RaceDetected as error:
        fix = error.fix
    source, first_line = inspect.getsourcelines(turned.__wrapped__)
    return {
        "kernel": turned.__name__,
        "element": f"{race.buffer}[{race.index}]",
        "file": Path(inspect.getfile(turned.__wrapped__)).name,
        "source": "".join(source),
        "first_line": first_line,
        "sides": [
            {
                "kind": access.kind,
                "invocation": access.invocation,
                "line": int(access.site.place.rpartition(":")[2]),
                "text": access.site.text,
            }
            for access in (race.first, race.second)
        ],
        "fix": fix,
        "races_when_repaired": len(watched(turned_rightly, strict=False)),
    }


def selection() -> Row:
    """Who runs a plain call, why not the others, and the plan of one call."""
    mass, position, velocity = beginning()
    try:
        chosen = vyre.select(nbody.kick.program)
        plan = nbody.kick.explain(mass, position, DT, velocity, domain=BODIES)
    except vyre.VyreError as error:
        return {"chosen": None, "reasons": [("none", str(error))], "plan": str(error)}
    why = next(d.reason for d in plan.decisions if d.what == "backend").partition(";")[0]
    reasons = [(chosen.chosen, f"chosen: {why}"), *((loser.name, loser.reason) for loser in chosen.losers)]
    return {"chosen": chosen.chosen, "reasons": reasons, "plan": str(plan)}


def environment() -> Row:
    found = {
        "vyre": vyre.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "NumPy": version("numpy"),
        "system": platform.platform(),
        "processor": f"{_processor()}, {os.cpu_count()} threads",
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return found | {name: value for name, value in sorted(os.environ.items()) if name.startswith("VYRE_")}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def kernel_sources() -> dict[str, str]:
    kernels = nbody.kick, nbody.drift, demo_program.quote, black_scholes.price, demo_program.plot
    sources = {kernel.__name__: inspect.getsource(kernel.__wrapped__) for kernel in kernels}
    tail: Any = black_scholes.tail
    return sources | {"tail, a helper of price": inspect.getsource(tail.fn)}


def next_steps() -> list[tuple[str, str]]:
    """Commands, as they can be typed here."""
    root, python = Path(__file__).parents[1], Path(sys.executable)
    own = python.with_name("vyre")
    on_path = shutil.which("vyre") or not own.exists()
    tool, interpreter = ("vyre", "python") if on_path else (os.path.relpath(own), os.path.relpath(python))
    return [
        (f"{tool} doctor", "what works here, and how to mend what does not"),
        (f"{tool} backends", "every backend, and why one would not open"),
        (f"{interpreter} {os.path.relpath(root / 'examples/sha256.py')}", "one of the examples that solve real things"),
        (os.path.relpath(root / "docs/kernel-language.md"), "the language of kernels on one page"),
    ]


def write(data: Row, ours: Answer | None, where: Path) -> None:
    """The picture and the report; where they are is noted in the data."""
    picture, report, drawn = where / "orbits.png", where / "report.html", None
    if ours is not None:
        able = [row["backend"] for row in data["answers"] if row["blake3"]]
        data["drawn_by"] = data["selection"]["chosen"] if data["selection"]["chosen"] in able else able[0]
        try:
            drawn = png(draw(ours.trail, data["drawn_by"]))
        except vyre.VyreError as error:
            data["picture"] = f"no picture: {error}"
        else:
            picture.write_bytes(drawn)
            data["picture"] = str(picture)
    report.write_text(render(data, drawn), encoding="utf-8", errors="backslashreplace")  # a variable may hold any bytes
    data["report"] = str(report)


def folder(text: str) -> Path:
    """Made, and written to, before the work begins."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{error}. Fix: name a folder that can be made and written to") from None
    return path


def demo(arguments: argparse.Namespace, screen: Screen) -> int:
    steps, options = (60, 1024) if arguments.quick else (STEPS, 65_536)
    around = environment()
    screen.title(f"vyre {around['vyre']}, Python {around['Python']}, {around['processor']}")
    found, absent = places(arguments.backend)

    screen.title(f"One answer: {BODIES} bodies, {steps:,} steps, then a price for each")
    screen.answer_heads()
    answers: list[Row] = []
    ours: Answer | None = None
    for place in found:
        with screen.working(place["backend"], steps) as tick:
            row, its = answer(place, steps, options, tick)
        screen.answer(row)
        answers.append(row)
        ours = ours or its
    for row in absent:
        screen.say(f"{row['backend']}: not here, {row['reason']}", style="dim")
    same, says = verdict(answers)
    screen.say(f"{says}: {ours.blake3}" if same and ours else says, style="bold green" if same else "bold red")

    with screen.working("other libraries"):
        theirs = [] if ours is None else list(peer_rows(ours, steps))
    screen.peers(theirs, WHY)
    race = planted_race()
    screen.race(race)
    chosen = selection()
    screen.selection(chosen)
    calls = [{"backend": row["backend"], **row.pop("calls")} for row in answers if row["calls"]]
    screen.calls(calls, options, ABOUT_CALLS)

    data: Row = {
        "same": same,
        "verdict": says,
        "program": {"bodies": BODIES, "steps": steps, "options": options},
        "answers": answers,
        "absent": absent,
        "peers": theirs,
        "why": WHY,
        "race": race,
        "selection": chosen,
        "calls": calls,
        "about_calls": ABOUT_CALLS,
        "environment": around,
        "kernels": kernel_sources(),
    }
    write(data, ours, arguments.output)
    screen.title("Written")
    for key in ("report", "picture"):
        screen.say(data.get(key, ""))
    screen.title("What to try next")
    screen.table(("", ""), next_steps())
    if arguments.json:
        print(json.dumps(data, indent=2))
    return 0 if same else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One program on every backend of this machine, and one answer.")
    parser.add_argument("--backend", action="append", default=[], metavar="ID", help="only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few steps and small arrays")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--output", type=folder, default="build/demo", metavar="DIR", help="for report and picture")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    screen = Screen(quiet=arguments.json)
    try:
        return demo(arguments, screen)
    except KeyboardInterrupt:
        screen.err.print("stopped")
        return 130
    except vyre.VyreError as error:
        screen.err.print(f"error: {error}", markup=False, soft_wrap=True)
        return 2
    except OSError as error:
        screen.err.print(f"error: {error}. Fix: make room where the demo writes", markup=False, soft_wrap=True)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
