"""Parses a line of the program, or a file of it, as a user types it: `train.py:175`, `net/model.py`."""

from __future__ import annotations

from pathlib import Path

from opdump.records import Frame


class SourcePlace:
    """`FILE:LINE` or `FILE`; the file may be given by its last components."""

    def __init__(self, text: str) -> None:
        file, colon, line = text.rpartition(":")
        has_line = bool(colon) and line.isascii() and line.isdigit()
        self._file = Path(file if has_line else text).parts
        self._line = int(line) if has_line else None
        # Very many operators share a few stacks. A referenced object keeps its identity.
        self._known: dict[int, tuple[tuple[Frame, ...], bool]] = {}

    def is_on(self, stack: tuple[Frame, ...]) -> bool:
        """Whether any line of the stack is the one that is meant."""
        known = self._known.get(id(stack))
        if known is None:
            known = self._known[id(stack)] = stack, any(map(self._is_meant, stack))
        return known[1]

    def _is_meant(self, frame: Frame) -> bool:
        file = self._file
        return bool(file) and Path(frame.file).parts[-len(file) :] == file and self._line in (None, frame.line)
