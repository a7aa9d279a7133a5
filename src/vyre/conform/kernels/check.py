"""A random kernel against its model: run it, compare bytes, and show what differs as a script that runs by itself."""

from __future__ import annotations

import linecache
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...foundation.language import lang
from ...foundation.language.lang import ANNOTATIONS, Intrinsic, device
from ...front.arrays import ARRAY_DTYPES
from ...front.kernel import Kernel, kernel
from .model import expected
from .numbers import from_bits
from .tree import BITS, Array, Tree
from .write import PAIR, shown, source

NAMES: dict[str, Any] = {
    **ANNOTATIONS,
    **{name: value for name, value in vars(lang).items() if isinstance(value, Intrinsic | lang.Ids)},
    "static_range": lang.static_range,
    "kernel": kernel,
    "device": device,
    "NamedTuple": NamedTuple,
}
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
    scope = {**NAMES, **dict(tree.captured)}
    exec(PAIR, scope)
    exec(compile(text, filename, "exec"), scope)
    found: Kernel = scope["k"]
    return found


def host_array(a: Array) -> Any:
    """The array that a caller brings; one that is `apart` has a gap behind every element."""
    dtype = ARRAY_DTYPES[a.t]
    if a.role == "out":
        if a.t == "bool":
            return np.ones(a.shape, dtype)
        return np.frombuffer(bytes([POISON]) * (a.size * dtype.itemsize), dtype).reshape(a.shape).copy()
    if a.t == "bool":
        flat = np.frombuffer(a.data, np.uint32) != 0
    else:
        flat = np.frombuffer(a.data, dtype).copy()
    if a.apart:
        wide = np.zeros(2 * a.size, dtype)
        wide[::2] = flat
        return wide[::2].reshape(a.shape) if len(a.shape) == 1 else np.asfortranarray(flat.reshape(a.shape))
    return flat.reshape(a.shape)


def call(tree: Tree, compiled: Kernel) -> list[bytes]:
    """The bytes of every result of one call, bools as words."""
    named: dict[str, Any] = {a.name: host_array(a) for a in tree.arrays if a.role != "out" or a.given}
    named |= {name: value for name, _, value in tree.scalars} | dict(tree.consts)
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
        size = BITS[a.t] // 8
        if len(have) != len(want):
            return Difference(a.name, 0, f"{len(have)} bytes", f"{len(want)} bytes")
        k = next(k for k in range(0, len(want), size) if have[k : k + size] != want[k : k + size])
        return Difference(a.name, k // size, _element(have[k : k + size], a.t), _element(want[k : k + size], a.t))
    return None


def _element(data: bytes, t: str) -> str:
    bits = int.from_bytes(data, "little")
    return f"{from_bits(bits, t)!r} ({bits:#x})"


def difference(tree: Tree, backend: str, answer: list[bytes] | None = None) -> Difference | None:
    """What is wrong with the kernel on this backend; an error of the call is raised."""
    return compare(tree, call(tree, built(tree).on(backend)), expected(tree) if answer is None else answer)


def script(tree: Tree, backend: str, found: Difference | str, answer: list[bytes]) -> str:
    """A program of its own that makes the call and shows both answers."""
    lines = [f'"""Kernel {tree.seed} on {backend}: {found}."""', "", "import numpy as np", "", "from vyre import *", ""]
    lines += [f"{name} = {shown(value)}" for name, value in tree.captured]
    text = source(tree)
    if "Pair(" in text or "Pair," in text or "Pair]" in text:
        lines[2:2] = ["from typing import NamedTuple", ""]
        lines += ["", "", PAIR]
    lines += ["", "", text, ""]
    named = [f"{name}={shown(value)}" for name, _, value in tree.scalars]
    named += [f"{name}={shown(value)}" for name, value in tree.consts]
    for a in tree.arrays:
        if a.role != "out":
            lines.append(f"{a.name} = {_array_text(a)}")
        elif a.given:
            lines.append(f"{a.name} = np.full({a.shape}, {POISON}).astype(np.{ARRAY_DTYPES[a.t].name})")
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
    word = f"np.uint{BITS[a.t]}"
    flat = np.frombuffer(a.data, f"<u{BITS[a.t] // 8}")
    text = f"np.array([{', '.join(map(hex, flat.tolist()))}], {word})"
    text += ".astype(bool)" if a.t == "bool" else f".view(np.{ARRAY_DTYPES[a.t].name})"
    if a.apart:
        gaps = f"np.repeat({text}, 2)[::2]"
        return gaps if len(a.shape) == 1 else f"np.asfortranarray({text}.reshape({a.shape}))"
    return text if len(a.shape) == 1 else f"{text}.reshape({a.shape})"
