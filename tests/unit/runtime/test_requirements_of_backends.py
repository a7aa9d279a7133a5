"""What backends find of their own needs: each thing that may be missing is named, with what to do."""

import importlib
from importlib import metadata

import pytest

from vyre.driver.contract.requirement import Check
from vyre.driver.selection.registry import backend_registration
from vyre.errors import BackendUnavailable

EXTRAS = {"cuda": "cuda-bindings", "opencl": "pyopencl", "wgpu": "wgpu"}


def part(id, name):
    return importlib.import_module(f"vyre.backends.{id}.{name}")


def found(id):
    return {check.name: check for check in backend_registration(id).checks()}


def raising(error):
    def fails(*_):
        raise error

    return fails


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(metadata, "version", raising(metadata.PackageNotFoundError("it")))
    for id in ("cpu", "opencl", "wgpu"):
        monkeypatch.setattr(part(id, "requirements"), "find_spec", lambda name: None)
    monkeypatch.setattr(part("cuda", "devices"), "is_installed", lambda: False)


@pytest.mark.parametrize("id", EXTRAS)
def test_a_missing_extra_is_the_only_finding(id, nothing_installed):
    assert list(found(id).values()) == [
        Check(EXTRAS[id], "warn", f"{EXTRAS[id]} is not installed", f"pip install 'vyre[{id}]'")
    ]


def test_missing_packages_of_the_backends_that_need_no_extra_are_named(nothing_installed):
    assert [check.fix for check in found("cpu").values()] == ["pip install llvmlite", "pip install cffi"]
    assert [check.fix for check in found("reference").values()] == ["pip install numpy"]


def test_cpu_says_who_flushes(monkeypatch):
    monkeypatch.setattr(part("cpu", "exactness"), "why_not_hardware", lambda host: "of a reason")
    assert found("cpu")["f32 in hardware"].detail == "f32 is flushed by code, which is slower: of a reason"


def test_cuda_names_what_does_not_fit(monkeypatch):
    pytest.importorskip("cuda.bindings")
    driver, compiler = part("cuda", "devices"), part("cuda", "requirements")
    monkeypatch.setattr(driver, "why_none", lambda: None)
    monkeypatch.setattr(driver, "driver_version", lambda: (12, 4))
    monkeypatch.setattr(compiler, "compiler_version", lambda: (13, 0))
    assert found("cuda")["driver"] == Check(
        "driver",
        "fail",
        "the NVIDIA driver runs CUDA 12.4 and NVRTC compiles for 13.0",
        "update the driver, or pip install 'nvidia-cuda-nvrtc==12.*'",
    )
    monkeypatch.setattr(driver, "driver_version", lambda: (13, 1))
    assert found("cuda")["driver"][1:3] == ("ok", "the NVIDIA driver runs CUDA 13.1")
    monkeypatch.setattr(compiler, "compiler_version", raising(BackendUnavailable("it is not there", fix="get it")))
    assert found("cuda")["NVRTC"] == Check("NVRTC", "warn", "it is not there", "get it")
    monkeypatch.setattr(driver, "library", raising(ImportError("undefined symbol")))
    assert found("cuda")["bindings"][1:3] == ("fail", "cuda-bindings cannot be loaded (undefined symbol)")


def test_opencl_tells_a_missing_driver_from_a_broken_one(monkeypatch, tmp_path):
    pytest.importorskip("pyopencl")
    platforms = part("opencl", "devices")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(platforms, "platforms", list)
    assert found("opencl")["ICD files"][1:3] == ("warn", f"no driver announces itself in {tmp_path}")
    assert found("opencl")["platforms"].verdict == "warn"
    (tmp_path / "some.icd").write_text("libnothing.so\n")
    assert found("opencl")["ICD files"][1:3] == ("ok", str(tmp_path / "some.icd"))
    broken = found("opencl")["platforms"]
    assert broken[1:3] == ("fail", "no OpenCL driver can be loaded (some.icd names libnothing.so)")
    monkeypatch.setattr(platforms, "library", raising(OSError("no such file")))
    assert found("opencl")["loader"][1:3] == ("fail", "pyopencl cannot be loaded (no such file)")


def test_wgpu_names_files_that_are_not_there_and_devices_that_compute_wrongly(monkeypatch, tmp_path):
    pytest.importorskip("wgpu")
    findings, adapters, exactness = part("wgpu", "requirements"), part("wgpu", "devices"), part("wgpu", "exactness")
    monkeypatch.delenv("VK_DRIVER_FILES", raising=False)
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "gone.json"))
    assert findings.icd_files().detail == f"the environment names {tmp_path / 'gone.json'}, which is not there"
    (tmp_path / "gone.json").touch()
    assert findings.icd_files()[1:3] == ("ok", str(tmp_path / "gone.json"))
    monkeypatch.delenv("VK_ICD_FILENAMES")
    monkeypatch.setattr(adapters, "ICD_FOLDERS", (str(tmp_path),))
    assert findings.icd_files()[1:3] == ("ok", str(tmp_path / "gone.json"))
    monkeypatch.setattr(adapters, "ICD_FOLDERS", ())
    assert findings.icd_files()[1:3] == ("warn", "no driver for Vulkan announces itself")

    class Record:
        why_not = "it cannot add"

    monkeypatch.setattr(findings.sys, "platform", "linux")
    monkeypatch.setattr(adapters, "why_none", lambda: "there is none")
    assert found("wgpu")["ICD files"].verdict == "warn"
    monkeypatch.setattr(adapters, "why_none", lambda: None)
    monkeypatch.setattr(adapters, "adapters", tuple)
    monkeypatch.setattr(adapters, "name_of", lambda adapter: "board")
    monkeypatch.setattr(exactness, "best", lambda: None)
    monkeypatch.setattr(exactness, "record_of", lambda adapter: Record)
    assert found("wgpu")["ICD files"][1:] == (
        "ok", "no driver for Vulkan announces itself, and an adapter is found without one", "",
    )  # fmt: skip
    assert found("wgpu")["f32"][1:] == ("fail", "board cannot be used, as it cannot add", "update its driver")
