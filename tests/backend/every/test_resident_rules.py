"""Handles that are not ours, not there any more, or of another process are refused, and memory has a limit."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, gid, u32
from vyre.driver.contract.values import HostResource, ResidentDispatchStep, ResidentReadRange
from vyre.errors import DeviceLost, DeviceOutOfMemory, InvalidProgram, VyreError

from ...support.device_backends import IDS, open_or_skip


@vyre.kernel(workgroup=64)
def add(x: In[u32], y: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] + y[gid.x]


@pytest.fixture(params=("cpu", *IDS))
def backend(request):
    open_or_skip(request.param)
    with vyre.acquire(request.param) as opened:
        yield opened


def every_use(backend, handle, other):
    """What can be done with a handle; `other` is a good one."""
    step = ResidentDispatchStep(add.program, (other, handle, other))
    return {
        "upload": lambda: backend.upload_resident([(handle, 0, bytes(16))]),
        "download": lambda: backend.download_resident([ResidentReadRange(handle, 0, 16)]),
        "free": lambda: backend.free_resident(handle),
        "steps": lambda: backend.dispatch_resident([step]),
        "reads": lambda: backend.dispatch_resident([], reads=[ResidentReadRange(handle, 0, 16)]),
        "dispatch": lambda: vyre.compile(add.program, backend=backend).dispatch_resident([other, handle]),
    }


def test_memory_of_another_instance_is_refused_by_number(backend):
    with vyre.acquire(backend.id) as elsewhere:
        foreign, ours = elsewhere.allocate_resident(16), backend.allocate_resident(16)
        for name, use in every_use(backend, foreign, ours).items():
            with pytest.raises(InvalidProgram, match=r"got memory of another backend instance.*Fix: download it") as e:
                use()
            assert name not in ("steps", "dispatch") or e.value.message.startswith("buffer 'y' got")
        assert bytes(elsewhere.download_resident([ResidentReadRange(foreign, 0, 16)])[0]) == bytes(16)


def test_memory_that_was_freed_is_refused(backend):
    freed, ours = backend.allocate_resident(16), backend.allocate_resident(16)
    backend.free_resident(freed)
    for use in every_use(backend, freed, ours).values():
        with pytest.raises(InvalidProgram, match=r"was freed or never allocated.*Fix: allocate it again"):
            use()


def test_memory_from_before_a_recovery_is_refused(backend):
    old = backend.allocate_resident(16)
    try:
        backend.try_recover()
    except vyre.UnsupportedFeature:
        pytest.skip("its device is never lost")
    for use in every_use(backend, old, backend.allocate_resident(16)).values():
        with pytest.raises(DeviceLost, match=r"before it was recovered.*Fix: allocate and upload it again"):
            use()


def test_handles_in_a_forked_process_are_refused(backend):
    handle, other = backend.allocate_resident(16), backend.allocate_resident(16)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        said = []
        for use in every_use(backend, handle, other).values():
            try:
                use()
                said.append("nothing")
            except VyreError as e:
                said.append(type(e).__name__ if "spawn" in e.fix else e.fix)
            except BaseException as e:
                said.append(repr(e))
        os.write(write, pickle.dumps(said))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        assert set(pickle.loads(pipe.read())) == {"DeviceLost"}
    os.waitpid(child, 0)
    backend.free_resident(handle)


def test_memory_has_a_limit_that_nobody_passes(backend):
    before = backend.metrics()["resident_bytes"]
    kept, refused = [], []

    def allocates():
        with vyre.config(resident_bytes=before + 10_000):
            for _ in range(20):
                try:
                    kept.append(backend.allocate_resident(1000))
                except DeviceOutOfMemory as e:
                    refused.append(e)

    threads = [threading.Thread(target=allocates) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(kept), len(refused)) == (10, 70)
    error = refused[0]
    assert error.retryable
    assert error.context["limit"] == error.context["resident"] == before + 10_000
    assert error.context["requested"] == 1000
    assert "Fix: free some of it, or raise VYRE_RESIDENT_BYTES" in str(error)
    for handle in kept:
        backend.free_resident(handle)
    assert backend.metrics()["resident_bytes"] == before


def test_device_arrays_and_sequences_keep_to_the_limit_and_leave_nothing_behind(backend):
    name, x = backend.id, np.ones(5000, np.uint32)
    d = vyre.to_device(x, name)
    home, run = d._home, vyre.sequence(lambda x: add(add(x, x), x)).on(name)
    gc.collect()
    home.sweep()
    home.forget_idle()
    before = home.backend.metrics()["resident_bytes"]
    with vyre.config(resident_bytes=before + 30_000):
        with pytest.raises(DeviceOutOfMemory, match="Fix: free some of it, or raise VYRE_RESIDENT_BYTES"):
            run(x)
        gc.collect()  # the error's traceback held what was recorded
        arrays = [vyre.to_device(x, name)]
        with pytest.raises(DeviceOutOfMemory):
            arrays.append(vyre.to_device(x, name))
    del arrays
    gc.collect()
    home.sweep()
    home.forget_idle()
    assert home.backend.metrics()["resident_bytes"] == before
    assert set(run(x)) == {3}


def test_a_step_binds_an_empty_resource_where_a_buffer_has_no_elements(backend):
    ours = backend.allocate_resident(16)
    backend.dispatch_resident([ResidentDispatchStep(add.program, (ours, ours, HostResource(b"")), (1, 1, 1))])
    with pytest.raises(VyreError, match=r"output 'out' is given bytes of the host.*Fix: pass resident memory"):
        backend.dispatch_resident([ResidentDispatchStep(add.program, (ours, ours, HostResource(bytes(16))))])

    @vyre.kernel(workgroup=64)
    def four(x: InOut[u32, 4]):
        if gid.x < 4:
            x[gid.x] += 1

    with pytest.raises(VyreError, match=r"Fix: "):
        backend.dispatch_resident([ResidentDispatchStep(four.program, (HostResource(b""),))])
