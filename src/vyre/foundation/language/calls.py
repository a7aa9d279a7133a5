"""Calls in the kernel language: conversions, functions of vyre, a few of Python's own, helpers.

And tables of numbers that are known while compiling, which `len()`, an index or an attribute asks.
"""

from __future__ import annotations

import ast
import math
from abc import abstractmethod
from functools import reduce
from types import BuiltinFunctionType, FunctionType
from typing import Any

from ..ir.build import Buffer, Builder
from ..ir.dtypes import DataType, bool_, can_cast, f32, f64, i32, u32
from ..ir.nodes import (
    BinOp,
    Bitcast,
    Cast,
    Expr,
    Fma,
    Lit,
    Select,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    UnOp,
    Var,
    lit,
    show_number,
)
from ..ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from ..ir.program import Access
from ..ir.visit import fold
from ..meaning.arith import binary, unary
from . import lang
from .exprs import LONG_CHAIN
from .lang import DeviceFunction, Ids, Intrinsic, element_type
from .refused_syntax import BUILTIN_FIXES, FOREIGN_FUNCTIONS, FOREIGN_TYPES, foreign_fix
from .small.arrays import ArrayCompiler
from .small.groups import OF_SMALL
from .small.memory import LocalArray
from .small.vectors import ELEMENTS, vec2, vec3, vec4
from .source import MISSING, FunctionSource, Place, Table, dotted_name
from .values import (
    Const,
    Frame,
    Group,
    Nothing,
    Number,
    Outside,
    Result,
    Scalar,
    Typed,
    is_zero,
    outside_value,
    several,
    show,
)


