"""The regular expressions of `name-regex(...)`: matches a name in time linear in its length, whatever the expression."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

# Matches a whole name against an expression.
#
# Python's `re` tries one way after the other: `(a+)+$` takes years to find that 60 letters do not match. Here all ways are
# followed at once (Thompson, "Regular expression search algorithm", 1968): the set of places in the expression that the name
# read so far may have led to; from each set a character leads to another, which is remembered. Python's `re` is used if it
# cannot take long: it is faster, and only it supports back references.

_MOST_STATES: Final = 4_000
_DEEPEST: Final = 100
_MOST_REMEMBERED: Final = 500_000
_MOST_WAYS: Final = 2
"""Up to this many repetitions and choices of single characters, `re` tries at most as many ways as the square of the name's
length.
"""


class UnboundedPatternError(ValueError):
    """The matching time of an expression cannot be bounded."""


def matcher_of(expression: str) -> Callable[[str], bool]:
    """A function that returns whether a whole name matches an ECMAScript expression.

    Raises ValueError, re.error, OverflowError or RecursionError for an invalid expression, and UnboundedPatternError for counts
    that are too large and for back references beside more than two repetitions or choices.
    """
    python, tokens = translated(expression)
    compiled = re.compile(python, re.ASCII)
    if _is_quick(tokens):
        return _Quick(compiled).matches
    return BoundedPattern(tokens).matches


@dataclass(frozen=True, slots=True)
class _Quick:
    compiled: re.Pattern[str]

    def matches(self, name: str) -> bool:
        return self.compiled.fullmatch(name) is not None


def _is_quick(tokens: Sequence[Token]) -> bool:
    """Whether `re` tries few ways: the expression repeats no group, and has few choices."""
    ways = 0
    for number, token in enumerate(tokens):
        if token.kind == "repeat" and tokens[number - 1].kind != "character" and tokens[number - 1].kind != "reference":
            return False
        ways += token.kind == "or" or (token.kind == "repeat" and token.least != token.most)
    return ways <= _MOST_WAYS


@dataclass(frozen=True, slots=True)
class _Node:
    """A part of an expression with its parts; `token` is its kind: `or`, `open` (a sequence), `repeat`, or a single item."""

    token: Token
    parts: tuple[_Node, ...] = ()


@dataclass(slots=True)
class _State:
    """A state: `character` leads to the first of `following`; a state without one leads to all of them, an assertion only if it
    is true.
    """

    character: re.Pattern[str] | None = None
    assertion: str = ""
    ahead: int = -1
    """The first state of the sequence that must or, with the assertion `(?!`, must not follow."""
    following: tuple[int, ...] = ()


class BoundedPattern:
    """An expression, built from its tokens. Raises UnboundedPatternError for back references, and for an expression that is too large."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._states: list[_State] = []
        self._characters: dict[str, re.Pattern[str]] = {}
        self._asserts = any(token.kind == "assertion" or token.text in ("(?=", "(?!") for token in tokens)
        self._end = self._state()
        self._start = self._built(_parsed(tokens), self._end)
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._remembered = 0

    def matches(self, name: str) -> bool:
        """Whether the expression matches the whole name."""
        return self._run(frozenset((self._start,)), name, 0, {}, whole=True)

    def _run(
        self, reached: frozenset[int], name: str, at: int, seen: dict[tuple[int, int], bool], *, whole: bool
    ) -> bool:
        reached = self._closure(reached, name, at, seen)
        for place in range(at, len(name)):
            if not whole and self._end in reached:
                return True
            if not reached:
                return False
            reached = self._moved(reached, name, place, seen)
        return self._end in reached

    def _moved(self, reached: frozenset[int], name: str, at: int, seen: dict[tuple[int, int], bool]) -> frozenset[int]:
        known = None if self._asserts else self._moves.get((reached, name[at]))
        if known is not None:
            return known
        states = self._states
        step = frozenset(
            [
                states[number].following[0]
                for number in reached
                if (character := states[number].character) is not None and character.match(name[at])
            ]
        )
        found = self._closure(step, name, at + 1, seen)
        if not self._asserts:
            self._remembered += len(found)
            if self._remembered > _MOST_REMEMBERED:
                self._moves.clear()
                self._remembered = len(found)
            self._moves[reached, name[at]] = found
        return found

    def _closure(
        self, reached: frozenset[int], name: str, at: int, seen: dict[tuple[int, int], bool]
    ) -> frozenset[int]:
        """`reached`, and all states reachable from it without a character."""
        found = set(reached)
        left = list(reached)
        while left:
            state = self._states[left.pop()]
            if state.character is None and (not state.assertion or self._holds(state, name, at, seen)):
                new = [number for number in state.following if number not in found]
                found.update(new)
                left.extend(new)
        return frozenset(found)

    def _holds(self, state: _State, name: str, at: int, seen: dict[tuple[int, int], bool]) -> bool:
        if state.assertion == "^":
            return at == 0
        if state.assertion == r"\Z":
            return at == len(name)
        if state.ahead >= 0:
            key = (state.ahead, at)
            if key not in seen:
                seen[key] = self._run(frozenset((state.ahead,)), name, at, seen, whole=False)
            return seen[key] == (state.assertion == "(?=")
        sides = [_is_word(name[each]) if 0 <= each < len(name) else False for each in (at - 1, at)]
        return (sides[0] != sides[1]) == (state.assertion == r"\b")

    def _state(
        self,
        following: tuple[int, ...] = (),
        *,
        character: re.Pattern[str] | None = None,
        assertion: str = "",
        ahead: int = -1,
    ) -> int:
        if len(self._states) >= _MOST_STATES:
            raise UnboundedPatternError(
                f"with its counts written out it is longer than {_MOST_STATES:,} characters; write smaller counts"
            )
        self._states.append(_State(character, assertion, ahead, following))
        return len(self._states) - 1

    def _built(self, node: _Node, after: int) -> int:
        """The first state of a part, given the state after it: expressions are built from the end."""
        token = node.token
        if token.kind == "reference":
            raise UnboundedPatternError(
                "a back reference beside more than two repetitions or choices can take unlimited time to match; "
                "repeat the text that it refers to instead"
            )
        if token.kind == "repeat":
            return self._repeated(node.parts[0], token.least, token.most, after)
        if token.kind == "or":
            following = tuple([self._built(part, after) for part in node.parts])
            return self._state(following=following)
        if token.text in ("(?=", "(?!"):
            ahead = self._sequence(node.parts, self._end)
            return self._state(assertion=token.text, ahead=ahead, following=(after,))
        if token.kind == "open":
            return self._sequence(node.parts, after)
        if token.kind == "assertion":
            return self._state(assertion=token.text, following=(after,))
        character = self._characters.setdefault(token.text, re.compile(token.text, re.ASCII))
        return self._state(character=character, following=(after,))

    def _sequence(self, parts: Sequence[_Node], after: int) -> int:
        for part in reversed(parts):
            after = self._built(part, after)
        return after

    def _repeated(self, node: _Node, least: int, most: int | None, after: int) -> int:
        if most is None:
            again = self._state()
            self._states[again].following = (self._built(node, again), after)
            first = again
        else:
            first = after
            for _ in range(most - least):
                first = self._state(following=(self._built(node, first), after))
        for _ in range(least):
            first = self._state(following=(self._built(node, first),))
        return first


