"""Every acceptance row of rows.txt is held by a marked test, or docs/contract-rows.md says why it is not."""

import ast
import re
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "contract-rows.md"
ROW = re.compile(r"[A-C](-[A-Za-z0-9]+)+|T\d+")
LINE = re.compile(rf"\|\s*(?P<row>{ROW.pattern})\s*\|\s*(?P<reason>.*?)\s*\|")


def marked(source):
    """Ids in the `row(...)` marks of a test file, on functions, classes, modules and parameters."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr="row", value=ast.Attribute(attr="mark")), args=args):
                found += [a.value for a in args if isinstance(a, ast.Constant)]
    return found


def listed(text):
    """(id, reason) of every line of the document's tables."""
    return [(m["row"], m["reason"]) for line in text.splitlines() if (m := LINE.fullmatch(line.strip()))]


ROWS = (HERE / "rows.txt").read_text("utf-8").split()
LISTED = listed(DOCUMENT.read_text("utf-8"))


def test_the_list_of_rows_is_sound():
    assert len(ROWS) == len(set(ROWS)) > 150
    assert all(ROW.fullmatch(row) for row in ROWS)


def test_every_row_is_held_by_a_test_or_has_a_reason_and_marks_name_rows_that_exist():
    paths = HERE.parent.rglob("test_*.py")
    held = {row for path in paths if ".row(" in (text := path.read_text("utf-8")) for row in marked(text)}
    assert [row for row in ROWS if row not in held | dict(LISTED).keys()] == []
    assert held - set(ROWS) == set()


def test_the_document_names_rows_that_exist_once_and_with_a_reason():
    assert {row for row, _ in LISTED} - set(ROWS) == set()
    assert [row for row, n in Counter(row for row, _ in LISTED).items() if n > 1] == []
    assert [row for row, reason in LISTED if len(reason.split()) < 3] == []


def test_marks_and_lines_are_found():
    assert marked('@pytest.mark.row("A-X-1", "A-X-2")\ndef test(): pass\npytestmark = pytest.mark.row("B-Y-01")') == [
        "A-X-1", "A-X-2", "B-Y-01",
    ]  # fmt: skip
    assert listed("| row | reason |\n|---|---|\n| A-X-1 | not yet here |\n") == [("A-X-1", "not yet here")]
