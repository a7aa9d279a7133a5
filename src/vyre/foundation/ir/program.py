"""Buffers and programs: what is bound, in which order, and the facts derived from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ...errors import ArgumentTypeError, IRTypeError, IRValueError, VyreError
from .. import above
from .dtypes import DataType, packed_size
from .nodes import IndirectDispatch, Node, Region, Span
from .value import Value

if TYPE_CHECKING:
    from .facts import Requirements, Stats
    from .report import Issue

T = TypeVar("T")
ROOT_GENERATOR = "vyre.program.root"
_QUICK_TO_PROVE = 2_000
"""Statements up to which a notebook shows whether a program is proved deterministic."""


# ---- buffers --------------------------------------------------------------------------------------------------------


class Access(Enum):
    """What a program does with a buffer; the value is the wire tag."""

    READ_ONLY = 0
    READ_WRITE = 1
    UNIFORM = 2
    WORKGROUP = 3
    WRITE_ONLY = 4

    def __repr__(self) -> str:
        return f"Access.{self.name}"


class MemoryKind(Enum):
    """Memory tier; the value is the wire tag."""

    GLOBAL = 0
    SHARED = 1
    UNIFORM = 2
    LOCAL = 3
    READONLY = 4
    PUSH = 5
    PERSISTENT = 6

    def __repr__(self) -> str:
        return f"MemoryKind.{self.name}"


DEFAULT_KIND = {
    Access.READ_ONLY: MemoryKind.READONLY,
    Access.READ_WRITE: MemoryKind.GLOBAL,
    Access.UNIFORM: MemoryKind.UNIFORM,
    Access.WORKGROUP: MemoryKind.SHARED,
    Access.WRITE_ONLY: MemoryKind.GLOBAL,
}


MAX_OWN_BYTES = 8192
"""Arrays that one invocation has for itself: what every target has of them."""


class Locality(Enum):
    STREAMING = 0
    TEMPORAL = 1
    RANDOM = 2

    def __repr__(self) -> str:
        return f"Locality.{self.name}"


class LinearType(Enum):
    LINEAR = 0
    AFFINE = 1
    RELEVANT = 2
    UNRESTRICTED = 3

    def __repr__(self) -> str:
        return f"LinearType.{self.name}"


class Hints(Value):
    """Advice that never changes a result. Alignment 0 means none."""

    coalesce_axis: int | None = None
    preferred_alignment: int = 0
    locality: Locality = Locality.TEMPORAL


class Predicate(Value):
    """A condition on a buffer's element count.

    `kind` is one of at_least, at_most, exactly, multiple_of (one number), mod_equals (modulus, remainder),
    affine (scale, offset, min, max), and, or (two predicates), not (one predicate).
    """

    kind: str
    args: tuple[Any, ...]


class BufferDecl(Value):
    """One buffer a program binds. `count` 0 means: sized at dispatch. `kind` follows `access` unless given."""

    name: str
    binding: int
    access: Access
    element: DataType
    count: int = 0
    kind: MemoryKind | None = None
    is_output: bool = False
    live_out: bool = False
    output_byte_range: tuple[int, int] | None = None
    hints: Hints = Hints()
    bytes_extraction: bool = False
    linear_type: LinearType = LinearType.UNRESTRICTED
    shape_predicate: Predicate | None = None

    def _settle(self) -> None:
        if self.kind is None:
            object.__setattr__(self, "kind", DEFAULT_KIND.get(self.access))
        if self.output_byte_range is not None:
            object.__setattr__(self, "output_byte_range", tuple(self.output_byte_range))

    @property
    def is_workgroup(self) -> bool:
        """Memory of a workgroup: bound to no slot."""
        return self.access is Access.WORKGROUP

    @property
    def is_own(self) -> bool:
        """Whether each invocation has one for itself: no other sees what it stores there."""
        return self.access is Access.WORKGROUP and self.kind is MemoryKind.LOCAL

    @property
    def nbytes(self) -> int | None:
        """Static byte length; None when the size is not known before dispatch."""
        return packed_size(self.element, self.count) if self.count else None

    @property
    def writable(self) -> bool:
        """Whether a program may store to it."""
        return self.access in (Access.READ_WRITE, Access.WRITE_ONLY, Access.WORKGROUP)

    @property
    def backend_allocated(self) -> bool:
        """Starts as zeros instead of the caller's bytes."""
        if self.is_workgroup:
            return False
        return (
            self.is_output or self.access is Access.WRITE_ONLY or (self.live_out and self.access is Access.READ_WRITE)
        )

    @property
    def is_host_input(self) -> bool:
        """Whether the caller brings its bytes."""
        return not self.is_workgroup and not self.backend_allocated

    @property
    def is_host_output(self) -> bool:
        """Whether its bytes come back."""
        return self.backend_allocated or self.access is Access.READ_WRITE


