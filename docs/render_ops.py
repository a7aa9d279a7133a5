"""Write docs/reference/ops.md from the tables of operators: python docs/render_ops.py"""

from __future__ import annotations

from pathlib import Path

from vyre.foundation.ir import nodes as ir
from vyre.foundation.ir.dtypes import BY_NAME, FLOAT_NAMES
from vyre.foundation.ir.ops import (
    ATOMIC_TYPES,
    BINARY_TYPES,
    BITCAST_TYPES,
    CORE_IDS,
    EXPR_IDS,
    LITERAL_IDS,
    NODE_IDS,
    UNARY_TYPES,
    AtomicOp,
    BinaryOp,
    Ordering,
    ReduceOp,
    UnaryOp,
)
from vyre.foundation.language import lang

PAGE = Path(__file__).parent / "reference" / "ops.md"

ORDER = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "bool")
"""Of types in the page."""

BINARY: dict[BinaryOp, str] = {
    BinaryOp.ADD: "sum; integers wrap, floats round once",
    BinaryOp.SUB: "difference; integers wrap, floats round once",
    BinaryOp.MUL: "product; integers wrap, floats round once",
    BinaryOp.DIV: "quotient. Integers round towards zero; by 0 it is all ones (unsigned) or 0 (signed), the smallest "
    "number by -1 is itself. Floats are correctly rounded. In a kernel `//` is for integers, `/` for floats",
    BinaryOp.MOD: "remainder with the sign of the left operand; by 0 it is 0",
    BinaryOp.BIT_AND: "bits that both have",
    BinaryOp.BIT_OR: "bits that either has",
    BinaryOp.BIT_XOR: "bits that differ",
    BinaryOp.SHL: "shift to the left; the amount counts modulo the width",
    BinaryOp.SHR: "shift to the right, keeping the sign of signed types; the amount counts modulo the width",
    BinaryOp.EQ: "equal; false for NaN",
    BinaryOp.NE: "not equal; true for NaN",
    BinaryOp.LT: "less; false for NaN",
    BinaryOp.GT: "greater; false for NaN",
    BinaryOp.LE: "less or equal; false for NaN",
    BinaryOp.GE: "greater or equal; false for NaN",
    BinaryOp.AND: "both are not zero; both sides are evaluated",
    BinaryOp.OR: "one is not zero; both sides are evaluated",
    BinaryOp.ABS_DIFF: "distance between the two",
    BinaryOp.MIN: "the smaller. Of a number and NaN the number; -0 is below +0",
    BinaryOp.MAX: "the larger. Of a number and NaN the number; +0 is above -0",
    BinaryOp.SATURATING_ADD: "sum, at most the largest number",
    BinaryOp.SATURATING_SUB: "difference, at least 0",
    BinaryOp.SATURATING_MUL: "product, at most the largest number",
    BinaryOp.ROTATE_LEFT: "bits that leave on the left come in on the right; the amount counts modulo the width",
    BinaryOp.ROTATE_RIGHT: "bits that leave on the right come in on the left; the amount counts modulo the width",
    BinaryOp.WRAPPING_ADD: "as `+`, for integers alone",
    BinaryOp.WRAPPING_SUB: "as `-`, for integers alone",
    BinaryOp.MUL_HIGH: "the upper 32 bits of the product of 64",
    BinaryOp.POW: "the first to the power of the second. 1 for the powers 0 of all and all powers of 1, NaN included; "
    "of a negative number NaN unless the power is whole. In a kernel also `**`",
    BinaryOp.ATAN2: "angle of the vector (second, first), from -pi to pi, with the sign of the first",
    BinaryOp.HYPOT: "root of the sum of the squares, which do not overflow; infinity where one is infinite",
    BinaryOp.FMOD: "the first less the multiple of the second that is nearest towards zero; exact, with the sign of "
    "the first; NaN where the second is 0. In a kernel also `%`",
    BinaryOp.REMAINDER: "the first less the nearest multiple of the second, the even one of two; exact",
    BinaryOp.LDEXP: "the first times 2 to the power of the second, an i32",
    BinaryOp.NEXTAFTER: "the next number from the first towards the second; of f32, 2^-126 is next to 0",
    BinaryOp.COPYSIGN: "the size of the first with the sign of the second, zero included; the sign of NaN is +",
}
UNARY: dict[UnaryOp, str] = {
    UnaryOp.NEGATE: "integers wrap; floats change their sign, zero included",
    UnaryOp.BIT_NOT: "every bit the other way",
    UnaryOp.LOGICAL_NOT: "true for zero",
    UnaryOp.POPCOUNT: "how many bits are set",
    UnaryOp.CLZ: "zero bits above the highest set one; the width for 0",
    UnaryOp.CTZ: "zero bits below the lowest set one; the width for 0",
    UnaryOp.REVERSE_BITS: "the lowest bit becomes the highest, and so on",
    UnaryOp.COS: "cosine, of any size of argument",
    UnaryOp.SIN: "sine, of any size of argument",
    UnaryOp.ABS: "without the sign. In a kernel `abs` takes integers as well",
    UnaryOp.SQRT: "square root, correctly rounded; NaN below zero, -0 of -0",
    UnaryOp.FLOOR: "the next whole number below",
    UnaryOp.CEIL: "the next whole number above",
    UnaryOp.ROUND: "the nearest whole number, halves away from zero",
    UnaryOp.TRUNC: "the whole number towards zero",
    UnaryOp.SIGN: "-1, 0 or 1; NaN of NaN",
    UnaryOp.IS_NAN: "whether it is NaN",
    UnaryOp.IS_INF: "whether it is an infinity",
    UnaryOp.IS_FINITE: "whether it is neither NaN nor an infinity",
    UnaryOp.EXP: "e to the power of it",
    UnaryOp.LOG: "natural logarithm; -infinity of 0, NaN below",
    UnaryOp.LOG2: "logarithm to base 2; exact for powers of two",
    UnaryOp.EXP2: "2 to the power of it; exact for whole numbers",
    UnaryOp.TAN: "tangent, of any size of argument",
    UnaryOp.ACOS: "arc cosine; NaN beyond 1",
    UnaryOp.ASIN: "arc sine; NaN beyond 1",
    UnaryOp.ATAN: "arc tangent",
    UnaryOp.TANH: "hyperbolic tangent",
    UnaryOp.SINH: "hyperbolic sine",
    UnaryOp.COSH: "hyperbolic cosine",
    UnaryOp.INVERSE_SQRT: "1 over the square root, rounded after each of the two",
    UnaryOp.UNPACK4_LOW: "bits 0 to 3",
    UnaryOp.UNPACK4_HIGH: "bits 4 to 7",
    UnaryOp.UNPACK8_LOW: "bits 0 to 7",
    UnaryOp.UNPACK8_HIGH: "bits 8 to 15",
    UnaryOp.RECIPROCAL: "1 over it, correctly rounded",
    UnaryOp.LOG1P: "natural logarithm of 1 + it, without the loss of that sum; -infinity of -1, NaN below",
    UnaryOp.EXPM1: "e to the power of it, less 1, without the loss of that difference",
    UnaryOp.LOG10: "logarithm to base 10; -infinity of 0, NaN below",
    UnaryOp.EXP10: "10 to the power of it",
    UnaryOp.CBRT: "cube root, of negative numbers too",
    UnaryOp.ASINH: "inverse of the hyperbolic sine",
    UnaryOp.ACOSH: "inverse of the hyperbolic cosine; NaN below 1",
    UnaryOp.ATANH: "inverse of the hyperbolic tangent; infinite at 1 and -1, NaN beyond",
    UnaryOp.SINPI: "sine of pi times it; zero of its sign for whole numbers",
    UnaryOp.COSPI: "cosine of pi times it; +0 for whole numbers and a half",
    UnaryOp.TANPI: "tangent of pi times it; for whole numbers n zero of the sign of n, other for odd n; for n + 1/2 "
    "infinity, negative for odd n",
    UnaryOp.ERF: "error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to it",
    UnaryOp.FREXP_MANTISSA: "it without its power of two, from 1/2 to 1; zero, infinities and NaN themselves",
    UnaryOp.FREXP_EXPONENT: "the power of two that was taken from it; 0 for zero, infinities and NaN",
    UnaryOp.ERFC: "1 less the error function, without the loss of that difference",
}
ATOMIC: dict[AtomicOp, str] = {
    AtomicOp.ADD: "add, wrapping. `atomic_sub` adds the negative",
    AtomicOp.OR: "set bits",
    AtomicOp.AND: "keep bits",
    AtomicOp.XOR: "flip bits",
    AtomicOp.MIN: "the smaller of the two, by the sign of the element type",
    AtomicOp.MAX: "the larger of the two, by the sign of the element type",
    AtomicOp.EXCHANGE: "put the value there",
    AtomicOp.COMPARE_EXCHANGE: "put the value there if the expected one is there; never fails without a reason",
}
KINDS: dict[str, str] = {
    "WorkgroupId": "Number of the workgroup along an axis.",
    "LocalId": "Place in the workgroup along an axis.",
    "BinOp": "A binary operator, see above.",
    "UnOp": "A unary operator, see above.",
    "Cast": "A conversion: integers wrap, floats to integers saturate (NaN is 0), to bool is `!= 0`.",
    "SubgroupReduce": "One value of 32 invocations, by a fixed butterfly.",
    "SubgroupShuffle": "The value of another lane; 0 where there is none.",
    "SubgroupBallot": "One bit per lane whose condition holds.",
    "Assign": "Another value for a local.",
    "Store": "`buffer[index] = value`; dropped beyond the end.",
    "If": "Either of two bodies.",
    "Block": "A scope.",
    "Barrier": "The workgroup waits, and then sees what its members wrote; `grid_sync`: the grid.",
    "AsyncWait": "Until the copy with that tag is done.",
    "AllReduce": "Reduction over all ranks.",
    "AllGather": "Concatenation over all ranks.",
    "ReduceScatter": "Reduction over all ranks, in parts.",
    "Broadcast": "Copy from one rank to all.",
}
"""Of classes whose documentation is their name."""


