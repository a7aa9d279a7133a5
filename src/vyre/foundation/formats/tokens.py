"""The text form as words, signs, numbers and strings, with an error that shows the place."""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from ...errors import IRValueError, TextError
from ..ir.dtypes import DataType, parse_dtype
from .text import ESCAPES, NAME, RESERVED

T = TypeVar("T")
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\r\n]+|\#[^\n]*)
  | (?P<hex>x"[0-9a-fA-F]*")
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<number>(?:0[xX][0-9a-fA-F]+(?:[iu](?:32|64))?|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?:[fiu](?:32|64))?)(?!\w))
  | (?P<name>{NAME.pattern})
  | (?P<sign>\.\.|<<|>>|<=|>=|==|!=|[-+*/%&|^~<>=(){{}}\[\],.:;@])
""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]{1,6}\}|.)", re.DOTALL)
MAX_DIGITS = 400


class Token(NamedTuple):
    """`kind` is a group of the token pattern, or "end"."""

    kind: str
    text: str
    start: int


class Tokens:
    """A text, and how much of it was read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.at = 0
        position = 0
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                place = Token("sign", text[position], position)
                if place.text == '"':
                    raise self.error(
                        "the string does not end on its line", 'close it with ", write a line break as \\n', place
                    )
                raise self.error(
                    f"{place.text!r} has no meaning here", "remove it, or quote the name it belongs to", place
                )
            if found.lastgroup != "space":
                self.tokens.append(Token(str(found.lastgroup), found[0], position))
            position = found.end()
        self.tokens.append(Token("end", "the end of the text", len(text)))

    # -- tokens

    def error(self, message: str, fix: str, token: Token | None = None) -> TextError:
        """The error, with the line and a caret below the token."""
        start = min((self.tokens[self.at] if token is None else token).start, len(self.text))
        line = self.text.count("\n", 0, start) + 1
        begin = self.text.rfind("\n", 0, start) + 1
        column = start - begin + 1
        end = self.text.find("\n", start)
        source = self.text[begin : len(self.text) if end < 0 else end].replace("\t", " ").rstrip("\r")
        cut = max(0, column - 60)
        shown = "".join(c if c.isprintable() else "?" for c in source[cut : cut + 100])
        excerpt = f"{line:>5} | {shown}\n      | {' ' * (column - 1 - cut)}^"
        return TextError(f"{message}\n{excerpt}", fix=fix, line=line, column=column)

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def peek(self, text: str, ahead: int = 0) -> bool:
        """Whether this word or sign is next, or stands so many tokens behind the next."""
        kind, found, _ = self.tokens[min(self.at + ahead, len(self.tokens) - 1)]
        return found == text and kind in ("name", "sign")

    def accept(self, text: str) -> bool:
        found = self.peek(text)
        self.at += found  # what is accepted is never the end
        return found

    def expect(self, text: str, where: str) -> Token:
        if not self.peek(text):
            raise self.error(f"expected {text!r} {where}, found {show(self.token)}", f"write {text} here")
        return self.next()

    def expected(self, what: str, fix: str) -> TextError:
        return self.error(f"expected {what}, found {show(self.token)}", fix)

    def choose(self, table: dict[str, T], what: str) -> T:
        """One of the words of a table."""
        if self.token.kind != "name" or self.token.text not in table:
            raise self.expected(what, f"write one of {', '.join(table)}")
        return table[self.next().text]

    def string(self, what: str) -> str:
        if self.token.kind != "string":
            raise self.expected(what, 'write it in quotes: "..."')
        token = self.next()

        def unescape(found: re.Match[str]) -> str:
            letter = found[1]
            if letter in ESCAPES:
                return ESCAPES[letter]
            if len(letter) > 1 and (code := int(letter[2:-1], 16)) <= 0x10FFFF:
                return chr(code)
            raise self.error(
                f"\\{letter} is not an escape", 'write \\", \\\\, \\n, \\r, \\t or \\u{1f600}',
                Token("string", "", token.start + 1 + found.start()),
            )  # fmt: skip

        return _ESCAPE.sub(unescape, token.text[1:-1])

    def name(self, what: str) -> str:
        """A bare or quoted name."""
        if self.token.kind == "string":
            return self.string(what)
        if self.token.kind != "name":
            raise self.expected(what, "write a name")
        if self.token.text in RESERVED:
            raise self.error(f"{self.token.text!r} is a word of the language", f'quote the name: "{self.token.text}"')
        return self.next().text

    def payload(self) -> bytes:
        if self.token.kind != "hex":
            raise self.expected("a payload", 'write the bytes as x"00ff"')
        token = self.next()
        if len(token.text) % 2 == 0:
            raise self.error("the payload has half a byte at its end", "write two hex digits per byte", token)
        return bytes.fromhex(token.text[2:-1])

    def integer(self, what: str) -> int:
        """A number without a type, perhaps negative."""
        start = self.token
        negative = self.accept("-")
        if self.token.kind != "number":
            raise self.expected(what, "write a whole number")
        token = self.next()
        if len(token.text) > MAX_DIGITS or not re.fullmatch(r"0[xX][0-9a-fA-F]+|[0-9]+", token.text):
            raise self.error(f"{what} must be a whole number", "write decimal or hexadecimal digits only", token)
        value = int(token.text, 16 if token.text[:2] in ("0x", "0X") else 10)
        if negative and start.start + 1 != token.start:
            raise self.error("the sign stands apart from its number", "remove the space", start)
        return -value if negative else value

    def integers(self, count: int, what: str) -> tuple[int, ...]:
        """`(1, 2, 3)`."""
        self.expect("(", f"before {what}")
        found = [self.integer(what)]
        for _ in range(count - 1):
            self.expect(",", f"after {what}")
            found.append(self.integer(what))
        self.expect(")", f"after {what}")
        return tuple(found)

    def type(self) -> DataType:
        """A type name, with everything up to its closing angle bracket."""
        first = self.token
        if first.kind != "name":
            raise self.expected("a type", "write a type such as u32")
        self.next()
        end = first.start + len(first.text)
        if self.text.startswith("<", end):
            depth = 0
            while end < len(self.text):
                depth += (self.text[end] == "<") - (self.text[end] == ">")
                end += 1
                if depth == 0:
                    break
            while self.token.start < end:
                token = self.next()
                rest = self.text[end : token.start + len(token.text)]
                if rest:  # the end of a ">>" or ">=" is another sign
                    self.at -= 1
                    self.tokens[self.at] = Token("sign", rest, end)
        try:
            return parse_dtype(self.text[first.start : end])
        except IRValueError as error:
            raise self.error(error.message, error.fix, first) from None


def show(token: Token) -> str:
    return token.text if token.kind == "end" else repr(token.text if len(token.text) <= 30 else token.text[:30] + "...")
