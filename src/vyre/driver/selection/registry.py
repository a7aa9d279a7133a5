"""Which backends are there, in which order, and which one runs this program?

A package offers a backend by an entry point of the group `vyre.backends` named `<id>.<precedence>` (`"mine.50"`;
without a number 500). Listing reads these names and nothing else. The record behind a name is loaded when that id is
first used and must agree with its name; a duplicate or broken id disables that id alone.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BackendUnavailable,
    DeadlineExceeded,
    InvalidProgram,
    VyreError,
    shown,
)
from ...foundation.forking import in_child
from ..policy.decision import Decision
from ..settings import knobs as settings
from .installed import packages
from .listing import BackendListing, unusable

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.registration import BackendRegistration, DeviceInfo
    from ..guard.backend import GuardedBackend
    from ..settings.knobs import Knob
    from .probe import Probe

T = TypeVar("T")
__all__ = [
    "BackendListing", "FallbackWarning", "Loser", "Selection", "acquire", "acquire_preferred_dispatch_backend",
    "backend_dispatches", "backend_precedence", "backend_registration", "devices",
    "fallback_counts", "generation", "isolated", "preferred", "probed", "problems", "refresh", "register",
    "registered_backends", "registered_backends_by_precedence", "select",
]  # fmt: skip

GROUP = "vyre.backends"
DEFAULT_PRECEDENCE = 500
_ENTRY_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)(?:\.(\d{1,9}))?\Z")
_ON_REQUEST = "only used when asked for"


class FallbackWarning(RuntimeWarning):
    """The user's first choice of backend was not used; the next one on the user's own list was."""

    def __init__(self, skipped: str, used: str, reason: str) -> None:
        super().__init__(skipped, used, reason)
        self.skipped, self.used, self.reason = skipped, used, reason

    def __str__(self) -> str:
        return f"running on {self.used}, because {self.skipped} cannot be used: {self.reason}"


# ---- all backends ---------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    by_id: dict[str, BackendListing]
    listed: tuple[BackendListing, ...]
    by_precedence: tuple[BackendListing, ...]
    disabled: dict[str, str]


class _Registry:
    """The backends of a process, or of a test: scanned once, then read without a lock."""

    def __init__(self, scan: Callable[[dict[str, str]], Iterable[BackendListing]]) -> None:
        self._scan = scan
        self._own: list[BackendListing] = []
        self._table: _Table | None = None
        self.renew_lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()

    def table(self) -> _Table:
        table = self._table
        if table is None:
            with self._lock:
                table = self._table = self._table or self._build()
        return table

    def refresh(self) -> None:
        self._table = None

    def add(self, registration: BackendRegistration) -> None:
        known = self.table()
        if registration.id in known.by_id or registration.id in known.disabled:
            raise ArgumentValueError(
                f"a backend {registration.id!r} is already registered",
                fix="choose another id; a test replaces the registry with isolated(...)",
            )
        with self._lock:
            self._own.append(BackendListing.of(registration))
            self._table = None

    def _build(self) -> _Table:
        disabled: dict[str, str] = {}
        offers: dict[str, list[BackendListing]] = {}
        for listing in (*self._scan(disabled), *self._own):
            offers.setdefault(listing.id, []).append(listing)
        by_id: dict[str, BackendListing] = {}
        for id, listings in sorted(offers.items()):
            if len(listings) == 1 or _one_package(listings):
                by_id[id] = listings[0]  # of a package that is there twice, imports find the first
            else:
                providers = ", ".join(sorted(listing.provider for listing in listings))
                disabled[id] = f"it is provided more than once ({providers})"
        order = tuple(sorted(by_id.values(), key=lambda listing: (listing.precedence, listing.id)))
        return _Table(by_id, tuple(by_id.values()), order, disabled)


def _installed(disabled: dict[str, str]) -> Iterator[BackendListing]:
    """Every entry point of the group. Packages whose metadata cannot be read go to `disabled`."""
    for package in packages():
        try:
            points = package.entry_points(GROUP)
        except Exception as e:
            disabled[package.label] = f"its entry points cannot be read: {type(e).__name__}: {e}"
            continue
        for name, load in points:
            if match := _ENTRY_NAME.match(name):
                id, number = match.groups()
                precedence = DEFAULT_PRECEDENCE if number is None else int(number)
                yield BackendListing(id, precedence, load, package)
            else:
                disabled[name] = f"its entry point ({package.label}) is not named <id>.<precedence>"


def _one_package(listings: Sequence[BackendListing]) -> bool:
    """Whether these are copies of one package, each with one entry point for the id."""
    owners = {id(listing.package): listing.package for listing in listings}
    names = {None if package is None else package.name for package in owners.values()}
    return len(owners) == len(listings) and len(names) == 1 and None not in names


_current = _Registry(_installed)
_registries = [_current]
"""The installed backends, then those of each `isolated` block that has not ended; the last is current."""
_generation = 0
_swap = threading.Lock()


def _changed() -> None:
    global _generation
    _generation += 1


@in_child
def _forked() -> None:
    """In a child: the parent's backends, with their threads, and the threads that held a lock are not here."""
    global _swap
    _swap = threading.Lock()
    for registry in _registries:
        registry.renew_lock()
    _changed()


