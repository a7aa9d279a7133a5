"""Every test that asks for `backend` runs on every registered backend."""

import os

import pytest

from vyre.driver.registry import acquire, backend_registration, registered_backends_by_precedence

GAPS: dict[tuple[str, str], str] = {}
"""(backend, test function) -> what is missing. Strict: closing a gap must delete its line."""


def pytest_addoption(parser):
    parser.addoption("--refresh-snapshot", action="store_true", help="write the contract's signatures anew")


def required_backends():
    """Backends that this machine promises to have: there, a missing one is a failure and not a skip."""
    return {name for name in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(",") if name}


def open_or_skip(id):
    why = backend_registration(id).unavailable()
    if why is not None and id in required_backends():
        pytest.fail(f"{id} is required and not available: {why}")
    if why is not None:
        pytest.skip(f"{id}: {why}")
    return acquire(id)


@pytest.fixture(params=[r.id for r in registered_backends_by_precedence()])
def backend(request):
    """Each registered backend in turn, shut down afterwards."""
    opened = open_or_skip(request.param)
    if gap := GAPS.get((request.param, request.function.__name__)):
        request.applymarker(pytest.mark.xfail(reason=gap, strict=True))
    yield opened
    opened.shutdown()