def storage(name: str, binding: int, access: Access, element: DataType, count: int = 0) -> BufferDecl:
    return BufferDecl(name, binding, access, element, count)


def read(name: str, binding: int, element: DataType, count: int = 0) -> BufferDecl:
    return BufferDecl(name, binding, Access.READ_ONLY, element, count)


def read_write(name: str, binding: int, element: DataType, count: int = 0) -> BufferDecl:
    return BufferDecl(name, binding, Access.READ_WRITE, element, count)


def write_only(name: str, binding: int, element: DataType, count: int = 0) -> BufferDecl:
    return BufferDecl(name, binding, Access.WRITE_ONLY, element, count)


def uniform(name: str, binding: int, element: DataType, count: int = 0) -> BufferDecl:
    return BufferDecl(name, binding, Access.UNIFORM, element, count)


def workgroup(name: str, element: DataType, count: int) -> BufferDecl:
    """Memory shared by one workgroup, zero at its start."""
    return BufferDecl(name, 0, Access.WORKGROUP, element, count)


def output(name: str, binding: int, element: DataType, count: int) -> BufferDecl:
    """The result buffer: made by the backend, zero-filled, seen by the host afterwards."""
    return BufferDecl(name, binding, Access.READ_WRITE, element, count, is_output=True, live_out=True)


# ---- programs -------------------------------------------------------------------------------------------------------


def _items(what: str, given: Iterable[Any]) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError as e:
        raise IRTypeError(f"{what} of a program is a {type(given).__name__}", fix=f"pass a list as {what}") from e


def _require_revision(rev: int) -> None:
    if not isinstance(rev, int):
        raise ArgumentTypeError(f"a {type(rev).__name__} is not a wire revision", fix="pass a number: rev=6")


class Part(NamedTuple):
    """What a local is of something that the source names, `v.x` or `acc[3]`, and where it is made.

    An array in memory has `acc[]` or `acc[].x`, and a table that is one small value what each of its elements is:
    `eye.x:f32 eye.y:f32`. A parameter of a helper has no place: the line that calls it makes it.
    """

    path: str
    span: Span | None