class CallCompiler(ArrayCompiler):
    """Compiles calls and tables; the compiler of statements compiles a helper's."""

    def __init__(self, builder: Builder, frame: Frame) -> None:
        super().__init__(builder, frame)
        self.numbers: dict[str, Number] = {}  # of locals of the program that have one value, known while compiling

    # -- numbers and tables

    def constant(self, node: ast.expr) -> Scalar:
        """The value where a number known while compiling is needed: a name that was given one, once, stands for it."""
        value = self.scalar(node)
        number = self.known_number(value)
        return value if number is None else Const(number)

    def known_number(self, value: Scalar) -> Number | None:
        """The number that a value will be, if it is made of whole numbers known while compiling, and names of such."""
        if isinstance(value, Const):
            return value.value

        def computed(expr: Expr, parts: tuple[Any, ...]) -> Any:
            match expr:
                case Lit(dtype=t) if t == bool_ or t.is_int or t in (f32, f64):
                    return expr.value
                case Var(name=name):
                    return self.numbers.get(name)
                case BinOp(op=BinaryOp() as op, left=operand) if None not in parts and _is_whole(operand):
                    return binary(op, operand.type_hint)(*parts)
                case UnOp(op=UnaryOp() as op, operand=operand) if None not in parts and _is_whole(operand):
                    return unary(op, operand.type_hint)(*parts)
            return None

        found: Number | None = fold(value.expr, computed)
        return found

    def table(self, node: ast.expr) -> Table | None:
        """The table that an expression stands for; None for any other expression, which is not compiled here."""
        found: object = MISSING
        match node:
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return self._written_table(items)
            case ast.Name(id=name):
                binding = self.frame.find(name)
                found = binding.what if isinstance(binding, Outside) else self.outside(name)
            case ast.Attribute() | ast.Subscript():
                found = self.outside(dotted_name(node))
                if found is MISSING and self.table(node.value) is not None:
                    inner = self.value(node)
                    found = inner.what if isinstance(inner, Outside) else MISSING
        return found if isinstance(found, Table) else None

    def _written_table(self, nodes: list[ast.expr]) -> Table | None:
        """`(1, 2, n)`, where all of it is known while compiling."""
        items: list[object] = []
        for node in nodes:
            inner = self.table(node)
            if inner is None and any(isinstance(n, ast.Call | ast.Starred) for n in ast.walk(node)):
                return None
            value = inner or self.constant(node)
            if isinstance(value, Typed):
                return None
            items.append(value.value if isinstance(value, Const) else value)
        return Table("tuple", tuple(items))

    def _attribute(self, node: ast.Attribute) -> Result:
        table = self.table(node.value)
        if table is None:
            return super()._attribute(node)
        name = show(node.value)
        if node.attr in table.fields:
            return outside_value(table.items[table.fields.index(node.attr)], f"{name}.{node.attr}")
        fix = f"use one of: {', '.join(table.fields)}" if table.fields else f"use {name}[0] and len({name})"
        raise self.fail(node, f"the {table.kind} `{name}` has no `.{node.attr}` in kernels", fix)

    def _load(self, node: ast.Subscript) -> Result:
        table = self.table(node.value)
        called = self.outside(dotted_name(node.value)) if table is None else None
        if isinstance(called, Intrinsic):
            name = show(node.value)
            raise self.fail(node, f"`{name}` is a function, and takes no []", f"call it: {name}({called.signature})")
        if table is None and isinstance(called, type) and issubclass(called, (vec2, vec3, vec4)):
            t = self.dtype(node.slice)
            if t not in ELEMENTS:
                raise self.fail(node.slice, f"a vector of {t}", "make it of f32, i32, u32 or f64")
            return Outside(called.__class_getitem__(t), show(node))  # type: ignore[attr-defined]
        if table is None:
            return super()._load(node)
        name = show(node.value)
        found: object = table
        for at in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            if not isinstance(found, Table):
                raise self.fail(at, f"`{name}` is a number and has no elements", "leave this index out")
            index = self._place(found, at, name)
            name, found = f"{name}[{index}]", found.items[index]
        return outside_value(found, name)

    def _place(self, table: Table, at: ast.expr, name: str) -> int:
        count = len(table.items)
        if isinstance(at, ast.Slice):
            raise self.fail(at, "slices are not part of kernels", f"index one element: {name}[0]")
        index = self.constant(at)
        if isinstance(index, Typed):
            fix = f"loop with static_range({count}), or pass {name} as a parameter: Uniform[f32, {count}]"
            raise self.fail(at, f"the index of `{name}` is not known while compiling", fix)
        if isinstance(index.value, bool | float):
            raise self.fail(at, f"the index {index.value!r} is not a whole number", "use whole numbers")
        if not -count <= index.value < count:
            fix = f"use 0 to {count - 1}" if count else "leave it out"
            raise self.fail(at, f"the index {show_number(index.value)} lies outside the {count} elements", fix)
        return index.value

    # -- calls

    def _call(self, node: ast.Call) -> Result:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "_replace":
            base = self.operand(node.func.value)
            if isinstance(base, Group):
                return self.replaced(base, node)
        target = self.value(node.func)
        if not isinstance(target, Outside):
            value = isinstance(target, Typed | Const)
            fix = "it is a value: leave the parentheses out" if value else "call functions of vyre and helpers"
            raise self.fail(node.func, f"`{show(node.func)}` cannot be called", fix)
        what = target.what
        if isinstance(what, DeviceFunction):
            return self.inline(what, node)
        if isinstance(what, Intrinsic):
            return self._intrinsic(what, node)
        small = self.small(what, node.func)
        if small is not None:
            return self.construct(small, node)
        t = element_type(what)
        if t is not None:
            return self.cast(t, self.arguments(node, t.name, "x")[0], node)
        if what is len:
            (arg,) = self.arguments(node, "len", "x")
            table, sizes = self.table(arg), self.sizes(arg)
            if sizes is not None:
                return Const(len(sizes.axes))
            if table is not None:
                return Const(len(table.items))
            found = self.value(arg)
            return Const(len(found.items)) if isinstance(found, Group) else self.length(self.buffer(arg))
        if what is abs:
            return self._abs(self.arguments(node, "abs", "x")[0], node)
        if what is min or what is max:
            return self._extreme(BinaryOp.MIN if what is min else BinaryOp.MAX, node)
        raise self.fail(node, *_unknown_call(what, target.name))

    @abstractmethod
    def inline(self, device: DeviceFunction, node: ast.Call) -> Result:
        """A helper's statements in place of its call."""

    def arguments(self, node: ast.Call, name: str, signature: str, optional: int = 0) -> list[ast.expr]:
        """Plain positional arguments, as many as `signature` has (the last `optional` may be left out)."""
        for keyword in node.keywords:
            raise self.fail(keyword, f"{name}() takes no keywords", f"write {name}({signature})")
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                raise self.fail(arg, "`*` arguments are not part of kernels", f"write {name}({signature})")
        most = len(signature.split(", ")) if signature else 0
        if not most - optional <= len(node.args) <= most:
            least = ", ".join(signature.split(", ")[: most - optional])
            count = f"{most - optional} or {most}" if optional else f"{most}"
            forms = f"{name}({least}) or {name}({signature})" if optional else f"{name}({signature})"
            many = "s" * (most != 1)
            raise self.fail(node, f"{name}() takes {count} argument{many}, not {len(node.args)}", f"write {forms}")
        return node.args

    def cast(self, t: DataType, arg: ast.expr, node: Place) -> Typed:
        return self.converted(self.scalar(arg), t, arg, node)

    def converted(self, value: Scalar, t: DataType, arg: ast.expr, node: Place) -> Typed:
        if isinstance(value, Const):
            return Typed(self.literal(self._converted(value.value, t, node), t, node), t)
        steps = cast_steps(value.dtype, t)
        if rounds_twice(value.dtype, t):
            fix = f"say so: {t}(f32({show(arg)}))"
            raise self.fail(node, f"from {value.dtype} to {t} the value would be rounded twice", fix)
        expr = value.expr
        for k, step in enumerate(steps):
            if k and step.is_narrow and value.dtype.is_float:  # a word by now, which would wrap
                expr = _clamped(expr, step)
            expr = Cast(step, expr)
        return Typed(expr, t)

    def _converted(self, number: Number, t: DataType, node: Place) -> Number:
        """A number known while compiling, as an explicit conversion gives it."""
        if t == bool_:
            return bool(number)
        if t.is_float:
            return float(number) if isinstance(number, bool) else number
        if isinstance(number, float):
            if not math.isfinite(number):
                raise self.fail(node, f"{number!r} does not fit {t}", "convert a finite number")
            return int(number)
        return int(number)

    def _abs(self, arg: ast.expr, node: ast.Call) -> Scalar:
        whole = self.operand(arg)
        if isinstance(whole, Group) and whole.of is not None and whole.of.is_complex:
            real, imag = self.numbers_of(whole)
            return self.checked(BinOp(BinaryOp.HYPOT, real.expr, imag.expr), (f32, f32), node)
        if isinstance(whole, Group):
            raise self.fail(arg, *several(whole, show(arg)))
        value: Scalar = whole
        if isinstance(value, Const):
            return Const(abs(value.value))
        self.refuse_narrow(value.dtype, node, arg, "abs()")
        if value.dtype.is_int and not value.dtype.is_signed:
            match arg:
                case ast.BinOp(left, ast.Sub(), right):
                    what = f"abs() of a difference of {value.dtype}, which is never below zero"
                    raise self.fail(node, what, f"write abs_diff({show(left)}, {show(right)})")
            return value
        if value.dtype.is_int:
            value = self.once(value)
            return Typed(Select(value.expr < 0, -value.expr, value.expr), value.dtype)
        return self.checked(UnOp(UnaryOp.ABS, value.expr), (value.dtype,), node, operand=arg)

    def _extreme(self, op: BinaryOp, node: ast.Call) -> Scalar:
        if len(node.args) == 1 and isinstance(node.args[0], ast.Name) and not node.keywords:
            fix = f"write {op.text}(a, b); of a buffer, compare its elements in a for loop"
            raise self.fail(node, f"{op.text}() takes 2 arguments, not 1", fix)
        nodes = self.arguments(node, op.text, "a, b") if len(node.args) < 2 or node.keywords else node.args
        values = self.scalars(*nodes)
        known = [v.value for v in values if isinstance(v, Const) and not isinstance(v.value, bool)]
        if len(known) == len(values):
            return self._known_extreme(op, known, node)
        (first, *rest), t = self.alike(values, list(nodes), node, f"{op.text}()")
        for at in nodes if t == u32 and any(map(is_zero, nodes)) else ():
            match at:
                case ast.BinOp(left, ast.Sub(), right):
                    fix = f"write saturating_sub({show(left)}, {show(right)}), or subtract as i32"
                    raise self.fail(node, f"{op.text}() of a difference of u32 and 0: u32 is never below zero", fix)
        self.refuse_narrow(t, node, nodes[0], f"{op.text}()")
        result = Typed(first, t)
        for k, expr in enumerate(rest, 1):
            result = self.checked(BinOp(op, result.expr, expr), (t, t), node)
            if k % LONG_CHAIN == 0 and k < len(rest):
                result = self.keep(result)
        return result

    def _known_extreme(self, op: BinaryOp, numbers: list[int | float], node: ast.Call) -> Const:
        """Of numbers known while compiling. Floats go through the operator: Python loses NaN and the sign of zero."""
        if all(isinstance(n, int) for n in numbers):
            return Const(min(numbers) if op is BinaryOp.MIN else max(numbers))
        try:
            return Const(reduce(binary(op, f64), map(float, numbers)))
        except OverflowError:
            raise self.fail(
                node, f"{op.text}() of floats and a whole number beyond them", "use smaller numbers"
            ) from None

    def _intrinsic(self, fn: Intrinsic, node: ast.Call) -> Result:
        args = self.arguments(node, fn.name, fn.signature, optional=fn.name == "trap")
        if fn.name in OF_SMALL:
            return self.of_small(fn, args, node)
        match fn.op:
            case UnaryOp() as op:
                float_rule = op.is_function or op.rule in ("float", "float_test")
                value = self.typed(self.scalar(args[0]), args[0], f32 if float_rule else None)
                return self.checked(UnOp(op, value.expr), (value.dtype,), node, operand=args[0])
            case BinaryOp() as op:
                a, b = self.scalars(*args)
                if op.rule == "shift":
                    return self._shift(op, a, b, node, args[0], args[1])
                if op.rule == "scale":
                    x, n = self.typed(a, args[0], f32), self.typed(b, args[1], i32)
                    types = (x.dtype, n.dtype)
                    return self.checked(BinOp(op, x.expr, n.expr), types, node, left=args[0], right=args[1])
                if op.is_function and isinstance(a, Const) and isinstance(b, Const):
                    a = self.typed(a, args[0], f32)
                (left, right), t = self.alike([a, b], args, node, f"{fn.name}()")
                return self.checked(BinOp(op, left, right), (t, t), node, left=args[0], right=args[1])
            case ReduceOp() as each:
                value = self.typed(self.scalar(args[0]), args[0])
                return self.checked(SubgroupReduce(each, value.expr), (value.dtype,), node, value=args[0])
            case AtomicOp() as atomic:
                return self._atomic(fn, atomic, args, node)
        return self._special(fn, args, node)

    def _atomic(self, fn: Intrinsic, op: AtomicOp, args: list[ast.expr], node: ast.Call) -> Typed:
        hint, self.hint = self.hint, ""  # the atomic's local becomes the name it is assigned to
        buffer = self.buffer(args[0])
        if not isinstance(buffer, Buffer) or buffer.decl.is_own:
            what = buffer.element if not isinstance(buffer, Buffer | LocalArray) else ""
            fix = "use buffers of numbers" if what else "write x[i] += value: no other invocation sees it"
            raise self.fail(args[0], f"{fn.name}() on {f'an array of {what}' if what else 'a local array'}", fix)
        t = buffer.element
        if t.is_float and op is AtomicOp.ADD:
            raise self.fail(
                args[0],
                f"{fn.name}() on a buffer of {t}, whose sum would depend on the order",
                "declare it InOut[u32] or InOut[i32], and add i32(round(v * 65536.0)); or sort by element, and let one "
                "invocation add each run (how-to: add floats in parallel)",
            )
        if t.name not in ("u32", "i32"):
            raise self.fail(args[0], f"{fn.name}() on a buffer of {t}", "declare the buffer InOut[u32] or InOut[i32]")
        if buffer.decl.access not in (Access.READ_WRITE, Access.WORKGROUP):
            raise self.fail(
                args[0], f"`{buffer.name}` cannot be read and written", f"declare it InOut[{t}] for {fn.name}()"
            )
        nodes = self.axes(buffer, args[1], args[1])
        found = self.scalars(*nodes, *args[2:])
        index, rest = self.index(buffer, found[: len(nodes)], nodes), found[len(nodes) :]
        exprs = [self.fit(v, t, n, f"`{buffer.name}`") for v, n in zip(rest, args[2:], strict=True)]
        value, expected = exprs[-1], exprs[0] if len(exprs) == 2 else None
        if fn.name == "atomic_sub":
            value = Lit(t, -value.bits & 0xFFFFFFFF) if isinstance(value, Lit) else lit(0, t) - value
        self.effects += 1
        old = self.b.atomic(op, buffer, index, value, expected, name=hint or "old")
        self.temporaries.add(old.name)
        return Typed(old, t)

    def _special(self, fn: Intrinsic, args: list[ast.expr], node: ast.Call) -> Result:
        match fn.name:
            case "barrier" | "grid_sync":
                self.effects += 1
                getattr(self.b, fn.name)()
                return Nothing(f"{fn.name}()")
            case "trap":
                return self._trap(args)
            case "select":
                chosen, *arms = self.operands(*args)
                if isinstance(chosen, Group):
                    raise self.fail(args[0], *several(chosen, show(args[0])))
                if isinstance(chosen, Const):
                    chosen = Typed(lit(bool(chosen.value)), bool_)
                if chosen.dtype not in (bool_, u32):
                    raise self.fail(args[0], f"the condition is {chosen.dtype}", f"write {show(args[0])} != 0")
                if any(isinstance(arm, Group) for arm in arms):
                    return self.group_choice([chosen.expr], arms, args[1:], node)
                scalars = [arm for arm in arms if not isinstance(arm, Group)]
                return self.choice([chosen.expr], scalars, args[1:], node)
            case "fma":
                scalars = self.scalars(*args)
                t = next((v.dtype for v in scalars if isinstance(v, Typed) and v.dtype.is_float), f32)
                a, b, c = (self.typed(v, n, t) for v, n in zip(scalars, args, strict=True))
                types = (a.dtype, b.dtype, c.dtype)
                return self.checked(Fma(a.expr, b.expr, c.expr), types, node, a=args[0], b=args[1], c=args[2])
            case "bitcast":
                target = self.dtype(args[0])
                value = self.typed(self.scalar(args[1]), args[1])
                return self.checked(Bitcast(target, value.expr), (value.dtype,), node)
            case "subgroup_shuffle":
                given, where = self.scalars(*args)
                value, lane = self.typed(given, args[0]), self.typed(where, args[1], u32)
                return self.checked(
                    SubgroupShuffle(value.expr, lane.expr), (value.dtype, lane.dtype), node, value=args[0], lane=args[1]
                )
            case "subgroup_ballot":
                return Typed(SubgroupBallot(self.as_bool(self.truth(args[0]))), u32)
            case "subgroup_local_id":
                return Typed(SubgroupLocalId(), u32)
            case "subgroup_size":
                return Typed(SubgroupSize(), u32)
            case "shared" | "local":
                fix = f"assign it to a name: tile = {fn.name}(f32, 256)"
                raise self.fail(node, f"{fn.name}() does not stand alone", fix)
        raise self.fail(node, f"{fn.name}() belongs in a for statement", f"write for i in {fn.name}(n):")

    def _trap(self, args: list[ast.expr]) -> Nothing:
        if not (isinstance(args[0], ast.Constant) and isinstance(args[0].value, str)):
            raise self.fail(args[0], "the tag of a trap is not a string", 'write trap("what went wrong")')
        address: Expr = lit(0, u32)
        if len(args) > 1:
            address = self.fit(self.scalar(args[1]), u32, args[1], "the address of a trap")
        self.effects += 1
        self.b.trap(args[0].value, address)
        return Nothing("trap()")


