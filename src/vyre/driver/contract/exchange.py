"""How memory of a device is shared with other libraries of the process, without a copy.

Addresses, devices and streams are those of DLPack: a device is (type, id), and a stream is a number that every library
on such a device knows. A backend whose memory has no address, or whose libraries have no streams, gives nothing here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .values import ResidentHandle


class DeviceExchange(ABC):
    """The memory of one backend as others see it. Making it and asking for `device` opens no device."""

    device: tuple[int, int]
    """The type and the number that DLPack has for the device."""

    @abstractmethod
    def adopt(self, address: int, nbytes: int) -> ResidentHandle:
        """Resident memory over memory of another library. It is neither zeroed nor ever freed by us."""

    @abstractmethod
    def address(self, handle: ResidentHandle) -> int:
        """Where resident memory begins."""

    def seen_by_host(self, handle: ResidentHandle) -> Any:
        """Resident memory as an array of bytes over it, which keeps it; None where the host does not work in it."""
        return None

    @property
    def stream(self) -> int | None:
        """The stream that all work over resident memory runs on; None where there are no streams."""
        return None

    def stream_of(self, array: Any) -> int | None:
        """The stream on which the library of an array uses it now; None where it is unknown."""
        return None

    def wait_for(self, stream: int) -> None:  # noqa: B027 - work that is done when it returns needs none of these
        """Our work from now on begins after the work that is in that stream by now."""

    def wait_for_all(self, streams: set[int]) -> None:  # noqa: B027
        """As `wait_for`, of streams that may be gone by now; -1 stands for any that there are."""

    def release_to(self, stream: int | None) -> None:  # noqa: B027
        """Work submitted to that stream from now on begins after our work so far. None: wait for it here."""

    def keep(self, objects: list[Any]) -> None:  # noqa: B027
        """Hold these until our work so far has ended."""

    def pinned(self, nbytes: int) -> Buffer | None:
        """Host memory that the device reads and writes directly, freed with its last reference; None where no memory
        of the host is better than any other."""
        return None
