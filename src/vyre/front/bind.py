"""What does a kernel call mean? Arguments by parameter, the shapes of its outputs, its grid and its config.

All of it follows from names, dtypes, shapes, contiguity, options and the numbers that say how much runs, and is worked
out once per combination of those. What differs between two such calls (addresses, other values) is looked at in `call`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from sys import byteorder
from typing import TYPE_CHECKING, Any

import numpy as np

from ..driver.contract.values import DEFAULT_CONFIG, U32_MAX, Dims, DispatchConfig
from ..driver.plan.grid import grid_for_domain
from ..driver.plan.reach import reach_of
from ..driver.policy.decision import Decision
from ..driver.policy.geometry import grid_from
from ..errors import ArgumentTypeError, ArgumentValueError, DeviceOutOfMemory, shown
from ..foundation.ir.prints import is_log, prints_of
from ..foundation.language.kernel import Param, shapes_name
from ..foundation.language.numbers import MOST_OF_AN_AXIS
from ..foundation.memo import keep
from .arrays import (
    ARRAY_DTYPES,
    WORD,
    Array,
    as_array,
    check_writable,
    from_bytes,
    is_plain,
    number_writer,
    row_bytes,
    rows_of,
    to_input,
)
from .domain import DOMAIN_OF_THE_CALL, Told, choose_grid, why_grid

if TYPE_CHECKING:
    from ..driver.contract.pipeline import Key
    from ..foundation.ir.program import Program
    from .kernel import Kernel

_MAX_REQUESTS = 64
"""Configs with lengths that a kernel remembers."""
Shape = tuple[int, ...]
Extent = tuple[int, ...] | int | None
Numbers = tuple[tuple[int, str, Callable[[Any], bytes]], ...]


def name_arguments(kernel: Kernel, positional: int, named: tuple[str, ...]) -> tuple[str, ...]:
    """The parameter of each argument of a call with so many positional arguments and these keywords."""
    by_name = kernel._params
    in_order = [p for p in kernel.params if p.role not in ("out", "const") and not p.keyword]
    named_only = [p for p in kernel.params if p.role == "scalar" and p.keyword]
    written = [f"{p.name}={p.default}" if p.is_optional else f"{p.name}=..." if p.keyword else p.name
               for p in (*in_order, *named_only)]  # fmt: skip
    usage = f"call {kernel.__name__}({', '.join(written)})"
    if positional > len(in_order):
        raise ArgumentTypeError(
            f"{kernel.__name__} takes {len(in_order)} positional arguments and {positional} were given",
            fix=f"{usage}; pass outputs and compile-time parameters by name",
        )
    names = tuple(p.name for p in in_order[:positional])
    for name in named:
        if name not in by_name:
            raise ArgumentTypeError(
                f"{kernel.__name__} has no parameter {name}", fix=f"use one of: {', '.join(by_name)}"
            )
        if name in names:
            raise ArgumentTypeError(f"{name} is given twice", fix=usage)
    given = {*names, *named}
    missing = [p.name for p in (*in_order, *named_only) if p.name not in given and not p.is_optional]
    if missing:
        raise ArgumentTypeError(f"{kernel.__name__} needs {', '.join(missing)}", fix=usage)
    return names + named


class ArgumentLayout:
    """Where the argument of each parameter is among the values of a call: the positional ones, those by name, and then
    `defaults`: the numbers that the call left out, and None in the place of the shapes, if the program takes them."""

    __slots__ = ("at", "buffers", "consts", "defaults", "fixed")

    def __init__(self, kernel: Kernel, positional: int, named: tuple[str, ...]) -> None:
        names = name_arguments(kernel, positional, named)
        left_out = [p for p in kernel.params if p.role == "scalar" and p.name not in names]
        shapes = shapes_name(kernel.params)
        hidden = () if shapes is None else (shapes,)
        self.defaults = (*(p.default for p in left_out), *(None for _ in hidden))
        self.at = {name: k for k, name in enumerate((*names, *(p.name for p in left_out), *hidden))}
        given = [(self.at[p.name], p) for p in kernel.params if p.name in self.at]
        self.buffers = tuple((at, p) for at, p in given if p.role not in ("const", "scalar"))
        self.fixed = tuple((at, p) for at, p in self.buffers if p.rank or p.count)
        self.consts = tuple((at, p.name) for at, p in given if p.role == "const")


def check_array(param: Param, value: Any) -> Array:
    """The argument of a buffer parameter, as an array over the caller's memory."""
    assert param.element is not None
    if param.small is not None:
        value = rows_of(param, value)
    if param.role in ("out", "inout"):
        array = check_writable(param.name, value, param.element)
    else:
        array = as_array(param.name, value, param.element)
    if param.count and array.size != param.count:
        wanted = param.count // param.width
        raise ArgumentValueError(
            f"{param.name} has {array.size // param.width} elements and the kernel declares {wanted}",
            fix=f"pass {wanted} elements, or declare it without a count",
        )
    check_rank(param, array.shape)
    return array


