"""What the reference needs, for `vyre doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from ...driver.contract.requirement import Check, installed


def findings() -> Iterator[Check]:
    yield installed("numpy")
