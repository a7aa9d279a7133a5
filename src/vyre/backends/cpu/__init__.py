"""The cpu backend: the embedded default, on every core and vector register of the processor.

Importing this package loads no compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver.contract.registration import BackendRegistration
from ...foundation.lazy import later, lazily, where
from .run.workers import THREADS

if TYPE_CHECKING:
    from .backend import CpuBackend as CpuBackend
    from .build import Switches as Switches

_OFFERS = {".backend": "CpuBackend", ".build": "Switches"}
__all__ = ["REGISTRATION", *sorted(where(_OFFERS))]
__getattr__ = lazily(__name__, _OFFERS)

REGISTRATION = BackendRegistration(
    id="cpu",
    precedence=100,
    kind="host",
    open=later(__name__, ".backend:open_backend"),
    unavailable=later(__name__, ".devices:unavailable"),
    devices=later(__name__, ".devices:infos"),
    emit=later(__name__, ".build:emitted_text"),
    checks=later(__name__, ".requirements:findings"),
    knobs=(THREADS,),
)
