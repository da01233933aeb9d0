"""Parses a file or a line of the program as a user types it: `train.py:175`, `net/model.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opdump.call_stacks import Frame, Stack


class SourcePlace:
    """`FILE:LINE` or `FILE`. The file may be given by its last components."""

    def __init__(self, text: str) -> None:
        file, colon, line = text.rpartition(":")
        has_line = bool(colon) and line.isascii() and line.isdigit()
        self._file = Path(file if has_line else text).parts
        self._line = int(line) if has_line else None
        # Very many operators share few stacks, and these share their callers. The stacks are referenced, so that their identities stay unique.
        self._known: dict[int, tuple[Stack, bool]] = {}

    def is_on(self, stack: Sequence[Frame]) -> bool:
        """Return whether any line of the stack matches."""
        if not isinstance(stack, Stack):
            return any(map(self._is_meant, stack))
        passed: list[Stack] = []
        here: Stack | None = stack
        is_on = False
        while here is not None and not is_on:
            known = self._known.get(id(here))
            if known is not None:
                is_on = known[1]
                break
            passed.append(here)
            is_on = self._is_meant(here.frame)
            here = here.callers
        for each in passed:
            self._known[id(each)] = each, is_on
        return is_on

    def _is_meant(self, frame: Frame) -> bool:
        file = self._file
        return bool(file) and Path(frame.file).parts[-len(file) :] == file and self._line in (None, frame.line)
