"""The reference backend: what a program means, as two engines that share one table of operators.

Importing this package loads neither NumPy nor the engines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...driver.contract.backend import VyreBackend
from ...driver.contract.registration import BackendRegistration, DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...driver.contract.requirement import Check
    from .backend import ReferenceBackend
    from .engines.memory import OobReport, Schedule
    from .engines.races import Race
    from .engines.run import RunResult, run

__all__ = ["REGISTRATION", "OobReport", "Race", "ReferenceBackend", "RunResult", "Schedule", "run"]
_HOME = {
    "OobReport": "engines.memory", "Race": "engines.races", "ReferenceBackend": "backend", "RunResult": "engines.run",
    "Schedule": "engines.memory", "run": "engines.run",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def open_backend(device: object = None) -> VyreBackend:
    from .backend import ReferenceBackend

    return ReferenceBackend()


def list_devices() -> tuple[DeviceInfo, ...]:
    return (DeviceInfo(0, "Python interpreter"),)


def checks() -> Iterator[Check]:
    from .requirements import findings

    return findings()


REGISTRATION = BackendRegistration(
    id="reference", precedence=900, open=open_backend, devices=list_devices, kind="oracle", checks=checks
)
