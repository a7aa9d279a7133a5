"""Which of many values of a test are quick: `make test` runs those, and `make check` all others."""

from collections.abc import Iterable

import pytest


def first_quick(values: Iterable, quick: int) -> list:
    """The values, of which those behind the first `quick` are left to `make check`. Tuples are several arguments."""
    kept = list(values)
    slow = (v if isinstance(v, tuple) else (v,) for v in kept[quick:])
    return [*kept[:quick], *(pytest.param(*v, marks=pytest.mark.check) for v in slow)]
