"""A long grid is folded into rows, so that the device need not wait between launches; ids are what they would be."""

import pytest
from tests.contract.programs import unwords

import vyre
from vyre import Out, gid, u32, wg
from vyre.driver.contract.values import DispatchConfig, ResidentReadRange
from vyre.driver.guard.backend import guarded

from ...support.device_backends import open_or_skip

ROW = 3


@vyre.kernel(workgroup=(4, 1))
def places(out: Out[u32]):
    out[gid.y * 64 + gid.x] = gid.x + 1000 * wg.x + 100_000 * wg.y + 1


@pytest.fixture
def backend():
    opened = open_or_skip("wgpu")
    device = opened.session().device
    device.row, device.most_groups = ROW, (ROW * ROW, ROW, ROW)
    yield guarded(opened)
    opened.shutdown()


def expected(x, y):
    found = [0] * 64 * 4
    for j in range(y):
        for i in range(4 * x):
            found[j * 64 + i] = i + 1000 * (i // 4) + 100_000 * j + 1
    return found


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("y", [1, 2, 4])
@pytest.mark.parametrize("x", [1, 2, 3, 4, 5, 6, 8, 9, 10, 13])
def test_every_workgroup_of_a_folded_grid_runs_once_with_its_own_id(backend, x, y, timeout):
    config = DispatchConfig(grid_override=(x, y, 1), output_elements={"out": 256}, timeout=timeout)
    (found,) = backend.dispatch(places.program, [], config)
    assert unwords(found) == expected(x, y)


@pytest.mark.parametrize("x", [2, 3, 7, 9])
def test_a_launch_that_is_kept_ready_is_folded_too(backend, x):
    handle = backend.allocate_resident(1024)
    pipeline = backend.compile_native(
        places.program, DispatchConfig(grid_override=(x, 1, 1), output_elements={"out": 256})
    )
    for _ in range(3):
        backend.upload_resident([(handle, 0, bytes(1024))])
        pipeline.dispatch_resident([handle])
    (found,) = backend.download_resident([ResidentReadRange(handle, 0, 1024)])
    assert unwords(found) == expected(x, 1)
