"""Work that is repeated as a whole: commands in order as a graph of the driver, which one call launches.

Graphs of the same codes in the same order differ in numbers only: addresses, lengths, blocks. So a graph that is there
is given the numbers that differ, and a new one is made only while few of its kind are there. Launches that are on their
way keep the numbers they had.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ....foundation.memo import keep
from ....runtime.device import Command, Ticket, Zero
from .commands import Later, Loaded, Numbers
from .fast_calls import Address, address

if TYPE_CHECKING:
    from ..device import CudaDevice

KINDS = 16
"""Kinds of graphs that a device keeps, also those that no sequence uses any longer."""
OF_A_KIND = 4
"""Graphs that differ in numbers only. Where more such sequences take turns, they take each other's."""
MOST = 256
"""Graphs of a device, after which single launches get none."""
_LOOKS_AGAIN = 64
"""Runs after which a single launch that got none asks again."""
DOING = "launching a graph"
_WORD_BYTES = 4
Numbered: TypeAlias = tuple[Any, ...]
"""What a node is told: plain numbers, so that a graph that keeps them keeps no memory of the device."""
Order: TypeAlias = tuple[tuple[int, ...], ...]
"""For each node the ones before it that it waits for: others may run beside it."""
Kind: TypeAlias = tuple[object, ...]
Owner: TypeAlias = Callable[[], Any]
"""Gives the owner, or None if it is gone."""


def _no_owner() -> None:
    return None


def _in_order(count: int) -> Order:
    """Each node behind the one before."""
    return tuple([(k - 1,) if k else () for k in range(count)])


class _Node:
    """A command, as the driver takes it."""

    def __init__(self, command: Command) -> None:
        self._numbers: Numbers | None = None
        if isinstance(command, Zero):
            self.kind: object = None
            start = int(command.memory) + command.offset
            size = 1 if start % _WORD_BYTES else _WORD_BYTES  # another library's memory may begin anywhere
            self.told: Numbered = start, command.nbytes // size, size
            return
        code, memories, lengths, base, grid = command
        assert isinstance(code, Loaded)
        self.kind = code
        self._numbers = Numbers(code)
        self._numbers.set(memories, lengths, base, None, code.last(grid))
        self.told = *code.blocks(grid), self._numbers.packed()

    def added(self, device: CudaDevice, graph: Any, after: list[Any]) -> Any:
        """The node, in a graph that is not complete yet, behind these."""
        cu = device.cu
        if self._numbers is None:
            made = cu.cuGraphAddMemsetNode(graph, after, len(after), self._parameters(cu), device.context.handle)
        else:
            made = cu.cuGraphAddKernelNode(graph, after, len(after), self._parameters(cu))
        return device.context.ok(made, "making a graph")

    def give(self, device: CudaDevice, graph: Any, node: Any) -> None:
        """Tell a node of a complete graph these numbers."""
        cu = device.cu
        if self._numbers is None:
            done = cu.cuGraphExecMemsetNodeSetParams(graph, node, self._parameters(cu), device.context.handle)
        else:
            done = cu.cuGraphExecKernelNodeSetParams(graph, node, self._parameters(cu))
        device.context.ok(done, "changing a graph")

    def _parameters(self, cu: Any) -> Any:
        if self._numbers is None:
            zero = cu.CUDA_MEMSET_NODE_PARAMS()
            zero.dst, zero.width, zero.elementSize = self.told
            zero.value, zero.height, zero.pitch = 0, 1, 0
            return zero
        code = self.kind
        assert isinstance(code, Loaded)
        launch = cu.CUDA_KERNEL_NODE_PARAMS()
        launch.func = code.function
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = self.told[:3]
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = code.block
        launch.sharedMemBytes = code.shared_bytes
        launch.kernelParams = self._numbers.address
        return launch


