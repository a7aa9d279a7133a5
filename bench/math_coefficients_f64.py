"""Where the polynomials of the functions of f64 come from: interpolation with 60 digits.

    python bench/math_coefficients_f64.py            every table, with the relative error that it leaves
    python bench/math_coefficients_f64.py --check    exit status 1 unless the library holds exactly these numbers

A polynomial meets its function at the roots of a Chebyshev polynomial, which leaves at most about twice the smallest
error that a polynomial of its degree can leave; then its coefficients are rounded to binary64. What rounding takes from
them is far below a unit of the result, because all of them are multiplied by a small number.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
from mpmath import mp, mpf

from vyre.foundation.meaning.mathlib.double import coefficients as library

mp.dps = 60
Real = Callable[[Any], Any]
POINTS = 300
LN2 = mpmath.ln2


class Fit(NamedTuple):
    """`target(x)` is approximated by a polynomial of `terms` coefficients, of x or, where it is `even`, of its square;
    `weight(x)` turns its error into a relative one of the function."""

    low: float
    high: float
    terms: int
    target: Real
    weight: Real
    even: bool = False

    def variable(self, x: Any) -> Any:
        return x * x if self.even else x


def _odd(f: Real, high: float, terms: int) -> Fit:
    """f(x) = x + x^3 P(x^2)."""
    return Fit(2.0**-20, high, terms, lambda x: (f(x) - x) / x**3, lambda x: x**3 / f(x), even=True)


FITS: dict[str, Fit] = {
    # e^r = 1 + r + r^2 P(r), 2^r = 1 + r ln 2 + r^2 P(r)
    "EXP": Fit(-0.3467, 0.3467, 10, lambda r: (mpmath.expm1(r) - r) / r**2, lambda r: r**2 / mpmath.exp(r)),
    "EXP2": Fit(
        -0.5001, 0.5001, 10, lambda r: (mpmath.expm1(r * LN2) - r * LN2) / r**2, lambda r: r**2 / mpmath.power(2, r)
    ),
    "SIN": _odd(mpmath.sin, 0.7855, 7),
    # cos r = 1 - r^2 / 2 + r^4 P(r^2)
    "COS": Fit(
        2.0**-20, 0.7855, 7, lambda r: (mpmath.cos(r) - 1 + r * r / 2) / r**4, lambda r: r**4 / mpmath.cos(r), even=True
    ),
    "ASIN": _odd(mpmath.asin, 0.5001, 13),
    "ATAN": _odd(mpmath.atan, 0.41422, 11),
    "SINH": _odd(mpmath.sinh, 1.0, 8),
    # cosh r = 1 + r^2 P(r^2)
    "COSH": Fit(2.0**-20, 1.0, 8, lambda r: (mpmath.cosh(r) - 1) / r**2, lambda r: r**2 / mpmath.cosh(r), even=True),
    # log2((1 + s) / (1 - s)) = (2 / ln 2) (s + s^3 / 3) + s^5 P(s^2)
    "POW": Fit(
        2.0**-14, 0.0772, 6, lambda s: 2 * (mpmath.atanh(s) - s - s**3 / 3) / LN2 / s**5,
        lambda s: s**5 * LN2 / (2 * mpmath.atanh(s)), even=True,
    ),
    # log((1 + s) / (1 - s)) = 2 s + s^3 P(s^2)
    "LOG": Fit(
        2.0**-20, 0.17158, 7, lambda s: (2 * mpmath.atanh(s) - 2 * s) / s**3, lambda s: s**3 / (2 * mpmath.atanh(s)),
        even=True,
    ),
}  # fmt: skip


def interpolated(points: list[Any], values: list[Any]) -> list[Any]:
    """Coefficients, lowest first, of the polynomial through these points."""
    count = len(points)
    newton = list(values)
    for step in range(1, count):
        for i in range(count - 1, step - 1, -1):
            newton[i] = (newton[i] - newton[i - 1]) / (points[i] - points[i - step])
    found = [mpf(0)] * count
    for place, value in zip(reversed(points), reversed(newton), strict=True):
        shifted = [mpf(0), *found[:-1]]
        found = [a - place * b for a, b in zip(shifted, found, strict=True)]
        found[0] += value
    return found


def solve(fit: Fit) -> tuple[tuple[float, ...], float]:
    """Rounded coefficients, lowest first, and the largest weighted error that they leave."""
    low, high = fit.variable(mpf(fit.low)), fit.variable(mpf(fit.high))
    turns = (mpmath.cos(mpmath.pi * (2 * k + 1) / (2 * fit.terms)) for k in range(fit.terms))
    points = [(low + high) / 2 + (high - low) / 2 * turn for turn in turns]
    values = [fit.target(mpmath.sqrt(p) if fit.even else p) for p in points]
    rounded = tuple(float(c) for c in interpolated(points, values))
    worst = mpf(0)
    for k in range(POINTS):
        x = mpf(fit.low) + (mpf(fit.high) - mpf(fit.low)) * (k + mpf(1) / 3) / POINTS
        value = mpmath.polyval([mpf(c) for c in reversed(rounded)], fit.variable(x))
        worst = max(worst, abs(fit.weight(x) * (value - fit.target(x))))
    return rounded, float(worst)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the library")
    options = parser.parse_args()
    wrong = 0
    for name, fit in FITS.items():
        coefficients, error = solve(fit)
        same = coefficients == getattr(library, name, ())
        wrong += not same
        print(
            f"# relative error {error:.2e} = 2^{float(mpmath.log(error, 2)):.1f}{'' if same else '  NOT the library'}"
        )
        print(f"{name}: Final = ({', '.join(map(repr, coefficients))})")
    return 1 if options.check and wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
