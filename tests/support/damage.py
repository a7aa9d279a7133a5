"""Values that a field of a record may hold after an accident, and records with one such field each."""

import copy
import math
from collections.abc import Iterator
from typing import Any


def nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


NASTY: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 64,
    10**400,
    -0.5,
    1e308,
    math.nan,
    math.inf,
    "",
    "abc",
    "\0",
    "\ud800",
    "x" * 5000,
    [],
    [None],
    [[]],
    {},
    {"": {}},
    nested(50),
)


def damaged(record: Any, nasty: tuple[Any, ...] = NASTY) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """(path, value, copy of the record with that value there), for every place of a record; and without the place."""
    for path in _places(record):
        for value in nasty:
            yield path, value, _with(record, path, value)
        yield path, "gone", _with(record, path, gone=True)


def _places(record: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _with(record: Any, path: tuple[Any, ...], value: Any = None, *, gone: bool = False) -> Any:
    made = copy.deepcopy(record)
    place = made
    for key in path[:-1]:
        place = place[key]
    if gone:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made
