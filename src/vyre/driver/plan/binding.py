"""Which buffer goes where: a program's buffers as a table in slot order, sized from the inputs of one dispatch.

Positional inputs and outputs follow the binding slot, as in `program.host_inputs` and `program.host_outputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError, ArgumentValueError, InvalidProgram
from ...foundation.integers import ceil_div
from ...foundation.ir.dtypes import DataType, element_count, packed_size
from ...foundation.ir.program import Access, BufferDecl, MemoryKind, Program
from ..contract.values import U32_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_SLOT = 65535
"""Parameter words are indexed by slot; a larger one would only make the table long."""


class BindingRole(StrEnum):
    """What a buffer is to the host."""

    INPUT = "input"
    OUTPUT = "output"
    INPUT_OUTPUT = "input_output"
    UNIFORM = "uniform"
    SHARED = "shared"
    PERSISTENT = "persistent"

    @classmethod
    def of(cls, decl: BufferDecl) -> BindingRole:
        if decl.is_workgroup:
            return cls.SHARED
        if decl.kind is MemoryKind.PERSISTENT:
            return cls.PERSISTENT
        if decl.backend_allocated:
            return cls.OUTPUT
        return {
            Access.READ_ONLY: cls.INPUT,
            Access.READ_WRITE: cls.INPUT_OUTPUT,
            Access.UNIFORM: cls.UNIFORM,
        }[decl.access]


@dataclass(frozen=True, slots=True)
class Binding:
    """One buffer. `element_count` is its length in this dispatch; before that, 0 means: not known yet.

    `input_index` and `output_index` are its positions among the inputs and outputs of a call, if it is one.
    """

    name: str
    binding: int
    buffer_index: int
    role: BindingRole
    element: DataType
    element_size: int
    preferred_alignment: int
    element_count: int
    static_byte_len: int | None
    input_index: int | None = None
    output_index: int | None = None
    output_byte_range: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return packed_size(self.element, self.element_count) or 0

    @property
    def is_written(self) -> bool:
        """Whether the program may change it, and what it holds outlasts a launch."""
        return self.role in (BindingRole.OUTPUT, BindingRole.INPUT_OUTPUT, BindingRole.PERSISTENT)

    @property
    def sizes_outputs(self) -> bool:
        """Whether outputs of unknown length take this one's."""
        return self.input_index is not None and self.static_byte_len is None and self.role is not BindingRole.UNIFORM


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """Every buffer in slot order. The three index lists are positions in `program.buffers`, in slot order too."""

    bindings: tuple[Binding, ...]
    input_indices: tuple[int, ...] = ()
    output_indices: tuple[int, ...] = ()
    shared_indices: tuple[int, ...] = ()

    @classmethod
    def build(cls, program: Program) -> BindingPlan:
        """The plan before any input is known."""
        return program._cached("driver.bindings", lambda: cls._build(program))

    @classmethod
    def _build(cls, program: Program) -> BindingPlan:
        inputs = {id(b): k for k, b in enumerate(program.host_inputs)}
        outputs = {id(b): k for k, b in enumerate(program.host_outputs)}
        order = sorted(enumerate(program.buffers), key=lambda item: (item[1].binding, item[1].name))
        bindings = tuple(_binding(k, b, inputs.get(id(b)), outputs.get(id(b))) for k, b in order)
        _refuse_shared_slots(bindings)
        return cls(
            bindings,
            tuple(b.buffer_index for b in bindings if b.input_index is not None),
            tuple(b.buffer_index for b in bindings if b.output_index is not None),
            tuple(b.buffer_index for b in bindings if b.role is BindingRole.SHARED),
        )

    @classmethod
    def from_inputs(
        cls,
        program: Program,
        inputs: Sequence[Buffer],
        output_elements: Mapping[str, int] | None = None,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> BindingPlan:
        """The plan for these inputs; `out` are the caller's result buffers, if there are some."""
        return cls.from_input_lengths(
            program, byte_lengths(inputs), output_elements, out_lengths=None if out is None else byte_lengths(out)
        )

    @classmethod
    def from_input_lengths(
        cls,
        program: Program,
        lengths: Sequence[int],
        output_elements: Mapping[str, int] | None = None,
        *,
        out_lengths: Sequence[int | None] | None = None,
        resident: bool = False,
    ) -> BindingPlan:
        """The plan for inputs of these byte lengths. Resident memory may be longer than a static buffer."""
        return cls.build(program).sized(lengths, output_elements, out_lengths=out_lengths, resident=resident)

    @property
    def inputs(self) -> tuple[Binding, ...]:
        return tuple(b for b in self.bindings if b.input_index is not None)

    @property
    def outputs(self) -> tuple[Binding, ...]:
        return tuple(b for b in self.bindings if b.output_index is not None)

    def validate_input_byte_lengths(self, lengths: Sequence[int], *, resident: bool = False) -> None:
        """Raise unless inputs of these lengths can be bound."""
        inputs = self.inputs
        if len(lengths) != len(inputs):
            names = ", ".join(b.name for b in inputs) or "nothing"
            raise ArgumentValueError(
                f"expected {len(inputs)} input buffer(s) and received {len(lengths)}",
                fix=f"pass one buffer for each of, in this order: {names}",
            )
        for b, nbytes in zip(inputs, lengths, strict=True):
            _check_length(b, nbytes, resident)

    def sized(
        self,
        lengths: Sequence[int],
        output_elements: Mapping[str, int] | None = None,
        *,
        out_lengths: Sequence[int | None] | None = None,
        resident: bool = False,
    ) -> BindingPlan:
        """The same plan with every length known."""
        self.validate_input_byte_lengths(lengths, resident=resident)
        asked = output_elements or {}
        self._check_sizes(asked, out_lengths)
        found = list(self.bindings)
        for k, b in enumerate(found):
            if b.input_index is not None and b.static_byte_len is None:
                found[k] = _counted(b, element_count(b.element, lengths[b.input_index]))
        for k, b in enumerate(found):
            if b.output_index is not None and b.input_index is None and b.static_byte_len is None:
                given = None if out_lengths is None else out_lengths[b.output_index]
                found[k] = _counted(b, _output_elements(b, asked, given, found))
        return replace(self, bindings=tuple(found))

    def _check_sizes(self, asked: Mapping[str, int], out_lengths: Sequence[int | None] | None) -> None:
        """The caller's sizes must be about outputs that start as zeros, and agree with what is fixed."""
        for name, n in asked.items():
            b = next((b for b in self.outputs if b.name == name and b.input_index is None), None)
            if b is None:
                known = ", ".join(b.name for b in self.outputs if b.input_index is None) or "none"
                raise ArgumentValueError(
                    f"{name!r} is not an output whose length the caller chooses", fix=f"name one of: {known}"
                )
            if type(n) is not int or not 0 <= n <= U32_MAX:
                raise ArgumentValueError(
                    f"{n!r} is not a length for output {name!r}", fix=f"use a whole number from 0 to {U32_MAX}"
                )
            if b.static_byte_len is not None and b.element_count != n:
                raise ArgumentValueError(
                    f"output {name!r} has {b.element_count} elements and the caller asks for {n}",
                    fix=f"drop {name!r} from the sizes, or ask for {b.element_count}",
                )
        if out_lengths is not None and len(out_lengths) != len(self.output_indices):
            names = ", ".join(b.name for b in self.outputs) or "nothing"
            raise ArgumentValueError(
                f"expected {len(self.output_indices)} output buffer(s) and received {len(out_lengths)}",
                fix=f"pass one buffer for each of, in this order: {names}",
            )


def borrowed_input_slices(buffers: Sequence[Buffer], what: str = "buffer") -> tuple[memoryview, ...]:
    """Views of some buffers; nothing is copied."""
    found = []
    if not isinstance(buffers, Iterable):
        raise ArgumentTypeError(
            f"{what}s are a {type(buffers).__name__}, not a list", fix=f"pass the {what}s as a list"
        )
    for k, data in enumerate(buffers):
        try:
            found.append(memoryview(data))
        except TypeError as e:
            raise ArgumentTypeError(
                f"{what} {k} is {type(data).__name__}, which holds no bytes",
                fix="pass bytes, a bytearray, a NumPy array (np.asarray(x, dtype=np.float32)), or another buffer",
            ) from e
    return tuple(found)


def byte_lengths(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    """Bytes in each of some buffers."""
    return tuple(view.nbytes for view in borrowed_input_slices(buffers))


def element_size_bytes(dtype: DataType) -> int:
    """Bytes from one element to the next; packed four-bit types count as one."""
    if not dtype.size:
        why = "Vec count must be > 0" if dtype.name.startswith("vec") and dtype.size == 0 else "has no fixed size"
        raise InvalidProgram(f"elements of type {dtype.name} cannot be bound: {why}", fix="use a number type")
    return dtype.size


def _binding(index: int, decl: BufferDecl, input_index: int | None, output_index: int | None) -> Binding:
    size = element_size_bytes(decl.element)
    hint = decl.hints.preferred_alignment
    if hint < 0 or hint & (hint - 1):
        raise InvalidProgram(
            f"buffer {decl.name!r} has preferred_alignment={hint}, which is not a power of two",
            fix="use 0 or a power of two",
        )
    for what, value, most in (("slot", decl.binding, MAX_SLOT), ("count", decl.count, U32_MAX)):
        if not 0 <= value <= most:
            raise InvalidProgram(
                f"buffer {decl.name!r} has {what} {value}", fix=f"use a {what} from 0 to {most}", limit=most
            )
    return Binding(
        decl.name,
        decl.binding,
        index,
        BindingRole.of(decl),
        decl.element,
        size,
        max(hint, size),
        decl.count,
        decl.nbytes,
        input_index,
        output_index,
        decl.output_byte_range,
    )


def _refuse_shared_slots(bindings: tuple[Binding, ...]) -> None:
    bound = [b for b in bindings if b.role is not BindingRole.SHARED]
    for a, b in pairwise(bound):
        if a.binding == b.binding:
            raise InvalidProgram(
                f"buffers {a.name!r} and {b.name!r} share slot {a.binding}", fix="give each buffer its own slot"
            )


def _check_length(b: Binding, nbytes: int, resident: bool) -> None:
    static = b.static_byte_len
    if static is not None and (nbytes < static or (nbytes > static and not resident)):
        raise ArgumentValueError(
            f"input {b.name!r} has {nbytes} bytes: expected {'at least ' if resident else ''}{static} bytes",
            fix=f"pass {b.element_count} elements of {b.element.name}",
        )
    if nbytes % b.element_size:
        raise ArgumentValueError(
            f"input {b.name!r} has {nbytes} bytes, no multiple of {b.element_size}",
            fix=f"pass whole elements of {b.element.name}",
        )
    if static is None and element_count(b.element, nbytes) > U32_MAX:
        raise ArgumentValueError(
            f"input {b.name!r} has more elements than an index reaches", fix=f"pass at most {U32_MAX} elements"
        )


def _output_elements(b: Binding, asked: Mapping[str, int], given: int | None, others: Sequence[Binding]) -> int:
    """The length of an output that the program leaves open: what the caller says, else what the inputs agree on."""
    if b.name in asked:
        return asked[b.name]
    if b.output_byte_range is not None:
        return ceil_div(b.output_byte_range[1], b.element_size)
    if given is not None:
        if given % b.element_size:
            raise ArgumentValueError(
                f"the buffer for output {b.name!r} has {given} bytes, no multiple of {b.element_size}",
                fix=f"pass whole elements of {b.element.name}",
            )
        return element_count(b.element, given)
    say = f'say it: sizes={{"{b.name}": n}}, or DispatchConfig(output_elements={{"{b.name}": n}})'
    lengths = {o.name: o.element_count for o in others if o.sizes_outputs}
    if not lengths:
        raise ArgumentValueError(f"nothing says how long output {b.name!r} is", fix=say)
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ArgumentValueError(f"the length of output {b.name!r} is not clear: the inputs differ ({listed})", fix=say)
    return next(iter(lengths.values()))


def _counted(b: Binding, elements: int) -> Binding:
    """`replace` at a third of its cost, on the path of every new input length."""
    return Binding(
        b.name,
        b.binding,
        b.buffer_index,
        b.role,
        b.element,
        b.element_size,
        b.preferred_alignment,
        elements,
        None,
        b.input_index,
        b.output_index,
        b.output_byte_range,
    )


# ---- layouts: what two plans must share to share compiled code or binding tables -------------------------------------


@dataclass(frozen=True, slots=True)
class BindingSetFingerprint:
    """Slot, role and element size of each buffer; names, lengths and alignment do not matter."""

    slots: tuple[tuple[int, BindingRole, int], ...]

    @classmethod
    def from_plan(cls, plan: BindingPlan) -> BindingSetFingerprint:
        return cls(tuple(sorted((b.binding, b.role, b.element_size) for b in plan.bindings)))


def binding_plans_share_layout(a: BindingPlan, b: BindingPlan) -> bool:
    return BindingSetFingerprint.from_plan(a) == BindingSetFingerprint.from_plan(b)


class BackendLayoutClass(StrEnum):
    """How a device sees a buffer."""

    STORAGE = "storage"
    UNIFORM = "uniform"


@dataclass(frozen=True, slots=True)
class BackendLayoutSlot:
    group: int
    binding: int
    kind: BackendLayoutClass
    read_only: bool
    element_size: int


@dataclass(frozen=True, slots=True)
class BackendLayoutFingerprint:
    """The binding table of a device, in the order of group and slot however it was listed."""

    slots: tuple[BackendLayoutSlot, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(sorted(self.slots, key=lambda s: (s.group, s.binding))))

    @classmethod
    def from_plan(cls, plan: BindingPlan, group: int = 0) -> BackendLayoutFingerprint:
        """The table of a program whose buffers all lie in one group; workgroup memory has no slot."""
        return cls(
            tuple(
                BackendLayoutSlot(
                    group,
                    b.binding,
                    BackendLayoutClass.UNIFORM if b.role is BindingRole.UNIFORM else BackendLayoutClass.STORAGE,
                    b.output_index is None,
                    b.element_size,
                )
                for b in plan.bindings
                if b.role is not BindingRole.SHARED
            )
        )
