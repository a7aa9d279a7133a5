"""Where the polynomials of the math library come from: minimax fits whose coefficients are binary32 numbers.

    python bench/math_coefficients.py            every table, with the error that it leaves
    python bench/math_coefficients.py --check    exit status 1 unless the library holds exactly these numbers

A fit minimises the largest weighted error on a dense grid by Lawson's iteration in binary64; targets come from mpmath
with 40 digits, because a direct form like (sin r - r) / r^3 cancels. Then the coefficients are rounded to binary32 one
by one, lowest order first, and the rest is fitted again after each: later coefficients repair earlier roundings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

from vyre.foundation.meaning.mathlib import coefficients as library

mp.dps = 40
GRID = 400
ROUNDS = 200
Real = Callable[[Any], Any]
Array = NDArray[np.float64]


class Fit(NamedTuple):
    """`target(x)` is approximated by a polynomial of `variable(x)`; `weight(x)` turns its error into a relative one."""

    low: float
    high: float
    terms: int
    target: Real
    weight: Real
    variable: Real = lambda x: x


def _square(x: Any) -> Any:
    return x * x


def _odd(f: Real, high: float, terms: int) -> Fit:
    """f(x) = x + x^3 P(x^2)."""
    return Fit(2.0**-5, high, terms, lambda x: (f(x) - x) / x**3, lambda x: x**3 / f(x), _square)


def _scaled(x: Any) -> Any:
    return mpmath.exp(x * x) * mpmath.erfc(x) * (x + 1.5)


LN2, LN10 = mpmath.ln2, mpmath.ln10
HALF_LN2 = float(LN2 / 2)
SQRT2 = float(mpmath.sqrt(2))
QUARTER = 0.791  # a little over pi / 4, because the quadrant is found in binary32
TOP_WEIGHT = 0.5
"""exp and exp2 use the end of their interval for the last half binade before overflow only."""

FITS: dict[str, Fit] = {
    # e^r = 1 + r + r^2 P(r), 2^r = 1 + r P(r)
    "EXP": Fit(
        -0.3467, 0.7, 6, lambda r: (mpmath.expm1(r) - r) / r**2,
        lambda r: r**2 / mpmath.exp(r) * (1 if r < 0.3467 else TOP_WEIGHT),
    ),
    "EXP2": Fit(
        -0.5, 1.0, 7, lambda r: mpmath.expm1(r * LN2) / r,
        lambda r: r / mpmath.power(2, r) * (1 if r <= 0.5 else TOP_WEIGHT),
    ),
    # log(1 + f) = f - f^2 / 2 + f^3 P(f), log2(1 + f) = f / ln 2 + f^2 P(f)
    "LOG": Fit(
        SQRT2 / 2 - 1, SQRT2 - 1, 8, lambda f: (mpmath.log1p(f) - f + f**2 / 2) / f**3,
        lambda f: f**3 / mpmath.log1p(f),
    ),
    "LOG2": Fit(
        SQRT2 / 2 - 1, SQRT2 - 1, 9, lambda f: (mpmath.log1p(f) - f) / LN2 / f**2,
        lambda f: f**2 * LN2 / mpmath.log1p(f),
    ),
    # log10(1 + f) = f log10 e + f^2 P(f), 10^r = 1 + r P(r)
    "LOG10": Fit(
        SQRT2 / 2 - 1, SQRT2 - 1, 9, lambda f: (mpmath.log1p(f) - f) / LN10 / f**2,
        lambda f: f**2 * LN10 / mpmath.log1p(f),
    ),
    "EXP10": Fit(
        -0.1506, 0.3011, 7, lambda r: mpmath.expm1(r * LN10) / r,
        lambda r: r / mpmath.power(10, r) * (1 if r <= 0.1506 else TOP_WEIGHT),
    ),
    # log2((1 + s) / (1 - s)) = (2 / ln 2) s + s^3 P(s^2)
    "POW": Fit(
        2.0**-5, 0.0771, 3, lambda s: (2 * mpmath.atanh(s) - 2 * s) / LN2 / s**3,
        lambda s: s**3 * LN2 / (2 * mpmath.atanh(s)), _square,
    ),
    "SIN": _odd(mpmath.sin, QUARTER, 3),
    # cos r = 1 - r^2 / 2 + r^4 P(r^2)
    "COS": Fit(
        2.0**-5, QUARTER, 3, lambda r: (mpmath.cos(r) - 1 + r * r / 2) / r**4, lambda r: r**4 / mpmath.cos(r), _square
    ),
    "TAN": _odd(mpmath.tan, QUARTER, 7),
    "ASIN": _odd(mpmath.asin, 0.5, 5),
    "ATAN": _odd(mpmath.atan, 1.0, 9),
    "SINH": _odd(mpmath.sinh, 1.0, 4),
    # cosh r = 1 + r^2 P(r^2)
    "COSH": Fit(
        2.0**-5, 1.0, 4, lambda r: (mpmath.cosh(r) - 1) / r**2, lambda r: r**2 / mpmath.cosh(r), _square
    ),
    "TANH": _odd(mpmath.tanh, 0.8, 6),
    "ASINH": _odd(mpmath.asinh, 0.5, 5),
    # acosh(1 + t) = sqrt(2 t) (1 + t P(t))
    "ACOSH": Fit(
        2.0**-5, 0.5, 5, lambda t: (mpmath.acosh(1 + t) / mpmath.sqrt(2 * t) - 1) / t,
        lambda t: t * mpmath.sqrt(2 * t) / mpmath.acosh(1 + t),
    ),
    "ATANH": _odd(mpmath.atanh, 0.5, 6),
    # erf x = x + x P(x^2), then 1 - e^P(x); erfc x = e^(-x^2) P(q) / (x + 3/2)
    "ERF": Fit(2.0**-5, 0.8, 6, lambda x: mpmath.erf(x) / x - 1, lambda x: x / mpmath.erf(x), _square),
    "ERF_LARGE": Fit(0.8, 4.0, 7, lambda x: mpmath.log(mpmath.erfc(x)), lambda x: mpmath.erfc(x) / mpmath.erf(x)),
    "ERFC": Fit(
        0.8, 9.2, 8, _scaled, lambda x: 1 / _scaled(x), lambda x: (x - 1.5) / (x + 1.5)
    ),
}  # fmt: skip


def minimax(variable: Array, target: Array, weight: Array, terms: int) -> Array:
    """Coefficients, lowest first, with nearly the smallest maximum of |weight * (target - polynomial)| on the grid.

    Lawson's iteration: least squares whose weights grow where the error is large. The best of all rounds is kept.
    """
    basis = np.vander(variable, terms, increasing=True) * weight[:, None]
    goal = target * weight
    share = np.full(len(variable), 1 / len(variable))
    best, lowest = np.zeros(terms), np.inf
    for _ in range(ROUNDS):
        root = np.sqrt(share)
        found = np.linalg.lstsq(basis * root[:, None], goal * root, rcond=None)[0]
        error = np.abs(goal - basis @ found)
        if (largest := float(np.max(error))) < lowest:
            best, lowest = found, largest
        if largest == 0:
            break
        share = share * error / np.sum(share * error)
    return best


def solve(fit: Fit) -> tuple[tuple[float, ...], float]:
    """Rounded coefficients, lowest first, and the largest weighted error that they leave."""
    turns = (1 - np.cos(np.pi * (np.arange(GRID) + 0.5) / GRID)) / 2
    points = [mpf(fit.low) + mpf(t) * (mpf(fit.high) - mpf(fit.low)) for t in turns]
    points = [p for p in points if abs(p) > 2.0**-6]
    variable = np.array([float(fit.variable(p)) for p in points])
    target = np.array([float(fit.target(p)) for p in points])
    weight = np.array([abs(float(fit.weight(p))) for p in points])
    rounded: list[float] = []
    rest, scale = target, weight
    for left in range(fit.terms, 0, -1):
        first = float(np.float32(minimax(variable, rest, scale, left)[0]))
        rounded.append(first)
        rest = (rest - first) / variable
        scale = scale * np.abs(variable)
    value = np.polynomial.polynomial.polyval(variable, np.array(rounded))
    return tuple(rounded), float(np.max(weight * np.abs(target - value)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the library")
    options = parser.parse_args()
    wrong = 0
    for name, fit in FITS.items():
        coefficients, error = solve(fit)
        same = coefficients == tuple(float(np.float32(x)) for x in getattr(library, name, ()))
        wrong += not same
        print(f"# weighted error {error:.2e} = 2^{np.log2(error):.1f}{'' if same else '  NOT the library'}")
        print(f"{name}: Final = ({', '.join(str(np.float32(x)) for x in coefficients)})")
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
