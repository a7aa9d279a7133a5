"""The file in which compiled programs and probes outlive processes: opened, trusted or refused, and left alone across
a fork.

Locks of the file belong to the process and are lost when it closes any other handle to it, so nothing but sqlite ever
opens the file. A connection serves one thread at a time. Before a fork all of them are closed: a child would inherit
the library's belief in locks that it does not have.
"""

from __future__ import annotations

import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import VyreError
from ...foundation import forking
from ...foundation.forking import in_child
from ..settings.folders import why_not_ours

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
FILE = "pipelines.sqlite"
LOGS = ("-wal", "-shm", "-journal")
SCHEMA = 2
TABLES = {
    "entries": "key BLOB PRIMARY KEY, record TEXT, name TEXT, backend TEXT, program TEXT, device TEXT, toolchain TEXT, "
    "nbytes INTEGER, created REAL, uses INTEGER, last_use REAL, seal BLOB, payload BLOB",
    "devices": "digest TEXT PRIMARY KEY, facts TEXT",
    "leases": "key BLOB PRIMARY KEY, machine TEXT, pid INTEGER, started TEXT, thread INTEGER, expires REAL",
    "gone": "key BLOB PRIMARY KEY, record TEXT, name TEXT, backend TEXT, why TEXT, at REAL",
    "probes": "name TEXT PRIMARY KEY, entry TEXT, seal BLOB",
    "counts": "name TEXT PRIMARY KEY, n INTEGER",
}
"""`payload` comes last: a query of the other columns does not read it. `gone` lists removed rows and why."""
BUSY_S = 5.0
"""How long a write waits for those of other processes."""
_JOURNAL_WAIT_MS = 50
"""Short, because any other journal is only slower."""
MOST_IDLE = 4
FORK_WAIT_S = 1.0
MOST_LINKS = 40
UNMAPPED = 65534
NETWORK = {
    "afp", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.ceph-fuse", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "orangefs", "smb2",
    "smb3", "smbfs",
}  # fmt: skip
"""File systems on which locks or shared memory do not reach all processes that use the file."""
ELSEWHERE = "set VYRE_CACHE_DIR to a folder of yours on a local disk, or VYRE_CACHE=off"
_FILL = "let one process run with VYRE_CACHE=on"
_CLEAR = "run `vyre cache clear`, which begins a new one"


class CacheProblem(VyreError):
    """Why nothing is kept on disk. A problem that is `lasting` stays until a person does something."""

    def __init__(self, message: str, *, fix: str, lasting: bool = True, **context: Any) -> None:
        super().__init__(message, fix=fix, **context)
        self.lasting = lasting


