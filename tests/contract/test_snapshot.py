"""The contract is frozen: against the signatures in contract_snapshot.json only defaulted members may be new.

`python -m pytest tests/contract/test_snapshot.py --refresh-snapshot` writes the file anew.
"""

import inspect
import json
from pathlib import Path

import pytest

from vyre.driver.contract import (
    BackendCapability,
    BackendRegistration,
    CompiledPipeline,
    PendingDispatch,
    VyreBackend,
)
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig

SNAPSHOT = Path(__file__).with_name("contract_snapshot.json")
ATTRIBUTES = ("device", "version", "capability", "contract")
SPECIAL = ("__enter__", "__exit__", "__await__", "__init_subclass__", "_wait")


def describe(cls):
    """Public members: kind, whether an implementation must give it, and the signature as written."""
    found = {}
    for name, member in inspect.getmembers_static(cls):
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(member, property):
            kind, signature = "property", str(inspect.signature(member.fget))
        elif isinstance(member, classmethod):
            kind, signature = "class method", str(inspect.signature(member.__func__))
        elif inspect.isfunction(member):
            kind, signature = "method", str(inspect.signature(inspect.unwrap(member)))
        elif name in ATTRIBUTES:
            kind, signature = "attribute", ""
        else:
            continue
        required = bool(getattr(member, "__isabstractmethod__", False))
        signature = signature.replace(repr(DEFAULT_CONFIG), "DEFAULT_CONFIG")  # its fields are listed by themselves
        found[name] = {"kind": kind, "required": required, "signature": signature}
    return found


def fields(cls):
    """Fields of a record, by the parameters that set them."""
    return {
        p.name: {"kind": "field", "required": p.default is p.empty, "signature": str(p.annotation)}
        for p in inspect.signature(cls).parameters.values()
    }


def contract():
    classes = {cls.__name__: describe(cls) for cls in (VyreBackend, CompiledPipeline, PendingDispatch)}
    return classes | {cls.__name__: fields(cls) for cls in (BackendCapability, BackendRegistration, DispatchConfig)}


def breaking_changes(old, new):
    """What a backend or a caller written for `old` would trip over in `new`."""
    found = []
    for owner, members in old.items():
        now = new.get(owner, {})
        for name, was in members.items():
            if name not in now:
                found.append(f"{owner}.{name} is gone")
            elif now[name] != was:
                found.append(f"{owner}.{name} changed from {was} to {now[name]}")
        found += [
            f"{owner}.{name} is new and required" for name in now if name not in members and now[name]["required"]
        ]
    return found


@pytest.fixture
def snapshot(request):
    if request.config.getoption("--refresh-snapshot", default=False):
        SNAPSHOT.write_text(json.dumps(contract(), indent=1, sort_keys=True) + "\n", "utf-8")
    return json.loads(SNAPSHOT.read_text("utf-8"))


@pytest.mark.row("A-BE-12")
def test_the_contract_only_grows_by_members_with_defaults(snapshot):
    assert breaking_changes(snapshot, contract()) == []


@pytest.mark.row("A-BE-12")
def test_the_snapshot_knows_every_member(snapshot):
    assert contract() == snapshot, "new members: refresh the snapshot (see the docstring of this file)"


@pytest.mark.row("A-BE-12")
def test_a_change_that_breaks_a_backend_is_noticed():
    method = {"kind": "method", "required": False, "signature": "(self)"}
    old = {"B": {"go": method}}
    assert breaking_changes(old, old) == []
    assert breaking_changes(old, {"B": {"go": method, "more": method}}) == []
    assert breaking_changes(old, {"B": {"go": method, "must": method | {"required": True}}}) == [
        "B.must is new and required"
    ]
    assert breaking_changes(old, {"B": {}}) == breaking_changes(old, {}) == ["B.go is gone"]
    for change in ({"signature": "(self, extra=None)"}, {"kind": "property"}, {"required": True}):
        (line,) = breaking_changes(old, {"B": {"go": method | change}})
        assert line.startswith("B.go changed from ")


def test_what_is_required_is_named():
    required = {f"{owner}.{name}" for owner, ms in contract().items() for name, m in ms.items() if m["required"]}
    assert required == {
        "VyreBackend.id",
        "VyreBackend.dispatch",
        "CompiledPipeline.dispatch",
        "PendingDispatch.is_ready",
        "PendingDispatch._wait",
        "BackendRegistration.id",
        "BackendRegistration.open",
    }
