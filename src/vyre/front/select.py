"""One public name with two meanings: `select` in a kernel takes one of two values, outside it chooses a backend."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentTypeError
from ..foundation.ir.program import Program
from ..foundation.language import lang
from .compile import choose


class _Select(lang.Intrinsic):
    """`select(program)` says which backend would run it, and why not the others; `select()` does so for any program
    that needs nothing special. Any other call is a kernel's own.
    """

    def __call__(self, *args: Any) -> Any:
        if not args or (len(args) == 1 and isinstance(args[0], Program)):
            return choose(*args)
        if len(args) == 1 and isinstance(getattr(args[0], "program", None), Program):
            raise ArgumentTypeError(
                f"select() got a {type(args[0]).__name__}, not a program", fix="pass kernel.program"
            )
        return super().__call__(*args)


select = _Select(lang.select.name, lang.select.signature, lang.select.op, lang.select._build)
