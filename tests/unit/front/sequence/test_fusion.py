"""Steps that become one launch give the bytes of separate launches; those that must not stay apart, and say why."""

import numpy as np
import pytest

import vyre
from vyre import In, InOut, Out, atomic_add, barrier, f32, gid, lid, select, shared, u32
from vyre.driver.contract.values import ResidentDispatchStep
from vyre.driver.counters import TALLY
from vyre.driver.execute.fusing import fuse
from vyre.errors import UnsupportedFeature
from vyre.front.arrays import ARRAY_DTYPES

from ....support.device_backends import IDS, open_or_skip
from ....support.random_chains import Chain, added, shifted, turned

BACKENDS = ("cpu", *IDS)


@pytest.fixture(params=BACKENDS)
def backend(request):
    open_or_skip(request.param)
    return request.param


def bytes_of(found):
    return [np.asarray(f).tobytes() for f in found]


def agrees(seed, backend):
    chain = Chain(seed)
    run = vyre.sequence(lambda *arrays: chain.run(*arrays)).on(backend)
    for turn in range(2):
        plain = bytes_of(chain.run(*(a.copy() for a in chain.arrays(turn))))
        fused_arrays, apart_arrays = chain.arrays(turn), chain.arrays(turn)
        fused = bytes_of(run(*fused_arrays))
        with vyre.config(fusion=False):
            apart = bytes_of(run(*apart_arrays))
        assert fused == apart == plain, seed
        assert bytes_of(fused_arrays) == bytes_of(apart_arrays), seed


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_gives_the_same_bytes_fused_apart_and_as_plain_calls(backend, seed):
    agrees(seed, backend)


@pytest.mark.check
@pytest.mark.parametrize("seed", range(100, 140))
def test_chains_give_the_same_bytes_fused_apart_and_as_plain_calls(backend, seed):
    agrees(seed, backend)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_many_chains_give_the_same_bytes_fused_apart_and_as_plain_calls(backend, seed):
    agrees(seed, backend)


@pytest.mark.check
@pytest.mark.parametrize(
    "t", ["u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f16", "bf16", "f32", "f64", "bool"]
)
def test_elements_of_every_type_are_handed_on_as_memory_has_them(backend, t):
    element = bool if t == "bool" else getattr(vyre, t)

    @vyre.kernel
    def copied(x: In[element], out: Out[element]):
        out[gid.x] = x[gid.x]

    @vyre.kernel
    def mixed(x: In[element], y: In[element], out: Out[element]):
        if gid.x < len(x):
            out[gid.x] = select(gid.x % 3 == 0, y[gid.x], x[gid.x])

    @vyre.sequence
    def run(x, y):
        z = mixed(copied(x), copied(y))
        return z, copied(mixed(z, x))

    dtype = ARRAY_DTYPES[t]
    words = np.random.default_rng(5).integers(0, 256, (2, 4 * 129 * dtype.itemsize), dtype=np.uint8)
    x, y = (w > 127 if t == "bool" else w.view(dtype) for w in words)
    try:
        found = bytes_of(run.on(backend)(x, y))
    except UnsupportedFeature as e:
        pytest.skip(e.message)
    with vyre.config(fusion=False):
        assert found == bytes_of(run.on(backend)(x, y))
    assert run.on(backend).explain(x, y).launches == (range(5),)


# ---- what is one launch ---------------------------------------------------------------------------------------------


@vyre.kernel
def scaled(x: In[f32], out: Out[f32], a: f32):
    out[gid.x] = x[gid.x] * a


@vyre.kernel
def summed(x: In[f32], y: In[f32], out: Out[f32]):
    if gid.x < len(x):
        out[gid.x] = x[gid.x] + y[gid.x]


@vyre.sequence
def line(x):
    for k in range(5):
        x = scaled(x, a=1.5 + k)
    return x


@vyre.sequence
def diamond(x):
    return summed(scaled(x, a=2.0), scaled(x, a=3.0))


@vyre.sequence
def both(x):
    y = scaled(x, a=2.0)
    return y, scaled(y, a=3.0)


def reals(n=100):
    return np.linspace(-1, 1, n, dtype=np.float32)


def told(run, backend, *arrays):
    """How many launches, and what is said of them."""
    found = run.on(backend).explain(*arrays)
    return len(found.launches), [d.reason for d in found.decisions if d.what == "fusion"]


def test_a_line_of_kernels_is_one_launch_and_its_intermediates_have_no_memory(backend):
    x = reals()
    assert told(line, backend, x) == (1, ["scaled, scaled, scaled, scaled, scaled are one launch: "
                                          "4 arrays handed on in registers"])  # fmt: skip
    assert line.on(backend).explain(x).device_bytes == 2 * x.nbytes + 5 * 4
    assert " in 1 launch, dispatched together\n" in str(line.on(backend).explain(x))
    run = line.on(backend)
    home = vyre.to_device(x, backend)._home.backend
    run(x)
    before = home.metrics().get("resident_bytes")
    for _ in range(3):
        run(x)
    assert home.metrics().get("resident_bytes") == before


def test_two_that_a_third_reads_are_one_launch_with_it(backend):
    x = reals()
    assert told(diamond, backend, x)[0] == 1
    assert diamond.on(backend)(x).tobytes() == (x * np.float32(2) + x * np.float32(3)).tobytes()


def test_what_the_function_returns_too_is_stored(backend):
    x = reals()
    launches, (why,) = told(both, backend, x)
    assert launches == 1
    assert why.endswith("1 array handed on in registers, 1 of them stored for others")
    for make in (np.array, lambda a: vyre.to_device(a, backend)):
        y, z = both.on(backend)(make(x))
        assert np.asarray(y).tobytes() == (x * np.float32(2)).tobytes()
        assert np.asarray(z).tobytes() == (x * np.float32(6)).tobytes()


