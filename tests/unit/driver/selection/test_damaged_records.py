"""What a backend remembers of its device may be damaged in any way: the device is then asked again, and calls work."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

import vyre
from vyre import In, Out, gid, u32
from vyre.backends.cpu import exactness as cpu
from vyre.driver.contract import BackendRegistration, DeviceInfo
from vyre.driver.selection import registry
from vyre.runtime import float_probe

from ....support import probes
from ....support.damage import damaged
from ..settings.test_settings import backend as stub

X = np.arange(4, dtype=np.uint32)


@vyre.kernel(workgroup=64)
def double(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VYRE_CACHE_DIR", str(tmp_path))
    return tmp_path


def every_damage(folder, monkeypatch, module, ask, right, may_be=lambda path, value: False):
    """Ask with every field of the only file damaged, as if it had been written so; then with no such file at all."""
    assert ask() == right
    monkeypatch.setattr(module, "remember", lambda *args, **options: None)  # which takes most of the time
    name, real = probes.only(folder)
    for path, value, entry in damaged(real):
        probes.put(folder, name, entry)
        assert ask() == right or may_be(path, value), (path, value)
    for text in ("", "[" * 60_000, b"\xff\0", json.dumps(real)[:-1], json.dumps(real)[1:], "null", "{}"):
        probes.put(folder, name, text)
        assert ask() == right
    return name, real


def says_why_not(path, value):
    """A text there is a reason of the device."""
    return path[-1] in ("unavailable", "why_not") and type(value) is str


def test_the_processor(folder, monkeypatch):
    host = SimpleNamespace(x86=True, compiler="c", triple="t", name="n", features="f")
    monkeypatch.setattr(cpu, "build", lambda *args: None)
    monkeypatch.setattr(float_probe, "differing", lambda output: ())
    every_damage(folder, monkeypatch, cpu, lambda: cpu.why_not_hardware(host, lambda built: b""), None, says_why_not)


@pytest.mark.parametrize("name", ["cuda", "opencl"])
def test_devices_with_modes(folder, monkeypatch, name):
    pytest.importorskip({"cuda": "cuda.bindings", "opencl": "pyopencl"}[name])
    module = __import__(f"vyre.backends.{name}.exactness", fromlist=["*"])
    right = module.Exactness(module.Mode.SOFT, True)
    monkeypatch.setattr(module, "identity", lambda device: "key")
    monkeypatch.setattr(module, "probe", lambda device, run: right)
    every_damage(
        folder,
        monkeypatch,
        float_probe,
        lambda: module.exactness_of(None),
        right,
        lambda path, value: path == ("record", "float64") and type(value) is bool,
    )


@pytest.mark.check
def test_adapters(folder, monkeypatch):
    pytest.importorskip("wgpu")
    from vyre.backends.wgpu import exactness as module

    right = module.Record(module.SAFEST, None, 77, True)
    asked = []
    monkeypatch.setattr(module, "_known", {})
    monkeypatch.setattr(module.binding_gaps, "version", lambda: "1")
    monkeypatch.setattr(module, "_found", lambda adapter: asked.append(adapter) or right)
    adapter = SimpleNamespace(info={"device": "some"})

    def ask():
        module._known.clear()
        return module.record_of(adapter)

    fitting = {"why_not": str, "loop_limit": int}

    def could_be(path, value):
        return path[0] == "record" and (value is None or type(value) in (bool, fitting.get(path[-1])))

    name, real = every_damage(folder, monkeypatch, module, ask, right, could_be)
    for _, _, record in damaged(asdict(right)):
        probes.put(folder, name, real | {"record": record})
        found = ask()
        assert found.loop_limit is None or 0 <= found.loop_limit <= module.TURNS
        assert all(type(flag) is bool for flag in asdict(found.traits).values())
    for wrong in ({}, {"traits": None}, {"traits": {"unknown": 1}}, asdict(right) | {"unknown": 1}):
        probes.put(folder, name, real | {"record": wrong})
        before = len(asked)
        assert ask() == right
        assert len(asked) == before + 1


def test_a_call_that_chooses_its_backend(folder):
    """The record of the registry, which remembers whether a backend would open."""
    inner = stub("a")
    for_all = {"kind": "device", "devices": lambda: (DeviceInfo(0, "some"),), "probe_key": lambda: "k"}
    with registry.isolated(BackendRegistration(id="a", open=lambda device=None: inner.open(), **for_all)):
        assert vyre.select(double.program).chosen == "a"
        name, real = probes.only(folder)
        for path, value, entry in damaged(real):
            if not says_why_not(path, value):
                probes.put(folder, name, entry)
                assert vyre.select(double.program).chosen == "a", (path, value)
        assert double(X).tolist() == [0x61616161] * 4


def test_a_call_on_the_processor_itself(folder):
    vyre.acquire("cpu").shutdown()
    for name, real in probes.rows(folder).items():  # none where the processor need not be asked
        for entry in (real | {"written": 10**400}, "[" * 60_000):
            probes.put(folder, name, entry)
            opened = vyre.acquire("cpu")
            assert vyre.compile(double.program, backend=opened).dispatch([X])[0] == (2 * X).tobytes()
            opened.shutdown()
