"""Groups of values: fields, arithmetic of vectors and complex numbers, equality, choice.

Each number of a result is computed by itself, in the order of the fields. Sums go from left to right, and each
operation rounds once.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from functools import reduce
from typing import TypeAlias

from ....errors import VyreError
from ...ir.dtypes import DataType, bool_, f32
from ...ir.nodes import BinOp, Expr, UnOp
from ...ir.ops import BinaryOp, UnaryOp
from ..exprs import ExpressionCompiler, balanced
from ..lang import Intrinsic
from ..numbers import BINARY
from ..source import Place, Table
from ..values import (
    Const,
    Group,
    Number,
    Outside,
    Result,
    Scalar,
    Typed,
    Value,
    leaves,
    outside_value,
    rebuilt,
    same_form,
    several,
    show,
    type_text,
)
from .types import SmallType, small_type
from .vectors import c64

Form: TypeAlias = "DataType | SmallType | tuple[Form | None, ...]"
"""What a value is declared to be; a tuple is several values without names, of which None are left open."""
ADD, SUB, MULT, DIV = ast.Add(), ast.Sub(), ast.Mult(), ast.Div()
OF_SMALL = ("dot", "cross", "length", "normalize", "conj")
"""Functions of vectors and complex numbers."""


class GroupCompiler(ExpressionCompiler):
    """Compiles what is done with several values at once."""

    # -- forms

    def small(self, what: object, node: Place) -> SmallType | None:
        """The small value that an object is a type of."""
        try:
            return small_type(what)
        except VyreError as e:
            raise self.fail(node, e.message, e.fix) from e

    def form(self, node: ast.expr) -> DataType | SmallType:
        """The type that an expression names, of numbers or of small values."""
        found = self.value(node)
        small = self.small(found.what, node) if isinstance(found, Outside) else None
        return self.dtype(node) if small is None else small

    def fitted(self, value: Value, form: Form, node: Place, what: str) -> Value:
        """A value that has to be of this form."""
        if isinstance(form, SmallType):
            if isinstance(value, Group) and value.of == form:
                return value
            call = f"{form}({', '.join(form.fields)})"
            raise self.fail(node, f"{what} is {form}, and this value is {type_text(value)}", f"write {call}")
        if not isinstance(form, DataType):
            if not (isinstance(value, Group) and value.of is None and len(value.items) == len(form)):
                message = f"{what} is {len(form)} values, and this is {type_text(value)}"
                raise self.fail(node, message, "give one value for each of them")
            items = zip(value.items, form, _parts(node, len(form)), strict=True)
            return Group(tuple(v if f is None else self.fitted(v, f, at, what) for v, f, at in items))
        if isinstance(value, Group):
            raise self.fail(node, *several(value, show(node)))
        return Typed(self.fit(value, form, node, what), form)

    def numbers_of(self, group: Group) -> list[Typed]:
        """The numbers of a vector, each fit to be used several times."""
        return [item for item in leaves(self.once(group)) if isinstance(item, Typed)]

    # -- making

    def value(self, node: ast.expr) -> Result:
        if isinstance(node, ast.Constant) and isinstance(node.value, complex):
            parts = (node.value.real, node.value.imag)
            return Group(tuple(Typed(self.literal(x, f32, node), f32) for x in parts), small_type(c64))
        return super().value(node)

    def captured(self, what: object, node: Place) -> Group | None:
        """A NamedTuple of the surrounding program as a small value."""
        try:
            small = small_type(what.cls) if isinstance(what, Table) else None
        except VyreError:  # a table of other things, of which a field may still be a number
            small = None
        if small is None or not isinstance(what, Table):
            return None
        items: list[Value] = []
        for field, t, item in zip(small.fields, small.types, what.items, strict=True):
            inner = outside_value(item, field)
            found = inner if isinstance(inner, Const) else self.captured(item, node)
            if found is None:
                raise self.fail(node, f"`{field}` of this {small} is not a number", "give it one")
            items.append(self.fitted(found, t, node, f"`{field}`"))
        return Group(tuple(items), small)

    def construct(self, small: SmallType, node: ast.Call) -> Group:
        """`Line(point, direction)`; a vector also of one number, or of a vector of another type."""
        given: dict[str, ast.expr] = {}
        fix = f"write {small}({', '.join(small.fields)})"
        if len(node.args) > len(small.fields):
            message = f"{small}() takes {len(small.fields)} values, not {len(node.args)}"
            raise self.fail(node, message, fix)
        for field, arg in zip(small.fields, node.args, strict=False):
            given[field] = arg
        self._keywords(small, node, given, fix)
        if small.is_vector and len(node.args) == 1 and len(given) == 1:
            return self._spread(small, node.args[0], node)
        found = dict(zip(given, self.operands(*given.values()), strict=True))
        items: list[Value] = []
        for field, t in zip(small.fields, small.types, strict=True):
            value: Value | None = found.get(field)
            if value is None and field in getattr(small.cls, "_field_defaults", {}):
                default = outside_value(small.cls._field_defaults[field], field)  # type: ignore[attr-defined]
                value = default if isinstance(default, Const) else None
            if value is None:
                raise self.fail(node, f"{small}() needs a value for `{field}`", fix)
            items.append(self.fitted(value, t, given.get(field, node), f"`{field}` of {small}"))
        return Group(tuple(items), small)

    def _keywords(self, small: SmallType, node: ast.Call, given: dict[str, ast.expr], fix: str) -> None:
        for at in node.args:
            if isinstance(at, ast.Starred):
                raise self.fail(at, "`*` arguments are not part of kernels", fix)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in given or keyword.arg not in small.fields:
                raise self.fail(keyword, f"{small}() has no place for `{keyword.arg or '**'}`", fix)
            given[keyword.arg] = keyword.value

    def _spread(self, small: SmallType, arg: ast.expr, node: Place) -> Group:
        value = self.operand(arg)
        items: list[Value] = []
        if isinstance(value, Group):
            if value.of is None or not value.of.is_vector or len(value.items) != len(small.fields):
                fix = f"write {small}({', '.join(small.fields)})"
                raise self.fail(arg, f"{small}() of a {type_text(value)}", fix)
            for t, item in zip(small.leaves(), leaves(value), strict=True):
                items.append(self.converted(item, t, arg, node))
            return Group(tuple(items), small)
        value = self.once(value)
        return Group(tuple(self.fitted(value, t, arg, f"each field of {small}") for t in small.types), small)

    @abstractmethod
    def converted(self, value: Scalar, t: DataType, arg: ast.expr, node: Place) -> Typed:
        """A number in another type, as a conversion that the source writes."""

    def replaced(self, group: Group, node: ast.Call) -> Group:
        """`v._replace(x=1.0)`."""
        if group.of is None or node.args:
            raise self.fail(node, "_replace() takes fields by name", "write v._replace(x=...)")
        given: dict[str, ast.expr] = {}
        self._keywords(group.of, node, given, f"use one of: {', '.join(group.of.fields)}")
        small, before = group.of, self.settled_group(group, *given.values())
        found = dict(zip(given, self.operands(*given.values()), strict=True))
        items = [
            self.fitted(found[field], t, given[field], f"`{field}` of {small}") if field in found else item
            for field, t, item in zip(small.fields, small.types, before.items, strict=True)
        ]
        return Group(tuple(items), small)

    def settled_group(self, group: Group, *later: ast.expr) -> Group:
        found = self.settled(group, *later)
        assert isinstance(found, Group)
        return found

    # -- taking apart

    def field(self, group: Group, node: ast.Attribute) -> Value:
        if group.of is None:
            raise self.fail(node, "a tuple has no fields", "unpack it: a, b = ...")
        if node.attr not in group.of.fields:
            raise self.fail(node, f"{group.of} has no `{node.attr}`", f"use one of: {', '.join(group.of.fields)}")
        return group.items[group.of.fields.index(node.attr)]

    def item(self, group: Group, at: ast.expr, name: str) -> Value:
        """`v[0]`."""
        count = len(group.items)
        index = self.constant(at) if not isinstance(at, ast.Slice | ast.Tuple) else None
        if not isinstance(index, Const) or isinstance(index.value, bool | float):
            fix = f"loop with static_range({count}), or keep the numbers in local(f32, {count})"
            raise self.fail(at, f"the index of `{name}` is not a number known while compiling", fix)
        if not -count <= index.value < count:
            raise self.fail(at, f"the index {index.value} lies outside the {count} values", f"use 0 to {count - 1}")
        return group.items[index.value]

    @abstractmethod
    def constant(self, node: ast.expr) -> Scalar:
        """The value where a number known while compiling is needed."""

    @abstractmethod
    def known_number(self, value: Scalar) -> Number | None:
        """The number that a value will be, where that is known while compiling."""

    # -- operators

    def combined(self, op: ast.operator, a: Value, b: Value, node: Place, at_a: ast.expr, at_b: ast.expr) -> Value:
        if not isinstance(a, Group) and not isinstance(b, Group):
            return self.binary(op, a, b, node, at_a, at_b)
        symbol = BINARY[type(op)][0] if type(op) in BINARY else "@"
        for value, at in ((a, at_a), (b, at_b)):
            if isinstance(value, Group) and not (value.of and (value.of.is_vector or value.of.is_complex)):
                self._refuse_operator(symbol, value, node, at)
        if symbol == "@":
            raise self.fail(node, "`@` is not an operator of kernels", "write dot(a, b)")
        if isinstance(a, Group) and isinstance(b, Group) and a.of != b.of:
            fix = f"convert one side: {a.of}({show(at_b)})" if len(a.items) == len(b.items) else "give both one type"
            raise self.fail(node, f"`{symbol}` of {a.of} and {b.of}", fix)
        a, b = self.once(a), self.once(b)
        if any(isinstance(v, Group) and v.of and v.of.is_complex for v in (a, b)):
            return self._complex(symbol, a, b, node, at_a, at_b)
        whole = a if isinstance(a, Group) else b
        assert isinstance(whole, Group)
        left = leaves(a) if isinstance(a, Group) else leaves(a) * len(whole.items)
        right = leaves(b) if isinstance(b, Group) else leaves(b) * len(whole.items)
        pairs = zip(left, right, strict=True)
        return whole._replace(items=tuple(self.binary(op, x, y, node, at_a, at_b) for x, y in pairs))

    def _refuse_operator(self, symbol: str, value: Group, node: Place, at: ast.expr) -> None:
        if value.of is None:
            raise self.fail(node, f"`{symbol}` of {len(value.items)} values", "unpack them first: a, b = ...")
        fields = ", ".join(f"a.{f} {symbol} b.{f}" for f in value.of.fields[:2])
        more = ", ..." if len(value.of.fields) > 2 else ""
        fix = f"write each field: {value.of}({fields}{more}), or make it a vec{min(4, max(2, len(value.of.fields)))}"
        raise self.fail(node, f"`{symbol}` of a {value.of}, which has no arithmetic", fix)

    def _complex(self, symbol: str, a: Value, b: Value, node: Place, at_a: ast.expr, at_b: ast.expr) -> Group:
        def do(op: ast.operator, x: Scalar, y: Scalar) -> Scalar:
            return self.binary(op, x, y, node, at_a, at_b)

        small = small_type(c64)
        x, y = leaves(a), leaves(b)
        match symbol:
            case "+" if len(x) == len(y):
                parts = [do(ADD, x[0], y[0]), do(ADD, x[1], y[1])]
            case "+":
                parts = [do(ADD, x[0], y[0]), x[1] if len(x) == 2 else y[1]]
            case "-" if len(x) == len(y):
                parts = [do(SUB, x[0], y[0]), do(SUB, x[1], y[1])]
            case "-":
                parts = [do(SUB, x[0], y[0]), x[1] if len(x) == 2 else self._negative(y[1], node, at_b)]
            case "*" if len(x) == len(y):
                real = do(SUB, do(MULT, x[0], y[0]), do(MULT, x[1], y[1]))
                parts = [real, do(ADD, do(MULT, x[0], y[1]), do(MULT, x[1], y[0]))]
            case "*":
                z, s = (x, y[0]) if len(x) == 2 else (y, x[0])
                parts = [do(MULT, z[0], s), do(MULT, z[1], s)]
            case "/" if len(y) == 1:
                parts = [do(DIV, x[0], y[0]), do(DIV, x[1], y[0])]
            case "/":
                fix = "multiply by conj(w), and divide by w.real * w.real + w.imag * w.imag"
                raise self.fail(node, "`/` by a complex number", fix)
            case _:
                raise self.fail(node, f"`{symbol}` of complex numbers", "use + - * and / by a real number")
        return Group(tuple(parts), small)

    def _negative(self, value: Scalar, node: Place, at: ast.expr) -> Scalar:
        found = self.typed(value, at, f32)
        return self.checked(UnOp(UnaryOp.NEGATE, found.expr), (found.dtype,), node, operand=at)

    def signed(self, symbol: str, group: Group, node: ast.UnaryOp) -> Group:
        """`-v`, `+v` and `~v`."""
        if not (group.of and (group.of.is_vector or (group.of.is_complex and symbol != "~"))):
            self._refuse_operator(symbol, group, node, node.operand)
        if symbol == "+":
            return group
        op = UnaryOp.NEGATE if symbol == "-" else UnaryOp.BIT_NOT
        items = [item for item in leaves(group) if isinstance(item, Typed)]
        found = [self.checked(UnOp(op, x.expr), (x.dtype,), node, operand=node.operand) for x in items]
        return group._replace(items=tuple(found))

    def same(self, op: BinaryOp, a: Value, b: Value, node: Place, at_a: ast.expr, at_b: ast.expr) -> Expr:
        if op not in (BinaryOp.EQ, BinaryOp.NE):
            raise self.fail(node, f"`{op.text}` of {type_text(a)} and {type_text(b)}", "compare their numbers")
        if not same_form(a, b):
            fix = (
                "compare the fields that both have"
                if isinstance(a, Group) and isinstance(b, Group)
                else "compare a field"
            )
            raise self.fail(node, f"`{op.text}` of {type_text(a)} and {type_text(b)}", fix)
        found: list[Expr] = []
        for x, y in zip(leaves(a), leaves(b), strict=True):
            (left, right), t = self.alike([x, y], [at_a, at_b], node, f"`{op.text}`")
            found.append(self.checked(BinOp(op, left, right), (t, t), node).expr)
        return balanced(BinaryOp.AND if op is BinaryOp.EQ else BinaryOp.OR, found)

    def group_choice(self, conditions: list[Expr], arms: list[Value], nodes: list[ast.expr], node: Place) -> Group:
        first = next(arm for arm in arms if isinstance(arm, Group))
        for arm, at in zip(arms, nodes, strict=True):
            if not same_form(arm, first):
                message = f"a choice between {type_text(first)} and {type_text(arm)}"
                raise self.fail(at, message, f"give every arm the type {type_text(first)}")
        kept = [self.once(Typed(c, bool_)).expr for c in conditions]
        columns = zip(*map(leaves, arms), strict=True)
        numbers = [self.choice(kept, list(column), nodes, node) for column in columns]
        found = rebuilt(first, iter(numbers))
        assert isinstance(found, Group)
        return found

    # -- functions

    def of_small(self, fn: Intrinsic, args: list[ast.expr], node: ast.Call) -> Value:
        """`dot`, `cross`, `length`, `normalize`, `conj`."""
        found = self.operands(*args)
        groups = [v for v in found if isinstance(v, Group) and v.of is not None]
        is_complex = fn.name == "conj"
        for value, at in zip(found, args, strict=True):
            of = value.of if isinstance(value, Group) else None
            if of is None or not (of.is_complex if is_complex else of.is_vector):
                wanted = "a c64" if is_complex else "a vector"
                fix = "make one: c64(re, im)" if is_complex else "make one: vec3(x, y, z)"
                raise self.fail(at, f"{fn.name}() takes {wanted}, and this is {type_text(value)}", fix)
            if of != groups[0].of:
                raise self.fail(
                    node, f"{fn.name}() of {groups[0].of} and {of}", f"convert one side: {groups[0].of}(...)"
                )
        a, *rest = groups
        if fn.name == "conj":
            real, imag = leaves(a)
            return a._replace(items=(real, self._negative(imag, node, args[0])))
        if fn.name == "dot":
            return self._dot(a, rest[0], node, args)
        if fn.name == "cross":
            return self._cross(a, rest[0], node, args)
        x = self.numbers_of(a)
        if not x[0].dtype.is_float:
            raise self.fail(args[0], f"{fn.name}() of {a.of}", f"convert it: vec{len(x)}({show(args[0])})")
        a = a._replace(items=tuple(x))
        square = self._dot(a, a, node, [args[0], args[0]])
        size = self.checked(UnOp(UnaryOp.SQRT, square.expr), (square.dtype,), node, operand=args[0])
        return size if fn.name == "length" else self.combined(DIV, a, size, node, args[0], args[0])

    def _dot(self, a: Group, b: Group, node: Place, at: list[ast.expr]) -> Typed:
        """`(a.x * b.x + a.y * b.y) + a.z * b.z`."""
        pairs = zip(leaves(a), leaves(b), strict=True)
        products = [self.binary(MULT, x, y, node, at[0], at[1]) for x, y in pairs]
        total = reduce(lambda x, y: self.binary(ADD, x, y, node, at[0], at[1]), products)
        assert isinstance(total, Typed)
        return total

    def _cross(self, a: Group, b: Group, node: Place, at: list[ast.expr]) -> Group:
        """`(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x)`."""
        if len(a.items) != 3:
            raise self.fail(node, f"cross() of {a.of}", "use vec3")
        x, y = self.numbers_of(a), self.numbers_of(b)

        def times(p: Scalar, q: Scalar) -> Scalar:
            return self.binary(MULT, p, q, node, at[0], at[1])

        turns = ((1, 2), (2, 0), (0, 1))
        parts = [self.binary(SUB, times(x[i], y[j]), times(x[j], y[i]), node, at[0], at[1]) for i, j in turns]
        return a._replace(items=tuple(parts))


def _parts(node: Place, count: int) -> list[Place]:
    """Where each of several values stands, as far as the source shows it."""
    parts: list[Place] = [*node.elts] if isinstance(node, ast.Tuple | ast.List) else [node] * count
    return parts if len(parts) == count else [node] * count
