"""Checked arithmetic and counters, held to plain unbounded integers."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.driver.contract.values import U32_MAX
from vyre.driver.plan.bounds import Checked, Counter, reserve_bytes
from vyre.errors import DeviceOutOfMemory, InvalidProgram
from vyre.foundation.integers import ceil_div, round_up

SIZES = Checked("resident bytes", fix="split the transfer")
U64_MAX = (1 << 64) - 1
EDGES = (0, 1, 2, 3, 7, 31, 255, 1024, U32_MAX, U64_MAX // 2, U64_MAX - 1, U64_MAX)


def agrees(compute, exact, bits, field):
    """`compute` gives the exact value where it fits and names the field where not."""
    if 0 <= exact < 1 << bits:
        assert compute() == exact
        return
    with pytest.raises(
        InvalidProgram, match=rf"resident bytes: {field} overflowed u{bits} .*Fix: split the transfer"
    ) as e:
        compute()
    assert e.value.context["field"] == field


@pytest.mark.row("C-ac-1", "C-ac-6")
@pytest.mark.parametrize("a", EDGES)
@pytest.mark.parametrize("bits", [32, 64])
def test_arithmetic_is_exact_or_names_its_field(a, bits):
    for b in EDGES:
        agrees(lambda b=b: SIZES.add(a, b, "sum", bits), a + b, bits, "sum")
        agrees(lambda b=b: SIZES.mul(a, b, "area", bits), a * b, bits, "area")


def test_a_number_that_does_not_fit_says_whose_it_is():
    assert SIZES.fit(U64_MAX, "length") == U64_MAX
    with pytest.raises(InvalidProgram, match=r"resident bytes: length overflowed u64 .*\[value=18446744073709551616\]"):
        SIZES.fit(U64_MAX + 1, "length")
    with pytest.raises(InvalidProgram, match="length overflowed u64"):
        SIZES.fit(-1, "length")


def test_a_range_ends_within_its_limit():
    assert SIZES.range_end(8, 4, 12, "slice") == 12
    with pytest.raises(InvalidProgram, match=r"slice ends at 13, beyond 12 .*\[end=13\].*Fix: split"):
        SIZES.range_end(8, 5, 12, "slice")
    with pytest.raises(InvalidProgram, match="slice overflowed u64"):
        SIZES.range_end(U64_MAX, 1, U64_MAX, "slice")


@pytest.mark.row("C-nu-4")
def test_division_rounds_up():
    assert ceil_div(U64_MAX, 65536) == 281474976710656
    assert ceil_div(65537, 65536) == 2
    assert ceil_div(65536, 65536) == 1
    assert ceil_div(0, 5) == 0
    with pytest.raises(ZeroDivisionError):
        ceil_div(1, 0)


@pytest.mark.row("C-nu-5")
def test_a_product_of_axes_is_exact_or_refused():
    assert SIZES.product((65535, 2, 3), "dims") == 393210
    assert SIZES.product((0, U32_MAX, U32_MAX), "dims", 32) == 0
    assert SIZES.product((), "dims") == 1
    values = (0, 1, 2, 3, 7, 32, 255, 65535, U32_MAX)
    for x in values:
        for y in values:
            for z in values:
                for bits in (32, 64):
                    agrees(lambda d=(x, y, z), n=bits: SIZES.product(d, "dims", n), x * y * z, bits, "dims")


@pytest.mark.row("C-nu-8")
def test_alignment_rounds_up_to_a_multiple():
    assert SIZES.align_up(0, 4, "bytes", least=4) == 4
    assert SIZES.align_up(0, 4, "bytes") == 0
    assert SIZES.align_up(5, 4, "bytes") == 8
    assert SIZES.align_up(8, 4, "bytes") == 8
    assert SIZES.align_up(5, 3, "bytes") == 6
    with pytest.raises(InvalidProgram, match="bytes overflowed u64"):
        SIZES.align_up(U64_MAX, 4, "bytes")
    with pytest.raises(InvalidProgram, match="bytes overflowed u32"):
        SIZES.align_up(U32_MAX, 4, "bytes", bits=32)
    with pytest.raises(InvalidProgram, match=r"bytes: the alignment must be non-zero.*Fix: "):
        SIZES.align_up(5, 0, "bytes")


@pytest.mark.row("C-nu-9")
@settings(max_examples=512)
@given(st.integers(0, U64_MAX), st.integers(1, 63) | st.integers(64, 1 << 40), st.integers(0, 1 << 20))
def test_rounding_agrees_with_its_definition(value, part, least):
    parts = ceil_div(value, part)
    assert (parts - 1) * part < value <= parts * part == round_up(value, part)
    wanted = max(value, least)
    exact = next(n for n in range(wanted, wanted + 2 * part) if n % part == 0) if part < 64 else None
    if exact is not None:
        agrees(lambda: SIZES.align_up(value, part, "bytes", least=least), exact, 64, "bytes")


# ---- memory ---------------------------------------------------------------------------------------------------------


def test_staging_memory_is_zero_and_bounded():
    assert reserve_bytes(5, "readback") == bytearray(5)
    assert reserve_bytes(8, "readback", limit=8) == bytearray(8)
    for n in (9, -1):
        with pytest.raises(DeviceOutOfMemory, match=rf"no host memory for readback .*\[requested={n}\].*Fix: split"):
            reserve_bytes(n, "readback", limit=8)


def test_memory_that_the_host_does_not_have_is_an_error_of_ours():
    with pytest.raises(DeviceOutOfMemory, match="no host memory for readback") as e:
        reserve_bytes(1 << 62, "readback", limit=1 << 63)
    assert isinstance(e.value, MemoryError)


# ---- counters -------------------------------------------------------------------------------------------------------


class Events(list):
    def __call__(self, before, amount):
        self.append((before, amount))


@pytest.mark.row("C-ac-2")
def test_a_guard_sees_the_next_value_and_may_refuse_it():
    counter = Counter("memory", start=8)

    def budget(value):
        if value > 12:
            raise ValueError("budget")

    with pytest.raises(ValueError, match="budget"):
        counter.add(5, budget)
    assert counter.value == 8
    assert counter.add(4, budget) == 8
    assert counter.value == 12


@pytest.mark.row("C-ac-3")
def test_a_pinning_counter_stays_at_the_top_and_says_so_once():
    events = Events()
    counter = Counter("overflows", mode="pinning", start=U64_MAX - 1, on_event=events)
    assert counter.add(2) == U64_MAX - 1
    assert counter.value == U64_MAX
    assert counter.add(1) == U64_MAX
    assert counter.value == U64_MAX
    assert events == [(U64_MAX - 1, 2)]


@pytest.mark.row("C-ac-4")
def test_a_repairing_counter_ends_at_zero_and_says_what_was_asked():
    events = Events()
    counter = Counter("in flight", mode="repair", start=6, on_event=events)
    assert counter.sub(99) == 6
    assert counter.value == 0
    assert events == [(6, 99)]
    assert counter.sub(0) == 0
    assert events == [(6, 99)]


@pytest.mark.row("C-ac-5")
def test_an_id_is_handed_out_once_and_the_last_one_never():
    ids = Counter("ids", bits=8, start=253)
    assert [ids.next(), ids.next()] == [253, 254]
    with pytest.raises(InvalidProgram, match=r"counter ids overflowed .*field='u8 add'.*Fix: start a new counter"):
        ids.next()
    assert ids.value == 255


@pytest.mark.row("C-ac-6")
@pytest.mark.parametrize("mode", ["checked", "pinning"])
def test_a_refused_change_changes_nothing_and_names_itself(mode):
    counter = Counter("refs", bits=32, mode=mode, start=3)
    with pytest.raises(InvalidProgram, match=r"field='u32 sub'"):
        counter.sub(4)
    with pytest.raises(InvalidProgram, match=r"field='u32 max'"):
        counter.raise_to(1 << 32)
    assert counter.value == 3
    assert counter.sub(3) == 3
    assert counter.value == 0


def test_a_checked_counter_refuses_to_leave_its_width():
    counter = Counter("n", bits=32, start=U32_MAX)
    with pytest.raises(InvalidProgram, match=r"counter n overflowed .*\[amount=1\].*field='u32 add'"):
        counter.add()
    assert counter.value == U32_MAX


def test_a_maximum_only_rises():
    counter = Counter("peak", start=5)
    assert [counter.raise_to(n) for n in (3, 9, 4)] == [5, 9, 9]
    assert counter.value == 9


def test_a_mode_is_one_of_three():
    with pytest.raises(ValueError, match="'wrapping' is not a mode"):
        Counter("n", mode="wrapping")


def test_threads_never_exceed_a_budget_and_lose_no_count():
    counter, refused = Counter("memory"), []
    most = 3000

    def budget(value):
        if value > most:
            raise MemoryError

    def work():
        for _ in range(1000):
            try:
                counter.add(1, budget)
            except MemoryError:
                refused.append(counter.value)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert counter.value == most
    assert refused == [most] * 1000