def _is_word(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char == "_")


def _parsed(tokens: Sequence[Token]) -> _Node:
    """The tokens as a tree of parts."""
    whole = Token("open", "(?:")
    heads = [whole]
    branches: list[list[list[_Node]]] = [[[]]]
    for token in tokens:
        if token.kind == "open":
            if len(heads) > _DEEPEST:
                raise UnboundedPatternError(f"its groups are nested more than {_DEEPEST} deep")
            heads.append(token)
            branches.append([[]])
        elif token.kind == "or":
            branches[-1].append([])
        elif token.kind == "close":
            found = _group(heads.pop(), branches.pop())
            branches[-1][-1].append(found)
        elif token.kind == "repeat":
            branches[-1][-1].append(_Node(token, (branches[-1][-1].pop(),)))
        else:
            branches[-1][-1].append(_Node(token))
    return _group(whole, branches.pop())


def _group(head: Token, branches: Sequence[Sequence[_Node]]) -> _Node:
    if len(branches) == 1:
        return _Node(head, tuple(branches[0]))
    sequences = tuple([_Node(Token("open", "(?:"), tuple(branch)) for branch in branches])
    return _Node(head, (_Node(Token("or"), sequences),))


# Converts an ECMAScript regular expression, as C++'s std::regex reads it, to one for Python's `re`.
#
# The two differ: POSIX classes (`[[:digit:]]`) exist only in C++; `(?i)`, `(?P<n>)`, look-behind and possessive quantifiers exist
# only in Python and must be errors; `$` must not match before a last newline; an escaped letter without a meaning is that letter.

# The classes of the "C" locale, as the inside of a bracket. C++ also accepts the names `d`, `s` and `w`.
_POSIX: Final[Mapping[str, str]] = {
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
_CONTROL: Final[Mapping[str, str]] = {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
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
                raise self.fail(f"{head!r} does not start a group; expected (, (?:, (?= or (?!")
            repeatable = head == "(?:"
        self.at += len(head)
        self.groups.append((len(self.out), repeatable))
        self.emit(head, "open")

    def close_group(self) -> None:
        if not self.groups:
            raise self.fail("a ')' without a '('")
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