def registered_backends() -> tuple[BackendListing, ...]:
    """Every backend that is not disabled, by id. Loads nothing."""
    return _current.table().listed


def registered_backends_by_precedence() -> tuple[BackendListing, ...]:
    """The same, lowest precedence first, then by id."""
    return _current.table().by_precedence


def problems() -> dict[str, str]:
    """Ids that are disabled, with the reason. A record that was not used yet is not looked at."""
    table = _current.table()
    broken = {b.id: b._problem for b in table.listed if b._problem is not None}
    return dict(sorted({**table.disabled, **broken}.items()))


def backend_precedence(id: str) -> int:
    """Lower is asked first; the highest u32 for an unknown id."""
    from ..contract.registration import PRECEDENCE_UNKNOWN

    listing = _by_id(id)
    return PRECEDENCE_UNKNOWN if listing is None else listing.precedence


def backend_dispatches(id: str) -> bool:
    """Whether it runs programs (and not only emits them); False for an unknown or broken id."""
    listing = _by_id(id)
    return listing is not None and listing.problem() is None and listing.registration.dispatches


def backend_registration(id: str) -> BackendRegistration | None:
    """The record of an id, None when unknown; a disabled one raises."""
    return None if _by_id(id) is None and id not in _current.table().disabled else _listing(id).registration


def backend_knobs(name: str | None) -> Iterator[Knob[Any]]:
    """The settings of every sound backend. With a name, no backend is loaded whose id it does not begin with."""
    for listing in registered_backends():
        if (name is None or name.startswith(f"{listing.id}_")) and listing.problem() is None:
            yield from listing.registration.knobs


def _by_id(id: str) -> BackendListing | None:
    if not isinstance(id, str):
        raise ArgumentTypeError(f"{shown(id)} is not the id of a backend", fix='pass its id: "cpu"')
    return _current.table().by_id.get(id)


def devices(id: str) -> tuple[DeviceInfo, ...]:
    """The devices of a backend, best first."""
    return _listing(id).devices()


def locate(name: str) -> tuple[str, DeviceInfo]:
    """The id and the device that a name ("id" or "id:device") means; an id alone means its best device."""
    id, device = _split(name)
    listing = _listing(id)
    known = listing.devices()
    if not known:
        listing.open(device)  # which raises, and says why there is none
    return id, known[0] if device is None and known else listing.find("0" if device is None else device)


def register(registration: BackendRegistration) -> None:
    """Add a backend to this process."""
    _check_record(registration)
    if "." in registration.id or not _ENTRY_NAME.match(registration.id):
        raise ArgumentValueError(
            f"{registration.id!r} is not an id of a backend", fix="use letters, digits, - and _, a letter first"
        )
    _current.add(registration)
    _changed()


