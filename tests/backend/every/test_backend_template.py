"""A third party's backend: built, installed into an environment of its own, found, judged and chosen like any other."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vyre.driver.contract.values import DispatchConfig
from vyre.driver.settings import knobs as settings
from vyre.errors import KernelCompileFailed, UnsupportedFeature
from vyre.foundation.ir.build import Builder
from vyre.foundation.ir.dtypes import f64, u32
from vyre.foundation.ir.nodes import (
    Assign,
    Atomic,
    Cast,
    If,
    InvocationId,
    Let,
    Load,
    LocalId,
    Loop,
    Select,
    Store,
    Var,
    lit,
)
from vyre.foundation.ir.ops import AtomicOp
from vyre.foundation.ir.program import Program, read, read_write, write_only

pytestmark = pytest.mark.check

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "examples" / "backend_template"
MODULE = TEMPLATE / "vyre_pygen.py"
GAPS = TEMPLATE / "contract-gaps.toml"
HOW_TO = ROOT / "docs" / "how-to" / "write-a-backend.md"
PROGRAMS = 300
BLOCK = 75


# ---- as a package ---------------------------------------------------------------------------------------------------


def built(project, folder):
    """The wheel of a project, as its build backend makes it; building one needs packages that tests do not have."""
    described = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    name, version = described["project"]["name"].replace("-", "_"), described["project"]["version"]
    info = f"{name}-{version}.dist-info"
    files = {
        path: (project / path).read_text("utf-8")
        for path in described["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    }
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in described["project"]["entry-points"].items()
    )
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh virtual environment with vyre as it is installed here, and the template; its Python."""
    folder = tmp_path_factory.mktemp("template")
    home = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip())
    here = sysconfig.get_path("purelib")
    (packages / "vyre_as_here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", built(TEMPLATE, folder)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


def clean(**more):
    """The environment variables of a user who has set nothing."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VYRE_", "PYTEST_", "PYTHONPATH"))}
    return {**kept, "VYRE_CACHE": "off", **more}


def asked(python, code, **env):
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run(
        [python, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, env=clean(**env), cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_under_150_lines_of_python():
    assert sum(len(path.read_text("utf-8").splitlines()) for path in TEMPLATE.rglob("*.py")) < 150


def test_it_is_found_by_its_entry_point_and_reached_by_its_id(environment):
    seen = asked(
        environment,
        """
        import json, struct, sys
        import vyre
        from vyre.driver.selection import registry
        order = [(b.id, b.precedence) for b in vyre.registered_backends_by_precedence()]
        listed = "vyre_pygen" in sys.modules
        backend = vyre.acquire("pygen")
        program = vyre.parse('''
            program workgroup(4, 1, 1) {
              buffer x @0 read u32
              buffer out @1 write u32
              region "test" { out[gid.x] = x[gid.x] * 3 }
            }''')
        (out,) = backend.dispatch(program, [struct.pack("<4I", 1, 2, 3, 0xFFFFFFFF)])
        print(json.dumps([
            order, listed, registry.problems(), type(backend).__name__, type(backend.inner).__module__, backend.version,
            struct.unpack("<4I", out), backend.compile_native(program, vyre.DispatchConfig()).id,
        ]))
        """,
    )
    order, listed, problems, guard, module, version, out, pipeline = seen
    assert ["pygen", 600] in order
    assert [rank for _, rank in order] == sorted(rank for _, rank in order)
    assert order.index(["pygen", 600]) < order.index(["reference", 900])
    assert not listed, "listing reads names and loads nothing"
    assert "pygen" not in problems
    assert (guard, module, version) == ("GuardedBackend", "vyre_pygen", "0.1.0")
    assert out == [3, 6, 9, 0xFFFFFFFD]
    assert pipeline.startswith("pygen:")


def test_it_passes_the_contract_suite_with_at_most_five_gaps(environment, tmp_path):
    report = tmp_path / "report.xml"
    options = ["-q", "-n0", "-p", "no:cacheprovider", "-k", "pygen", "-rfE", "--junitxml", report]
    env = {"VYRE_CONTRACT_BACKENDS": "pygen", "VYRE_REQUIRE_BACKENDS": "pygen", "VYRE_CONTRACT_GAPS": str(GAPS)}
    done = subprocess.run(
        [environment, "-m", "pytest", "tests/contract", *options],
        capture_output=True,
        text=True,
        env=clean(**env),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [{child.tag for child in case} for case in ElementTree.parse(report).iter("testcase")]
    assert sum("skipped" not in found for found in outcomes) > 100
    assert sum(map(len, tomllib.loads(GAPS.read_text("utf-8")).values())) <= 5


def suite(*options, **env):
    """The contract suite in this environment, on one quick test."""
    test = "tests/contract/test_dispatch.py::test_a_backend_can_be_prepared_and_shut_down_twice"
    command = [sys.executable, "-m", "pytest", test, "-q", "-n0", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, capture_output=True, text=True, env=clean(**env), cwd=ROOT)


def test_a_gap_whose_test_passes_fails_the_suite(tmp_path):
    gaps = tmp_path / "gaps.toml"
    gaps.write_text('[reference]\ntest_a_backend_can_be_prepared_and_shut_down_twice = "it cannot end"\n')
    assert suite(VYRE_CONTRACT_BACKENDS="reference").returncode == 0
    done = suite(VYRE_CONTRACT_BACKENDS="reference", VYRE_CONTRACT_GAPS=str(gaps))
    assert done.returncode == 1
    assert "[XPASS(strict)] it cannot end" in done.stdout


def test_a_backend_that_is_not_installed_cannot_be_judged():
    done = suite(VYRE_CONTRACT_BACKENDS="reference,nobody")
    assert done.returncode != 0
    assert "VYRE_CONTRACT_BACKENDS names nobody" in done.stdout + done.stderr


@pytest.mark.parametrize("first", range(0, PROGRAMS, BLOCK))
def test_random_programs_give_the_bytes_of_the_reference(environment, first):
    ran = asked(
        environment,
        f"""
        import json, random
        import vyre
        from vyre.backends.reference import run
        from vyre.conform.programs.random import random_program
        from vyre.driver.admission.program import why_not
        words = {{"wide": False}}
        claimed = [words, {{"floats": False}}, {{**words, "max_statements": 24}}] * 3
        claimed.append({{**words, "grid_barriers": True}})
        backend, ran = vyre.acquire("pygen"), 0
        for seed in range({first}, {first + BLOCK}):
            options = {{"max_statements": 10, "subgroups": False, **claimed[seed % len(claimed)]}}
            case = random_program(random.Random(seed), **options)
            assert why_not(case.program, backend) is None, why_not(case.program, backend)
            config = vyre.DispatchConfig(grid_override=case.grid, output_elements=case.output_elements)
            expected = run(case.program, case.inputs, grid=case.grid, output_elements=case.output_elements).outputs
            assert backend.dispatch(case.program, case.inputs, config) == expected, f"seed {{seed}}:\\n{{case.program}}"
            ran += 1
        print(json.dumps(ran))
        """,
    )
    assert ran == BLOCK


def test_it_is_chosen_when_its_precedence_is_the_lowest(environment, tmp_path):
    def changed(name, old, new):
        text = (TEMPLATE / name).read_text("utf-8")
        assert text.count(old) == 1
        (project / name).write_text(text.replace(old, new), "utf-8")

    project = tmp_path / "first"
    project.mkdir()
    changed("pyproject.toml", '"pygen.600"', '"pygen.1"')
    changed("vyre_pygen.py", "precedence=600", "precedence=1")
    zipfile.ZipFile(built(project, tmp_path)).extractall(tmp_path / "packages")
    code = """
        import json, vyre
        backend = vyre.acquire_preferred_dispatch_backend()
        print(json.dumps([backend.id, vyre.registered_backends_by_precedence()[0].id]))
        """
    assert asked(environment, code, PYTHONPATH=str(tmp_path / "packages")) == ["pygen", "pygen"]
    assert asked(environment, code.replace("()[0]", "()[-1]"))[1] == "reference"


def test_vyre_itself_knows_nothing_of_it(environment):
    assert [path for path in (ROOT / "src").rglob("*.py") if "pygen" in path.read_text("utf-8")] == []
    files = asked(
        environment,
        """
        import importlib.metadata, json
        print(json.dumps([str(path) for path in importlib.metadata.files("vyre-pygen")]))
        """,
    )
    assert [path for path in files if ".dist-info/" not in path] == ["vyre_pygen.py"]


# ---- its own words --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pygen():
    spec = importlib.util.spec_from_file_location("vyre_pygen_here", MODULE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_processor_of_the_other_byte_order_is_not_available(pygen, monkeypatch):
    assert pygen.REGISTRATION.unavailable() is None
    monkeypatch.setattr(sys, "byteorder", "big")
    assert "little-endian" in pygen.REGISTRATION.unavailable()


def loops(depth):
    body = (Store("out", lit(0), lit(7)),)
    for k in range(depth):
        body = (Loop(f"k{k}", lit(0), lit(1), body),)
    return Program([write_only("out", 0, u32, 1)], (1, 1, 1), body)


def test_loops_that_python_does_not_nest_are_refused_with_a_fix(pygen):
    backend = pygen.PygenBackend()
    assert backend.dispatch(loops(20), []) == [b"\7\0\0\0"]
    with pytest.raises(KernelCompileFailed, match=r"Python refuses the emitted source: .*Fix: nest .* less deeply"):
        backend.compile_native(loops(21), DispatchConfig())


def test_expressions_may_be_as_deep_as_programs_allow(pygen):
    value = Load("x", lit(0))
    for _ in range(50):
        value = lit(1) + value
    program = Program([read("x", 0, u32), write_only("out", 1, u32, 1)], (1, 1, 1), [Store("out", lit(0), value)])
    assert pygen.PygenBackend().dispatch(program, [bytes(4)]) == [b"\x32\0\0\0"]


def test_what_it_does_not_claim_is_refused_without_a_guard_too(pygen):
    double = Cast(u32, Cast(f64, InvocationId(0)))
    program = Program([write_only("out", 0, u32, 1)], (1, 1, 1), [Store("out", lit(0), double)])
    with pytest.raises(UnsupportedFeature, match="float64"):
        pygen.PygenBackend().dispatch(program, [])


@pytest.mark.parametrize(
    "index, expected, stored, old",
    [(0, 5, 9, 5), (0, 6, 5, 5), (1, 0, 5, 0)],
    ids=["equal", "different", "beyond the end"],
)
def test_an_exchange_happens_where_the_expected_value_is(pygen, index, expected, stored, old):
    swapped = Atomic(AtomicOp.COMPARE_EXCHANGE, "n", lit(index), lit(9), lit(expected))
    program = Program(
        [read_write("n", 0, u32), write_only("out", 1, u32, 1)], (1, 1, 1), [Store("out", lit(0), swapped)]
    )
    found = pygen.PygenBackend().dispatch(program, [bytes([5, 0, 0, 0])], DispatchConfig(grid_override=(1, 1, 1)))
    assert found == [bytes([stored, 0, 0, 0]), bytes([old, 0, 0, 0])]


def test_all_operands_are_evaluated_from_left_to_right(pygen):
    first = Atomic(AtomicOp.EXCHANGE, "n", lit(0), lit(1))
    second = Atomic(AtomicOp.EXCHANGE, "n", lit(0), lit(2))
    body = [Store("out", lit(0), first * lit(10) + second), Store("out", lit(1), Select(lit(True), lit(7), first))]
    program = Program([read_write("n", 0, u32), write_only("out", 1, u32, 2)], (1, 1, 1), body)
    n, out = pygen.PygenBackend().dispatch(program, [bytes([5, 0, 0, 0])], DispatchConfig(grid_override=(1, 1, 1)))
    assert (n[0], out[0], out[4]) == (1, 51, 7)


def test_a_while_loop_is_left(pygen):
    go = Var("go")
    turn = If(go, (Assign("n", Var("n") + lit(1)), Assign("go", Var("n") < lit(5))))
    body = [Let("n", lit(0)), Let("go", lit(True)), Loop("k", lit(0), lit(0xFFFFFFFF), (turn,))]
    program = Program([write_only("out", 0, u32, 1)], (1, 1, 1), [*body, Store("out", lit(0), Var("n"))])
    assert pygen.PygenBackend().dispatch(program, []) == [b"\5\0\0\0"]


def test_each_invocation_has_its_own_array(pygen):
    b = Builder(workgroup=4)
    out, own = b.write_only("out", u32, 4), b.own("own", u32, 3)
    b.store(own, LocalId(0), LocalId(0) + 5)
    b.barrier()
    b.store(out, LocalId(0), own[LocalId(0)] * 10 + own[0])
    words = [55, 60, 70, 0]  # the last one's store is beyond its array
    found = pygen.PygenBackend().dispatch(b.program(), [], DispatchConfig(grid_override=(1, 1, 1)))
    assert found == [b"".join(word.to_bytes(4, "little") for word in words)]


# ---- the page about it ----------------------------------------------------------------------------------------------


def fenced(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", HOW_TO.read_text("utf-8"), re.M | re.S)


def lines(*texts):
    return [line for text in texts for line in text.splitlines() if line]


def test_the_page_shows_the_whole_code_and_nothing_else():
    assert lines(*fenced("python")) == lines(MODULE.read_text("utf-8"))
    assert fenced("toml") == [(TEMPLATE / name).read_text("utf-8") for name in ("pyproject.toml", "contract-gaps.toml")]


def test_the_page_follows_the_six_steps():
    steps = re.findall(r"^## (\d)\. (.*)$", HOW_TO.read_text("utf-8"), re.M)
    assert [number for number, _ in steps] == list("123456")


def test_the_commands_of_the_page_use_settings_that_exist():
    used = set(re.findall(r"VYRE_[A-Z_]+(?==)", "".join(fenced("console"))))
    knobs = {knob.variable for knob in settings.all_knobs().values()}
    suite = (ROOT / "tests/contract/conftest.py").read_text("utf-8")
    assert {name for name in used - knobs if f'"{name}"' not in suite} == set()
    assert {"VYRE_CONTRACT_BACKENDS", "VYRE_CONTRACT_GAPS", "VYRE_REQUIRE_BACKENDS", "VYRE_BACKEND"} <= used
