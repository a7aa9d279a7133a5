"""Intervals of results: never too narrow, and narrow enough to be of use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.lower.instructions import BOUNDED, COMPARES, function_of, interval_of
from vyre.lower.intervals import LIMITS
from vyre.lower.kernel_ir import Ins

from ...support.tiers import first_quick

ALONE = {"convert", "narrow", "mulhi", "popcount", "clz", "ctz", "not"}
SHAPES = {
    **{(op, t): (t, t) for op in sorted(BOUNDED - ALONE - COMPARES) for t in ("u32", "i32", "u64", "i64")},
    **{(op, t): (t,) for op in ("popcount", "clz", "ctz", "not") for t in ("u32", "i32", "u64", "i64")},
    **{(op, "bool"): ("bool", "bool") for op in ("and", "or", "xor", "eq", "ne")},
    ("not", "bool"): ("bool",),
    ("mulhi", "u32"): ("u32", "u32"),
    **{(f"convert to {t}", s): (s,) for t in ("u32", "i32", "u64", "i64") for s in LIMITS if s != t},
    **{(f"narrow to {t}", f"{t[0]}32"): (f"{t[0]}32",) for t in ("u8", "i8", "u16", "i16")},
    **{(op, t): (t, t) for op in sorted(COMPARES) for t in ("u32", "i32", "u64", "i64")},
}  # fmt: skip
"""(operation, type) -> types of operands"""


@st.composite
def points(draw, t):
    """An interval of a type and two values in it."""
    low, high = LIMITS[t]
    near = st.sampled_from((low, low + 1, 0, 1, 2, 3, 7, 31, 63, high >> 1, high)).filter(lambda v: low <= v <= high)
    a, b, c, d = sorted(draw(near | st.integers(low, high)) for _ in range(4))
    return (a, d), b, c


@pytest.mark.parametrize("op, t", first_quick(sorted(SHAPES, key=lambda shape: shape[1] not in ("i32", "bool")), 45))
def test_a_result_lies_in_the_interval_of_results(op, t):
    word, _, target = op.partition(" to ")
    operands = SHAPES[op, t]
    dtype = "bool" if word in COMPARES else target if word == "convert" else t
    attr = target if word == "narrow" else None
    ins = Ins(word, dtype, tuple(Ins("const", o) for o in operands), attr)
    f = function_of(ins, False)

    @settings(max_examples=50)
    @given(st.data())
    def check(data):
        drawn = [data.draw(points(o)) for o in operands]
        if word in ("shl", "shr"):
            most = 63 if "64" in t else 31
            drawn[1] = tuple(v & most for v in drawn[1][0]), drawn[1][1] & most, drawn[1][2] & most
            n = sorted({*drawn[1][0], *drawn[1][1:]})
            drawn[1] = (n[0], n[-1]), *drawn[1][1:]
        low, high = interval_of(word, dtype, attr, [d[0] for d in drawn])
        assert LIMITS[dtype][0] <= low <= high <= LIMITS[dtype][1]
        for k in (1, 2):
            values = [bool(d[k]) if o == "bool" else d[k] for d, o in zip(drawn, operands, strict=True)]
            if word in ("div", "rem") and (values[1] == 0 or (values[1] == -1 and values[0] == LIMITS[t][0])):
                continue  # the form has no such step
            assert low <= f(*values) <= high

    check()


@pytest.mark.parametrize(
    "op, t, args, expected",
    [
        ("add", "u32", [(0, 9), (1, 2)], (1, 11)),
        ("add", "u32", [(0, 0xFFFFFFFF), (1, 1)], (0, 0xFFFFFFFF)),
        ("sub", "u32", [(0, 0), (1, 1)], (0xFFFFFFFF, 0xFFFFFFFF)),
        ("sub", "u32", [(5, 9), (1, 5)], (0, 8)),
        ("sub", "u32", [(5, 9), (1, 6)], (0, 0xFFFFFFFF)),
        ("mul", "i32", [(-2, 3), (-5, 7)], (-15, 21)),
        ("and", "i32", [(-8, 8), (0, 5)], (0, 5)),
        ("or", "u32", [(2, 4), (1, 3)], (2, 7)),
        ("rem", "u32", [(0, 90), (0, 7)], (0, 6)),
        ("rem", "u32", [(2, 3), (4, 9)], (2, 3)),
        ("div", "i32", [(-9, 9), (2, 4)], (-4, 4)),
        ("shr", "u32", [(64, 128), (2, 3)], (8, 32)),
        ("lt", "bool", [(0, 3), (4, 9)], (1, 1)),
        ("lt", "bool", [(4, 9), (0, 4)], (0, 0)),
        ("lt", "bool", [(4, 9), (0, 5)], (0, 1)),
    ],
)
def test_intervals_are_as_narrow_as_one_would_say(op, t, args, expected):
    assert interval_of(op, t, None, args) == expected
