"""What the functions of the math library give at their edges, on every backend.

Both zeros, subnormals, the smallest and the largest number, infinities, NaN, and where a function overflows, vanishes
or is exact.
"""

import numpy as np

INF, NAN, MAX, TINY = float("inf"), float("nan"), 3.4028234663852886e38, 2.0**-126
HALF_PI = float(np.float32(np.pi / 2))
SUBNORMALS = (2.0**-149, 2.0**-127, TINY - 2.0**-149)

EDGES = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (88.72283, 3.4027985e38), (88.72284, INF), (MAX, INF),
            (-87.33654, 1.1754997e-38), (-87.33655, 0.0), (-MAX, 0.0), (TINY, 1.0), (-TINY, 1.0)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (127.0, 2.0**127), (128.0, INF), (129.5, INF),
             (MAX, INF), (-126.0, TINY), (-126.00001, 0.0), (-127.0, 0.0), (-149.0, 0.0), (-MAX, 0.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-TINY, NAN),
            (TINY, -87.33655), (MAX, 88.72284)],
    "log2": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-TINY, NAN),
             (TINY, -126.0), (MAX, 128.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (TINY, TINY), (-TINY, -TINY), (MAX, -0.5218765)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (TINY, 1.0), (-TINY, 1.0), (MAX, 0.8530210)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (TINY, TINY), (-TINY, -TINY), (MAX, -0.6117979),
            (HALF_PI, -22877332.0)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, HALF_PI), (-1.0, -HALF_PI), (1.0000001, NAN), (-1.0000001, NAN),
             (INF, NAN), (-INF, NAN), (MAX, NAN), (TINY, TINY), (-TINY, -TINY)],
    "acos": [(0.0, HALF_PI), (-0.0, HALF_PI), (1.0, 0.0), (-1.0, 2 * HALF_PI), (1.0000001, NAN), (-1.0000001, NAN),
             (INF, NAN), (-INF, NAN), (MAX, NAN), (TINY, HALF_PI)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, HALF_PI), (-INF, -HALF_PI), (MAX, HALF_PI), (-MAX, -HALF_PI), (TINY, TINY),
             (-TINY, -TINY)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (89.415985, 3.4028196e38), (89.41599, INF),
             (-89.41599, -INF), (MAX, INF), (-MAX, -INF), (TINY, TINY), (-TINY, -TINY)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (89.415985, 3.4028196e38), (89.41599, INF),
             (-89.41599, INF), (MAX, INF), (-MAX, INF), (TINY, 1.0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (9.5, 1.0), (-9.5, -1.0), (MAX, 1.0), (-MAX, -1.0),
             (TINY, TINY), (-TINY, -TINY)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-INF, NAN), (-1.0000001, NAN), (-MAX, NAN),
              (TINY, TINY), (-TINY, -TINY), (-0.99999994, -16.635532), (MAX, 88.72284), (1.0, 0.6931472)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (88.72283, 3.4027985e38), (88.72284, INF), (MAX, INF),
              (-MAX, -1.0), (-16.0, -0.9999999), (-17.5, -1.0), (TINY, TINY), (-TINY, -TINY)],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (10.0, 1.0), (1e10, 10.0), (1e-5, -5.0), (INF, INF), (-INF, NAN),
              (-1.0, NAN), (-TINY, NAN), (TINY, -37.92978), (MAX, 38.53184)],
    "exp10": [(0.0, 1.0), (-0.0, 1.0), (1.0, 10.0), (10.0, 1e10), (INF, INF), (-INF, 0.0), (38.531837, 3.4028083e38),
              (38.53184, INF), (MAX, INF), (-37.92978, 1.1754955e-38), (-37.929783, 0.0), (-MAX, 0.0), (TINY, 1.0)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (1.0, 1.0), (-1.0, -1.0), (27.0, 3.0), (-3.375, -1.5), (INF, INF), (-INF, -INF),
             (MAX, 6.9814636e12), (-MAX, -6.9814636e12), (TINY, 2.0**-42), (-TINY, -(2.0**-42))],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (MAX, 89.415985), (-MAX, -89.415985),
              (1.0, 0.8813736), (TINY, TINY), (-TINY, -TINY), (0.5, 0.4812118), (4096.0, 9.010913), (4097.0, 9.011157)],
    "acosh": [(1.0, 0.0), (0.99999994, NAN), (0.0, NAN), (-0.0, NAN), (-1.0, NAN), (INF, INF), (-INF, NAN),
              (MAX, 89.415985), (1.0000001, 0.00048828125), (1.5, 0.9624237), (TINY, NAN), (-MAX, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.0000001, NAN), (-1.0000001, NAN), (INF, NAN),
              (-INF, NAN), (MAX, NAN), (TINY, TINY), (-TINY, -TINY), (0.5, 0.54930615), (0.99999994, 8.664340)],
    "sinpi": [(0.0, 0.0), (-0.0, -0.0), (1.0, 0.0), (-1.0, -0.0), (2.0, 0.0), (-3.0, -0.0), (0.5, 1.0), (1.5, -1.0),
              (-0.5, -1.0), (8388607.0, 0.0), (8388607.5, -1.0), (-16777218.0, -0.0), (INF, NAN), (-INF, NAN),
              (MAX, 0.0), (-MAX, -0.0), (TINY, 3.6929245e-38), (-TINY, -3.6929245e-38)],
    "cospi": [(0.0, 1.0), (-0.0, 1.0), (0.5, 0.0), (-0.5, 0.0), (1.5, 0.0), (-1.5, 0.0), (1.0, -1.0), (-1.0, -1.0),
              (2.0, 1.0), (4194303.5, 0.0), (8388609.0, -1.0), (16777216.0, 1.0), (INF, NAN), (-INF, NAN), (MAX, 1.0),
              (-MAX, 1.0), (TINY, 1.0), (-TINY, 1.0)],
    "tanpi": [(0.0, 0.0), (-0.0, -0.0), (1.0, -0.0), (-1.0, 0.0), (2.0, 0.0), (-2.0, -0.0), (3.0, -0.0), (0.5, INF),
              (-0.5, -INF), (1.5, -INF), (-1.5, INF), (2.5, INF), (0.25, 1.0), (0.75, -1.0), (-0.25, -1.0),
              (8388609.0, -0.0), (INF, NAN), (-INF, NAN), (MAX, 0.0), (-MAX, -0.0), (TINY, 3.6929245e-38)],
}  # fmt: skip
"""Function -> (argument, result)."""

for _edges in EDGES.values():
    _zeros = {str(x): y for x, y in _edges}  # which tells -0.0 from 0.0
    _edges += [(NAN, NAN), (-NAN, NAN)]
    _edges += [(sign * x, _zeros[str(sign * 0.0)]) for x in SUBNORMALS for sign in (1, -1)]
