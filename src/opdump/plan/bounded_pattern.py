r"""rMatches a whole name against an expression, in time linear in the length of the name for any expression.

Python's `re` tries one way after the other: `(a+)+$` takes years to find that 60 letters do not match. Here all ways are
followed at once (Thompson, "Regular expression search algorithm", 1968): the set of places in the expression that the name
read so far may have led to; from each set a character leads to another, which is remembered.

    >>> matcher_of("(a+)+$")("a" * 60 + "b")
    False

Python's `re` is used if it cannot take long: it is faster, and only it supports back references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from opdump.plan.ecmascript import Token, translated

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
    """An expression by its tokens. Raises UnboundedPatternError for back references, and for an expression that is too large."""

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
                "a back reference beside more than two repetitions or choices can take any time to match; write what it "
                "refers to once more in its place"
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
