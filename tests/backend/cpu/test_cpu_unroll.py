"""Loops that the cpu backend runs several iterations at a time, addresses in 64 bits, and what is left at edges."""

import numpy as np
import pytest

import vyre
from vyre import In, Out, gid, u8, u16, u32
from vyre.lower import lower
from vyre.lower.kernel_ir import walk

from .test_cpu_emit import Launched, agree, case_of, words

pytestmark = pytest.mark.check


@vyre.kernel(workgroup=1)
def scan(x: In[u32], out: Out[u32]):
    share = len(x) // 2
    total = u32(7)
    for k in range(share):
        total += x[gid.x * share + k]
        out[gid.x * share + k] = total


@vyre.kernel(workgroup=4)
def columns(x: In[u32], n: u32, out: Out[u32]):
    total = u32(0)
    for k in range(n):
        total += x[k * n + gid.x] * (k + 1)
    out[gid.x] = total


@vyre.kernel(workgroup=1)
def wrapped(x: In[u32], far: u32, n: u32, out: Out[u32], sums: Out[u32]):
    """The sum wraps to a small number, which the condition bounds and the loop moves on."""
    at = gid.x + far
    sums[gid.x] = at  # so that the condition is no guard around everything
    if at < 8:
        for k in range(n):
            out[at * n + k] = x[at + k] + k


@vyre.kernel(workgroup=1)
def automaton(text: In[u8], table: In[u16], out: Out[u32]):
    state = u32(0)
    for k in range(len(text)):
        state = u32(table[state + u32(text[k])])
    out[gid.x] = state


def whole(kernel):
    return [bool(item.whole) for item in walk(kernel.body) if item.op in ("load", "store")]


@pytest.mark.parametrize("share", [0, 1, 7, 8, 9, 16, 23])
def test_every_iteration_runs_once_whatever_is_left_over(share):
    x = np.arange(2 * share, dtype=np.uint32) * np.uint32(2654435761)
    case = case_of(scan.program, [x], (2, 1, 1), out=2 * share)
    agree(case)
    assert "turns" in Launched(lower(case.program), case, 16).text
    agree(case_of(scan.program, [x], (3, 1, 1), out=2 * share + 1))


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 9, 16, 17])
def test_groups_that_do_not_fill_a_block_go_to_a_narrower_one(groups):
    n = 4 * groups
    case = case_of(columns.program, [np.arange(n * n, dtype=np.uint32) * 40503, words(n)], (groups, 1, 1), out=n)
    agree(case)
    assert "@even(" in Launched(lower(case.program), case, 4).text


def test_a_sum_that_wraps_is_not_computed_in_more_bits():
    kernel = lower(wrapped.program)
    assert any(whole(kernel))  # at + k is, from at on
    x = np.arange(12, dtype=np.uint32) * 77
    agree(case_of(wrapped.program, [x, words(0xFFFFFFFC), words(3)], (8, 1, 1), out=24, sums=8))
    agree(case_of(wrapped.program, [x, words(0), words(3)], (12, 1, 1), out=24, sums=12))


@pytest.mark.parametrize("room", [65536 + 255, 65536 + 254, 600, 300, 1])
def test_lookups_by_a_bounded_local_are_covered_and_short_tables_tested(room):
    table = (np.arange(room, dtype=np.uint32) * 40503 % 521).astype(np.uint16)
    text = (np.arange(97) * 31 % 256).astype(np.uint8)
    case = case_of(automaton.program, [text, table], (3, 1, 1), out=3)
    kernel = lower(case.program)
    assert all(i.covered or not i.guarded for i in walk(kernel.body) if i.op == "load")
    agree(case)
