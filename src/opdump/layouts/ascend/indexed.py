"""The hidden index that opdump writes beside a device's files: records as they were written, including skipped operators.

A dump of a device has no index, and is read from its files.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final, cast

from opdump.errors import CorruptDumpError
from opdump.index.opening import INDEX_NAME
from opdump.index.payload import FilePayload, inside
from opdump.index.reader import BatchRecords, IndexReader
from opdump.index.runs import METADATA, LostFiles, Run
from opdump.layouts.ascend.payload import DumpPayload
from opdump.layouts.ascend.places import Place
from opdump.records import IO, Payload

_LATER_THAN_ANY: Final = 1 << 63
_PART_OF_FILE: Final = re.compile(r"(?P<file>.+)#(?P<io>input|output):(?P<number>[0-9]{1,9})", re.ASCII | re.DOTALL)


class Indexes:
    """The indexes below `root` and above the given places, each opened once."""

    def __init__(self, root: Path, places: tuple[Place, ...], problems: list[CorruptDumpError]) -> None:
        self._root = root
        self._readers: dict[str, IndexReader] = {}
        self._home_of: dict[Place, str] = {}
        self._newest: dict[str, int] = {}
        refused: set[str] = set()
        for place in places:
            for above in (place.relative, *map(str, PurePosixPath(place.relative or ".").parents)):
                home = "" if above == "." else above
                if home in self._readers:
                    self._home_of[place] = home
                    break
                relative = f"{home}/{METADATA}/{INDEX_NAME}" if home else f"{METADATA}/{INDEX_NAME}"
                if home in refused or not (root / relative).is_file():
                    continue
                try:
                    path = inside(root, relative)
                    self._readers[home] = IndexReader(path, root / home if home else root, open_payload=_open_payload)
                except CorruptDumpError as error:
                    refused.add(home)
                    problems.append(error)
                    continue
                self._home_of[place] = home
                break

    def home(self, place: Place) -> str | None:
        """The directory of the index that covers a place; None if there is none."""
        return self._home_of.get(place)

    def steps(self, home: str) -> set[int]:
        """The steps in an index."""
        return {batch.step for batch in self._readers[home].batches}

    def runs(self, home: str) -> tuple[Run, ...]:
        """The runs in an index."""
        return self._readers[home].runs

    def is_complete(self, home: str) -> bool:
        """Whether every run in an index ended normally."""
        return all(run.complete for run in self.runs(home))

    def newest(self, home: str, problems: list[CorruptDumpError]) -> int:
        """The latest time stamp of an operator in an index; -1 if it has none.

        A damaged index is added to `problems`, and counts as later than any file, because its operators must not be read twice.
        """
        if home not in self._newest:
            try:
                self._newest[home] = self._readers[home].newest_timestamp()
            except CorruptDumpError as error:
                problems.append(error)
                self._newest[home] = _LATER_THAN_ANY
        return self._newest[home]

    def read(self, home: str, step: int, problems: list[CorruptDumpError]) -> list[BatchRecords] | None:
        """The records of a step in an index; None if it is damaged, which is added to `problems`."""
        reader = self._readers[home]
        try:
            files = LostFiles(self._root / home)
            return [self._present(home, reader.read(batch), files, problems) for batch in reader.of_step(step)]
        except CorruptDumpError as error:
            problems.append(error)
            return None

    def _present(
        self, home: str, batch: BatchRecords, files: LostFiles, problems: list[CorruptDumpError]
    ) -> BatchRecords:
        """The records, without a payload if the file does not exist."""
        with_files = [
            (record, record.payload.relative if isinstance(record.payload, FilePayload | DumpPayload) else None)
            for record in batch.tensors
        ]
        present = files.without_payload(with_files, problems, is_complete=self.is_complete(home))
        return batch._replace(tensors=present)


def _open_payload(root: Path, file: str, dtype: str, shape: tuple[int, ...]) -> Payload:
    part = _PART_OF_FILE.fullmatch(file)
    if part is None:
        return FilePayload(root, file, dtype, shape)
    return DumpPayload(root, part["file"], cast(IO, part["io"]), int(part["number"]))
