"""Call stacks of operators that share their common lines: one more level of a recursion needs one more object.

stacks = Stacks()
outer = stacks.within(None, Frame("train.py", 20, "step", "loss = f(x)"))
stacks.within(outer, Frame("train.py", 7, "f", "return x + 1"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, overload

_MOST_SHOWN: Final = 36
_INNERMOST: Final = 8
_OUTERMOST: Final = 4
_DEEP: Final = 128
"""Walks with more numbers than this (two per frame) are deep."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's program on the call stack of an operator, innermost first in `OpRecord.stack`."""

    file: str
    line: int
    function: str = ""
    code: str = ""


class Stack(Sequence[Frame]):
    """The lines of the program that lead to an operator, innermost first. It compares and hashes like the tuple of its frames.

    A stack has at least one line; the empty stack is the empty tuple. A slice is a tuple.
    """

    __slots__ = ("_hash", "_length", "callers", "frame", "outermost")

    def __init__(self, frame: Frame, callers: Stack | None = None) -> None:
        """`frame` is the innermost line, `callers` the stack of its callers."""
        self.frame: Final = frame
        self.callers: Final = callers
        self._length: Final[int] = 1 if callers is None else callers._length + 1
        self._hash: int | None = None
        self.outermost: Final[tuple[Frame, ...]] = (
            (frame,)
            if callers is None
            else callers.outermost
            if callers._length >= _OUTERMOST
            else (frame, *callers.outermost)
        )
        """The outermost lines, at most `_OUTERMOST`, so that a deep stack need not be walked for them."""

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Frame]:
        here: Stack | None = self
        while here is not None:
            yield here.frame
            here = here.callers

    @overload
    def __getitem__(self, place: int) -> Frame: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Frame, ...]: ...
    def __getitem__(self, place: int | slice) -> Frame | tuple[Frame, ...]:
        if place == 0:
            return self.frame
        return tuple(self)[place]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple):
            return len(other) == self._length and all(map(Frame.__eq__, self, other))
        if not isinstance(other, Stack):
            return NotImplemented
        if self._length != other._length:
            return False
        one: Stack | None = self
        another: Stack | None = other
        while one is not another and one is not None and another is not None:
            if one.frame is not another.frame and one.frame != another.frame:
                return False
            one, another = one.callers, another.callers
        return True

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self))
        return self._hash

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[object, tuple[tuple[Frame, ...]]]:
        # As one tuple: pickling link by link would recurse as deep as the stack.
        return linked, (tuple(self),)


class Stacks:
    """A set of unique stacks: equal frames give the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Stack] = {}

    def __len__(self) -> int:
        return len(self._known)

    def within(self, callers: Stack | None, frame: Frame) -> Stack:
        """Return the stack of a line and its callers. Both are compared by identity."""
        key = (id(callers), id(frame))  # the stack keeps both alive
        found = self._known.get(key)
        if found is None:
            found = self._known.setdefault(key, Stack(frame, callers))
        return found

    def of(self, frames: Sequence[Frame], callers: Stack | None = None) -> Sequence[Frame]:
        """Return the stack of these lines, innermost first, with these callers; the empty tuple if there are no lines."""
        found = callers
        for frame in reversed(frames):
            found = self.within(found, frame)
        return () if found is None else found


class WalkedStacks:
    """Finds stacks by the result of a walk over frames: the identity of the code and the instruction of each frame, alternating, innermost first.

    `frame_of` returns the line for such a pair, always the same object for equal pairs, and keeps the code alive.
    """

    def __init__(self, stacks: Stacks, frame_of: Callable[[int, int], Frame]) -> None:
        self._stacks = stacks
        self._frame_of = frame_of
        self._known: dict[tuple[int, ...], Sequence[Frame]] = {}
        self._deepest: tuple[list[int], list[Stack], Stack | None] = [], [], None
        """The last deep walk, the stacks of its frames, outermost first, and the callers of the outermost. It is replaced as a whole, because threads
        walk at the same time."""

    def __len__(self) -> int:
        """Return how many walks are kept."""
        return len(self._known)

    def of(self, walked: list[int], callers: Sequence[Frame] = ()) -> Sequence[Frame]:
        """Return the stack for a walk with these callers; always the same object for the same frames."""
        above = callers if isinstance(callers, Stack) else None
        if len(walked) > _DEEP:
            return self._of_deep(walked, above)
        key = (*walked, id(above))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._within(walked, above, [])
        return found

    def _of_deep(self, walked: list[int], callers: Stack | None) -> Sequence[Frame]:
        # If these walks were keys, the memory for a recursion would grow with the square of its depth.
        last, known, above = self._deepest
        same = _same_end(walked, last) if above is callers else 0
        stacks = known[: same // 2]
        found = self._within(walked[: len(walked) - same], stacks[-1] if stacks else callers, stacks)
        self._deepest = walked, stacks, callers
        return found

    def _within(self, walked: list[int], callers: Stack | None, passed: list[Stack]) -> Sequence[Frame]:
        found = callers
        for place in range(len(walked) - 2, -1, -2):
            found = self._stacks.within(found, self._frame_of(walked[place], walked[place + 1]))
            passed.append(found)
        return () if found is None else found


def _same_end(one: list[int], other: list[int]) -> int:
    """Return a lower bound for the length of the common end, in pairs. Slices are compared as a whole, without Python code for each number."""
    most = min(len(one), len(other))
    less = 0
    while less < most:
        if one[len(one) - most + less :] == other[len(other) - most + less :]:
            return most - less
        less = 2 * less or 2
    return 0


def linked(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the same stack in the form in which callers are shared; the empty tuple if there are no lines."""
    return frames if isinstance(frames, Stack) else Stacks().of(frames)


class Shortened(NamedTuple):
    """The part of a stack that is shown: the innermost lines, the number of lines left out, and the outermost lines."""

    inner: Sequence[Frame]
    left_out: int
    outer: Sequence[Frame]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """All lines that are shown."""
        return (*self.inner, *self.outer)


def shortened(stack: Sequence[Frame]) -> Shortened:
    """Shorten a stack for display: up to 36 lines are kept as they are; otherwise, the first 8 and the last 4 are."""
    if len(stack) <= _MOST_SHOWN:
        return Shortened(stack, 0, ())
    outer = stack.outermost if isinstance(stack, Stack) else stack[-_OUTERMOST:]
    return Shortened(tuple(islice(stack, _INNERMOST)), len(stack) - _INNERMOST - _OUTERMOST, outer)


def left_out(lines: int) -> str:
    """Return the text that replaces this number of lines."""
    return f"... {lines} lines of the stack are left out"


def told_lines(stack: Sequence[Frame]) -> Iterator[tuple[str, str]]:
    """Yield the place (`train.py:7`) and code of each line that is shown. For the lines left out, yield an empty place and their number."""
    inner, missing, outer = shortened(stack)
    yield from ((f"{frame.file}:{frame.line}", frame.code) for frame in inner)
    if missing:
        yield "", left_out(missing)
    yield from ((f"{frame.file}:{frame.line}", frame.code) for frame in outer)
