"""Decisions are values: the funnel branches on them and counts them, and explain prints the same ones."""

import numpy as np
import pytest

import vyre
from vyre.driver import counters
from vyre.driver.contract.values import DEFAULT_CONFIG, DispatchConfig
from vyre.driver.policy.launch import (
    BY_BACKEND,
    BY_DRIVER,
    COOPERATIVE,
    NONE,
    PLAIN,
    SEQUENCE,
    choose_deadline,
    choose_launch,
)


class Device(vyre.VyreBackend, contract=1):
    id = "decided"

    def __init__(self, **facts):
        self.capability = vyre.BackendCapability(max_workgroups_per_dimension=8, **facts)

    def dispatch(self, program, inputs, config=DEFAULT_CONFIG, *, out=None):
        raise NotImplementedError


@vyre.kernel(workgroup=1)
def plain(x: vyre.In[vyre.u32], y: vyre.Out[vyre.u32]):
    y[vyre.gid.x] = x[vyre.gid.x]


@vyre.kernel(workgroup=1)
def waiting(x: vyre.InOut[vyre.u32], y: vyre.Out[vyre.u32]):
    x[vyre.gid.x] = 1
    vyre.grid_sync()
    y[vyre.gid.x] = x[vyre.gid.x ^ 1]


WHOLE = {"grid_sync": True, "host_grid_sync_split": False}


@pytest.mark.parametrize(
    "facts, kernel, grid, holds, config, choice, launches",
    [
        ({}, plain, (8, 1, 1), True, DEFAULT_CONFIG, PLAIN, None),
        ({}, plain, (9, 1, 1), True, DEFAULT_CONFIG, SEQUENCE, 2),
        ({}, plain, (9, 17, 1), True, DEFAULT_CONFIG, SEQUENCE, 6),
        ({}, waiting, (8, 1, 1), True, DEFAULT_CONFIG, SEQUENCE, 2),
        ({"grid_sync": True}, waiting, (8, 1, 1), True, DEFAULT_CONFIG, COOPERATIVE, None),
        ({"grid_sync": True}, waiting, (8, 1, 1), False, DEFAULT_CONFIG, SEQUENCE, 2),
        ({"grid_sync": True}, waiting, (8, 1, 1), False, DispatchConfig(cooperative=True), COOPERATIVE, None),
        (WHOLE, waiting, (8, 1, 1), False, DEFAULT_CONFIG, COOPERATIVE, None),
    ],
)  # fmt: skip
def test_a_dispatch_is_one_launch_where_the_device_takes_it_whole(facts, kernel, grid, holds, config, choice, launches):
    decided = choose_launch(kernel.program, Device(**facts), config, grid, holds=holds)
    assert (decided.what, decided.choice, decided.numbers.get("launches")) == ("launch", choice, launches)
    assert decided.reason


@pytest.mark.parametrize(
    "deadline, timeout, choice", [("none", None, NONE), ("none", 1.0, BY_DRIVER), ("cooperative", 1.0, BY_BACKEND)]
)
def test_the_driver_keeps_a_deadline_that_the_backend_does_not(deadline, timeout, choice):
    decided = choose_deadline(Device(deadline=deadline), DispatchConfig(timeout=timeout))
    assert decided.choice == choice
    assert decided.numbers == ({} if timeout is None else {"timeout_s": timeout})


@pytest.mark.parametrize("kernel, choice", [(plain, PLAIN), (waiting, SEQUENCE)])
def test_what_explain_prints_is_what_the_funnel_decides_and_counts(kernel, choice):
    call, x = kernel.on("cpu"), np.arange(64, dtype=np.uint32)
    explained = call.explain(x).choice("launch")
    before = counters.decision_counters().get(("launch", choice), 0)
    call(x.copy(), config=DispatchConfig(label=f"decided {choice}", timeout=30))
    call(x.copy(), config=DispatchConfig(label=f"decided {choice}", timeout=30))  # planned once
    assert counters.decision_counters()["launch", choice] > before
    assert counters.decision_counters()["deadline", BY_BACKEND] >= 1
    assert explained.endswith(choice)