def cast_steps(source: DataType, target: DataType) -> list[DataType]:
    """The conversions that lead from one type to another: through the word that holds a narrow integer, through f32
    for the half floats."""
    if source == target:
        return []
    if can_cast(source, target):
        return [target]
    middle = _middle(source)
    if middle is not None:
        return [middle, *cast_steps(middle, target)]
    middle = _middle(target)
    assert middle is not None, "the other types convert to each other"
    return [*cast_steps(source, middle), target]


def rounds_twice(source: DataType, target: DataType) -> bool:
    """Whether the way through f32 may differ from one rounding.

    Integers to f16 round once: below 2^24 f32 holds them all, and from 65520 on both ways give infinity. Integers of 16
    bits and the other half floats are values of f32.
    """
    if target.name == "bf16":
        return source.name in ("f64", "u32", "i32", "u64", "i64")
    return target.name == "f16" and source.name == "f64"


def _is_whole(expr: Expr) -> bool:
    return expr.type_hint is not None and expr.type_hint.is_int


def _clamped(word: Expr, t: DataType) -> Expr:
    """A word that came from a float, at most as far out as `t` reaches."""
    low, high = t.limits
    below = BinOp(BinaryOp.MIN, word, lit(high, i32 if low else u32))
    return BinOp(BinaryOp.MAX, below, lit(low, i32)) if low else below


