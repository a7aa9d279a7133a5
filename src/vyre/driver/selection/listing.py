"""One backend by its name: id and precedence cost nothing, everything else loads the record behind the name.

The contract is imported where a record is met: listing names does without, and that halves its time. An error or a
wrong answer of a backend's code is a failure of that backend alone; so is `sys.exit()`, which would end the process of
the user. Ctrl-C is not caught.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...errors import BackendUnavailable, VyreError, shown, told

if TYPE_CHECKING:
    from ..contract.backend import VyreBackend
    from ..contract.registration import BackendRegistration, DeviceInfo, Unavailable
    from .installed import Package
    from .probe import Probe

LOOK_EVERY_S = 1.0
MOST_DEVICES = 1 << 12
MOST_INDEX = 1 << 31
KINDS = ("device", "host", "oracle", "distributed")


class BackendListing:
    """A backend by its name. Everything but `id` and `precedence` loads its record, and that alone."""

    def __init__(self, id: str, precedence: int, load: Callable[[], Any], package: Package | None = None) -> None:
        self.id, self.precedence = id, precedence
        self._load, self.package = load, package
        self._record: BackendRegistration | None = None
        self._problem: str | None = None
        self._lately: dict[bool, tuple[Probe, float]] = {}

    @classmethod
    def of(cls, registration: BackendRegistration) -> BackendListing:
        """A record that is already here."""
        return cls(registration.id, registration.precedence, lambda: registration)

    def __repr__(self) -> str:
        return f"BackendListing({self.id!r}, {self.precedence})"

    @property
    def provider(self) -> str:
        """Package and version, or `this process`."""
        return "this process" if self.package is None else self.package.label

    @property
    def registration(self) -> BackendRegistration:
        """The record; a broken one raises."""
        if (problem := self.problem()) is not None:
            raise unusable(self.id, problem)
        assert self._record is not None
        return self._record

    def problem(self) -> str | None:
        """What is wrong with the record, found by loading it; None when it is sound."""
        if self._record is None and self._problem is None:
            try:
                record = self._load()
                self._problem = self._disagreement(record)
                self._record = record if self._problem is None else None
            except KeyboardInterrupt:
                raise
            except BaseException as e:
                self._problem = f"loading its record failed: {told(e)}"
        return self._problem

    def _disagreement(self, record: object) -> str | None:
        from ..contract.registration import BackendRegistration

        if not isinstance(record, BackendRegistration):
            return f"its entry point leads to {type(record).__name__}, not to a BackendRegistration"
        if (record.id, record.precedence) != (self.id, self.precedence):
            return (
                f"it is listed as {self.id}.{self.precedence} and its record says "
                f"{shown(record.id, str)}.{shown(record.precedence, str)}; the two must agree"
            )
        for name in ("open", "unavailable", "devices", "probe_key", "emit", "checks"):
            member: object = getattr(record, name)
            if not callable(member) and not (member is None and name not in ("open", "unavailable")):
                return f"its {name} is {shown(member)}, which cannot be called"
        dispatches: object = record.dispatches
        if type(dispatches) is not bool:
            return f"its dispatches is {shown(dispatches)}, neither True nor False"
        if record.kind not in KINDS:
            return f"its kind {shown(record.kind)} is not one of: {', '.join(KINDS)}"
        return self._wrong_knob(record.knobs)

    def _wrong_knob(self, knobs: object) -> str | None:
        from ..settings.knobs import Kind, Knob

        if not isinstance(knobs, tuple | list):
            return f"its knobs are {shown(knobs)}, not a tuple"
        for knob in knobs:
            if not isinstance(knob, Knob) or not isinstance(knob.kind, Kind):
                return f"its knob {shown(knob)} is not a Knob with a kind"
            if not all(isinstance(text, str) for text in (knob.name, knob.meaning, knob.read, knob.without)):
                return f"its knob {shown(knob)} is not described by texts"
            if not knob.name.startswith(f"{self.id}_"):
                return f"the name of its knob {shown(knob.name)} does not begin with {self.id}_"
        return None

    def unavailable(self) -> Unavailable | None:
        """Why it would not open, or None. Asks the backend, not our memory of it."""
        from ..contract.registration import Unavailable

        if (problem := self.problem()) is not None:
            return Unavailable(problem)
        try:
            why: object = self.registration.unavailable()
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            return Unavailable(f"asking it failed: {told(e)}")
        if why is None:
            return None
        if isinstance(why, str) and why:
            text = shown(why, str.__str__)
            return why if type(why) is Unavailable and why == text else Unavailable.of(text)
        self._problem = f"its unavailable() answers {shown(why)}, which is neither a reason nor None"
        return Unavailable(self._problem)

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices, best first. A backend that names none has one."""
        from ..contract.registration import DeviceInfo

        record = self.registration
        if record.devices is None:
            return (DeviceInfo(0, self.id),)
        try:
            found: list[object] = list(islice(record.devices(), MOST_DEVICES))
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            raise self.refused(f"backend {self.id} cannot name its devices", e) from e
        known: list[DeviceInfo] = []
        for d in found:
            if (
                type(d) is not DeviceInfo
                or (type(d.index), type(d.name), type(d.emulated)) != (int, str, bool)
                or not 0 <= d.index < MOST_INDEX
            ):
                self._problem = f"its devices() names {shown(d)}, which is not a DeviceInfo with an index and a name"
                raise unusable(self.id, self._problem)
            known.append(d)
        return tuple(known)

    def open(self, device: str | int | None = None) -> VyreBackend:
        """The backend on a device: its index, part of its name, or None for the best."""
        record = self.registration
        if why := self.unavailable():
            raise BackendUnavailable(
                f"backend {self.id} is not available: {why}",
                fix="resolve that, or choose another backend",
                backend=self.id,
            )
        wanted = None if device is None else self.find(device)
        device_args = () if wanted is None or record.devices is None else (wanted.index,)
        try:
            backend = self._checked(record.open(*device_args))
        except (VyreError, KeyboardInterrupt):
            raise
        except BaseException as e:
            raise self.refused(f"backend {self.id} did not open", e) from e
        if wanted is not None and device_args:
            with suppress(Exception):  # a backend may compute it
                if backend.device == "":
                    backend.device = wanted.name
        return backend

    def _checked(self, opened: object) -> VyreBackend:
        from ..contract.backend import VyreBackend

        if isinstance(opened, VyreBackend) and opened.id == self.id:
            return opened
        what = f"the backend {shown(opened.id)}" if isinstance(opened, VyreBackend) else type(opened).__name__
        raise BackendUnavailable(
            f"opening backend {self.id} gave {what}",
            fix="correct open() in its registration: it returns a VyreBackend with that id",
            backend=self.id,
        )

    def refused(self, what: str, cause: BaseException) -> BackendUnavailable:
        return BackendUnavailable(
            f"{what}: {told(cause)}",
            fix=f"report it to the author of the backend ({self.provider}), or use another",
            backend=self.id,
        )

    def find(self, device: str | int) -> DeviceInfo:
        """The device with this index, this name, or the only one whose name holds this text."""
        known, text = self.devices(), shown(device, str)
        if text.isdecimal():  # never part of a name: device 9 is not the board called 4090
            found = [d for d in known if d.index == int(text)]
        else:
            found = [d for d in known if d.name.casefold() == text.casefold()]
            found = found or [d for d in known if text.casefold() in d.name.casefold()]
        if len(found) == 1:
            return found[0]
        choices = ", ".join(f"{self.id}:{d.index} ({d.name})" for d in known)
        raise BackendUnavailable(
            f"{text!r} fits {len(found)} devices of backend {self.id}"
            if found
            else f"backend {self.id} has no device {text!r}",
            fix=f"use one of: {choices}" if known else "connect a device; the backend sees none",
            backend=self.id,
        )

    def probe(self, *, brief: bool = False) -> Probe:
        """Whether it would open, and its devices; from memory where the record says how to tell that it still holds.

        `brief` is for a choice, which asks others first where every device runs on the processor: then whether one
        would open is left open, since to find out may mean to open it.
        """
        from .probe import Probe, recall_probe, remember_probe

        record = self.registration
        try:
            key = None if record.probe_key is None else f"vyre {__version__}; {self.provider}; {record.probe_key()}"
        except KeyboardInterrupt:
            raise
        except BaseException:
            key = None  # a backend that cannot say what its answer depends on is asked every time
        found = None if key is None else recall_probe(self.id, key)
        if found is None and brief:
            found = self._emulation(key)
        if found is None:
            try:
                why = self.unavailable()
                found = Probe(why) if why is not None else Probe(None, self.devices())
            except BackendUnavailable as e:
                found = Probe(str(e))
            if key is not None and self._problem is None:
                remember_probe(self.id, key, found)
        if key is not None and self._problem is None:
            self._lately[brief] = found, time.monotonic() + LOOK_EVERY_S
        return found

    def lately(self, *, brief: bool) -> Probe | None:
        """The probe of the second before, of a backend whose record says how to tell that one still holds: its code
        is not asked, so that it cannot keep the caller waiting."""
        found, until = self._lately.get(brief, (None, 0.0))
        return found if time.monotonic() < until else None

    def _emulation(self, key: str | None) -> Probe | None:
        """The devices, if all of them run on the processor."""
        from .probe import Probe, recall_probe, remember_probe

        record, place = self.registration, f"{self.id}-devices"
        if record.kind != "device" or record.devices is None:
            return None
        if key is not None and (known := recall_probe(place, key)) is not None:
            return known
        try:
            found = Probe(None, self.devices())
        except BackendUnavailable:
            return None  # `unavailable` says what is wrong
        if not found.emulated:
            return None
        if key is not None:
            remember_probe(place, key, found)
        return found

    def forget(self) -> None:
        """Drop the remembered probe, which turned out to be wrong."""
        self._lately.clear()
        if self._record is not None and self._record.probe_key is not None:
            from . import remembered

            remembered.forget(self.id)
            remembered.forget(f"{self.id}-devices")


def unusable(id: str, why: str) -> BackendUnavailable:
    """The error for a backend that is there and cannot be used."""
    return BackendUnavailable(
        f"backend {id} is disabled: {why}",
        fix="correct or uninstall the package that provides it; other backends are not affected",
        backend=id,
    )
