"""What people install: the wheel and the source archive, in environments that hold only what they ask for.

An environment gets links to the packages that are installed here and that the wheel requires, and nothing else: so what
is missing in the requirements is missing there, and no test needs a package index.
"""

import email.parser
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.check

ROOT = Path(__file__).parents[2]
WHEEL_BYTES = 5 << 18
"""The wheel is text and must stay small: more than this is something that does not belong into it."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ABSENT = {"cuda": "vyre[cuda]", "wgpu": "vyre[wgpu]", "opencl": "vyre[opencl]"}
"""What a backend says to install where its extra was not asked for."""
BUILD = """
import sys, tarfile
from pathlib import Path
import hatchling.build as backend
folder = Path(sys.argv[1])
archive = tarfile.open(folder / backend.build_sdist(str(folder)))
archive.extractall(folder / "unpacked", filter="data")
import os; os.chdir(next((folder / "unpacked").iterdir()))
backend.build_wheel(str(folder))
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is built from it alone."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def required(extra):
    """The distributions that vyre with an extra, or with none, brings; as they are installed here."""
    todo = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, ())]
    todo = [(Requirement(text), ("",)) for text in todo]
    found = {}
    while todo:
        wanted, extras = todo.pop()
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": e}) for e in extras):
            continue
        key = wanted.name, frozenset(wanted.extras)
        if key not in found:
            found[key] = distribution = metadata.distribution(wanted.name)
            todo += [(Requirement(text), ("", *wanted.extras)) for text in distribution.requires or ()]
    return list(found.values())


def environment(folder, wheel, extra=None):
    """A new virtual environment with the wheel in it; its Python."""
    home = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    for distribution in required(extra):
        for entry in distribution.files or ():
            top, source = entry.parts[0], Path(distribution.locate_file(entry.parts[0]))
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*pip, "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return python


def run(python, folder, *args):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VYRE_", "PYTEST_", "PYTHONPATH"))}
    env = kept | {"VYRE_CACHE_DIR": str(folder / "cache")}
    return subprocess.run([python, "-I", *args], cwd=folder, env=env, capture_output=True, text=True)


USE = """
import json, sys
import numpy as np, vyre
from vyre import In, Out, gid, u32

@vyre.kernel(workgroup=64)
def double(x: In[u32], out: Out[u32]):
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2

x = np.arange(1000, dtype=np.uint32)
found = {}
for listing in vyre.registered_backends():
    try:
        found[listing.id] = np.array_equal(double.on(listing.id)(x), 2 * x)
    except vyre.BackendUnavailable as e:
        found[listing.id] = str(e)
json.dump({"chosen": np.array_equal(double(x), 2 * x), "found": found, "file": vyre.__file__}, sys.stdout)
"""


@pytest.fixture(scope="module")
def plain(archives, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    (folder / "use.py").write_text(USE, "utf-8")
    return environment(folder, archives[1]), folder


def test_a_wheel_alone_runs_kernels_and_the_other_backends_say_what_to_install(plain):
    python, folder = plain
    done = run(python, folder, "use.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["chosen"] is True
    assert str(folder) in told["file"]
    assert told["found"]["cpu"] is True
    assert told["found"]["reference"] is True
    for id, hint in ABSENT.items():
        assert hint in told["found"][id]
        assert "Fix: " in told["found"][id]


def test_a_wheel_brings_the_command_line(plain):
    python, folder = plain
    script = python.with_name("vyre")
    for command in ([str(python), "-I", "-m", "vyre"], [str(script)]):
        done = subprocess.run([*command, "--version"], cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert PROJECT["version"] in done.stdout


@pytest.mark.parametrize("extra", sorted(ABSENT))
def test_an_extra_brings_what_its_backend_imports(extra, archives, tmp_path):
    (tmp_path / "use.py").write_text(USE, "utf-8")
    done = run(environment(tmp_path, archives[1], extra), tmp_path, "use.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["found"]
    assert all(hint in told[id] for id, hint in ABSENT.items() if id != extra)
    assert told[extra] is True or ABSENT[extra] not in told[extra], told[extra]  # a device may be missing all the same


def test_the_wheel_holds_the_package_and_nothing_else(archives):
    wheel = archives[1]
    assert wheel.name.endswith("-py3-none-any.whl")
    assert wheel.stat().st_size <= WHEEL_BYTES
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith("dist-info/METADATA"))
        described = email.parser.Parser().parsestr(archive.read(info).decode())
    assert {name.split("/")[0] for name in names} == {"vyre", info.split("/")[0]}
    assert {"vyre/py.typed", "vyre/__init__.pyi", "vyre/__main__.py"} <= set(names)
    source = {f"vyre/{path.relative_to(ROOT / 'src/vyre').as_posix()}" for path in (ROOT / "src/vyre").rglob("*.py")}
    assert source <= set(names)
    assert described["Name"] == "vyre"
    assert described["Requires-Python"] == PROJECT["requires-python"]
    assert set(described.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])


def test_the_source_archive_holds_what_the_tests_read(archives):
    with tarfile.open(archives[0]) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {
        "src",
        "tests",
        "docs",
        "examples",
        "bench",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "mkdocs.yml",
    } <= tops
    assert not tops & {"build", "shared", ".gpu", ".venv"}


def test_the_citation_is_of_this_version():
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"version: {PROJECT['version']}\n" in text
    assert PROJECT["description"] in text
    assert all(f"  - {word}\n" in text for word in (*PROJECT["keywords"], *PROJECT["license"].split(" OR ")))
