"""Histograms without contention: buffers that a kernel only ever adds to, so that each worker may have a copy."""

from __future__ import annotations

from ...foundation.ir.ops import AtomicOp
from ..kernel_ir import Buffer, Kernel, walk


def privatize_atomics(kernel: Kernel) -> None:
    """Mark bound buffers whose every access is one and the same order-free atomic with an unused result.

    Their length is known at dispatch, so the launch decides whether to copy them.
    """
    ops: dict[Buffer, set[AtomicOp | None]] = {}
    for item in walk(kernel.body):
        if item.op == "atomic":
            op, buffer = item.attr  # type: ignore[union-attr]
            free = op.order_free and not item.used  # type: ignore[union-attr]
            ops.setdefault(buffer, set()).add(op if free else None)
        elif item.op in ("load", "store"):
            ops.setdefault(item.attr, set()).add(None)  # type: ignore[union-attr]
    for buffer, used in ops.items():
        buffer.private = not buffer.shared and len(used) == 1 and None not in used
