"""Every test that asks for `backend` runs on every registered backend.

Who brings a backend of their own names it: `VYRE_CONTRACT_BACKENDS` (ids, separated by commas) are then the only ones,
and `VYRE_CONTRACT_GAPS` is a TOML file that says which tests each of them does not pass, and why:

    [mine]
    test_a_grid_may_lie_in_memory = "the device takes its grid from the host"

    ["mine:old model"]
    test_field_timeout_ends_a_dispatch = "only devices with this in their name cannot be stopped"
"""

import os
import tomllib
from pathlib import Path

import pytest

from vyre.driver.selection.registry import acquire, backend_registration, registered_backends_by_precedence


def named_in(variable):
    return [name for name in os.environ.get(variable, "").split(",") if name]


def contract_backends():
    """The ids to test, best first: all that are registered, or those the environment names."""
    registered = [r.id for r in registered_backends_by_precedence()]
    wanted = named_in("VYRE_CONTRACT_BACKENDS")
    if unknown := sorted(set(wanted) - set(registered)):
        raise pytest.UsageError(f"VYRE_CONTRACT_BACKENDS names {', '.join(unknown)}; registered: {registered}")
    return [id for id in registered if not wanted or id in wanted]


def contract_gaps():
    """(backend, test function) -> what is missing, by part of a device's name. Strict: closing one deletes its line."""
    path = os.environ.get("VYRE_CONTRACT_GAPS")
    tables = tomllib.loads(Path(path).read_text("utf-8")) if path else {}
    found = {}
    for name, gaps in tables.items():
        id, _, device = name.partition(":")
        for test, why in gaps.items():
            found.setdefault((id, test), {})[device] = why
    return found


def gap_of(backend, test):
    """Why a test is not passed on this device, if it need not be."""
    for device, why in GAPS.get((backend.id, test), {}).items():
        if device in backend.device_profile().device:
            return why
    return None


GAPS = contract_gaps()


def pytest_addoption(parser):
    parser.addoption("--refresh-snapshot", action="store_true", help="write the contract's signatures anew")


def required_backends():
    """Backends that this machine promises to have: there, a missing one is a failure and not a skip."""
    return set(named_in("VYRE_REQUIRE_BACKENDS"))


def open_or_skip(id):
    why = backend_registration(id).unavailable()
    if why is not None and id in required_backends():
        pytest.fail(f"{id} is required and not available: {why}")
    if why is not None:
        pytest.skip(f"{id}: {why}")
    return acquire(id)


@pytest.fixture(params=contract_backends())
def backend(request):
    """Each backend in turn, shut down afterwards."""
    opened = open_or_skip(request.param)
    if gap := gap_of(opened, request.function.__name__):
        request.applymarker(pytest.mark.xfail(reason=gap, strict=True))
    yield opened
    opened.shutdown()
