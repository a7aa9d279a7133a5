"""The wgpu device on a real adapter, with kernels written by hand: memory, order, time, loss, limits."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import pytest

from vyre.errors import DeviceLost, DeviceOutOfMemory, DispatchFailed, KernelCompileFailed, UnsupportedFeature
from vyre.runtime.device import Artifact, LaunchFacts

if "wgpu" not in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
    pytest.importorskip("wgpu")

from vyre.backends.wgpu import device as device_module
from vyre.backends.wgpu import devices as adapters
from vyre.backends.wgpu.device import WgpuDevice
from vyre.backends.wgpu.run.commands import Layout

from ...support.busy_devices import under_way
from ...unit.runtime.test_exits import HAS_WAY

pytestmark = pytest.mark.check

HEAD = """
struct Params { len0: u32, len1: u32, x: u32, y: u32, z: u32, row: u32, z0: u32, z1: u32 }
PARAMS params: Params;
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read_write> b: array<u32>;
@compute @workgroup_size(64)
fn vyre_kernel(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) lane: vec3<u32>) {
    let at = (group.x + group.y * params.row + params.x) * 64u + lane.x;
"""
FLIP = HEAD + "if (at < params.len0 && at < params.len1) { b[at] = a[at] ^ 0xdeadbeefu; } }"
ADD = HEAD + "if (at < params.len0 && at < params.len1) { b[at] = b[at] + a[at]; } }"
SPIN = (
    HEAD
    + """
    var value = at;
    for (var k = 0u; k < TURNS; k++) { value = value * 1664525u + 1013904223u; }
    if (at < params.len1) { b[at] = value; }
}"""
)
SPINS = 128 * (os.cpu_count() or 1)
"""Workgroups of `SPIN` that take a while."""

LONGER = [SPINS << bits for bits in range(0, 8, 2)]


def adapter_or_skip():
    why = adapters.why_none()
    if why is not None and "wgpu" in os.environ.get("VYRE_REQUIRE_BACKENDS", "").split(","):
        pytest.fail(why)
    if why is not None:
        pytest.skip(why)
    return adapters.chosen()


def load(device, text):
    immediates = device.immediate_bytes >= 32
    space = "var<immediate>" if immediates else "@group(1) @binding(0) var<uniform>"
    extra = {"writable": [False, True], "words": 8, "immediates": immediates}
    text = text.replace("TURNS", "30000u" if device.is_emulated else "20000000u")
    return device.load(Artifact(text.replace("PARAMS", space), b"", LaunchFacts((64, 1, 1), extra=extra)))


def words(*values):
    return memoryview(b"".join(v.to_bytes(4, "little") for v in values))


def flipped(data):
    return bytes(b ^ m for b, m in zip(data, b"\xef\xbe\xad\xde" * (len(data) // 4), strict=True))


@pytest.fixture(scope="module", params=[True, False], ids=["immediates", "uniforms"])
def either(request):
    """A device with parameters given in either way."""
    device = WgpuDevice(adapter_or_skip(), immediates=request.param)
    yield device
    device.close()


@pytest.fixture(scope="module")
def device():
    device = WgpuDevice(adapter_or_skip())
    yield device
    device.close()


@pytest.fixture
def own():
    """A device that the test may lose."""
    device = WgpuDevice(adapter_or_skip())
    yield device
    device.close()


def start(device, groups=SPINS, rows=1):
    """Work that takes a while; what is read is not looked at."""
    target = device.allocate(4096)
    batch = device.batch()
    batch.launch(load(device, SPIN), [device.allocate(16), target], [4, 1024], (0, 0, 0), (groups, rows, 1))
    batch.read(target, 0, 64)
    return batch.submit()


# ---- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 2, 3, 4, 5, 7, 16, 4095, 4097, 100_003])
def test_bytes_that_are_written_are_read_back(device, nbytes):
    data = os.urandom(nbytes)
    memory = device.allocate(nbytes)
    batch = device.batch()
    batch.write(memory, 0, memoryview(data))
    batch.read(memory, 0, nbytes)
    assert batch.submit().take([None]) == [data]


def test_long_data_goes_in_pieces(device, monkeypatch):
    monkeypatch.setattr(device_module, "PIECE_BYTES", 1 << 12)
    data = os.urandom(5 * (1 << 12) + 9)
    memory = device.allocate(len(data))
    batch = device.batch()
    batch.write(memory, 0, memoryview(data))
    batch.read(memory, 0, len(data))
    assert batch.submit().take([None]) == [data]


def test_the_longest_buffer_can_be_filled_and_read(device):
    size = min(device.most_bytes, 1 << 28)
    memory = device.allocate(size)
    data = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    batch = device.batch()
    batch.write(memory, 0, memoryview(data))
    batch.read(memory, 0, size)
    (found,) = batch.submit().take([None])
    assert found == data
    device.release(memory)


@pytest.mark.parametrize("offset, nbytes", [(0, 3), (1, 1), (1, 6), (3, 5), (8, 8), (13, 51), (63, 1)])
def test_any_part_of_memory_can_be_read(device, offset, nbytes):
    data = bytes(range(64))
    memory = device.allocate(64)
    batch = device.batch()
    batch.write(memory, 0, memoryview(data))
    batch.read(memory, offset, nbytes)
    batch.read(memory, 0, 64)
    assert batch.submit().take([None, None]) == [data[offset : offset + nbytes], data]


def test_readings_go_where_the_caller_wants_them(device):
    memory = device.allocate(8)
    batch = device.batch()
    batch.write(memory, 0, memoryview(b"abcdefgh"))
    batch.read(memory, 2, 5)
    batch.read(memory, 0, 0)
    batch.read(memory, 0, 2)
    target = bytearray(5)
    view = memoryview(target)
    found = batch.submit().take([view, None, None])
    assert found[0] is view
    assert (target, found[1:]) == (b"cdefg", [b"", b"ab"])


def test_results_stay_as_they_are_when_the_buffer_behind_them_is_used_again(device):
    memory = device.allocate(64)
    kept = []
    for k in range(3):
        batch = device.batch()
        batch.write(memory, 0, memoryview(bytes([k] * 64)))
        batch.read(memory, 0, 64)
        kept += batch.submit().take([None])
    assert kept == [bytes([k] * 64) for k in range(3)]


def test_what_the_caller_wrote_from_is_not_looked_at_again(device):
    source = bytearray(b"before!!")
    memory = device.allocate(8)
    batch = device.batch()
    batch.write(memory, 0, memoryview(source))
    source[:] = b"after..."
    batch.read(memory, 0, 8)
    assert batch.submit().take([None]) == [b"before!!"]


def test_memory_is_zeroed_and_copied_also_onto_itself(device):
    one, two = device.allocate(32), device.allocate(32)
    batch = device.batch()
    batch.write(one, 0, memoryview(bytes(range(32))))
    batch.zero(two, 0, 32)
    batch.copy(one, 4, two, 8, 12)
    batch.copy(two, 8, two, 20, 8)
    batch.zero(two, 12, 4)
    batch.zero(two, 0, 0)
    batch.copy(one, 0, two, 0, 0)
    batch.read(two, 0, 32)
    expected = bytes(8) + bytes([4, 5, 6, 7]) + bytes(4) + bytes([12, 13, 14, 15]) + bytes([4, 5, 6, 7, 8, 9, 10, 11])
    assert batch.submit().take([None]) == [expected + bytes(4)]


def test_a_buffer_over_the_limit_is_refused_with_its_name(device):
    assert device.allocate(device.most_bytes).nbytes == device.most_bytes
    with pytest.raises(UnsupportedFeature, match=r"over max-(storage-buffer-binding|buffer)-size of the device, \d+"):
        device.allocate(device.most_bytes + 1)


def test_released_memory_is_not_used(device):
    code, a, b = load(device, FLIP), device.allocate(16), device.allocate(16)
    device.release(b)
    batch = device.batch()
    with pytest.raises(DispatchFailed, match="released before its launch"):
        batch.launch(code, [a, b], [4, 4], (0, 0, 0), (1, 1, 1))
    with pytest.raises(DispatchFailed, match="recording work failed"):
        device.batch().zero(b, 0, 16)


@pytest.mark.parametrize("busy", [False, True], ids=["at once", "behind other work"])
def test_memory_that_is_released_stays_until_its_work_has_ended(device, busy):
    code, a, b = load(device, FLIP), device.allocate(16), device.allocate(16)
    before = start(device) if busy else None
    batch = device.batch()
    batch.zero(a, 0, 16)
    batch.write(a, 0, words(1, 2, 3, 4))
    batch.launch(code, [a, b], [4, 4], (0, 0, 0), (1, 1, 1))
    batch.copy(b, 0, a, 8, 8)
    batch.read(b, 0, 16)
    batch.read(a, 8, 8)
    ticket = batch.submit()
    device.release(a)
    device.release(b)
    result = flipped(bytes(words(1, 2, 3, 4)))
    assert ticket.take([None, None]) == [result, result[:8]]
    assert before is None or before.done()


# ---- launches -------------------------------------------------------------------------------------------------------


def test_a_launch_counts_workgroups_from_its_base(either):
    code, n = load(either, FLIP), 1000
    data = os.urandom(4 * n)
    a, b = either.allocate(4 * n), either.allocate(4 * n)
    batch = either.batch()
    batch.write(a, 0, memoryview(data))
    batch.zero(b, 0, 4 * n)
    batch.launch(code, [a, b], [n, n], (1, 0, 0), (3, 1, 1))
    batch.launch(code, [a, b], [n, n - 3], (15, 0, 0), (1, 1, 1))
    batch.launch(code, [a, b], [n, n], (0, 0, 0), (0, 1, 1))
    batch.read(b, 0, 4 * n)
    (found,) = batch.submit().take([None])
    expected = flipped(data)
    assert found[256:1024] == expected[256:1024]
    assert found[3840:3988] == expected[3840:3988]
    assert not any(found[:256])
    assert not any(found[1024:3840])
    assert not any(found[3988:])


def test_each_command_sees_what_the_ones_before_it_did(either):
    code, a, b = load(either, ADD), either.allocate(16), either.allocate(16)
    batch = either.batch()
    batch.write(a, 0, words(1, 1, 1, 1))
    batch.write(b, 0, words(1, 2, 3, 4))
    batch.launch(code, [a, b], [4, 4], (0, 0, 0), (1, 1, 1))
    batch.launch(code, [a, b], [4, 3], (0, 0, 0), (1, 1, 1))
    batch.write(a, 0, words(10, 10, 10, 10))  # after two launches that read what was there
    batch.read(b, 0, 16)
    batch.launch(code, [a, b], [2, 4], (0, 0, 0), (1, 1, 1))
    batch.read(b, 0, 16)
    assert batch.submit().take([None, None]) == [words(3, 4, 5, 5), words(13, 14, 5, 5)]


def test_a_ready_launch_can_be_repeated(either):
    code, a, b = load(either, ADD), either.allocate(16), either.allocate(16)
    batch = either.batch()
    batch.write(a, 0, words(1, 2, 3, 4))
    batch.zero(b, 0, 16)
    batch.submit()
    go = either.ready(code, [a, b], [4, 4], (1, 1, 1))
    for _ in range(5):
        assert go().wait(10)
    tickets = [go() for _ in range(5)]
    batch = either.batch()
    batch.read(b, 0, 16)
    assert batch.submit().take([None]) == [words(10, 20, 30, 40)]
    assert all(t.wait(10) for t in tickets)


def test_work_that_was_to_be_timed_is(either):
    code, a, b = load(either, SPIN), either.allocate(16), either.allocate(4096)
    batch = either.batch(timed=True)
    for k in range(70):  # more passes than one set of queries holds
        batch.launch(code, [a, b], [4, 1024], (k, 0, 0), (1, 1, 1))
        batch.zero(a, 0, 16)
    batch.read(b, 0, 4)
    begun = time.perf_counter_ns()
    ticket = batch.submit()
    ticket.take([None])
    passed = time.perf_counter_ns() - begun
    assert 0 < ticket.device_ns <= passed
    nothing = either.batch(timed=True).submit()
    assert nothing.wait(10)
    assert nothing.device_ns == 0
    plain = either.batch().submit()
    assert plain.wait(10)
    assert plain.device_ns is None


def test_a_kernel_that_does_not_compile_is_told_with_its_log(device):
    with pytest.raises(KernelCompileFailed, match="compiling the kernel failed") as caught:
        load(device, HEAD + "let wrong: f32 = 1u; }")
    assert "wrong" in caught.value.context["log"]
    assert load(device, FLIP)


def test_what_is_kept_has_a_bound(monkeypatch):
    monkeypatch.setattr(device_module, "MAX_GROUPS", 3)
    monkeypatch.setattr(device_module, "MAX_LAYOUTS", 2)
    monkeypatch.setattr(device_module, "MAX_UNIFORMS", 2)
    monkeypatch.setattr(device_module, "MAX_STAGING_BYTES", 1 << 14)
    device = WgpuDevice(adapter_or_skip(), immediates=False)
    code = load(device, FLIP)
    pieces = [device.allocate(16) for _ in range(6)]
    batch = device.batch()
    for piece in pieces:
        batch.launch(code, [pieces[0], piece], [4, 4], (0, 0, 0), (1, 1, 1)) if piece is not pieces[0] else None
        batch.read(piece, 0, 16)
    batch.read(device.allocate(1 << 13), 0, 1 << 13)
    batch.read(device.allocate(1 << 15), 0, 1 << 15)
    batch.submit().take([None] * 8)
    assert len(device._groups) == 3
    assert sum(len(p.groups) for p in pieces) == 6
    assert len(device._uniforms) == 2
    assert sum(b.size for b in device._staging) <= 1 << 14
    for n in range(3, 7):
        device._laid_out(Layout.of((True,) * n, code.layout.words, code.layout.immediates))
    assert len(device._layouts) == 2
    for piece in pieces:
        device.release(piece)
    assert not device._groups
    device.close()


def test_staging_and_groups_are_used_again(device):
    code, a, b = load(device, FLIP), device.allocate(16), device.allocate(16)

    def once():
        batch = device.batch()
        batch.launch(code, [a, b], [4, 4], (0, 0, 0), (1, 1, 1))
        batch.read(b, 0, 16)
        batch.submit().take([None])
        return set(map(id, device._staging)), dict(device._groups)

    assert once() == once()


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_work_runs_while_the_host_goes_on(device):
    load(device, SPIN)
    start(device, 1).take([None])

    def waited(groups):
        ticket = start(device, groups)
        return ticket, ticket.wait(0.001)

    ticket, ended = under_way(waited, LONGER)
    assert not ended
    assert ticket.wait(60)
    assert ticket.done()
    ticket.take([None])


def test_nobody_waits_to_submit_to_a_busy_device_and_order_is_kept(device):
    code, a, b = load(device, ADD), device.allocate(16), device.allocate(16)

    def submitted(groups):
        batch = device.batch()
        batch.write(a, 0, words(1, 1, 1, 1))
        batch.zero(b, 0, 16)
        batch.submit().wait(60)
        first = start(device, groups)
        tickets, source = [], bytearray(16)
        for k in range(4):
            source[:] = words(k, k, k, k)
            batch = device.batch()
            batch.write(a, 0, memoryview(source))
            batch.launch(code, [a, b], [4, 4], (0, 0, 0), (1, 1, 1))
            batch.read(b, 0, 16)
            tickets.append(batch.submit())
        return first, tickets

    first, tickets = under_way(submitted, LONGER)
    assert [t.take([None]) for t in tickets] == [[words(n, n, n, n)] for n in (0, 1, 3, 6)]
    assert first.done()


def test_what_goes_wrong_later_is_told_by_the_ticket(device):
    memory = device.allocate(16)
    device.release(memory)
    first = start(device)
    batch = device.batch()
    if batch._later is None:
        pytest.skip("this device takes work while it is busy")
    batch.zero(memory, 0, 16)
    ticket = batch.submit()
    with pytest.raises(DispatchFailed, match="recording work failed"):
        ticket.wait(60)
    first.take([None])
    assert device.batch().submit().wait(10)


def test_readings_that_were_taken_are_given_once_more(device):
    batch = device.batch()
    batch.read(device.allocate(16), 0, 4)
    ticket = batch.submit()
    found = ticket.take([None])
    assert [bytes(b) for b in found] == [bytes(4)]
    assert ticket.take([None]) is found  # for a caller that was interrupted in between


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer signal on this system")
def test_signals_are_handled_while_somebody_waits(device):
    class Alarm(Exception):
        pass

    def ring(*_):
        raise Alarm

    start(device, 1).take([None])
    before = signal.signal(signal.SIGALRM, ring)

    def rung(groups):
        ticket = start(device, groups)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with suppress(Alarm):
            ticket.wait(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return (ticket,)

    try:
        (ticket,) = under_way(rung, LONGER)
    finally:
        signal.signal(signal.SIGALRM, before)
    ticket.take([None])


def test_many_threads_use_one_device(device):
    code, failures = load(device, FLIP), []

    def work(seed):
        try:
            for k in range(12):
                data = bytes([seed, k, 0, 1]) * 300
                a, b = device.allocate(1200), device.allocate(1200)
                batch = device.batch()
                batch.write(a, 0, memoryview(data))
                batch.launch(code, [a, b], [300, 300], (0, 0, 0), (5, 1, 1))
                batch.read(b, 0, 1200)
                assert batch.submit().take([None]) == [flipped(data)]
                device.release(a)
                device.release(b)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures


# ---- the end --------------------------------------------------------------------------------------------------------


def uses(device, code, piece):
    """Everything that needs the device."""

    def copy_back():
        batch = device.batch()
        batch.read(piece, 0, 16)
        return batch.submit().take([None])

    return {
        "allocate": lambda: device.allocate(16),
        "load": lambda: load(device, FLIP),
        "batch": lambda: device.batch(),
        "read": copy_back,
        "ready": lambda: device.ready(code, [piece, piece], [4, 4], (1, 1, 1))(),
    }


def test_a_device_that_is_destroyed_while_it_works_is_lost(own):
    code, piece = load(own, FLIP), own.allocate(16)
    go = own.ready(code, [piece, own.allocate(16)], [4, 4], (1, 1, 1))
    go().wait(10)
    batch = own.batch()
    batch.write(piece, 0, memoryview(bytes(16)))
    batch.read(piece, 0, 16)
    ended = batch.submit()
    assert ended.wait(10)
    recorded = own.batch()
    recorded.read(piece, 0, 16)
    running, waiting = start(own), own.batch()
    waiting.read(piece, 0, 16)
    waiting = waiting.submit()
    assert not own.lost()
    own.raw.destroy()
    assert own.lost()
    for ticket in (running, waiting):
        for ask in (ticket.done, lambda t=ticket: t.wait(5), lambda t=ticket: t.take([None])):
            with pytest.raises(DeviceLost, match="the device is lost"):
                ask()
    with pytest.raises(DeviceLost):
        ended.take([None])
    with pytest.raises(DeviceLost):
        recorded.submit()
    with pytest.raises(DeviceLost):
        go()
    for name, use in uses(own, code, piece).items():
        with pytest.raises(DeviceLost, match="try_recover") as caught:
            use()
        assert caught.value.context["device"], name
    own.release(piece)


def test_waiting_ends_when_the_device_is_lost(own):
    start(own, 1).take([None])
    ticket = start(own)
    timer = threading.Timer(0.05, own.raw.destroy)
    timer.start()
    with pytest.raises(DeviceLost):
        ticket.take([None])
    timer.join()
    another = WgpuDevice(adapter_or_skip())
    assert start(another, 1).take([None])
    another.close()


def test_a_loss_that_the_library_reports_is_looked_into(own, caplog):
    import logging

    logging.getLogger("wgpu").error("The WGPU device was lost (unknown): of somebody else")
    assert not own.lost()
    own._destroy()  # as a driver does it, behind our back
    logging.getLogger("wgpu").error("The WGPU device was lost (unknown): it was ours")
    assert own.lost()
    with pytest.raises(DeviceLost):
        own.allocate(16)


def test_a_loss_that_nobody_reported_is_noticed_by_the_first_error(own):
    own._destroy()
    with pytest.raises(DeviceLost):
        own.allocate(16)
    assert own.lost()


def test_no_memory_is_an_error_of_its_own_unless_the_device_is_gone(own, monkeypatch):
    import wgpu

    def full(**_):
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    monkeypatch.setattr(own.raw, "create_buffer", full)
    with pytest.raises(DeviceOutOfMemory, match="the device is out of memory") as caught:
        own.allocate(1000)
    assert caught.value.context["nbytes"] == 1008
    assert not own.lost()
    own.raw.destroy()
    with pytest.raises(DeviceLost):
        own.allocate(1000)


def test_a_closed_device_refuses(own):
    code, piece = load(own, FLIP), own.allocate(16)
    own.close()
    own.close()
    assert not own.lost()
    for use in uses(own, code, piece).values():
        with pytest.raises(DeviceLost, match="the device was closed"):
            use()


def test_closing_does_not_wait_and_what_is_left_is_released_later():
    device = WgpuDevice(adapter_or_skip())
    start(device, 1).take([None])
    ticket = start(device)
    behind = device.batch().submit()
    device.close()
    assert device in device_module._left_behind  # others may be, of tests before
    for left in (ticket, behind):
        with pytest.raises(DeviceLost):
            left.wait(1)
    end = time.monotonic() + 60
    while device in device_module._left_behind and time.monotonic() < end:
        time.sleep(0.02)
        device_module._bury()
    assert device not in device_module._left_behind


def test_the_callers_event_loop_has_no_part_in_it(device):
    import asyncio

    async def inside():
        batch = device.batch()
        batch.read(device.allocate(16), 0, 4)
        return batch.submit()

    assert len(asyncio.run(inside()).take([None])[0]) == 4


# ---- processes ------------------------------------------------------------------------------------------------------


def run_alone(code, **environ):
    env = {k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"} | environ
    code = textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)


@pytest.mark.parametrize("rows, closed", [(0, False), (0, True), (10_000, False), (10_000, True)])
def test_a_process_that_ends_waits_for_no_device(rows, closed):
    """While one works, nothing that drivers left to be done at exit is done."""
    adapter_or_skip()
    done = run_alone(f"""
        import atexit, sys, time
        from tests.unit.runtime.test_exits import register_with_c
        register_with_c(b"what a driver does at exit")
        atexit.register(print, "what the user does")
        from tests.backend.wgpu.test_wgpu_device import *
        device = WgpuDevice(adapters.chosen())
        start(device, 1).take([None])
        ticket = start(device, 60_000, {rows})
        if not {rows}:
            ticket.wait(None)
        if {closed}:
            device.close()
        print("left", time.monotonic())
        sys.exit(7)
        """)
    ended = time.monotonic()
    assert done.returncode == 7, done.stderr
    left, user, *driver = done.stdout.splitlines()
    assert user == "what the user does"
    assert driver == (["what a driver does at exit"] if HAS_WAY and not rows else [])
    assert ended - float(left.split()[1]) < 10


def test_opening_a_device_writes_nothing_and_leaves_the_environment_alone():
    adapter_or_skip()
    done = run_alone("""
        import os
        before = dict(os.environ)
        from vyre.backends.wgpu import devices
        from vyre.backends.wgpu.device import WgpuDevice
        device = WgpuDevice(devices.chosen())
        device.batch().submit().wait(None)
        device.close()
        assert dict(os.environ) == before
        """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- types of the library -------------------------------------------------------------------------------------------


def test_types_that_are_found_quickly_are_those_that_the_library_would_find():
    from vyre.backends.wgpu import devices as found

    if (why := found.why_none()) is not None:
        pytest.skip(f"wgpu: {why}")
    import cffi
    from wgpu.backends.wgpu_native._ffi import ffi

    parser, parsed = ffi._parser, []
    whole = type(parser).parse_type_and_quals
    before, parse = dict(parser._declarations), parser._parse
    parser._parse = lambda text: parsed.append(len(parser._declarations)) or parse(text)
    try:
        for text in (
            "WGPUBindGroupEntry *",
            "WGPUBindGroupEntry[]",
            "WGPUComputeState",
            "struct WGPULimits *",
            "uint8_t []",
            "void *",
            "char[64]",
            "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
        ):
            assert parser.parse_type_and_quals(text) == whole(parser, text), text
        quick, slow = parsed[::2], parsed[1::2]
        assert max(quick) < 10 < 100 < min(slow)
        assert set(parser._declarations) == set(before)
        with pytest.raises(cffi.CDefError):
            ffi.typeof("WGPUNoSuchThing *")
    finally:
        del parser._parse
