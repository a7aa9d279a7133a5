"""Expressions and statements, as frozen values.

Construction does not validate; `validate(program)` does, once, and returns every finding. `==` is structural;
comparisons in the IR are `a.eq(b)`, `a.ne(b)`, `a < b`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from numbers import Integral, Real
from typing import NoReturn

from ...errors import IRTypeError, IRValueError
from .dtypes import DataType, bool_, f16, f32, f64, i32, u32
from .ops import AtomicOp, BinaryOp, CollectiveOp, OpaqueOp, Ordering, ReduceOp, UnaryOp
from .rounding import f32_to_bits, round_bf16, round_f16, to_odd
from .value import Value, field

NUMPY_BOOLS = (("numpy", "bool"), ("numpy", "bool_"))
"""NumPy's own bool is not registered as a number."""
_UNLIKE = {"float_test": bool_, "logic": bool_, "unpack": u32, "exponent": i32}
"""What operators of these rules give, whatever their operand is; the others give its type."""

# ---- expressions ----------------------------------------------------------------------------------------------------


class Expr(Value):
    """A value computed by one invocation. Evaluation is eager, left to right, depth first."""

    _hint: DataType | None = field(init=False)

    @property
    def type_hint(self) -> DataType | None:
        """The type as far as it is known without the program (names carry it only when their maker told them)."""
        chain: list[Expr] = []
        hint: DataType | None = None
        e: Expr | None = self
        while e is not None:
            try:
                hint = e._hint
                break
            except AttributeError:
                chain.append(e)
            decided, e = e._type_from()
            hint = decided
        for item in chain:
            object.__setattr__(item, "_hint", hint)
        return hint

    def _type_from(self) -> tuple[DataType | None, Expr | None]:
        """The type, or the operand that has the same one."""
        match self:
            case Lit(dtype=t) | Cast(target=t) | Bitcast(target=t) | Var(dtype=t) | Load(dtype=t) | Atomic(dtype=t):
                return t, None
            case BinOp(op=BinaryOp() as op, left=left, right=right):
                if op.rule in ("compare", "logic"):
                    return bool_, None
                return None, right if isinstance(left, Var | Load) and left.dtype is None else left
            case UnOp(op=UnaryOp() as op, operand=x):
                t = _UNLIKE.get(op.rule)
                return (None, x) if t is None else (t, None)
            case Select(on_true=x) | SubgroupReduce(value=x) | SubgroupShuffle(value=x) | Fma(a=x):
                return None, x
            case Call() | Opaque() | BufferRef() | BinOp() | UnOp():
                return None, None
            case _:
                return u32, None  # ids, lengths, ballots

    def type_in(self, names: Mapping[str, DataType], elements: Mapping[str, DataType]) -> DataType | None:
        """The type in a valid program, whose locals and buffers have these types."""
        e: Expr | None = self
        found: DataType | None = None
        while e is not None:
            if isinstance(e, Var):
                return names.get(e.name)
            if isinstance(e, Load | Atomic):
                return elements.get(e.buffer)
            found, e = e._type_from()
        return found

    def _bin(self, op: BinaryOp, other: Operand, swap: bool = False) -> BinOp:
        right = lift(other, like=self)
        t = self.type_hint or right.type_hint
        if op is BinaryOp.MOD and t is not None and t.is_float:
            op = BinaryOp.FMOD
        return BinOp(op, right, self) if swap else BinOp(op, self, right)

    def __add__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.ADD, other)

    def __radd__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.ADD, other, swap=True)

    def __sub__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.SUB, other)

    def __rsub__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.SUB, other, swap=True)

    def __mul__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.MUL, other)

    def __rmul__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.MUL, other, swap=True)

    def _divide(self, other: Operand, whole: bool, swap: bool = False) -> BinOp:
        t = self.type_hint or lift(other, like=self).type_hint
        if t is not None and t.is_float == whole:
            used, wanted = ("//", "/") if whole else ("/", "//")
            raise IRTypeError(f"{used} does not divide {t.name} values", fix=f"write {wanted}")
        return self._bin(BinaryOp.DIV, other, swap)

    def __truediv__(self, other: Operand) -> BinOp:
        return self._divide(other, whole=False)

    def __rtruediv__(self, other: Operand) -> BinOp:
        return self._divide(other, whole=False, swap=True)

    def __floordiv__(self, other: Operand) -> BinOp:
        return self._divide(other, whole=True)

    def __rfloordiv__(self, other: Operand) -> BinOp:
        return self._divide(other, whole=True, swap=True)

    def __mod__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.MOD, other)

    def __rmod__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.MOD, other, swap=True)

    def __pow__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.POW, other)

    def __rpow__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.POW, other, swap=True)

    def __and__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_AND, other)

    def __rand__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_AND, other, swap=True)

    def __or__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_OR, other)

    def __ror__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_OR, other, swap=True)

    def __xor__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_XOR, other)

    def __rxor__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.BIT_XOR, other, swap=True)

    def __lshift__(self, other: Operand) -> BinOp:
        return BinOp(BinaryOp.SHL, self, lift(other))

    def __rlshift__(self, other: Operand) -> BinOp:
        return BinOp(BinaryOp.SHL, lift(other), self)

    def __rshift__(self, other: Operand) -> BinOp:
        return BinOp(BinaryOp.SHR, self, lift(other))

    def __rrshift__(self, other: Operand) -> BinOp:
        return BinOp(BinaryOp.SHR, lift(other), self)

    def __lt__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.LT, other)

    def __le__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.LE, other)

    def __gt__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.GT, other)

    def __ge__(self, other: Operand) -> BinOp:
        return self._bin(BinaryOp.GE, other)

    def eq(self, other: Operand) -> BinOp:
        """`==` in the IR (Python's `==` compares structure)."""
        return self._bin(BinaryOp.EQ, other)

    def ne(self, other: Operand) -> BinOp:
        """`!=` in the IR."""
        return self._bin(BinaryOp.NE, other)

    def __neg__(self) -> UnOp:
        return UnOp(UnaryOp.NEGATE, self)

    def __invert__(self) -> UnOp:
        return UnOp(UnaryOp.BIT_NOT, self)

    def cast(self, target: DataType) -> Cast:
        return Cast(target, self)

    def __bool__(self) -> NoReturn:
        raise IRTypeError(
            "an expression has no truth value while the program is being built",
            fix="use If or select; Python's `and`, `or`, `not` and chained comparisons cannot be traced",
        )


