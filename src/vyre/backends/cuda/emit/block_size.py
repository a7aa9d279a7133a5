"""How many threads has a block? As many as a workgroup has invocations, unless it does not matter and is too few.

A warp is 32 threads whatever it has to do, and few blocks share a multiprocessor. So small workgroups whose invocations
know nothing of each other are joined: a block has as many threads as lets most of them run at once, each does one
invocation of the launch, and the id of its workgroup is a quotient. Such a kernel takes one more argument at the end:
last_x, the number of invocations of the launch along x, less 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....driver.policy.decision import Decision
from ....driver.policy.geometry import choose_block
from ....foundation.meaning.subgroup import SUBGROUP_WIDTH
from ....lower.c.emitter import ENTRY, Emitter
from ....lower.kernel_ir import Kernel, walk
from .text import Cuda

TOGETHER = frozenset(("lane", "barrier", "subgroup"))
"""Instructions that depend on other invocations."""


def decide_block(kernel: Kernel, each: int) -> Decision:
    """As `choose_block`, of a kernel whose threads can do so many invocations each."""
    apart = (
        not kernel.whole
        and not any(b.shared for b in kernel.buffers)
        and not any(item.op in TOGETHER for item in walk(kernel.body))
    )
    return choose_block(kernel.workgroup, apart=apart, each=each, step=SUBGROUP_WIDTH)


class JoinedCuda(Cuda):
    """For a kernel that does not know how many threads a block has."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._width = kernel.workgroup[0]

    def head(self, kernel: Kernel) -> list[str]:
        return ['extern "C" __global__ void', ENTRY]

    def group_id(self, axis: int) -> str:
        return super().group_id(axis) if axis else f"(at / {self._width}u)"

    def local_id(self, axis: int) -> str:
        return super().local_id(axis) if axis else f"(at % {self._width}u)"


class JoinedEmitter(Emitter):
    """Mixed into another, with `JoinedCuda`."""

    def parameters(self) -> list[tuple[str, str]]:
        return [*super().parameters(), last_parameter()]

    def id_lines(self, body: Sequence[str]) -> list[str]:
        return [
            "    const uint at = blockIdx.x * blockDim.x + threadIdx.x; // in the launch",
            "    if (at > last_x) { return; }",
            *super().id_lines(body),
        ]


def last_parameter() -> tuple[str, str]:
    return "const uint last_x", "invocations of the launch along x, less 1"


def active_blocks(cu: Any, ok: Callable[[Any, str], Any], function: Any, shared_bytes: int, threads: int) -> int:
    """Blocks of a loaded kernel that run on a multiprocessor at once; 0 where it has too many registers for one."""
    found = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared_bytes)
    return int(ok(found, "asking how many blocks run at once"))
