"""Evidence of one dispatch: the program, its inputs, where and how it ran, and what came out, in one file.

The file can be run again on any backend of any machine, since every backend has the same right answer. It is a zip
whose parts lie in it as they are: `evidence.json` says what there is, with a digest of each part, `program.wire` is the
program, and the buffers lie under `inputs`, `outputs` and `expected`. Reading one runs nothing of what is in it.
"""

from __future__ import annotations

import datetime
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ... import __version__
from ...errors import ArgumentTypeError, ArgumentValueError, VyreError
from ...foundation.formats.blake3 import blake3
from ...foundation.ir.program import Program
from ...foundation.meaning.numerics import NUMERICS_VERSION
from ..contract.values import DEFAULT_CONFIG, DispatchConfig, TimedDispatchResult
from ..pipeline.key import digest_of
from .files import written
from .provenance import SourceProvenance

if TYPE_CHECKING:
    import zipfile

SCHEMA = 1
SUFFIX = ".evidence"
INDEX, PROGRAM = "evidence.json", "program.wire"
MOST_INDEX_BYTES = 16 << 20


# ---- parts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DispatchTimingEvidence:
    """How long the dispatch took, as far as that was measured."""

    wall_ns: int | None = None
    device_ns: int | None = None
    enqueue_ns: int | None = None
    wait_ns: int | None = None

    @classmethod
    def from_timed_dispatch(cls, timed: TimedDispatchResult) -> DispatchTimingEvidence:
        return cls(timed.wall_ns, timed.device_ns, timed.enqueue_ns, timed.wait_ns)

    @property
    def has_timing(self) -> bool:
        return any(getattr(self, f.name) is not None for f in fields(self))


@dataclass(frozen=True, slots=True)
class EvidenceArtifact:
    """A part of the file: what it is, whose, where it lies (None: it was left out), and the blake3 of its bytes."""

    kind: str
    digest: str
    nbytes: int
    path: str | None = None
    backend_id: str | None = None


@dataclass(frozen=True, slots=True)
class ReplayEvidence:
    """How to run it again; the digest is that of everything that decides what comes out."""

    command: str
    capsule_digest: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What the backend said of itself: its version, its device, and the compiler."""

    backend_version: str = "unspecified"
    device: str = ""
    toolchain: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a backend gave: outputs, or the error that it raised, by its name, with message and fix."""

    by: str
    outputs: tuple[bytes, ...] = ()
    error: Mapping[str, str] | None = None

    @classmethod
    def raised(cls, by: str, error: Exception) -> Outcome:
        told = {"name": type(error).__name__, "message": getattr(error, "message", str(error))}
        if isinstance(error, VyreError):
            told["fix"] = error.fix
        return cls(by, error=told)

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.error['name']}: {self.error['message']}"
        return f"{len(self.outputs)} outputs, {sum(map(len, self.outputs)):,} bytes"