def _middle(t: DataType) -> DataType | None:
    if t.is_narrow:
        return i32 if t.is_signed else u32
    return f32 if t.name in ("f16", "bf16") else None


def _unknown_call(what: object, name: str) -> tuple[str, str]:
    if isinstance(what, Ids):
        return f"`{name}` is not called", f"write {name}.x, {name}.y or {name}.z"
    short = name.rpartition(".")[2]
    word = FOREIGN_FUNCTIONS.get(short, short)
    if isinstance(what, type | BuiltinFunctionType) and what in BUILTIN_FIXES:
        return f"{name}() is not part of kernels", BUILTIN_FIXES[what]
    if isinstance(what, type) and what.__name__ in FOREIGN_TYPES:
        return f"`{name}` is not a type of kernels", f"write {FOREIGN_TYPES[what.__name__]}(x)"
    if isinstance(getattr(lang, word, None), Intrinsic):
        return f"`{name}` is not the kernel's own {word}", f"call vyre.{word}"
    if word in ("abs", "max", "min"):
        return f"`{name}` is not the kernel's own {word}", f"use Python's {word}"
    if isinstance(getattr(what, "_source", None), FunctionSource):
        return f"`{name}` is a kernel, and kernels cannot call kernels", "make a @vyre.device function that both call"
    fix = foreign_fix(name)
    if fix is not None:
        return f"`{name}` is not part of kernels", fix
    if isinstance(what, FunctionType) and not (what.__module__ or "").startswith("numpy"):
        return f"`{name}` cannot be called in a kernel", "decorate it with @vyre.device, or use the functions of vyre"
    return f"`{name}` cannot be called in a kernel", "use the functions of vyre, or compute it before the kernel"