def _check_record(registration: object) -> None:
    """A record that can be sorted among others; whether the rest of it is sound is seen when it is used."""
    from ..contract.registration import PRECEDENCE_UNKNOWN, BackendRegistration

    if not isinstance(registration, BackendRegistration):
        raise ArgumentTypeError(
            f"{type(registration).__name__} is not a registration", fix="pass BackendRegistration(id=..., open=...)"
        )
    id, precedence = type(registration.id), type(registration.precedence)
    if not issubclass(id, str):
        raise ArgumentTypeError(f"the id of a registration is a {id.__name__}", fix='pass a text: id="mine"')
    if precedence is bool or not issubclass(precedence, int):
        raise ArgumentTypeError(
            f"the precedence of backend {registration.id} is a {precedence.__name__}",
            fix="pass a whole number: precedence=500",
        )
    if abs(registration.precedence) > PRECEDENCE_UNKNOWN:
        raise ArgumentValueError(
            f"the precedence of backend {registration.id} has more than 32 bits", fix="pass one like the others: 500"
        )


def refresh() -> None:
    """Look again: packages were installed or removed while this process runs."""
    _current.refresh()
    _changed()


def generation() -> int:
    """Changes whenever a choice made before may be another now; settings are not part of it."""
    return _generation


@contextmanager
def isolated(*registrations: BackendRegistration) -> Iterator[None]:
    """For tests: these backends are all there is, in every thread, until the block ends.

    Where blocks of several threads overlap, the one that began last holds.
    """
    global _current
    for registration in registrations:
        _check_record(registration)
    inside = _Registry(lambda _: [BackendListing.of(r) for r in registrations])
    with _swap:
        _registries.append(inside)
        _current = inside
        _changed()
    try:
        yield
    finally:
        with _swap:
            _registries.remove(inside)
            _current = _registries[-1]
            _changed()


# ---- getting one ----------------------------------------------------------------------------------------------------


class Loser(NamedTuple):
    name: str
    reason: str


class Selection(NamedTuple):
    """The backend that runs the program, open and not yet prepared, and why the others do not."""

    chosen: str
    backend: GuardedBackend
    losers: tuple[Loser, ...]
    why: str = "the first that is available and runs it"

    @property
    def decision(self) -> Decision:
        others = (f"{loser.name}: {loser.reason}" for loser in self.losers)
        return Decision("backend", self.backend.id, "; ".join([self.why, *others]))

    def __str__(self) -> str:
        return "\n".join([f"{self.chosen}: chosen", *(f"{loser.name}: {loser.reason}" for loser in self.losers)])

    def _repr_html_(self) -> str:
        from ...foundation import html

        return html.page(f"chosen: {self.chosen}", html.table(("not chosen", "why"), self.losers))


def acquire(name: str) -> GuardedBackend:
    """Open the backend `id` or `id:device`: this one or an error."""
    id, device = _split(name)
    return _opened(_listing(id), device)


def acquire_preferred_dispatch_backend(
    program: Program | None = None, *, allow_oracle: bool = False, strict: bool | None = None
) -> GuardedBackend:
    """The backend that `select` chooses."""
    return select(program, allow_oracle=allow_oracle, strict=strict).backend


def select(program: Program | None = None, *, allow_oracle: bool = False, strict: bool | None = None) -> Selection:
    """Choose a backend: the first in order of precedence that is available and admits the program.

    No backend after it is opened. The setting `backend` (`VYRE_BACKEND`) replaces the order by the user's own: one
    name, or several with commas; of those, a later one is used with a FallbackWarning, or not at all if `strict`, a
    setting too.
    A backend that runs on request only (the reference, clusters) is never chosen unless named there; `allow_oracle`
    admits oracles after all others.
    """
    if program is not None:
        from ...foundation.ir.program import Program

        if not isinstance(program, Program):
            raise ArgumentTypeError(
                f"select() got a {type(program).__name__}, not a program", fix="pass kernel.program, or nothing"
            )
    listed = settings.BACKEND.setting()
    if listed.value:
        return _select_listed(listed, program, settings.STRICT.value() if strict is None else strict)
    return _select_by_precedence(program, allow_oracle)


