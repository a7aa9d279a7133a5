"""A backend whose device is watched: what the floors below the guard need of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..contract.backend import VyreBackend
from ..device_state import Watched

if TYPE_CHECKING:
    from ...errors import VyreError
    from .cache import PipelineCache

T = TypeVar("T")


class WatchedBackend(Watched):
    """A backend with the state of its device and the pipelines that were compiled for it."""

    inner: VyreBackend
    pipelines: PipelineCache

    @abstractmethod
    def require_usable(self) -> None:
        """Raise DeviceLost unless the device is there. One that was lost to a deadline is recovered."""

    @abstractmethod
    def on_device(self, call: Callable[[], T]) -> T:
        """What `call` gives, if the device is there."""

    @abstractmethod
    def failure(self, error: Exception, epoch: int, **context: Any) -> VyreError:
        """What the caller gets for what the backend raised. On a device that is gone, every failure is its loss."""
