"""How does this device compute? Asked once, by running it, and remembered on disk.

The safest text must be canonical, or the device is not used. Then each trait that makes the text shorter is tried: it
holds where edge values still give the canonical results, and random values those of the safest text.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ... import __version__
from ...driver.selection.remembered import REFUSAL_S, recall, remember
from ...errors import VyreError
from ...foundation.integers import ceil_div
from ...foundation.ir.dtypes import u32
from ...foundation.ir.program import Program, read, write_only
from ...runtime.device import Artifact, LaunchFacts
from ...runtime.float_probe import (
    CANONICAL,
    LANES,
    TRIPLES,
    differing,
    probe_inputs,
    probe_program,
    record_name,
    run_once,
)
from . import devices
from .build import build
from .device import WgpuDevice
from .emit.traits import SAFEST, Traits
from .run import binding_gaps

RANDOM_TRIPLES = 1 << 14
TURNS = 70_000
RELAXED: tuple[dict[str, bool], ...] = (
    {"soft_flush": False},
    {"native_divide": True},
    {"native_root": True},
    {"native_fma": True},
)
"""In the order in which they are tried."""
WIDE = {"wide_fma": True}
UNFENCE = {"fences": False}
UNFENCED: tuple[tuple[str, str], ...] = ()
"""(vendor, driver) of devices on which the whole random suite was recorded clean without fences."""
Run = Callable[[Program, Traits, Sequence[bytes], int], bytes]
"""(program, traits, inputs, bytes of the output) -> the output."""


@dataclass(frozen=True, slots=True)
class Record:
    """What was found. `why_not` says why the device cannot be used; `loop_limit` is None where none was met."""

    traits: Traits = SAFEST
    why_not: str | None = None
    loop_limit: int | None = None
    shared_is_zeroed: bool = False


def record_of(adapter: Any) -> Record:
    """The record of an adapter: remembered, or found now."""
    info = adapter.info
    key = json.dumps([__version__, binding_gaps.version(), sorted((k, str(v)) for k, v in info.items())])
    name = record_name("wgpu", key)
    with _asking:  # a thread that waits here finds the answer remembered
        if (known := _recalled(name, key)) is not None:
            return known
        try:
            record = _found(adapter)
        except VyreError as e:
            return Record(why_not=f"it does not run kernels ({e.message})")  # now; not worth remembering
        _known[key] = record
        remember(name, key, asdict(record), for_s=None if record.why_not is None else REFUSAL_S)
    return record


def _found(adapter: Any) -> Record:
    device, info = WgpuDevice(adapter), adapter.info
    try:
        record = probe(
            lambda *asked: run(device, *asked), base_traits(info), is_wide=device.is_wide, may_unfence=may_unfence(info)
        )
        if record.why_not is not None:
            return record
        return replace(record, loop_limit=loop_limit(device), shared_is_zeroed=shared_is_zeroed(device))
    finally:
        device.close()


def best() -> Any:
    """The best adapter that computes as it must; if none does, the best.

    A GPU is not replaced by the processor here: the cpu backend does that better.
    """
    first, *others = devices.adapters()
    alike = [first, *(a for a in others if devices.is_emulated(a) == devices.is_emulated(first))]
    return next((a for a in alike if record_of(a).why_not is None), first)


_asking = threading.Lock()
_known: dict[str, Record] = {}
"""Records that this process found, since the disk may not keep them."""


def _recalled(name: str, key: str) -> Record | None:
    found = recall(name, key)
    if found is None:
        return _known.get(key)
    try:
        record = Record(**found | {"traits": Traits(**found["traits"])})
    except (TypeError, LookupError):
        return None  # written by something else
    flags, limit = (*asdict(record.traits).values(), record.shared_is_zeroed), record.loop_limit
    is_ours = (
        asdict(record) == found  # and no field is missing
        and all(type(flag) is bool for flag in flags)
        and type(record.why_not) in (str, type(None))
        and (limit is None or (type(limit) is int and 0 <= limit <= TURNS))
    )
    return record if is_ours else None


def base_traits(info: Any) -> Traits:
    """The safest traits; only Metal has a compare-exchange that may fail for no reason."""
    return replace(SAFEST, strong_swap=info["backend_type"] != "Metal")


def may_unfence(info: Any) -> bool:
    return any(vendor == info["vendor"] and driver in str(info["description"]) for vendor, driver in UNFENCED)


def probe(run: Run, safest: Traits, *, is_wide: bool = False, may_unfence: bool = False) -> Record:
    """The traits of whatever runs programs. `is_wide`: it has f64 and u64, tried where fma is not native."""

    def canonical(traits: Traits) -> tuple[str, ...]:
        output = 4 * len(TRIPLES) * len(CANONICAL)
        return differing(run(probe_program(), traits, probe_inputs(), output))

    wrong = canonical(safest)
    if wrong:
        return Record(safest, f"its f32 results are not the canonical ones in {', '.join(wrong)}")
    program, inputs = _random_probe()
    expected = run(program, safest, inputs, 4 * RANDOM_TRIPLES * len(CANONICAL))
    traits = safest
    for change in (*RELAXED, *([WIDE] if is_wide else []), *([UNFENCE] if may_unfence else [])):
        if change is WIDE and traits.native_fma:
            continue
        tried = replace(traits, **change)
        if not canonical(tried) and run(program, tried, inputs, len(expected)) == expected:
            traits = tried
    return Record(traits)


def _random_probe() -> tuple[Program, list[bytes]]:
    """The probe's steps over more triples, of random bits."""
    program = probe_program()
    buffers = [read(name, slot, u32, RANDOM_TRIPLES) for slot, name in enumerate("abc")]
    buffers.append(write_only("out", 3, u32, RANDOM_TRIPLES * len(CANONICAL)))
    source = random.Random(1)
    return program.replace(buffers=tuple(buffers)), [source.randbytes(4 * RANDOM_TRIPLES) for _ in range(3)]