class Database:
    """The connections of this process to one file."""

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        self.folder, self.path = folder, folder / FILE
        self.readonly = readonly
        self._lock = threading.Condition(threading.Lock())
        self._idle: list[sqlite3.Connection] = []
        self._busy: dict[object, sqlite3.Connection | None] = {}
        self._held = False
        self._examined = False
        self._left: object = None
        """Connections of the process that this one was forked from, which are never touched again."""
        _databases.add(self)

    @contextmanager
    def borrowed(self) -> Iterator[sqlite3.Connection]:
        """A connection that no other thread uses meanwhile. What sqlite raises becomes a `CacheProblem`."""
        try:
            import sqlite3
        except ImportError as e:
            raise CacheProblem("Python was built without sqlite3", fix="use one that has it, or VYRE_CACHE=off") from e
        if self._left is not None:
            raise CacheProblem(
                "another thread used the cache while this process was forked",
                fix="use the spawn start method, or compile before threads are started",
            )
        use = object()
        with self._lock:
            while self._held:  # another thread is about to fork, and waits for those that use one
                self._lock.wait()
            connection = self._busy[use] = self._idle.pop() if self._idle else None
        try:
            if connection is None:
                connection = self._busy[use] = self._opened()
            yield connection
        except (sqlite3.Error, UnicodeDecodeError) as e:  # what sqlite says of a damaged file may be no text
            raise self._translated(e) from e
        finally:
            with suppress(sqlite3.Error):
                if connection is not None and connection.in_transaction:
                    connection.execute("ROLLBACK")
            with self._lock:
                del self._busy[use]
                if connection is not None and len(self._idle) < MOST_IDLE:
                    self._idle.append(connection)
                    connection = None
                self._lock.notify_all()
            if connection is not None:
                connection.close()

    @contextmanager
    def writing(self, wait_s: float = BUSY_S) -> Iterator[sqlite3.Connection]:
        """The same, in a transaction that is the only one that writes; it ends with the block, or never happened."""
        with self.borrowed() as connection:
            if self.readonly:
                raise CacheProblem(f"{self.folder} is used read-only", fix=ELSEWHERE, lasting=False)
            connection.execute(f"PRAGMA busy_timeout={int(wait_s * 1000)}")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        """Give up the connections that no thread uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def remove(self) -> None:
        """Delete the file with what belongs to it. Processes that have it open go on with it."""
        self.close()
        require_folder(self.folder)
        for suffix in ("", *LOGS):
            (self.folder / f"{FILE}{suffix}").unlink(missing_ok=True)

    # -- opening it

    def _opened(self) -> sqlite3.Connection:
        import sqlite3

        self.examine()
        require_folder(self.folder)
        require_file(self.path)
        if not self.readonly:
            return self._made(self._connected(str(self.path)))
        try:
            return self._read("mode=ro")
        except sqlite3.OperationalError:
            return self._read("immutable=1")  # sqlite cannot make its log beside a file that cannot be written

    def _connected(self, place: str, *, uri: bool = False) -> sqlite3.Connection:
        import sqlite3

        made = sqlite3.connect(place, uri=uri, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        made.text_factory = lambda text: text.decode("utf-8", "replace")  # whatever lies there
        return made

    def _read(self, how: str) -> sqlite3.Connection:
        connection = self._connected(f"{self.path.absolute().as_uri()}?{how}", uri=True)
        try:
            found: int = connection.execute("PRAGMA user_version").fetchone()[0]
            self._require_schema(found)
            if found < SCHEMA:
                raise CacheProblem(f"{self.path} holds nothing for this version of vyre to read", fix=_FILL)
            return connection
        except BaseException:
            connection.close()
            raise

    def examine(self) -> None:
        """Look once whether the folder can be made, written to and locked."""
        if self._examined:
            return
        if not self.readonly:
            try:
                self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.folder.mkdir(mode=0o700, exist_ok=True)
            except OSError as e:
                if not self.folder.is_dir():
                    raise CacheProblem(f"{self.folder} cannot be made: {e.strerror or e}", fix=ELSEWHERE) from e
            require_folder(self.folder)
            if not os.access(self.folder, os.W_OK):
                problem = CacheProblem(f"{self.folder} cannot be written to, so nothing is kept there", fix=ELSEWHERE)
                if not os.path.exists(self.path):
                    raise problem
                self.readonly = True
                tell(problem)
        kind = file_system(self.folder)
        if kind in NETWORK:
            raise CacheProblem(f"{self.folder} lies on a network file system ({kind})", fix=ELSEWHERE)
        self._examined = True

    def _made(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        import sqlite3

        try:
            found: int = connection.execute("PRAGMA user_version").fetchone()[0]
            if found != SCHEMA:
                self._require_schema(found)
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("BEGIN IMMEDIATE")
                if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:  # another process was faster
                    for table, columns in TABLES.items():
                        connection.execute(f"DROP TABLE IF EXISTS {table}")
                        connection.execute(f"CREATE TABLE {table} ({columns})")
                    connection.execute("CREATE INDEX entries_by_program ON entries (program)")
                    connection.execute(f"PRAGMA user_version={SCHEMA}")
                connection.execute("COMMIT")
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute(f"PRAGMA busy_timeout={_JOURNAL_WAIT_MS}")
                with suppress(sqlite3.OperationalError):  # where there is none, or another process uses the file
                    connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA trusted_schema=OFF")
            return connection
        except BaseException:
            connection.close()
            raise

    def _require_schema(self, found: int) -> None:
        if found > SCHEMA:
            raise CacheProblem(
                f"{self.path} was made by a later version of vyre",
                fix="upgrade vyre, or set VYRE_CACHE_DIR to a folder of its own for this version",
                schema=found,
                known=SCHEMA,
            )

    def _translated(self, error: sqlite3.Error | UnicodeDecodeError) -> VyreError:
        name = getattr(error, "sqlite_errorname", "") or ""
        said_so = name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such" in str(error)
        if said_so or isinstance(error, UnicodeDecodeError):
            return CacheProblem(f"{self.path} is damaged ({error})", fix=_CLEAR)
        if name == "SQLITE_FULL":
            fix = "free some space; until then every process compiles anew what is not kept yet"
            return CacheProblem(f"there is no space left in {self.folder}", fix=fix, lasting=False)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            fix = "none is needed: it is compiled instead"
            return CacheProblem(f"another process keeps {self.path} locked", fix=fix, lasting=False)
        if name.startswith("SQLITE_CANTOPEN") and self.readonly:
            return CacheProblem(f"there is no {self.path} to read", fix=_FILL)
        return CacheProblem(f"{self.path} cannot be used: {error}", fix=ELSEWHERE, lasting=False, error=name)

    # -- forks

    def before_fork(self) -> None:
        """Wait until no thread uses a connection, and close them all. Held until the fork is done."""
        self._held = self._lock.acquire(timeout=FORK_WAIT_S)
        until = time.monotonic() + FORK_WAIT_S
        while self._held and self._busy and self._lock.wait(max(0.0, until - time.monotonic())):
            pass
        if self._held and not self._busy:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def after_fork(self, *, child: bool) -> None:
        held, self._held = self._held, False
        if not child:
            if held:
                self._lock.notify_all()
                self._lock.release()
            return
        self._lock = threading.Condition(threading.Lock())  # threads that used the old one are not here
        if self._busy or self._idle:
            self._left = self._busy, self._idle
            self._busy, self._idle = {}, []


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forking: list[Database] = []


def _before_fork() -> None:
    _forking[:] = list(_databases)
    for database in _forking:
        database.before_fork()


def _after_fork(child: bool) -> Callable[[], None]:
    def run() -> None:
        for database in _forking:
            database.after_fork(child=child)
        _forking.clear()

    return run


forking.before.append(_before_fork)
forking.in_parent.append(_after_fork(child=False))
in_child(_after_fork(child=True))


# ---- what may be trusted --------------------------------------------------------------------------------------------


def require_folder(folder: Path) -> None:
    """Raise unless only this user can write to the folder or replace it."""
    if os.name == "nt":
        return  # mode bits say nothing there
    for place, info in ((folder, _status(folder)), (folder.parent, folder.parent.stat())):
        if not stat.S_ISDIR(info.st_mode):
            raise CacheProblem(f"{place} is a link or a file, and no folder", fix=f"remove it; or {ELSEWHERE}")
        if why := why_not_ours(info):
            fix = f"chmod 700 {place}; or {ELSEWHERE}" if info.st_uid == os.geteuid() else ELSEWHERE
            raise CacheProblem(f"{place} {why}, so no code is loaded from it", fix=fix)
    for above, info in way_to(str(folder.parent)):
        if why := _who_replaces(info):
            raise CacheProblem(
                f"others can put another folder in place of {folder}, as {above} {why}",
                fix=f"chmod go-w {above}; or {ELSEWHERE}" if info.st_uid == os.geteuid() else ELSEWHERE,
            )


def way_to(place: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder and every link by which the system comes to a place, which is the last."""
    left, at, links = [*reversed(os.path.join(os.getcwd(), place).split(os.sep))], os.sep, 0
    yield at, _status(at)
    while left:
        name = left.pop()
        if name in ("", os.curdir, os.pardir):
            at = os.path.dirname(at) if name == os.pardir else at
            continue
        inside = os.path.join(at, name)
        info = _status(inside)
        yield inside, info
        if not stat.S_ISLNK(info.st_mode):
            at = inside
            continue
        links += 1
        if links > MOST_LINKS:
            raise CacheProblem(f"{place} leads through too many links", fix=ELSEWHERE)
        target = os.readlink(inside)
        left += reversed(target.split(os.sep))
        at = os.sep if os.path.isabs(target) else at