def check_rank(param: Param, shape: Shape) -> None:
    """An array has as many axes as its parameter, none of them longer than a signed index reaches."""
    if not param.rank:
        return
    if len(shape) != param.rank:
        has = f"{len(shape)} {'axis' if len(shape) == 1 else 'axes'}"
        flat = str(param.annotation).replace(f", D{param.rank}", "")
        raise ArgumentValueError(
            f"{param.name} has {has} and the kernel declares {param.annotation}",
            fix=f"pass {param.name}.reshape({', '.join(('height', 'width', 'depth', 'more')[: param.rank])}), "
            f"or declare it {f'{flat[:-1]}, D{len(shape)}]' if 1 <= len(shape) <= 4 else flat}",
        )
    if max(shape) > MOST_OF_AN_AXIS:
        raise ArgumentValueError(
            f"an axis of {param.name} has {max(shape)} elements and one of {param.annotation} has at most "
            f"{MOST_OF_AN_AXIS}",
            fix=f"split it, or declare it {str(param.annotation).replace(f', D{param.rank}', '')}",
        )


class Options:
    """`grid=`, `domain=`, `sizes=` and `config=` of a call, in one form.

    `key` tells them apart, and `elsewhere` all that differ in more than the domain.
    """

    __slots__ = ("config", "elsewhere", "extent", "grid", "key", "sizes")

    def __init__(
        self, grid: Extent, domain: Extent, sizes: Mapping[str, Any] | None, config: DispatchConfig | None
    ) -> None:
        self.grid = None if grid is None else axes("grid", grid)
        self.extent = None if domain is None else axes("domain", domain)
        self.sizes: dict[str, Shape] = {}
        self.key: tuple[Any, ...] = self.grid, self.extent
        self.elsewhere: tuple[Any, ...] = self.grid, domain is not None
        if sizes is None and config is None and (grid is None or domain is None):
            self.config = DEFAULT_CONFIG
            return
        if sizes is not None and not isinstance(sizes, Mapping):
            raise ArgumentTypeError(f"sizes is a {type(sizes).__name__}", fix='pass sizes={"name of an output": n}')
        self.sizes |= {name: _size(name, value) for name, value in sizes.items()} if sizes else {}
        if config is not None and not isinstance(config, DispatchConfig):
            raise ArgumentTypeError(
                f"config is a {type(config).__name__}", fix="pass config=vyre.DispatchConfig(timeout=1.0)"
            )
        self.config = DEFAULT_CONFIG if config is None else config
        asked = [
            name
            for name, value in (("grid", grid), ("domain", domain), ("config.grid_override", self.config.grid_override))
            if value is not None
        ]
        if len(asked) > 1:
            raise ArgumentTypeError(
                f"{' and '.join(asked)} are both given", fix="pass domain= (invocations) or grid= (workgroups)"
            )
        for name, count in (self.config.output_elements or {}).items():
            if name in self.sizes:
                raise ArgumentTypeError(
                    f"the size of {name} is given in sizes and in config.output_elements", fix="drop one of the two"
                )
            self.sizes[name] = (count,)
        more = tuple(self.sizes.items()), config
        self.key, self.elsewhere = (*self.key, *more), (*self.elsewhere, *more)

    def deciding_numbers(self, kernel: Kernel, form: ArgumentLayout, program: Program) -> Numbers:
        """The parameters on which it depends how much runs, if the caller does not say it."""
        if self.gives_grid:
            return ()
        params = [p for p in kernel.params if p.role == "scalar" and p.name in reach_of(program).numbers]
        return tuple((form.at[p.name], p.name, number_writer(p.name, p.element)) for p in params if p.element)

    @property
    def gives_grid(self) -> bool:
        """Whether the caller says how much runs."""
        return not (self.grid is None and self.extent is None and self.config.grid_override is None)


