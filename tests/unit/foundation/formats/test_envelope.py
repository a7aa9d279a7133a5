"""The hex envelope: the wire form as lines of text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vyre.conform.programs.strategies import arbitrary_programs
from vyre.errors import TextError, WireError, WireVersionError
from vyre.foundation.formats.text import from_envelope, to_envelope
from vyre.foundation.formats.wire.layout import MAX_PROGRAM_BYTES
from vyre.foundation.ir.dtypes import u32
from vyre.foundation.ir.nodes import Store, lit
from vyre.foundation.ir.program import Program, read_write

FORTY_TWO = Program([read_write("out", 0, u32, 1)], (1, 1, 1), [Store("out", lit(0), lit(42))])


@pytest.mark.parametrize("rev", [4, 5, 6])
def test_an_envelope_holds_the_wire_form_of_its_revision(rev):
    header, length, *rows = to_envelope(FORTY_TWO, rev).split("\n")
    assert header == "vyre_ir v0.1"
    assert length == f"wire_bytes {len(FORTY_TWO.to_wire(rev))}"
    assert rows.pop() == "", "the text ends with a line break"
    assert bytes.fromhex("".join(rows)) == FORTY_TWO.to_wire(rev)
    assert [len(row) for row in rows[:-1]] == [64] * (len(rows) - 1)
    assert 0 < len(rows[-1]) <= 64
    assert from_envelope(to_envelope(FORTY_TWO, rev)) == FORTY_TWO


def test_the_default_revision_is_6():
    assert to_envelope(FORTY_TWO) == to_envelope(FORTY_TWO, 6) != to_envelope(FORTY_TWO, 4)


def test_the_first_lines_of_a_known_program():
    lines = to_envelope(FORTY_TWO, 4).split("\n")
    assert lines[:3] == [
        "vyre_ir v0.1",
        "wire_bytes 194",
        "5659524504000400d04e8f0c08a8696c364423ba2b8cd3d9d103526f1253f035",
    ]


@settings(max_examples=60, deadline=None)
@given(arbitrary_programs())
def test_every_program_survives_the_envelope(program):
    assert from_envelope(to_envelope(program)) == program


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\n\n" + text.replace("\n", "\r\n\r\n"),
        lambda text: text.replace("\n", "\n \t\n"),
        lambda text: "\n".join(text.split("\n")[:2] + [line.upper() for line in text.split("\n")[2:]]),
        lambda text: text.rstrip("\n"),
    ],
    ids=["carriage returns", "blank lines", "upper case", "no last line break"],
)
def test_what_mail_and_editors_do_to_text_is_tolerated(change):
    assert from_envelope(change(to_envelope(FORTY_TWO))) == FORTY_TWO


@pytest.mark.parametrize(
    "text, kind, message, line",
    [
        ("", "header", "the envelope has no header", 1),
        ("\n\nvyre_ir v0.2\nwire_bytes 0\n", "header", "the envelope has no header", 3),
        ("vyre_ir v0.1", "length_line", "the envelope has no length", 2),
        ("vyre_ir v0.1\nbytes 4\n00000000\n", "length_line", "the envelope has no length", 2),
        ("vyre_ir v0.1\nwire_bytes -4\n00000000\n", "length_line", "the envelope has no length", 2),
        (f"vyre_ir v0.1\nwire_bytes {MAX_PROGRAM_BYTES + 1}\n", "too_large", "the program is too large", 2),
        (f"vyre_ir v0.1\nwire_bytes {MAX_PROGRAM_BYTES}\n", "length", "the length is wrong", 2),
        ("vyre_ir v0.1\nwire_bytes 4\n0000\n00g0\n", "character", "'g' is not a hex digit", 4),
        ("vyre_ir v0.1\nwire_bytes 4\n0000 0000\n", "character", "' ' is not a hex digit", 3),
        ("vyre_ir v0.1\nwire_bytes 4\n0000\n000\n", "odd_length", "the hex ends within a byte", 4),
        ("vyre_ir v0.1\nwire_bytes 4\n0000\n00\n", "length", "the length is wrong", 2),
        ("vyre_ir v0.1\nwire_bytes 4\n0000\n000000\n", "length", "the length is wrong", 2),
    ],
)
def test_a_broken_envelope_is_explained(text, kind, message, line):
    with pytest.raises(TextError, match=message) as caught:
        from_envelope(text)
    assert caught.value.context["kind"] == kind
    assert caught.value.context["line"] == line
    assert caught.value.fix


def test_a_wrong_length_says_both_numbers():
    text = to_envelope(FORTY_TWO, 4).replace("wire_bytes 194", "wire_bytes 195")
    with pytest.raises(TextError) as caught:
        from_envelope(text)
    assert (caught.value.context["declared"], caught.value.context["found"]) == (195, 194)


def test_the_bytes_inside_fail_as_bytes_do():
    with pytest.raises(WireError):
        from_envelope("vyre_ir v0.1\nwire_bytes 4\n00000000\n")
    with pytest.raises(WireVersionError):
        from_envelope(to_envelope(FORTY_TWO).replace("565952450600", "565952456300"))


@given(st.text() | st.text("0123456789abcdef\n ").map(lambda t: f"vyre_ir v0.1\nwire_bytes {len(t) // 2}\n{t}"))
def test_any_text_is_read_or_refused(text):
    with pytest.raises((TextError, WireError)):
        from_envelope(text)