def _who_replaces(info: os.stat_result) -> str | None:
    """Which other user can put something else in place of what lies in a folder, or in place of a link itself. What
    belongs to a user can only be moved by that user where the folder is sticky, as /tmp is."""
    if info.st_uid not in (0, os.geteuid()) and not is_unmapped(info.st_uid):
        return "belongs to another user"
    if stat.S_ISLNK(info.st_mode) or info.st_mode & stat.S_ISVTX:
        return None
    if info.st_mode & stat.S_IWOTH:
        return "can be written by all"
    return "can be written by its group" if info.st_mode & stat.S_IWGRP and not is_private(info.st_gid) else None


def is_unmapped(uid: int, uids: str = "/proc/self/uid_map") -> bool:
    """Whether in this container the number stands for users outside of it, root among them."""
    if uid != UNMAPPED:
        return False
    try:
        with open(uids, encoding="ascii") as file:
            return file.read(4096).split() != ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False


def is_private(gid: int) -> bool:
    """Whether a group has no member but this user, or root, as where each user has a group of the same name."""
    try:
        import grp
        import pwd

        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except (ImportError, KeyError):
        return False
    mine = gid == 0 or (gid, group.gr_name) == (user.pw_gid, user.pw_name)
    return mine and set(group.gr_mem) <= {"root", user.pw_name}


