"""What memory that stays on the device spares, by the figures of the backend."""

import threading

import numpy as np
import pytest

import vyre
from vyre import In, InOut, gid, u32
from vyre.driver import pipeline as pipelines
from vyre.driver.contract.values import ResidentDispatchStep
from vyre.driver.resident.reuse import ResidentGraphReuseTelemetry as Telemetry

from ...support.device_backends import IDS, open_or_skip

B = 400


@pytest.fixture(params=("cpu", *IDS))
def backend(request):
    return open_or_skip(request.param)


@vyre.kernel(workgroup=64)
def gather(edges: In[u32], out: InOut[u32]):
    if gid.x < len(out):
        out[gid.x] += edges[gid.x]


def figures(backend):
    metrics = backend.metrics()
    return Telemetry(*(metrics[f"resident_reuse_{f}"] for f in Telemetry.__dataclass_fields__))


def graph(backend):
    handles = backend.allocate_resident(B), backend.allocate_resident(B)
    backend.upload_resident([(handles[0], 0, np.arange(B // 4, dtype=np.uint32))])
    return handles


def test_five_dispatches_over_one_graph_are_one_upload_and_four_that_were_spared(backend):
    before, handles = figures(backend), graph(backend)
    pipe = pipelines.compile(backend, gather.program)
    for _ in range(5):
        pipe.dispatch_resident(list(handles))
    assert figures(backend).delta_since(before) == Telemetry(1, 4, B, 4 * B)
    backend.free_resident(handles[0])
    assert figures(backend).delta_since(before) == Telemetry(1, 4, B, 4 * B)


def test_an_upload_in_between_is_paid_for_by_the_next_dispatch(backend):
    before, (edges, out) = figures(backend), graph(backend)
    pipe = pipelines.compile(backend, gather.program)
    for turns in (3, 2, 0, 1):
        for _ in range(turns):
            pipe.dispatch_resident([edges, out])
        backend.upload_resident([(edges, 0, bytes(8)), (edges, 8, bytes(4))])
    assert figures(backend).delta_since(before) == Telemetry(5, 3, B + 4 * 12, 3 * B)
    backend.upload_resident([(out, 0, bytes(B))])  # from now on this one counts too
    for _ in range(3):
        pipe.dispatch_resident([edges, out])
    assert figures(backend).delta_since(before) == Telemetry(6, 3 + 2 + 2, 2 * B + 48, 7 * B)


def test_copies_and_reuse_are_counted_apart(backend):
    before, metrics = figures(backend), backend.metrics()
    edges = backend.allocate_resident(B)
    backend.upload_resident([(edges, 0, bytes(64)), (edges, 32, bytes(64))])
    assert figures(backend).delta_since(before) == Telemetry(1, 0, 128, 0)
    copied = backend.metrics()["resident_upload_bytes"] - metrics["resident_upload_bytes"]
    assert copied == (128 if backend.residents.most_fused == 0 else 96)


def test_steps_count_for_each_time_that_one_reads(backend):
    before, handles = figures(backend), graph(backend)
    steps = (ResidentDispatchStep(gather.program, handles),) * 2
    for _ in range(3):
        backend.dispatch_resident(steps, repeat=5)
    assert figures(backend).delta_since(before) == Telemetry(1, 29, B, 29 * B)


def test_threads_lose_no_count(backend):
    before, handles = figures(backend), graph(backend)
    pipe = pipelines.compile(backend, gather.program)

    def work():
        for _ in range(50):
            pipe.dispatch_resident(list(handles))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert figures(backend).delta_since(before) == Telemetry(1, 199, B, 199 * B)
