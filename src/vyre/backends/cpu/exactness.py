"""Does this processor compute the canonical f32? Asked once, by running it, and remembered on disk."""

from __future__ import annotations

from collections.abc import Callable

from ... import __version__
from ...driver.selection.remembered import REFUSAL_S, recall, remember
from .abi import NEXT
from .build import ObjectCode, Switches, build
from .device import ffi, load
from .devices import Host
from .run.launch import LaunchWords, lengths_of

_REMEMBERED_AS = "cpu-exactness"


def run_probe(built: ObjectCode) -> bytes:
    """The output of the probe's program, computed on this thread."""
    from ...runtime.float_probe import GROUPS, TRIPLES, output_bytes, probe_inputs

    code, facts = load(built.image), built.facts
    out = bytearray(output_bytes())
    memory = [ffi.from_buffer(data) for data in (*probe_inputs(), out)]  # a pointer alone keeps nothing
    launch = LaunchWords(len(memory), facts.scratch_bytes)
    for slot, data in enumerate(memory):
        launch.buffers[slot] = data
    launch.aim(lengths_of([len(TRIPLES)] * 3 + [len(out) // 4]), (GROUPS, 1, 1), GROUPS)
    launch.shared[NEXT] = 0
    code.run(launch.shared, launch.first)
    return bytes(out)


def why_not_hardware(host: Host, probe: Callable[[ObjectCode], bytes] = run_probe) -> str | None:
    """Why f32 steps cannot be left to the processor's own flushing, or None: they can."""
    if not host.x86:
        return "the processor flushes by another rule"
    key = f"{__version__};{host.compiler};{host.triple};{host.name};{host.features}"
    match recall(_REMEMBERED_AS, key):
        case {"why_not": (None | str()) as why_not}:
            return why_not
    from ...runtime.float_probe import differing, probe_program  # which most processes do without

    wrong = differing(probe(build(probe_program(), host, Switches())))
    why_not = f"results differ in: {', '.join(wrong)}" if wrong else None
    remember(_REMEMBERED_AS, key, {"why_not": why_not}, for_s=None if why_not is None else REFUSAL_S)
    return why_not
