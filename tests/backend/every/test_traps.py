"""Of invocations that trap an error tells how many there were, and the first of them: the same on every backend."""

import pickle
import random

import numpy as np
import pytest

import vyre
from vyre import DispatchConfig, In, InOut, Out, Trap, barrier, gid, lid, shared, trap, u32
from vyre.driver.contract.traps import require_no_trap, trap_words
from vyre.errors import MOST_TRAPS, Trapped

BACKENDS = ("reference", "cpu", "opencl", "wgpu", "cuda")


@pytest.fixture(params=BACKENDS)
def on(request):
    try:
        vyre.acquire(request.param).shutdown()
    except vyre.BackendUnavailable as e:
        pytest.skip(str(e))
    return request.param


@vyre.kernel
def checked(x: In[u32], out: Out[u32]):
    i = gid.x
    assert x[i] % 3 != 1, "one of three"
    if x[i] % 5 == 2:
        trap("two of five", x[i] * 70_000)
    out[i] = x[i] * 2


def expected(x):
    bad = [
        ("assertion failed: one of three" if v % 3 == 1 else "two of five", i)
        for i, v in enumerate(x.tolist())
        if v % 3 == 1 or v % 5 == 2
    ]
    return len(bad), [(tag, (i, 0, 0)) for tag, i in bad[:MOST_TRAPS]]


def raised(call):
    with pytest.raises(Trap) as found:
        call()
    return found.value


@pytest.mark.row("C-dd-2")
def test_a_thousand_traps_are_counted_and_the_first_64_are_told(on):
    x = np.zeros(4096, np.uint32)
    failing = np.random.default_rng(7).permutation(4096)[:1000]
    x[failing] = 1
    found = raised(lambda: checked.on(on)(x))
    assert (found.trapped, len(found.first), found.overflow) == (1000, 64, 936)
    assert [one.invocation for one in found.first] == [(int(i), 0, 0) for i in sorted(failing)[:64]]
    assert "[trapped=1000]" in str(found)
    assert "first" not in str(found)


@pytest.mark.parametrize("size", [1, 63, 64, 65, 5000, 70_001])
def test_tags_addresses_and_lines_belong_to_their_invocation(on, size):
    x = np.arange(size, dtype=np.uint32)[::-1] + 1
    found = raised(lambda: checked.on(on)(x))
    count, first = expected(x)
    assert found.trapped == count
    assert [(one.tag, one.invocation) for one in found.first] == first
    for one in found.first:
        if one.tag == "two of five":
            assert one.address == int(x[one.invocation[0]]) * 70_000 % 2**32
        assert one.place.startswith(f"{__file__}:")
    assert len({one.place for one in found.first}) == len({one.tag for one in found.first})
    assert found.context["invocation"] == first[0][1]


@vyre.kernel(workgroup=(8, 4, 2))
def boxes(x: In[u32, 9 * 7 * 13], out: Out[u32, 9 * 7 * 13]):
    if gid.x < 13 and gid.y < 7 and gid.z < 9:
        if x[(gid.z * 7 + gid.y) * 13 + gid.x] != 0:
            trap("set", gid.x + 100 * gid.y + 10_000 * gid.z)
        out[(gid.z * 7 + gid.y) * 13 + gid.x] = 1


def test_the_order_is_z_before_y_before_x(on):
    x = (np.random.default_rng(3).random((9, 7, 13)) < 0.3).astype(np.uint32)
    found = raised(lambda: boxes.on(on)(x.ravel(), domain=(13, 7, 9)))
    places = [(int(i), int(j), int(k)) for k, j, i in np.argwhere(x)]
    assert found.trapped == len(places)
    assert [one.invocation for one in found.first] == places[:64]
    assert [one.address for one in found.first] == [i + 100 * j + 10_000 * k for i, j, k in places[:64]]


@vyre.kernel
def in_loops(x: In[u32], out: InOut[u32]):
    i = gid.x
    total = u32(0)
    for k in range(min(x[i], 9)):
        if k == 5:
            trap("five turns", k + i)
        total += k
    out[i] = total


def test_one_in_a_loop_ends_only_the_invocation_that_springs_it(on):
    x = np.arange(300, dtype=np.uint32) % 9
    out = np.zeros(300, np.uint32)
    found = raised(lambda: in_loops.on(on)(x, out))
    places = [i for i in range(300) if i % 9 > 5]
    assert found.trapped == len(places)
    assert [(one.invocation[0], one.address) for one in found.first] == [(i, 5 + i) for i in places[:64]]
    assert not out.any()


@vyre.kernel(workgroup=8)
def meeting(x: InOut[u32]):
    tile = shared(u32, 8)
    tile[lid.x] = x[gid.x]
    barrier()
    assert tile[7 - lid.x] != 3, "three"
    x[gid.x] = tile[7 - lid.x]


