"""Arguments for the functions of f64, and how far results are from the true value."""

import math

import mpmath
import numpy as np
from mpmath import mp, mpf

from vyre.foundation.ir.ops import BinaryOp

mp.prec = 200
TRUE = {
    "exp2": lambda x: mpmath.power(2, x), "log2": lambda x: mpmath.log(x) / mpmath.ln2,
    "log10": lambda x: mpmath.log(x) / mpmath.ln10,
    "frexp_mantissa": lambda x: mpmath.frexp(x)[0], "frexp_exponent": lambda x: mpf(mpmath.frexp(x)[1]),
    "nextafter": lambda x, y: mpf(math.nextafter(x, y)), "pow": mpmath.power,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
}  # fmt: skip
LIVELY = {
    "exp": (-745, 710), "exp2": (-1075, 1024), "expm1": (-3, 5), "log": (0.5, 2), "log2": (0.5, 2), "log10": (0.5, 2),
    "log1p": (-1, 2), "asin": (-1.01, 1.01), "acos": (-1.01, 1.01), "atan": (-4, 4), "sinh": (-4, 4), "cosh": (-4, 4),
    "tanh": (-4, 4), "cbrt": (0, 8),
}  # fmt: skip
"""Where a function does what it is known for."""


def arguments(op, count):
    """Any bits, common sizes, and numbers where it matters; as many arrays as the function has arguments."""
    rng = np.random.default_rng(op.tag)

    def some():
        bits = rng.integers(0, 2**64, count // 4, dtype=np.uint64).view(np.float64)
        sizes = np.exp2(rng.uniform(-60, 60, count // 4)) * rng.choice((-1, 1), count // 4)
        return np.concatenate([bits, sizes, rng.uniform(*LIVELY.get(op.text, (-8, 8)), count - 2 * (count // 4))])

    if op is BinaryOp.POW:  # half of the products with the logarithm neither overflow nor vanish
        x, y = some(), some()
        near = slice(count // 2, None)
        x[near] = np.exp2(rng.uniform(-1, 1, len(x[near])) * np.exp2(rng.uniform(-30, 9, len(x[near]))))
        y[near] = rng.uniform(-1080, 1030, len(x[near])) / np.where(x[near] == 1, 1, np.log2(x[near]))
        return x, y
    if op is BinaryOp.LDEXP:
        return some(), rng.integers(-2200, 2200, count).astype(np.int32)
    return (some(), some()) if isinstance(op, BinaryOp) else (some(),)


def _exactly(x):
    return x if isinstance(x, int) else mpf(x)


def ulps(op, operands, found):
    """The distance of a result from the true value, in units of its last place; infinite for what is no number but
    should be one, or the other way around. None where mpmath does not know."""
    if not all(map(np.isfinite, operands)):
        return None
    try:
        true = TRUE.get(op.text, getattr(mpmath, op.text, None))(*map(_exactly, operands))
    except (ZeroDivisionError, ValueError):
        return None
    if isinstance(true, mpmath.mpc) or mpmath.isnan(true):
        return 0.0 if np.isnan(found) else np.inf
    if abs(true) >= mpf(2) ** 1024 * (1 - mpf(2) ** -54):
        return 0.0 if np.isinf(found) else np.inf
    if not np.isfinite(found):
        return np.inf
    unit = max(mpmath.frexp(true)[1] - 53, -1074)
    return float(abs(mpf(float(found)) - true) / mpf(2) ** unit)
