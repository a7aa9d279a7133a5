"""The backends on which the functions of `vyre.libs` are compared with their definitions."""

import os

import pytest

import vyre

BACKENDS = ("reference", "cpu", "opencl", "wgpu")
REQUIRED = os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(",")


def on_backend(name):
    """Skip the test if that backend is not here."""
    try:
        vyre.acquire(name).shutdown()
    except vyre.BackendUnavailable as e:
        if name in REQUIRED:
            pytest.fail(f"{name} is required: {e}")
        pytest.skip(f"{name}: {e}")
