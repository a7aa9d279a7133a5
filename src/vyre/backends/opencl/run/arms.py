"""Commands of which some need not wait for each other: through several queues, with events between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....runtime.device import Command, Launch, Ticket
from .commands import Launched, enqueue_zero

if TYPE_CHECKING:
    from ..device import OpenCLDevice

MOST = 4
"""Queues that take turns, beside those that every device has."""


def arms(device: OpenCLDevice, commands: Sequence[Command], after: Sequence[Sequence[int]]) -> Callable[[], Ticket]:
    """What enqueues all of it again; `after` says for each command which ones before it have to end first.

    The first queue begins and ends it, so that work before and after it stays where it is.
    """
    cl, main = device.cl, device.queues[0]
    lanes = lanes_of(after)
    with device.lock, device.errors("opening a queue"):
        while len(device.arms) < max(lanes):
            device.arms.append(cl.CommandQueue(device.context, device.target))
        queues = [main, *device.arms[: max(lanes)]]
    enqueues = [_enqueue(device, command) for command in commands]
    waited = [[k for k in before if lanes[k] != lanes[at]] for at, before in enumerate(after)]
    starts = {lane: lanes.index(lane) for lane in set(lanes) if lane}
    ends = [len(lanes) - 1 - lanes[::-1].index(lane) for lane in starts]
    marker, error = cl.enqueue_marker, cl.Error

    def go() -> Ticket:
        with device.lock:  # all such work is enqueued one after the other, so that no two wait for each other
            events: list[Any] = []
            try:
                begun = marker(main)
                for at, enqueue in enumerate(enqueues):
                    needed = [events[k] for k in waited[at]]
                    if starts.get(lanes[at]) == at:
                        needed.append(begun)
                    events.append(enqueue(queues[lanes[at]], needed or None))
                for queue in queues:
                    queue.flush()  # or an event of another queue may never come
                last = marker(main, wait_for=[events[k] for k in ends])
                main.flush()
            except error as e:
                raise device.failure(e, "launching kernels") from e
            device.latest[0] = last
            return Launched(device, last)

    return go


def lanes_of(after: Sequence[Sequence[int]]) -> list[int]:
    """A queue for each command: that of one it waits for if nothing else came there since, else one that is free of
    what it need not wait for.

    >>> lanes_of([(), (0,), (), (2,), (1, 3)])
    [0, 0, 1, 1, 0]
    """
    lanes: list[int] = []
    last: list[int] = []
    for at, before in enumerate(after):
        lane = next((k for k, end in enumerate(last) if end in before), None)
        if lane is None:
            lane = len(last) if len(last) <= MOST else at % len(last)
        if lane == len(last):
            last.append(at)
        last[lane] = at
        lanes.append(lane)
    return lanes


def _enqueue(device: OpenCLDevice, command: Command) -> Callable[[Any, Sequence[Any] | None], Any]:
    """What puts it into a queue, behind some events."""
    cl = device.cl
    if not isinstance(command, Launch):
        memory, offset, nbytes = command
        return lambda queue, needed: enqueue_zero(cl, queue, memory, offset, nbytes, needed)
    code, memories, lengths, base, grid = command
    with device.errors("preparing a launch"):
        own = code.again()
        own.aim(memories, lengths, base, None)
    kernel, local, bound = own.kernel, code.workgroup, tuple(memories)  # which a kernel does not keep

    def launch(queue: Any, needed: Sequence[Any] | None) -> Any:
        assert bound
        return cl.enqueue_nd_range_kernel(queue, kernel, grid, local, g_times_l=True, wait_for=needed)

    return launch
