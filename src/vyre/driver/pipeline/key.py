"""What makes two compiled pipelines the same: every input of the compiler, each under its own name.

A backend sees, when it compiles, only what is in the key (`LoweringOptions.config`), so that nothing can reach the
code without reaching the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ArgumentValueError
from ...foundation.formats.blake3 import blake3
from ...foundation.meaning.numerics import NUMERICS_VERSION
from ..contract.capability import FACTS
from ..contract.values import DEFAULT_CONFIG, OPTIONS, U32_MAX, DispatchConfig
from ..plan.specialize import NO_SPECS, SpecMap, artifact_key_of, origin_of
from .toolchain import FUNCTION, SOURCE, lineage_of, toolchain_of

if TYPE_CHECKING:
    from ...foundation.ir.program import Program
    from ..contract.backend import VyreBackend

CURRENT_PIPELINE_CACHE_KEY_VERSION = 4


def hex_encode(data: bytes) -> str:
    """
    >>> hex_encode(bytes([0x00, 0xFF, 0x1A, 0x0F]))
    '00ff1a0f'
    """
    return data.hex()


def hex_short(data: bytes) -> str:
    """The first eight bytes, as 16 digits."""
    return data[:8].hex()


def digest_of(domain: str, *parts: object) -> bytes:
    """blake3 over parts that keep their borders: ("ab", "c") and ("a", "bc") differ, and so do 1 and "1"."""
    framed = bytearray()
    for part in (domain, *parts):
        tag, data = (b"b", part) if isinstance(part, bytes) else (type(part).__name__.encode(), str(part).encode())
        for piece in (tag, data):
            framed += len(piece).to_bytes(8, "little") + piece
    return blake3(bytes(framed))


# ---- the parts of a key ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """The part of a config that changes code. A backend compiles with `config`, which has nothing else in it.

    A deadline is open-ended there: the code looks at the clock, and each dispatch says how long.
    """

    config: DispatchConfig = DEFAULT_CONFIG

    @classmethod
    def of(
        cls, config: DispatchConfig, backend: VyreBackend | None = None, program: Program | None = None
    ) -> LoweringOptions:
        """Of a settled config; with a backend and a program, only the fields that this backend uses for it."""
        kept = {}
        for name, code in CODE.items():
            value = code.compiled(getattr(config, name))
            if value == getattr(DEFAULT_CONFIG, name):
                continue
            if backend is None or program is None or code.is_used(value, backend.capability, program):
                kept[name] = value
        return cls(DispatchConfig(**kept))

    def facts(self) -> dict[str, Any]:
        """Each as the key names it -> plain value."""
        return {code.name or name: code.told(getattr(self.config, name)) for name, code in CODE.items()}

    def __str__(self) -> str:
        """
        >>> str(LoweringOptions.of(DispatchConfig(timeout=5, workgroup_override=(64, 1, 1))))
        'ulp_budget=none:deadline=yes:workgroup_override=64x1x1:speculation=none:persistent_thread=none:cooperative=no'
        """
        return ":".join(f"{name}={_text(value)}" for name, value in self.facts().items())


CODE = {name: option.code for name, option in OPTIONS.items() if option.code is not None}
"""Field of a config that changes code -> how."""


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case tuple():
            return "x".join(map(str, value))
    return str(value)


def dispatch_policy_cache_string(config: DispatchConfig) -> str:
    """The part of a config that reaches the code, as text."""
    return str(LoweringOptions.of(config))


def dispatch_policy_cache_digest(config: DispatchConfig) -> bytes:
    return digest_of("vyre.pipeline.policy", dispatch_policy_cache_string(config))


class PipelineFeatureFlags(IntFlag):
    """Device features that compiled code may use."""

    SUBGROUP_OPS = 1 << 0
    F16 = 1 << 1
    BF16 = 1 << 2
    TENSOR_CORES = 1 << 3
    ASYNC_COMPUTE = 1 << 4
    PUSH_CONSTANTS = 1 << 5
    INDIRECT_DISPATCH = 1 << 6
    SPECULATIVE = 1 << 7
    PERSISTENT_THREAD = 1 << 8

    @classmethod
    def empty(cls) -> PipelineFeatureFlags:
        return cls(0)

    @classmethod
    def of(cls, backend: VyreBackend, options: LoweringOptions) -> PipelineFeatureFlags:
        """The features that the device has and the config does not forbid."""
        facts = backend.capability
        forbidden = {code.needs for name, code in CODE.items() if getattr(options.config, name) == "disable"}
        flags = cls.PUSH_CONSTANTS if facts.extras.get("push_constants") else cls(0)
        for name, fact in FACTS.items():
            if fact.flag and getattr(facts, name) and name not in forbidden:
                flags |= cls[fact.flag]
        return flags

    def contains(self, other: PipelineFeatureFlags) -> bool:
        """Whether every bit of `other` is set here; nothing is contained in everything."""
        return self & other == other

    def union(self, other: PipelineFeatureFlags) -> PipelineFeatureFlags:
        return self | other

    @property
    def bits(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class PipelineDeviceFingerprint:
    """One device with its driver. Vendor and device numbers are 0 where the target has none."""

    vendor: int
    device: int
    driver_digest: bytes
    facts: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The facts that the digest is made of: for people who ask what changed."""

    @classmethod
    def from_parts(cls, vendor: int, device: int, revision: str, revision_extra: str = "") -> PipelineDeviceFingerprint:
        for name, number in (("vendor", vendor), ("device", device)):
            if not 0 <= number <= U32_MAX:
                raise ArgumentValueError(f"{name}={number} does not fit u32", fix="pass the 32-bit id, or 0")
        return cls(vendor, device, digest_of("vyre.pipeline.driver", revision, revision_extra))

    @classmethod
    def of(cls, backend: VyreBackend) -> PipelineDeviceFingerprint:
        """From everything the backend says about its device, which one it is, and the exactness record of its probe."""
        profile, capability = backend.device_profile(), backend.capability
        facts: dict[str, Any] = {f"profile.{f.name}": getattr(profile, f.name) for f in fields(profile)}
        for f in fields(capability):
            value = getattr(capability, f.name)
            if f.name in ("exactness", "extras"):  # the compiler is a field of the key
                facts |= {f"{f.name}.{name}": each for name, each in value.items() if name != "compiler"}
            else:
                facts[f.name] = value
        facts["opened_on"] = backend.device
        told = {name: json.dumps(facts[name], sort_keys=True, default=_listed) for name in sorted(facts)}
        vendor, device = (int(capability.extras.get(name, 0)) for name in ("vendor_id", "device_id"))
        return replace(cls.from_parts(vendor, device, json.dumps(told, sort_keys=True)), facts=told)

    def digest(self) -> bytes:
        return digest_of("vyre.pipeline.device", self.vendor, self.device, self.driver_digest)

    def cache_key(self, program_digest: bytes) -> bytes:
        """A program's digest on this device."""
        return digest_of("vyre.pipeline.program-on-device", program_digest, self.digest())