def render() -> str:
    lines = [
        "# Operations",
        "",
        "Everything a program can consist of, from the tables in `src/vyre/foundation/ir/ops.py`, by",
        "`docs/render_ops.py`.",
        "What an operator computes is defined, for every argument, by `src/vyre/foundation/meaning/arith.py`, and",
        "every backend is held to it.",
        "",
        f"*Integers* are {_names(BINARY_TYPES['bits'])}; *floats* are {_names(FLOAT_NAMES)}. f16 and bf16 are computed",
        "as f32 and rounded once more. How f32 rounds is described under [Numbers](../numerics.md), and how operators",
        "are written in a kernel under [The kernel language](../kernel-language.md).",
        "",
        "## Binary operators",
        "",
        "Both operands have one type. The amount of a shift or rotation is u32, the power of `ldexp` i32.",
        "",
        "| operator | types | result | meaning |",
        "|---|---|---|---|",
    ]
    for op, meaning in BINARY.items():
        types = BINARY_TYPES[op.rule]
        if op.rule == "compare":
            only_equality = op in (BinaryOp.EQ, BinaryOp.NE)
            shown = "any" if only_equality else "any but bool"
        else:
            shown = _types(types)
        result = "bool" if op.rule in ("compare", "logic") else "same"
        lines.append(f"| {_code(op.text)} | {shown} | {result} | {meaning} |")
    lines += ["", "## Unary operators", "", "| operator | types | result | meaning |", "|---|---|---|---|"]
    for unary, meaning in UNARY.items():
        result = {"float_test": "bool", "logic": "bool", "unpack": "u32", "exponent": "i32"}.get(unary.rule, "same")
        lines.append(f"| {_code(unary.text)} | {_types(UNARY_TYPES[unary.rule])} | {result} | {meaning} |")
    lines += [
        "",
        "`fma(a, b, c)` of f32 and f64 is `a * b + c` with one rounding. `select(c, a, b)` evaluates all three.",
        f"`bitcast` is between types of one width among {_names(BITCAST_TYPES)}; f32 bits are canonical on both sides.",
        "",
        "## Atomics",
        "",
        f"On elements of {_names(ATOMIC_TYPES)} in read-write buffers and workgroup memory. The value is what was",
        "there before. A location that is changed by one order-free operator alone, and whose old values are not used,",
        "ends the same on any schedule.",
        "",
        "| operator | order-free | meaning |",
        "|---|---|---|",
    ]
    for atomic, meaning in ATOMIC.items():
        lines.append(f"| `{atomic.text}` | {'yes' if atomic.order_free else ''} | {meaning} |")
    lines += [
        "",
        "Memory orderings are accepted and order nothing beyond the location: "
        + ", ".join(f"`{o.text}`" for o in Ordering if o is not Ordering.GRID_SYNC)
        + ".",
        "",
        "## Subgroups",
        "",
        "A subgroup is 32 consecutive invocations of a workgroup, on every machine. "
        + ", ".join(f"`subgroup_{op.text}`" for op in ReduceOp)
        + " reduce over it: first with the lane 16 away, then 8, 4, 2, 1, so that floats too have one result.",
        "`subgroup_shuffle`, `subgroup_ballot`, `subgroup_local_id` and `subgroup_size` complete them.",
        "",
        "## Ids",
        "",
        "`Program.ops()` names what a program contains by these ids, and `supported_ops()` of a backend what it runs.",
        "Every backend runs the *core*; [Backends](backends.md) says what else each of them runs.",
        "",
        "| id | core | meaning |",
        "|---|---|---|",
    ]
    for title, ids in (("statement", NODE_IDS), ("expression", EXPR_IDS)):
        for name, id in ids.items():
            lines.append(f"| `{id}` | {_core(id)} | {title}: {_of_class(name)} |")
    for name, id in LITERAL_IDS.items():
        lines.append(f"| `{id}` | {_core(id)} | literal of {name} |")
    lines += [
        f"| `vyre.un_op.<name>` | yes | a function of the math library: {_functions(UnaryOp)} |",
        f"| `vyre.bin_op.<name>` | yes | one of two numbers: {_functions(BinaryOp)} |",
        "",
        "## Types",
        "",
        "| type | bits | kind |",
        "|---|---|---|",
    ]
    for t in (BY_NAME[name] for name in ORDER):
        kind = "storage only: convert before computing" if t.is_narrow else "float" if t.is_float else "integer"
        lines.append(f"| `{t.name}` | {t.bits} | {'a word, 0 or 1' if t.name == 'bool' else kind} |")
    return "\n".join([*lines, ""])


