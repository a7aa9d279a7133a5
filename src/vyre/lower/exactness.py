"""Does a machine compute the canonical f32? A kernel to ask it with, and what it must answer.

The kernel takes edge values through single steps and through compositions that a compiler may be tempted to simplify;
what it must give is known as one digest per step.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..errors import DeviceLost, DeviceOutOfMemory, VyreError
from ..foundation.dtypes import f32, i32, u32
from ..foundation.ir import BinOp, Bitcast, Cast, Expr, Fma, InvocationId, Load, Node, Store, UnOp, lit
from ..foundation.ops import BinaryOp, UnaryOp
from ..foundation.program import Program, read, write_only

if TYPE_CHECKING:
    from ..driver.offload.device import Built, Device

D = TypeVar("D", bound="Device")

EDGES = (
    0x00000000, 0x80000000, 0x3F800000, 0xBFC00000, 0x3F800001, 0x00800000, 0x80800000, 0x00800001, 0x007FFFFF,
    0x80000001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x1FFFFFFF, 0x20000000, 0xA0000001,
    0x4B400000, 0x4F000000, 0x4F800000, 0xCF000001, 0x3EFFFFFF, 0x40490FDB,
)  # fmt: skip
"""Bits of zeros, ones, the smallest normal and its neighbours, subnormals, the largest, infinities, NaNs, numbers whose
products lie around 2^-126, and bounds of the integer types."""
TRIPLES = tuple((a, b, EDGES[(5 * i + 7 * j) % len(EDGES)]) for i, a in enumerate(EDGES) for j, b in enumerate(EDGES))
LANES = 64
"""Invocations of a workgroup."""
GROUPS = -(-len(TRIPLES) // LANES)


def _steps() -> dict[str, Expr]:
    """Name -> an expression over the f32 values of buffers a, b and c, as a u32."""
    at = InvocationId(0)
    a, b, c = (Bitcast(f32, Load(name, at)) for name in ("a", "b", "c"))
    zero, shift = lit(0.0), lit(12582912.0)
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
    }
    words: dict[str, Expr] = {
        "less": Cast(u32, BinOp(BinaryOp.LT, a, b)),
        "equal to zero": Cast(u32, BinOp(BinaryOp.EQ, a, zero)),
        "different from itself": Cast(u32, BinOp(BinaryOp.NE, a, a)),
        "to u32": Cast(u32, a),
        "to i32": Bitcast(u32, Cast(i32, a)),
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


def run_probe(device: Device, built: Built) -> bytes:
    """The output of the probe's program on a device with memory of its own."""
    return run_once(device, built, probe_inputs(), output_bytes(), GROUPS)


def run_once(device: Device, built: Built, inputs: Sequence[bytes], nbytes: int, groups: int) -> bytes:
    """The output, in so many bytes, of a program over words whose last buffer that is."""
    code, batch = device.load(built), device.batch()
    sizes = [-(-n // 16) * 16 for n in (*map(len, inputs), nbytes)]
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


def why_wrong(run: Callable[[D, Built], bytes], device: D, built: Built) -> str | None:
    """Why what the probe gives is not canonical. A device that is lost or full gives no answer: that is raised."""
    try:
        wrong = differing(run(device, built))
    except (DeviceLost, DeviceOutOfMemory):
        raise
    except VyreError as e:
        return e.message
    return f"results differ in {', '.join(wrong)}" if wrong else None


CANONICAL: dict[str, str] = {
    "add": "92ab8c03f2fb6752",
    "subtract": "9facd3baecfb1d60",
    "multiply": "63cd4f0b1be39f5e",
    "divide": "8980f5df50962085",
    "square root": "b2b055c5a32d8322",
    "fused multiply and add": "06137796acea673a",
    "product and sum": "6bb6116c28165680",
    "sum less a part": "dd3047e77d4187f4",
    "error of a sum": "1028e106fecca8ad",
    "difference with itself": "9f82a10fa5e4f94a",
    "sum with zero": "f9c618a6ccb895ca",
    "product with zero": "078cd3401743926e",
    "rounding by a large sum": "0600ba1b01d85ece",
    "square of a root": "d720443b53e2292f",
    "reciprocal of a reciprocal": "5f6dc1d19161884b",
    "minimum": "e3576725f468127d",
    "maximum": "819cef113fdc3593",
    "absolute value": "62628e6c652ef30d",
    "negation": "19fca83c60202782",
    "floor": "d0fe27610f6d7c50",
    "from an integer": "e5559c593c6a91e2",
    "copy": "151e0da04a9d5f21",
    "less": "7e51c3e01bdd321f",
    "equal to zero": "c289cc8aabb54f1c",
    "different from itself": "a51dba1f62447fb4",
    "to u32": "0ff45cc765180843",
    "to i32": "55e8a49ec101db7d",
}
