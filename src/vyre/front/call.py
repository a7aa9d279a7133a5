"""One kernel call: bind arguments, size outputs, choose the grid, run, hand results back.

Nothing of the caller's is written before the whole dispatch has succeeded, and results never depend on whether
arguments share memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.plan.grid import Grid, check_grid, dispatch_element_count, grid_for_domain
from ..errors import ArgumentTypeError, ArgumentValueError, UnsupportedFeature
from ..foundation.dtypes import element_count
from ..foundation.kernel import NO_DEFAULT, Param
from .arrays import ARRAY_DTYPES, Array, as_array, check_writable, from_bytes, number_bytes, to_bytes

if TYPE_CHECKING:
    from .kernel import Kernel

Shape = tuple[int, ...]
Extent = tuple[int, ...] | int | None


def call(
    kernel: Kernel,
    args: tuple[Any, ...],
    named: dict[str, Any],
    *,
    grid: Extent,
    domain: Extent,
    sizes: Mapping[str, Any],
) -> Any:
    """Run a kernel on arrays and return its results in slot order."""
    given = _bind(kernel, args, named)
    program = kernel.specialize(
        **{p.name: given[p.name] for p in kernel.params if p.role == "const" and p.name in given}
    )
    blocks = _axes("grid", grid)
    extent = _axes("domain", domain)
    if blocks is not None and extent is not None:
        raise ArgumentTypeError(
            "grid and domain are both given", fix="pass domain= (invocations) or grid= (workgroups)"
        )

    buffers = [p for p in kernel.params if p.role != "const"]
    arrays = {p.name: _check_array(p, given[p.name]) for p in buffers if p.name in given and p.role != "scalar"}
    _refuse_overlap([p.name for p in buffers if p.role in ("out", "inout") and p.name in arrays], arrays)
    shapes = _output_shapes(kernel, buffers, arrays, sizes, extent)

    inputs: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for p in buffers:
        assert p.element is not None
        if p.role == "out":
            counts[p.name] = math.prod(shapes[p.name])
        elif p.role == "scalar":
            inputs[p.name] = number_bytes(p.name, given[p.name], p.element)
            counts[p.name] = 1
        else:
            inputs[p.name] = to_bytes(arrays[p.name])
            counts[p.name] = element_count(p.element, inputs[p.name].nbytes)

    if blocks is not None:
        workgroups = check_grid(_pad(blocks), program.workgroup_size)
    else:
        if extent is None:
            extent = _infer_domain(kernel, buffers, arrays, shapes, dispatch_element_count(program, counts))
        workgroups = grid_for_domain(extent, program.workgroup_size)
    results = (
        _open(kernel.backend)
        .run(
            program,
            [inputs[b.name] for b in program.host_inputs],
            grid=workgroups,
            output_elements={
                b.name: counts[b.name] for b in program.host_outputs if b.count == 0 and b.backend_allocated
            },
        )
        .outputs
    )
    return _hand_back(kernel, program.host_outputs, results, arrays, shapes)


def _bind(kernel: Kernel, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name."""
    by_name = {p.name: p for p in kernel.params}
    positional = [p for p in kernel.params if p.role not in ("out", "const")]
    usage = f"call {kernel.__name__}({', '.join(p.name for p in positional)})"
    if len(args) > len(positional):
        raise ArgumentTypeError(
            f"{kernel.__name__} takes {len(positional)} positional arguments and {len(args)} were given",
            fix=f"{usage}; pass outputs and compile-time parameters by name",
        )
    given = {p.name: value for p, value in zip(positional, args, strict=False)}
    for name, value in named.items():
        if name not in by_name:
            raise ArgumentTypeError(
                f"{kernel.__name__} has no parameter {name}", fix=f"use one of: {', '.join(by_name)}"
            )
        if name in given:
            raise ArgumentTypeError(f"{name} is given twice", fix=usage)
        if value is None and by_name[name].role == "out":
            continue  # out=None asks for a new array, as in NumPy
        given[name] = value
    missing = [p.name for p in positional if p.name not in given and p.default is NO_DEFAULT]
    if missing:
        raise ArgumentTypeError(f"{kernel.__name__} needs {', '.join(missing)}", fix=usage)
    return given


def _check_array(param: Param, value: Any) -> Array:
    assert param.element is not None
    if param.role in ("out", "inout"):
        array = check_writable(param.name, value, param.element)
    else:
        array = as_array(param.name, value, param.element)
    if param.count and array.size != param.count:
        raise ArgumentValueError(
            f"{param.name} has {array.size} elements and the kernel declares {param.count}",
            fix=f"pass {param.count} elements, or declare it without a count",
        )
    return array


def _refuse_overlap(names: list[str], arrays: Mapping[str, Array]) -> None:
    for k, a in enumerate(names):
        for b in names[k + 1 :]:
            if np.may_share_memory(arrays[a], arrays[b]):  # exact for contiguous arrays
                raise ArgumentValueError(f"{a} and {b} are both written and share memory", fix=f"pass {b}.copy()")


