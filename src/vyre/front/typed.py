"""Arrays in, arrays out, for raw programs: the elements are those that the program declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.values import DEFAULT_CONFIG, DispatchConfig
from ..errors import ArgumentTypeError, InvalidProgram
from .arrays import ARRAY_DTYPES, WORD, Array, check_writable, destination, from_bytes, to_input, view

if TYPE_CHECKING:
    from ..driver.stream import Executable
    from ..foundation.program import Program


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

        `dtype` reads every output as that type instead of the declared one. `out` receives the results, shaped as it
        is, and is returned as a list.
        """
        inputs = [_input(k, value) for k, value in enumerate(arrays)]
        config = DEFAULT_CONFIG if config is None else config
        if out is None:
            results = self.dispatch(program, inputs, config)
            return [
                _read(k, data, ARRAY_DTYPES[decl.element.name] if dtype is None else np.dtype(dtype))
                for k, (data, decl) in enumerate(zip(results, program.host_outputs, strict=True))
            ]
        targets = [check_writable(f"out[{k}]", array) for k, array in enumerate(out)]
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


def _input(position: int, value: Any) -> Any:
    array = view(f"arrays[{position}]", value)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(
            f"arrays[{position}] holds {array.dtype}, which programs have no element type for",
            fix="pass an array of numbers or bools",
        )
    return to_input(array)


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