Operand = Expr | int | float | bool


class Lit(Expr):
    """A literal, as the bits of its type. `lit(value, dtype)` builds one from a Python number."""

    dtype: DataType
    bits: int

    @property
    def value(self) -> int | float | bool:
        """The Python number."""
        match self.dtype.name:
            case "bool":
                return bool(self.bits)
            case "f32":
                return float(struct.unpack("<f", struct.pack("<I", self.bits))[0])
            case "f64":
                return float(struct.unpack("<d", struct.pack("<Q", self.bits))[0])
            case _:
                sign = self.dtype.is_signed and self.bits >> (self.dtype.bits or 0) - 1
                return self.bits - (1 << (self.dtype.bits or 0)) if sign else self.bits


class Var(Expr):
    """A local by name. `dtype` is a hint for builders, not part of the value."""

    name: str
    dtype: DataType | None = field(default=None, kw_only=True, compare=False)


class Load(Expr):
    """`buffer[index]`; zero beyond the end."""

    buffer: str
    index: Expr
    dtype: DataType | None = field(default=None, kw_only=True, compare=False)


class BufLen(Expr):
    """Elements in a buffer at this dispatch."""

    buffer: str


class InvocationId(Expr):
    """Global id along an axis."""

    axis: int


class WorkgroupId(Expr):
    axis: int


class LocalId(Expr):
    axis: int


class BinOp(Expr):
    op: BinaryOp | OpaqueOp
    left: Expr
    right: Expr


