"""A kernel as Python source, the way users write it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from .tree import FIELDS, Array, E, Held, Helper, S, Tree

BINARY = ("+", "-", "*", "/", "//", "%", "&", "|", "^", "<<", ">>")
FLOAT_FUNCTIONS = ("sqrt", "floor", "ceil", "round", "trunc", "sign", "reciprocal", "inverse_sqrt", "is_nan", "is_inf")
STRUCTS = """class Pair(NamedTuple):
    k: u32
    v: f32


class Body(NamedTuple):
    at: vec3
    mass: f32
"""
PLAIN = ("num", "turn")
"""Numbers without a type of their own."""


def text(e: E, typed: bool = False) -> str:
    """The source of an expression. `typed`: a plain number has to say its type here."""
    match e.op:
        case "num" | "turn":
            shown = e.data[0] if e.op == "num" else e.data
            if e.t in FIELDS:
                return str(shown)
            return f"{_type(e.t)}({shown})" if typed else shown
        case "var":
            return str(e.data)
        case "id":
            return ".".join(e.data)
        case "len":
            return f"len({e.data})"
        case "size":
            return f"{e.data}.size"
        case "load":
            return f"{e.data}[{text(e.args[0])}]"
        case "at":
            return ", ".join(map(text, e.args))
        case "shape":
            return f"{e.data[0]}.shape[{e.data[1]}]"
        case "compare":
            parts = _alike(e.args)
            return "(" + parts[0] + "".join(f" {s} {p}" for s, p in zip(e.data, parts[1:], strict=True)) + ")"
        case "and" | "or":
            return "(" + f" {e.op} ".join(text(a, True) for a in e.args) + ")"
        case "not":
            return f"(not {text(e.args[0], True)})"
        case "choose":
            c, (a, b) = text(e.args[0], True), _alike(e.args[1:])
            return f"({a} if {c} else {b})" if e.data == "if" else f"select({c}, {a}, {b})"
        case "cast":
            return f"{_type(e.t)}({text(e.args[0], True)})"
        case "bitcast":
            return f"bitcast({e.t}, {text(e.args[0], True)})"
        case "make":
            return f"{e.t}({', '.join(map(text, e.args))})"
        case "field":
            return f"{text(e.args[0])}.{e.data}"
        case "item":
            return f"{text(e.args[0])}[{e.data}]"
        case "replace":
            return f"{text(e.args[0])}._replace({e.data}={text(e.args[1])})"
        case "same" | "differ":
            return f"({text(e.args[0])} {'==' if e.op == 'same' else '!='} {text(e.args[1])})"
        case "dot" | "cross" | "length" | "normalize" | "conj":
            return f"{e.op}({', '.join(map(text, e.args))})"
        case "small":
            return f"({text(e.args[0])} {e.data} {text(e.args[1])})"
        case "neg" | "~":
            return f"({'-' if e.op == 'neg' else '~'}{text(e.args[0], True)})"
        case "call":
            return f"{e.data[0]}({', '.join([*e.data[1], *(text(a, True) for a in e.args)])})"
        case "<<" | ">>":
            return f"({text(e.args[0], True)} {e.op} {text(e.args[1])})"
        case "rotate_left" | "rotate_right" | "ldexp":
            return f"{e.op}({text(e.args[0], True)}, {text(e.args[1])})"
        case "**":  # binds more than the sign of a number before it
            return f"({text(e.args[0], True)} ** {text(e.args[1])})"
    if e.op in FLOAT_FUNCTIONS and e.args[0].t == "f32" and isinstance(_number(e.args[0]), float):
        return f"{e.op}({text(e.args[0])})"  # which makes an f32 of a number by itself
    if e.op in BINARY:
        return "(" + f" {e.op} ".join(_alike(e.args)) + ")"
    return f"{e.op}({', '.join(_alike(e.args))})"


def _number(e: E) -> Any:
    return e.data[1] if e.op == "num" else None


def _type(t: str) -> str:
    return "bool_" if t == "bool" else t


def _alike(args: tuple[E, ...]) -> list[str]:
    """Plain numbers take the type of the others; where there are no others, the first says its own."""
    alone = all(a.op in PLAIN for a in args)
    return [text(a, typed=alone and (k == 0 or len(args) == 1)) for k, a in enumerate(args)]


def block(body: tuple[S, ...], depth: int) -> Iterator[str]:
    if not body:
        yield "    " * depth + "pass"
    for s in body:
        for line in statement(s, depth):
            yield "    " * depth + line if line else line


def statement(s: S, depth: int) -> Iterator[str]:
    """The lines of a statement; those of its blocks are indented by one level more."""
    match s.op:
        case "let":
            yield _let(s.data, s.args[0])
        case "assign":
            yield f"{s.data} = {text(s.args[0])}"
        case "augment":
            yield f"{s.data[0]} {s.data[1]}= {text(s.args[0])}"
        case "swap":
            yield f"{', '.join(s.data)} = {', '.join(text(a) for a in s.args)}"
        case "chain":
            yield f"{' = '.join(s.data)} = {text(s.args[0])}"
        case "stores":
            count = len(s.data)
            goals = ", ".join(f"{name}[{text(e)}]" for name, e in zip(s.data, s.args, strict=False))
            yield f"{goals} = {', '.join(text(a) for a in s.args[count:])}"
        case "store":
            yield f"{s.data}[{text(s.args[0])}] = {text(s.args[1])}"
        case "store_augment":
            yield f"{s.data[0]}[{text(s.args[0])}] {s.data[1]}= {text(s.args[1])}"
        case "atomic":
            name, function, buffer = s.data
            call = f"{function}({', '.join([buffer, *(f'({text(a)})' if a.op == 'at' else text(a) for a in s.args)])})"
            yield f"{name} = {call}" if name else call
        case "if":
            for k, (condition, body) in enumerate(zip(s.args, s.bodies, strict=False)):
                yield f"{'el' if k else ''}if {text(condition, typed=True)}:"
                yield from block(body, 1)
            if len(s.bodies) > len(s.args):
                yield "else:"
                yield from block(s.bodies[-1], 1)
        case "each":
            names, table, _ = s.data
            yield f"for {', '.join(names)} in {table}:"
            yield from block(s.bodies[0], 1)
        case "for" | "together":
            name = s.data if s.op == "together" else s.data[0]
            word = "static_range" if s.op == "for" and s.data[1] == "static" else "range"
            yield f"for {name} in {word}({', '.join(text(a) for a in s.args)}):"
            yield from block(s.bodies[0], 1)
        case "while":
            yield f"while {text(s.args[0], typed=True)}:"
            yield from block(s.bodies[0], 1)
        case "return":
            yield f"return {', '.join(text(a, typed=True) for a in s.args)}" if s.args else "return"
        case "unpack":
            yield f"{', '.join(s.data)} = {text(s.args[0])}"
        case "extents":
            yield f"{', '.join(s.data[0])} = {s.data[1]}.shape"
        case "assert":
            yield f'assert {text(s.args[0])}, "{s.data}"'
        case "shared" | "local":
            name, t, count = s.data
            yield f"{name} = {s.op}({_type(t)}, {count})"
        case "barrier" | "grid_sync":
            yield f"{s.op}()"
        case "subgroup":
            name, function = s.data
            yield f"{name} = {function}({', '.join(text(a, typed=True) for a in s.args)})"
        case _:
            yield s.op


def _let(name: str, e: E) -> str:
    """A plain number is given its type by an annotation, unless it has that type by itself."""
    if e.op not in PLAIN or e.t in FIELDS:
        return f"{name} = {text(e)}"
    if e.op == "num" and e.t == _own_type(e.data[1]):
        return f"{name} = {text(e)}"
    return f"{name}: {_type(e.t)} = {text(e)}"


def _own_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "f32" if isinstance(value, float) else "u32" if value >= 0 else "i32"


def source(tree: Tree) -> str:
    """The helpers and the kernel `k`."""
    lines: list[str] = []
    for helper in tree.helpers:
        lines += ["@device", f"def {helper.name}({', '.join(_parameters(helper))}){_returns(helper)}:"]
        lines += [*block(helper.body, 1), "", ""]
    params = [f"{a.name}: {_annotation(a)}" for a in tree.arrays]
    for name, t, value in sorted(tree.scalars, key=lambda s: s[0] in tree.left_out):
        params.append(f"{name}: {_type(t)}{_default(tree, name, value)}")
    named = [f"{name}: const{_default(tree, name, value)}" for name, value in tree.consts]
    named += ["T: const"] if tree.generic else []
    params += ["*", *named] if named else []
    workgroup = tree.workgroup[0] if len(tree.workgroup) == 1 else tree.workgroup
    lines += [f"@kernel(workgroup={workgroup})", f"def k({', '.join(params)}):", *block(tree.body, 1)]
    found = "\n".join(lines) + "\n"
    return re.sub(rf"(?<!vec[234]\[)\b{tree.generic}\b", "T", found) if tree.generic else found


def _default(tree: Tree, name: str, value: Any) -> str:
    return f" = {shown(value)}" if name in tree.left_out else ""


def _parameters(helper: Helper) -> Iterator[str]:
    for name, t in helper.params:
        yield name if not helper.noted or t[0] in "*&" else f"{name}: {_type(t)}"


def _returns(helper: Helper) -> str:
    if not helper.noted:
        return ""
    types = [_type(t) for t in (helper.returns, *helper.more)]
    return f" -> tuple[{', '.join(types)}]" if helper.more else f" -> {types[0]}"


def _annotation(a: Array) -> str:
    role = {"in": "In", "out": "Out", "inout": "InOut", "uniform": "Uniform"}[a.role]
    more = f", D{len(a.shape)}" if a.ranked else f", {a.size}" if a.static else ""
    return f"{role}[{_type(a.t)}{more}]"


def shown(value: Any) -> str:
    """A number of Python or NumPy, a table of such, or a small value, as an expression."""
    if isinstance(value, Held):
        items = (
            Held(kind, x) if kind in FIELDS else x for x, (_, kind) in zip(value.value, FIELDS[value.t], strict=True)
        )
        return f"{value.t}({', '.join(map(shown, items))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(shown, value))},)"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if type(value).__name__ == "ndarray":
        return f"np.array({shown(value.tolist())}, np.{value.dtype})"
    if type(value).__module__ == "numpy":
        return f"np.{type(value).__name__}({shown(value.item())})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)
