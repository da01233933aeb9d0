"""Finds files that an index lists and that do not exist: the run was cut off, the disk was full, or they were removed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from opdump.errors import CorruptDumpError
from opdump.records import TensorRecord


class LostFiles:
    """Finds missing files by listing each directory once, because many records share a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, frozenset[str] | None] = {}

    def without_payload(
        self, records: Iterable[tuple[TensorRecord, str | None]], problems: list[CorruptDumpError], *, is_complete: bool
    ) -> list[TensorRecord]:
        """Return the records. Each is passed with its path below the root; if its file is missing, it has no payload and is reported in `problems`.

        `is_complete`: the run ended regularly, so every file existed.
        """
        cause = "it was removed after the run" if is_complete else "the run was cut off before it was written"
        found = []
        lost: dict[str, list[str]] = {}
        for record, relative in records:
            if relative is None or self._is_there(relative):
                found.append(record)
            else:
                found.append(replace(record, payload=None))
                directory, _, name = relative.rpartition("/")
                lost.setdefault(directory, []).append(name)
        for directory, names in lost.items():
            where = self._root / directory
            if len(names) > 1 and not self._names[directory]:
                text = f"{where}: is empty or missing, and the index lists {len(names)} tensors in it: {cause}"
                problems.append(CorruptDumpError(text))
            else:
                problems += [
                    CorruptDumpError(f"{where / name}: is listed in the index and not there: {cause}")
                    for name in dict.fromkeys(names)
                ]
        return found

    def _is_there(self, relative: str) -> bool:
        if "\0" in relative:
            return True  # not a valid path: the payload reports it
        directory, _, name = relative.rpartition("/")
        if directory not in self._names:
            self._names[directory] = self._names_in(directory)
        names = self._names[directory]
        return names is None or name in names

    def _names_in(self, directory: str) -> frozenset[str] | None:
        """Return the names in a directory of the dump, or None for a directory outside of it: its payloads raise an error."""
        root = os.path.realpath(self._root)
        try:
            path = os.path.realpath(os.path.join(root, directory))
            if path != root and not path.startswith(root.rstrip(os.sep) + os.sep):
                return None
            return frozenset(os.listdir(path))
        except OSError:
            return frozenset()


def cut_off(where: Path | str, step: int, operators: int) -> CorruptDumpError:
    """Return the problem of a step whose operators are known only from their files."""
    return CorruptDumpError(
        f"{where}: step {step} was not finished: {operators} of its operators are known only from their files and not listed in the index; the "
        "run was cut off"
    )


def left_out(where: Path | str, operators: int) -> CorruptDumpError:
    """Return the problem of operators after the last finished step, whose step is unknown."""
    return CorruptDumpError(
        f"{where}: {operators} operators after the last step in the index are left out: the run was cut off in a step that was "
        "not finished, and the number of that step is unknown"
    )
