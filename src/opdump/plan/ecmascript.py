r"""rConverts an ECMAScript regular expression, as C++'s std::regex reads it, to one for Python's `re`.

The two differ: POSIX classes (`[[:digit:]]`) exist only in C++; `(?i)`, `(?P<n>)`, look-behind and
possessive quantifiers exist only in Python and must be errors; `$` must not match before a last newline; an escaped
letter without a meaning is that letter.

    >>> to_python_pattern("fc[[:digit:]]+$")
    'fc[0-9]+\\Z'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

# The classes of the "C" locale, as the inside of a bracket. C++ also accepts the names `d`, `s` and `w`.
_POSIX: Final[Mapping[str, str]] = MappingProxyType(
    {
        "alnum": "0-9A-Za-z",
        "alpha": "A-Za-z",
        "blank": r" \t",
        "cntrl": r"\x00-\x1f\x7f",
        "digit": "0-9",
        "graph": r"\x21-\x7e",
        "lower": "a-z",
        "print": r"\x20-\x7e",
        "punct": r"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e",
        "space": r"\s",
        "upper": "A-Z",
        "xdigit": "0-9A-Fa-f",
        "d": "0-9",
        "s": r"\s",
        "w": r"\w",
    }
)
_CONTROL: Final[Mapping[str, str]] = MappingProxyType(
    {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
)
_BRACES = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_HEX = re.compile(r"[0-9A-Fa-f]+")


TokenKind = Literal["character", "assertion", "open", "close", "or", "repeat", "reference"]


class Token(NamedTuple):
    r"""A part of an expression.

    `character`: `text` is a set of single characters in the syntax of Python's `re`; `assertion`: `^`, `\Z`, `\b` or `\B`;
    `open`: `text` is the head of a group; `repeat`: of the preceding part, `least` to `most` times (None: unlimited).
    """

    kind: TokenKind
    text: str = ""
    least: int = 0
    most: int | None = None


def to_python_pattern(expression: str) -> str:
    """The Python expression with the same meaning; compile it with `re.ASCII`.

    Raises ValueError, with the position, for expressions that std::regex rejects. (Counts and group references are checked by
    `re.compile`.)
    """
    return translated(expression)[0]


def translated(expression: str) -> tuple[str, tuple[Token, ...]]:
    """`to_python_pattern`, and the parts of the expression in order."""
    translation = _Translation(expression)
    python = translation.run()
    return python, tuple(translation.tokens)


class _Translation:
    def __init__(self, expression: str) -> None:
        self.source = expression
        self.at = 0
        self.out: list[str] = []
        self.tokens: list[Token] = []
        self.groups: list[tuple[int, bool]] = []  # the start of each open group in `out`; whether it may be repeated
        self.atom: int | None = None  # the start in `out` of the part that a quantifier here would repeat
        self.quantified = False

    def run(self) -> str:
        while self.at < len(self.source):
            self.step(self.source[self.at])
        if self.groups:
            raise ValueError("a parenthesis is not closed")
        return "".join(self.out)

    def step(self, char: str) -> None:
        if char in "*+?{":
            self.quantifier()
        elif char == "(":
            self.open_group()
        elif char == ")":
            self.close_group()
        elif char == "[":
            self.bracket()
        elif char == "\\":
            self.escape()
        else:
            self.at += 1
            if char == "|":
                self.emit(char, "or")
            elif char in "^$":
                self.emit(r"\Z" if char == "$" else char, "assertion")
            elif char == ".":
                self.emit(r"[^\n\r\u2028\u2029]")
            else:
                self.emit(re.escape(char))

    def emit(self, text: str, kind: TokenKind = "character") -> None:
        self.atom = len(self.out) if kind in ("character", "reference") else None
        self.quantified = False
        self.out.append(text)
        self.tokens.append(Token(kind, text))

    def fail(self, what: str) -> ValueError:
        return ValueError(f"{what} at character {self.at} of {self.source!r}")

    def quantifier(self) -> None:
        if self.atom is None:
            raise self.fail(f"{self.source[self.at]!r} has nothing to repeat")
        if self.source[self.at] == "{":
            braces = _BRACES.match(self.source, self.at)
            if braces is None:
                raise self.fail("expected a count such as {2}, {2,} or {2,5}")
            text = braces[0]
        else:
            text = self.source[self.at]
        self.tokens.append(Token("repeat", text, *_counts(text)))
        self.at += len(text)
        if self.source.startswith("?", self.at):
            text += "?"
            self.at += 1
        if self.quantified:  # `a*+` repeats the repetition in C++; Python would read a possessive quantifier
            self.out[self.atom :] = [f"(?:{''.join(self.out[self.atom :])})"]
        self.out.append(text)
        self.quantified = True

    def open_group(self) -> None:
        head, repeatable = "(", True
        if self.source.startswith("(?", self.at):
            head = self.source[self.at : self.at + 3]
            if head not in ("(?:", "(?=", "(?!"):
                raise self.fail(f"{head!r} starts no group; expected (, (?:, (?= or (?!")
            repeatable = head == "(?:"
        self.at += len(head)
        self.groups.append((len(self.out), repeatable))
        self.emit(head, "open")

    def close_group(self) -> None:
        if not self.groups:
            raise self.fail("a ')' closes nothing")
        start, repeatable = self.groups.pop()
        self.at += 1
        self.emit(")", "close")
        self.atom = start if repeatable else None

    def escape(self) -> None:
        letter = self.source[self.at + 1 : self.at + 2]
        if not letter:
            raise self.fail("a lone backslash ends the expression")
        if letter in "bB":
            self.at += 2
            self.emit("\\" + letter, "assertion")
        elif letter in "dDsSwW":
            self.at += 2
            self.emit("\\" + letter)
        elif letter in "123456789":
            number = re.compile("[0-9]+").match(self.source, self.at + 1)
            assert number is not None  # the letter is a digit
            self.at = number.end()
            self.emit(f"(?:\\{number[0]})", "reference")
        else:
            self.emit(re.escape(self.escaped_character()))

    def escaped_character(self) -> str:
        r"""Reads `\n`, `\x41`, `\u0041`, `\cA` or an escaped literal character."""
        letter = self.source[self.at + 1]
        self.at += 2
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter in "xu":
            width = 2 if letter == "x" else 4
            digits = self.source[self.at : self.at + width]
            if len(digits) != width or not _HEX.fullmatch(digits):
                raise self.fail(f"expected {width} hexadecimal digits after \\{letter}")
            self.at += width
            return chr(int(digits, 16))
        if letter == "c":
            control = self.source[self.at : self.at + 1]
            if not control:
                raise self.fail("expected a letter after \\c")
            self.at += 1
            return chr(ord(control) % 32)
        return letter

    def bracket(self) -> None:
        start = self.at
        self.at += 1
        negated = self.source.startswith("^", self.at)
        self.at += negated
        parts: list[str] = []
        while not self.source.startswith("]", self.at):
            if self.at >= len(self.source):
                self.at = start
                raise self.fail("a '[' is not closed")
            parts.append(self.bracket_item())
        self.at += 1
        if parts:
            self.emit(f"[{'^' if negated else ''}{''.join(parts)}]")
        else:  # the empty class matches nothing, its complement anything
            self.emit(r"[\s\S]" if negated else r"[^\s\S]")

    def bracket_item(self) -> str:
        first, single = self.bracket_atom()
        if not self.source.startswith("-", self.at) or self.source.startswith("-]", self.at):
            return first
        if not single:
            raise self.fail("a class cannot start a range")
        self.at += 1
        if self.at >= len(self.source):
            raise self.fail("a '[' is not closed")
        last, single = self.bracket_atom()
        if not single:
            raise self.fail("a class cannot end a range")
        return f"{first}-{last}"

    def bracket_atom(self) -> tuple[str, bool]:
        """One member of a bracket in Python's syntax, and whether it is a single character."""
        opener = self.source[self.at : self.at + 2]
        if opener in ("[:", "[.", "[="):
            end = self.source.find(opener[1] + "]", self.at + 2)
            if end < 0:
                raise self.fail(f"{opener!r} is not closed")
            name = self.source[self.at + 2 : end]
            self.at = end + 2
            if opener == "[:":
                if name.lower() not in _POSIX:
                    raise self.fail(f"{name!r} is not a character class; expected one of {', '.join(_POSIX)}")
                return _POSIX[name.lower()], False
            if len(name) != 1:
                raise self.fail(f"{name!r} is not a single character")
            return re.escape(name), opener == "[."
        if opener[0] != "\\":
            self.at += 1
            return _in_bracket(opener[0]), True
        if opener[1:] == "":
            raise self.fail("a '[' is not closed")
        if opener[1] in "dDsSwW":
            self.at += 2
            return opener, False
        if opener[1] == "b":
            self.at += 2
            return r"\x08", True
        return _in_bracket(self.escaped_character()), True


def _counts(quantifier: str) -> tuple[int, int | None]:
    if quantifier[0] != "{":
        return (1 if quantifier == "+" else 0), (1 if quantifier == "?" else None)
    least, comma, most = quantifier[1:-1].partition(",")
    return int(least), int(most) if most else None if comma else int(least)


def _in_bracket(char: str) -> str:
    if char.isalnum():
        return char
    return "\\" + char if char.isascii() and char.isprintable() else f"\\U{ord(char):08x}"
