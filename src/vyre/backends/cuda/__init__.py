"""The cuda backend: kernels in CUDA C++, compiled by NVRTC for the device at hand.

Importing this package loads neither the bindings nor the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver.contract.registration import BackendRegistration
from ...foundation.lazy import later, lazily, where

if TYPE_CHECKING:
    from .backend import CudaBackend as CudaBackend

_OFFERS = {".backend": "CudaBackend"}
__all__ = ["REGISTRATION", *sorted(where(_OFFERS))]
__getattr__ = lazily(__name__, _OFFERS)

REGISTRATION = BackendRegistration(
    id="cuda",
    precedence=10,
    open=later(__name__, ".backend:CudaBackend"),
    unavailable=later(__name__, ".devices:unavailable"),
    devices=later(__name__, ".devices:infos"),
    probe_key=later(__name__, ".devices:probe_key"),
    emit=later(__name__, ".build:emitted_text"),
    checks=later(__name__, ".requirements:findings"),
)
