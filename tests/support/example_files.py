"""The examples as modules, and the backends that they are tried on."""

import importlib.util
from pathlib import Path

import pytest

from .device_backends import IDS, registration_or_skip

EXAMPLES = Path(__file__).parents[2] / "examples"
BACKENDS = ("reference", "cpu", *IDS)


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=BACKENDS)
def backend(request):
    """For modules that name it."""
    return registration_or_skip(request.param).id


def smaller(backend, few, many):
    """The reference backend is there to be right, not fast."""
    return few if backend == "reference" else many
