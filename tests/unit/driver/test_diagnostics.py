"""Whatever is raised becomes records with a stable code, for people and for machines; and the page lists every code."""

import ast
import copy
import importlib.util
import json
import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vyre
from vyre import errors
from vyre.driver import diagnostics
from vyre.driver.diagnostics import (
    Diagnostic,
    DiagnosticCode,
    OpLocation,
    Severity,
    diagnostics_of,
    from_error,
    render,
    split_fix,
)
from vyre.errors import ArgumentValueError, InvalidProgram, KernelError, UnsupportedFeature, VyreError
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Lit, Store, Var
from vyre.foundation.ir.program import Program, output

ROOT = Path(__file__).parents[3]
SPEC = importlib.util.spec_from_file_location("render_error_codes", ROOT / "docs" / "render_error_codes.py")
render_error_codes = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render_error_codes)
CLASSES = render_error_codes.error_classes()

FULL = Diagnostic(
    Severity.ERROR,
    "E-LOWERING",
    "the mode is unknown",
    OpLocation("math.add", 2, "mode"),
    "use mode='wrap'",
    "https://example.org/modes",
)


def sample(cls):
    if cls is KernelError:
        return KernelError("no lists", fix="use shared()", filename="k.py", lineno=7, offset=1, text="x = [1]")
    return cls("it did not work", fix="try the other way", limit=8)


# ---- records --------------------------------------------------------------------------------------------------------


@pytest.mark.row("A-DIAG-1")
def test_severities_have_labels():
    assert {s.label for s in Severity} == {"error", "warning", "note"}
    assert (Severity.ERROR.label, f"{Severity.WARNING}", json.dumps(Severity.NOTE)) == ("error", "warning", '"note"')


@pytest.mark.row("A-DIAG-7", "A-DIAG-10")
def test_a_record_for_people_has_a_line_for_each_thing_that_is_known():
    assert FULL.render_human() == str(FULL) == (
        "error[E-LOWERING]: the mode is unknown\n"
        "  --> op `math.add` operand[2] attr `mode`\n"
        "  = help: use mode='wrap'\n"
        "  = note: https://example.org/modes"
    )  # fmt: skip


@pytest.mark.row("A-DIAG-6")
@pytest.mark.parametrize("severity", Severity)
def test_the_first_line_starts_with_severity_and_code(severity):
    made = getattr(Diagnostic, severity.value)("X-1", "something is up")
    assert made.severity is severity
    assert str(made) == f"{severity.value}[X-1]: something is up"


@pytest.mark.row("A-DIAG-9")
def test_an_empty_fix_still_shows():
    assert str(Diagnostic.error("X-1", "m").with_fix("")) == "error[X-1]: m\n  = help: "


def test_builders_change_one_thing_each():
    built = (
        Diagnostic.error("E-LOWERING", "the mode is unknown")
        .with_location(OpLocation("math.add").with_operand(2).with_attr("mode"))
        .with_fix("use mode='wrap'")
        .with_doc_url("https://example.org/modes")
    )
    assert built == FULL
    assert OpLocation("a.b").with_attr("n") == OpLocation("a.b", None, "n")
    assert str(OpLocation("a.b")) == "op `a.b`"


@pytest.mark.row("A-DIAG-4", "A-DIAG-8")
def test_json_has_what_is_known_and_comes_back():
    found = json.loads(FULL.to_json())
    assert found == {
        "severity": "error",
        "code": "E-LOWERING",
        "message": "the mode is unknown",
        "location": {"op_id": "math.add", "operand_idx": 2, "attr_name": "mode"},
        "suggested_fix": "use mode='wrap'",
        "doc_url": "https://example.org/modes",
    }
    assert Diagnostic.from_json(FULL.to_json()) == FULL
    assert Diagnostic.note("N-1", "m").to_dict() == {"severity": "note", "code": "N-1", "message": "m"}
    assert Diagnostic.error(DiagnosticCode.V010, "m").to_dict()["code"] == "V010"


@given(
    st.builds(
        Diagnostic,
        st.sampled_from(Severity),
        st.text(),
        st.text(),
        st.none() | st.builds(OpLocation, st.text(), st.none() | st.integers(), st.none() | st.text()),
        st.none() | st.text(),
        st.none() | st.text(),
    )
)
def test_every_record_survives_json_pickling_and_copying(record):
    assert Diagnostic.from_json(record.to_json()) == record
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record
    assert type(Diagnostic.from_dict(record.to_dict()).severity) is Severity


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("{", "this is not JSON"),
        ("[]", "this is not a diagnostic"),
        ("{}", "this is not a diagnostic: 'severity'"),
        ('{"severity": "fatal", "code": "X", "message": "m"}', "this is not a diagnostic: 'fatal'"),
        ('{"severity": "error", "code": "X"}', "this is not a diagnostic: .*message"),
        ('{"severity": "error", "code": "X", "message": "m", "color": 1}', "this is not a diagnostic: .*color"),
        ('{"severity": "error", "code": "X", "message": "m", "location": 1}', "this is not a diagnostic"),
    ],
)
def test_what_is_no_record_is_refused(text, complaint):
    with pytest.raises(ArgumentValueError, match=rf"{complaint}.*Fix: pass what Diagnostic\.to_"):
        Diagnostic.from_json(text)


