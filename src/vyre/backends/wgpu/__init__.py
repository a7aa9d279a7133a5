"""The wgpu backend: GPUs of any make, through WGSL.

Importing this package loads neither the library nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver.contract.registration import BackendRegistration
from ...foundation.lazy import later, lazily, where

if TYPE_CHECKING:
    from .backend import WgpuBackend as WgpuBackend

_OFFERS = {".backend": "WgpuBackend"}
__all__ = ["REGISTRATION", *sorted(where(_OFFERS))]
__getattr__ = lazily(__name__, _OFFERS)

REGISTRATION = BackendRegistration(
    id="wgpu",
    precedence=30,
    open=later(__name__, ".backend:WgpuBackend"),
    unavailable=later(__name__, ".devices:unavailable"),
    devices=later(__name__, ".devices:infos"),
    probe_key=later(__name__, ".devices:probe_key"),
    emit=later(__name__, ".build:emitted_text"),
    checks=later(__name__, ".requirements:findings"),
)
