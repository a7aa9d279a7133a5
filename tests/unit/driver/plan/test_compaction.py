"""What is read back where results have lengths: all that counts and no more, small ones in one piece."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.driver.plan.compaction import CompactResultRecord, ResultSlot, plan_result_compaction
from vyre.errors import InvalidProgram

U64_MAX = (1 << 64) - 1


def slots(*rows):
    return [ResultSlot(*row) for row in rows]


@pytest.mark.row("C-rc-1")
def test_small_results_lie_behind_each_other_by_slot():
    plan = plan_result_compaction(slots((2, 0, 128), (1, 12, 128), (3, 24, 256)), 32)
    assert plan.compact_records == ((1, 0, 12), (3, 12, 24))
    assert (plan.full_capacity_bytes, plan.compact_bytes, plan.direct_bytes) == (512, 36, 0)
    assert (plan.avoided_readback_bytes, plan.avoided_readback_basis_points) == (476, 9296)


@pytest.mark.row("C-rc-2")
def test_large_results_are_read_alone():
    plan = plan_result_compaction(slots((1, 64, 128), (2, 512, 1024)), 128)
    assert (plan.direct_slots, plan.compact_bytes, plan.direct_bytes) == ((2,), 64, 512)
    assert (plan.selected_readback_bytes, plan.avoided_readback_bytes) == (576, 576)
    assert plan.avoided_readback_basis_points == 5000


@pytest.mark.row("C-rc-3")
@pytest.mark.parametrize("given", [[], slots((4, 0, 0)), slots((1, 0, 0), (0, 0, 0))])
def test_results_without_room_are_no_copy(given):
    plan = plan_result_compaction(given)
    assert plan == ((), (), 0, 0, 0)
    assert (plan.avoided_readback_bytes, plan.avoided_readback_basis_points) == (0, 0)


@pytest.mark.row("C-rc-4")
def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidProgram, match=r"result 1 is there twice.*Fix: name each output once"):
        plan_result_compaction(slots((1, 4, 8), (0, 4, 8), (1, 0, 8)))
    with pytest.raises(
        InvalidProgram, match=r"result 3 is said to have 9 bytes and has room for 8.*Fix: count no more"
    ):
        plan_result_compaction(slots((3, 9, 8)))
    with pytest.raises(InvalidProgram, match=r"result compaction: capacity overflowed u64.*Fix: read back less"):
        plan_result_compaction(slots((0, 0, U64_MAX), (1, 0, 1)))


@st.composite
def grids(draw):
    rows = draw(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 400), st.integers(0, 400)), unique_by=lambda r: r[0])
    )
    return slots(*((slot, min(a, b), max(a, b)) for slot, a, b in rows)), draw(st.integers(0, 300))


@pytest.mark.row("C-rc-5")
@given(grids())
@settings(max_examples=30)
def test_every_byte_that_counts_is_read_once(case):
    asked, most = case
    plan = plan_result_compaction(asked, most)
    assert plan.full_capacity_bytes == sum(s.capacity_bytes for s in asked)
    assert plan.selected_readback_bytes == sum(s.meaningful_bytes for s in asked)
    for order in ([r.slot for r in plan.compact_records], plan.direct_slots):
        assert list(order) == sorted(set(order))
    ends = [0, *(r.compact_offset + r.bytes for r in plan.compact_records)]
    assert [r.compact_offset for r in plan.compact_records] == ends[:-1]
    assert ends[-1] == plan.compact_bytes
    wide = plan_result_compaction(asked, most, step=16)
    assert all(r.compact_offset % 16 == 0 for r in wide.compact_records)
    assert [(r.slot, r.bytes) for r in wide.compact_records] == [(r.slot, r.bytes) for r in plan.compact_records]


def test_a_result_as_long_as_the_limit_is_gathered():
    assert plan_result_compaction(slots((0, 32, 99), (1, 33, 99)), 32) == (
        (CompactResultRecord(0, 0, 32),), (1,), 198, 32, 33,
    )  # fmt: skip
