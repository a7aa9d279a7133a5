"""vyre cache: what is remembered on disk, why something is not, and how to take it elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from ...errors import ArgumentValueError, VyreError
from ..app import Json, app, group
from ..inputs.calls import Backend, File, Timeout
from ..inputs.programs import Loaded, load, load_all, pairs
from ..output import others_on_stderr, print_json, print_table, progress
from .ir import Consts, program_of

if TYPE_CHECKING:
    from ...driver.pipeline.key import Change, KeyRecord
    from ...driver.pipeline.store import DiskPipelineCache, StoredPipeline
    from ...foundation.ir.program import Program

cache = group("Show what is remembered on disk, why something is not, and take it elsewhere.")
app.add_typer(cache, name="cache")
SHORT = 16


class Stats(TypedDict):
    folder: str
    use: str  # on, off or readonly
    entries: int
    impacted: int  # of them, those that this version of vyre cannot find: a part that made their code has changed
    bytes: int  # of code
    max_bytes: int
    file_bytes: int
    backends: dict[str, int]
    counts: dict[str, int]  # of all processes since the cache was begun
    compiling: int  # programs that some process compiles now
    probes: int  # records of what was learned of devices


class EntryRow(TypedDict):
    key: str
    kernel: str  # empty where the program came without a name
    backend: str
    device: str
    toolchain: str
    program: str
    bytes: int
    uses: int  # at most one in an hour is counted
    last_use: str
    created: str


class ProbeRow(TypedDict):
    name: str
    written: str
    until: str | None  # None: while device, driver and packages are what they were


class Listing(TypedDict):
    entries: list[EntryRow]
    probes: list[ProbeRow]


class ChangeRow(TypedDict):
    field: str
    was: str
    now: str


class Why(TypedDict):
    """`on_disk`: a call would load it. Else `reason`, and in what the nearest earlier key differs."""

    kernel: str
    file: str
    backend: str
    device: str
    key: str
    on_disk: bool
    reason: str | None
    nearest: str | None  # the kernel of the nearest key
    changes: list[ChangeRow]


class Verified(TypedDict):
    entries: int
    probes: int
    damaged: list[str]  # kernels and probes that were thrown out


class Removed(TypedDict):
    removed: int
    bytes: int


class Cleared(Removed):
    probes: int


class Exported(TypedDict):
    file: str
    entries: int


class ForeignRow(TypedDict):
    """Entries of one device and toolchain; `why` says in what those differ from what is here."""

    backend: str
    device: str
    entries: int
    usable: bool
    why: list[ChangeRow]
    problem: str | None


class Imported(TypedDict):
    file: str
    added: int
    known: int
    damaged: int
    devices: list[ForeignRow]


@cache.command()
def stats(as_json: Json = False) -> None:
    """Say where the cache is, how much it holds, and what happened to it."""
    document = collect_stats()
    if as_json:
        print_json(document)
        return
    share = 100 * document["bytes"] / document["max_bytes"]
    rows = [
        ("folder", document["folder"]),
        ("use", document["use"]),
        ("programs", str(document["entries"])),
        ("of other versions", str(document["impacted"])),
        ("code", f"{document['bytes']} bytes, {share:.1f} % of {document['max_bytes']}"),
        ("file", f"{document['file_bytes']} bytes"),
        *((f"of {backend}", str(n)) for backend, n in document["backends"].items()),
        *((name, str(n)) for name, n in document["counts"].items()),
        ("compiling now", str(document["compiling"])),
        ("probes", str(document["probes"])),
    ]
    print_table(("what", "value"), rows)


@cache.command()
def ls(backend: Backend = None, as_json: Json = False) -> None:
    """List what is stored, the hottest program first, then what was learned of devices."""
    found = stored(backend)
    probes = [row for row in probe_rows() if backend is None or f"{row['name']}-".startswith(f"{backend}-")]
    document = Listing(entries=[entry_row(entry) for entry in found], probes=probes)
    if as_json:
        print_json(document)
        return
    rows = [
        (
            e["key"][:SHORT],
            e["kernel"] or "-",
            e["backend"],
            e["device"],
            str(e["bytes"]),
            str(e["uses"]),
            e["last_use"],
        )
        for e in document["entries"]
    ]
    print_table(("key", "kernel", "backend", "device", "bytes", "uses", "last use"), rows)
    if probes:
        print_table(("probe", "written", "until"), [(p["name"], p["written"], p["until"] or "-") for p in probes])


@cache.command()
def why(
    file: File, consts: Consts = None, backend: Backend = None, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Say whether a kernel would be loaded from disk, and if not, in what the nearest stored one differs.

    Nothing is compiled. Exit code 0: it is there; 1: it is not.
    """
    loaded = load(file)
    program = program_of(loaded, consts or ())
    with others_on_stderr():
        document = explain_key(program, loaded, backend, timeout)
    if as_json:
        print_json(document)
    else:
        show_why(document)
    raise typer.Exit(0 if document["on_disk"] else 1)