def run(device: WgpuDevice, program: Program, traits: Traits, inputs: Sequence[bytes], output_bytes: int) -> bytes:
    """The last buffer of a program, which is its output, with an invocation for each word of an input."""
    built = build(program, traits, device.limits, immediate_bytes=device.immediate_bytes)
    return run_once(device, built, inputs, output_bytes, ceil_div(len(inputs[0]), 4 * LANES))


# ---- facts that no program can ask for -------------------------------------------------------------------------------

_HEAD = """
struct Params { turns: u32, words: u32, x: u32, y: u32, z: u32, row: u32, z0: u32, z1: u32 }
PARAMS params: Params;
@group(0) @binding(0) var<storage, read> unused: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
"""
_LOOPS = """
@compute @workgroup_size(32) fn vyre_kernel(@builtin(local_invocation_index) lane: u32) {
    var turns = 0u;
    var value = lane;
    if ((lane & 1u) == params.z0) {
        for (var k = 0u; k < params.turns; k++) { value = value * 1664525u + 1013904223u; turns++; }
    } else if (params.words == 64u) {
        for (var k = 0u; k < params.turns; k++) { value = value * 22695477u + 1u; turns++; }
    }
    out[lane] = turns;
    out[lane + 32u] = value;
}
"""
_SHARED = """
var<workgroup> words: array<u32, 256>;
@compute @workgroup_size(32) fn vyre_kernel(@builtin(local_invocation_index) lane: u32) {
    for (var k = lane; k < 256u; k += 32u) { out[k] = words[k]; }
    workgroupBarrier();
    for (var k = lane; k < 256u; k += 32u) { words[k] = k + 1u + params.z0; }
    workgroupBarrier();
    out[256u + lane] = words[255u - lane];
}
"""


def loop_limit(device: WgpuDevice) -> int | None:
    """After how many turns of its loops a driver stops an invocation without an error, if it does."""
    long = _words(device, _LOOPS, 4 * TURNS, 4 * 63)
    if (least := min(long[0:32:2])) < TURNS:
        return least
    both = _words(device, _LOOPS, 4 * TURNS, 4 * 64)
    return None if min(both[0:32]) == TURNS else TURNS


def shared_is_zeroed(device: WgpuDevice) -> bool:
    """Whether workgroup memory begins as zero without code that does it."""
    return not any(any(_words(device, _SHARED, 4, 4 * 288)[:256]) for _ in range(2))


def _words(device: WgpuDevice, text: str, input_bytes: int, output_bytes: int) -> list[int]:
    immediates = device.immediate_bytes >= 32
    space = "var<immediate>" if immediates else "@group(1) @binding(0) var<uniform>"
    extra = {"writable": [False, True], "words": 8, "immediates": immediates}
    built = Artifact(_HEAD.replace("PARAMS", space) + text, b"", LaunchFacts((32, 1, 1), extra=extra))
    result = run_once(device, built, [bytes(input_bytes)], output_bytes, 1)
    return list(memoryview(result).cast("I"))


def describe(record: Record, adapter: Any) -> dict[str, Any]:
    """The record as part of a capability."""
    limit = record.loop_limit
    return {
        "f32": "canonical",
        "device": devices.name_of(adapter),
        **asdict(record.traits),
        "loop_limit": 0 if limit is None else limit,
        "shared_is_zeroed": record.shared_is_zeroed,
    }
