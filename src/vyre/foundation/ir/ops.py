"""The single table of operators: wire tags, symbols, type rules, stable ids. Every other table is checked against it.

Tags of one byte are those of the format's first writer. An operator that came later has the `extension_id` of a name
below `vyre.py` for its tag, and goes over the wire as an extension: a reader that does not know it keeps it, opaque.

Meaning lives beside it: `arith.py` says what each row computes, and every engine is held to that.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from .dtypes import FLOAT_NAMES, INT_NAMES, extension_id
from .value import Value


class _Row(Enum):
    """An operator with its columns as attributes; `tag` is the number on the wire."""

    tag: int
    __hash__ = object.__hash__  # members are single; Enum's own hash is Python code on every construction of a node

    @classmethod
    def of_tag(cls, tag: int) -> Any:
        """The member with this wire tag, or None."""
        return _BY_TAG[cls].get(tag)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__


FUNCTION_RULES = frozenset(("function", "float_function", "scale", "exponent"))
"""Type rules of the operators that the math library defines."""


class BinaryOp(_Row):
    """Binary operators. `rule` names the operand types; `commutes` is what canonical form may swap; one that
    `is_function` is defined by the math library."""

    def __init__(self, tag: int, text: str, rule: str, commutes: bool = False) -> None:
        self.tag, self.text, self.rule, self.commutes = tag, text, rule, commutes

    @property
    def is_function(self) -> bool:
        return self.rule in FUNCTION_RULES

    ADD = 0x01, "+", "arith", True
    SUB = 0x02, "-", "arith"
    MUL = 0x03, "*", "arith", True
    DIV = 0x04, "/", "arith"
    MOD = 0x05, "%", "mod"
    BIT_AND = 0x06, "&", "bits", True
    BIT_OR = 0x07, "|", "bits", True
    BIT_XOR = 0x08, "^", "bits", True
    SHL = 0x09, "<<", "shift"
    SHR = 0x0A, ">>", "shift"
    EQ = 0x0B, "==", "compare", True
    NE = 0x0C, "!=", "compare", True
    LT = 0x0D, "<", "compare"
    GT = 0x0E, ">", "compare"
    LE = 0x0F, "<=", "compare"
    GE = 0x10, ">=", "compare"
    AND = 0x11, "and", "logic", True
    OR = 0x12, "or", "logic", True
    ABS_DIFF = 0x13, "abs_diff", "abs_diff", True
    MIN = 0x14, "min", "arith", True
    MAX = 0x15, "max", "arith", True
    SATURATING_ADD = 0x16, "saturating_add", "saturating", True
    SATURATING_SUB = 0x17, "saturating_sub", "saturating"
    SATURATING_MUL = 0x18, "saturating_mul", "saturating", True
    SHUFFLE = 0x19, "wave_shuffle", "wave"
    BALLOT = 0x1A, "wave_ballot", "wave"
    WAVE_REDUCE = 0x1B, "wave_reduce", "wave"
    WAVE_BROADCAST = 0x1C, "wave_broadcast", "wave"
    ROTATE_LEFT = 0x1D, "rotate_left", "shift"
    ROTATE_RIGHT = 0x1E, "rotate_right", "shift"
    WRAPPING_ADD = 0x1F, "wrapping_add", "wrapping", True
    WRAPPING_SUB = 0x20, "wrapping_sub", "wrapping"
    MUL_HIGH = 0x21, "mul_high", "mul_high"
    COPYSIGN = extension_id("vyre.py.copysign"), "copysign", "float"
    POW = extension_id("vyre.py.pow"), "pow", "float_function"
    ATAN2 = extension_id("vyre.py.atan2"), "atan2", "float_function"
    HYPOT = extension_id("vyre.py.hypot"), "hypot", "float_function"
    FMOD = extension_id("vyre.py.fmod"), "fmod", "function"
    REMAINDER = extension_id("vyre.py.remainder"), "remainder", "function"
    LDEXP = extension_id("vyre.py.ldexp"), "ldexp", "scale"
    NEXTAFTER = extension_id("vyre.py.nextafter"), "nextafter", "float_function"


class UnaryOp(_Row):
    """Unary operators. `rule` names the operand types; one that `is_function` is defined by the math library."""

    def __init__(self, tag: int, text: str, rule: str) -> None:
        self.tag, self.text, self.rule = tag, text, rule

    @property
    def is_function(self) -> bool:
        return self.rule in FUNCTION_RULES

    NEGATE = 0x01, "-", "negate"
    BIT_NOT = 0x02, "~", "bits"
    LOGICAL_NOT = 0x03, "not", "logic"
    POPCOUNT = 0x04, "popcount", "bits"
    CLZ = 0x05, "clz", "bits"
    CTZ = 0x06, "ctz", "bits"
    REVERSE_BITS = 0x07, "reverse_bits", "bits"
    COS = 0x08, "cos", "float_function"
    SIN = 0x09, "sin", "float_function"
    ABS = 0x0A, "abs", "float"
    SQRT = 0x0B, "sqrt", "float"
    FLOOR = 0x0C, "floor", "float"
    CEIL = 0x0D, "ceil", "float"
    ROUND = 0x0E, "round", "float"
    TRUNC = 0x0F, "trunc", "float"
    SIGN = 0x10, "sign", "float"
    IS_NAN = 0x11, "is_nan", "float_test"
    IS_INF = 0x12, "is_inf", "float_test"
    IS_FINITE = 0x13, "is_finite", "float_test"
    EXP = 0x14, "exp", "float_function"
    LOG = 0x15, "log", "float_function"
    LOG2 = 0x16, "log2", "float_function"
    EXP2 = 0x17, "exp2", "float_function"
    TAN = 0x18, "tan", "float_function"
    ACOS = 0x19, "acos", "float_function"
    ASIN = 0x1A, "asin", "float_function"
    ATAN = 0x1B, "atan", "float_function"
    TANH = 0x1C, "tanh", "float_function"
    SINH = 0x1D, "sinh", "float_function"
    COSH = 0x1E, "cosh", "float_function"
    INVERSE_SQRT = 0x1F, "inverse_sqrt", "float"
    UNPACK4_LOW = 0x20, "unpack4_low", "unpack"
    UNPACK4_HIGH = 0x21, "unpack4_high", "unpack"
    UNPACK8_LOW = 0x22, "unpack8_low", "unpack"
    UNPACK8_HIGH = 0x23, "unpack8_high", "unpack"
    RECIPROCAL = 0x24, "reciprocal", "float"
    LOG1P = extension_id("vyre.py.log1p"), "log1p", "float_function"
    EXPM1 = extension_id("vyre.py.expm1"), "expm1", "float_function"
    LOG10 = extension_id("vyre.py.log10"), "log10", "float_function"
    EXP10 = extension_id("vyre.py.exp10"), "exp10", "function"
    CBRT = extension_id("vyre.py.cbrt"), "cbrt", "float_function"
    ASINH = extension_id("vyre.py.asinh"), "asinh", "function"
    ACOSH = extension_id("vyre.py.acosh"), "acosh", "function"
    ATANH = extension_id("vyre.py.atanh"), "atanh", "function"
    SINPI = extension_id("vyre.py.sinpi"), "sinpi", "function"
    COSPI = extension_id("vyre.py.cospi"), "cospi", "function"
    TANPI = extension_id("vyre.py.tanpi"), "tanpi", "function"
    ERF = extension_id("vyre.py.erf"), "erf", "function"
    ERFC = extension_id("vyre.py.erfc"), "erfc", "function"
    FREXP_MANTISSA = extension_id("vyre.py.frexp_mantissa"), "frexp_mantissa", "float_function"
    FREXP_EXPONENT = extension_id("vyre.py.frexp_exponent"), "frexp_exponent", "exponent"


class AtomicOp(_Row):
    """Read-modify-write operators; all return the old value. `order_free` ones give one sum in any order."""

    def __init__(self, tag: int, text: str, order_free: bool = False, live: bool = True) -> None:
        self.tag, self.text, self.order_free, self.live = tag, text, order_free, live

    ADD = 0x01, "atomic_add", True
    OR = 0x02, "atomic_or", True
    AND = 0x03, "atomic_and", True
    XOR = 0x04, "atomic_xor", True
    MIN = 0x05, "atomic_min", True
    MAX = 0x06, "atomic_max", True
    EXCHANGE = 0x07, "atomic_exchange"
    COMPARE_EXCHANGE = 0x08, "atomic_cas"
    COMPARE_EXCHANGE_WEAK = 0x09, "atomic_cas_weak", False, False
    FETCH_NAND = 0x0A, "atomic_nand", False, False
    LRU_UPDATE = 0x0B, "atomic_lru", False, False


class ReduceOp(_Row):
    """Subgroup reductions."""

    def __init__(self, tag: int, text: str) -> None:
        self.tag, self.text = tag, text

    ADD = 1, "add"
    MUL = 2, "mul"
    MIN = 3, "min"
    MAX = 4, "max"
    AND = 5, "and"
    OR = 6, "or"
    XOR = 7, "xor"


class CollectiveOp(_Row):
    """Reductions between devices."""

    def __init__(self, tag: int, text: str) -> None:
        self.tag, self.text = tag, text

    SUM = 1, "sum"
    MIN = 2, "min"
    MAX = 3, "max"
    BIT_AND = 4, "and"
    BIT_OR = 5, "or"
    BIT_XOR = 6, "xor"


class Ordering(_Row):
    """Memory orderings. Atomics take RELAXED..SEQ_CST, barriers ACQUIRE..GRID_SYNC."""

    def __init__(self, tag: int, text: str) -> None:
        self.tag, self.text = tag, text

    RELAXED = 0, "relaxed"
    ACQUIRE = 1, "acquire"
    RELEASE = 2, "release"
    ACQ_REL = 3, "acq_rel"
    SEQ_CST = 4, "seq_cst"
    GRID_SYNC = 5, "grid_sync"


class OpaqueOp(Value):
    """An operator of an extension, known only by its id (high bit set). Carried, never executed."""

    id: int

    @property
    def text(self) -> str:
        return f"opaque_0x{self.id:08x}"


_BY_TAG: dict[type, dict[int, Any]] = {
    cls: {row.tag: row for row in cls} for cls in (BinaryOp, UnaryOp, AtomicOp, ReduceOp, CollectiveOp, Ordering)
}

_WIDE = frozenset(("u32", "i32", "u64", "i64"))
_U32 = frozenset(("u32",))
_LOGIC = frozenset(("u32", "bool"))

BINARY_TYPES: dict[str, frozenset[str]] = {
    "arith": _WIDE | FLOAT_NAMES,
    "wrapping": _WIDE,
    "mod": _WIDE,
    "bits": _WIDE,
    "shift": _WIDE,
    "compare": INT_NAMES | FLOAT_NAMES | {"bool"},
    "logic": _LOGIC,
    "abs_diff": _U32,
    "saturating": _U32,
    "mul_high": _U32,
    "float": FLOAT_NAMES,
    "function": frozenset(("f32",)),
    "float_function": frozenset(("f32", "f64")),
    "scale": frozenset(("f32", "f64")),
    "wave": frozenset(),
}
"""`BinaryOp.rule` -> names of the left operand's type. Ordering of bool is refused besides; a shift amount is u32,
the power of two of a `scale` i32."""

UNARY_TYPES: dict[str, frozenset[str]] = {
    "negate": _WIDE | FLOAT_NAMES,
    "bits": _WIDE,
    "logic": _LOGIC,
    "float": FLOAT_NAMES,
    "float_test": FLOAT_NAMES,
    "function": frozenset(("f32",)),
    "float_function": frozenset(("f32", "f64")),
    "exponent": frozenset(("f32", "f64")),
    "unpack": frozenset(("u32", "i32")),
}
"""`UnaryOp.rule` -> names of the operand's type."""

