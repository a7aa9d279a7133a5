"""Examines one backend in a process of its own, which `vyre doctor` starts: `python -m vyre.cli.parts.examine ID`.

A driver that crashes, hangs or prints takes only this process with it. Lines of JSON on stdout tell what was found so
far: `{"begin": name}` before each step, `{"check": [...]}` for each finding, and at the end `{"end": kind}`, where the
kind is that of the registration if the backend works, else null.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...driver.contract.requirement import Check, said, sound
from ...errors import VyreError, told

if TYPE_CHECKING:
    from ...driver.guard.backend import GuardedBackend
    from ...driver.selection.listing import BackendListing
    from ...foundation.ir.program import Program

LANES = 256
PARITY = "parity"
RECORDED = "07e38c82a271f3b1dd431482b80182674231264c41bf481b8e38d80d06044f69"
"""blake3 of what the sample computes."""
REPORT = "report it to the author of the backend, and use another one until then"


def main() -> None:
    """Examine the backend that `sys.argv` names."""
    tell = _line_to_parent()
    works = False
    for each in examine(sys.argv[1], lambda step: tell({"begin": step})):
        works = works or (each.name == PARITY and each.verdict == "ok")
        tell({"check": list(each)})
    tell({"end": _listing(sys.argv[1]).registration.kind if works else None})


def _line_to_parent() -> Callable[[dict[str, Any]], None]:
    """Stdout is ours alone: whatever else is printed there goes to stderr."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(line: dict[str, Any]) -> None:
        ours.write(json.dumps(line) + "\n")
        ours.flush()

    return tell


def examine(name: str, begin: Callable[[str], None]) -> Iterator[Check]:
    """What can be said of a backend, step by step. Whatever a step raises becomes a finding."""
    from ...driver.selection.registry import acquire

    begin("record")
    listing = _listing(name)
    if (why := listing.problem()) is not None:
        yield Check("record", "fail", why, "correct or uninstall its package; other backends are not affected")
        return
    begin("checks")
    found: list[Check] = []
    try:
        for each in sound(() if listing.registration.checks is None else listing.registration.checks()):
            found.append(each)
            yield each
    except VyreError as e:  # a setting that it reads, say
        yield Check("checks", "fail", e.message, e.fix)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:
        yield Check("checks", "fail", f"they stopped: {told(e)}", REPORT)
    begin("available")
    verdict = available(listing)
    if verdict.detail in {each.detail for each in found}:
        verdict = verdict._replace(detail="it would not open, for the reason above")
    yield verdict
    if verdict.verdict != "ok" or not listing.registration.dispatches:
        return
    try:
        begin("open")
        backend = acquire(name)
        yield Check("open", "ok", backend.device or "its one device")
        begin(PARITY)
        yield parity(backend)
        begin("timing")
        yield timing(backend)
        begin("shutdown")
        backend.shutdown()
    except VyreError as e:
        yield Check("dispatch", "fail", e.message, e.fix)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:
        yield Check("dispatch", "fail", told(e), REPORT)


def _listing(name: str) -> BackendListing:
    from ...driver.selection.registry import acquire, registered_backends

    id = name.partition(":")[0]
    found = next((each for each in registered_backends() if each.id == id), None)
    if found is None:
        acquire(name)  # says what is wrong with the name
    assert found is not None
    return found


def available(listing: BackendListing) -> Check:
    """Asked anew, and not from memory."""
    return said("available", listing.unavailable(), "it would open")


def timing(backend: GuardedBackend) -> Check:
    """How it knows the time that a dispatch took."""
    quality = str(backend.device_profile().timing_quality)
    return Check("timing", "ok", quality.replace("_", " "))


# ---- the same bytes as the reference --------------------------------------------------------------------------------


def sample() -> tuple[Program, list[bytes]]:
    """A program with integers that wrap, floats that round, and a function that libraries disagree about."""
    from .sample import mix

    words = array("I", ((k * 2654435761) % (1 << 32) for k in range(LANES)))
    floats = array("f", ((k - 100) / 7 for k in range(LANES)))
    return mix.program, [words.tobytes(), floats.tobytes()]


def parity(backend: GuardedBackend) -> Check:
    """One small dispatch here and on the reference."""
    from blake3 import blake3

    from ...driver.selection.registry import acquire

    program, inputs = sample()
    ours = [bytes(out) for out in backend.dispatch(program, inputs)]
    with acquire("reference") as reference:
        right = [bytes(out) for out in reference.dispatch(program, inputs)]
    if ours == right and blake3(b"".join(right)).hexdigest() == RECORDED:
        return Check(PARITY, "ok", f"{sum(map(len, right))} bytes are those of the reference")
    if ours == right:
        again = "pip install --force-reinstall vyre numpy"
        return Check(PARITY, "fail", "the reference computes other bytes than it did when it was released", again)
    wrong = sum(a != b for a, b in zip(b"".join(ours), b"".join(right), strict=False))
    return Check(
        PARITY,
        "fail",
        f"{wrong} bytes of {sum(map(len, right))} differ from the reference",
        "do not use it; update its driver, and report it with the output of `vyre doctor --json`",
    )


if __name__ == "__main__":
    main()
