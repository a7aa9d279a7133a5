"""The names of the kernel language.

In a kernel the compiler reads them from the source. Outside one, those that compute a value from values build an IR
expression from expressions (`sqrt(x)` is `UnOp(UnaryOp.SQRT, x)`), which is what generators use; the others refuse.

Where kernels differ from Python: integers wrap at their width, `//` and `%` of negative numbers round toward zero, and
`and`, `or`, `a < b < c`, `x if c else y` evaluate everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ...errors import ArgumentTypeError, ArgumentValueError
from ..ir.dtypes import SIMPLE, DataType, bool_, i32, u32
from ..ir.nodes import (
    BinOp,
    Bitcast,
    Expr,
    Fma,
    InvocationId,
    LocalId,
    Operand,
    Select,
    SubgroupBallot,
    SubgroupLocalId,
    SubgroupReduce,
    SubgroupShuffle,
    SubgroupSize,
    UnOp,
    WorkgroupId,
    lift,
    lit,
)
from ..ir.ops import AtomicOp, BinaryOp, ReduceOp, UnaryOp
from ..ir.value import Value
from .refused_syntax import FOREIGN_TYPES
from .small.vectors import c64, vec2, vec3, vec4

if TYPE_CHECKING:
    from .small.types import SmallType
    from .source import FunctionSource

# ---- parameters -----------------------------------------------------------------------------------------------------


class Annotation(Value):
    """What `In[f32]`, `Out[u32, 4]` or `In[f32, D2]` says about a parameter. Count 0 means: sized at dispatch, rank 0:
    one index for an array of any shape."""

    role: str
    element: DataType
    count: int = 0
    small: SmallType | None = None
    generic: str = ""
    """The compile-time parameter that says the element type, where the annotation leaves that open."""
    rank: int = 0

    def __repr__(self) -> str:
        name = {"inout": "InOut"}.get(self.role, self.role.capitalize())
        what = self.generic or self.small or self.element
        more = f", D{self.rank}" if self.rank else f", {self.count}" if self.count else ""
        return f"{name}[{what}{more}]"


class Rank:
    """`D1` to `D4`: how many axes a buffer has, and so how many indices an element."""

    def __init__(self, axes: int) -> None:
        self.axes = axes

    def __repr__(self) -> str:
        return f"D{self.axes}"


D1, D2, D3, D4 = Rank(1), Rank(2), Rank(3), Rank(4)


class Role:
    """`In`, `Out`, `InOut`, `Uniform`: subscripted with an element type and, where it has one, a fixed count or a rank.

    The count is an `int`; `Literal[4]` says the same in a form that type checkers accept.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: object) -> Annotation:
        element, count = item if isinstance(item, tuple) and len(item) == 2 else (item, 0)
        from .small.types import element_of, small_type

        generic = element.__name__ if isinstance(element, TypeVar) else ""
        element = u32 if generic else element
        small = small_type(element)
        t = element_type(element) if small is None else element_of(small)
        if t is None:
            ours = FOREIGN_TYPES.get(getattr(element, "__name__", ""), "f32")
            raise ArgumentTypeError(
                f"{self.name}[...] does not name an element type",
                fix=f"write {self.name}[{ours}], or {self.name}[{ours}, 4] where the length is fixed",
            )
        if isinstance(count, Rank):
            if self.name == "Uniform":
                raise ArgumentTypeError(
                    f"Uniform[{t}, {count}] has a rank and no fixed length",
                    fix=f"write In[{t}, {count}], or Uniform[{t}, 16] and compute one index",
                )
            if small is not None:
                raise ArgumentTypeError(
                    f"{self.name}[{small}, {count}] has small values, whose rows are counted with one index",
                    fix=f"write {self.name}[{small}], or a buffer of numbers with a rank",
                )
            return Annotation(self.name.lower(), t, 0, None, generic, count.axes)
        literal: tuple[object, ...] = getattr(count, "__args__", (count,))  # of Literal[4]
        n = literal[0]
        if isinstance(n, bool) or not isinstance(n, int):
            raise ArgumentTypeError(
                f"the count of {self.name}[...] is not a number",
                fix="write a whole number, or D1, D2, D3 or D4 for the number of axes",
            )
        if not (n > 0 or (n == 0 and not isinstance(item, tuple))):
            raise ArgumentValueError(
                f"the count of {self.name}[...] is not positive", fix="leave it out to size the buffer at dispatch"
            )
        return Annotation(self.name.lower(), t, n, small, generic)

    def __repr__(self) -> str:
        return self.name


def element_type(item: object) -> DataType | None:
    """The live type that an annotation names; Python's `bool` is ours too."""
    if item is bool:
        return bool_
    return item if isinstance(item, DataType) and item.live else None


