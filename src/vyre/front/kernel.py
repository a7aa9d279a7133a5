"""Kernel objects: a decorated function that is called with arrays.

The compiler is loaded by the first decoration and NumPy by the first call, so that importing names stays cheap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

from ..errors import ArgumentTypeError, ArgumentValueError, shown
from ..foundation.memo import keep
from .sequence.now import RECORDERS, recorder, refuse_to_look, refuse_to_read
from .tracebacks import MISTAKES, end_at_the_caller

if TYPE_CHECKING:
    from ..driver.contract.values import DispatchConfig
    from ..driver.execute.explanation import Explanation
    from ..driver.execute.pipeline import DriverPipeline
    from ..driver.observe.evidence import EvidenceBundle
    from ..driver.pipeline.cache import PipelineCache
    from ..driver.verify.cases import Stop
    from ..foundation.ir.program import BufferDecl, Program
    from ..foundation.language.kernel import KernelSource, Param
    from .bind import ArgumentLayout, CallPlan
    from .call import Call, PendingCall
    from .sequence.stream import KernelStream

Extent = tuple[int, ...] | int | None
Sizes = Mapping[str, int | tuple[int, ...]] | None
Workgroup = int | tuple[int, ...]
Lengths = Mapping[str, str | tuple[str, int]] | None
MAX_PROGRAMS = 256
"""Specializations kept per kernel, the oldest out first."""
_ABSENT = object()


class Kernel:
    """A compute kernel. Call it with NumPy arrays; `.program` is what it means.

    Positional arguments are the parameters except `Out`, in order; every parameter also goes by its own name. `sizes`
    gives the length (or shape) of outputs that follow no input, `domain` the number of invocations, x first, `grid`
    the number of workgroups, and `config` the rest of how to run it. With `check_races=True` the call runs on the
    reference first, which raises `RaceDetected` if the order of invocations can show in the result. `backend` is None
    or the one that `on` named, and `lengths` what was declared of the lengths of its results.
    """

    backend: str | None = None
    lengths: Lengths = None
    __name__: str
    __qualname__: str
    _only_program: Program | None

    def __init__(self, function: Callable[..., Any], workgroup: Workgroup, lengths: Lengths = None) -> None:
        from ..foundation.language.kernel import NO_DEFAULT, read_source

        if not callable(function):
            raise ArgumentTypeError(
                f"kernel() got a {type(function).__name__}", fix="write @vyre.kernel(workgroup=64) above a function"
            )
        self._start(read_source(function, workgroup))
        if lengths is not None:
            self.lengths = _checked_lengths(self, lengths)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function
        if all(p.default is not NO_DEFAULT for p in self.params if p.role == "const"):
            self._chosen({})._specialized({})  # errors of a kernel are raised where it is written
        self._only_program = None if self._consts else self._specialized({})

    def _chosen(self, named: dict[str, Any]) -> Kernel:
        """Of a kernel that is generic over types, the one for these; they are taken out of what is given by name."""
        source = self._source
        if isinstance(source, _ProgramSource) or not self._is_generic:
            return self
        given = [named.pop(name, self._params[name].default) for name in source.generics]
        asked = self.backend, *map(id, given)  # to look at types takes 4 us; what is known holds them, and so their ids
        known = self._of_given.get(asked)
        if known is not None:
            return known[1]
        types = tuple(map(self._type_of, source.generics, given))
        found = self._of_types.get(types)
        if found is None:
            found = Kernel.__new__(Kernel)
            found._start(source.of_types(dict(zip(source.generics, types, strict=True))))
            names = ("__qualname__", "__doc__", "__module__", "__wrapped__", "lengths")
            found.__dict__.update({name: self.__dict__[name] for name in names if name in self.__dict__})
            if set(found._consts) <= set(source.generics):
                found._only_program = found._specialized({})
            keep(self._of_types, types, found, MAX_PROGRAMS)
        found = found if self.backend is None else found.on(self.backend)
        keep(self._of_given, asked, (given, found), MAX_PROGRAMS)
        return found

    def _type_of(self, name: str, given: object) -> object:
        from ..foundation.language.kernel import NO_DEFAULT
        from ..foundation.language.lang import element_type
        from ..foundation.language.small.types import small_type

        t = element_type(given)
        if t is None and small_type(given) is None:
            what = "has no value" if given is NO_DEFAULT else f"is {shown(given)}, not a type"
            raise ArgumentTypeError(
                f"the parameter {name} of {self.__name__} {what}", fix=f"pass {name}=vyre.f32 or another type"
            )
        return given if t is None else t

    def _start(self, source: KernelSource | _ProgramSource) -> None:
        self._source = source
        self._consts = tuple(p.name for p in source.params if p.role == "const")
        self._params = {p.name: p for p in source.params}
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._of_types: dict[tuple[object, ...], Kernel] = {}
        self._of_given: dict[tuple[object, ...], tuple[list[object], Kernel]] = {}
        self._named: dict[str, Kernel] = {}
        self._forms: dict[tuple[object, ...], ArgumentLayout] = {}
        self._plans: dict[tuple[object, ...], CallPlan] = {}
        self._kinds: dict[tuple[object, ...], CallPlan] = {}
        self._pipelines: dict[tuple[object, ...], tuple[DriverPipeline, PipelineCache, int]] = {}
        self._ready: dict[tuple[object, ...], Any] = {}
        self._requests: dict[tuple[object, ...], DispatchConfig] = {}
        self._only_program = None
        self._is_generic = not isinstance(source, _ProgramSource) and bool(source.generics)
        self.__name__ = source.name
        self.__annotations__ = {p.name: p.annotation for p in source.params}  # evaluated, for typing.get_type_hints

    @classmethod
    def of_program(cls, program: Program, name: str = "program") -> Kernel:
        """A kernel whose meaning is this program, however it was made; its buffers are the parameters, in slot order.

        A uniform of one element is a number. Whether the program is valid is seen when it is called.
        """
        from ..foundation.ir.prints import without_prints
        from ..foundation.ir.program import Program

        if not isinstance(program, Program):
            raise ArgumentTypeError(
                f"of_program() got a {type(program).__name__}, not a program",
                fix="pass Program.from_wire(...) or parse(...)",
            )
        if not isinstance(name, str):
            raise ArgumentTypeError(f"the name of a kernel is a {type(name).__name__}", fix='pass a text: "program"')
        self = cls.__new__(cls)
        given = without_prints(program).bound_buffers
        self._start(_ProgramSource(name, tuple(map(_param_of, given)), program.workgroup_size))
        self.__qualname__ = f"<locals>.{name}"  # no module has it
        self._programs[()] = self._only_program = program
        return self

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters in order, with their roles."""
        return self._source.params

    @property
    def source(self) -> KernelSource:
        """The function as it was read; a kernel made of a program has none."""
        if isinstance(self._source, _ProgramSource):
            raise ArgumentTypeError(f"{self.__name__} was made of a program", fix="read str(kernel.program) instead")
        return self._source

    @property
    def workgroup(self) -> tuple[int, int, int]:
        return self._source.workgroup

    @property
    def program(self) -> Program:
        """The program for the default values of all compile-time parameters."""
        return self.specialize()

    def specialize(self, **consts: Any) -> Program:
        """The program for these values of compile-time parameters, and of parameters that are numbers.

        A number that is given here is compiled in, and is no input of the program any more.
        """
        try:
            kernel = self._chosen(consts)
            numbers = [name for name in consts if name not in kernel._consts and kernel._is_number(name)]
            found = {name: consts.pop(name) for name in numbers}
            program = kernel._specialized(consts)
            return kernel._with_numbers(program, found) if found else program
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def _specialized(self, consts: Mapping[str, Any]) -> Program:
        from ..foundation.language.kernel import NO_DEFAULT, build_program

        values: dict[str, Any] = {}
        known = {p.name: p for p in self.params if p.role == "const"}
        for name in consts:
            if name not in known:
                numbers = [p.name for p in self.params if p.role == "scalar"]
                raise ArgumentTypeError(
                    f"{self.__name__} has no compile-time parameter {name}",
                    fix=f"use one of: {', '.join((*known, *numbers)) or 'none'}",
                )
        for name, param in known.items():
            values[name] = consts.get(name, param.default)
            if values[name] is NO_DEFAULT:
                raise ArgumentTypeError(
                    f"{self.__name__} needs a value for its compile-time parameter {name}", fix=f"pass {name}=..."
                )
        # 1, 1.0 and True are three programs, 0.0 and -0.0 two
        key = tuple((name, type(v), v if type(v) is int else repr(v)) for name, v in values.items())
        program = self._programs.get(key)
        if program is None:
            if self._consts and isinstance(self._source, _ProgramSource):
                shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
                raise ArgumentValueError(
                    f"{self.__name__} was sent here as its programs, and there is none for {shown}",
                    fix=f"call kernel.specialize({shown}) before sending it, or define it at the top of a module",
                )
            program = build_program(self.source, values)
            for oldest in list(self._programs)[: max(0, len(self._programs) - MAX_PROGRAMS + 1)]:
                self._programs.pop(oldest, None)
            self._programs[key] = program
        return program

    def _is_number(self, name: str) -> bool:
        return name in self._params and self._params[name].role == "scalar"

    def _with_numbers(self, program: Program, numbers: Mapping[str, Any]) -> Program:
        """The program with constants in place of these parameters."""
        from ..driver.plan.specialize import SpecMap, SpecValue, specialized
        from ..foundation.check.validate import validate
        from ..foundation.ir.report import Capabilities
        from .arrays import number_bytes

        found = {}
        for name, given in numbers.items():
            element = self._params[name].element
            assert element is not None
            found[name] = SpecValue.of_bytes(number_bytes(name, given, element), element)  # rounded as in a call
        made = specialized(program, SpecMap(found))
        for issue in validate(made, Capabilities.everything()):
            if issue.severity == "error":
                given = ", ".join(f"{name}={value}" for name, value in numbers.items())
                at = "" if issue.span is None else f"{issue.span.file}:{issue.span.line}: "
                raise ArgumentValueError(
                    f"{at}{issue.message}, with {given}", fix=f"{issue.fix}, or pass it to each call"
                )
        return made

    def on(self, backend: str) -> Kernel:
        """The same kernel on this backend ("id" or "id:device"), or an error; never on another one."""
        if not isinstance(backend, str):
            raise ArgumentTypeError(f"on() got a {type(backend).__name__}", fix='name a backend: .on("reference")')
        other = self._named.get(backend)
        if other is None:
            other = Kernel.__new__(Kernel)
            other.__dict__.update(self.__dict__, backend=backend)
            if len(self._named) < MAX_PROGRAMS:
                self._named[backend] = other
        return other

    def __call__(
        self,
        *args: Any,
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        check_races: bool = False,
        **named: Any,
    ) -> Any:
        try:
            chosen = self._chosen(named) if self._is_generic else self  # not asked by warm calls: a call costs 0.05 us
            if RECORDERS and (made := recorder()) is not None:
                if check_races is not False:
                    refuse_to_look("check_races=True")
                return made.call(chosen, args, named, grid, domain, sizes, config)
            call = _call_type()(chosen, args, named, grid, domain, sizes, config)
            if check_races is not False:
                call.require_no_race(check_races)
            return call.run()
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def __getitem__(self, launch: object) -> NoReturn:
        """Refused: `kernel[blocks, threads](...)` is how other packages launch."""
        names = ", ".join(p.name for p in self.params if p.role not in ("out", "const"))
        blocks, threads = launch if isinstance(launch, tuple) and len(launch) == 2 else (launch, None)
        sizes = f"grid={shown(blocks)}" if isinstance(blocks, int | tuple) else "grid=(number of workgroups)"
        workgroup = shown(threads) if isinstance(threads, int | tuple) else "64"
        raise ArgumentTypeError(
            f"{self.__name__}[...] launches nothing",
            fix=f"call {self.__name__}({names}): the arrays say how much runs, or domain=(how many invocations), or "
            f"{sizes}; threads of a block are in @vyre.kernel(workgroup={workgroup})",
        )

    __iter__ = None  # or Python would ask __getitem__ for elements

    def start(
        self,
        *args: Any,
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        **named: Any,
    ) -> PendingCall:
        """Start a call and return at once. `result()` of the handle, or awaiting it, gives what the call returns.

        Inputs may be changed as soon as this returns; outputs given by the caller are written when the result is taken.
        """
        try:
            refuse_to_read("a kernel was started")
            return _call_type()(self._chosen(named), args, named, grid, domain, sizes, config).start()
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def map(
        self,
        *arguments: Iterable[Any],
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        in_flight: int | None = None,
        progress: Callable[[int, int | None], object] | bool | None = None,
        **named: Any,
    ) -> KernelStream:
        """Call the kernel with one of each of these iterables after the other: an iterator over what the calls return.

        What is given by name is the same in all calls. Arguments are taken as results are. Where that saves time, those
        of one call are uploaded while the one before is computed; `in_flight` says how many calls may be on their way,
        wherever they can be. `progress` is a function of (done, total or None), or True for a line on the terminal.
        """
        try:
            refuse_to_look("map()")
            from .sequence.stream import calls_of

            options = grid, domain, sizes, config
            return calls_of(self._chosen(named), arguments, named, options, in_flight, progress)
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def explain(
        self,
        *args: Any,
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        **named: Any,
    ) -> Explanation:
        """What this call would do, and why. Nothing runs."""
        try:
            return _call_type()(self._chosen(named), args, named, grid, domain, sizes, config).explain()
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def evidence(
        self,
        *args: Any,
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        **named: Any,
    ) -> EvidenceBundle:
        """Run this call over copies of its arrays, and give all that is needed to run it again elsewhere: `write(path)`
        makes a file, and `vyre replay` runs it. An error of the dispatch is part of the evidence.
        """
        try:
            refuse_to_look("evidence()")
            return _call_type()(self._chosen(named), args, named, grid, domain, sizes, config).evidence()
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def step(
        self,
        *args: Any,
        invocation: int | tuple[int, ...] = 0,
        grid: Extent = None,
        domain: Extent = None,
        sizes: Sizes = None,
        config: DispatchConfig | None = None,
        **named: Any,
    ) -> Iterator[Stop]:
        """What one invocation of this call does, line by line, on the reference: `line`, its `text`, and the `locals`
        before it runs.

        The other invocations of its workgroup run along, and where workgroups may depend on each other those before it
        do so first. The arrays of the call are copied.
        """
        try:
            refuse_to_look("step()")
            return _call_type()(self._chosen(named), args, named, grid, domain, sizes, config).step(invocation)
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        """A kernel that its module has under its name travels as that name; any other one as its programs."""
        if is_at_its_name(self, lambda found: isinstance(found, Kernel) and found._source is self._source):
            return imported, (self.__module__, self.__qualname__, self.backend)
        if not isinstance(self._source, _ProgramSource) and self._source.generics:
            raise ArgumentTypeError(
                f"{self.__name__} is generic over types, and no module has it under its name",
                fix="define it at the top of a module",
            )
        source = _ProgramSource(self.__name__, self.params, self.workgroup)
        programs = {key: program.to_wire() for key, program in self._programs.items()}
        names = {name: getattr(self, name) for name in ("__qualname__", "__module__", "__doc__", "lengths")}
        return _arrived, (source, programs, names, self.backend)

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: object) -> Kernel:
        return self  # nothing about a kernel ever changes

    def __repr__(self) -> str:
        shown = ", ".join(f"{p.name}: {p.role} {p.element or ''}".rstrip() for p in self.params)
        return f"<kernel {self.__name__}({shown}) workgroup={self.workgroup}>"