def missing() -> list[str]:
    """Operators that have a meaning and no words for it here."""
    rows: list[BinaryOp | UnaryOp | AtomicOp] = [
        *(op for op in BinaryOp if op.rule != "wave" and op not in BINARY),
        *(op for op in UnaryOp if op not in UNARY),
        *(op for op in AtomicOp if op.live and op not in ATOMIC),
    ]
    kinds = [name for name in (*NODE_IDS, *EXPR_IDS) if not _of_class(name)]
    return [str(op) for op in rows] + kinds + [t.name for t in BY_NAME.values() if t.live and t.name not in ORDER]


def _of_class(name: str) -> str:
    text = KINDS.get(name) or getattr(ir, name).__doc__ or ""
    return " ".join(text.split()).replace("|", "\\|")


def _functions(table: type[UnaryOp] | type[BinaryOp]) -> str:
    return ", ".join(f"`{op.text}`" for op in table if op.is_function)


def _code(text: str) -> str:
    """How it is written; in a table the bar would end the cell."""
    shown = f"`{text}`" if text != "|" else "<code>&#124;</code>"
    return shown + ("" if text in KNOWN else " (IR)")


KNOWN = {op.text for op in BinaryOp if not op.text.isidentifier()} | {*vars(lang), "and", "or", "not", "-", "~"}
KNOWN |= {"abs", "min", "max"}
"""What a kernel can write; the others come from builders and from files."""


def _core(id: str) -> str:
    return "yes" if id in CORE_IDS else ""


def _types(names: frozenset[str]) -> str:
    whole = BINARY_TYPES["bits"]
    if names == whole:
        return "integers"
    if names == FLOAT_NAMES:
        return "floats"
    return "integers, floats" if names == whole | FLOAT_NAMES else _names(names)


def _names(names: frozenset[str]) -> str:
    return " ".join(sorted(names, key=ORDER.index))


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), "utf-8")
