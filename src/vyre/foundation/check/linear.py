"""The value of a 32-bit index as a sum of ids and loop variables, each times a number; None for any other index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..ir.nodes import BinOp, Bitcast, BufLen, Cast, Expr, InvocationId, Lit, Load, LocalId, UnOp, Var, WorkgroupId
from ..ir.ops import BinaryOp, OpaqueOp, UnaryOp
from ..ir.visit import fold

WORD = 1 << 32
MOST_TERMS = 64
"""A sum with more is not followed: sums of sums would take ages."""
Atom = tuple[str, int | str]
"""`g`, `l`, `w` with an axis; `k` with the number of a loop; `u` with the name of a value all invocations share."""


class LinearForm(NamedTuple):
    """`const` plus coefficients times atoms, modulo 2**32; coefficients are signed and not zero."""

    const: int
    terms: tuple[tuple[Atom, int], ...] = ()


def form(const: int, terms: Mapping[Atom, int]) -> LinearForm:
    signed = {a: (c + WORD // 2) % WORD - WORD // 2 for a, c in terms.items()}
    return LinearForm(const % WORD, tuple(sorted(((a, c) for a, c in signed.items() if c), key=repr)))


def plus(a: LinearForm, b: LinearForm, scale: int = 1) -> LinearForm:
    """a + scale * b."""
    terms = dict(a.terms)
    for atom, c in b.terms:
        terms[atom] = terms.get(atom, 0) + scale * c
    return form(a.const + scale * b.const, terms)


def times(a: LinearForm, scale: int) -> LinearForm:
    return form(a.const * scale, {atom: c * scale for atom, c in a.terms})


def linear(root: Expr, names: Mapping[str, LinearForm | None], constant: frozenset[str]) -> LinearForm | None:
    """The value of a 32-bit expression as a linear form, or None. `constant` buffers do not change in a dispatch."""

    def combine(e: Expr, below: tuple[LinearForm | None, ...]) -> LinearForm | None:
        match e, below:
            case Lit(), _:
                return LinearForm(e.bits) if e.dtype.name in ("u32", "i32") else None
            case Var(name=name), _:
                return names.get(name)
            case InvocationId(axis=axis), _:
                return LinearForm(0, ((("g", axis), 1),))
            case LocalId(axis=axis), _:
                return LinearForm(0, ((("l", axis), 1),))
            case WorkgroupId(axis=axis), _:
                return LinearForm(0, ((("w", axis), 1),))
            case BufLen(buffer=name), _:
                return LinearForm(0, ((("u", f"len {name}"), 1),))
            case Load(buffer=name), (LinearForm(const, ()),) if name in constant:
                return LinearForm(0, ((("u", f"load {name} {const}"), 1),))
            case ((Cast(target=t) | Bitcast(target=t)), (LinearForm() as x,)):
                return x if t.name in ("u32", "i32") else None
            case UnOp(op=UnaryOp.NEGATE), (LinearForm() as x,):
                return times(x, -1)
            case BinOp(op=op), (LinearForm() as x, LinearForm() as y):
                found = _combine(op, x, y)
                return None if found is not None and len(found.terms) > MOST_TERMS else found
        return None

    return fold(root, combine)


def _combine(op: BinaryOp | OpaqueOp, x: LinearForm, y: LinearForm) -> LinearForm | None:
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
