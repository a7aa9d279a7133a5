"""Arguments of a resident dispatch: resources by slot, ranges of resident memory, and the checks of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import ArgumentTypeError, ArgumentValueError, InvalidProgram
from ..contract.values import HostResource, ResidentHandle, ResidentOwner, Resource, whole
from ..plan.binding import Binding, byte_lengths

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_BYTES = (1 << 63) - 1


def by_slot(bound: Sequence[Binding], resources: Sequence[Resource]) -> list[Resource | None]:
    """A resource for each bound buffer; None where the caller gives none."""
    inputs = [b for b in bound if b.input_index is not None]
    for k, r in enumerate(resources):
        if not isinstance(r, Resource):
            raise ArgumentTypeError(
                f"resource {k} is {type(r).__name__}", fix="pass resident handles, or HostResource(bytes)"
            )
    if len(resources) == len(bound):
        return list(resources)
    if len(resources) == len(inputs):
        given = iter(resources)
        return [next(given) if b.input_index is not None else None for b in bound]
    names = ", ".join(b.name for b in bound) or "nothing"
    raise ArgumentValueError(
        f"expected {len(bound)} resource(s), or {len(inputs)} for the inputs, and received {len(resources)}",
        fix=f"pass one for each of, in this order: {names}",
    )


def validate_buffer_ownership(
    owner: ResidentOwner, bindings: Sequence[Binding], given: Sequence[Resource | None]
) -> None:
    """Raise if memory among the resources belongs to another backend instance, saying for which buffer it is."""
    for b, r in zip(bindings, given, strict=True):
        if isinstance(r, ResidentHandle):
            owner.resolve(r, f"buffer {b.name!r}")


def nbytes_of(resource: Resource | None) -> int | None:
    if isinstance(resource, ResidentHandle):
        return resource.nbytes
    if resource is None:
        return None
    (nbytes,) = byte_lengths([resource.data])
    return nbytes


def refuse_host_outputs(bindings: Sequence[Binding], given: list[Resource | None], may_allocate: bool) -> None:
    """Nothing is copied back, so results need memory that stays, except in steps those that have no elements."""
    for slot, (b, r) in enumerate(zip(bindings, given, strict=True)):
        if b.output_index is None or isinstance(r, ResidentHandle):
            continue
        if not may_allocate and r is not None and not nbytes_of(r):
            continue
        if b.input_index is None and isinstance(r, HostResource):
            if nbytes_of(r):
                raise ArgumentValueError(
                    f"output {b.name!r} is given bytes of the host, which a resident dispatch does not write",
                    fix="pass resident memory for it, or an empty HostResource to have it allocated",
                )
            given[slot] = None
        if not may_allocate:
            raise no_memory(b)


def no_memory(b: Binding) -> ArgumentValueError:
    return ArgumentValueError(
        f"output {b.name!r} of a step has no resident memory",
        fix="allocate it with allocate_resident() and pass the handle",
    )


def refuse_shared(bindings: Sequence[Binding], given: Sequence[Resource | None]) -> None:
    """Memory that a program writes is bound once."""
    seen: dict[int, Binding] = {}
    for b, r in zip(bindings, given, strict=True):
        if not isinstance(r, ResidentHandle):
            continue
        other = seen.setdefault(r.id, b)
        if other is not b and (b.output_index is not None or other.output_index is not None):
            raise ArgumentValueError(
                f"buffers {other.name!r} and {b.name!r} are the same resident memory, and the program writes it",
                fix="pass separate memory for what is written",
                handle=r.id,
            )


def byte_range(handle: ResidentHandle, offset: int, nbytes: int, what: str) -> int:
    """Where a range of resident memory begins, if it lies inside."""
    start = whole("byte_offset", offset, MOST_BYTES)
    if start is None or start + nbytes > handle.nbytes:
        raise ArgumentValueError(
            f"the {what} of {nbytes} bytes at {offset} is outside resident memory of {handle.nbytes} bytes",
            fix=f"stay within {handle.nbytes} bytes",
            handle=handle.id,
        )
    return start


def check_targets(sizes: Sequence[int], out: Sequence[Buffer]) -> None:
    """Raise unless there is a buffer for each range that is read."""
    if not isinstance(out, Sequence):
        raise ArgumentTypeError(f"out is {type(out).__name__}, not a list", fix="pass out as a list of buffers")
    if len(out) != len(sizes):
        raise ArgumentValueError(
            f"{len(sizes)} range(s) are read into {len(out)} buffer(s)", fix="pass one buffer for each range"
        )
    byte_lengths(out)  # says which of them holds no bytes
    for k, (nbytes, target) in enumerate(zip(sizes, out, strict=True)):
        view = memoryview(target)
        if view.nbytes != nbytes or view.readonly or not view.c_contiguous:
            raise ArgumentValueError(
                f"buffer {k} cannot take a range of {nbytes} bytes",
                fix=f"pass a writable, contiguous buffer of {nbytes} bytes",
                given=view.nbytes,
            )


def unknown(handle: ResidentHandle) -> InvalidProgram:
    return InvalidProgram(
        f"resident memory {handle.id} was freed or never allocated",
        fix="allocate it again, and free it once, after its last use",
        handle=handle.id,
    )
