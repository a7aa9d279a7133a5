"""What is learned of a wgpu device, from fakes that compute wrongly and from a real one, and how it is remembered."""

import os
import struct
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vyre.backends.reference import run as run_reference
from vyre.backends.wgpu.emit.traits import SAFEST, Traits
from vyre.driver.selection.remembered import recall, remember
from vyre.errors import BackendUnavailable, DispatchFailed
from vyre.runtime.float_probe import GROUPS, LANES, probe_inputs, probe_program

from ...support import probes
from ...support.device_backends import open_or_skip


@pytest.fixture(scope="module")
def real():
    """A real backend; opening it loads the library, which the module under test needs too."""
    opened = open_or_skip("wgpu")
    yield opened
    opened.shutdown()


@pytest.fixture
def module(real, monkeypatch):
    from vyre.backends.wgpu import exactness

    monkeypatch.setattr(exactness, "RANDOM_TRIPLES", LANES)
    return exactness


RIGHT: dict[str, bytes] = {}


def right(program, inputs):
    if program.fingerprint not in RIGHT:
        grid = (-(-len(inputs[0]) // 4 // LANES), 1, 1)
        (RIGHT[program.fingerprint],) = run_reference(program, inputs, grid=grid).outputs
    return bytes(RIGHT[program.fingerprint])


class Machine:
    """Runs programs rightly, unless `wrong` says how the results for these traits and this program differ."""

    def __init__(self, wrong=lambda traits, at_random: False):
        self.wrong, self.asked = wrong, []

    def __call__(self, program, traits, inputs, output_bytes):
        self.asked.append(traits)
        result = bytearray(right(program, inputs))
        assert len(result) == output_bytes
        if self.wrong(traits, inputs != probe_inputs()):
            result[40] ^= 1
        return bytes(result)


# ---- traits ---------------------------------------------------------------------------------------------------------


def test_a_device_that_does_everything_right_gets_the_shortest_text(module):
    found = module.probe(Machine(), SAFEST)
    assert found.traits == Traits(soft_flush=False, native_divide=True, native_root=True, native_fma=True)
    assert found.traits.fences
    assert found.why_not is None


def test_fences_fall_only_where_that_was_recorded(module):
    assert module.probe(Machine(), SAFEST, may_unfence=False).traits.fences
    assert not module.probe(Machine(), SAFEST, may_unfence=True).traits.fences
    assert module.probe(Machine(lambda t, _: not t.fences), SAFEST, may_unfence=True).traits.fences


@pytest.mark.parametrize("at_random", [False, True], ids=["edges", "random"])
@pytest.mark.parametrize("name", ["soft_flush", "native_divide", "native_root", "native_fma"])
def test_a_trait_holds_only_if_edge_values_and_random_ones_say_so(module, name, at_random):
    safe = getattr(SAFEST, name)
    machine = Machine(lambda t, random: getattr(t, name) != safe and random == at_random)
    found = module.probe(machine, SAFEST).traits
    assert getattr(found, name) == safe
    others = replace(Traits(soft_flush=False, native_divide=True, native_root=True, native_fma=True), **{name: safe})
    assert found == others


def test_an_fma_goes_through_f64_where_there_is_one_and_the_native_one_is_not_exact(module):
    def traits(wrong, is_wide):
        return module.probe(Machine(wrong), SAFEST, is_wide=is_wide).traits

    assert not traits(lambda t, _: False, is_wide=True).wide_fma
    assert traits(lambda t, _: t.native_fma, is_wide=True).wide_fma
    assert not traits(lambda t, _: t.native_fma, is_wide=False).wide_fma
    for at_random in (False, True):
        assert not traits(lambda t, r: t.native_fma or (t.wide_fma and r == at_random), is_wide=True).wide_fma  # noqa: B023


def test_a_device_that_is_wrong_in_the_safest_way_is_not_used(module):
    found = module.probe(Machine(lambda t, _: True), SAFEST)
    assert found.why_not.startswith("its f32 results are not the canonical ones in ")
    assert found.traits == SAFEST


def test_only_metal_swaps_weakly(module):
    assert module.base_traits({"backend_type": "Vulkan"}).strong_swap
    assert not module.base_traits({"backend_type": "Metal"}).strong_swap


def test_a_driver_is_unfenced_by_vendor_and_version(module, monkeypatch):
    info = {"vendor": "NVIDIA", "description": "580.95.05"}
    assert not any(module.may_unfence({"vendor": v, "description": ""}) for v in ("", "llvmpipe"))
    monkeypatch.setattr(module, "UNFENCED", (("NVIDIA", "580."),))
    assert module.may_unfence(info)
    assert not module.may_unfence(info | {"description": "570.1"})
    assert not module.may_unfence(info | {"vendor": "AMD"})


def test_a_real_device_is_canonical_with_its_traits_and_with_the_safest(real, module):
    inputs = probe_inputs()
    expected = right(probe_program(), inputs)
    device = real.session().device
    assert len(inputs[0]) < GROUPS * LANES * 4  # the last workgroup is not full
    for traits in (SAFEST, real.record.traits):
        assert module.run(device, probe_program(), traits, inputs, len(expected)) == expected


def test_the_record_of_a_real_device_is_what_it_shows_now(real, module):
    device = real.session().device
    base = module.base_traits(real.adapter.info)
    found = module.probe(lambda *asked: module.run(device, *asked), base, is_wide=device.is_wide)
    assert found.traits == real.record.traits
    assert module.loop_limit(device) == real.record.loop_limit


# ---- loops and workgroup memory -------------------------------------------------------------------------------------


def counting(limit, *, together):
    """The answer of a device that stops after so many turns, of each lane or of lanes that part together."""

    def answer(device, text, input_bytes, output_bytes):
        turns, both = input_bytes // 4, output_bytes == 4 * 64
        first = min(turns, limit)
        second = min(turns, limit - first if together else limit) if both else 0
        return [second if lane & 1 else first for lane in range(32)] + [0] * 32

    return answer


@pytest.mark.parametrize(
    "limit, together, found",
    [(65_535, True, 65_535), (65_535, False, 65_535), (69_999, False, 69_999), (100_000, True, 70_000)],
)
def test_a_limit_of_loops_is_found(module, monkeypatch, limit, together, found):
    monkeypatch.setattr(module, "_words", counting(limit, together=together))
    assert module.loop_limit(None) == found


@pytest.mark.parametrize("limit, together", [(70_000, False), (140_000, True), (1 << 40, True)])
def test_where_loops_end_there_is_no_limit(module, monkeypatch, limit, together):
    monkeypatch.setattr(module, "_words", counting(limit, together=together))
    assert module.loop_limit(None) is None


def test_workgroup_memory_counts_as_zeroed_if_it_is_so_every_time(module, monkeypatch):
    for answers, zeroed in (([0, 0], True), ([0, 5], False), ([5, 0], False)):
        left = list(answers)
        monkeypatch.setattr(module, "_words", lambda *_, left=left: [0] * 255 + [left.pop(0)] + [7] * 32)
        assert module.shared_is_zeroed(None) is zeroed


# ---- remembering ----------------------------------------------------------------------------------------------------


INFO = {"vendor": "v", "vendor_id": 1, "device_id": 2, "device": "d", "description": "1.0", "backend_type": "Vulkan"}
INFO |= {"adapter_type": "DiscreteGPU"}


class Closable:
    is_wide = True

    def close(self):
        pass


@pytest.fixture
def asked(module, monkeypatch, tmp_path):
    """Every time a device is opened to be asked."""
    times = []
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module, "WgpuDevice", lambda adapter: times.append(adapter) or Closable())
    monkeypatch.setattr(module, "run", lambda device, *asked: Machine()(*asked))
    monkeypatch.setattr(module, "loop_limit", lambda device: 77)
    monkeypatch.setattr(module, "shared_is_zeroed", lambda device: True)
    return times


def adapter(**changes):
    return SimpleNamespace(info=INFO | changes)


def test_a_device_is_asked_once_and_again_when_its_driver_changes(module, asked):
    first = module.record_of(adapter())
    assert (first.loop_limit, first.shared_is_zeroed, first.traits.native_fma) == (77, True, True)
    assert len(asked) == 1
    assert module.record_of(adapter()) == first
    assert len(asked) == 1
    module.record_of(adapter(description="1.1"))
    assert len(asked) == 2
    module.record_of(adapter(device_id=3, device="another"))
    assert module.record_of(adapter(description="1.1")) == first
    assert len(asked) == 3
    module.record_of(adapter(backend_type="OpenGL"))  # the same device, through another interface
    assert len(asked) == 4


def test_a_process_that_can_keep_no_file_asks_once(module, asked, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", "/dev/null/nowhere")
    assert module.record_of(adapter()) == module.record_of(adapter())
    assert len(asked) == 1


def test_what_was_remembered_wrongly_is_asked_again(module, asked, tmp_path):
    module.record_of(adapter())
    name, entry = probes.only(tmp_path)
    for wrong in ({}, {"traits": {"unknown": 1}}, {"traits": {}, "unknown": 1}, {"traits": None}):
        remember(name, entry["key"], wrong)
        before = len(asked)
        module.record_of(adapter())
        assert len(asked) == before + 1
    assert recall(name, entry["key"])["why_not"] is None


def test_a_device_that_cannot_be_used_is_said(real, module, monkeypatch):
    from vyre.backends import wgpu as package
    from vyre.backends.wgpu import backend

    bad = module.Record(why_not="its f32 results are not the canonical ones in add")
    monkeypatch.setattr(module, "record_of", lambda adapter: bad)
    monkeypatch.setattr(backend, "record_of", lambda adapter: bad)
    assert package.REGISTRATION.unavailable() == (
        f"{real.device} cannot be used, as its f32 results are not the canonical ones in add: update its driver"
    )
    with pytest.raises(BackendUnavailable, match=r"cannot be used, as its f32 .* in add.*Fix: update its driver"):
        package.REGISTRATION.open()


def test_a_device_that_does_not_open_is_said_and_asked_again(module, asked, monkeypatch):
    def broken(adapter):
        raise DispatchFailed("the device did not open: busy", fix="wait")

    with monkeypatch.context() as patch:
        patch.setattr(module, "WgpuDevice", broken)
        assert module.record_of(adapter()).why_not == "it does not run kernels (the device did not open: busy)"
    assert module.record_of(adapter()).why_not is None


def test_the_best_device_is_one_that_can_be_used(module, monkeypatch):
    bad, good, other = adapter(device="bad"), adapter(device="good"), adapter(device="other")
    records = {"bad": module.Record(why_not="it is wrong"), "good": module.Record(), "other": module.Record()}
    monkeypatch.setattr(module, "record_of", lambda a: records[a.info["device"]])
    slow = adapter(device="other", adapter_type="CPU")
    for found, first in (((bad, good, other), good), ((other, bad), other), ((bad,), bad), ((bad, slow), bad)):
        monkeypatch.setattr(module.devices, "adapters", lambda found=found: found)
        assert module.best() is first


def test_text_for_other_traits_gives_the_same_bytes(real, module):
    """Each trait alone, as far as it holds here, over random values."""
    device, program = real.session().device, module._random_probe()
    expected = module.run(device, program[0], SAFEST, program[1], 4 * LANES * len(module.CANONICAL))
    held = [c for c in (*module.RELAXED, module.WIDE) if all(getattr(real.record.traits, k) == v for k, v in c.items())]
    for change in held:
        assert module.run(device, program[0], replace(SAFEST, **change), program[1], len(expected)) == expected
    assert held or os.environ.get("VYRE_REQUIRE_BACKENDS") is None
    assert len(struct.unpack(f"<{len(expected) // 4}I", expected)) == LANES * len(module.CANONICAL)
