"""The opencl backend: kernels in OpenCL C, built by whichever driver is installed.

Importing this package loads neither the binding nor a driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...driver.contract.registration import BackendRegistration
from ...foundation.lazy import later, lazily, where

if TYPE_CHECKING:
    from .backend import OpenCLBackend as OpenCLBackend

_OFFERS = {".backend": "OpenCLBackend"}
__all__ = ["REGISTRATION", *sorted(where(_OFFERS))]
__getattr__ = lazily(__name__, _OFFERS)

REGISTRATION = BackendRegistration(
    id="opencl",
    precedence=40,
    open=later(__name__, ".backend:OpenCLBackend"),
    unavailable=later(__name__, ".devices:unavailable"),
    devices=later(__name__, ".devices:infos"),
    probe_key=later(__name__, ".devices:probe_key"),
    emit=later(__name__, ".build:emitted_text"),
    checks=later(__name__, ".requirements:findings"),
)
