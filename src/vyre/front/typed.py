"""Arrays in, arrays out, for raw programs: the elements are those that the program declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.contract.stream import Executable
from ..driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from ..errors import ArgumentTypeError, InvalidProgram
from .arrays import (
    WORD,
    Array,
    as_array,
    check_writable,
    destination,
    element_dtype,
    from_bytes,
    to_input,
    view,
)

if TYPE_CHECKING:
    from ..foundation.ir.dtypes import DataType
    from ..foundation.ir.program import Program


class TypedDispatchExt:
    """Array methods for a backend class: `class Mine(TypedDispatchExt, VyreBackend, contract=1)`.

    The module's functions of the same names do the same for a backend that lacks them.
    """

    def dispatch_array(
        self: Executable,
        program: Program,
        arrays: Sequence[Any],
        dtype: Any = None,
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """Dispatch a program on arrays in slot order, and read its outputs as flat arrays.

        Inputs have the declared types; plain bytes may hold any. `dtype` reads every output as that type instead of the
        declared one. `out` receives the results, shaped as it is and of those types, and is returned as a list.
        """
        _require_executable(self)
        elements = [decl.element for decl in program.host_inputs]
        inputs = [_input(k, x, elements[k] if k < len(elements) else None) for k, x in enumerate(arrays)]
        config = DEFAULT_CONFIG if config is None else config
        asked = None if dtype is None else element_dtype(dtype)
        dtypes = [element_dtype(decl.element) if asked is None else asked for decl in program.host_outputs]
        if out is None:
            results = self.dispatch(program, inputs, config)
            return [_read(k, data, d) for k, (data, d) in enumerate(zip(results, dtypes, strict=True))]
        targets = [_target(k, array, dtypes[k] if k < len(dtypes) else None) for k, array in enumerate(out)]
        staged = [destination(target, inputs) for target in targets]
        self.dispatch(program, inputs, config, out=staged)
        for target, data in zip(targets, staged, strict=True):
            if data is not target:
                target[...] = from_bytes(data, target.dtype, target.shape)
        return targets

    def dispatch_u32(
        self: Executable,
        program: Program,
        arrays: Sequence[Any],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """`dispatch_array` with every output read as u32 words."""
        return dispatch_array(self, program, arrays, np.uint32, config, out=out)

    def dispatch_f32(
        self: Executable,
        program: Program,
        arrays: Sequence[Any],
        config: DispatchConfig | None = None,
        *,
        out: Sequence[Array] | None = None,
    ) -> list[Array]:
        """`dispatch_array` with every output read as f32."""
        return dispatch_array(self, program, arrays, np.float32, config, out=out)


def _require_executable(backend: object) -> None:
    if not isinstance(backend, Executable):
        raise ArgumentTypeError(
            f"{type(backend).__name__} has no dispatch method", fix="pass a backend, as vyre.acquire(id) gives"
        )


def _input(position: int, value: Any, element: DataType | None) -> Any:
    """`element` is None for more inputs than the program has, which the dispatch refuses."""
    name = f"arrays[{position}]"
    if element is None or isinstance(value, bytes | bytearray) or (type(value) is memoryview and value.format == "B"):
        return to_input(view(name, value))
    return to_input(as_array(name, value, element))


def _target(position: int, array: Any, dtype: np.dtype[Any] | None) -> Array:
    target = check_writable(f"out[{position}]", array)
    if dtype is not None and target.dtype != dtype:
        raise ArgumentTypeError(
            f"out[{position}] holds {target.dtype} and its output is read as {dtype}",
            fix=f"pass an array of {dtype}, or name the dtype",
        )
    return target


def _read(position: int, data: Any, dtype: np.dtype[Any]) -> Array:
    width = (WORD if dtype.char == "?" else dtype).itemsize
    nbytes = memoryview(data).nbytes
    if not width or nbytes % width:
        raise InvalidProgram(
            f"output {position} has {nbytes} bytes, which is not a whole number of {width}-byte elements",
            fix="read it as another dtype, or give the output whole elements",
            output=position,
        )
    return from_bytes(data, dtype, (nbytes // width,))


dispatch_array = TypedDispatchExt.dispatch_array
dispatch_u32 = TypedDispatchExt.dispatch_u32
dispatch_f32 = TypedDispatchExt.dispatch_f32
