"""A million dispatches through sequences and streams: memory stays as it is, on the host and on the device."""

import gc
import itertools
from pathlib import Path

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, gid, u32

from ...support.device_backends import IDS, open_or_skip

DISPATCHES, STEPS, STREAM = 1_000_000, 10, 100
MOST_GROWTH = 1 << 20


@vyre.kernel(workgroup=64)
def mix(a: u32, x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 3 + a


@vyre.kernel(workgroup=64)
def bump(x: InOut[u32]):
    if gid.x < len(x):
        x[gid.x] += 1


def chain(x):
    for k in range(STEPS // 2):
        x = mix(k, x)
        bump(x)
    return x


def host_bytes():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["cpu", *IDS])
def test_a_million_dispatches_leave_nothing_behind(name):
    open_or_skip(name)
    run, kernel = vyre.sequence(chain).on(name), mix.on(name)
    over_device, x = vyre.sequence(chain), np.arange(100, dtype=np.uint32)
    d = vyre.to_device(x, name)
    backend, expected = d._home.backend, chain(x)
    seen = {}
    rounds = DISPATCHES // (2 * STEPS + STREAM)
    for k in range(rounds):
        assert run(x).tobytes() == expected.tobytes()
        result = over_device(d)
        if k % 100 == 0:
            assert result.numpy().tobytes() == expected.tobytes()
        in_flight = 3 if k % 10 == 0 else None
        for j, found in enumerate(kernel.map(range(STREAM), itertools.repeat(x), in_flight=in_flight)):
            assert found[1] == 3 + j
        if k + 1 in (rounds // 10, rounds):
            seen[k + 1] = host_bytes(), backend.metrics()["resident_bytes"]
    (early, resident), (late, kept) = seen[rounds // 10], seen[rounds]
    assert kept == resident
    assert late <= early + MOST_GROWTH