class _Graph:
    """A graph that can be launched. `owner` gives the sequence whose numbers it has, or None once that is gone."""

    def __init__(self, device: CudaDevice, nodes: Sequence[_Node], after: Order) -> None:
        self._cu, self._context = device.cu, device.context  # and not the device, which keeps its graphs
        cu, ok = device.cu, device.context.ok
        self.handle: Any = None
        self._plan: Any = None
        with device.context.current():
            self._plan = ok(cu.cuGraphCreate(0), "making a graph")
            self._nodes: list[Any] = []
            for node, waited in zip(nodes, after, strict=True):
                self._nodes.append(node.added(device, self._plan, [self._nodes[k] for k in waited]))
            self.handle = ok(cu.cuGraphInstantiate(self._plan, 0), "making a graph")
        self.address: Address = address(self.handle)
        self._told = [node.told for node in nodes]
        self.owner: Owner = _no_owner

    def take(self, device: CudaDevice, nodes: Sequence[_Node]) -> None:
        """Have the numbers of these."""
        self.owner = _no_owner  # in case one of them is refused
        with device.context.current():
            for k, node in enumerate(nodes):
                if node.told != self._told[k]:
                    node.give(device, self.handle, self._nodes[k])
                    self._told[k] = node.told

    def __del__(self) -> None:
        """Launches that are on their way still end."""
        if sys.is_finalizing() or self._context.lost:
            return
        for destroy, handle in ((self._cu.cuGraphExecDestroy, self.handle), (self._cu.cuGraphDestroy, self._plan)):
            if handle is not None:
                destroy(handle)


class Graphs:
    """The graphs of a device, by kind: the codes of their launches in order."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, list[_Graph]] = {}
        self.lock = threading.RLock()
        """Held during a launch, which blocks where the queue is full: not the device's, and taken before that."""
        self._alive: weakref.WeakSet[_Graph] = weakref.WeakSet()
        self.made = self.changed = self.launched = 0

    def sequence(
        self,
        device: CudaDevice,
        commands: Sequence[Command],
        plain: Callable[[], Ticket] | None = None,
        after: Sequence[Sequence[int]] | None = None,
    ) -> Callable[[], Ticket]:
        """Commands as a graph, whose branches run side by side where they are not `after` each other.

        `plain` does the same, and costs less than to take the graph of another sequence: it is used while there are too
        many of them, and for the first few runs.
        """
        nodes = [_Node(command) for command in commands]
        order = _in_order(len(nodes)) if after is None else tuple(map(tuple, after))
        kind = order, *(node.kind for node in nodes)
        launch, stream, failed = device.calls.launch_graph, address(device.stream), device.context.failed
        later = Later(device, commands)
        owner = weakref.ref(later)
        graph: _Graph | None = None
        waits = 0 if plain is None else device.launch_costs.first_recorded_run or 0

        def go() -> Ticket:
            nonlocal graph, waits
            with self.lock:
                if device.closed:
                    device.require_open(DOING)
                if graph is None or graph.owner is not owner:
                    if plain is not None:
                        if waits == 0 and not self._has_room(kind):
                            waits = _LOOKS_AGAIN
                        if waits:
                            waits -= 1
                            return plain()
                    graph = self._found(device, kind, nodes, order)
                    graph.owner = owner
                result = launch(graph.address, stream)
                self.launched += 1
            if result:
                raise failed(result, DOING)
            later.ticket = None
            return later

        return go

    def own(self, device: CudaDevice, commands: Sequence[Command]) -> Callable[[], None]:
        """Commands as a graph that no other sequence takes. Its holder keeps the memory, and marks its own end."""
        with self.lock:
            graph = self._new(device, [_Node(command) for command in commands], _in_order(len(commands)))
        launch, stream, failed = device.calls.launch_graph, address(device.stream), device.context.failed

        def go(codes: Sequence[Command] = commands) -> None:
            with self.lock:
                if device.closed:
                    device.require_open(DOING)
                result = launch(graph.address, stream)
                self.launched += 1
            if result:
                raise failed(result, DOING)

        return go

    def close(self) -> None:
        self._kinds.clear()

    def _new(self, device: CudaDevice, nodes: Sequence[_Node], order: Order) -> _Graph:
        graph = _Graph(device, nodes, order)
        self._alive.add(graph)
        self.made += 1
        return graph

    def _has_room(self, kind: Kind) -> bool:
        """Whether one more of this kind takes none from another sequence."""
        graphs = self._kinds.get(kind, [])
        if any(graph.owner() is None for graph in graphs):
            return True
        return len(graphs) < OF_A_KIND and len(self._alive) < MOST

    def _found(self, device: CudaDevice, kind: Kind, nodes: Sequence[_Node], order: Order) -> _Graph:
        """A graph with these numbers: one without an owner, a new one while there are few, or another owner's."""
        graphs = self._kinds.pop(kind, [])
        keep(self._kinds, kind, graphs, KINDS)  # the youngest now; sequences that still use a dropped one keep it
        graph = next((g for g in graphs if g.owner() is None), None)
        if graph is None and len(graphs) < OF_A_KIND:
            graph = self._new(device, nodes, order)
        else:
            graph = graph or graphs[0]  # which was taken before all others
            graphs.remove(graph)
            graph.take(device, nodes)
            self.changed += 1
        graphs.append(graph)
        return graph
