"""Corners of wgpu-py that have no public way in, each in one function, so that another version is one file of work.

The library's own way to wait is a thread that blocks inside the driver and holds the queue meanwhile: no other thread
could submit, and no waiting one could give up. So that thread is stopped, and a thread that waits polls.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

from ....runtime.exits import skip_exit_handlers

_LOST = "The WGPU device was lost"
_SILENCED = "XDG_RUNTIME_DIR"


class _NoThread:
    """Stands where the library keeps its polling thread."""

    def get_token(self) -> _NoThread:
        return self

    def set_done(self) -> None:
        pass

    def stop(self) -> None:
        pass


def find_types_quickly() -> None:
    """Let a C type be parsed with the names that it mentions. cffi would have those of all 400 types of the library
    parsed before it, for 10 ms each time a type is first met, and 46 are met until a first dispatch has ended."""
    from wgpu.backends.wgpu_native._ffi import ffi  # type: ignore[import-untyped]

    parser = ffi._parser
    parse, kinds = parser.parse_type_and_quals, ("typedef", "struct", "union", "enum")

    def parse_type_and_quals(text: str) -> Any:
        known = parser._declarations
        names = [f"{kind} {word}" for word in re.findall(r"\w+", text) for kind in kinds]
        parser._declarations = {name: known[name] for name in names if name in known}
        try:
            return parse(text)
        finally:
            known.update(parser._declarations)
            parser._declarations = known

    parser.parse_type_and_quals = parse_type_and_quals


def stop_thread(device: Any) -> None:
    """From here on the library notices nothing unless `poll` is called."""
    device._poller.stop()
    device._poller = _NoThread()


def poll(device: Any) -> None:
    """Let the library notice what has ended, without waiting. Callbacks run inside.

    They are Python: an exception of Ctrl-C in one of them would be printed and forgotten, and the waiting thread
    would never learn what the callback had to tell. So the signal waits until they have run.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        device._poll(False)
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        device._poll(False)
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        handler(*came[0])


class Done:
    """Whether work has ended; noticed by `poll`. The library's own `on_submitted_work_done` cannot be called."""

    __slots__ = ("_key",)

    def __init__(self, device: Any) -> None:
        api, callback = _telling()
        info = api.ffi.new("WGPUQueueWorkDoneCallbackInfo *")
        self._key = next(_keys)
        info.mode, info.callback = api.lib.WGPUCallbackMode_AllowProcessEvents, callback
        info.userdata1 = api.ffi.cast("void *", self._key)
        _running.add(self._key)
        api.libf.wgpuQueueOnSubmittedWorkDone(device.queue._internal, info[0])

    def __call__(self) -> bool:
        return self._key not in _running


_keys = count(1)
_running: set[int] = set()
_told: list[tuple[Any, Any]] = []
"""The library and the one callback, which stays for good."""


def _telling() -> tuple[Any, Any]:
    if not _told:
        from wgpu.backends.wgpu_native import _api  # type: ignore[import-untyped]

        def tell(status: Any, message: Any, key: Any, _: Any) -> None:
            _running.discard(int(_api.ffi.cast("uintptr_t", key)))

        signature = "void(WGPUQueueWorkDoneStatus, WGPUStringView, void *, void *)"
        _told.append((_api, _api.ffi.callback(signature, tell)))
    return _told[0]


def start_mapping(buffer: Any) -> Any:
    """Ask to read a buffer once the work that was submitted has ended."""
    promise = buffer.map_async("READ_NOSYNC")  # the public mode submits an empty command buffer each time
    promise._call_soon_threadsafe = None  # an event loop of the caller's has no part in this
    return promise


def is_mapped(promise: Any) -> bool:
    return bool(promise._state != "pending")


def version() -> str:
    """Of the library, and of what it is made on."""
    import wgpu  # type: ignore[import-untyped]
    from wgpu.backends.wgpu_native import lib_version_info

    return f"{wgpu.__version__}/{'.'.join(map(str, lib_version_info))}"


def nanoseconds_per_tick(device: Any) -> float:
    from wgpu.backends.wgpu_native import _api

    return float(_api.libf.wgpuQueueGetTimestampPeriod(device.queue._internal))


def forget(device: Any) -> None:
    """Never release the device: that waits for its work, however long."""
    device.queue._internal = None
    device._internal = None


def leave_to_parent() -> None:
    """In a process that was forked, nothing calls the library any more: its threads, which some calls wait for, are not
    here. Nor do drivers' exit functions run: Mesa would look for its threads."""
    from wgpu.backends.wgpu_native import _api

    _api.libf = None
    skip_exit_handlers()


class _Noticing(logging.Filter):
    """The library tells of a loss in its log alone, and not whose it was."""

    def __init__(self, told: Callable[[], None]) -> None:
        super().__init__()
        self._told = told

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(_LOST):
            self._told()
        return True


def when_lost(told: Callable[[], None]) -> None:
    """Call `told` whenever some device of this process is lost. It must not call the library."""
    logging.getLogger("wgpu").addFilter(_Noticing(told))


@contextmanager
def without_complaints() -> Iterator[None]:
    """A display library, loaded when adapters are looked for, complains on stderr unless this variable is set."""
    if _SILENCED in os.environ or os.name == "nt":
        yield
        return
    os.environ[_SILENCED] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(_SILENCED, None)