class OutputPlan:
    """One result, and the array that carries it. `nbytes` is its length in the dispatch, where a bool is a word.

    `at` is where the caller's array for it is among the values of the call; it `is_plain` if a dispatch can work there.
    """

    __slots__ = ("at", "dtype", "element", "is_bool", "is_plain", "name", "nbytes", "role", "shape", "small")

    def __init__(self, param: Param, at: int | None, array: Array | None) -> None:
        assert param.element is not None
        self.at = None if array is None else at
        self.name, self.role, self.element, self.small = param.name, param.role, param.element, param.small
        self.dtype = ARRAY_DTYPES[param.element.name] if array is None else array.dtype
        self.is_bool = self.dtype == np.bool_
        self.shape: Shape = ()
        self.nbytes, self.is_plain = 0, False

    def shaped(self, shape: Shape) -> OutputPlan:
        """The same result in this shape."""
        made: OutputPlan = object.__new__(OutputPlan)
        made.at, made.name, made.role, made.element, made.small = (
            self.at,
            self.name,
            self.role,
            self.element,
            self.small,
        )
        made.dtype, made.is_bool, made.shape = self.dtype, self.is_bool, shape
        elements = shape[0] if len(shape) == 1 else math.prod(shape)
        made.nbytes = elements * (4 if self.is_bool else self.dtype.itemsize)
        made.is_plain = made.nbytes > 0 and not self.is_bool and self.small is None
        return made

    def fresh(self, make: Callable[..., Array] = np.empty) -> Any:
        """New memory that a backend writes this result into."""
        if not self.nbytes:
            return bytearray()
        try:
            return make(self.shape, WORD if self.is_bool else self.dtype)
        except MemoryError as e:
            raise DeviceOutOfMemory(
                f"no memory for the result {self.name}", fix="ask for a smaller one", nbytes=self.nbytes
            ) from e