def test_where_invocations_meet_one_of_them_is_told(on):
    x = np.full(64, 3, np.uint32)
    found = raised(lambda: meeting.on(on)(x))
    assert (found.trapped, len(found.first), found.overflow) == (1, 1, 0)
    assert found.first[0].tag == "assertion failed: three"


def test_a_trap_of_a_later_iteration_is_that_iterations_alone(on):
    @vyre.kernel
    def counts(x: InOut[u32]):
        i = gid.x
        assert x[i] < i + 2, "over"
        x[i] = x[i] + 1

    config = DispatchConfig(fixpoint_iterations=300, grid_override=(2, 1, 1))
    x = (np.arange(128, dtype=np.uint32) + 2).clip(0, 60)
    x[:40] = 0
    with vyre.acquire(on) as backend:
        found = raised(lambda: backend.dispatch(counts.program, [x], config))
    ends = [int(i + 2 - x[i]) if i + 2 >= x[i] else 0 for i in range(128)]
    first = [i for i in range(128) if ends[i] == min(ends)]
    assert [one.invocation[0] for one in found.first] == first[:64]
    assert found.trapped == len(first)


@pytest.mark.parametrize("way", ["resident", "started", "timed out later"])
def test_every_way_of_a_dispatch_tells_the_same(on, way):
    if (on, way) == ("reference", "resident"):
        pytest.skip("the reference has no memory of a device")
    x = np.arange(1000, dtype=np.uint32)
    count, first = expected(x)
    with vyre.acquire(on) as backend:
        if way == "started":
            found = raised(lambda: checked.on(on).start(x).result())
        elif way == "resident":
            found = raised(lambda: checked.on(on)(vyre.to_device(x, on)))
        else:
            config = DispatchConfig(timeout=60, output_elements={"out": 1000}, grid_override=(16, 1, 1))
            found = raised(lambda: backend.dispatch(checked.program, [x], config))
    assert found.trapped == count
    assert [(one.tag, one.invocation) for one in found.first] == first


def test_one_trap_alone_has_no_count_in_its_context(on):
    x = np.zeros(100, np.uint32)
    x[70] = 1
    found = raised(lambda: checked.on(on)(x))
    assert "trapped" not in found.context
    assert (found.trapped, found.overflow, [one.invocation for one in found.first]) == (1, 0, [(70, 0, 0)])


def test_the_error_keeps_its_records_when_it_is_sent():
    found = raised(lambda: checked.on("reference")(np.ones(100, np.uint32)))
    sent = pickle.loads(pickle.dumps(found))
    assert (sent.trapped, sent.first, str(sent)) == (found.trapped, found.first, str(found))


def test_a_grid_too_large_to_number_says_how_many_and_not_which():
    words = bytearray(trap_words((1 << 22, 1, 1), (1024, 1, 1)))
    assert len(words) == 32
    words[0:8] = (1).to_bytes(4, "little") + (9).to_bytes(4, "little")
    with pytest.raises(Trap, match=r"the program trapped \[tag='a or b'\] \[trapped=9\]. Fix: ") as found:
        require_no_trap(["a", "b"], words, counted=True)
    assert (found.value.first, found.value.overflow) == ((), 9)


@pytest.mark.parametrize("invocations", [1 << 15, 1 << 16, 1 << 24, 1 << 28, 1 << 30, (1 << 31) - 256])
def test_lists_keep_the_lowest_in_whatever_order_they_are_offered(invocations):
    """As every emitter writes it, for each width of a piece."""
    draw = random.Random(invocations)
    grid = invocations // 256 or 1, 1, 1
    data = bytearray(trap_words(grid, (256, 1, 1)))
    words = memoryview(data).cast("I")
    bits = words[4]
    row = words[2]
    told = {draw.randrange(row): (draw.randrange(3), draw.getrandbits(32)) for _ in range(500)}
    told[row - 1] = 2, 0xFFFFFFFF
    for number in draw.sample(sorted(told), len(told)):
        tag, address = told[number]
        words[0], words[1] = 1, words[1] + 1
        for at in range(0, 64, bits):
            piece = (tag | address << 32) >> at & (1 << bits) - 1
            word = ~(number << bits | piece) & 0xFFFFFFFF
            for k in range(8 + at // bits * MOST_TRAPS, 8 + (at // bits + 1) * MOST_TRAPS):
                words[k], word = max(words[k], word), min(words[k], word)
    with pytest.raises(Trap) as found:
        require_no_trap("abc", data, counted=True)
    assert found.value.trapped == len(told)
    first = [Trapped("abc"[told[n][0]], told[n][1], (n, 0, 0)) for n in sorted(told)[:MOST_TRAPS]]
    assert list(found.value.first) == first