BITCAST_TYPES = frozenset(("u32", "i32", "f32", "u64", "i64", "f64"))
"""Bits are shared by types of one width."""
FMA_TYPES = frozenset(("f32", "f64"))
ATOMIC_TYPES = frozenset(("u32", "i32"))

NODE_IDS: dict[str, str] = {
    name: f"vyre.node.{kind}"
    for name, kind in {
        "Let": "let", "Assign": "assign", "Store": "store", "If": "if", "Loop": "loop", "Return": "return",
        "Block": "block", "Barrier": "barrier", "IndirectDispatch": "indirect_dispatch", "AsyncLoad": "async_load",
        "AsyncWait": "async_wait", "Region": "region", "AsyncStore": "async_store", "Trap": "trap",
        "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
        "Broadcast": "broadcast",
    }.items()
}  # fmt: skip
"""Statement class -> stable id."""

EXPR_IDS: dict[str, str] = {
    name: f"vyre.{kind}"
    for name, kind in {
        "Var": "var", "Load": "load", "BufLen": "buf_len", "InvocationId": "invocation_id",
        "WorkgroupId": "workgroup_id", "LocalId": "local_id", "BinOp": "bin_op", "UnOp": "un_op", "Select": "select",
        "Cast": "cast", "Atomic": "atomic", "Fma": "fma", "SubgroupReduce": "subgroup_reduce",
        "SubgroupShuffle": "subgroup_shuffle", "SubgroupBallot": "subgroup_ballot",
        "SubgroupLocalId": "subgroup_local_id", "SubgroupSize": "subgroup_size", "BufferRef": "buffer_ref",
        "Bitcast": "py.bitcast",
    }.items()
}  # fmt: skip
"""Expression class -> stable id. Literals, calls and opaque expressions take theirs from their content."""