def _output_shapes(
    kernel: Kernel, params: list[Param], arrays: Mapping[str, Array], sizes: Mapping[str, Any], domain: Shape | None
) -> dict[str, Shape]:
    """Shape of every output: `sizes`, then the array given for it, then what the inputs agree on, then the domain."""
    outs = {p.name: p for p in params if p.role == "out"}
    for name in sizes:
        if name not in outs:
            raise ArgumentTypeError(
                f"{kernel.__name__} has no output {name} to size", fix=f"use one of: {', '.join(outs) or 'none'}"
            )
    found: dict[str, Shape] = {}
    for name, p in outs.items():
        asked = _shape(name, sizes[name]) if name in sizes else None
        if asked is not None and name in arrays and math.prod(asked) != arrays[name].size:
            raise ArgumentValueError(
                f"{name} has {arrays[name].size} elements and sizes asks for {math.prod(asked)}",
                fix=f'drop sizes={{"{name}": ...}}, or pass an array of that length',
            )
        if asked is not None and p.count and math.prod(asked) != p.count:
            raise ArgumentValueError(
                f"{name} is declared with {p.count} elements and sizes asks for {math.prod(asked)}",
                fix=f'drop sizes={{"{name}": ...}}',
            )
        if name in arrays:
            found[name] = arrays[name].shape
        elif asked is not None:
            found[name] = asked
        elif p.count:
            found[name] = (p.count,)
        else:
            found[name] = _common_shape(name, params, arrays, domain)
    return found


def _common_shape(name: str, params: list[Param], arrays: Mapping[str, Array], domain: Shape | None) -> Shape:
    sized: dict[str, Shape] = {
        p.name: arrays[p.name].shape for p in params if p.role in ("in", "inout") and not p.count
    }
    shapes = set(sized.values())
    if len(shapes) == 1:
        return shapes.pop()
    if not shapes and domain is not None:
        return domain[::-1]
    if not shapes:
        raise ArgumentValueError(f"nothing says how long {name} is", fix=f'pass sizes={{"{name}": n}} or {name}=array')
    listed = ", ".join(f"{n} {shape}" for n, shape in sized.items())
    raise ArgumentValueError(
        f"the length of {name} is not clear: the inputs differ ({listed})", fix=f'pass sizes={{"{name}": n}}'
    )


def _infer_domain(
    kernel: Kernel, params: list[Param], arrays: Mapping[str, Array], shapes: Mapping[str, Shape], elements: int
) -> Shape:
    """Invocations, x first: the element count in one dimension, the first result's shape in two or three."""
    rank = 3 if kernel.workgroup[2] > 1 else 2 if kernel.workgroup[1] > 1 else 1
    if rank == 1:
        return (elements,)
    results = [shapes[p.name] for p in params if p.role == "out"] + [
        arrays[p.name].shape for p in params if p.role == "inout"
    ]
    shape = results[0] if results else ()
    if not rank <= len(shape) <= 3:
        raise ArgumentValueError(
            f"{kernel.__name__} has a {rank}-D workgroup and its result has shape {shape}",
            fix="pass domain=(width, height) or grid=(x, y, z), or a result of that rank",
        )
    return shape[::-1]


def _axes(name: str, value: Extent) -> Shape | None:
    """One to three whole numbers, x first."""
    if value is None:
        return None
    axes = _shape(name, value)
    if not 1 <= len(axes) <= 3:
        raise ArgumentValueError(f"{name} has {len(axes)} axes", fix=f"pass {name}=(x,), (x, y) or (x, y, z)")
    return axes


def _shape(name: str, value: Any) -> Shape:
    axes = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in axes):
        raise ArgumentTypeError(f"{name}={value!r} is not a size", fix="pass a whole number or a tuple of them")
    if any(n < 0 for n in axes):
        raise ArgumentValueError(f"{name}={value!r} is negative", fix="pass sizes of 0 or more")
    return tuple(int(n) for n in axes)


def _pad(axes: Shape) -> Grid:
    x, y, z = (*axes, 1, 1)[:3]
    return x, y, z


def _open(backend: str) -> Any:
    """The module of a backend of this package."""
    if not backend.isidentifier():
        raise UnsupportedFeature(f"no backend is called {backend!r}", fix="use 'reference'")
    name = f"{__package__.rpartition('.')[0]}.backends.{backend}"
    try:
        return import_module(name)
    except ModuleNotFoundError as e:
        if e.name != name:
            raise
        raise UnsupportedFeature(f"no backend is called {backend!r}", fix="use 'reference'") from e


def _hand_back(
    kernel: Kernel, decls: Any, results: Any, arrays: Mapping[str, Array], shapes: Mapping[str, Shape]
) -> Any:
    """Results in slot order: written into the caller's arrays where there are some, else new ones."""
    handed: list[Array] = []
    for decl, data in zip(decls, results, strict=True):
        target = arrays.get(decl.name)
        shape = shapes[decl.name] if target is None else target.shape
        dtype = ARRAY_DTYPES[decl.element.name] if target is None else target.dtype
        fresh = from_bytes(data, dtype, shape)
        if target is None:
            handed.append(fresh)
        else:
            target[...] = fresh
            handed.append(target)
    return handed[0] if len(handed) == 1 else tuple(handed) or None
