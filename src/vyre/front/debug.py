"""What helps to find a mistake: where a trap stands, what a kernel printed, whether a call races, its steps.

The last two need the oracle: the backend that defines what is right, which can watch a program and run it line by line.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError, RaceDetected, Trap, shown
from ..foundation.ir import nodes as ir
from ..foundation.ir.dtypes import BY_NAME
from ..foundation.ir.prints import HEAD_WORDS, LOG_WORDS, RECORD_HEAD, Part, words_of
from ..foundation.ir.visit import walk_nodes
from .compile import open_backend

if TYPE_CHECKING:
    from ..driver.contract.values import DispatchConfig
    from ..driver.verify.cases import Stop
    from ..foundation.ir.program import Program
    from .arrays import Array
    from .call import Call

Dims = tuple[int, int, int]
ORACLE = "reference"


class Oracle(Protocol):
    """The oracle, as far as calls ask more of it than to run."""

    def require_no_race(self, program: Program, inputs: Sequence[Any], config: DispatchConfig) -> None: ...
    def step(
        self, program: Program, inputs: Sequence[Any], config: DispatchConfig, invocation: Dims
    ) -> Iterator[Stop]: ...


# ---- traps -----------------------------------------------------------------------------------------------------------


def with_place(trap: Trap, *programs: Program) -> Trap:
    """The trap of one of these programs, saying where in the source it stands, if that is known."""
    sites = [
        (f"{node.span.file}:{node.span.line}", program.name or "kernel", node)
        for program in programs
        for node in walk_nodes(program.entry)
        if isinstance(node, ir.Trap) and node.span is not None
    ]

    def found(tag: object, address: object) -> dict[str, str]:
        """Places, and whose they are."""
        here: dict[str, str] = {}
        for place, kernel, node in sites:
            if node.tag == tag and (not isinstance(node.address, ir.Lit) or node.address.value == address):
                here.setdefault(place, kernel)
        return here

    tag = trap.context.get("tag")
    places = found(tag, trap.context.get("address"))
    if not places:
        return trap
    context, what, fix = dict(trap.context), trap.message, trap.fix
    context["first"] = tuple(one._replace(place=" or ".join(found(one.tag, one.address))) for one in trap.first)
    if str(tag).startswith(ir.ASSERTED):
        del context["address"]
        call = f"{next(iter(places.values()))}.step(..., invocation={context['invocation']})"
        what, fix = str(tag), f"correct the input, or what leads to it: {call} shows how it came to this"
    return Trap(f"{' or '.join(places)}: {what}", fix=fix, **context)


# ---- prints ----------------------------------------------------------------------------------------------------------


def show_prints(prints: Mapping[int, tuple[Part, ...]], logs: Sequence[Any]) -> None:
    """Print what a dispatch has left in its logs: by invocation, x first, and in the order in which each printed."""
    words, *floats = (log if isinstance(log, np.ndarray) else np.frombuffer(memoryview(log), np.uint8) for log in logs)
    lines = printed(prints, words.view(np.uint32), floats[0].view(np.float64) if floats else None)
    if lines:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print("\n".join(lines).encode(encoding, "backslashreplace").decode(encoding))


def printed(prints: Mapping[int, tuple[Part, ...]], log: Array, floats: Array | None) -> list[str]:
    """The lines of a log."""
    words = log.tolist()
    found: list[tuple[Dims, str]] = []
    at = HEAD_WORDS
    while at + RECORD_HEAD <= LOG_WORDS and words[at] in prints:
        number, x, y, z = words[at : at + RECORD_HEAD]
        at += RECORD_HEAD
        texts = []
        for part in prints[number]:
            if part.startswith("'"):
                texts.append(part[1:])
                continue
            t = BY_NAME[part]
            values = words[at : at + words_of(t)] if part != "f64" or floats is None else [floats[at]]
            texts.append(f"{t}({_text(part, values)})")
            at += words_of(t)
        found.append(((z, y, x), " ".join([f"({x}, {y}, {z}):", *texts])))
    found.sort(key=lambda record: record[0])
    lost = words[1] + (words[2] << 32)
    more = [f"... and {lost} lines more: a call prints {4 * LOG_WORDS >> 10} KiB of values at most"] if lost else []
    return [line for _, line in found] + more


def _text(name: str, words: Sequence[Any]) -> str:
    """A value as Python writes it."""
    match name:
        case "bool":
            return str(bool(words[0]))
        case "f64":
            return repr(float(words[0]))
        case "u64" | "i64":
            return str(struct.unpack("<Q" if name == "u64" else "<q", struct.pack("<2I", *words))[0])
        case "i8" | "i16" | "i32":
            return str(struct.unpack("<i", struct.pack("<I", words[0]))[0])
        case "f16" | "bf16" | "f32":
            (value,) = struct.unpack("<f", struct.pack("<I", words[0]))
            return str(np.float16(value)) if name == "f16" else str(np.float32(value))
    return str(words[0])


# ---- races and steps -------------------------------------------------------------------------------------------------


def _oracle() -> Oracle:
    """Behind no guard: a pipeline would be that of any program with the same fingerprint, and its lines another's."""
    return cast("Oracle", open_backend(ORACLE).inner)


def require_no_race(call: Call, asked: object) -> None:
    """Raise if the order of invocations can show in this call. It runs for that on the oracle, with copies."""
    if not isinstance(asked, bool):
        raise ArgumentTypeError(f"check_races is {shown(asked)}", fix="pass check_races=True, or leave it out")
    if asked and not call.plan.idle:
        try:
            _oracle().require_no_race(call.plan.program, call.host_inputs(), call.plan.sized_config())
        except RaceDetected as e:
            raise RaceDetected(_as_indexed(e.message, call), fix=e.fix, **e.context) from None


def _as_indexed(message: str, call: Call) -> str:
    """The message with the element as the kernel indexes it: `x[1, 2]` of two axes, `x[3].mass` of small values."""
    found = re.match(r"race on (\w+)\[(\d+)\]", message)
    o = next((o for o in call.plan.outputs if found is not None and o.name == found[1]), None)
    if found is None or o is None:
        return message
    param, place, field = call.kernel._params[o.name], int(found[2]), ""
    if param.small is not None:
        place, number = divmod(place, param.width)
        field = list(param.small.paths())[number]
    indices = np.unravel_index(place, o.shape) if param.rank > 1 else (place,)
    return f"race on {o.name}[{', '.join(map(str, indices))}]{field}{message[found.end() :]}"


def steps_of(call: Call, invocation: object) -> Iterator[Stop]:
    """The stops of one invocation of a call."""
    try:
        place = tuple(map(index, invocation if isinstance(invocation, tuple) else (invocation,)))
    except TypeError:
        place = ()
    if not 1 <= len(place) <= 3 or isinstance(invocation, bool):
        raise ArgumentTypeError(
            f"invocation is {shown(invocation)}", fix="pass its gid: invocation=3, or invocation=(3, 0, 0)"
        )
    x, y, z = (*place, 0, 0)[:3]
    if call.plan.idle:
        raise ArgumentValueError(
            "the call runs no invocation", fix="pass arrays with elements, or domain=(number of invocations)"
        )
    return _oracle().step(call.plan.program, call.host_inputs(), call.plan.sized_config(), (x, y, z))