def require_file(path: Path) -> None:
    """Raise if the database is there and is not a file that only this user can write; or a log of it, which may have
    been put there before the folder was closed to others."""
    if os.name == "nt":
        return
    for name in (path, *(path.with_name(path.name + suffix) for suffix in LOGS)):
        if os.path.lexists(name):
            _require_own(name)


def _require_own(path: Path) -> None:
    try:
        info = os.lstat(path)
    except FileNotFoundError:  # another process ended, and took its log with it
        return
    if not stat.S_ISREG(info.st_mode):
        raise CacheProblem(f"{path} is a link or no file, so no code is loaded from it", fix=f"remove it; {ELSEWHERE}")
    if why := why_not_ours(info):
        fix = f"remove it, or chmod 600 {path}" if info.st_uid == os.geteuid() else f"remove it; or {ELSEWHERE}"
        raise CacheProblem(f"{path} {why}, so no code is loaded from it", fix=fix)


def _status(path: str | Path) -> os.stat_result:
    try:
        return os.lstat(path)
    except FileNotFoundError as e:
        raise CacheProblem(f"there is no {path}", fix=_FILL, lasting=False) from e
    except OSError as e:
        raise CacheProblem(f"{path} cannot be looked at: {e.strerror or e}", fix=ELSEWHERE) from e


def file_system(folder: Path, mounts: str = "/proc/self/mountinfo") -> str | None:
    """The kind of file system of a folder, where the system tells."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    place, best, kind = os.path.realpath(folder), -1, None
    for line in lines:
        if len(line) < 5 or "-" not in line:
            continue
        point = line[4].encode("utf-8", "surrogateescape").decode("unicode_escape", "replace")  # \040 is a space
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # a later mount hides an earlier one
            best, kind = len(point), line[line.index("-") + 1]
    return kind


# ---- telling --------------------------------------------------------------------------------------------------------

_told: set[str] = set()


def tell(problem: CacheProblem) -> None:
    """Log it, once in a process."""
    text = str(problem)
    if text not in _told:
        _told.add(text)
        import logging

        logging.getLogger("vyre.cache").warning("nothing is kept on disk: %s", problem)
