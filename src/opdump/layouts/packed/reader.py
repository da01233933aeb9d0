"""Reads a rank of a packed dump: by its index, and what a run that was cut off did not list by the file of elements."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from opdump.errors import CorruptDumpError
from opdump.index.payload import inside
from opdump.index.reader import BatchColumns, FactsByProgram
from opdump.index.runs import LostFiles, RunChoice
from opdump.layouts.base import require_run
from opdump.layouts.mindspore_sync.files import FoundFile, Place, PlaceFiles, place_of
from opdump.layouts.mindspore_sync.locate import RankPlace
from opdump.layouts.mindspore_sync.names import parse_file_name
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.packed.inspection import ExpectedHeaders, are_as_expected
from opdump.layouts.packed.payload import PackedPayload, open_payload
from opdump.layouts.packed.record import records_of
from opdump.records import TensorRecord

_ELEMENTS = "elements"
_SUFFIX = ".pack"
_MOST_DIGITS = 19


class PackedRank(RankTree):
    """The directory of one rank, whose elements are in files of elements.

    The file of a run that was cut off, and all files if the index is lost, are searched from the first complete record to the
    last.
    """

    _open_file = staticmethod(open_payload)

    def __init__(
        self, root: Path, rank_id: int, *, run: RunChoice = "latest", places: Sequence[Place] | None = None
    ) -> None:
        self._ends: dict[str, int] = {}
        """The end of the complete records of a file."""
        self._expected = FactsByProgram(_expected_of)
        super().__init__(root, rank_id, run=run, places=places)

    def _other_places(self) -> tuple[Place, ...]:
        found: dict[Place, list[FoundFile]] = {}
        for file in self._files_to_look_through():
            self._ends[file] = 0
            try:
                damage: CorruptDumpError | None = None
                for offset, header in records_of(inside(self.root, file)):
                    if damage is not None:
                        self._note(damage)
                        damage = None
                    if isinstance(header, CorruptDumpError):
                        damage = header
                        continue
                    self._ends[file] = header.end
                    directory, _, name = header.name.rpartition("/")
                    place, parsed = place_of(directory), parse_file_name(name)
                    if place is not None and parsed is not None:
                        found.setdefault(place, []).append(FoundFile(parsed, f"{file}@{offset}"))
                # At the end of a run that was cut off, incomplete records are normal.
                if damage is not None and self._index is None:
                    self._note(damage)
            except CorruptDumpError as error:
                self._note(error)
        for place, files in found.items():
            files.sort(key=lambda file: (file.name.timestamp, file.name.io, file.name.slot, file.relative))
            if place not in self._places:
                self._listed[place] = PlaceFiles(tuple(files), (), None)
            else:
                listed = self.files(place)
                self._listed[place] = replace(listed, tensors=(*listed.tensors, *files))
        return tuple(place for place in found if place not in self._places)

    def _files_to_look_through(self) -> list[str]:
        try:
            names = sorted(name for name in os.listdir(inside(self.root, _ELEMENTS)) if name.endswith(_SUFFIX))
        except OSError:
            names = []
        if self._index is not None:
            complete = {f"{run.id}{_SUFFIX}" for run in self._index.runs if run.complete}
            names = [name for name in names if name not in complete]
        return [f"{_ELEMENTS}/{name}" for name in names]

    def _present(self, records: Sequence[TensorRecord], run: int, files: LostFiles) -> Sequence[TensorRecord]:
        """The records, without a payload if the elements do not exist."""
        present = list(super()._present(records, run, files))
        lost: Counter[str] = Counter()
        for place, record in enumerate(present):
            payload = record.payload
            if isinstance(payload, PackedPayload) and payload.offset >= self._end_of(payload.relative):
                present[place] = replace(record, payload=None)
                lost[payload.relative] += 1
        for file, count in lost.items():
            why = (
                "it was removed or cut off"
                if self._is_complete(run)
                else "the run was cut off before they were written"
            )
            self._note(
                CorruptDumpError(f"{self.root / file}: {count} tensors are listed in the index and not there: {why}")
            )
        return present

    def _has_elements(self, columns: BatchColumns, *, inspected: bool) -> bool:
        """Whether each record begins within the file of elements and, with `inspected`, has the expected header.

        All elements of a step are in the file of its run. Records in other files are looked up one by one.
        """
        places = [*columns.files.values()]
        file, _, _ = places[0].rpartition("@")
        head = f"{file}@"
        if not file.endswith(_SUFFIX) or not all(place.startswith(head) for place in places):
            return False
        texts = [place[len(head) :] for place in places]
        digits = "".join(texts)
        if "" in texts or not (digits.isascii() and digits.isdecimal()) or max(map(len, texts)) >= _MOST_DIGITS:
            return False
        offsets = np.array([*map(int, texts)], np.int64)
        if offsets.max() >= self._end_of(file):
            return False
        if not inspected:
            return True
        expected = self._expected.of(columns)
        numbers = np.array([*columns.files], np.intp)
        return are_as_expected(inside(self.root, file), offsets, expected.at(numbers))

    def _end_of(self, file: str) -> int:
        if file not in self._ends:
            try:
                self._ends[file] = os.stat(inside(self.root, file)).st_size
            except (OSError, CorruptDumpError):  # the latter for a file that is not in the dump
                self._ends[file] = 0
        return self._ends[file]


def _expected_of(columns: BatchColumns) -> ExpectedHeaders:
    """The expected headers of the records of tensors; those without elements are not checked."""
    tensors = columns.records()[1]
    return ExpectedHeaders.of((each.dtype, (each.sample,) if each.sample else each.shape) for each in tensors)


def read_places(path: Path, places: Sequence[RankPlace], run: RunChoice = "latest") -> tuple[PackedRank, ...]:
    """The ranks that `path` refers to. Raises NotInDumpError if none has the run of that number."""
    ranks = tuple(PackedRank(place.root, place.rank_id, run=run, places=place.places) for place in places)
    require_run(path, run, ranks)
    return ranks