# ---- the bundle -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvidenceBundle:
    """One dispatch, with all that is needed to look at it elsewhere.

    `config` has what decides which result is right. `expected` is what a reference gave instead, where outputs were
    compared. `inputs` are None where only their digests were kept. `source` is vyre, and `author` the checkout that the
    kernel's file belongs to, if there is one.
    """

    program: Program
    outcome: Outcome
    source: SourceProvenance
    _: KW_ONLY
    inputs: tuple[bytes, ...] | None = ()
    input_digests: tuple[str, ...] = ()
    config: DispatchConfig = DEFAULT_CONFIG
    expected: Outcome | None = None
    machine: Machine = Machine()
    author: SourceProvenance | None = None
    timing: DispatchTimingEvidence = DispatchTimingEvidence()
    numerics_version: int = NUMERICS_VERSION
    vyre_version: str = __version__
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.inputs is not None:
            object.__setattr__(self, "input_digests", tuple(blake3(data).hex() for data in self.inputs))

    @property
    def backend_id(self) -> str:
        return self.outcome.by

    @property
    def backend_version(self) -> str:
        return self.machine.backend_version

    @property
    def program_digest(self) -> str:
        return self.program.fingerprint

    @property
    def dispatch_policy(self) -> str:
        """The config in words."""
        return " ".join(f"{name}={value}" for name, value in told_config(self.config).items()) or "default"

    @property
    def artifacts(self) -> tuple[EvidenceArtifact, ...]:
        """The parts of the file."""
        wire = self.program.to_wire()
        parts = [EvidenceArtifact("program", blake3(wire).hex(), len(wire), PROGRAM)]
        names = [b.name for b in self.program.host_inputs]
        for k, digest in enumerate(self.input_digests):
            name = names[k] if k < len(names) else str(k)
            held = self.inputs is not None
            size = len(self.inputs[k]) if self.inputs is not None else 0
            parts.append(EvidenceArtifact(f"input {name}", digest, size, f"inputs/{k}" if held else None))
        for folder, outcome in (("outputs", self.outcome), ("expected", self.expected)):
            for k, data in enumerate(outcome.outputs if outcome is not None else ()):
                assert outcome is not None
                parts.append(
                    EvidenceArtifact(folder, blake3(data).hex(), len(data), f"{folder}/{k}", backend_id=outcome.by)
                )
        return tuple(parts)

    @property
    def replay(self) -> ReplayEvidence | None:
        """None where the inputs were left out."""
        if self.inputs is None:
            return None
        config = json.dumps(told_config(self.config), sort_keys=True)
        digest = digest_of("vyre.evidence", self.program_digest, config, *self.input_digests)
        return ReplayEvidence(f"vyre replay FILE{SUFFIX}", digest.hex())

    def without_inputs(self) -> EvidenceBundle:
        """The same with the digests of the inputs in place of their bytes."""
        return replace(self, inputs=None)

    def validate(self) -> None:
        """Raise where something that identifies the dispatch is missing."""
        if self.schema != SCHEMA:
            raise ArgumentValueError(
                f"the evidence has schema {self.schema!r}", fix="read it with the version of vyre that wrote it"
            )
        if not self.backend_id.strip():
            raise ArgumentValueError("the evidence names no backend", fix="capture it from a dispatch")
        self.source.validate()

    # -- files

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the file, in one step; a file that is there is replaced."""
        import zipfile

        self.validate()

        def save(stream: IO[bytes]) -> None:
            with zipfile.ZipFile(stream, "w") as file:
                for name, data in self._parts():
                    file.writestr(zipfile.ZipInfo(name), data)  # its date is always the same

        return written(path, save)

    def _parts(self) -> Iterator[tuple[str, bytes]]:
        yield INDEX, json.dumps(self.to_dict(), indent=2).encode()
        yield PROGRAM, self.program.to_wire()
        for k, data in enumerate(self.inputs or ()):
            yield f"inputs/{k}", data
        for folder, outcome in (("outputs", self.outcome), ("expected", self.expected)):
            for k, data in enumerate(outcome.outputs if outcome is not None else ()):
                yield f"{folder}/{k}", data

    def to_dict(self) -> dict[str, Any]:
        """Everything but the bytes of the parts, ready for JSON."""
        return {
            "schema": self.schema,
            "vyre_version": self.vyre_version,
            "numerics_version": self.numerics_version,
            "date": self.date,
            "program": self.program.name,
            "backend_id": self.backend_id,
            **asdict(self.machine),
            "program_digest": self.program_digest,
            "dispatch_policy": self.dispatch_policy,
            "config": told_config(self.config),
            "error": None if self.outcome.error is None else dict(self.outcome.error),
            "expected": None
            if self.expected is None
            else {
                "by": self.expected.by,
                "error": None if self.expected.error is None else dict(self.expected.error),
            },
            "timing": asdict(self.timing),
            "source": asdict(self.source),
            "author": None if self.author is None else asdict(self.author),
            "artifacts": [asdict(a) for a in self.artifacts],
            "replay": None if self.replay is None else asdict(self.replay),
        }

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> EvidenceBundle:
        """The evidence of a file. Parts that are not what was written are refused."""
        import zipfile

        if not isinstance(path, str | os.PathLike):
            raise ArgumentTypeError(f"read() got a {type(path).__name__}", fix="pass the path of a file")
        with _told(Path(path)), zipfile.ZipFile(path) as file:
            most = os.path.getsize(path)
            told = json.loads(_part(file, INDEX, min(most, MOST_INDEX_BYTES)))
            if told["schema"] != SCHEMA:
                raise ArgumentValueError(
                    f"{path} has schema {str(told['schema'])[:40]!r}, and this vyre reads {SCHEMA}",
                    fix=f"read it with the version that wrote it: {_text(told.get('vyre_version', 'unknown'))[:40]}",
                )
            bundle = _bundle(file, told, most)
        bundle.validate()
        return bundle


def told_config(config: DispatchConfig) -> dict[str, Any]:
    """The fields of a config that were set, ready for JSON."""
    told = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if value != f.default:
            told[f.name] = dict(value) if isinstance(value, Mapping) else value
    return told


# ---- reading --------------------------------------------------------------------------------------------------------


class _Unlike(ValueError):
    """A file that is not what was written."""


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A file may hold anything."""
    import zipfile

    try:
        yield
    except OSError as e:
        raise ArgumentValueError(f"{path} cannot be read: {e.strerror or e}", fix="name a file of yours") from e
    except VyreError:
        raise
    except (zipfile.BadZipFile, struct.error, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError,
            AttributeError, EOFError) as e:  # fmt: skip
        raise ArgumentValueError(
            f"{path} is no evidence of vyre: {_text(str(e))}", fix="make one: vyre run FILE --evidence NEW.evidence"
        ) from e


