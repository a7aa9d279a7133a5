"""What the functions of f64 give at their edges, on every backend that has f64: where the right result is a number of
f64, or almost one."""

import math

INF, NAN, MAX, TINY, LEAST = math.inf, math.nan, 1.7976931348623157e308, 2.0**-1022, 2.0**-1074

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
}  # fmt: skip
"""Function -> (argument, ..., result)."""

for _edges in EDGES.values():
    if len(_edges[0]) == 2:
        _edges += [(NAN, NAN), (-NAN, NAN)]
