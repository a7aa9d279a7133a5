"""The rows of remembered probes, as they lie in the database: to look at them, and to damage them."""

import json
import sqlite3
from contextlib import closing

from vyre.driver.pipeline.database import FILE
from vyre.driver.selection.remembered import seal_of


def rows(cache):
    """Name -> entry, of the cache in a folder."""
    file = cache / "pipelines" / FILE
    if not file.exists():
        return {}
    with closing(sqlite3.connect(file)) as connection:
        return {name: json.loads(text) for name, text in connection.execute("SELECT name, entry FROM probes")}


def put(cache, name, entry, seal=None):
    """A row with this entry, a value or a text, and a digest that fits unless another is given."""
    text = entry if isinstance(entry, str | bytes) else json.dumps(entry)
    if seal is None:
        seal = seal_of(name, text) if isinstance(text, str) else b""
    with closing(sqlite3.connect(cache / "pipelines" / FILE, isolation_level=None)) as connection:
        connection.execute("INSERT OR REPLACE INTO probes VALUES (?, ?, ?)", (name, text, seal))


def only(cache):
    """The name and the entry of the only one."""
    ((name, entry),) = rows(cache).items()
    return name, entry