@cache.command()
def warm(
    file: Annotated[
        str, typer.Argument(metavar="FILE[:KERNEL]", help="Python with @vyre.kernel in it; without a name, all of it.")
    ],
    consts: Consts = None,
    backend: Backend = None,
    timeout: Timeout = None,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="How many compile at once.")] = None,
    as_json: Json = False,
) -> None:
    """Compile the kernels of a file, several at once, so that no later process has to.

    With --timeout, the code that calls with a timeout need. Exit code 1: some kernel is not on disk afterwards.
    """
    from ...driver.settings.knobs import CACHE
    from .cache_warm import show_warmed, warm_all

    if CACHE.value() != "on":
        raise ArgumentValueError(f"VYRE_CACHE={CACHE.value()} keeps nothing", fix="run it with VYRE_CACHE=on")
    loaded = load_all(file)
    with others_on_stderr():
        document = warm_all(loaded, pairs("--const", consts or ()), backend, timeout, threads)
    if as_json:
        print_json(document)
    else:
        show_warmed(document)
    raise typer.Exit(0 if all(row["on_disk"] for row in document["kernels"]) else 1)


@cache.command()
def verify(as_json: Json = False) -> None:
    """Look at all entries and probes; throw out those that are not what was written. Exit code 1: there were some."""
    from ...driver.selection import remembered

    found, damaged = here(), []
    if found.database().path.exists():
        with progress("verifying"):
            damaged = [record.name or "a program without a name" for record in found.verify()]
            damaged += remembered.verify(found.database())
    document = Verified(entries=len(stored()), probes=len(probe_rows()), damaged=damaged)
    if as_json:
        print_json(document)
    else:
        sound = f"{document['entries']} entries and {document['probes']} probes"
        print(f"{sound} are sound, {len(damaged)} were damaged and are gone")
        for name in damaged:
            print(f"damaged: {name}")
    raise typer.Exit(1 if damaged else 0)


