"""The index that opdump hides beside a device's files: records as they were written, skipped operators among them.

A dump of a device has none, and is read from its files.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from opdump.errors import CorruptDumpError
from opdump.layouts.ascend.payload import DumpPayload
from opdump.layouts.ascend.places import Place
from opdump.layouts.mindspore_sync.index_reader import BatchRecords, IndexReader
from opdump.layouts.mindspore_sync.index_schema import INDEX_NAME
from opdump.layouts.mindspore_sync.metadata import METADATA
from opdump.layouts.mindspore_sync.payload import FilePayload, inside
from opdump.records import IO, Payload


class Indexes:
    """The indexes below `root` and above the given places, each opened once."""

    def __init__(self, root: Path, places: tuple[Place, ...], problems: list[CorruptDumpError]) -> None:
        self._readers: dict[str, IndexReader] = {}
        self._home_of: dict[Place, str] = {}
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
        """The directory of the index that lists what is in a place; None where there is none."""
        return self._home_of.get(place)

    def steps(self, home: str) -> set[int]:
        """The steps that an index lists."""
        return {batch.step for batch in self._readers[home].batches}

    def read(self, home: str, step: int, problems: list[CorruptDumpError]) -> list[BatchRecords]:
        """What an index lists of a step; nothing where it is damaged, which is added to `problems`."""
        reader = self._readers[home]
        try:
            return [reader.read(batch) for batch in reader.batches if batch.step == step]
        except CorruptDumpError as error:
            problems.append(error)
            return []


def _open_payload(root: Path, file: str, dtype: str, shape: tuple[int, ...]) -> Payload:
    path, hash_sign, place = file.rpartition("#")
    if not hash_sign:
        return FilePayload(root, file, dtype, shape)
    io, _, number = place.partition(":")
    if io not in ("input", "output") or not number.isdecimal() or len(number) > 9:
        raise CorruptDumpError(f"the index gives {file[:200]!r} for a tensor; expected the form 'FILE#input:0'")
    side: IO = "input" if io == "input" else "output"
    return DumpPayload(root, path, side, int(number))