def _part(file: zipfile.ZipFile, name: str, most: int) -> bytes:
    """The bytes of a part. It lies in the file as it is, so that it cannot be longer than the file."""
    info = file.getinfo(name)
    if info.compress_type != 0 or info.file_size > most:
        raise _Unlike(f"{name} is packed, or longer than the file")
    with file.open(info) as part:
        return part.read(most + 1)


def _sealed(file: zipfile.ZipFile, artifact: Mapping[str, Any], most: int) -> bytes:
    data = _part(file, str(artifact["path"]), most)
    if len(data) != artifact["nbytes"] or blake3(data).hex() != artifact["digest"]:
        raise _Unlike(f"{artifact['path']} is not what was written")
    return data


def _bundle(file: zipfile.ZipFile, told: Mapping[str, Any], most: int) -> EvidenceBundle:
    kinds: dict[str, list[Mapping[str, Any]]] = {"program": [], "input": [], "outputs": [], "expected": []}
    left = most
    for artifact in told["artifacts"]:
        kinds[str(artifact["kind"]).partition(" ")[0]].append(artifact)
    found: dict[str, list[bytes]] = {}
    for kind, artifacts in kinds.items():
        found[kind] = []
        for artifact in artifacts:
            if artifact["path"] is not None:
                data = _sealed(file, artifact, left)  # parts that lie over one another are not all read
                left -= len(data)
                found[kind].append(data)
    (wire,) = found["program"]
    program = Program.from_wire(wire)
    if program.fingerprint != told["program_digest"]:
        raise _Unlike("the program is not the one that it names")
    program.called(_text(told["program"]))
    held = bool(found["input"]) or told["replay"] is not None
    expected = told["expected"]
    bundle = EvidenceBundle(
        program,
        _outcome(told["backend_id"], told["error"], found["outputs"]),
        _sources(told["source"]),
        inputs=tuple(found["input"]) if held else None,
        input_digests=tuple(_text(a["digest"]) for a in kinds["input"]),
        config=_config(told["config"]),
        expected=None if expected is None else _outcome(expected["by"], expected["error"], found["expected"]),
        author=None if told["author"] is None else _sources(told["author"]),
        machine=Machine(**{f.name: _text(told[f.name]) for f in fields(Machine)}),
        timing=DispatchTimingEvidence(
            **{name: None if ns is None else _number(ns) for name, ns in dict(told["timing"]).items()}
        ),
        numerics_version=_number(told["numerics_version"]),
        vyre_version=_text(told["vyre_version"]),
        date=_text(told["date"]),
    )
    if bundle.replay is not None and bundle.replay.capsule_digest != told["replay"]["capsule_digest"]:
        raise _Unlike("the inputs or the config are not what was written")
    return bundle


def _sources(told: Any) -> SourceProvenance:
    return SourceProvenance(
        _texts(told["git"]), _text(told["source_fingerprint"]), _text(told["source_tree_fingerprint"])
    )


def _outcome(by: Any, error: Any, outputs: Sequence[bytes]) -> Outcome:
    return Outcome(_text(by), tuple(outputs), None if error is None else _failure(error))


def _failure(told: Any) -> dict[str, str]:
    texts = _texts(told)
    return texts | {name: texts[name] for name in ("name", "message")}  # both must be there


def _texts(told: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in dict(told).items()}


def _text(told: Any) -> str:
    """Texts are printed, and a terminal obeys control characters."""
    if not isinstance(told, str):
        raise _Unlike(f"{str(told)[:40]!r} is no text")
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in told)


def _number(told: Any) -> int:
    if type(told) is not int:
        raise _Unlike(f"{str(told)[:40]!r} is no whole number")
    return told


def _config(told: Any) -> DispatchConfig:
    known = {f.name for f in fields(DispatchConfig)}
    if unknown := sorted(set(dict(told)) - known):
        raise ArgumentValueError(
            f"the evidence has a config with {unknown[0][:40]!r}, which this version does not know",
            fix="read it with the version of vyre that wrote it",
        )
    return DispatchConfig(**told)