class CallPlan:
    """Everything about a call that does not depend on where its arrays are.

    `inputs` says for each input in slot order where it is among the values of the call, and what makes a dispatch's
    input of it, if that is not the array itself; `outputs` are in slot order too, and `targets` are those for which the
    caller brings an array. `request` is the caller's config; calls that differ in size or grid alone share it, and so
    the driver's warm path. `over` is the grid that takes the place of the config's, unless that is left to the driver,
    and `numbers` are the parameters on whose values it depends: where, which, and what makes their bytes.
    `prints` are the kernel's, by number, and `logs` the last results of a dispatch, which hold what was printed.
    `direct` says where the caller's arrays for all results are, if a dispatch can work in those; `is_given`: the caller
    brings those for outputs, in any shapes, and `follows_domain`: there may be one whose shape is the domain. `key` is
    what the driver wants to know of the buffers, once a call has had them.
    `counted` says which results are as long as an element of another one says: where that is, and which.
    `code` tells apart what is compiled. `idle` means that the grid has no workgroup: outputs are zero and
    nothing runs.
    """

    __slots__ = (
        "_arrays", "_config", "_grid", "_shapes", "code", "counted", "counts", "direct", "follows_domain", "idle",
        "inputs",
        "is_given", "key", "logs", "numbers", "outputs", "over", "prints", "program", "request", "targets",
    )  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        form: ArgumentLayout,
        program: Program,
        arrays: Mapping[str, Array],
        options: Options,
        values: Sequence[Any],
    ) -> None:
        self.program = program
        self.request = options.config
        if kernel.lengths is not None or self.request.output_lengths is not None:
            self.request = _counting(kernel, self.request, arrays.keys())
        # An id is 0.05 us and a hash of the program 0.4; `program` above is kept as long as the id.
        self.code = id(program), None if self.request is DEFAULT_CONFIG else self.request
        params, hidden = kernel._params, shapes_name(kernel.params)
        inputs = [b.name for b in program.host_inputs]
        self._shapes = None if hidden not in inputs else inputs.index(hidden)
        self.inputs: tuple[tuple[int, Callable[[Any], Any] | None], ...] = tuple(
            (form.at[name], None if name == hidden else _maker(params[name], arrays.get(name))) for name in inputs
        )
        self.prints = prints_of(program)
        self.logs = tuple(b for b in program.host_outputs if is_log(b)) if self.prints else ()
        self.outputs = tuple(
            OutputPlan(params[b.name], form.at.get(b.name), arrays.get(b.name))
            for b in program.host_outputs
            if b.name in params
        )
        places = {o.name: k for k, o in enumerate(self.outputs)}
        lengths: Mapping[str, Any] = self.request.output_lengths or {}
        self.counted = {
            places[name]: (places[word], at) for name, (word, at) in lengths.items() if {name, word} <= places.keys()
        }  # the driver refuses all others
        self.numbers = options.deciding_numbers(kernel, form, program)
        self._arrays = tuple(p for p in kernel.params if p.role not in ("const", "scalar", "uniform"))
        self.is_given = not any(p.rank or p.count or p.name not in arrays for p in kernel.params if p.role == "out")
        self._fit(kernel, arrays, options, values)

    def resized(self, kernel: Kernel, arrays: Mapping[str, Array], options: Options, values: Sequence[Any]) -> CallPlan:
        """The plan of a call over arrays of the same kinds in other shapes, or with other sizes or another grid."""
        made = self._copy()
        made._fit(kernel, arrays, options, values)
        return made

    def moved(self, domain: Shape) -> CallPlan:
        """The plan of a call that differs in `domain=` alone, where no output takes its shape from that."""
        made = self._copy()
        workgroup = self.request.workgroup_override or self.program.workgroup_size
        made._launch(grid_for_domain(domain, workgroup), (domain, DOMAIN_OF_THE_CALL), given=True)
        if self.key is not None:
            made.key = made.over, *self.key[1:]
        return made

    def _copy(self) -> CallPlan:
        made: CallPlan = object.__new__(CallPlan)
        made.program, made.request, made.code = self.program, self.request, self.code
        made.inputs, made.prints, made.logs, made.numbers = self.inputs, self.prints, self.logs, self.numbers
        made._arrays = self._arrays
        made.outputs, made.targets, made.counts, made._shapes = self.outputs, self.targets, self.counts, self._shapes
        made.counted = self.counted
        made.direct, made.is_given, made.follows_domain = self.direct, self.is_given, self.follows_domain
        return made

    def _fit(self, kernel: Kernel, arrays: Mapping[str, Array], options: Options, values: Sequence[Any]) -> None:
        """What depends on shapes and on the grid."""
        shapes = {} if self.is_given and not options.sizes else output_shapes(kernel, arrays, options)
        self.follows_domain = not shapes.keys() <= arrays.keys()  # it may
        outputs, targets, direct = [], [], []  # in plain loops: all this is in the way of a launch over a new size
        for o in self.outputs:
            made = o.shaped(shapes[o.name] if o.name in shapes else arrays[o.name].shape)
            outputs.append(made)
            if made.at is not None:
                targets.append((made.at, made))
                if made.is_plain:
                    direct.append(made.at)
        self.outputs, self.targets = tuple(outputs), tuple(targets)
        self.direct = tuple(direct) if direct and len(direct) == len(outputs) and not self.logs else None
        self.counts, lengths = {}, {}
        results: list[str] = []
        sizes: list[int] = []
        for p in self._arrays:
            name = p.name
            shape = shapes[name] if name in shapes else arrays[name].shape
            lengths[name] = n = shape[0] if len(shape) == 1 else math.prod(shape)
            if p.role != "in":
                results.append(name)
                if p.role == "out" and not p.count:
                    self.counts[name] = n
            if p.rank > 1:
                sizes += shape
        numbers = {name: int.from_bytes(write(values[at]), byteorder) for at, name, write in self.numbers}
        if self._shapes is not None:
            words, at = np.array(sizes, WORD).tobytes(), self._shapes
            self.inputs = (*self.inputs[:at], (self.inputs[at][0], lambda _: words), *self.inputs[at + 1 :])
            name = self.program.host_inputs[at].name
            numbers |= {f"{name}[{k}]": n for k, n in enumerate(sizes)}
        grid, told = choose_grid(kernel.__name__, self.program, lengths, results, numbers, options)
        self._launch(grid, told, given=options.gives_grid)

    def _launch(self, grid: Dims | None, told: Told, *, given: bool) -> None:
        asked = self.request.grid_override
        self.idle = grid is not None and 0 in grid and asked is None  # that one the driver refuses
        self.over = None if grid == asked else grid
        self._grid = grid, told, given
        self._config: DispatchConfig | None = None
        self.key: Key | None = None

    @property
    def config(self) -> DispatchConfig:
        """The caller's config with the grid."""
        if self._config is None:  # a warm call does not ask
            self._config = self.request if self.over is None else self.request.with_(grid_override=self.over)
        return self._config

    @property
    def grid(self) -> Decision | None:
        """Where the grid comes from, unless that is left to the driver."""
        grid, told, given = self._grid
        if grid is None:
            return None
        why = why_grid(told, self.request.workgroup_override or self.program.workgroup_size)
        return grid_from(grid, given=why if given else None, covers=why)

    def cut(self, results: Sequence[Any]) -> list[Any]:
        """The results of a dispatch, with what counts of those that are counted."""
        found = list(results)
        for k, (word, at) in self.counted.items():
            o = self.outputs[k]
            self.require_word(k)
            count = min(int(np.frombuffer(results[word], WORD)[at]), math.prod(o.shape))
            nbytes = count * (4 if o.is_bool else o.dtype.itemsize)
            part = memoryview(results[k]).cast("B")[:nbytes] if count else b""
            found[k] = from_bytes(part if 2 * nbytes >= o.nbytes else bytearray(part), o.dtype, (count,))
        return found

    def require_word(self, k: int) -> None:
        """Raise unless the word is there that says how long a result is."""
        word, at = self.counted[k]
        o, by = self.outputs[k], self.outputs[word]
        if at >= math.prod(by.shape):
            raise ArgumentValueError(
                f"{o.name} is as long as {by.name}[{at}] says, and {by.name} has {math.prod(by.shape)} elements",
                fix=f"give it more of them, or declare {by.name}: Out[u32, {at + 1}]",
            )

    def sized_config(self) -> DispatchConfig:
        """The config for a dispatch that brings no output buffers, whose lengths would say the same."""
        return self.config.with_(output_elements=self.counts) if self.counts else self.config


