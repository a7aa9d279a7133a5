"""Subgroup operations: blocks of lanes that are whole subgroups exchange in registers, others through memory."""

import numpy as np
import pytest

import vyre
from vyre import (
    In,
    Out,
    barrier,
    f32,
    gid,
    i32,
    lid,
    shared,
    subgroup_add,
    subgroup_ballot,
    subgroup_local_id,
    subgroup_max,
    subgroup_min,
    subgroup_mul,
    subgroup_shuffle,
    u32,
)
from vyre.backends.cpu.emit import subgroups
from vyre.lower import LowerOptions, lower

from .test_cpu_emit import agree, case_of

FLOATS = [0.0, -0.0, 1.5, -2.25, 1e-40, 3e38, np.inf, -np.inf, np.nan]


def rows(workgroup):
    @vyre.kernel(workgroup=workgroup)
    def rows(start: In[u32], values: In[f32], at: In[u32], out: Out[f32]):
        row = gid.x // 32
        lane = subgroup_local_id()
        total = f32(0)
        if row < len(out):
            for k in range(start[row] + lane, start[row + 1], 32):
                total += values[k] * values[at[k]]
        total = subgroup_add(total)
        if lane == 0 and row < len(out):
            out[row] = total

    return rows


def in_blocks(kernel, width):
    return subgroups.in_blocks(lower(kernel.program, LowerOptions()), width)


SHAPES = [(32, True), (128, True), (48, False), (16, False)]


@pytest.mark.parametrize(
    "workgroup, whole", [(96, True), *(pytest.param(*shape, marks=pytest.mark.check) for shape in SHAPES)]
)
def test_a_subgroup_for_each_row(workgroup, whole):
    kernel = rows(workgroup)
    assert [in_blocks(kernel, width) for width in (1, 4, 8, 16)] == [False, whole, whole, whole]
    rng = np.random.default_rng(workgroup)
    start = np.concatenate([[0], np.cumsum(rng.integers(0, 90, 11))]).astype(np.uint32)
    values = rng.standard_normal(int(start[-1])).astype(np.float32)
    values[rng.integers(0, values.size, 12)] = rng.choice(FLOATS, 12)
    at = rng.integers(0, values.size + 3, values.size).astype(np.uint32)  # some of them beyond its end
    agree(case_of(kernel.program, [start, values, at], (-(-32 * 12 // workgroup), 1, 1), out=11))


@pytest.mark.check
@pytest.mark.parametrize("workgroup", [(64, 1), (32, 3), (16, 4), (8, 8)])
def test_several_operations_with_steps_between_them(workgroup):
    @vyre.kernel(workgroup=workgroup)
    def several(x: In[f32], n: In[u32], out: Out[f32], marks: Out[u32]):
        i = gid.y * 64 + gid.x
        v = x[i % len(x)]
        least = subgroup_min(v)
        most = subgroup_max(v)
        found = subgroup_add(v) * subgroup_mul(f32(1) + v)
        for k in range(3):
            found += f32(k) * least
        other = subgroup_shuffle(found, n[i % len(n)])
        odd = subgroup_ballot((n[i % len(n)] & 1) == 1)
        if n[i % len(n)] > 20:
            other = other + most
        out[i] = other
        marks[i] = odd ^ u32(subgroup_add(i32(n[i % len(n)]) - 20)) ^ (lid.x // 4)

    assert in_blocks(several, 16)
    rng = np.random.default_rng(1)
    x = rng.choice([*FLOATS, *rng.standard_normal(20)], 77).astype(np.float32)
    n = rng.integers(0, 40, 50).astype(np.uint32)
    agree(case_of(several.program, [x, n], (2, 3, 1), out=2000, marks=2000))


def test_blocks_of_a_loop_that_all_lanes_share_are_several_subgroups():
    @vyre.kernel(workgroup=256)
    def shares(n: In[u32], x: In[f32], out: Out[f32]):
        total = f32(0)
        for k in range(n[0]):
            total += x[k * 256 + lid.x]
        out[gid.x] = subgroup_add(total) + f32(gid.x // 64) + f32(subgroup_local_id() // 16)

    x = np.random.default_rng(2).standard_normal(256 * 5).astype(np.float32)
    agree(case_of(shares.program, [np.array([5], np.uint32), x], (2, 1, 1), out=512))


def test_where_lanes_may_not_all_come_the_workgroup_is_cut():
    @vyre.kernel(workgroup=64)
    def returning(x: In[u32], out: Out[u32]):
        if x[0] == 1:
            return
        out[gid.x] = subgroup_add(x[gid.x])

    @vyre.kernel(workgroup=64)
    def looping(x: In[u32], out: Out[u32]):
        total = u32(0)
        for k in range(x[0]):
            total += subgroup_add(x[gid.x] + k)
        out[gid.x] = total

    @vyre.kernel(workgroup=64)
    def meeting(x: In[u32], out: Out[u32]):
        tile = shared(u32, 64)
        tile[lid.x] = subgroup_add(x[gid.x])
        barrier()
        out[gid.x] = tile[63 - lid.x]

    x = np.arange(128, dtype=np.uint32) + 2
    for kernel in (returning, looping, meeting):
        assert not in_blocks(kernel, 16)
        agree(case_of(kernel.program, [x], (2, 1, 1), out=128), widths=(16,))