@cache.command()
def prune(
    max_bytes: Annotated[
        int | None, typer.Option("--bytes", metavar="N", help="How many bytes of code may stay; else `cache_bytes`.")
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Only what vyre made before a part that takes part in making it changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Throw out what was used least and longest ago, and give its space back to the disk."""
    from ...driver.settings.knobs import CACHE_BYTES

    if stale and max_bytes is not None:
        raise ArgumentValueError("--stale takes no number of bytes", fix="run `vyre cache prune` once with each")
    limit = CACHE_BYTES.value() if max_bytes is None else max_bytes
    gone = [] if not exists() else here().invalidate_impacted() if stale else here().prune(limit)
    document = Removed(removed=len(gone), bytes=sum(entry.nbytes for entry in gone))
    print_json(document) if as_json else print(f"{document['removed']} entries are gone, {document['bytes']} bytes")


@cache.command()
def clear(as_json: Json = False) -> None:
    """Throw out everything. A file that is damaged, or of a later version, is deleted."""
    held = probes = 0
    with suppress(VyreError):  # which is why it is cleared
        held, probes = sum(entry.nbytes for entry in stored()), len(probe_rows())
    document = Cleared(removed=here().clear() if exists() else 0, bytes=held, probes=probes)
    if as_json:
        print_json(document)
    else:
        print(f"{document['removed']} entries, {document['bytes']} bytes, and {probes} probes are gone")


@cache.command("export")
def export_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A zip file, which is replaced.")],
    backend: Backend = None,
    as_json: Json = False,
) -> None:
    """Write what is stored into one file, for another machine with the same device, driver and vyre."""
    from ...driver.pipeline.archive import write_archive

    if not exists():
        raise ArgumentValueError("nothing is stored yet", fix="run a kernel first")
    written = write_archive(here(), file, backend)
    document = Exported(file=str(file), entries=len(written))
    print_json(document) if as_json else print(f"{len(written)} entries in {file}")


@cache.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `vyre cache export` wrote.")],
    as_json: Json = False,
) -> None:
    """Add the entries of a file, and say which of them can be used here. It is code: import what you trust.

    Exit code 1: none can be used here.
    """
    with others_on_stderr():
        document = take_in(file)
    if as_json:
        print_json(document)
    else:
        show_imported(document)
    raise typer.Exit(0 if any(row["usable"] for row in document["devices"]) else 1)


# ---- data -----------------------------------------------------------------------------------------------------------


def here() -> DiskPipelineCache:
    """The cache of the settings. It is looked at and put in order also where it is off."""
    from ...driver.pipeline.store import DiskPipelineCache
    from ...driver.settings.knobs import CACHE

    return DiskPipelineCache(readonly=CACHE.value() == "readonly")


def exists() -> bool:
    return here().database().path.exists()


def stored(backend: str | None = None) -> list[StoredPipeline]:
    """What is there; nothing is made where there is nothing."""
    found = here().entries() if exists() else []
    return [entry for entry in found if backend in (None, entry.record.fields.get("backend_id"))]


def probe_rows() -> list[ProbeRow]:
    from ...driver.selection.remembered import remembered

    found = remembered(here().database()) if exists() else []
    return [
        ProbeRow(name=p.name, written=_when(p.written_s), until=None if p.until_s is None else _when(p.until_s))
        for p in found
    ]


def collect_stats() -> Stats:
    from ...driver.pipeline.store import COUNTS
    from ...driver.settings.knobs import CACHE, CACHE_BYTES

    store = here()
    found = store.summary() if exists() else None
    return Stats(
        folder=str(store.folder),
        use=CACHE.value(),
        entries=0 if found is None else found.entries,
        impacted=0 if found is None else len(store.impacted()),
        bytes=0 if found is None else found.nbytes,
        max_bytes=CACHE_BYTES.value(),
        file_bytes=0 if found is None else found.file_bytes,
        backends={} if found is None else dict(found.backends),
        counts=dict.fromkeys(COUNTS, 0) if found is None else dict(found.counts),
        compiling=0 if found is None else found.leases,
        probes=0 if found is None else found.probes,
    )


def entry_row(entry: StoredPipeline) -> EntryRow:
    fields = entry.record.fields
    return EntryRow(
        key=entry.key.hex(),
        kernel=entry.name,
        backend=str(fields.get("backend_id")),
        device=device_of(entry.record),
        toolchain=str(fields.get("toolchain")),
        program=str(fields.get("program")),
        bytes=entry.nbytes,
        uses=entry.uses,
        last_use=_when(entry.last_use_s),
        created=_when(entry.created_s),
    )


def device_of(record: KeyRecord) -> str:
    """What people call the device of a key."""
    import json

    for name in ("opened_on", "profile.device"):
        told = json.loads(record.device.get(name, '""'))
        if told:
            return str(told)
    return str(record.fields.get("device", ""))[:SHORT]


def change_rows(changes: Iterable[Change]) -> list[ChangeRow]:
    return [ChangeRow(field=c.field, was=str(c.was), now=str(c.now)) for c in changes]


def explain_key(program: Program, loaded: Loaded, backend: str | None, timeout: float | None) -> Why:
    from ...driver.contract.values import DispatchConfig
    from ...driver.guard.compile import cache_key
    from ...front.compile import backend_for

    guard = backend_for(backend, program)
    key = cache_key(guard, program, DispatchConfig(timeout=timeout))
    store = here()
    there = exists() and store.payload(key.digest()) is not None
    told = store.explain(key) if exists() and not there else None
    reason = None if there else "empty_cache" if told is None else told.reason.value
    return Why(
        kernel=loaded.kernel.__name__,
        file=loaded.path,
        backend=guard.id,
        device=device_of(key.record),
        key=key.digest().hex(),
        on_disk=there,
        reason=reason,
        nearest=told.nearest.name if told is not None and told.nearest is not None and told.gone is None else None,
        changes=change_rows(told.changes) if told is not None and told.gone is None else [],
    )


RUNTIME = ("version", "numerics_version", "backend_id", "toolchain", "device")
"""Fields of a key that say where its code can be used, besides those of the parts that made it."""


def take_in(path: Path) -> Imported:
    from ...driver.pipeline.archive import read_archive

    store, added, known, damaged = here(), 0, 0, 0
    groups: dict[str, tuple[KeyRecord, int]] = {}
    for entry in read_archive(path):
        if entry.payload is None:
            damaged += 1
            continue
        new = store.add(entry.record, entry.payload)
        added, known = added + new, known + (not new)
        common = runtime_of(entry.record)
        groups[common.text] = common, groups.get(common.text, (common, 0))[1] + 1
    rows = [foreign_row(record, n) for record, n in groups.values()]
    return Imported(file=str(path), added=added, known=known, damaged=damaged, devices=rows)


def runtime_of(record: KeyRecord) -> KeyRecord:
    """What says where the code of a key can be used; of the functions in it, only those that are others here."""
    from ...driver.pipeline.toolchain import FUNCTION, SOURCE, digest_of_part

    parts = {name: digest for name, digest in record.fields.items() if name.startswith((SOURCE, FUNCTION))}
    made_by = {n: d for n, d in parts.items() if n.startswith(SOURCE) or digest_of_part(n) != d}
    return type(record)({name: record.fields.get(name) for name in RUNTIME} | made_by, record.device)


def foreign_row(record: KeyRecord, entries: int) -> ForeignRow:
    """Whether code of this device and toolchain can be used here: by the device that differs least."""
    from ...driver.pipeline.toolchain import FUNCTION, digest_of_part

    backend, problem = str(record.fields["backend_id"]), None
    functions = {name: digest_of_part(name) for name in record.fields if name.startswith(FUNCTION)}
    best: list[Change] | None = None
    try:
        for there in _devices_here(backend):
            changes = type(there)({**there.fields, **functions}, there.device).changes(record)
            if best is None or len(changes) < len(best):
                best = changes
    except VyreError as e:
        problem = str(e)
    return ForeignRow(
        backend=backend,
        device=device_of(record),
        entries=entries,
        usable=best == [],
        why=[] if best is None else change_rows(best),
        problem=problem,
    )


def _devices_here(backend: str) -> Iterable[KeyRecord]:
    """What keys on each device of a backend have in common."""
    from ...driver.contract.values import DEFAULT_CONFIG
    from ...driver.pipeline.key import PipelineCacheKey
    from ...driver.selection.registry import acquire, devices
    from ...foundation.ir.program import Program

    for device in devices(backend):
        with acquire(f"{backend}:{device.index}") as guard:
            yield runtime_of(PipelineCacheKey.of(guard, Program.empty(), DEFAULT_CONFIG).record)


# ---- words ----------------------------------------------------------------------------------------------------------


def show_why(document: Why) -> None:
    where = f"{document['backend']} ({document['device']})"
    print(f"{document['kernel']} on {where}: key {document['key'][:SHORT]}")
    if document["on_disk"]:
        print("on disk: a call loads it")
        return
    print(f"not on disk: {document['reason']}")
    if document["nearest"] is not None:
        print(f"the nearest stored key is one of {document['nearest'] or 'a program without a name'}; it differs in")
    show_changes(document["changes"])


def show_changes(changes: Sequence[ChangeRow]) -> None:
    if changes:
        print_table(("field", "was", "now"), [(c["field"], c["was"], c["now"]) for c in changes])


def show_imported(document: Imported) -> None:
    print(
        f"{document['added']} entries added, {document['known']} were there, {document['damaged']} damaged and left out"
    )
    for row in document["devices"]:
        verdict = "can be used here" if row["usable"] else "cannot be used here"
        print(f"{row['backend']}, {row['device']}: {row['entries']} entries, which {verdict}")
        if row["problem"]:
            print(row["problem"])
        show_changes(row["why"])


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
