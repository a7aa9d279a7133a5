"""How much is remembered? Tables are plain dicts with one rule for what goes when they are full: the oldest.

A class of tables would name its limit once, but a hit in a subclass of dict takes 25 ns where dict takes 18, and warm
calls are made of hits: Python's fast paths are for dict itself.
"""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def keep(table: dict[K, V], key: K, value: V, most: int) -> list[tuple[K, V]]:
    """Keep an item in a table of at most `most`; returns the items dropped for it, oldest first.

    Other threads may use the table meanwhile, without a lock.
    """
    table[key] = value
    gone: list[tuple[K, V]] = []
    while len(table) > most:
        try:
            oldest = next(iter(table))
            gone.append((oldest, table.pop(oldest)))
        except (KeyError, RuntimeError, StopIteration):  # another thread changed the table just now
            continue
    return gone


def renew(table: dict[K, V], key: K) -> None:
    """An item was used: now it is the youngest. For a moment it is not there, so that readers need the user's lock."""
    table[key] = table.pop(key)
