"""The value of a 32-bit index as a sum of ids and loop variables, each times a number; None where it is no such sum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..ir.nodes import BinOp, Bitcast, BufLen, Cast, Expr, InvocationId, Lit, Load, LocalId, UnOp, Var, WorkgroupId
from ..ir.ops import BinaryOp, OpaqueOp, UnaryOp
from ..ir.visit import fold

WORD = 1 << 32
MOST_TERMS = 64
"""What has more is not followed: sums of sums would take ages."""
Atom = tuple[str, int | str]
"""`g`, `l`, `w` with an axis; `k` with the number of a loop; `u` with the name of a value all invocations share."""


class Form(NamedTuple):
    """`const` plus coefficients times atoms, modulo 2**32; coefficients are signed and not zero."""

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()


def form(const: int, terms: Mapping[Atom, int]) -> Form:
    signed = {a: (c + WORD // 2) % WORD - WORD // 2 for a, c in terms.items()}
    return Form(const % WORD, tuple(sorted(((a, c) for a, c in signed.items() if c), key=repr)))


def plus(a: Form, b: Form, scale: int = 1) -> Form:
    """a + scale * b."""
    terms = dict(a.terms)
    for atom, c in b.terms:
        terms[atom] = terms.get(atom, 0) + scale * c
    return form(a.const + scale * b.const, terms)


def times(a: Form, scale: int) -> Form:
    return form(a.const * scale, {atom: c * scale for atom, c in a.terms})


def linear(root: Expr, names: Mapping[str, Form | None], constant: frozenset[str]) -> Form | None:
    """The value of a 32-bit expression as a linear form, or None. `constant` buffers do not change in a dispatch."""

    def combine(e: Expr, below: tuple[Form | None, ...]) -> Form | None:
        match e, below:
            case Lit(), _:
                return Form(e.bits) if e.dtype.name in ("u32", "i32") else None
            case Var(name=name), _:
                return names.get(name)
            case InvocationId(axis=axis), _:
                return Form(0, ((("g", axis), 1),))
            case LocalId(axis=axis), _:
                return Form(0, ((("l", axis), 1),))
            case WorkgroupId(axis=axis), _:
                return Form(0, ((("w", axis), 1),))
            case BufLen(buffer=name), _:
                return Form(0, ((("u", f"len {name}"), 1),))
            case Load(buffer=name), (Form(const, ()),) if name in constant:
                return Form(0, ((("u", f"load {name} {const}"), 1),))
            case ((Cast(target=t) | Bitcast(target=t)), (Form() as x,)):
                return x if t.name in ("u32", "i32") else None
            case UnOp(op=UnaryOp.NEGATE), (Form() as x,):
                return times(x, -1)
            case BinOp(op=op), (Form() as x, Form() as y):
                found = _combine(op, x, y)
                return None if found is not None and len(found.terms) > MOST_TERMS else found
        return None

    return fold(root, combine)


def _combine(op: BinaryOp | OpaqueOp, x: Form, y: Form) -> Form | None:
    match op:
        case BinaryOp.ADD | BinaryOp.WRAPPING_ADD:
            return plus(x, y)
        case BinaryOp.SUB | BinaryOp.WRAPPING_SUB:
            return plus(x, y, -1)
        case BinaryOp.MUL if not y.terms:
            return times(x, y.const)
        case BinaryOp.MUL if not x.terms:
            return times(y, x.const)
        case BinaryOp.SHL if not y.terms:
            return times(x, 1 << y.const % 32)
    return None
