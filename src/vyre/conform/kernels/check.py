"""A random kernel against its model: run it, compare bytes, and show what differs as a script that runs by itself."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...foundation.language import lang
from ...foundation.language.lang import ANNOTATIONS, Intrinsic, device
from ...front.arrays import ARRAY_DTYPES
from ...front.kernel import Kernel, kernel
from .model import expected
from .small import loaded
from .tree import BITS, FIELDS, Array, Held, Tree, element_bytes, parts
from .write import STRUCTS, shown, source

NAMES: dict[str, Any] = {
    **ANNOTATIONS,
    **{name: value for name, value in vars(lang).items() if isinstance(value, Intrinsic | lang.Ids)},
    "static_range": lang.static_range,
    "kernel": kernel,
    "device": device,
    "NamedTuple": NamedTuple,
    "T": TypeVar("T"),
}
exec(compile(STRUCTS, "<structs>", "exec", dont_inherit=True), NAMES)
POISON = 0xA5


class Difference(NamedTuple):
    """Where a result has other bytes than the model's: `found` is what the backend gave, or its error."""

    result: str
    element: int
    found: str
    wanted: str

    def __str__(self) -> str:
        return f"{self.result}[{self.element}] is {self.found}, and has to be {self.wanted}"


def built(tree: Tree) -> Kernel:
    """The kernel, from its source."""
    text = source(tree)
    filename = f"<kernel {tree.seed}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope = {**NAMES, **{name: host(value) for name, value in tree.captured}}
    exec(compile(text, filename, "exec"), scope)
    found: Kernel = scope["k"]
    return found


def host(value: Any) -> Any:
    """A value as callers and surroundings have it: a small value as one of its class."""
    if not isinstance(value, Held):
        return value
    pairs = zip(value.value, FIELDS[value.t], strict=True)
    return eval(value.t, NAMES)(*(host(Held(kind, x) if kind in FIELDS else x) for x, (_, kind) in pairs))


def element_type(t: str) -> tuple[Any, tuple[int, ...]]:
    """The dtype of the arrays that carry this type, and the axes behind theirs."""
    if t not in FIELDS:
        return ARRAY_DTYPES[t], ()
    fields = FIELDS[t]
    if t == "c64":
        return np.dtype(np.complex64), ()
    if t[:3] == "vec":
        return ARRAY_DTYPES[fields[0][1]], (len(fields),)
    return np.dtype([(name, *element_type(kind)) for name, kind in fields]), ()


def host_array(a: Array) -> Any:
    """The array that a caller brings; one that is `apart` has a gap behind every element."""
    dtype, more = element_type(a.t)
    if a.role == "out":
        if a.t == "bool":
            return np.ones(a.shape, dtype)
        poison = bytes([POISON]) * (a.size * element_bytes(a.t))
        return np.frombuffer(poison, dtype).reshape(*a.shape, *more).copy()
    if a.t == "bool":
        flat = np.frombuffer(a.data, np.uint32) != 0
    else:
        flat = np.frombuffer(a.data, dtype).copy()
    shaped = flat.reshape(*a.shape, *more)
    if a.apart:
        return np.repeat(shaped, 2, axis=0)[::2] if len(a.shape) == 1 else np.asfortranarray(shaped)
    return shaped


def constants(tree: Tree) -> dict[str, Any]:
    """What is known when the kernel is compiled, by parameter."""
    return dict(tree.consts) | ({"T": NAMES[tree.generic]} if tree.generic else {})


def call(tree: Tree, compiled: Kernel) -> list[bytes]:
    """The bytes of every result of one call, bools as words."""
    named: dict[str, Any] = {a.name: host_array(a) for a in tree.arrays if a.role != "out" or a.given}
    named |= {name: host(Held(t, x)) if t in FIELDS else x for name, t, x in tree.scalars} | constants(tree)
    named = {name: value for name, value in named.items() if name not in tree.left_out}
    if tree.call:
        named[tree.call[0]] = tree.call[1]
    if tree.sized:
        sizes = {a.name: a.shape for a in tree.arrays if a.role == "out" and not a.given}
        named |= {"sizes": sizes} if sizes else {}
    found = compiled.start(**named).result() if tree.later else compiled(**named)
    arrays = found if isinstance(found, tuple) else (found,)
    return [np.ascontiguousarray(x, np.uint32 if x.dtype == np.bool_ else None).tobytes() for x in arrays]