LITERAL_IDS: dict[str, str] = {
    "u32": "vyre.lit_u32", "i32": "vyre.lit_i32", "f32": "vyre.lit_f32", "bool": "vyre.lit_bool",
    "u64": "vyre.literal.u64", "i64": "vyre.literal.i64", "f64": "vyre.literal.f64",
}  # fmt: skip

FUNCTION_IDS: dict[BinaryOp | UnaryOp, str] = {
    **{op: f"vyre.un_op.{op.text}" for op in UnaryOp if op.is_function},
    **{op: f"vyre.bin_op.{op.text}" for op in BinaryOp if op.is_function},
}
"""An operator that the math library defines carries its own id beside `vyre.un_op` or `vyre.bin_op`."""

CORE_NODE_CLASSES = ("Let", "Assign", "Store", "If", "Loop", "Return", "Block", "Barrier", "Region")
_CORE_EXPR_CLASSES = (
    "Var", "Load", "BufLen", "InvocationId", "WorkgroupId", "LocalId", "BinOp", "UnOp", "Select", "Cast", "Atomic",
    "Fma",
)  # fmt: skip
CORE_IDS = frozenset(
    [NODE_IDS[n] for n in CORE_NODE_CLASSES]
    + [EXPR_IDS[n] for n in _CORE_EXPR_CLASSES]
    + [LITERAL_IDS[n] for n in ("u32", "i32", "f32", "bool")]
    + [*FUNCTION_IDS.values()]
)
"""What every backend runs. Subgroup, trap, collective, opaque and call ids are not here."""