class Program:
    """Buffers, a workgroup size and a body. Frozen; equality ignores the order in which buffers are declared.

    A body that is not already a list of regions is wrapped in one. `Program.of_entry` takes the entry as it is.
    """

    __slots__ = ("_cache", "buffers", "entry", "entry_op_id", "exclusive", "workgroup_size")
    buffers: tuple[BufferDecl, ...]
    workgroup_size: tuple[int, int, int]
    entry: tuple[Node, ...]
    entry_op_id: str | None
    exclusive: bool
    _cache: dict[Hashable, Any]

    def __init__(
        self,
        buffers: Iterable[BufferDecl],
        workgroup_size: Iterable[int],
        body: Iterable[Node],
        *,
        op_id: str | None = None,
        exclusive: bool = False,
    ) -> None:
        nodes: tuple[Node, ...] = _items("body", body)
        if not nodes or not all(isinstance(n, Region) for n in nodes):
            nodes = (Region(ROOT_GENERATOR, nodes),)
        self._fill(buffers, workgroup_size, nodes, op_id, exclusive)

    @classmethod
    def of_entry(
        cls,
        buffers: Iterable[BufferDecl],
        workgroup_size: Iterable[int],
        entry: Iterable[Node],
        *,
        op_id: str | None = None,
        exclusive: bool = False,
    ) -> Program:
        """A program whose entry list is taken as given, wrapped or not."""
        self = cls.__new__(cls)
        self._fill(buffers, workgroup_size, entry, op_id, exclusive)
        return self

    def _fill(
        self, buffers: Iterable[BufferDecl], wg: Iterable[int], entry: Iterable[Node], op_id: str | None, ex: bool
    ) -> None:
        size = _items("workgroup_size", wg)
        if len(size) != 3:
            raise IRValueError(f"workgroup_size has {len(size)} axes", fix="pass workgroup_size=(x, y, z)")
        for name, value in (
            ("buffers", _items("buffers", buffers)),
            ("workgroup_size", size),
            ("entry", _items("entry", entry)),
            ("entry_op_id", op_id),
            ("exclusive", ex),
            ("_cache", {}),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def empty(cls) -> Program:
        """The explicit no-op."""
        return cls((), (1, 1, 1), ())

    def replace(self, **changes: Any) -> Program:
        """The same program with some of buffers, workgroup_size, entry, op_id, exclusive changed."""
        now = {
            "buffers": self.buffers, "workgroup_size": self.workgroup_size, "entry": self.entry,
            "op_id": self.entry_op_id, "exclusive": self.exclusive,
        }  # fmt: skip
        return Program.of_entry(**(now | changes))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Program is frozen; build another with .replace(...)")

    def _identity(self) -> tuple[Any, ...]:
        return self.workgroup_size, self.entry, self.entry_op_id, self.exclusive, len(self.buffers)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Program):
            return NotImplemented
        if self._identity() != other._identity():
            return False
        return sorted(self.buffers, key=_decl_key) == sorted(other.buffers, key=_decl_key)

    def __hash__(self) -> int:
        return self._cached("hash", lambda: hash((self._identity(), frozenset(self.buffers))))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_program, (self.buffers, self.workgroup_size, self.entry, self.entry_op_id, self.exclusive)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._cached("text", lambda: above.print_program(self))

    def _repr_html_(self) -> str:
        from .. import html

        known: list[tuple[str, object]] = [("workgroup", " x ".join(map(str, self.workgroup_size)))]
        try:
            known.append(("fingerprint", self.fingerprint))
            if self.stats.nodes <= _QUICK_TO_PROVE:
                known.append(("determinism", self.determinism))
        except VyreError as e:
            known.append(("fingerprint", f"none: {e.message}"))
        rows = (
            (
                b.binding if not b.is_workgroup else "",
                b.name,
                b.access.name.lower(),
                b.element,
                b.count or "at dispatch",
            )
            for b in (*self.bound_buffers, *(b for b in self.buffers if b.is_workgroup))
        )
        return html.page(
            "program" if self.entry_op_id is None else f"program {self.entry_op_id}",
            html.facts(known),
            html.table(("slot", "buffer", "access", "element", "elements"), rows),
            html.code("text", str(self)),
        )

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        cache = self._cache
        if key not in cache:
            cache[key] = make()
        return cast("T", cache[key])

    @property
    def name(self) -> str:
        """What people call it, for reports: its operation, or the kernel that it was made from. Equal programs may have
        different names."""
        return self.entry_op_id or str(self._cache.get("name", ""))

    def called(self, name: str) -> Program:
        """This very program, with a name."""
        self._cache["name"] = name
        return self

    def unnamed(self, names: Iterable[str] = ()) -> frozenset[str]:
        """Locals that have no name in the source, as the first call says."""
        return self._cached("unnamed", lambda: frozenset(names))

    def parts(self, found: Mapping[str, Part] = MappingProxyType({})) -> Mapping[str, Part]:
        """Locals and arrays that are parts of what the source names, as the first call says."""
        return self._cached("parts", lambda: MappingProxyType(dict(found)))

    # -- wire and identity

    def to_wire(self, rev: int = 6) -> bytes:
        """The portable binary form."""
        _require_revision(rev)
        return self._cached(("wire", rev), lambda: above.encode(self, rev))

    @classmethod
    def from_wire(cls, blob: bytes | bytearray | memoryview) -> Program:
        """Read revisions 4 to 6. Raises only WireError."""
        found: Program = above.decode(blob)
        return found

    def canonicalized(self) -> Program:
        """The representative of all programs that differ only in what the fingerprint does not see."""
        found: Program = self._cached("canonical", lambda: above.canonicalize(self))
        return found

    @property
    def fingerprint(self) -> str:
        """blake3 of the canonical wire form, 64 hex digits."""
        return self._cached("fingerprint", lambda: above.fingerprint(self))

    def fingerprint_at(self, rev: int) -> str:
        """The same at another revision of the wire form; the digest covers the revision."""
        _require_revision(rev)
        return self._cached(("fingerprint", rev), lambda: above.fingerprint(self, rev))

    # -- facts

    def buffer(self, name: str) -> BufferDecl | None:
        """The buffer of that name (the first, should a bad program declare it twice)."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"a {type(name).__name__} is not a name of a buffer", fix="pass a text")
        return self._cached("by_name", lambda: {b.name: b for b in reversed(self.buffers)}).get(name)

    @property
    def bound_buffers(self) -> tuple[BufferDecl, ...]:
        """Everything but workgroup memory, in the order of the positional ABI: by slot, then name."""
        return self._cached(
            "bound",
            lambda: tuple(sorted((b for b in self.buffers if not b.is_workgroup), key=lambda b: (b.binding, b.name))),
        )

    @property
    def host_inputs(self) -> tuple[BufferDecl, ...]:
        """The buffers whose bytes the caller brings, in slot order."""
        return tuple(b for b in self.bound_buffers if b.is_host_input)

    @property
    def host_outputs(self) -> tuple[BufferDecl, ...]:
        """The buffers that come back, in slot order."""
        return tuple(b for b in self.bound_buffers if b.is_host_output)

    @property
    def output_indices(self) -> tuple[int, ...]:
        """Positions of the buffers a program may leave changed."""
        return tuple(i for i, b in enumerate(self.buffers) if b.access in (Access.READ_WRITE, Access.WRITE_ONLY))

    def ops(self) -> frozenset[str]:
        """Stable ids of every operation used."""
        return self._cached("ops", lambda: above.ops(self))

    @property
    def stats(self) -> Stats:
        """How many statements, expressions, loads, stores and barriers there are, and how deeply they are nested."""
        found: Stats = self._cached("stats", lambda: above.stats(self))
        return found

    @property
    def requirements(self) -> Requirements:
        """The capabilities a backend must have."""
        found: Requirements = self._cached("requirements", lambda: above.requirements(self))
        return found

    @property
    def determinism(self) -> str:
        """`proved` when no schedule can change a result over any grid; `proved for grids with ...` when it holds for
        those alone, and a plan (`explain`) says whether one dispatch is such; else `unproved`."""
        found: str = self._cached("determinism", lambda: above.determinism(self).verdict)
        return found

    @property
    def indirect(self) -> tuple[str, int] | None:
        """Buffer and byte offset of the grid, when the program takes it from memory."""
        from .visit import walk_nodes

        found = next((n for n in walk_nodes(self.entry) if isinstance(n, IndirectDispatch)), None)
        return None if found is None else (found.count_buffer, found.count_offset)

    def validate(self) -> list[Issue]:
        """As `vyre.validate(program)`."""
        return above.validate(self)


def _decl_key(b: BufferDecl) -> tuple[str, int, int]:
    return b.name, b.binding, hash(b)


def _rebuild_program(buffers: Any, wg: Any, entry: Any, op_id: str | None, exclusive: bool) -> Program:
    return Program.of_entry(buffers, wg, entry, op_id=op_id, exclusive=exclusive)