def compare(tree: Tree, found: list[bytes], wanted: list[bytes]) -> Difference | None:
    """The first element that differs."""
    for a, have, want in zip(tree.results, found, wanted, strict=True):
        if have == want:
            continue
        size = element_bytes(a.t)
        if len(have) != len(want):
            return Difference(a.name, 0, f"{len(have)} bytes", f"{len(want)} bytes")
        k = next(k for k in range(0, len(want), size) if have[k : k + size] != want[k : k + size])
        return Difference(a.name, k // size, _element(have[k : k + size], a.t), _element(want[k : k + size], a.t))
    return None


def _element(data: bytes, t: str) -> str:
    return f"{loaded(data, t)!r} ({int.from_bytes(data, 'little'):#x})"


def difference(
    tree: Tree, backend: str, answer: list[bytes] | None = None, compiled: Kernel | None = None
) -> Difference | None:
    """What is wrong with the kernel on this backend; an error of the call is raised.

    Who tries several backends has the model's `answer` and the kernel (`built`) made once."""
    found = call(tree, (compiled or built(tree)).on(backend))
    return compare(tree, found, expected(tree) if answer is None else answer)


def script(tree: Tree, backend: str, found: Difference | str, answer: list[bytes]) -> str:
    """A program of its own that makes the call and shows both answers."""
    text = source(tree)
    lines = [f'"""Kernel {tree.seed} on {backend}: {found}."""', "", "import numpy as np", "", "from vyre import *"]
    hidden = sorted(set(re.findall(r"\b(pow|round)\(", text)))  # which `*` leaves out
    lines += [f"from vyre import {', '.join(hidden)}", ""] if hidden else [""]
    captured = [f"{name} = {shown(value)}" for name, value in tree.captured]
    if re.search(r"\b(Pair|Body)\b", "\n".join([text, *captured])):
        lines[2:2] = ["from typing import NamedTuple", ""]
        lines += ["", STRUCTS, ""]
    if tree.generic:
        lines[2:2] = ["from typing import TypeVar", ""]
        lines += ['T = TypeVar("T")']
    lines += captured
    lines += ["", "", text, ""]
    given = [(name, Held(t, value) if t in FIELDS else value) for name, t, value in tree.scalars]
    named = [f"{name}={shown(value)}" for name, value in [*given, *tree.consts] if name not in tree.left_out]
    named += [f"T={tree.generic}"] if tree.generic else []
    for a in tree.arrays:
        if a.role != "out":
            lines.append(f"{a.name} = {_array_text(a)}")
        elif a.given:
            poisoned = replace(a, data=bytes([POISON]) * (a.size * element_bytes(a.t)), apart=False)
            lines.append(f"{a.name} = {_array_text(poisoned)}")
        if a.role != "out" or a.given:
            named.append(f"{a.name}={a.name}")
    named += [f"{tree.call[0]}={tree.call[1]}"] if tree.call else []
    if tree.sized and (sizes := {a.name: a.shape for a in tree.arrays if a.role == "out" and not a.given}):
        named.append(f"sizes={sizes}")
    way = ".start" if tree.later else ""
    lines.append(f'found = k.on("{backend}"){way}({", ".join(named)}){".result()" if way else ""}')
    lines.append("wanted = [")
    for a, data in zip(tree.results, answer, strict=True):
        lines.append(f"    {_array_text(replace(a, role='in', data=data, apart=False))},")
    lines += ["]", "for have, want in zip(found if isinstance(found, tuple) else [found], wanted):"]
    lines += ["    print(have.tobytes() == want.tobytes(), have, want, sep=chr(10))", ""]
    return "\n".join(lines)


def _array_text(a: Array) -> str:
    """The array from its bits, which a person can change one by one."""
    dtype, more = element_type(a.t)
    size = BITS[parts(a.t)[0]] // 8  # numbers of one element have one size
    flat = np.frombuffer(a.data, f"<u{size}")
    text = f"np.array([{', '.join(map(hex, flat.tolist()))}], np.uint{8 * size})"
    text += ".astype(bool)" if a.t == "bool" else f".view({dtype.descr if dtype.names else f'np.{dtype.name}'})"
    shape = (*a.shape, *more)
    text += f".reshape({shape})" if len(shape) > 1 else ""
    if a.apart:
        return f"np.repeat({text}, 2, axis=0)[::2]" if len(a.shape) == 1 else f"np.asfortranarray({text})"
    return text
