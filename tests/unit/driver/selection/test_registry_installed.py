"""Backends of installed packages, seen from fresh interpreters: names cost nothing, one bad package harms nobody."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vyre
from vyre.driver.contract import PRECEDENCE_UNKNOWN

from ....support import probes


def install(folder, package, entries, *, module=None, code="", version="1.0", metadata=True):
    """An installed package as files: dist-info with entry points, and a module."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    if metadata:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entries)
    if module:
        (folder / f"{module}.py").write_text(textwrap.dedent(code))


def entries(*lines):
    return "[vyre.backends]\n" + "\n".join(lines) + "\n"


GOOD = """
    from vyre.driver.contract import BackendRegistration, VyreBackend
    class Mine(VyreBackend, contract=1):
        id = "{id}"
        def dispatch(self, program, inputs, config=None, *, out=None):
            return []
    REGISTRATION = BackendRegistration(id="{id}", precedence={precedence}, open=lambda device=None: Mine())
"""


def python(code, *folders, **env):
    """What a fresh interpreter prints as JSON."""
    path = os.pathsep.join(str(f) for f in folders)
    keep = {k: v for k, v in os.environ.items() if not k.startswith("VYRE_")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**keep, "VYRE_CACHE": "off", "PYTHONPATH": path, **env},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.row("A-REG-8", "A-REG-9", "T16")
def test_fifty_plugins_that_raise_on_import_do_no_harm(tmp_path):
    for i in range(50):
        install(tmp_path, f"bad-{i}", entries(f"bad{i}.{i} = bad_{i}:REGISTRATION"), module=f"bad_{i}", code="1 / 0")
    install(
        tmp_path,
        "good",
        entries("good.60 = good_one:REGISTRATION"),
        module="good_one",
        code=GOOD.format(id="good", precedence=60),
    )
    seen = python(
        """
        import json, sys
        from vyre.driver.selection import registry, remembered
        listed = [b.id for b in registry.registered_backends()]
        order = [b.id for b in registry.registered_backends_by_precedence()]
        loaded = sorted(sys.modules)
        quiet = registry.problems()
        chosen = registry.select()
        try:
            registry.acquire("bad7")
        except registry.BackendUnavailable as e:
            text = str(e)
        print(json.dumps([listed, order, loaded, quiet, chosen.chosen, registry.problems(), text]))
        """,
        tmp_path,
    )
    listed, order, loaded, quiet, chosen, later, text = seen
    assert set(listed) >= {f"bad{i}" for i in range(50)} | {"good", "reference"}
    assert listed == sorted(listed)
    assert order.index("bad49") < order.index("good") < order.index("reference")
    assert not [m for m in loaded if m.startswith("bad_") or m == "good_one"]
    heavy = {"numpy", "asyncio", "concurrent.futures", "ctypes", "vyre.backends"}
    assert heavy.isdisjoint(loaded), "listing loads names and nothing else"
    assert quiet == {}
    assert chosen == "good"
    assert len(later) == 50
    assert "backend bad7 is disabled: loading its record failed: ZeroDivisionError: division by zero" in text
    assert "Fix: correct or uninstall the package" in text


def test_names_and_records_that_disagree_disable_that_id_alone(tmp_path):
    def package(name, entry, code="", **more):
        install(tmp_path, name, entries(f"{entry} = {name}:REGISTRATION"), module=name, code=code, **more)

    package("wrong_id", "one.10", GOOD.format(id="other", precedence=10))
    package("wrong_rank", "two.10", GOOD.format(id="two", precedence=11))
    package("no_rank", "three", GOOD.format(id="three", precedence=500))
    package("not_a_record", "four.1", "REGISTRATION = 4")
    package("bad_name", "five.six.7")
    package("bad_number", "eight.1e3")
    package("twin_a", "twin.1", GOOD.format(id="twin", precedence=1))
    package("twin_b", "twin.2", GOOD.format(id="twin", precedence=2), metadata=False)
    install(tmp_path, "self-twin", entries("nine.1 = x:A", "nine.2 = x:B"))
    install(tmp_path, "garbled", "[vyre.backends]\nthis is no entry\n")
    install(tmp_path, "elsewhere", "[console_scripts]\nx = vyre.backends:main\n")
    seen = python(
        """
        import json
        from vyre.driver.selection import registry
        listed = {b.id: b.precedence for b in registry.registered_backends()}
        for b in registry.registered_backends():
            b.problem()
        print(json.dumps([listed, registry.problems(), registry.acquire("three").id]))
        """,
        tmp_path,
    )
    listed, found, opened = seen
    assert {k: v for k, v in listed.items() if k in ("one", "two", "three", "four")} == {
        "one": 10,
        "two": 10,
        "three": 500,
        "four": 1,
    }
    assert opened == "three"
    expected = {
        "one": "it is listed as one.10 and its record says other.10; the two must agree",
        "two": "it is listed as two.10 and its record says two.11; the two must agree",
        "four": "its entry point leads to int, not to a BackendRegistration",
        "five.six.7": "its entry point (bad-name 1.0) is not named <id>.<precedence>",
        "eight.1e3": "its entry point (bad-number 1.0) is not named <id>.<precedence>",
        "twin": "it is provided more than once (a package without metadata, twin-a 1.0)",
        "nine": "it is provided more than once (self-twin 1.0, self-twin 1.0)",
    }
    assert {k: found[k] for k in expected} == expected
    assert found["garbled 1.0"].startswith("its entry points cannot be read: ")
    assert found.keys() == expected.keys() | {"garbled 1.0"}


