"""What the functions of f64 give at their edges, on every backend that has f64: where the right result is a number of
f64, or almost one."""

import math

INF, NAN, MAX, TINY, LEAST = math.inf, math.nan, 1.7976931348623157e308, 2.0**-1022, 2.0**-1074
PI, HALF_PI, QUARTER_PI, LEFT = math.pi, math.pi / 2, math.pi / 4, 2.356194490192345
ABOVE, BELOW = 1.0000000000000002, 0.9999999999999999

EDGES = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (709.782712893384, 1.7976931348622732e308),
            (709.7827128933841, INF), (MAX, INF), (-745.1332191019411, LEAST), (-745.1332191019412, 0.0), (-MAX, 0.0),
            (LEAST, 1.0), (-LEAST, 1.0)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1023.0, 2.0**1023), (1024.0, INF), (1024.5, INF),
             (MAX, INF), (-1022.0, TINY), (-1074.0, LEAST), (-1074.9, LEAST), (-1075.0, 0.0), (-1075.1, 0.0),
             (-MAX, 0.0), (-52.0, 2.0**-52), (LEAST, 1.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (709.782712893384, 1.7976931348622732e308),
              (709.7827128933841, INF), (MAX, INF), (-MAX, -1.0), (-38.0, -1.0), (LEAST, LEAST), (-TINY, -TINY)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-LEAST, NAN),
            (LEAST, -744.4400719213812), (TINY, -708.3964185322641), (MAX, 709.782712893384)],
    "log2": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-LEAST, NAN),
             (LEAST, -1074.0), (TINY, -1022.0), (2.0**-1050, -1050.0), (MAX, 1024.0), (8.0, 3.0)],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN), (-TINY, NAN), (10.0, 1.0),
              (1e15, 15.0), (1e22, 22.0), (LEAST, -323.3062153431158), (MAX, 308.25471555991674)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-INF, NAN), (-1.0000000000000002, NAN), (-MAX, NAN),
              (LEAST, LEAST), (-TINY, -TINY), (-1 + 2.0**-53, -36.7368005696771), (MAX, 709.782712893384)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (LEAST, LEAST), (-TINY, -TINY),
            (PI, 1.2246467991473532e-16), (MAX, 0.004961954789184062), (6381956970095103 * 2.0**797, 1.0)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (LEAST, 1.0), (HALF_PI, 6.123233995736766e-17),
            (PI, -1.0), (MAX, -0.9999876894265599), (6381956970095103 * 2.0**797, -4.687165924254628e-19)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (LEAST, LEAST), (-TINY, -TINY),
            (HALF_PI, 1.633123935319537e16), (MAX, -0.004962015874444895)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, HALF_PI), (-1.0, -HALF_PI), (ABOVE, NAN), (-ABOVE, NAN), (INF, NAN),
             (-INF, NAN), (MAX, NAN), (LEAST, LEAST), (-TINY, -TINY)],
    "acos": [(0.0, HALF_PI), (-0.0, HALF_PI), (1.0, 0.0), (-1.0, PI), (ABOVE, NAN), (-ABOVE, NAN), (INF, NAN),
             (-INF, NAN), (MAX, NAN), (LEAST, HALF_PI), (BELOW, 1.4901161193847656e-08)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, HALF_PI), (-INF, -HALF_PI), (MAX, HALF_PI), (-MAX, -HALF_PI),
             (LEAST, LEAST), (-TINY, -TINY), (1.0, QUARTER_PI), (-1.0, -QUARTER_PI)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (710.4758600739439, 1.7976931348621744e308),
             (710.475860073944, INF), (-710.475860073944, -INF), (MAX, INF), (-MAX, -INF), (LEAST, LEAST),
             (-TINY, -TINY)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (710.475860073944, INF), (-711.0, INF), (MAX, INF),
             (-MAX, INF), (LEAST, 1.0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (20.0, 1.0), (-23.0, -1.0), (MAX, 1.0), (-MAX, -1.0),
             (LEAST, LEAST), (-TINY, -TINY)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (1.0, 1.0), (-1.0, -1.0), (27.0, 3.0), (-3.375, -1.5), (INF, INF), (-INF, -INF),
             (MAX, 5.643803094122362e102), (-MAX, -5.643803094122362e102), (2.0**-1074, 2.0**-358), (1e300, 1e100),
             (-(2.0**-1023), -(2.0**-341))],
    "pow": [
        *((x, z, 1.0) for x in (0.0, -0.0, 1.0, -1.0, 2.5, -2.5, MAX, INF, -INF, NAN) for z in (0.0, -0.0)),
        *((1.0, y, 1.0) for y in (1.0, -3.5, MAX, TINY, INF, -INF, NAN)),
        *((x, NAN, NAN) for x in (0.0, -0.0, -1.0, 2.0, INF, -INF)), *((NAN, y, NAN) for y in (1.0, -1.0, INF, -INF)),
        (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (0.0, 2.0, 0.0), (-0.0, 2.0, 0.0), (-0.0, 0.5, 0.0), (-0.0, 2.0**60, 0.0),
        (0.0, -3.0, INF), (-0.0, -3.0, -INF), (0.0, -2.0, INF), (-0.0, -2.0, INF), (-0.0, -0.5, INF), (-0.0, -MAX, INF),
        (0.0, INF, 0.0), (-0.0, INF, 0.0), (0.0, -INF, INF), (-0.0, -INF, INF), (0.0, LEAST, 0.0), (0.0, -LEAST, INF),
        (-1.0, INF, 1.0), (-1.0, -INF, 1.0), (-1.0, 3.0, -1.0), (-1.0, 4.0, 1.0), (-1.0, MAX, 1.0), (-1.0, 0.5, NAN),
        (0.5, INF, 0.0), (-0.5, INF, 0.0), (2.0, INF, INF), (-2.0, INF, INF), (0.5, -INF, INF), (-0.5, -INF, INF),
        (2.0, -INF, 0.0), (-2.0, -INF, 0.0), (BELOW, INF, 0.0), (ABOVE, INF, INF), (INF, INF, INF), (INF, -INF, 0.0),
        (-INF, INF, INF), (-INF, -INF, 0.0), (INF, 0.5, INF), (INF, -0.5, 0.0), (INF, TINY, INF), (-INF, 3.0, -INF),
        (-INF, 2.0, INF), (-INF, 0.5, INF), (-INF, -3.0, -0.0), (-INF, -2.0, 0.0), (-INF, -0.5, 0.0), (-2.0, 0.5, NAN),
        (-TINY, 0.5, NAN), (-MAX, -1.5, NAN), (-2.0, 3.0, -8.0), (-2.0, -3.0, -0.125), (-3.0, 4.0, 81.0),
        (-2.0, 2.0**53 - 1, -INF), (-2.0, 2.0**53, INF), (-0.5, 2.0**53 - 1, -0.0), (-0.5, 2.0**53, 0.0),
        (2.0, 1023.0, 2.0**1023), (2.0, 1024.0, INF), (-2.0, 1023.0, -(2.0**1023)), (2.0, -1074.0, LEAST),
        (2.0, -1076.0, 0.0), (-2.0, -1077.0, -0.0), (0.5, 1022.0, TINY), (10.0, 10.0, 1e10), (10.0, 22.0, 1e22),
        (7.0, 8.0, 5764801.0), (3.0, 33.0, 5559060566555523.0), (0.25, 0.5, 0.5), (MAX, 1.0, MAX), (MAX, 2.0, INF),
        (-MAX, 3.0, -INF), (TINY, 1.0, TINY), (TINY, 2.0, 0.0), (-TINY, 3.0, -0.0), (LEAST, 1.0, LEAST),
        (LEAST, -1.0, INF), (TINY, -1.0, 2.0**1022), (3.5, 1.0, 3.5), (2.0, LEAST, 1.0), (MAX, -LEAST, 1.0),
        (9.0, 0.5, 3.0), (LEAST, 0.5, 2.0**-537), (-LEAST, 3.0, -0.0),
    ],
    "hypot": [
        *((x, y, INF) for x in (INF, -INF) for y in (0.0, -1.0, NAN, MAX, INF)), *((y, -INF, INF) for y in (0.0, NAN)),
        *((x, NAN, NAN) for x in (0.0, 1.0, MAX, NAN)), (NAN, 1.0, NAN), (NAN, 0.0, NAN), (0.0, 0.0, 0.0),
        (-0.0, 0.0, 0.0), (-0.0, -0.0, 0.0), (0.0, -3.0, 3.0), (-3.0, 0.0, 3.0), (3.0, 4.0, 5.0), (-5.0, 12.0, 13.0),
        (MAX, 0.0, MAX), (MAX, 1.0, MAX), (MAX, MAX, INF), (-MAX, MAX, INF), (LEAST, 0.0, LEAST), (LEAST, LEAST, LEAST),
        (3 * LEAST, 4 * LEAST, 5 * LEAST), (3 * 2.0**1020, 4 * 2.0**1020, 5 * 2.0**1020), (1.0, LEAST, 1.0),
        (3 * 2.0**-400, 4 * 2.0**-400, 5 * 2.0**-400),
    ],
    "ldexp": [
        *((x, n, x) for x in (0.0, -0.0, INF, -INF, NAN) for n in (0, 1, -1, 2**31 - 1, -(2**31))),
        (1.0, 1023, 2.0**1023), (1.0, 1024, INF), (-1.0, 1024, -INF), (1.0, -1074, LEAST), (-1.0, -1076, -0.0),
        (1.0, 0, 1.0), (1.0, -1075, 0.0), (1.5, -1075, LEAST), (-1.5, -1074, -2 * LEAST), (2.5, -1074, 2 * LEAST),
        (1 + 2.0**-52, -1023, 2.0**-1023), (MAX, 1, INF), (MAX, -2098, LEAST), (MAX, -2099, 0.0),
        (LEAST, 2097, 2.0**1023), (LEAST, 2098, INF), (LEAST, -1, 0.0), (3 * LEAST, -1, 2 * LEAST),
        (1.5, 2**31 - 1, INF), (-1.5, -(2**31), -0.0),
        (-3.0, 5, -96.0),
    ],
    "nextafter": [
        *((NAN, y, NAN) for y in (0.0, 1.0, INF, NAN)), *((x, NAN, NAN) for x in (0.0, -1.0, INF)),
        (0.0, 0.0, 0.0), (0.0, -0.0, -0.0), (-0.0, 0.0, 0.0), (-0.0, -0.0, -0.0), (0.0, 1.0, LEAST), (-0.0, 1.0, LEAST),
        (0.0, -1.0, -LEAST), (-0.0, -INF, -LEAST), (LEAST, 0.0, 0.0), (-LEAST, 1.0, -0.0), (TINY, 0.0, TINY - LEAST),
        (TINY - LEAST, 1.0, TINY), (1.0, 2.0, ABOVE), (1.0, 0.0, BELOW), (-1.0, 0.0, -BELOW), (-1.0, -2.0, -ABOVE),
        (1.0, 1.0, 1.0), (MAX, INF, INF), (INF, 0.0, MAX), (-INF, 0.0, -MAX), (INF, INF, INF), (-INF, INF, -MAX),
    ],
    "frexp_mantissa": [
        (0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1.0, 0.5), (-1.0, -0.5), (0.75, 0.75), (MAX, BELOW),
        (LEAST, 0.5), (-3 * LEAST, -0.75), (TINY, 0.5), (-12.0, -0.75),
    ],
    "frexp_exponent": [
        (0.0, 0), (-0.0, 0), (INF, 0), (-INF, 0), (1.0, 1), (-1.0, 1), (0.75, 0), (MAX, 1024), (LEAST, -1073),
        (-3 * LEAST, -1072), (TINY, -1021), (-12.0, 4),
    ],
    "atan2": [
        *((NAN, x, NAN) for x in (0.0, -0.0, 1.0, INF, NAN)), *((y, NAN, NAN) for y in (0.0, -1.0, INF, -INF)),
        (0.0, 0.0, 0.0), (-0.0, 0.0, -0.0), (0.0, -0.0, PI), (-0.0, -0.0, -PI), (0.0, 1.0, 0.0), (-0.0, 1.0, -0.0),
        (0.0, -1.0, PI), (-0.0, -1.0, -PI), (1.0, 0.0, HALF_PI), (1.0, -0.0, HALF_PI), (-1.0, 0.0, -HALF_PI),
        (-1.0, -0.0, -HALF_PI), (1.0, 1.0, QUARTER_PI), (1.0, -1.0, LEFT), (-1.0, 1.0, -QUARTER_PI),
        (-1.0, -1.0, -LEFT), (INF, INF, QUARTER_PI), (INF, -INF, LEFT), (-INF, INF, -QUARTER_PI), (-INF, -INF, -LEFT),
        (INF, 2.0, HALF_PI), (-INF, -2.0, -HALF_PI), (INF, 0.0, HALF_PI), (2.0, INF, 0.0), (-2.0, INF, -0.0),
        (2.0, -INF, PI), (-2.0, -INF, -PI), (0.0, INF, 0.0), (-0.0, -INF, -PI), (TINY, TINY, QUARTER_PI),
        (LEAST, LEAST, QUARTER_PI), (MAX, MAX, QUARTER_PI), (MAX, -MAX, LEFT), (LEAST, MAX, 0.0), (-LEAST, MAX, -0.0),
        (LEAST, -MAX, PI), (MAX, LEAST, HALF_PI), (-MAX, -LEAST, -HALF_PI), (LEAST, 1.0, LEAST), (TINY, 0.5, 2 * TINY),
        (-TINY, 1.0, -TINY), (3 * LEAST, 2.0**500, 0.0), (2.0**900, 2.0**1000, 2.0**-100),
    ],
}  # fmt: skip
"""Function -> (argument, ..., result); a whole number is an i32."""

for _edges in EDGES.values():
    if len(_edges[0]) == 2:
        _nan = 0 if isinstance(_edges[0][1], int) else NAN
        _edges += [(NAN, _nan), (-NAN, _nan)]
