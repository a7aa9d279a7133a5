"""What runs a program, and what runs it over a stream of chunks: structural views of the contract."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ...errors import ArgumentValueError, VyreError
from .backend import VyreBackend
from .pending import PendingDispatch
from .values import DEFAULT_CONFIG, DispatchConfig, OutputBuffers

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ...foundation.ir.program import Program


@runtime_checkable
class Backend(Protocol):
    """Something with the identity of a backend."""

    id: str
    version: str

    def supported_ops(self) -> frozenset[str]: ...


@runtime_checkable
class Executable(Protocol):
    """Something that runs a program on host bytes."""

    def dispatch(
        self,
        program: Program,
        inputs: Sequence[Buffer],
        config: DispatchConfig = DEFAULT_CONFIG,
        *,
        out: Sequence[Buffer] | None = None,
    ) -> OutputBuffers: ...


@runtime_checkable
class Streamable(Protocol):
    """Something that runs a program on one chunk of inputs after another."""

    def stream(
        self, program: Program, chunks: Iterable[Sequence[Buffer]], config: DispatchConfig = DEFAULT_CONFIG
    ) -> Iterator[OutputBuffers]: ...


class ChunkStream(Iterator[OutputBuffers]):
    """The results of `stream_chunks`. The error of a chunk is raised in that chunk's place; the next call goes on."""

    def __init__(
        self,
        backend: VyreBackend,
        program: Program,
        chunks: Iterable[Sequence[Buffer]],
        config: DispatchConfig,
        depth: int,
    ) -> None:
        self._backend, self._program, self._config, self._depth = backend, program, config, depth
        self._chunks = iter(chunks)
        self._started: deque[PendingDispatch | VyreError] = deque()

    def __next__(self) -> OutputBuffers:
        while len(self._started) < self._depth:
            try:
                chunk = next(self._chunks)
            except StopIteration:
                break
            try:
                self._started.append(self._backend.dispatch_async(self._program, chunk, self._config))
            except VyreError as e:
                self._started.append(e)
        if not self._started:
            raise StopIteration
        first = self._started.popleft()
        if isinstance(first, VyreError):
            raise first
        return first.result()


def stream_chunks(
    backend: VyreBackend,
    program: Program,
    chunks: Iterable[Sequence[Buffer]],
    config: DispatchConfig = DEFAULT_CONFIG,
    *,
    depth: int = 2,
) -> ChunkStream:
    """Outputs of a program for each chunk of inputs, in order; `depth` dispatches are in flight at most.

    Chunks are taken only when a result is asked for, and a chunk's memory may be reused once the next one is taken.
    """
    if depth < 1:
        raise ArgumentValueError(f"depth={depth} starts nothing", fix="use 1 for one dispatch at a time, or more")
    return ChunkStream(backend, program, chunks, config, depth)
