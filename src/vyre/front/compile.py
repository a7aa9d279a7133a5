"""Which backend runs a program, and the pipeline it runs through.

The front keeps one open backend per name. It is opened by the first call that needs it and forgotten when the set of
registered backends changes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentTypeError
from ..foundation import lang
from ..foundation.program import Program

if TYPE_CHECKING:
    from ..driver.contract import CompiledPipeline, VyreBackend
    from ..driver.registry import Loser, Selection
    from ..driver.values import DispatchConfig

_lock = threading.Lock()
_open_backends: dict[str, VyreBackend] = {}
_opened_at = -1
"""The generation of the registry that `_open_backends` belongs to."""


def compile(
    program: Program, *, backend: str | VyreBackend | None = None, config: DispatchConfig | None = None
) -> CompiledPipeline:
    """Compile a program once, to dispatch it many times.

    `backend` is one that was acquired, or names one ("id" or "id:device"); without it the preferred one is taken.
    """
    from ..driver import pipeline

    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"compile() got a {type(program).__name__}, not a program", fix="pass kernel.program or Program.from_wire()"
        )
    if isinstance(backend, str | None):
        backend = backend_for(backend, program)
    return pipeline.compile(backend, program, config)


def backend_for(name: str | None, program: Program) -> VyreBackend:
    """The open backend of that name, or the one that is chosen for the program."""
    from ..driver import registry

    if name is None:
        return _keep(choose(program))
    with _lock:
        opened = _current()
        if name not in opened:
            opened[name] = registry.acquire(name)
        return opened[name]


def choose(program: Program) -> Selection:
    """Select a backend. A registry of nothing but oracles gives one of those.

    An oracle is never chosen in place of a backend that is there: it would be a thousand times slower without a word.
    Where no other one is installed it is what a kernel can run on at all.
    """
    from ..driver import registry

    everyone = registry.registered_backends_by_precedence()
    only_oracles = all(b.problem() is not None or b.registration.kind == "oracle" for b in everyone)
    return registry.select(program, allow_oracle=only_oracles)


def losers_for(program: Program) -> tuple[Loser, ...]:
    """Why a program does not run on the backends that were not chosen for it."""
    found = choose(program)
    _keep(found)
    return found.losers


def _keep(found: Selection) -> VyreBackend:
    """The backend that is open under that name: the new one is spare if there was one before."""
    with _lock:
        kept = _current().setdefault(found.chosen, found.backend)
    if kept is not found.backend:
        found.backend.shutdown()
    return kept


def _current() -> dict[str, VyreBackend]:
    """The open backends. Those of another registry are let go, not shut down: somebody may be using them."""
    from ..driver.registry import generation

    global _opened_at
    if _opened_at != generation():
        _open_backends.clear()
        _opened_at = generation()
    return _open_backends


class _Select(lang.Intrinsic):
    """`select(program)` says which backend would run it, and why not the others. Any other call is a kernel's own."""

    def __call__(self, *args: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], Program):
            return choose(args[0])
        return super().__call__(*args)


select = _Select(lang.select.name, lang.select.signature, lang.select.op, lang.select._build)
