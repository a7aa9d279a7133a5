"""The reference backend: what a program means, as two engines that share one table of operators.

Importing this package loads neither NumPy nor the engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver.contract.registration import BackendRegistration, DeviceInfo
from ...foundation.lazy import later, lazily, where

if TYPE_CHECKING:
    from .backend import ReferenceBackend as ReferenceBackend
    from .engines.memory import OobReport as OobReport
    from .engines.memory import Schedule as Schedule
    from .engines.races import Race as Race
    from .engines.run import RunResult as RunResult
    from .engines.run import run as run

_OFFERS = {
    ".backend": "ReferenceBackend",
    ".engines.memory": "OobReport Schedule",
    ".engines.races": "Race",
    ".engines.run": "RunResult run",
}
__all__ = ["REGISTRATION", *sorted(where(_OFFERS))]
__getattr__ = lazily(__name__, _OFFERS)

REGISTRATION = BackendRegistration(
    id="reference",
    precedence=900,
    kind="oracle",
    open=later(__name__, ".backend:open_backend"),
    devices=lambda: (DeviceInfo(0, "Python interpreter"),),
    checks=later(__name__, ".requirements:findings"),
)