def preferred(look: Callable[[BackendListing], Probe] | None = None) -> str | None:
    """The backend of a plain call, without opening any; None where there is none. `look` is a brief probe."""
    everyone, look = registered_backends_by_precedence(), look or partial(probed, brief=True)
    if names := settings.BACKEND.value():
        sound = {each.id: each for each in everyone if each.problem() is None}
        there = (name for name in names if (each := sound.get(name.partition(":")[0])) and not look(each).unavailable)
        return next(there, None)
    best = next(_candidates(everyone, False, {}, look), None)
    return None if best is None else best.id


def fallback_counts() -> dict[tuple[str, str], int]:
    """How often the second backend was used because the first could not be."""
    with _swap:
        return dict(_fallbacks)


_fallbacks: Counter[tuple[str, str]] = Counter()


def _select_by_precedence(program: Program | None, allow_oracle: bool) -> Selection:
    losers: dict[str, str] = {}
    everyone = registered_backends_by_precedence()
    for listing in _candidates(everyone, allow_oracle, losers, partial(probed, brief=True)):
        try:
            backend = _in_time(listing, partial(_open_for, listing, None, program))
        except InvalidProgram:
            raise  # it is wrong on every backend
        except VyreError as e:
            if isinstance(e, BackendUnavailable):
                listing.forget()
            losers[listing.id] = str(e)
            continue
        later = f"ranks after {listing.id}; not asked"
        others = (Loser(other.id, losers.get(other.id, later)) for other in everyone if other is not listing)
        return Selection(listing.id, backend, tuple(others))
    losers |= {id: f"disabled: {why}" for id, why in problems().items()}
    tried = "; ".join(f"{id}: {why}" for id, why in losers.items()) or "none is registered"
    spare = next((id for id, why in reversed(losers.items()) if why == _ON_REQUEST), None)
    raise BackendUnavailable(
        f"no usable dispatch backend is available ({tried})",
        fix=f"ask for one by name: acquire({spare!r}) or VYRE_BACKEND={spare}"
        if spare
        else "install a package with a backend for this machine, and see problems() for those that are disabled",
    )


def _candidates(
    everyone: Sequence[BackendListing],
    allow_oracle: bool,
    losers: dict[str, str],
    look: Callable[[BackendListing], Probe],
) -> Iterator[BackendListing]:
    """Backends that may be chosen, best first, each looked at only when those before it were not chosen."""
    emulated: list[BackendListing] = []
    oracles: list[BackendListing] = []
    for listing in everyone:
        if (why := listing.problem()) is not None:
            losers[listing.id] = f"disabled: {why}"
            continue
        record = listing.registration
        if not record.dispatches:
            losers[listing.id] = "it emits programs and does not run them"
        elif record.kind == "oracle" and allow_oracle:
            oracles.append(listing)
        elif record.kind in ("oracle", "distributed"):
            losers[listing.id] = _ON_REQUEST
        elif (why := (found := look(listing)).unavailable) is not None:
            losers[listing.id] = why
        elif record.kind == "device" and found.emulated:
            names = ", ".join(d.name for d in found.devices)
            losers[listing.id] = f"its devices run on the processor ({names}), so backends made for that come first"
            emulated.append(listing)
        else:
            yield listing
    for listing in (*emulated, *oracles):
        losers.pop(listing.id, None)
        yield listing


def probed(listing: BackendListing, *, brief: bool = False) -> Probe:
    """Whether it would open, and its devices; a backend that does not answer in time would not. See `probe` there."""
    known = listing.lately(brief=brief)  # a thread that asks costs 0.2 ms, and a choice looks at several backends
    if known is not None:
        return known
    try:
        return _in_time(listing, partial(listing.probe, brief=brief))
    except BackendUnavailable as e:
        from .probe import Probe

        return Probe(str(e))


