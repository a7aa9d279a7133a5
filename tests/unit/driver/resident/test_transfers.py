"""Fused transfers give what single ones give, with as few copies as that takes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.driver.resident.transfers import (
    ResidentTransferInterval,
    ResidentTransferView,
    ResidentUploadCopy,
    TransferLedger,
    fuse_resident_transfer_intervals,
    fuse_resident_upload_copies,
)
from vyre.errors import InvalidProgram

U64_MAX = (1 << 64) - 1
RANGES = st.lists(st.builds(ResidentTransferInterval, st.integers(1, 3), st.integers(0, 60), st.integers(0, 20)))


def asked(*rows):
    return [ResidentTransferInterval(*row) for row in rows]


@pytest.mark.row("C-rf-1")
def test_touching_ranges_are_one_copy_and_each_is_a_view_of_it():
    fused = fuse_resident_transfer_intervals(asked((7, 100, 4), (7, 104, 8), (7, 120, 4)))
    assert fused.copies == tuple(asked((7, 100, 12), (7, 120, 4)))
    assert fused.views[1] == ResidentTransferView(0, 4, 8)
    assert fused.bytes == 16


@pytest.mark.row("C-rf-2")
def test_memory_of_two_handles_is_never_joined():
    assert len(fuse_resident_transfer_intervals(asked((1, 1024, 8), (2, 1032, 8))).copies) == 2


@pytest.mark.row("C-rf-3")
def test_views_stay_in_the_order_in_which_they_were_asked_for():
    fused = fuse_resident_transfer_intervals(asked((3, 40, 8), (3, 0, 4), (3, 36, 4), (3, 2, 6)))
    assert fused.copies == tuple(asked((3, 0, 8), (3, 36, 12)))
    assert fused.views == ((1, 4, 8), (0, 0, 4), (1, 0, 4), (0, 2, 6))


@pytest.mark.row("C-rf-4")
def test_empty_ranges_need_no_copy():
    fused = fuse_resident_transfer_intervals(asked((1, 5, 0), (1, 8, 4), (2, 0, 0)))
    assert fused.copies == tuple(asked((1, 8, 4)))
    assert fused.views[0] == fused.views[2] == (0, 0, 0)


@pytest.mark.row("C-rf-5")
def test_a_range_beyond_all_addresses_is_refused():
    with pytest.raises(InvalidProgram, match=r"pointer arithmetic of memory 9 overflowed.*Fix: split the transfer"):
        fuse_resident_transfer_intervals(asked((9, U64_MAX - 1, 4)))
    with pytest.raises(InvalidProgram, match=r"pointer arithmetic of memory 9 overflowed"):
        fuse_resident_upload_copies([ResidentUploadCopy(9, U64_MAX - 1, memoryview(b"1234"))])


@pytest.mark.row("C-rf-6")
@given(RANGES, st.sampled_from([None, 0, 5]))
def test_every_view_is_its_range_and_no_two_copies_could_be_one(ranges, most):
    fused = fuse_resident_transfer_intervals(ranges, most)
    covered = {(r.handle_id, r.src + k) for r in ranges for k in range(r.byte_len)}
    for r, view in zip(ranges, fused.views, strict=True):
        if r.byte_len:
            copy = fused.copies[view.copy_slot]
            assert (copy.handle_id, copy.src + view.byte_offset, view.byte_len) == r
            assert view.byte_offset + view.byte_len <= copy.byte_len
    assert {(c.handle_id, c.src + k) for c in fused.copies for k in range(c.byte_len)} == covered
    if most is None:
        assert fused.bytes == len(covered)
        for a, b in zip(fused.copies, fused.copies[1:], strict=False):
            assert a.handle_id < b.handle_id or a.src + a.byte_len < b.src


WRITES = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 40), st.binary(max_size=16)), max_size=12)


@pytest.mark.row("C-rf-7")
@given(WRITES, st.sampled_from([None, 0, 6]))
def test_fused_uploads_leave_the_same_memory(writes, most):
    def image(copies):
        memory = {1: bytearray(64), 2: bytearray(64)}
        for handle, start, data in copies:
            memory[handle][start : start + len(data)] = data
        return memory

    copies = [ResidentUploadCopy(handle, start, memoryview(data)) for handle, start, data in writes]
    fused = fuse_resident_upload_copies(copies, most)
    assert image(fused) == image(writes)
    assert sum(len(c.data) for c in fused) <= sum(len(data) for *_, data in writes)
    if most is None:
        for a, b in itertools.pairwise(fused):
            apart = b.dst > a.dst + len(a.data) or b.dst + len(b.data) < a.dst
            assert a.handle_id != b.handle_id or apart


def test_the_callers_bytes_are_never_written():
    first, second = bytearray(b"aaaa"), bytearray(b"bb")
    copies = [ResidentUploadCopy(1, 0, memoryview(first)), ResidentUploadCopy(1, 4, memoryview(second))]
    (fused,) = fuse_resident_upload_copies([*copies, ResidentUploadCopy(1, 2, memoryview(b"cc"))])
    assert bytes(fused.data) == b"aaccbb"
    assert (first, second) == (b"aaaa", b"bb")


@pytest.mark.row("C-ta-1")
@given(st.lists(st.lists(st.integers(0, 1 << 40), max_size=4), max_size=16))
def test_a_ledger_adds_up_what_it_is_charged(calls):
    ledger = TransferLedger("resident upload")
    for sizes in calls:
        ledger.charge(len(sizes) + 1, sizes)
    assert ledger.counts("u") == {
        "u_operations": len(calls),
        "u_ranges": sum(len(sizes) + 1 for sizes in calls),
        "u_copies": sum(map(len, calls)),
        "u_bytes": sum(map(sum, calls)),
    }


@pytest.mark.row("C-ta-2")
def test_a_sum_that_no_counter_holds_changes_nothing():
    ledger = TransferLedger("resident upload")
    ledger.charge(1, [U64_MAX])
    before = ledger.counts("u")
    with pytest.raises(InvalidProgram, match=r"resident upload: byte accounting overflowed u64"):
        ledger.charge(1, [1])
    assert ledger.counts("u") == before
