"""Which backend runs a program, and the pipeline it runs through.

The front keeps one open backend per name. It is opened by the first call that needs it and forgotten when the set of
registered backends changes, or when a caller shuts it down or recovers it. One whose device is lost is recovered by the
next call, where it can be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING

from ..errors import ArgumentTypeError, UnsupportedFeature, VyreError
from ..foundation.forking import in_child
from ..foundation.ir.program import Program

if TYPE_CHECKING:
    from ..driver.contract.backend import VyreBackend
    from ..driver.contract.values import DispatchConfig
    from ..driver.execute.pipeline import DriverPipeline
    from ..driver.guard.backend import GuardedBackend
    from ..driver.guard.compile import PipelinePrewarmReport
    from ..driver.selection.registry import Selection

_lock = threading.Lock()
_open_backends: dict[str, tuple[GuardedBackend, int]] = {}
"""By name, each with the epoch of its pipelines when it was opened; another epoch means that its state is gone."""
_opened_at = -1
"""The generation of the registry that `_open_backends` belongs to."""


@in_child
def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a thread that is not in the child may have held the other


def compile(
    program: Program, *, backend: str | VyreBackend | None = None, config: DispatchConfig | None = None
) -> DriverPipeline:
    """Compile a program once, to dispatch it many times.

    `backend` is one that was acquired, or names one ("id" or "id:device"); without it the preferred one is taken.
    """
    from ..driver.guard.compile import compile as compile_program

    if not isinstance(program, Program):
        raise ArgumentTypeError(
            f"compile() got a {type(program).__name__}, not a program", fix="pass kernel.program or Program.from_wire()"
        )
    if isinstance(backend, str | None):
        backend = backend_for(backend, program)
    return compile_program(backend, program, config)


def prewarm(
    programs: Iterable[Program],
    *,
    backend: str | VyreBackend | None = None,
    config: DispatchConfig | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> list[PipelinePrewarmReport]:
    """Compile programs before they are needed, several at once; a report of each says where its code was found.

    Calls of their kernels in this process, and with the disk cache those of later ones, compile nothing. `backend` is
    as in `compile`; `progress(done, total)` is called as each program ends. If some cannot be compiled, all others are,
    and then the first error is raised.
    """
    from ..driver.guard.prewarm import prewarm_all

    if isinstance(programs, Program) or not isinstance(programs, Iterable):
        raise ArgumentTypeError(
            f"prewarm() got a {type(programs).__name__}, not programs", fix="pass [kernel.program, ...]"
        )
    if not isinstance(threads, int | None):
        raise ArgumentTypeError(f"threads is a {type(threads).__name__}", fix="pass a number of threads: threads=4")
    if progress is not None and not callable(progress):
        raise ArgumentTypeError(
            f"progress is a {type(progress).__name__}", fix="pass a function of two numbers: progress(done, total)"
        )
    found = list(programs)
    for program in found:
        if not isinstance(program, Program):
            raise ArgumentTypeError(
                f"prewarm() got a {type(program).__name__} among the programs", fix="pass [kernel.program, ...]"
            )
    wanted, errors, ended = [], [], count(1)

    def step(_: object = None) -> None:
        if progress is not None:
            progress(next(ended), len(found))

    for program in found:
        try:
            wanted.append((backend_for(backend, program) if isinstance(backend, str | None) else backend, program))
        except VyreError as e:
            errors.append(e)
            step()
    warmed = prewarm_all(wanted, config, threads=threads, done=step)
    for error in (*errors, *(one.error for one in warmed)):
        if error is not None:
            raise error
    return [one.report for one in warmed if one.report is not None]


def backend_for(name: str | None, program: Program) -> GuardedBackend:
    """The open backend of that name, or the one that is chosen for the program."""
    from ..driver.selection import registry

    at = registry.generation()
    if name is None:
        found = choose(program)
        _recover(found.chosen)
        return _keep(found.chosen, found.backend, at)
    return open_backend(name)


def open_backend(name: str) -> GuardedBackend:
    """The open backend of that name."""
    from ..driver.selection import registry

    at = registry.generation()
    _recover(name)
    with _lock:
        kept = _kept(name)
    return _keep(name, registry.acquire(name), at) if kept is None else kept


def choose(program: Program | None = None) -> Selection:
    """Select a backend. A registry of nothing but oracles gives one of those.

    An oracle is never chosen in place of a backend that is there: it would silently be a thousand times slower.
    Where no other one is installed, a kernel runs on it.
    """
    from ..driver.selection import registry

    everyone = registry.registered_backends_by_precedence()
    only_oracles = all(b.problem() is not None or b.registration.kind == "oracle" for b in everyone)
    return registry.select(program, allow_oracle=only_oracles)


def choice_for(program: Program) -> Selection:
    """The choice of the backend for a program that names none."""
    from ..driver.selection.registry import generation

    at, found = generation(), choose(program)
    _keep(found.chosen, found.backend, at)
    return found


def _recover(name: str) -> None:
    """Recover the device of the open backend of that name, if it is lost. A backend that cannot is opened anew."""
    from ..driver.device_state import Phase
    from ..driver.pipeline.compiler import pipelines_of

    with _lock:
        backend, _ = _open_backends.get(name, (None, 0))
    if backend is None or backend.device_state.phase not in (Phase.LOST, Phase.RECOVERING, Phase.GIVEN_UP):
        return
    try:
        backend.try_recover()
    except UnsupportedFeature:
        return  # its pipelines have ended, so it is forgotten
    with _lock:
        if _open_backends.get(name, (None, 0))[0] is backend:
            _open_backends[name] = backend, pipelines_of(backend).epoch


def _keep(name: str, backend: GuardedBackend, at: int) -> GuardedBackend:
    """The backend that is open under that name: the new one is spare if there was one before.

    It was opened without the lock, since `open` may come back here; `at` is the registry's generation before that.
    """
    from ..driver.pipeline.compiler import pipelines_of
    from ..driver.selection.registry import generation

    with _lock:
        kept = _kept(name)
        if kept is None:
            if at == generation():
                _open_backends[name] = backend, pipelines_of(backend).epoch
            return backend
    if kept is not backend:
        backend.shutdown()
    return kept


def _kept(name: str) -> GuardedBackend | None:
    """The open backend of that name. Those of another registry are let go, not shut down: a thread may be using them.

    The caller has the lock.
    """
    from ..driver.pipeline.compiler import pipelines_of
    from ..driver.selection.registry import generation

    global _opened_at
    if _opened_at != generation():
        _open_backends.clear()
        _opened_at = generation()
    backend, epoch = _open_backends.get(name, (None, 0))
    if backend is not None and pipelines_of(backend).epoch != epoch:
        del _open_backends[name]
        return None
    return backend
