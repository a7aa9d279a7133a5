"""A kernel with everything that one call of it needs, from the texts of a command line."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ArgumentTypeError, ArgumentValueError
from .programs import Input, Loaded, inputs_of, shape, sizes

if TYPE_CHECKING:
    from ...driver.execute.explanation import Explanation
    from ...driver.observe.evidence import EvidenceBundle
    from ...driver.verify.cases import Stop
    from ...foundation.ir.program import BufferDecl, Program
    from ...foundation.language.kernel import Param
    from ...front.arrays import Array
    from ...front.kernel import Kernel


class Request(NamedTuple):
    """A kernel with everything that a call of it needs."""

    loaded: Loaded
    kernel: Kernel
    inputs: dict[str, Input]
    options: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """Arguments by name. Arrays that the call updates are copies, so that each call begins with the same."""
        updated = {p.name for p in self.kernel.params if p.role in ("inout", "out")}
        return {name: i.value.copy() if name in updated else i.value for name, i in self.inputs.items()}

    def run(self, kernel: Kernel | None = None) -> tuple[list[Array], int]:
        """The results in slot order, and the nanoseconds of the call."""
        kernel, arguments = kernel or self.kernel, self.arguments()
        with _as_options():
            begun = time.perf_counter_ns()
            found = kernel(**arguments, **self.options)
            took = time.perf_counter_ns() - begun
        return ([] if found is None else list(found) if isinstance(found, tuple) else [found]), took

    def explain(self) -> Explanation:
        with _as_options():
            return self.kernel.explain(**self.arguments(), **self.options)

    def steps(self, invocation: tuple[int, ...]) -> Iterator[Stop]:
        """What one invocation of the call does, line by line."""
        with _as_options():
            yield from self.kernel.step(**self.arguments(), **self.options, invocation=invocation)

    @property
    def consts(self) -> dict[str, Any]:
        """The compile-time values that the call brings."""
        names = [p.name for p in self.kernel.params if p.role == "const" and p.name in self.inputs]
        return {name: self.inputs[name].value for name in names}

    @property
    def params(self) -> Sequence[Param]:
        """The parameters, of a generic kernel with the types of the call."""
        return self.kernel._chosen(self.consts).params

    def evidence(self) -> EvidenceBundle:
        with _as_options():
            return self.kernel.evidence(**self.arguments(), **self.options)

    @property
    def program(self) -> Any:
        """The program of the call, for the compile-time values that it brings."""
        with _as_options():
            return self.kernel.specialize(**self.consts)

    @property
    def result_buffers(self) -> Sequence[BufferDecl]:
        """Those that the call returns; what the kernel prints is none of them."""
        from ...foundation.ir.prints import without_prints

        program: Program = self.program
        return without_prints(program).host_outputs

    @property
    def result_names(self) -> list[str]:
        return [b.name for b in self.result_buffers]


def request(
    loaded: Loaded,
    inputs: Sequence[str] | None,
    size_options: Sequence[str] | None = None,
    domain: str | None = None,
    grid: str | None = None,
    timeout: float | None = None,
    backend: str | None = None,
) -> Request:
    """The request that the options of a command make. Wrong options raise here, wrong argument types in the call."""
    from ...driver.contract.values import DispatchConfig

    kernel = loaded.kernel if backend is None else loaded.kernel.on(backend)
    options: dict[str, Any] = {}
    if size_options:
        options["sizes"] = sizes(size_options)
    if domain is not None:
        options["domain"] = shape(domain, f"--domain {domain}")
    if grid is not None:
        options["grid"] = shape(grid, f"--grid {grid}")
    if timeout is not None:
        options["config"] = DispatchConfig(timeout=timeout)
    return Request(loaded, kernel, inputs_of(kernel, inputs or ()), options)


def _dashed(axes: str) -> str:
    """Names of axes as an option has them."""
    return axes.upper().replace(", ", "x")


_AS_OPTIONS = (
    (re.compile(r'sizes=\{"(\w+)": (?:n|\.\.\.)\}'), r"--sizes \1=N"),
    (re.compile(r'sizes=\{"(\w+)": \((\w+(?:, \w+)*)\)\}'), lambda m: f"--sizes {m[1]}={_dashed(m[2])}"),
    (re.compile(r"\bpass (\w+)\.reshape\((\w+(?:, \w+)*)\)"), lambda m: f"pass --input {m[1]}=random:{_dashed(m[2])}"),
    (re.compile(r"\bdomain=\((?:number of invocations|how many invocations run)\)"), "--domain N"),
    (re.compile(r"\bdomain=\(?(\w+(?:, \w+)*)\)?"), lambda m: f"--domain {_dashed(m[1])}"),
    (re.compile(r"\bpass (\w+)=\.\.\."), r"pass --input \1=NUMBER"),
)
"""Advice of a call, and how a command line spells it."""


@contextmanager
def _as_options() -> Iterator[None]:
    """Errors about arguments advise what can be typed here."""
    try:
        yield
    except (ArgumentTypeError, ArgumentValueError) as e:
        for python, option in _AS_OPTIONS:
            e.fix = python.sub(option, e.fix)
        raise