# ---- errors as records ----------------------------------------------------------------------------------------------


@pytest.mark.row("A-DIAG-5")
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_has_a_catalogued_code_a_message_and_a_fix(cls):
    error = sample(cls)
    found = error.diagnostic()
    assert found == from_error(error)
    assert DiagnosticCode(found.code) == cls.diagnostic_code
    assert found.severity is Severity.ERROR
    assert error.message in found.message
    assert "Fix:" not in found.message
    assert found.suggested_fix == error.fix
    assert str(found).startswith(f"error[{cls.diagnostic_code}]: ")
    assert Diagnostic.from_json(found.to_json()) == found


@pytest.mark.row("A-DIAG-3")
def test_an_error_about_an_operation_says_which():
    class InlineCycle(VyreError):
        diagnostic_code = "E-INLINE-CYCLE"

    found = InlineCycle("the operation inlines itself", fix="break the cycle", op_id="foo").diagnostic()
    assert found.code is not None
    assert (found.code, found.severity, found.location) == ("E-INLINE-CYCLE", "error", OpLocation("foo"))
    assert str(found).startswith("error[E-INLINE-CYCLE]: the operation inlines itself")
    assert "\n  --> op `foo`\n  = help: break the cycle" in str(found)


def test_the_message_of_a_record_has_the_numbers_of_the_error():
    found = UnsupportedFeature("no such thing", fix="take another", name="f16", limit=8).diagnostic()
    assert found.message == "no such thing [limit=8] [name='f16']"
    assert sample(KernelError).diagnostic().message == "k.py:7: no lists"


def invalid():
    """Two findings: neither variable is bound."""
    body = [Store("out", Lit(u32, 0), Var("a")), Store("out", Lit(u32, 0), Var("b"))]
    return Program([output("out", 0, u32, 1)], (1, 1, 1), body)


def test_an_invalid_program_gives_one_record_per_finding():
    with pytest.raises(InvalidProgram) as caught:
        vyre.compile(invalid(), backend="reference")
    assert caught.value.diagnostic().code == "V066"
    found = diagnostics_of(caught.value)
    assert [d.code for d in found] == ["V066", "V066"]
    assert "`a`" in found[0].message or "'a'" in found[0].message
    assert all(d.suggested_fix and d.severity is Severity.ERROR for d in found)
    assert diagnostics_of(InvalidProgram("no findings", fix="none", issues=("V010",))) == (
        Diagnostic.error("E-UNKNOWN", "no findings").with_fix("none"),
    )


@pytest.mark.row("A-DIAG-2")
@pytest.mark.parametrize(
    "text, message, fix",
    [
        ("it broke. Fix: mend it.", "it broke", "mend it"),
        ("it broke. Fix: mend it...", "it broke", "mend it"),
        ("it broke. Fix: mend it. Fix: or not", "it broke", "mend it. Fix: or not"),
        ("it broke.", "it broke.", None),
        ("", "", None),
    ],
)
def test_a_text_is_split_where_its_fix_begins(text, message, fix):
    assert split_fix(text) == (message, fix)
    found = from_error(OSError(text))
    assert found.code == "E-UNKNOWN"
    assert found.suggested_fix == fix
    assert found.message == (f"OSError: {message}" if text else "OSError('')")


def test_records_render_together():
    records = diagnostics_of(ValueError("a")) + diagnostics_of(KeyError("b"))
    assert render(records) == "error[E-UNKNOWN]: ValueError: a\nerror[E-UNKNOWN]: KeyError: 'b'"
    assert [json.loads(line)["message"] for line in render(records, "json").split("\n")] == [
        "ValueError: a", "KeyError: 'b'",
    ]  # fmt: skip
    with pytest.raises(ArgumentValueError, match=r"'xml' is not a form of a diagnostic\. Fix: use human or json"):
        render(records, "xml")


def test_the_names_of_the_driver_are_these():
    for name in ("Diagnostic", "DiagnosticCode", "OpLocation", "Severity"):
        assert getattr(vyre.driver, name) is getattr(diagnostics, name)


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_of_codes_is_up_to_date():
    page = (ROOT / "docs" / "error-codes.md").read_text("utf-8")
    assert page == render_error_codes.render(), "run python docs/render_error_codes.py"


def test_the_page_has_every_number_and_every_code():
    page = re.sub(r'<a id="[^"]+"></a>', "", render_error_codes.render())
    for code in errors.ErrorCode:
        if code is not errors.ErrorCode.Unknown:
            assert f"| `{code.name}` | {code.value} |" in page
    for code in DiagnosticCode:
        assert f"| `{code.value}` | {code.severity} | {code.description} | {code.fix} |" in page


def test_the_page_has_every_error_class_of_the_package():
    names = {cls.__name__ for cls in CLASSES}
    for path in (ROOT / "src" / "vyre").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and names & {ast.unparse(base).rpartition(".")[2] for base in node.bases}:
                private = node.name.startswith("_")  # an error that nobody outside its module can catch
                assert private or node.name in names, f"add the module of {node.name} to docs/render_error_codes.py"
