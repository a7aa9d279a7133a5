"""One dispatch is admitted once, planned once and measured once, whatever backend it goes to."""

import gc
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre import In, Out, f32, gid
from vyre.driver.contract.values import DispatchConfig
from vyre.driver.guard import compile as pipelines
from vyre.driver.guard.backend import guarded

from ....support.device_backends import IDS, registration_or_skip


def kernel(workgroup=64):
    """One that no test has compiled or admitted."""

    @vyre.kernel(workgroup=workgroup)
    def saxpy(alpha: f32, x: In[f32], y: In[f32], out: Out[f32]):
        i = gid.x
        if i < len(out):
            out[i] = alpha * x[i] + y[i]

    return saxpy


OURS = re.compile(r"[\\/]vyre[\\/](?:driver|runtime|front|foundation)[\\/]")
ALL = re.compile(re.escape(str(Path(vyre.__file__).parent)))


def calls_of(work, where=OURS):
    """How often each function of driver, runtime and front is called, by the end of its name."""
    found = Counter()

    def look(frame, event, _):
        if event == "call" and where.search(frame.f_code.co_filename):
            found[frame.f_code.co_qualname.rpartition(".")[2]] += 1

    gc.disable()  # which may drop something of the package in the middle of this
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return found


def opened(id):
    if id == "cpu":
        return vyre.acquire("cpu")
    for name in IDS:
        try:
            return guarded(registration_or_skip(name).open())
        except pytest.skip.Exception as e:
            why = e
    raise why


@pytest.fixture(scope="module", params=["cpu", "device"])
def backend(request):
    with opened(request.param) as made:
        made.dispatch(kernel().program, [np.float32([1]), np.zeros(1, np.float32), np.zeros(1, np.float32)],
                      DispatchConfig(output_elements={"out": 1}))  # fmt: skip
        yield made


def inputs(n=100):
    return [np.float32([2]), np.arange(n, dtype=np.float32), np.ones(n, np.float32)]


WAYS = {
    "run": lambda compiled, given, out: compiled.dispatch(given, out=out),
    "timed": lambda compiled, given, out: compiled.dispatch_timed(given, out=out).outputs,
    "started": lambda compiled, given, out: compiled.dispatch_async(given, out=out).result(),
}


@pytest.mark.parametrize("size, way", list(enumerate(WAYS, 1)))
def test_a_cold_dispatch_is_validated_and_planned_once(backend, size, way):
    program = kernel().program.replace(workgroup_size=(size, 1, 1))  # which no other test has
    vyre.driver.admission.program.clear()
    program._cache.pop("admitted", None)
    target = [np.zeros(100, np.float32)]
    found = calls_of(lambda: WAYS[way](pipelines.compile(backend, program), inputs(), target))
    assert np.array_equal(target[0], 2 * np.arange(100, dtype=np.float32) + 1)
    assert found["validate"] == 1
    assert found["plan_dispatch"] == 1


@pytest.mark.parametrize("id", ["cpu", *IDS])
def test_a_cold_kernel_call_is_validated_lowered_and_planned_once(id):
    registration_or_skip(id)
    saxpy, (_, x, y) = kernel(workgroup=96).on(id), inputs()  # which no other test has
    saxpy.on("reference")(2.0, x, y)  # the front has read the arguments' types, and what it imports is there
    vyre.driver.admission.program.clear()
    with vyre.config(cache="off"):
        found = calls_of(lambda: saxpy(2.0, x, y), ALL)
    assert (found["compile_native"], found["lower"], found["validate"], found["plan_dispatch"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("way", WAYS)
def test_a_dispatch_of_a_known_shape_is_measured_once_in_any_way(backend, way):
    compiled = pipelines.compile(backend, kernel().program)
    given, target = inputs(), [np.zeros(100, np.float32)]
    compiled.dispatch(given, out=target)
    found = calls_of(lambda: WAYS[way](compiled, given, target))
    assert (found["lengths"], found["plan_dispatch"], found["prepared"]) == (1, 0, 0)


def test_a_warm_dispatch_measures_its_buffers_once_and_plans_nothing(backend):
    compiled = pipelines.compile(backend, kernel().program)
    given, target = inputs(), [np.zeros(100, np.float32)]
    for _ in range(2):
        compiled.dispatch(given, out=target)
    found = calls_of(lambda: compiled.dispatch(given, out=target))
    assert found["lengths"] == 1
    for name in ("plan_dispatch", "byte_lengths", "admit", "validate", "check_outputs", "bind", "prepared"):
        assert found[name] == 0, name
    once = "require require_open require_possible named batch submit finish settle release give_all collect"
    assert {name: n for name, n in found.items() if n > 1 and name in once.split()} == {}


@pytest.mark.parametrize("id, most, most_into", [("cpu", 14, 11), ("opencl", 50, 50)])
def test_a_warm_call_passes_few_functions(id, most, most_into):
    if id != "cpu":
        registration_or_skip(id)
    saxpy, (_, x, y), target = kernel().on(id), inputs(), np.zeros(100, np.float32)
    for limit, call in ((most, lambda: saxpy(2.0, x, y)), (most_into, lambda: saxpy(2.0, x, y, out=target))):
        for _ in range(20):
            call()
        found = calls_of(call, ALL)
        assert found.total() <= limit, found
        assert found["wait"] <= 3, found  # for the ticket of the work, for its event, for that of the reading


def test_a_sequence_of_launches_plans_each_of_them_once(backend):
    if not backend.allows_host_grid_sync_split or backend.supports_grid_sync:
        pytest.skip(f"{backend.id}: a grid-wide barrier is one launch")

    @vyre.kernel(workgroup=4)
    def halves(x: vyre.InOut[vyre.u32]):
        x[gid.x] = x[gid.x] + 1
        vyre.grid_sync()
        x[gid.x] = x[gid.x] * 2

    compiled, given = pipelines.compile(backend, halves.program), [np.arange(8, dtype=np.uint32)]
    first = calls_of(lambda: compiled.dispatch(given))
    again = calls_of(lambda: compiled.dispatch(given))
    assert (first["plan_dispatch"], again["plan_dispatch"]) == (3, 0)  # the whole and its two launches