class UnOp(Expr):
    op: UnaryOp | OpaqueOp
    operand: Expr


class Call(Expr):
    """An operation by id; carried, and inlined before dispatch by a library that knows it."""

    op_id: str
    args: tuple[Expr, ...]


class Select(Expr):
    """All three operands are evaluated."""

    condition: Expr
    on_true: Expr
    on_false: Expr


class Cast(Expr):
    target: DataType
    value: Expr


class Bitcast(Expr):
    """The same bits read as another type of that width; those of an f32, and of any NaN, are canonical."""

    target: DataType
    value: Expr


class Atomic(Expr):
    """Read-modify-write; the value is what was there before."""

    op: AtomicOp | OpaqueOp
    buffer: str
    index: Expr
    value: Expr
    expected: Expr | None = None
    ordering: Ordering = Ordering.SEQ_CST
    dtype: DataType | None = field(default=None, kw_only=True, compare=False)


class Fma(Expr):
    """`a * b + c` with one rounding."""

    a: Expr
    b: Expr
    c: Expr


class SubgroupReduce(Expr):
    op: ReduceOp
    value: Expr


class SubgroupShuffle(Expr):
    value: Expr
    lane: Expr


class SubgroupBallot(Expr):
    condition: Expr


class SubgroupLocalId(Expr):
    """Lane within the logical subgroup of 32."""


class SubgroupSize(Expr):
    """Always 32."""


class BufferRef(Expr):
    """A buffer handed to a call; not a value."""

    buffer: str


class Opaque(Expr):
    """An expression of an extension: carried without loss, refused at validation."""

    kind: str
    payload: bytes


# ---- statements -----------------------------------------------------------------------------------------------------


class Span(Value):
    """Where a statement came from."""

    file: str
    line: int
    column: int = 0
    end_column: int | None = None
    text: str = ""


class Node(Value):
    """A statement. `span` is its source; neither equality nor the wire form sees it."""

    span: Span | None = field(default=None, kw_only=True, compare=False)


class Let(Node):
    """A new mutable local, visible to the end of its sequence."""

    name: str
    value: Expr


class Assign(Node):
    name: str
    value: Expr


class Store(Node):
    buffer: str
    index: Expr
    value: Expr


class If(Node):
    condition: Expr
    then: tuple[Node, ...]
    orelse: tuple[Node, ...] = ()


class Loop(Node):
    """`var` runs from `start` to `stop` - 1; both are evaluated once."""

    var: str
    start: Expr
    stop: Expr
    body: tuple[Node, ...]


class Return(Node):
    """Ends the invocation."""


class Block(Node):
    body: tuple[Node, ...]


class Barrier(Node):
    ordering: Ordering = Ordering.SEQ_CST


class IndirectDispatch(Node):
    """The grid is three u32 words in `count_buffer` at byte `count_offset`."""

    count_buffer: str
    count_offset: int


class AsyncLoad(Node):
    """Source bytes [offset, offset + size) to destination byte 0, visible after the wait."""

    source: str
    destination: str
    offset: Expr
    size: Expr
    tag: str


class AsyncStore(Node):
    """Source bytes [0, size) to destination byte `offset`, visible after the wait."""

    source: str
    destination: str
    offset: Expr
    size: Expr
    tag: str


class AsyncWait(Node):
    tag: str


class Region(Node):
    """A named scope."""

    generator: str
    body: tuple[Node, ...]
    source_region: str | None = None


ASSERTED = "assertion failed: "
"""Begins the tag of a trap that an `assert` made; its address is the number of that assert."""


class Trap(Node):
    """Aborts the whole dispatch."""

    address: Expr
    tag: str


class AllReduce(Node):
    buffer: str
    op: CollectiveOp
    group: int


class AllGather(Node):
    source: str
    destination: str
    group: int


class ReduceScatter(Node):
    source: str
    destination: str
    op: CollectiveOp
    group: int


