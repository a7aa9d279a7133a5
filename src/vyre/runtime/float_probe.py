"""Does a machine compute the canonical f32, and how? A kernel to ask it with, its right answers, and what was learned.

The kernel takes edge values through single steps and through compositions that a compiler may be tempted to simplify;
its right results are known as one digest per step.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..driver.selection.remembered import REFUSAL_S, recall, remember
from ..errors import BackendUnavailable, DeviceLost, DeviceOutOfMemory, VyreError
from ..foundation.integers import ceil_div, round_up
from ..foundation.ir.dtypes import f32, i32, u32
from ..foundation.ir.nodes import BinOp, Bitcast, Cast, Expr, Fma, InvocationId, Load, Node, Select, Store, UnOp, lit
from ..foundation.ir.ops import BinaryOp, UnaryOp
from ..foundation.ir.program import Program, read, write_only

if TYPE_CHECKING:
    from .device import Artifact, Device

D = TypeVar("D", bound="Device")
Mode = TypeVar("Mode", bound=StrEnum)

EDGES = (
    0x00000000, 0x80000000, 0x3F800000, 0xBFC00000, 0x3F800001, 0x00800000, 0x80800000, 0x00800001, 0x007FFFFF,
    0x80000001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x1FFFFFFF, 0x20000000, 0xA0000001,
    0x4B400000, 0x4F000000, 0x4F800000, 0xCF000001, 0x3EFFFFFF, 0x40490FDB, 0x3F7FFFFF,
    0x1FFFFFFE,
)  # fmt: skip
"""Bits of zeros, ones, the smallest normal and its neighbours, subnormals, the largest, infinities, NaNs, numbers whose
products lie around 2^-126, and bounds of the integer types. (1 - 2^-24) 2^-126, which is zero, tells a machine that
rounds as if subnormals were kept; (1 - 2^-46) 2^-126, which rounds up to 2^-126, one that flushes before it rounds."""
TRIPLES = tuple((a, b, EDGES[(5 * i + 7 * j) % len(EDGES)]) for i, a in enumerate(EDGES) for j, b in enumerate(EDGES))
LANES = 64
"""Invocations of a workgroup."""
GROUPS = ceil_div(len(TRIPLES), LANES)
"""The last one is not full, so that code which tests every access runs too."""


def _steps() -> dict[str, Expr]:
    """Name -> an expression over the f32 values of buffers a, b and c, as a u32."""
    at = InvocationId(0)
    a, b, c = (Bitcast(f32, Load(name, at)) for name in ("a", "b", "c"))
    zero, one, shift, tiny, below_one = (lit(x) for x in (0.0, 1.0, 12582912.0, 2.0**-126, 1.0 - 2.0**-24))
    size = Bitcast(f32, Load("a", at) & 0x7FFFFFFF)
    floats: dict[str, Expr] = {
        "add": a + b,
        "subtract": a - b,
        "multiply": a * b,
        "divide": a / b,
        "square root": UnOp(UnaryOp.SQRT, a),
        "fused multiply and add": Fma(a, b, c),
        "product and sum": a * b + c,
        "sum less a part": (a + b) - a,
        "error of a sum": (a - ((a + b) - ((a + b) - a))) + (b - ((a + b) - a)),
        "difference with itself": a - a,
        "sum with zero": a + zero,
        "product with zero": a * zero,
        "rounding by a large sum": (a + shift) - shift,
        "square of a root": UnOp(UnaryOp.SQRT, a) * UnOp(UnaryOp.SQRT, a),
        "reciprocal of a reciprocal": lit(1.0) / (lit(1.0) / a),
        "minimum": BinOp(BinaryOp.MIN, a, b),
        "maximum": BinOp(BinaryOp.MAX, a, b),
        "absolute value": UnOp(UnaryOp.ABS, a),
        "negation": UnOp(UnaryOp.NEGATE, a),
        "floor": UnOp(UnaryOp.FLOOR, a),
        "from an integer": Cast(f32, Load("a", at)),
        "copy": a,
        "size with zero": size + zero,
        "choice below zero": Select(BinOp(BinaryOp.LT, a, zero), a, zero),
        "product with one": a * Select(BinOp(BinaryOp.LT, b, c), one, -one),
        "product of constants": Select(BinOp(BinaryOp.LT, a, b), tiny, one) * below_one,
    }
    words: dict[str, Expr] = {
        "less": Cast(u32, BinOp(BinaryOp.LT, a, b)),
        "equal to zero": Cast(u32, BinOp(BinaryOp.EQ, a, zero)),
        "different from itself": Cast(u32, BinOp(BinaryOp.NE, a, a)),
        "to u32": Cast(u32, a),
        "to i32": Bitcast(u32, Cast(i32, a)),
        "size equal to zero": Cast(u32, BinOp(BinaryOp.EQ, size, zero)),
        "difference equal to zero": Cast(u32, BinOp(BinaryOp.EQ, a - b, zero)),
        "root equal to zero": Cast(u32, BinOp(BinaryOp.EQ, UnOp(UnaryOp.SQRT, a), zero)),
        "size below the smallest normal": Cast(u32, BinOp(BinaryOp.LT, UnOp(UnaryOp.ABS, a), tiny)),
    }
    return {name: Bitcast(u32, value) for name, value in floats.items()} | words


def probe_program() -> Program:
    """Every step for every triple; the results of step k are element k of each row of the output."""
    steps = _steps()
    row = InvocationId(0) * lit(len(steps))
    body: list[Node] = [Store("out", row + lit(k), value) for k, value in enumerate(steps.values())]
    inputs = [read(name, slot, u32, len(TRIPLES)) for slot, name in enumerate("abc")]
    return Program([*inputs, write_only("out", 3, u32, len(TRIPLES) * len(steps))], (LANES, 1, 1), body)


def differing(result: bytes) -> tuple[str, ...]:
    """Names of the steps whose results are not the canonical ones."""
    names = tuple(_steps())
    found = struct.unpack(f"<{len(TRIPLES) * len(names)}I", result)
    return tuple(name for k, name in enumerate(names) if digest(found[k :: len(names)]) != CANONICAL[name])


def digest(column: tuple[int, ...]) -> str:
    return hashlib.blake2b(struct.pack(f"<{len(column)}I", *column), digest_size=8).hexdigest()


def probe_inputs() -> list[bytes]:
    """The columns of the triples, as inputs of the program."""
    return [struct.pack(f"<{len(TRIPLES)}I", *column) for column in zip(*TRIPLES, strict=True)]


def output_bytes() -> int:
    return len(TRIPLES) * len(CANONICAL) * 4


def run_probe(device: Device, built: Artifact) -> bytes:
    """The output of the probe's program on a device with memory of its own."""
    return run_once(device, built, probe_inputs(), output_bytes(), GROUPS)


