"""Tables that remember only so much."""

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vyre.foundation.memo import keep, renew


def test_the_oldest_goes_first_and_is_told():
    table = {}
    assert keep(table, "a", 1, 2) == keep(table, "b", 2, 2) == []
    assert keep(table, "c", 3, 2) == [("a", 1)]
    assert table == {"b": 2, "c": 3}


def test_what_is_there_already_takes_no_place():
    table = {"a": 1, "b": 2}
    assert keep(table, "a", 3, 2) == []
    assert table == {"a": 3, "b": 2}
    assert keep(table, "c", 4, 2) == [("a", 3)]  # it keeps its age too


def test_what_was_used_goes_last():
    table = {"a": 1, "b": 2}
    renew(table, "a")
    assert keep(table, "c", 3, 2) == [("b", 2)]
    with pytest.raises(KeyError):
        renew(table, "b")


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())), st.integers(1, 5))
def test_it_is_a_queue_of_the_latest(steps, most):
    table, order = {}, []
    for key, used in steps:
        if used and key in order:
            renew(table, key)
            order.remove(key)
            order.append(key)
            continue
        gone = keep(table, key, str(key), most)
        if key not in order:
            order.append(key)
        assert gone == [(k, str(k)) for k in order[: max(len(order) - most, 0)]]
        order = order[-most:]
    assert list(table) == order


def test_threads_share_a_table_without_a_lock():
    table, errors = {}, []

    def work(first):
        try:
            for k in range(3000):
                keep(table, (first, k), k, 8)
                assert table.get((first, k), k) == k
                if k % 50 == 0:
                    table.clear()
        except BaseException as e:
            errors.append(e)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert len(table) <= 8