class Broadcast(Node):
    buffer: str
    root: int
    group: int


class OpaqueNode(Node):
    """A statement of an extension: carried without loss, refused at validation."""

    kind: str
    payload: bytes


# ---- literals -------------------------------------------------------------------------------------------------------


def lit(value: int | float | bool, dtype: DataType | None = None) -> Expr:
    """A literal of `dtype` (by default u32, f32 or bool after the Python type).

    Negative zero becomes `-(0.0)` and an f32 subnormal becomes zero of its sign, because the wire form has neither;
    narrow types become a cast of a word.
    """
    number = plain_number(value)
    if number is None:
        kind = "" if dtype is None else f" of type {dtype.name}"
        raise IRTypeError(f"a {type(value).__name__} is not a number{kind}", fix="write an integer or a float")
    value = number
    if dtype is None:
        dtype = bool_ if isinstance(value, bool) else f32 if isinstance(value, float) else u32 if value >= 0 else i32
    if dtype.is_float:
        return _float_lit(value, dtype)
    if not isinstance(value, int):
        raise IRTypeError(f"{value!r} is not a {dtype.name} literal", fix="write an integer")
    if dtype.name == "bool":
        return Lit(bool_, int(bool(value)))
    if not dtype.is_int:
        raise IRTypeError(f"{dtype.name} has no literals", fix="use a number type")
    low, high = dtype.limits
    if not low <= value <= high:
        raise IRValueError(
            f"{show_number(value)} does not fit {dtype.name}", fix=f"use a value from {low} to {high}, or a wider type"
        )
    if dtype.is_narrow:
        return Cast(dtype, lit(int(value), i32 if dtype.is_signed else u32))
    return Lit(dtype, int(value) & (1 << (dtype.bits or 0)) - 1)


def plain_number(value: object) -> int | float | bool | None:
    """A number of Python's own types, also for one of NumPy's or another library's; None for anything else."""
    if type(value) is int or type(value) is float:
        return value
    if isinstance(value, bool) or (type(value).__module__, type(value).__name__) in NUMPY_BOOLS:
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:  # a fraction
            return None
    return None


def _float_lit(value: int | float | bool, dtype: DataType) -> Expr:
    try:
        number = float(value) if dtype == f64 or isinstance(value, float) else to_odd(value)
    except OverflowError:
        raise IRValueError(
            f"{show_number(value)} does not fit {dtype.name}", fix="use a smaller number, or inf"
        ) from None
    if dtype == f64:
        return Lit(f64, struct.unpack("<Q", struct.pack("<d", number))[0])
    if dtype != f32:  # rounded here, so that the cast finds a value that it keeps: two roundings could differ
        return Cast(dtype, _float_lit(round_f16(number) if dtype == f16 else round_bf16(number), f32))
    bits = f32_to_bits(number)
    return UnOp(UnaryOp.NEGATE, Lit(f32, 0)) if bits == 0x80000000 else Lit(f32, bits)


def f32_bits(number: float) -> int:
    """Canonical f32 bits of a Python number: rounded once, NaN 0x7FC00000, subnormals to zero of their sign."""
    return f32_to_bits(number)


def show_number(number: int | float) -> str:
    """A number in a message: short, and safe where Python refuses to print that many digits."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"{'-' if number < 0 else ''}(about 2**{number.bit_length() - 1})"
    return repr(number)


def lift(value: Operand, like: Expr | None = None) -> Expr:
    """An expression as it is; a Python number as a literal of the other operand's type."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, int | float):
        raise IRTypeError(f"{value!r} is not an expression", fix="use an expression or a Python number")
    t = like.type_hint if like is not None else None
    if isinstance(value, bool) or t == bool_:
        t = None if isinstance(value, bool) else t
    elif isinstance(value, float) and t is not None and not t.is_float:
        raise IRTypeError(
            f"{value!r} meets a {t.name} value", fix=f"convert one side: f32(x), or an integer literal for {t.name}"
        )
    return lit(value, t)