def run_once(device: Device, built: Artifact, inputs: Sequence[bytes], nbytes: int, groups: int) -> bytes:
    """The last buffer of a program over words, which is its output of so many bytes."""
    code, batch = device.load(built), device.batch()
    sizes = [round_up(n, 16) for n in (*map(len, inputs), nbytes)]
    memories = [device.allocate(size) for size in sizes]
    for memory, data in zip(memories, inputs, strict=False):
        batch.write(memory, 0, memoryview(data))
    batch.zero(memories[-1], 0, sizes[-1])
    lengths = [*(len(data) // 4 for data in inputs), nbytes // 4]
    batch.launch(code, memories, lengths, (0, 0, 0), (groups, 1, 1))
    batch.read(memories[-1], 0, nbytes)
    (found,) = batch.submit().take([None])
    for memory in memories:
        device.release(memory)
    return bytes(found)


def why_wrong(run: Callable[[D, Artifact], bytes], device: D, built: Artifact) -> str | None:
    """Why the probe's output is not canonical. A device that is lost or full gives no answer: that is raised."""
    try:
        wrong = differing(run(device, built))
    except (DeviceLost, DeviceOutOfMemory):
        raise
    except VyreError as e:
        return e.message
    return f"results differ in {', '.join(wrong)}" if wrong else None


# ---- what was learned, remembered on disk ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exactness(Generic[Mode]):
    """The mode in which kernels are canonical, and whether those with f64 are; or why none is."""

    mode: Mode | None
    float64: bool = False
    why_not: str | None = None

    def require(self, device: str, backend: str) -> None:
        """Raise unless there is such a mode."""
        if self.mode is None:
            raise BackendUnavailable(
                f"{device} cannot be used: {self.why_not}",
                fix="update its driver, or use another device or backend",
                backend=backend,
            )


def known_or_learned(
    backend: str, identity: str, modes: type[Mode], probe: Callable[[], Exactness[Mode]]
) -> Exactness[Mode]:
    """What is remembered of the device that this text tells from others, or what the probe finds now."""
    name = record_name(backend, identity)
    known = _read(recall(name, identity), modes)
    if known is None:
        known = probe()
        remember(name, identity, asdict(known), for_s=None if known.why_not is None else REFUSAL_S)
    return known


def record_name(backend: str, identity: str) -> str:
    """The name of the record of one device: each has its own."""
    return f"{backend}-exactness-{hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()}"


def _read(record: dict[str, Any] | None, modes: type[Mode]) -> Exactness[Mode] | None:
    """What a record says, if it is one of ours."""
    match record:
        case {"mode": None, "why_not": str() as why_not}:
            return Exactness(None, why_not=why_not)
        case {"mode": str() as mode, "float64": bool() as float64, "why_not": None} if mode in set(modes):
            return Exactness(modes(mode), float64)
    return None


# ---- the answers -----------------------------------------------------------------------------------------------------

CANONICAL: dict[str, str] = {
    "add": "8dbff5fa0ff1da23",
    "subtract": "7ee3d88d2bcdae5b",
    "multiply": "ec32eee655479b02",
    "divide": "b9a46f6ce082b421",
    "square root": "2c506bb1cc3000b0",
    "fused multiply and add": "e16886b403234015",
    "product and sum": "96687d303923880f",
    "sum less a part": "9365de8aebec3728",
    "error of a sum": "fc80f9268d817cdf",
    "difference with itself": "633460ff2fc4e7b4",
    "sum with zero": "d7fe928a53016ae3",
    "product with zero": "dfa8945b79bafd9d",
    "rounding by a large sum": "8d4bd2e8d9aaf3e6",
    "square of a root": "180bbb97ffa9ab83",
    "reciprocal of a reciprocal": "7c30c38ca220f700",
    "minimum": "609a95580c45661d",
    "maximum": "c2324dffc872b174",
    "absolute value": "80874562633700a2",
    "negation": "a79349d4874d5449",
    "floor": "f47c3539d7fb8ce3",
    "from an integer": "a8d71d2ddd44ad7e",
    "copy": "3c1d921f428555b2",
    "size with zero": "80874562633700a2",
    "choice below zero": "4af8d40af726c0a8",
    "product with one": "9d529bf0b7207c45",
    "product of constants": "b347a1fe1b2d40b5",
    "less": "581b91ab24e58176",
    "equal to zero": "76c6fbd8ad0d4e94",
    "different from itself": "8e48bbe3f9e82483",
    "to u32": "e7aeca0c568609b3",
    "to i32": "29f0d29e1db886cb",
    "size equal to zero": "76c6fbd8ad0d4e94",
    "difference equal to zero": "a71ff1ea6cbd69c7",
    "root equal to zero": "76c6fbd8ad0d4e94",
    "size below the smallest normal": "76c6fbd8ad0d4e94",
}