def _maker(param: Param, array: Array | None) -> Callable[[Any], Any] | None:
    """What makes an input of the argument; None where it is one."""
    if array is None:
        assert param.element is not None
        return number_writer(param.name, param.element) if param.small is None else partial(row_bytes, param)
    return None if is_plain(array) else to_input


def _counting(kernel: Kernel, asked: DispatchConfig, given: Collection[str]) -> DispatchConfig:
    """The config with the lengths that the kernel declares. An array of the caller's is filled as a whole."""
    said = {**(kernel.lengths or {}), **(asked.output_lengths or {})}
    lengths = {name: word for name, word in said.items() if name not in given}
    key = asked, *lengths
    found = kernel._requests.get(key)
    if found is None:
        found = asked.with_(output_lengths=lengths or None)
        keep(kernel._requests, key, found, _MAX_REQUESTS)
    return found


def output_shapes(kernel: Kernel, arrays: Mapping[str, Array], options: Options) -> dict[str, Shape]:
    """Shape of every output: `sizes`, then the array given for it, then what the inputs agree on, then the domain."""
    outs = {p.name: p for p in kernel.params if p.role == "out"}
    for name in options.sizes:
        if name not in outs:
            raise ArgumentTypeError(
                f"{kernel.__name__} has no output {name} to size", fix=f"use one of: {', '.join(outs) or 'none'}"
            )
    found: dict[str, Shape] = {}
    for name, p in outs.items():
        row = () if p.small is None else (p.width,)
        asked = options.sizes.get(name)
        asked = None if asked is None else (*asked, *row)
        if asked is not None and name in arrays and math.prod(asked) != arrays[name].size:
            raise ArgumentValueError(
                f"{name} has {arrays[name].size // p.width} elements and sizes asks for {math.prod(asked) // p.width}",
                fix=f'drop sizes={{"{name}": ...}}, or pass an array of that length',
            )
        if asked is not None and p.count and math.prod(asked) != p.count:
            raise ArgumentValueError(
                f"{name} is declared with {p.count // p.width} elements and sizes asks for "
                f"{math.prod(asked) // p.width}",
                fix=f'drop sizes={{"{name}": ...}}',
            )
        if name in arrays:
            found[name] = arrays[name].shape
            if asked is not None and p.rank and asked != found[name]:
                raise ArgumentValueError(
                    f"{name} has shape {found[name]} and sizes asks for {asked}", fix=f'drop sizes={{"{name}": ...}}'
                )
        elif asked is not None:
            found[name] = asked
        elif p.count:
            found[name] = (p.count // p.width, *row)
        else:
            found[name] = (*_common_shape(p, kernel.params, arrays, options.extent), *row)
        if p.rank and len(found[name]) != p.rank:
            raise ArgumentValueError(
                f"{name} would have shape {found[name]} and the kernel declares {p.annotation}", fix=_sizes_fix(p)
            )
        check_rank(p, found[name])
    return found


def _sizes_fix(param: Param) -> str:
    axes = "n" if param.rank < 2 else f"({', '.join(('height', 'width', 'depth', 'more')[: param.rank])})"
    return f'pass sizes={{"{param.name}": {axes}}}'


def _common_shape(param: Param, params: tuple[Param, ...], arrays: Mapping[str, Array], domain: Shape | None) -> Shape:
    """The shape that all inputs have; for an output with a rank, those declared with the same one."""
    sized: dict[str, Shape] = {
        p.name: arrays[p.name].shape[: None if p.small is None else -1]
        for p in params
        if p.role in ("in", "inout") and not p.count and param.rank in (0, p.rank)
    }
    name, shapes = param.name, set(sized.values())
    if len(shapes) == 1:
        return shapes.pop()
    if not shapes and domain is not None:
        return domain[::-1]
    if not shapes:
        raise ArgumentValueError(f"nothing says how long {name} is", fix=f"{_sizes_fix(param)} or {name}=array")
    listed = ", ".join(f"{n} {shape}" for n, shape in sized.items())
    raise ArgumentValueError(f"the length of {name} is not clear: the inputs differ ({listed})", fix=_sizes_fix(param))


def axes(name: str, value: Extent) -> Shape:
    """One to three whole numbers, x first."""
    if type(value) is int and value >= 0:  # these two are in the way of each launch of many
        return (value,)
    if type(value) is tuple and 1 <= len(value) <= 3:
        for n in value:
            if type(n) is not int or n < 0:
                break
        else:
            return value
    found = shape(name, value)
    if not 1 <= len(found) <= 3:
        raise ArgumentValueError(f"{name} has {len(found)} axes", fix=f"pass {name}=(x,), (x, y) or (x, y, z)")
    return found


def _size(name: str, value: Any) -> Shape:
    """The shape of an output: its elements have u32 indices."""
    found = shape(name, value)
    if math.prod(found) > U32_MAX:
        raise ArgumentValueError(
            f"{name} would have {shown(math.prod(found))} elements and a buffer has at most {U32_MAX}",
            fix="split the work into several calls",
        )
    return found


def shape(name: str, value: Any) -> Shape:
    """Whole numbers of 0 or more."""
    found = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in found):
        raise ArgumentTypeError(f"{name}={shown(value)} is not a size", fix="pass a whole number or a tuple of them")
    if any(n < 0 for n in found):
        raise ArgumentValueError(f"{name}={shown(value)} is negative", fix="pass sizes of 0 or more")
    return tuple(int(n) for n in found)