def _in_time(listing: BackendListing, ask: Callable[[], T]) -> T:
    """The answer of a backend. The user did not name it, so it may not keep the others waiting for ever."""
    from ..pipeline.deadline import call_within

    seconds = settings.ACQUIRE_TIMEOUT.value()
    in_this_context = partial(copy_context().run, ask)  # on a thread, and settings go with the context
    try:
        return call_within(in_this_context, seconds, lambda: lambda: None)
    except DeadlineExceeded as e:
        raise BackendUnavailable(
            f"backend {listing.id} did not answer within {seconds:g} s",
            fix="ask for another one by name, or set VYRE_ACQUIRE_TIMEOUT to more seconds",
            backend=listing.id,
        ) from e


def _callers_level() -> int:
    """For a warning of the function that asks: the level of the nearest caller outside of this package."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level


def _select_listed(listed: settings.Setting, program: Program | None, strict: bool) -> Selection:
    names: settings.Names = listed.value
    losers: list[Loser] = []
    for i, name in enumerate(names):
        id, device = _split(name)
        try:
            backend = _open_for(_listing(id), device, program)
        except InvalidProgram:
            raise
        except VyreError as e:
            if strict or len(names) == 1:
                raise
            losers.append(Loser(name, str(e)))
            continue
        for loser in losers:
            with _swap:
                _fallbacks[loser.name, name] += 1
            warnings.warn(FallbackWarning(loser.name, name, loser.reason), stacklevel=_callers_level())
        after = (Loser(n, f"listed after {name}; not asked") for n in names[i + 1 :])
        return Selection(name, backend, (*losers, *after), f"{listed} asks for it")
    raise BackendUnavailable(
        f"no backend of {listed.origin} can be used ({'; '.join(f'{x.name}: {x.reason}' for x in losers)})",
        fix=f"repair one of them, or list another: {_names()}",
    )


def _open_for(listing: BackendListing, device: str | None, program: Program | None) -> GuardedBackend:
    backend = _opened(listing, device)
    if program is not None:
        from ..admission.program import admit  # the validator comes with it

        try:
            admit(program, backend)
        except VyreError:
            with suppress(Exception):
                backend.shutdown()
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            raise listing.refused(f"backend {listing.id} cannot say what it runs", e) from e
    return backend


def _opened(listing: BackendListing, device: str | None) -> GuardedBackend:
    from ..guard.backend import guarded
    from ..pipeline.store import DiskPipelineCache

    backend = listing.open(device)
    try:
        guard = guarded(backend)
        guard.why_device = "the best of its devices" if device is None else f"{listing.id}:{device} asks for it"
        if guard.pipelines.store is None:
            guard.pipelines.store = DiskPipelineCache.shared()
        return guard
    except (VyreError, KeyboardInterrupt):
        raise
    except BaseException as e:
        raise listing.refused(f"backend {listing.id} cannot say what it can do", e) from e


def _split(name: str) -> tuple[str, str | None]:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{shown(name)} is not the name of a backend", fix='pass "id" or "id:device"')
    id, colon, device = name.partition(":")
    if not id.strip() or (colon and not device.strip()):
        raise ArgumentValueError(
            f"{shown(name)} is not the name of a backend", fix=f'use "id" or "id:device" with one of: {_names()}'
        )
    return id.strip(), device.strip() or None


def _listing(id: str) -> BackendListing:
    if found := _by_id(id):
        return found
    if why := _current.table().disabled.get(id):
        raise unusable(id, why)
    raise BackendUnavailable(
        f"backend {shown(id)} is not linked: no installed package provides it",
        fix=f"use one of: {_names()}; or install the package that provides it",
        backend=id,
    )


def _names() -> str:
    return ", ".join(_current.table().by_id) or "(none is registered)"
