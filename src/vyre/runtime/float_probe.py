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
)  # fmt: skip
"""Bits of zeros, ones, the smallest normal and its neighbours, subnormals, the largest, infinities, NaNs, numbers whose
products lie around 2^-126, and bounds of the integer types."""
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
    "add": "bdd28068b5e00c69",
    "subtract": "7027afe8c63c0895",
    "multiply": "4fe8385d9baa3cef",
    "divide": "4f5b6d8b8b9c5ea9",
    "square root": "f25d3733f6e16fda",
    "fused multiply and add": "0f4cb347444a961e",
    "product and sum": "959a6c22b536cbf5",
    "sum less a part": "01e3980b63c6b5d5",
    "error of a sum": "8fe9ee567ecfcac6",
    "difference with itself": "03b38d638608cdfc",
    "sum with zero": "a67911cc2c255d42",
    "product with zero": "9bca324cd1e6d0e8",
    "rounding by a large sum": "935c364b012d9786",
    "square of a root": "26e76532d7855c5c",
    "reciprocal of a reciprocal": "fb1d16adb58ecbc1",
    "minimum": "4e458bfb5018b344",
    "maximum": "d7aba02e5523eca8",
    "absolute value": "c597e83e07527793",
    "negation": "a784ec0b790d5f27",
    "floor": "bff57b9ff0cfe72f",
    "from an integer": "d83e6e5b9d832bf9",
    "copy": "2b1ed643f78e8fc3",
    "size with zero": "c597e83e07527793",
    "choice below zero": "c96021102531fb1e",
    "product with one": "206a8cf52b1cfd57",
    "product of constants": "7c9822eb571dd3e8",
    "less": "e4c410c1789bc9de",
    "equal to zero": "c55f76c4b42a2fd7",
    "different from itself": "ac929b4a31bce9f4",
    "to u32": "84af36ef0bdfeff4",
    "to i32": "3e11ced855415c4f",
    "size equal to zero": "c55f76c4b42a2fd7",
    "difference equal to zero": "8a5d361727e2c310",
    "root equal to zero": "c55f76c4b42a2fd7",
    "size below the smallest normal": "c55f76c4b42a2fd7",
}
