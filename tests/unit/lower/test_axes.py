"""Tests of axes vanish where the conditions around an access imply them, and only there."""

import pytest

import vyre
from vyre import D2, In, Out, gid, i32, u32
from vyre.lower import lower
from vyre.lower.kernel_ir import walk

_ = D2, In, Out, gid, i32, u32  # names that the sources see


def left_over(condition, place, ids="gid.y, gid.x", size="x.shape[{}]", before=""):
    """How many tests of axes stay in `x[place]` under a condition, and how many of those need the check of a tile."""
    text = f"""
    def k(x: In[u32, D2], out: Out[u32]):
        i, j = {ids}
        h, w = {size.format(0)}, {size.format(1)}
        {before or "pass"}
        if {condition}:
            out[gid.x] = x[{place}]
    """
    kernel = lower(vyre.kernel(workgroup=(64, 4), source=text).program)
    found = [item for item in walk(kernel.body) if item.op == "select" and item.guarded]
    return len(found), sum(item.covered for item in found)


INSIDE = "0 < i and i < h - 1 and 0 < j and j < w - 1"


@pytest.mark.parametrize("place", ["i, j", "i - 1, j", "i + 1, j", "i, j - 1", "i, j + 1", "i - 1, j + 1"])
@pytest.mark.parametrize(
    "condition", [INSIDE, "i >= 1 and i <= h - 2 and i < h - 1 and 1 <= j and j + 1 < w and j < w - 1"]
)
def test_a_stencil_inside_of_its_border_has_no_test_left(condition, place):
    assert left_over(condition, place) == (0, 0)


@pytest.mark.parametrize("place", ["i, j", "i - 1, j", "i + 1, j", "i, j - 1", "i, j + 1"])
def test_so_has_one_with_signed_ids(place):
    assert left_over(INSIDE, place, "i32(gid.y), i32(gid.x)", "i32(x.shape[{}])") == (0, 0)


@pytest.mark.parametrize(
    "condition, place",
    [
        ("i < h and j < w", "i + 1, j"),
        ("i < h and j < w", "i - 1, j"),
        ("i < h and j < w", "j, i"),
        ("i < h or j < w", "i, j"),
        ("i <= h and j < w", "i, j"),
        ("i + 1 < h and j < w", "i + 2, j"),
        ("i < h - 2 and j < w", "i + 3, j"),
    ],
)
def test_a_condition_that_does_not_imply_it_leaves_the_test(condition, place):
    assert left_over(condition, place)[0] == 1


def test_a_signed_condition_without_a_lower_bound_leaves_the_test():
    found = left_over("i < h and j < w", "i, j", "i32(gid.y), i32(gid.x)", "i32(x.shape[{}])")
    assert found[0] == 1


def test_what_no_condition_says_is_asked_once_for_a_tile():
    assert left_over("gid.x < len(out)", "i + 1, j") == (1, 1)


def test_a_return_before_the_access_counts_too():
    assert left_over("True", "i, j", before="if i >= h or j >= w: return") == (0, 0)
