"""What a notebook shows: well-formed, escaped, legible on any page, with the facts, and never too much of them."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import vyre
from vyre import In, Out, gid, u32
from vyre.driver.contract import BackendCapability
from vyre.driver.contract.profile import DeviceProfile
from vyre.driver.guard import compile as pipeline
from vyre.driver.selection.registry import Loser, Selection
from vyre.driver.verify import shadow
from vyre.driver.verify.cases import ConformanceMatrix, check_matrix
from vyre.errors import DiagCode
from vyre.foundation import html
from vyre.foundation.check.validate import validate
from vyre.foundation.ir.nodes import Lit, Store, lit
from vyre.foundation.ir.program import Program, output, read, workgroup
from vyre.foundation.ir.report import Issue, Report

EVIL = "<script>alert('x')</script>&\"\x1b[31m\ud800"


@vyre.kernel(workgroup=64)
def double(x: In[u32], out: Out[u32]) -> None:
    if gid.x < len(out):
        out[gid.x] = x[gid.x] * 2


class Page(HTMLParser):
    """Reads a page that must be well formed; keeps its words, tags and attributes."""

    def __init__(self, source):
        super().__init__(convert_charrefs=True)
        self.open, self.words, self.tags, self.styles = [], [], set(), []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.tags.add(tag)
        for name, value in attributes:
            assert name in ("class", "style", "open"), f"{tag} has {name}={value!r}"
            self.styles += [value] if name == "style" else []

    def handle_startendtag(self, tag, attributes):
        pytest.fail(f"{tag} closes itself")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def handle_comment(self, data):
        pytest.fail(f"comment {data}")

    @property
    def text(self):
        return "\n".join(self.words)


def shown(value):
    """The text of what a notebook shows, after the rules that hold for all of them."""
    source = value._repr_html_()
    source.encode("utf-8")
    found = Page(source)
    assert found.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"}
    assert source.startswith('<div class="vyre">')
    for style in found.styles:
        for colour in re.findall(r"(?:color|background|border[\w-]*):([^;]*)", style):
            assert not re.search(r"#|rgb|white|black|grey|gray|red|green|url", colour), style
    assert len(source) < 200_000
    return found.text


def program(name="out", *, buffers=()):
    return Program([*buffers, output(name, 9, u32, 4)], (4, 1, 1), [Store(name, lit(0), Lit(u32, 7))])


# ---- each of them ---------------------------------------------------------------------------------------------------


def test_a_program_shows_its_buffers_identity_and_text():
    text = shown(double.program)
    for fact in ("64 x 1 x 1", double.program.fingerprint, "proved", "read_only", "write_only", "at dispatch", "x"):
        assert fact in text
    assert str(double.program).splitlines()[1].strip() in text
    assert "not shown" not in text
    assert shown(program(buffers=[read("x", 3, u32, 8), workgroup("local", u32, 16)])).count("workgroup") >= 2


def test_a_program_that_cannot_be_encoded_is_shown_too():
    long = Program([output("o" * (1 << 21), 0, u32, 1)], (1, 1, 1), [])
    assert "none: " in shown(long)
    assert "… (2,095,152 more)" in shown(long)
    assert "unproved" in shown(Program([], (1, 1, 1), [Store("missing", lit(0), lit(0))]))


def test_a_large_program_is_cut_with_a_note():
    many = Program([output("out", 0, u32, 4)], (1, 1, 1), [Store("out", lit(0), Lit(u32, k)) for k in range(5000)])
    text = shown(many)
    assert re.search(r"\d+ of 5,\d\d\d lines are shown; print\(\) has them all", text)
    assert "determinism" not in text, "which would take long to find out"
    assert "<details>" in many._repr_html_()
    assert "<details open>" in double.program._repr_html_()


def test_a_program_with_many_buffers_is_cut_with_a_note():
    wide = program(buffers=[read(f"b{k}", k + 10, u32, 1) for k in range(html.MAX_ROWS + 5)])
    assert "6 more rows are not shown" in shown(wide)
    assert "more rows" not in shown(program(buffers=[read(f"b{k}", k + 10, u32, 1) for k in range(html.MAX_ROWS - 1)]))


def test_a_plan_shows_every_decision():
    plan = double.on("cpu").explain(np.arange(4, dtype=np.uint32))
    text = shown(plan)
    for decision in plan.decisions:
        assert decision.what in text
        assert decision.reason in text
    for buffer in plan.bindings:
        assert buffer.name in text
    assert f"program {plan.program[:16]} on cpu" in text
    assert "workgroup" in text


def test_a_capability_shows_every_fact():
    with vyre.acquire("cpu") as backend:
        text = shown(backend.capability)
    for fact in ("max_workgroup_size", "deadline", "subgroup_ops", "exactness", "types"):
        assert fact in text
    text = shown(BackendCapability(ops=frozenset(["a"]), max_workgroup_size=(8, 4, 2), extras={"note": EVIL[:20]}))
    assert "8 x 4 x 2" in text
    assert "1 operations" in text
    assert '"note": "<script>' in text
    assert "every core operation" in shown(BackendCapability())


def test_a_selection_shows_who_was_not_chosen_and_why():
    selection = vyre.select(double.program)
    text = shown(selection)
    assert f"chosen: {selection.chosen}" in text
    for loser in selection.losers:
        assert loser.reason in text
    with vyre.acquire("cpu") as backend:
        assert "because" in shown(Selection("cpu", backend, (Loser("other", "because"),)))


def test_findings_show_their_place_and_fix():
    issues = validate(Program([], (1, 1, 1), [Store("missing", lit(0), lit(0))]))
    for issue in issues:
        text = shown(issue)
        assert issue.headline in text
        assert issue.fix in text
    report = Report()
    assert "0 findings" in shown(report)
    report.add(DiagCode(issues[0].code), "node", ("entry", 0), "it is wrong", "mend it")
    assert "1 findings" in shown(report)
    assert "mend it" in shown(report)


def test_a_conformance_report_shows_what_failed():
    reference = vyre.acquire("reference")
    compiled = pipeline.compile(reference, double.program)
    matrix = ConformanceMatrix()
    matrix.push("small", [np.arange(4, dtype=np.uint32)])
    good = check_matrix(compiled, double.program, reference.dispatch, matrix)
    assert "every case passed" in shown(good)
    wrong = check_matrix(compiled, double.program, lambda *a, **k: [bytes(16)], matrix)
    text = shown(wrong)
    assert "not shown to be right" in text
    assert "Diverged" in text
    assert wrong.errors[0].fix in text


def test_a_shadow_shows_what_it_saw():
    x = np.arange(4, dtype=np.uint32)
    main, other = (pipeline.compile(vyre.acquire("reference"), double.program) for _ in range(2))
    with shadow.ShadowedPipeline(main, other, on_divergence="log") as checked:
        checked.dispatch([x])
        text = shown(checked.shadow)
        assert "shadow of reference by reference" in text
        assert "what differs" not in text
        with pytest.raises(shadow.Diverged) as caught:
            checked.shadow.claim.hold("live", (x.tobytes(),), (bytes(16),), ((x * 2).tobytes(),), main.config)
        checked.shadow.events.append(caught.value.event)
        assert "what differs" in shown(checked.shadow)


def test_a_device_profile_shows_its_facts():
    with vyre.acquire("cpu") as backend:
        text = shown(DeviceProfile.from_backend(backend))
    assert "device profile of cpu" in text
    assert "max_workgroup_size" in text


# ---- names are the user's -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        program(EVIL),
        Program([output("out", 0, u32, 1)], (1, 1, 1), [], op_id=EVIL),
        Issue(next(iter(DiagCode)), EVIL, "node", (EVIL,), EVIL, EVIL),
        Selection(EVIL, None, (Loser(EVIL, EVIL),)),
        DeviceProfile(backend=EVIL, device=EVIL),
        BackendCapability(memory_model=EVIL, types=frozenset([EVIL])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_markup_in_a_name_stays_text(value):
    assert "<script>" in shown(value)  # the parser, which knows script as a tag, has seen none
    source = value._repr_html_()
    assert "<script" not in source
    assert "\x1b" not in source


@given(st.text(st.characters(), max_size=60), st.text(st.characters(), max_size=60))
def test_whatever_a_text_holds_the_page_has_the_same_words_and_no_other_tags(title, cell):
    source = html.page(title, html.table([title], [[cell]]), html.facts([(title, cell)]), html.code(title, cell))
    found = Page(source)
    assert found.tags == {"div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "pre"}
    if cell.isprintable() and cell:
        assert found.words.count(cell) >= 2
    assert all(c.isprintable() or c in "\n\t" for c in found.text)


def test_markup_is_not_escaped_twice():
    assert html.text(html.text("<&>")) == "&lt;&amp;&gt;"
    assert html.text(True) == "yes"
    assert html.text(False) == "no"
    assert html.text(None) == "None"


@pytest.mark.parametrize("lines, note", [(html.MAX_LINES, False), (html.MAX_LINES + 1, True)])
def test_code_is_cut_behind_its_last_line(lines, note):
    text = Page(html.code("text", "\n".join("x" for _ in range(lines)))).text
    assert ("print() has them all" in text) == note


def test_a_line_without_an_end_is_cut_too():
    source = html.code("text", "x" * (html.MAX_CHARS + 1))
    assert "1 of 1 lines are shown" in source
    assert len(source) < html.MAX_CHARS + 500