def _checked_lengths(kernel: Kernel, given: Lengths) -> Lengths:
    """Which result says how long another one is, if these can."""
    from ..driver.contract.values import DispatchConfig
    from ..foundation.ir.dtypes import u32

    lengths: Mapping[str, Any] = DispatchConfig(output_lengths=given).output_lengths or {}
    for name, (word, at) in lengths.items():
        result, by = kernel._params.get(name), kernel._params.get(word)
        if result is None or result.role != "out" or result.rank > 1 or result.small is not None or word in lengths:
            raise ArgumentValueError(
                f"lengths has {name!r}, which is no result of {kernel.__name__} that can be counted",
                fix="name an Out of numbers with one axis, and as its length one that is not counted itself",
            )
        is_word = by is not None and by.role in ("out", "inout") and by.element is u32 and by.small is None
        if by is None or not is_word or (by.count and at >= by.count):
            raise ArgumentValueError(
                f"the length of {name!r} cannot be element {at} of {word!r}",
                fix=f"count in a result of words: {word}: Out[u32, {at + 1}]",
            )
    return lengths


class _ProgramSource(NamedTuple):
    """What a kernel asks of its source, where that is a program."""

    name: str
    params: tuple[Param, ...]
    workgroup: tuple[int, int, int]


def _param_of(buffer: BufferDecl) -> Param:
    """The parameter that a buffer of a program is."""
    from ..foundation.ir.program import Access
    from ..foundation.language.kernel import RESERVED, Param

    count = buffer.count
    if buffer.backend_allocated:
        role = "out"
    elif buffer.access is Access.READ_WRITE:
        role = "inout"
    elif buffer.access is Access.UNIFORM:
        role = "scalar" if count == 1 else "uniform"
    else:
        role = "in"
    part = buffer.output_byte_range
    if part is not None:
        count, rest = divmod(part[1] - part[0], buffer.element.size or 1)
        if rest or role != "out":
            raise ArgumentValueError(
                f"{buffer.name} gives back a part of itself that is not an array of {buffer.element.name}",
                fix="dispatch the program by slots: vyre.compile(program).dispatch([...])",
            )
    if buffer.name in RESERVED:
        raise ArgumentValueError(
            f"a buffer of the program is named {buffer.name}, a keyword of every kernel call",
            fix="rename the buffer, or dispatch by slots: vyre.compile(program).dispatch([...])",
        )
    return Param(buffer.name, role, buffer.element, count)