class Marker:
    """A name that only means something as an annotation."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


In, Out, InOut, Uniform = Role("In"), Role("Out"), Role("InOut"), Role("Uniform")
const = Marker("const")
"""`*, N: const = 1024`: a compile-time parameter, one compiled program per value."""
ANNOTATIONS: dict[str, object] = {
    "In": In, "Out": Out, "InOut": InOut, "Uniform": Uniform, "const": const, "bool_": bool_,
    "vec2": vec2, "vec3": vec3, "vec4": vec4, "c64": c64,
    "D1": D1, "D2": D2, "D3": D3, "D4": D4,
    **{t.name: t for t in SIMPLE.values() if t.live and t != bool_},
}  # fmt: skip
"""Names for annotations whose text is evaluated after the names of their surroundings are gone."""


# ---- functions ------------------------------------------------------------------------------------------------------

Op = UnaryOp | BinaryOp | ReduceOp | AtomicOp


class Intrinsic:
    """A function of the language. `signature` is what a call looks like; `op` the operator behind it, if it is one."""

    def __init__(
        self, name: str, signature: str, op: Op | None = None, build: Callable[..., Expr] | None = None
    ) -> None:
        self.name, self.signature, self.op, self._build = name, signature, op, build

    @property
    def arity(self) -> int:
        return len(self.signature.split(", ")) if self.signature else 0

    def __call__(self, *args: Any) -> Any:
        """The IR expression, outside kernels."""
        if self._build is None or (args and not any(isinstance(a, Expr) for a in args)):
            raise ArgumentTypeError(
                f"{self.name}() works inside kernels", fix="call it in a function decorated with @vyre.kernel"
            )
        if len(args) != self.arity:
            raise ArgumentTypeError(
                f"{self.name}() takes {self.arity} arguments, not {len(args)}",
                fix=f"write {self.name}({self.signature})",
            )
        return self._build(*args)

    def __repr__(self) -> str:
        return f"vyre.{self.name}"


def _alike(*values: Operand) -> list[Expr]:
    """Numbers become literals of the type that the expressions among `values` have."""
    like = next((v for v in values if isinstance(v, Expr) and v.type_hint is not None), None)
    return [lift(v, like=like) for v in values]


def _unary(op: UnaryOp) -> Intrinsic:
    return Intrinsic(op.text, "x", op, lambda x: UnOp(op, lift(x)))


def _binary(op: BinaryOp, signature: str = "a, b") -> Intrinsic:
    if op.rule == "shift":
        return Intrinsic(op.text, "x, amount", op, lambda x, n: BinOp(op, lift(x), lift(n)))
    return Intrinsic(op.text, signature, op, lambda a, b: BinOp(op, *_alike(a, b)))


def _i32(n: Operand) -> Expr:
    return n if isinstance(n, Expr) else lit(n, i32)


def _reduce(op: ReduceOp) -> Intrinsic:
    return Intrinsic(f"subgroup_{op.text}", "x", op, lambda x: SubgroupReduce(op, lift(x)))


def _atomic(op: AtomicOp, name: str = "") -> Intrinsic:
    cas = op is AtomicOp.COMPARE_EXCHANGE
    return Intrinsic(name or op.text, "buf, i, expected, value" if cas else "buf, i, value", op)


cos, sin, tan = _unary(UnaryOp.COS), _unary(UnaryOp.SIN), _unary(UnaryOp.TAN)
acos, asin, atan = _unary(UnaryOp.ACOS), _unary(UnaryOp.ASIN), _unary(UnaryOp.ATAN)
cosh, sinh, tanh = _unary(UnaryOp.COSH), _unary(UnaryOp.SINH), _unary(UnaryOp.TANH)
exp, exp2, log, log2 = _unary(UnaryOp.EXP), _unary(UnaryOp.EXP2), _unary(UnaryOp.LOG), _unary(UnaryOp.LOG2)
log1p, expm1, log10, exp10 = _unary(UnaryOp.LOG1P), _unary(UnaryOp.EXPM1), _unary(UnaryOp.LOG10), _unary(UnaryOp.EXP10)
cbrt = _unary(UnaryOp.CBRT)
erf, erfc = _unary(UnaryOp.ERF), _unary(UnaryOp.ERFC)
asinh, acosh, atanh = _unary(UnaryOp.ASINH), _unary(UnaryOp.ACOSH), _unary(UnaryOp.ATANH)
sinpi, cospi, tanpi = _unary(UnaryOp.SINPI), _unary(UnaryOp.COSPI), _unary(UnaryOp.TANPI)
sqrt, inverse_sqrt, reciprocal = _unary(UnaryOp.SQRT), _unary(UnaryOp.INVERSE_SQRT), _unary(UnaryOp.RECIPROCAL)
floor, ceil, trunc, sign = _unary(UnaryOp.FLOOR), _unary(UnaryOp.CEIL), _unary(UnaryOp.TRUNC), _unary(UnaryOp.SIGN)
round = _unary(UnaryOp.ROUND)
is_nan, is_inf, is_finite = _unary(UnaryOp.IS_NAN), _unary(UnaryOp.IS_INF), _unary(UnaryOp.IS_FINITE)
popcount, clz, ctz = _unary(UnaryOp.POPCOUNT), _unary(UnaryOp.CLZ), _unary(UnaryOp.CTZ)
reverse_bits = _unary(UnaryOp.REVERSE_BITS)

rotate_left, rotate_right = _binary(BinaryOp.ROTATE_LEFT), _binary(BinaryOp.ROTATE_RIGHT)
mul_high, abs_diff = _binary(BinaryOp.MUL_HIGH), _binary(BinaryOp.ABS_DIFF)
saturating_add, saturating_sub = _binary(BinaryOp.SATURATING_ADD), _binary(BinaryOp.SATURATING_SUB)
saturating_mul = _binary(BinaryOp.SATURATING_MUL)
copysign = _binary(BinaryOp.COPYSIGN)
pow, hypot = _binary(BinaryOp.POW), _binary(BinaryOp.HYPOT)
atan2 = _binary(BinaryOp.ATAN2, "y, x")
fmod, remainder, nextafter = _binary(BinaryOp.FMOD), _binary(BinaryOp.REMAINDER), _binary(BinaryOp.NEXTAFTER)
ldexp = Intrinsic("ldexp", "x, n", BinaryOp.LDEXP, lambda x, n: BinOp(BinaryOp.LDEXP, lift(x), _i32(n)))
frexp_mantissa, frexp_exponent = _unary(UnaryOp.FREXP_MANTISSA), _unary(UnaryOp.FREXP_EXPONENT)

atomic_add, atomic_sub = _atomic(AtomicOp.ADD), _atomic(AtomicOp.ADD, "atomic_sub")
atomic_min, atomic_max = _atomic(AtomicOp.MIN), _atomic(AtomicOp.MAX)
atomic_and, atomic_or, atomic_xor = _atomic(AtomicOp.AND), _atomic(AtomicOp.OR), _atomic(AtomicOp.XOR)
atomic_exchange, atomic_cas = _atomic(AtomicOp.EXCHANGE), _atomic(AtomicOp.COMPARE_EXCHANGE)

subgroup_add, subgroup_mul = _reduce(ReduceOp.ADD), _reduce(ReduceOp.MUL)
subgroup_min, subgroup_max = _reduce(ReduceOp.MIN), _reduce(ReduceOp.MAX)
subgroup_and, subgroup_or, subgroup_xor = _reduce(ReduceOp.AND), _reduce(ReduceOp.OR), _reduce(ReduceOp.XOR)
subgroup_shuffle = Intrinsic("subgroup_shuffle", "x, lane", build=lambda x, lane: SubgroupShuffle(lift(x), lift(lane)))
subgroup_ballot = Intrinsic("subgroup_ballot", "condition", build=lambda c: SubgroupBallot(lift(c)))
subgroup_local_id = Intrinsic("subgroup_local_id", "", build=SubgroupLocalId)
subgroup_size = Intrinsic("subgroup_size", "", build=SubgroupSize)

bitcast = Intrinsic("bitcast", "dtype, x", build=lambda dtype, x: Bitcast(dtype, lift(x)))
select = Intrinsic("select", "condition, if_true, if_false", build=lambda c, a, b: Select(lift(c), *_alike(a, b)))
fma = Intrinsic("fma", "a, b, c", build=lambda a, b, c: Fma(*_alike(a, b, c)))

dot, cross = Intrinsic("dot", "a, b"), Intrinsic("cross", "a, b")
length, normalize, conj = Intrinsic("length", "v"), Intrinsic("normalize", "v"), Intrinsic("conj", "z")
shared, local = Intrinsic("shared", "dtype, count"), Intrinsic("local", "dtype, count")
barrier = Intrinsic("barrier", "")
grid_sync = Intrinsic("grid_sync", "")
trap = Intrinsic("trap", "tag, address")
static_range = Intrinsic("static_range", "start, stop, step")


class Ids:
    """`gid`, `lid`, `wg`: where this invocation is, per axis."""

    def __init__(self, name: str, make: Callable[[int], Expr]) -> None:
        self.name, self._make = name, make

    @property
    def x(self) -> Expr:
        return self._make(0)

    @property
    def y(self) -> Expr:
        return self._make(1)

    @property
    def z(self) -> Expr:
        return self._make(2)

    def __repr__(self) -> str:
        return f"vyre.{self.name}"


gid, lid, wg = Ids("gid", InvocationId), Ids("lid", LocalId), Ids("wg", WorkgroupId)


class DeviceFunction:
    """A helper that kernels inline where they call it, typed by its arguments."""

    def __init__(self, fn: Callable[..., Any], source: FunctionSource) -> None:
        self.fn, self.source = fn, source
        self.__name__, self.__doc__, self.__module__ = fn.__name__, fn.__doc__, fn.__module__
        self.__wrapped__, self.__annotations__ = fn, fn.__annotations__  # for inspect and typing

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise ArgumentTypeError(
            f"{self.__name__}() is a device function and works inside kernels",
            fix="call it in a function decorated with @vyre.kernel",
        )

    def __repr__(self) -> str:
        return f"<device function {self.__name__}>"


def device(fn: Callable[..., Any]) -> DeviceFunction:
    """Mark a function as a helper of kernels."""
    from .source import FunctionSource

    return DeviceFunction(fn, FunctionSource(fn))
