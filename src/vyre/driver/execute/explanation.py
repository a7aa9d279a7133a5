"""What a dispatch would do, with every decision and its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentTypeError
from ...foundation import html
from ...foundation.ir.program import Program
from .. import above
from ..admission.program import admit, settle_config
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, decide_config, decide_floats, named
from ..device_state import WatchedBackend
from ..pipeline.compiler import decide_code, key_of, pipelines_of
from ..plan.claims import decide_determinism
from ..plan.compaction import decide_results
from ..plan.launch import plan_dispatch
from ..plan.stages import launch_limits
from ..policy.decision import Decision
from ..policy.geometry import dims
from ..policy.launch import SEQUENCE
from .pipeline import DriverPipeline
from .route import deadline_of, launch_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class BoundBuffer:
    slot: int
    name: str
    role: str
    element: str
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """A planned dispatch. `str()` is for people, `to_dict()` for JSON."""

    backend: str
    program: str
    pipeline: str | None
    key: dict[str, Any]
    bindings: tuple[BoundBuffer, ...]
    workgroup: tuple[int, int, int]
    grid: tuple[int, int, int]
    invocations: int
    param_words: tuple[int, ...]
    output_bytes: int
    decisions: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def choice(self, what: str) -> str | None:
        """What was decided about this, if there was anything to decide."""
        return next((d.choice for d in self.decisions if d.what == what), None)

    def __str__(self) -> str:
        buffers = [
            f"  slot {b.slot:<3} {b.name:<16} {b.role:<13} {b.elements} x {b.element}, {b.nbytes} bytes"
            for b in self.bindings
        ]
        lines = [
            f"program {self.program[:16]} on {self.backend}, pipeline {self.pipeline or 'not compiled yet'}",
            f"grid {dims(self.grid)} of workgroup {dims(self.workgroup)}, {self.invocations} invocations",
            "buffers:",
            *(buffers or ["  none"]),
            "key:",
            *(f"  {name} = {value}" for name, value in self.key.items()),
            "decisions:",
            *(f"  {decision}" for decision in self.decisions),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html.page(
            f"program {self.program[:16]} on {self.backend}",
            html.facts(
                [
                    ("pipeline", self.pipeline or "not compiled yet"),
                    ("grid", f"{dims(self.grid)} of workgroup {dims(self.workgroup)}"),
                    ("invocations", f"{self.invocations:,}"),
                    ("output bytes", f"{self.output_bytes:,}"),
                ]
            ),
            html.table(("decision", "choice", "reason"), ((d.what, d.choice, d.reason) for d in self.decisions)),
            html.table(
                ("slot", "buffer", "role", "elements", "element", "bytes"),
                ((b.slot, b.name, b.role, f"{b.elements:,}", b.element, f"{b.nbytes:,}") for b in self.bindings),
            ),
            html.code("cache key", "\n".join(f"{name} = {value}" for name, value in self.key.items())),
        )


def explain_dispatch(
    target: object,
    inputs: Sequence[Buffer],
    config: DispatchConfig | None,
    backend: WatchedBackend | None = None,
    memory: str = "host",
    chosen: Decision | None = None,
) -> Explanation:
    """Plan a dispatch of a pipeline, or of a program on a backend. Nothing runs, and nothing is compiled.

    `memory` is where the buffers are: on the `host`, `resident`, or `both`. Of resident inputs the length counts alone.
    `chosen` is how the backend was, where the caller left it to others.
    """
    handle = target if isinstance(target, DriverPipeline) else None
    program = handle.program if handle is not None else target
    backend = handle.backend if handle is not None else backend
    if not isinstance(program, Program) or backend is None:
        raise ArgumentTypeError(
            "there is no dispatch to explain", fix="pass a compiled pipeline, or a program and backend=acquire(...)"
        )
    if not isinstance(config, DispatchConfig | None):
        raise ArgumentTypeError(f"config is {type(config).__name__}", fix="pass DispatchConfig(...), or nothing")
    with named(None if config is None else config.label):
        settled = settle_config(config or DEFAULT_CONFIG, backend) if handle is None else handle.settle(config)
        admit(program, backend, settled)
        plan = plan_dispatch(program, inputs, settled, launch_limits(program, backend, settled), backend.id)
        key = key_of(backend, program, settled)
    native = handle.native if handle is not None and key == handle.key else None  # another config, another code
    entry = pipelines_of(backend).peek(key)  # held, or it may be closed meanwhile
    code = native if native is not None or entry is None else entry.native
    launch = launch_of(program, backend, settled, plan.launch.grid, code)
    return Explanation(
        backend.id,
        program.fingerprint,
        None if native is None else native.id,
        key.facts(),
        tuple(
            BoundBuffer(b.binding, b.name, b.role.value, b.element.name, b.element_count, b.nbytes)
            for b in plan.bindings.bindings
        ),
        plan.launch.workgroup,
        plan.launch.grid,
        prod(plan.launch.workgroup) * prod(plan.launch.grid),
        plan.launch.param_words,
        plan.output_bytes,
        (
            chosen or Decision("backend", backend.id, "the caller chose it"),
            *([Decision("device", backend.device, backend.why_device)] if backend.device else []),
            decide_config(settled, None if handle is None else handle.config),
            *decide_code(backend, key, native),
            *(d for d in plan.launch.decisions if d.what != "determinism"),
            launch,
            *(() if code is None or launch.choice == SEQUENCE else code.decisions(plan, settled, memory)),
            *([decide_results(program, plan.counted)] if plan.counted else []),
            deadline_of(backend, settled),
            decide_floats(settled.ulp_budget, backend.capability, program),
            decide_determinism(program, plan.launch),
            above.decide_shadow(backend),
        ),
    )