def test_of_one_package_that_is_there_twice_the_first_on_the_path_counts(tmp_path):
    for place, rank in (("new", 7), ("old", 70)):
        code = GOOD.format(id="mine", precedence=rank)
        point = f"mine.{rank} = mine_{place}:REGISTRATION"
        install(tmp_path / place, "Mine.Plugin", entries(point), version=f"{rank}.0", module=f"mine_{place}", code=code)
    code = """
        import json
        from vyre.driver.selection import registry
        print(json.dumps([registry.backend_precedence("mine"), registry.problems(), registry.acquire("mine").id]))
        """
    assert python(code, tmp_path / "new", tmp_path / "old") == [7, {}, "mine"]
    assert python(code, tmp_path / "old", tmp_path / "new") == [70, {}, "mine"]


def test_a_package_installed_while_we_run_is_found_after_refresh(tmp_path):
    code = GOOD.format(id="fresh", precedence=500)
    install(tmp_path / "later", "fresh", entries("fresh = fresh_one:REGISTRATION"), module="fresh_one", code=code)
    seen = python(
        f"""
        import json, sys
        from vyre.driver.selection import registry
        before = registry.backend_precedence("fresh")
        sys.path.insert(0, {str(tmp_path / "later")!r})
        cached = registry.backend_precedence("fresh")
        registry.refresh()
        print(json.dumps([before, cached, registry.backend_precedence("fresh")]))
        """
    )
    assert seen == [PRECEDENCE_UNKNOWN, PRECEDENCE_UNKNOWN, 500]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts the threads that the system sees")
def test_acquiring_alone_starts_no_thread():
    seen = python(
        """
        import json, os
        from vyre.driver.selection import registry
        before = len(os.listdir("/proc/self/task"))
        backend = registry.acquire("reference")
        print(json.dumps([before, len(os.listdir("/proc/self/task")), backend.id]))
        """
    )
    assert seen == [1, 1, "reference"]


def test_the_second_process_chooses_without_loading_the_device_library(tmp_path):
    code = """
        from vyre.driver.contract import BackendRegistration, DeviceInfo, VyreBackend
        class Mine(VyreBackend, contract=1):
            id = "{id}"
            def dispatch(self, program, inputs, config=None, *, out=None):
                return []
        def devices():
            import heavy_library
            return heavy_library.devices()
        REGISTRATION = BackendRegistration(
            id="{id}", precedence={precedence}, kind="{kind}", open=lambda device=None: Mine(),
            devices={devices}, probe_key={key},
        )
    """
    board = code.format(id="board", precedence=1, kind="device", devices="devices", key="lambda: 'icd 1'")
    host = code.format(id="host", precedence=2, kind="host", devices="None", key="None")
    install(tmp_path, "board", entries("board.1 = board_one:REGISTRATION"), module="board_one", code=board)
    install(tmp_path, "host", entries("host.2 = host_one:REGISTRATION"), module="host_one", code=host)
    (tmp_path / "heavy_library.py").write_text(
        "from vyre.driver.contract import DeviceInfo\ndef devices(): return [DeviceInfo(0, 'soft', True)]\n"
    )
    ask = """
        import json, sys
        from vyre.driver.selection import registry
        chosen = registry.select()
        print(json.dumps([chosen.chosen, chosen.losers[0].reason, "heavy_library" in sys.modules]))
        """
    cache = {"VYRE_CACHE_DIR": str(tmp_path / "cache")}
    first, second = python(ask, tmp_path, **cache), python(ask, tmp_path, **cache)
    assert first[0] == second[0] == "host"
    assert first[1] == second[1]
    assert "soft" in first[1]
    assert (first[2], second[2]) == (True, False)
    kept = tmp_path / "board-1.0.dist-info"
    kept.rename(tmp_path / "board-2.0.dist-info")
    (tmp_path / "board-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: board\nVersion: 2.0\n")
    assert python(ask, tmp_path, **cache)[2] is True, "another version of the package is asked again"


CHOICE = """
    import importlib, json, sys
    from vyre.driver.selection.registry import preferred, select

    opened = []

    def count(module, name):
        try:
            kind = getattr(importlib.import_module(f"vyre.backends.{module}.device"), name)
        except ImportError:
            return  # its library is not installed
        made = kind.__init__

        def counted(self, *args, **options):
            opened.append(name)
            made(self, *args, **options)

        kind.__init__ = counted

    FIRST
    chosen = [preferred(), select().chosen]
    loaded = [id for id, library in (("wgpu", "wgpu"), ("opencl", "pyopencl")) if library in sys.modules]
    print(json.dumps([chosen, opened, loaded]))
"""
COUNTING = 'count("wgpu", "WgpuDevice"), count("opencl", "OpenCLDevice"), count("cuda", "CudaDevice")'
A_WEEK_LATER = "import time; now = time.time; time.time = lambda: now() + 7 * 24 * 3600"


def test_a_choice_opens_no_device_that_it_does_not_take(tmp_path):
    """And a week later it does not load the libraries of those that it does not take."""
    place = {"VYRE_CACHE_DIR": str(tmp_path / "cache"), "VYRE_ACQUIRE_TIMEOUT": "600"}
    source = Path(vyre.__file__).parents[1]
    chosen, opened, _ = python(CHOICE.replace("FIRST", COUNTING), source, **place)
    if chosen != ["cpu", "cpu"]:
        pytest.skip(f"{chosen[1]} is taken here")
    assert opened == []
    kept = probes.rows(tmp_path / "cache")
    refused = {name for name, entry in kept.items() if entry["record"].get("unavailable")}
    chosen, _, loaded = python(CHOICE.replace("FIRST", A_WEEK_LATER), source, **place)
    assert chosen == ["cpu", "cpu"]
    assert set(loaded) <= refused or sys.platform != "linux"
