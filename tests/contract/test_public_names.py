"""Names and codes that others rely on only grow: public_names.txt has them all, and none of its lines may go.

`python -m pytest tests/contract/test_public_names.py --refresh-snapshot` writes the file anew.
"""

from pathlib import Path

import pytest

import vyre
import vyre.driver
from vyre.driver.verify import shadow
from vyre.errors import DiagCode, ErrorCode, VyreError

SNAPSHOT = Path(__file__).with_name("public_names.txt")


def public_names():
    """One line per name; a code with what must not change about it."""
    errors = {
        value
        for module in (vyre.errors, shadow)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, VyreError)
    }
    return sorted(
        {
            *(f"name vyre.{name}" for name in vyre._WHERE),
            *(f"name vyre.driver.{name}" for name in vyre.driver.__all__),
            *(f"error {cls.__name__} {int(cls.code)} {cls.diagnostic_code}" for cls in errors),
            *(f"number {code.value} {code.name}" for code in ErrorCode),
            *(f"code {code.value} {code.severity}" for code in DiagCode),
        }
    )


@pytest.fixture
def snapshot(request):
    if request.config.getoption("--refresh-snapshot", default=False):
        SNAPSHOT.write_text("\n".join(public_names()) + "\n", "utf-8")
    return SNAPSHOT.read_text("utf-8").splitlines()


@pytest.mark.row("A-ORG-7")
def test_no_public_name_and_no_code_has_gone(snapshot):
    assert sorted(set(snapshot) - set(public_names())) == []


@pytest.mark.row("A-ORG-7")
def test_the_snapshot_knows_every_name(snapshot):
    assert sorted(set(public_names()) - set(snapshot)) == [], "new names: refresh the snapshot (see the docstring)"
    assert snapshot == sorted(snapshot)