def _listed(value: Any) -> Any:
    """For sets and other values that JSON lacks, which a backend's own facts may hold."""
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


# ---- the key --------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A field in which two keys differ; of a device, the fact."""

    field: str
    was: object
    now: object

    def __str__(self) -> str:
        return f"{self.field}: {self.was} -> {self.now}"


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key written down: plain values under the names of its fields. Equal keys have equal records.

    The facts of the device and the name of the program explain it and are not part of it.
    """

    fields: Mapping[str, Any]
    device: Mapping[str, str] = field(default_factory=dict, compare=False)
    name: str = field(default="", compare=False)

    @classmethod
    def parsed(cls, text: str, device: str = "{}", name: str = "") -> KeyRecord:
        """From the texts that were written; raises a ValueError for any other."""
        found, facts = json.loads(text), json.loads(device)
        if not isinstance(found, dict) or not isinstance(facts, dict):
            raise ArgumentValueError("the text is not a record of a key", fix="pass what `KeyRecord.text` gave")
        return cls({name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}, facts, name)

    @property
    def text(self) -> str:
        return json.dumps(dict(self.fields))

    def digest(self) -> bytes:
        return digest_of("vyre.pipeline.key", *(part for pair in self.fields.items() for part in pair))

    def differs(self, other: KeyRecord) -> tuple[str, ...]:
        """Names of the fields in which two keys differ.

        A field that has parts is told by them; a function that only one of them uses follows from the program.
        """
        mine, theirs = self.fields, other.fields
        names = {**mine, **theirs}
        whole = {name.partition(".")[0] for name in names if "." in name}
        return tuple(
            name
            for name in names
            if mine.get(name) != theirs.get(name)
            and name not in whole
            and not (name.startswith(FUNCTION) and (name in mine) != (name in theirs))
        )

    def changes(self, since: KeyRecord) -> list[Change]:
        """The fields that differ from an earlier record; where the device is another, which of its facts."""
        changes = []
        for name in self.differs(since):
            facts = {**self.device, **since.device} if name == "device" else {}
            known = [
                Change(f"device.{fact}", since.device.get(fact), self.device.get(fact))
                for fact in facts
                if since.device.get(fact) != self.device.get(fact)
            ]
            changes += known or [Change(name, since.fields.get(name), self.fields.get(name))]
        return changes

    @property
    def identity(self) -> PipelineCacheIdentity:
        known = self.fields
        policy = ":".join(f"{name}={_text(value)}" for name, value in known.items() if name in _OPTIONS)
        made_by = (f"{name}={known[name]}" for name in sorted(known) if name.startswith((SOURCE, FUNCTION)))
        constants = [f"{name}={known[name]}" for name in sorted(known) if name.startswith(_SPECS)]
        return PipelineCacheIdentity.from_parts(
            digest_of("vyre.pipeline.program", known.get("program"), *(constants or [str(known.get("specs"))])),
            digest_of("vyre.pipeline.policy", policy),
            digest_of("vyre.pipeline.runtime", *(known.get(name) for name in _RUNTIME), *made_by),
        )


_RUNTIME = ("version", "numerics_version", "backend_id", "toolchain", "device", "feature_flags")
_SPECS = "specs."
_OPTIONS = frozenset(code.name or name for name, code in CODE.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCacheKey:
    """Names one compiled pipeline. Made by `of`, which stamps the versions; equal when every field but `name` is."""

    version: int
    numerics_version: int
    backend_id: str
    toolchain: str
    device: PipelineDeviceFingerprint
    feature_flags: PipelineFeatureFlags
    program: str
    specs: str
    options: LoweringOptions
    constants: SpecMap = NO_SPECS
    """Numbers that are compiled into the program; `specs` names it with them."""
    lineage: tuple[tuple[str, str], ...] = ()
    """Parts of this package that make the code, each with the digest of its source or definition."""
    name: str = field(default="", compare=False)

    @classmethod
    def of(
        cls,
        backend: VyreBackend,
        program: Program,
        config: DispatchConfig,
        *,
        device: PipelineDeviceFingerprint | None = None,
    ) -> PipelineCacheKey:
        """`device` spares asking the backend again."""
        options = LoweringOptions.of(config, backend, program)
        origin, constants = origin_of(program)
        device = PipelineDeviceFingerprint.of(backend) if device is None else device
        version = CURRENT_PIPELINE_CACHE_KEY_VERSION
        return cls(
            version=version,
            numerics_version=NUMERICS_VERSION,
            backend_id=backend.id,
            toolchain=toolchain_of(backend),
            device=device,
            feature_flags=PipelineFeatureFlags.of(backend, options),
            program=origin.fingerprint,
            specs=artifact_key_of(origin, constants, version, hex_encode(device.digest())) if constants else "",
            options=options,
            constants=constants,
            lineage=lineage_of(backend, program),
            name=program.name,
        )

    @classmethod
    def own_fields(cls) -> tuple[str, ...]:
        """Fields of the key itself; the others of its record are of the config, the constants and the lineage."""
        return tuple(f.name for f in fields(cls) if f.name not in ("options", "constants", "lineage", "name"))

    @property
    def record(self) -> KeyRecord:
        """The options, constants and lineage spread out: what is hashed, stored and compared."""
        flat = {name: getattr(self, name) for name in self.own_fields()}
        flat["device"] = hex_encode(self.device.digest())
        flat["feature_flags"] = int(self.feature_flags)
        flat |= self.options.facts() | {f"{_SPECS}{name}": str(value) for name, value in self.constants.items()}
        return KeyRecord(flat | dict(self.lineage), self.device.facts, self.name)

    def facts(self) -> dict[str, Any]:
        """Field -> plain value."""
        return dict(self.record.fields)

    def digest(self) -> bytes:
        return self.record.digest()

    def differs(self, other: PipelineCacheKey) -> tuple[str, ...]:
        """Names of the fields in which two keys differ."""
        return self.record.differs(other.record)

    @property
    def identity(self) -> PipelineCacheIdentity:
        return self.record.identity


@dataclass(frozen=True, slots=True)
class PipelineCacheIdentity:
    """A key in three digests: which program, under which policy, on which device and toolchain."""

    digest: bytes
    program_digest: bytes
    policy_digest: bytes
    device_fingerprint: bytes

    @classmethod
    def from_parts(
        cls, program_digest: bytes, policy_digest: bytes, device_fingerprint: bytes
    ) -> PipelineCacheIdentity:
        whole = digest_of("vyre.pipeline.identity", program_digest, policy_digest, device_fingerprint)
        return cls(whole, program_digest, policy_digest, device_fingerprint)

    @classmethod
    def from_program(
        cls, program: Program, config: DispatchConfig, device: PipelineDeviceFingerprint
    ) -> PipelineCacheIdentity:
        return cls.from_parts(bytes.fromhex(program.fingerprint), dispatch_policy_cache_digest(config), device.digest())


# ---- misses ---------------------------------------------------------------------------------------------------------


class PipelineCacheMissReason(StrEnum):
    """Why something was not found; the value ends the name of its counter."""

    EMPTY_CACHE = "empty_cache"
    PROGRAM_CHANGED = "program_changed"
    DISPATCH_POLICY_CHANGED = "dispatch_policy_changed"
    DEVICE_OR_RUNTIME_CHANGED = "device_or_runtime_changed"
    KEY_ABSENT = "key_absent"
    EVICTED = "evicted"
    DAMAGED = "damaged"

    @property
    def metric_suffix(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class PipelineCacheMissEvidence:
    """How close earlier keys came, and in what the nearest one differs. Earlier keys include those thrown out.

    `gone` says why this very key was removed, where that is known.
    """

    total_entries: int = 0
    same_program_entries: int = 0
    same_program_and_policy_entries: int = 0
    same_program_policy_and_device_entries: int = 0
    nearest: KeyRecord | None = None
    changes: tuple[Change, ...] = ()
    gone: PipelineCacheMissReason | None = None

    @classmethod
    def from_identities(
        cls, cached: Iterable[PipelineCacheIdentity], requested: PipelineCacheIdentity
    ) -> PipelineCacheMissEvidence:
        total, program, policy, device = 0, 0, 0, 0
        for identity in cached:
            total += 1
            if identity.program_digest != requested.program_digest:
                continue
            program += 1
            if identity.policy_digest != requested.policy_digest:
                continue
            policy += 1
            device += identity.device_fingerprint == requested.device_fingerprint
        return cls(total, program, policy, device)

    @classmethod
    def from_keys(cls, earlier: Iterable[PipelineCacheKey], wanted: PipelineCacheKey) -> PipelineCacheMissEvidence:
        """As `from_records`."""
        return cls.from_records((key.record for key in earlier), wanted.record)

    @classmethod
    def from_records(cls, earlier: Iterable[KeyRecord], wanted: KeyRecord) -> PipelineCacheMissEvidence:
        """As `from_identities`, with the nearest key: the fewest fields differ, then the same name, the latest of
        equals."""
        known = list(earlier)
        counted = cls.from_identities((record.identity for record in known), wanted.identity)
        if not known:
            return counted
        nearest = min(reversed(known), key=lambda record: (len(wanted.differs(record)), record.name != wanted.name))
        return replace(counted, nearest=nearest, changes=tuple(wanted.changes(nearest)))

    @property
    def differing(self) -> tuple[str, ...]:
        """The fields in which the nearest key differs; of a device, the facts."""
        return tuple(change.field for change in self.changes)

    @property
    def reason(self) -> PipelineCacheMissReason:
        if self.gone is not None:
            return self.gone
        if not self.total_entries:
            return PipelineCacheMissReason.EMPTY_CACHE
        if not self.same_program_entries:
            return PipelineCacheMissReason.PROGRAM_CHANGED
        if not self.same_program_and_policy_entries:
            return PipelineCacheMissReason.DISPATCH_POLICY_CHANGED
        if not self.same_program_policy_and_device_entries:
            return PipelineCacheMissReason.DEVICE_OR_RUNTIME_CHANGED
        return PipelineCacheMissReason.KEY_ABSENT

    def __str__(self) -> str:
        if self.nearest is None or self.gone is not None:
            return self.reason.value
        changed = ", ".join(self.differing) or "nothing: it was compiled before and thrown out"
        return f"{self.reason.value}; the nearest earlier key differs in {changed}"
