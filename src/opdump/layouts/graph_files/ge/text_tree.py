"""Parses protobuf's text format into a tree of fields, without a schema.

    graph { name: "net" op { name: "x" type: "Data" } }

is `{"graph": [{"name": ["net"], "op": [{"name": ["x"], "type": ["Data"]}]}]}`: a list for every field. Graph files of devices have
unknown fields, and weights of many megabytes: only the requested fields are kept.

Source: the description of the text format in protobuf's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

from opdump.errors import CorruptDumpError

_STRING: Final = r"""(?:"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|'[^'\\\n]*(?:\\[^\n][^'\\\n]*)*')"""
_TOKEN: Final = re.compile(
    rf"""
      (?P<nothing>[ \t\r\n\f\v,;]+|\#[^\n]*)
    | (?P<name>-?[A-Za-z_][A-Za-z0-9_]*)                      # with the minus of -inf
    | (?P<number>[-+]?(?:0[xX][0-9A-Fa-f]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?[fF]?))
    | (?P<string>{_STRING})
    | (?P<extension>\[[A-Za-z_][A-Za-z0-9_./%-]*\](?=\s*[:{{<]))
    | (?P<mark>[:{{}}<>\[\]])
    """,
    re.VERBOSE,
)
# Nearly every line of a generated file: one match instead of three.
_LINE: Final = re.compile(
    r"""\s*([A-Za-z_][A-Za-z0-9_]*)(?:\ \{\n|:\ ("[^"\\\n]*"|-?[0-9]+|[A-Za-z_][A-Za-z0-9_]*)\n(?=\s*[A-Za-z_}]))""",
    re.VERBOSE,
)
_PASSED_OVER: Final = re.compile(rf"""[^{{}}<>"'\#]+|\#[^\n]*|{_STRING}|(?P<mark>[{{}}<>])""")
_ESCAPE: Final = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([\s\S]))")
_LETTERS: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ENDS: Final = {"{": "}", "<": ">"}
_DEEPEST: Final = 100

Tree = dict[str, list[Any]]
Known = Mapping[str, "Known"]
"""The fields of a message to keep, nested for messages in messages: `{"graph": {"name": {}}}`."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_text_tree(text: str, known: Known, where: str) -> Tree:
    """The `known` fields, each with its values in order.

    Messages are trees, strings and names of enumerations `str`, numbers `int` or `float`. Invalid UTF-8 is replaced. Raises
    CorruptDumpError, with `where` and the line, for text in another format, and for a truncated text.
    """
    return _Parser(text, where).message("", known, 0)


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._position = 0

    def message(self, end: str, known: Known, depth: int) -> Tree:
        """Read the fields up to and including `end`; up to the end of the text if it is empty."""
        if depth > _DEEPEST:
            self._fail(f"messages are nested more than {_DEEPEST} deep", self._peek())
        fields: Tree = {}
        while True:
            line = _LINE.match(self._text, self._position)
            if line is not None:
                self._position = line.end()
                name, text = line.groups()
                below = known.get(name)
                if below is None:
                    if text is None:
                        self._pass_over("}")
                else:
                    value = self.message("}", below, depth + 1) if text is None else _plain(text)
                    fields.setdefault(name, []).append(value)
                continue
            token = self._next()
            if token.text == end and token.kind in ("mark", "end"):
                return fields
            if token.kind not in ("name", "extension", "number"):  # a number if the writer did not know the name
                self._fail(
                    f"found {_shown(token)}, expected the name of a field" + (f" or {end!r}" if end else ""), token
                )
            self._field(token.text, known.get(token.text), fields, depth)

    def _field(self, name: str, known: Known | None, fields: Tree, depth: int) -> None:
        behind = self._peek()
        if behind.kind == "mark" and behind.text == ":":
            self._next()
        elif behind.text not in _ENDS:
            self._fail(f"found {_shown(behind)} behind {name!r}, expected ':' or '{{'", behind)
        values: list[Any] = []
        if self._peek().text != "[":
            values.append(self._value(known, depth))
        else:
            self._next()
            while self._peek().text != "]":
                values.append(self._value(known, depth))
            self._next()
        if known is not None:
            fields.setdefault(name, []).extend(values)

    def _value(self, known: Known | None, depth: int) -> Any:
        token = self._next()
        if token.kind == "mark" and token.text in _ENDS:
            if known is not None:
                return self.message(_ENDS[token.text], known, depth + 1)
            self._pass_over(_ENDS[token.text])
            return None
        if token.kind == "string":
            parts = [token.text]
            while self._peek().kind == "string":  # adjacent strings are one
                parts.append(self._next().text)
            return _text_of(parts) if known is not None else None
        if token.kind == "number":
            return _number_of(token.text)
        if token.kind == "name":
            return token.text
        return self._fail(f"found {_shown(token)}, expected a value", token)

    def _pass_over(self, end: str) -> None:
        """Skip to the end of a message."""
        ends = [end]
        while ends:
            found = _PASSED_OVER.match(self._text, self._position)
            if found is None:
                self._fail(f"the message does not end with {ends[-1]!r}", self._peek())
            mark = found["mark"]
            if mark in _ENDS:
                ends.append(_ENDS[mark])
            elif mark is not None and mark != ends.pop():
                self._fail(f"found {mark!r} where another message ends", self._peek())
            self._position = found.end()

    def _peek(self) -> _Token:
        position = self._position
        token = self._next()
        self._position = position
        return token

    def _next(self) -> _Token:
        while self._position < len(self._text):
            position = self._position
            found = _TOKEN.match(self._text, position)
            if found is None:
                self._fail("found text that is not in this format", _Token("other", self._text[position], position))
            self._position = found.end()
            if found.lastgroup is not None and found.lastgroup != "nothing":
                return _Token(found.lastgroup, found.group(), position)
        return _Token("end", "", len(self._text))

    def _fail(self, problem: str, token: _Token) -> NoReturn:
        line = self._text.count("\n", 0, token.position) + 1
        raise CorruptDumpError(f"{self._where}: line {line}: {problem}; it is damaged or not a graph file in text")


def _plain(text: str) -> Any:
    """A string without escapes, an integer, a name."""
    if text[0] == '"':
        return text[1:-1]
    return _number_of(text) if text[0] in "-0123456789" else text


def _shown(token: _Token) -> str:
    if token.kind == "end":
        return "the end of the file"
    return repr(token.text if len(token.text) <= 40 else f"{token.text[:37]}...")


def _number_of(text: str) -> int | float:
    digits = text.lstrip("+-").lower()
    sign = -1 if text.startswith("-") else 1
    if digits.startswith("0x"):
        return sign * int(digits, 16)
    if digits.isdecimal() and len(digits) <= 30:
        return sign * int(digits, 8 if digits.startswith("0") and digits.strip("01234567") == "" else 10)
    return sign * float(digits.rstrip("f"))


def _text_of(parts: list[str]) -> str:
    if not any("\\" in part for part in parts):
        return "".join(part[1:-1] for part in parts)
    raw = b"".join(part[1:-1].encode("utf-8", "replace") for part in parts)
    return _ESCAPE.sub(_unescaped, raw).decode("utf-8", "replace")


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = int(short or long, 16)
    return (chr(code) if code < 0x110000 else "\ufffd").encode("utf-8", "replace")
