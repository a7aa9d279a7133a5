"""The few calls of the driver that must cost as little as can be, made with arguments that were converted before.

The binding converts every argument at every call. Here a call gets addresses that stay as they are, and gives the
driver's number for what happened.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import Any, TypeAlias

import _cffi_backend  # type: ignore[import-untyped]

from ....driver.contract.values import Dims
from ..devices import Context

_ffi: Any = _cffi_backend.FFI()
_SINCE = 12000
"""The version of the interface whose functions these are."""
_ATTRIBUTE = Struct("=I4xI60x")
_COOPERATIVE = 2
_SETTING = Struct("=7I4xQQI4x")
"""Blocks, threads of a block, bytes of shared memory, stream, attributes and how many."""

Address: TypeAlias = Any


def address(number: Any) -> Address:
    """An address, or a handle of the driver, as calls take it."""
    return _ffi.cast("void *", int(number))


class Calls:
    """Functions of the driver's library, as they are."""

    def __init__(self, cu: Any, context: Context) -> None:
        def function(name: str, takes: int) -> Callable[..., int]:
            found = context.ok(cu.cuGetProcAddress(name.encode(), _SINCE, 0), f"looking for {name}")
            function: Callable[..., int] = _ffi.cast(f"int(*)({', '.join(['void *'] * takes)})", int(found))
            return function

        self.launch = function("cuLaunchKernelEx", 4)
        """(setting, function, parameters, nothing)"""
        self.launch_graph = function("cuGraphLaunch", 2)
        """(graph, stream)"""
        self.query_stream = function("cuStreamQuery", 1)
        self.record = function("cuEventRecord", 2)
        """(event, stream)"""
        self.query_event = function("cuEventQuery", 1)


NOTHING: Address = _ffi.NULL


class Setting:
    """How a kernel is launched, in memory that the driver reads it from."""

    def __init__(self, blocks: Dims, block: Dims, shared_bytes: int, stream: Any, *, cooperative: bool = False) -> None:
        self._attribute = attribute = ctypes.create_string_buffer(_ATTRIBUTE.pack(_COOPERATIVE, 1), _ATTRIBUTE.size)
        values = *blocks, *block, shared_bytes, int(stream), ctypes.addressof(attribute), int(cooperative)
        self._bytes = ctypes.create_string_buffer(_SETTING.pack(*values), _SETTING.size)
        self.address = address(ctypes.addressof(self._bytes))