def test_a_launch_is_repeated_for_other_arrays_and_sizes(backend):
    run = line.on(backend)
    for n in (1, 64, 100, 1, 64, 100):
        for make in (np.array, lambda a: vyre.to_device(a, backend)):
            x = reals(n) + np.float32(n)
            expected = x
            for k in range(5):
                expected = expected * np.float32(1.5 + k)
            assert np.asarray(run(make(x))).tobytes() == expected.tobytes()


def test_the_device_gets_one_launch_and_with_the_knob_one_for_each_step(backend, monkeypatch):
    x = reals()
    inner = type(vyre.to_device(x, backend)._home.backend.inner)
    calls, plain = [], inner.dispatch_resident

    def spied(self, steps, **named):
        calls.append(len(steps))
        return plain(self, steps, **named)

    monkeypatch.setattr(inner, "dispatch_resident", spied)
    line.on(backend)(x)
    with vyre.config(fusion=False):
        line.on(backend)(x)
    monkeypatch.setenv("VYRE_FUSION", "no")
    line.on(backend)(x)
    assert calls == [1, 5, 5]


def test_joined_and_separate_launches_are_counted():
    @vyre.sequence
    def run(x):
        return turned(scaled(scaled(x, a=1.0), a=2.0))

    counts = TALLY.counts.decisions
    before = dict(counts)
    run.on("cpu")(reals())
    made = {d: n - before.get(d, 0) for d, n in counts.items() if d[0] == "fusion"}
    assert made == {("fusion", "joined"): 1, ("fusion", "apart"): 1}


# ---- what is not ----------------------------------------------------------------------------------------------------


@vyre.kernel(workgroup=32)
def narrow(x: In[f32], out: Out[f32]):
    out[gid.x] = x[gid.x]


@vyre.kernel
def checked(x: In[f32], out: Out[f32]):
    assert x[gid.x] < 100.0, "large"
    out[gid.x] = x[gid.x]


@vyre.kernel
def together(x: In[f32], out: Out[f32]):
    tile = shared(f32, 64)
    tile[lid.x] = x[gid.x]
    barrier()
    out[gid.x] = tile[63 - lid.x]


@vyre.kernel
def first_large(x: In[f32], out: Out[f32]):
    for k in range(4):
        if x[gid.x] > f32(k):
            return
    out[gid.x] = x[gid.x]


@vyre.kernel
def longest(x: In[f32], out: Out[f32]):
    out[gid.x] = x[gid.x]


@vyre.kernel
def counted(x: In[u32], into: InOut[u32], out: Out[u32]):
    out[gid.x] = atomic_add(into, 0, x[gid.x])


@pytest.mark.parametrize(
    "function, why",
    [
        (lambda x, w: turned(scaled(x, a=2.0)), "store and load of two invocations may meet in 'out'"),
        (lambda x, w: shifted(shifted(w)), "store and load of two invocations may meet in 'out'"),
        (lambda x, w: narrow(scaled(x, a=2.0)), "their workgroups are (64, 1, 1) and (32, 1, 1)"),
        (lambda x, w: longest(scaled(x, a=2.0), sizes={"out": 300}), "they have other grids or workgroups"),
        (lambda x, w: checked(scaled(x, a=2.0)), "one of them may trap"),
        (lambda x, w: together(scaled(x, a=2.0)), "one of them waits for its workgroup"),
        (lambda x, w: scaled(first_large(x), a=2.0), "one of them returns from within a branch or a loop"),
        (lambda x, w: (scaled(x, a=2.0), scaled(x, a=3.0)), "the later one reads nothing that the earlier one writes"),
        (lambda x, w: (counted(w, w2 := shifted(w)), w2), "store and atomic_add of two invocations may meet in 'out'"),
    ],
)
def test_others_stay_apart_and_say_why(function, why):
    x, w = reals(), np.arange(100, dtype=np.uint32)
    launches, reasons = told(vyre.sequence(function), "cpu", x, w)
    assert launches == 2
    assert [r for r in reasons if why in r], reasons


def test_a_program_that_the_backend_does_not_compile_stays_in_pieces():
    @vyre.kernel
    def odd(x: In[f32], out: Out[f32]):
        out[gid.x] = x[gid.x] * 3.2578125 + 1.75

    x, most = reals(), odd.specialize().stats.steps + 1
    with vyre.config(max_steps=most):
        launches, reasons = told(vyre.sequence(lambda x: odd(odd(x))), "cpu", x)
    assert launches == 2
    assert f"{most}" in reasons[0]


def test_memory_of_other_libraries_that_is_written_keeps_steps_apart():
    backend = vyre.acquire("cpu")
    x, y, z, a = (backend.allocate_resident(n) for n in (400, 400, 400, 4))
    steps = [ResidentDispatchStep(added.program, (x, y)), ResidentDispatchStep(scaled.program, (x, z, a))]

    def launches(adopted):
        return len(fuse(steps, ["added", "scaled"], backend, {x.id, z.id}, adopted, {}, lambda program: None))

    assert [launches(adopted) for adopted in ((), {x.id}, {x.id, a.id}, {y.id, a.id})] == [1, 1, 2, 1]


def test_a_profile_names_what_is_compiled_for_several_steps():
    @vyre.kernel
    def once(x: In[f32], out: Out[f32]):
        if gid.x < len(out):
            out[gid.x] = x[gid.x] * 5.8671875 + 0.28125

    with vyre.profile() as found:
        vyre.sequence(lambda x: once(once(x))).on("cpu")(reals())
    names = {row.program: row for row in found.rows()}
    assert set(names) == {"once", "once+once"}
    assert names["once+once"].calls == 1
    assert names["once+once"].compile_ns > 0