def is_at_its_name(thing: Any, is_same: Callable[[Any], bool]) -> bool:
    """Whether another process finds it by importing its module; what is typed at a prompt is in no module."""
    found: Any = sys.modules.get(thing.__module__)
    if thing.__module__ == "__main__" and not hasattr(found, "__file__"):
        return False
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return is_same(found)


def imported(module: str, qualname: str, backend: str | None) -> Any:
    """The kernel or sequence that a module has under this name."""
    found: Any = import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found if backend is None else found.on(backend)


def _arrived(
    source: _ProgramSource, programs: dict[tuple[Any, ...], bytes], names: dict[str, Any], backend: str | None
) -> Kernel:
    """A kernel that travelled as its programs."""
    from ..foundation.ir.program import Program

    kernel = Kernel.__new__(Kernel)
    kernel._start(source)
    kernel.__dict__.update(names)
    kernel._programs = {key: Program.from_wire(wire) for key, wire in programs.items()}
    kernel._only_program = None if kernel._consts else kernel._programs[()]
    return kernel if backend is None else kernel.on(backend)


@cache
def _call_type() -> type[Call]:
    """The function that runs a call; it comes with NumPy, and an import statement would cost every call 0.7 us."""
    from .call import Call

    return Call


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(*, source: str, workgroup: Workgroup = 64, lengths: Lengths = None) -> Kernel: ...
@overload
def kernel(*, workgroup: Workgroup = 64, lengths: Lengths = None) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Any = _ABSENT,
    /,
    *,
    workgroup: Workgroup = 64,
    lengths: Lengths = None,
    source: Any = _ABSENT,
    **unknown: object,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a function a compute kernel. `workgroup` is the number of invocations that share memory and barriers.

    With `lengths={"kept": "n"}` the result `kept` has as many elements as the result `n` says, or `("n", 3)`: element 3
    of it; no more of it is read back. `n` may be more than there is room for, and is what the kernel counted.

    `source` is the text of the function instead, where Python keeps none; it sees the names of the caller.
    """
    try:
        if unknown:
            raise ArgumentTypeError(
                f"kernel() has no option {', '.join(unknown)}", fix="write @vyre.kernel(workgroup=64) above a function"
            )
        if source is not _ABSENT:
            if function is not _ABSENT:
                raise ArgumentTypeError("kernel() got a function and a text", fix="pass one of them")
            caller = sys._getframe(1)
            return Kernel(_defined_by(source, {**caller.f_globals, **caller.f_locals}), workgroup, lengths)
        if function is not _ABSENT:
            return Kernel(function, workgroup, lengths)
    except MISTAKES as e:
        end_at_the_caller(e)
        raise

    def decorate(function: Callable[..., Any]) -> Kernel:
        try:
            return Kernel(function, workgroup, lengths)
        except MISTAKES as e:
            end_at_the_caller(e)
            raise

    return decorate


def _defined_by(text: object, names: dict[str, object]) -> Callable[..., Any]:
    from ..foundation.language.source import defined_by

    if not isinstance(text, str):
        raise ArgumentTypeError(f"source is a {type(text).__name__}", fix='pass a text: source="def k(...): ..."')
    return defined_by(text, names)
