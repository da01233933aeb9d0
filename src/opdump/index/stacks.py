"""Call stacks in an index: a tree in which stacks share the rows of their callers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from opdump.call_stacks import Frame, Stack, Stacks, linked
from opdump.index.schema import STACKS_SINCE
from opdump.index.values import known, name, whole

_MOST_CACHED: Final = 20_000

NewRows = Callable[[str, str, int], Iterator[tuple[Any, ...]]]
"""Returns the rows of a table after the last one read. Arguments: the table, a query, and the number of columns in its key."""


class StoredStacks:
    """The rows of the stacks that a run has written."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], int] = {}
        """By the rows of their callers and of their innermost lines."""
        self._by_identity: dict[int, tuple[Sequence[Frame], int]] = {}
        """The stack is referenced, so that its identity stays unique."""
        self._lines: dict[Frame, int] = {}

    def forget(self) -> None:
        """Forget the rows: later stacks are stored again."""
        self._rows.clear()
        self._by_identity.clear()
        self._lines.clear()

    def row(self, stack: Sequence[Frame], new_number: Callable[[str], int], add: Callable[..., None]) -> int:
        """Return the row of a stack, 0 for the empty one.

        `new_number` returns the number for a new row of a table. `add` stores the row: the table, then its columns.
        """
        found = self._by_identity.get(id(stack))
        new: list[Stack] = []
        here: Stack | None = None
        if found is None and stack:
            here = cast(Stack, linked(stack))
        while found is None and here is not None:
            new.append(here)
            here = here.callers
            found = self._by_identity.get(id(here))
        number = 0 if found is None else found[1]
        if not new:
            return number
        if len(self._by_identity) >= _MOST_CACHED:
            self._by_identity.clear()
        for each in reversed(new):
            number = self._called_from(number, each.frame, new_number, add)
            self._by_identity[id(each)] = each, number
        self._by_identity[id(stack)] = stack, number
        return number

    def _called_from(
        self, callers: int, frame: Frame, new_number: Callable[[str], int], add: Callable[..., None]
    ) -> int:
        line = self._lines.get(frame)
        if line is None:
            line = self._lines[frame] = new_number("lines")
            add("lines", line, frame.file, frame.line, frame.function, frame.code)
        number = self._rows.get((callers, line))
        if number is None:
            number = self._rows[callers, line] = new_number("stacks")
            add("stacks", number, callers, line)
        return number


class ReadStacks:
    """The stacks of an index, by row."""

    def __init__(self, version: int) -> None:
        """`version` is the version of the index."""
        self._version = version
        self._read: dict[int, Sequence[Frame]] = {0: ()}
        self._lines: dict[int, Frame] = {}

    def of(self, number: Any) -> Sequence[Frame]:
        """Return the stack of a row. Raises CorruptDumpError if there is none."""
        return cast(Sequence[Frame], known(self._read, number, "stack"))

    def load(self, new: NewRows) -> None:
        """Read the stacks that were added."""
        if self._version < STACKS_SINCE:
            self._load_frames(new)
            return
        query = "SELECT id, file, line, function, code FROM lines WHERE id > ? ORDER BY id"
        for number, *row in new("lines", query, 1):
            self._lines[number] = _frame(*row)
        for number, callers, line in new("stacks", "SELECT id, callers, line FROM stacks WHERE id > ? ORDER BY id", 1):
            # Rows are in ascending order. In a circle of callers, one row refers to a row that is not known yet, which is an error.
            above = known(self._read, callers, "stack")
            self._read[number] = Stack(known(self._lines, line, "line"), above or None)

    def _load_frames(self, new: NewRows) -> None:
        """Read stacks in the form of earlier versions, in which each has all its lines."""
        frames: dict[int, list[Frame]] = {}
        once: dict[Frame, Frame] = {}
        query = (
            "SELECT stack, position, file, line, function, code FROM frames WHERE stack > ? ORDER BY stack, position"
        )
        for stack, _, *row in new("frames", query, 2):
            frame = _frame(*row)
            frames.setdefault(stack, []).append(once.setdefault(frame, frame))
        stacks = Stacks()
        self._read.update((stack, stacks.of(lines)) for stack, lines in frames.items())


def _frame(file: Any, line: Any, function: Any, code: Any) -> Frame:
    return Frame(name(file), whole(line), name(function), name(code))
