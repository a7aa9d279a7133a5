"""Kernel objects: a decorated function that is called with arrays.

The compiler is loaded by the first decoration and NumPy by the first call, so that importing names stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, overload

from ..errors import ArgumentTypeError

if TYPE_CHECKING:
    from ..foundation.kernel import KernelSource, Param
    from ..foundation.program import Program

DEFAULT_BACKEND = "reference"
Workgroup = int | tuple[int, ...]


class Kernel:
    """A compute kernel. Call it with NumPy arrays; `.program` is what it means.

    Positional arguments are the parameters except `Out`, in order; every parameter also goes by its own name. `sizes`
    gives the length (or shape) of outputs that follow no input, `domain` the number of invocations, x first, and `grid`
    the number of workgroups.
    """

    def __init__(self, function: Callable[..., Any], workgroup: Workgroup, backend: str = DEFAULT_BACKEND) -> None:
        from ..foundation.kernel import NO_DEFAULT, read_source

        self._source = read_source(function, workgroup)
        self._programs: dict[tuple[Any, ...], Program] = {}
        self.backend = backend
        self.__name__ = self._source.name
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function
        if all(p.default is not NO_DEFAULT for p in self.params if p.role == "const"):
            self.specialize()  # what is wrong with a kernel is said where it is written

    @property
    def params(self) -> tuple[Param, ...]:
        """The parameters in order, with their roles."""
        return self._source.params

    @property
    def source(self) -> KernelSource:
        return self._source

    @property
    def workgroup(self) -> tuple[int, int, int]:
        return self._source.workgroup

    @property
    def program(self) -> Program:
        """The program for the default values of all compile-time parameters."""
        return self.specialize()

    def specialize(self, **consts: Any) -> Program:
        """The program for these values of the compile-time parameters."""
        from ..foundation.kernel import NO_DEFAULT, build_program

        values: dict[str, Any] = {}
        known = {p.name: p for p in self.params if p.role == "const"}
        for name in consts:
            if name not in known:
                raise ArgumentTypeError(
                    f"{self.__name__} has no compile-time parameter {name}",
                    fix=f"use one of: {', '.join(known) or 'none'}",
                )
        for name, param in known.items():
            values[name] = consts.get(name, param.default)
            if values[name] is NO_DEFAULT:
                raise ArgumentTypeError(
                    f"{self.__name__} needs a value for its compile-time parameter {name}", fix=f"pass {name}=..."
                )
        key = tuple((name, type(v), repr(v)) for name, v in values.items())  # 1, 1.0 and True are three programs
        if key not in self._programs:
            self._programs[key] = build_program(self._source, values)
        return self._programs[key]

    def on(self, backend: str) -> Kernel:
        """The same kernel on this backend, or an error; never on another one."""
        other: Kernel = Kernel.__new__(Kernel)
        other.__dict__.update(self.__dict__, backend=backend)
        return other

    def __call__(
        self,
        *args: Any,
        grid: tuple[int, ...] | int | None = None,
        domain: tuple[int, ...] | int | None = None,
        sizes: Mapping[str, int | tuple[int, ...]] | None = None,
        **named: Any,
    ) -> Any:
        from .call import call

        return call(self, args, named, grid=grid, domain=domain, sizes=sizes or {})

    def __repr__(self) -> str:
        shown = ", ".join(f"{p.name}: {p.role} {p.element or ''}".rstrip() for p in self.params)
        return f"<kernel {self.__name__}({shown}) workgroup={self.workgroup}>"


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(*, workgroup: Workgroup = 64) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None, /, *, workgroup: Workgroup = 64
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a function a compute kernel. `workgroup` is the number of invocations that share memory and barriers."""
    if function is not None:
        if not callable(function):
            raise ArgumentTypeError(
                f"kernel() got a {type(function).__name__}", fix="write @vyre.kernel(workgroup=64) above a function"
            )
        return Kernel(function, workgroup)
    return lambda f: Kernel(f, workgroup)
