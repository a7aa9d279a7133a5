"""Subgroups are 32 lanes wide everywhere, and a reduction joins them in one order."""

import struct

import numpy as np
import pytest

import vyre
from vyre import In, Out, f32, gid, subgroup_add, subgroup_size, u32
from vyre.backends.reference import run
from vyre.driver.contract import BackendCapability, VyreBackend
from vyre.errors import ArgumentValueError
from vyre.foundation.meaning.subgroup import SUBGROUP_WIDTH, SubgroupCaps, reduction_offsets


@pytest.mark.row("B-SG-02")
@pytest.mark.parametrize(
    "size, offsets",
    [
        (0, ()),
        (1, ()),
        (2, (1,)),
        (3, (2, 1)),
        (31, (16, 8, 4, 2, 1)),
        (32, (16, 8, 4, 2, 1)),
        (33, (32, 16, 8, 4, 2, 1)),
        (1 << 31, tuple(1 << k for k in reversed(range(31)))),
    ],
)
def test_offsets_halve_down_to_one(size, offsets):
    assert reduction_offsets(size) == offsets


@pytest.mark.row("B-SG-04")
@pytest.mark.parametrize("size", [-1, (1 << 31) + 1, 0xFFFFFFFF])
def test_a_width_that_no_power_of_two_holds_is_refused(size):
    with pytest.raises(
        ArgumentValueError, match=r"cannot be rounded to a power of two\. Fix: use 0 to 2147483648 lanes"
    ):
        reduction_offsets(size)


@pytest.mark.parametrize("size", [1, 2, 8, 32, 64])
def test_a_butterfly_gives_every_lane_the_sum_of_all(size):
    lanes = list(range(1, size + 1))
    for distance in reduction_offsets(size):
        lanes = [lanes[i] + lanes[i ^ distance] for i in range(size)]
    assert lanes == [size * (size + 1) // 2] * size


@vyre.kernel(workgroup=64)
def totals(x: In[f32], out: Out[f32], width: Out[u32]):
    out[gid.x] = subgroup_add(x[gid.x])
    width[gid.x] = subgroup_size()


def butterfly(values):
    lanes = np.float32(values)
    for distance in (16, 8, 4, 2, 1):  # what the language defines, whatever the engines use
        lanes = lanes + lanes[np.arange(32) ^ distance]
    return lanes


@pytest.mark.parametrize("engine", ["numpy", "scalar"])
def test_engines_add_floats_in_the_order_of_the_butterfly(engine):
    rng = np.random.default_rng(7)
    x = (rng.standard_normal(64) * 10.0 ** rng.integers(-6, 7, 64)).astype(np.float32)
    out, width = run(totals.program, [x], grid=(1, 1, 1), engine=engine).outputs
    assert bytes(out) == np.concatenate([butterfly(x[:32]), butterfly(x[32:])]).tobytes()
    assert struct.unpack("<64I", width) == (SUBGROUP_WIDTH,) * 64


@pytest.mark.row("B-SG-05")
@pytest.mark.parametrize(
    "feature, vertex, least, most, caps",
    [
        (True, False, 32, 32, SubgroupCaps(True, False, 32)),
        (True, True, 8, 64, SubgroupCaps(True, True, 8)),
        (True, False, 0, 32, SubgroupCaps()),
        (True, True, 64, 32, SubgroupCaps()),
        (False, True, 32, 32, SubgroupCaps()),
    ],
)
def test_a_device_is_usable_when_it_says_how_wide_it_is(feature, vertex, least, most, caps):
    found = SubgroupCaps.from_feature_range(feature, vertex, least, most)
    assert found == caps
    assert found.is_usable() == (found != SubgroupCaps())


def test_a_fixed_width_is_native():
    assert SubgroupCaps.native(32) == SubgroupCaps(True, False, 32)
    assert not SubgroupCaps.native(0).is_usable()


@pytest.mark.parametrize("ops, size, shuffles", [(True, 32, True), (True, None, False), (False, 32, False)])
def test_the_profile_of_a_device_promises_shuffles_of_a_known_width_only(ops, size, shuffles):
    class Device(VyreBackend, contract=1):
        id = "device"
        capability = BackendCapability(subgroup_ops=ops, subgroup_size=size)

        def dispatch(self, program, inputs, config=None, *, out=None):
            return []

    profile = Device().device_profile()
    assert (profile.supports_subgroup_ops, profile.has_subgroup_shuffle, profile.subgroup_size) == (
        ops, shuffles, size or 0,
    )  # fmt: skip
