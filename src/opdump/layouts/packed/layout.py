"""The packed layout: one file of elements for each run of a rank, which is the fastest to write."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.errors import UnknownLayoutError
from opdump.plan import LayoutFacts

if TYPE_CHECKING:
    from opdump.index.runs import RunChoice
    from opdump.index.writer import RunFacts
    from opdump.layouts.base import Rank, ReadRanks
    from opdump.layouts.mindspore_sync.files import RankPlace
    from opdump.layouts.packed.writer import PackedWriter
    from opdump.plan import DumpPlan

_ELEMENTS = "elements"


class PackedLayout:
    """One file of elements, and everything else in the index."""

    name = "packed"
    facts = LayoutFacts(copies_elements=True)

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> PackedWriter:
        """The writer of `{path}/rank_{rank}/`."""
        from opdump.layouts.packed.writer import PackedWriter

        return PackedWriter(plan, run)

    def detect(self, path: Path) -> ReadRanks | None:
        """The ranks at `path`, or one of them. Raises CorruptDumpError for a rank that is a link out of the dump."""
        from opdump.layouts.mindspore_sync.files import locate

        try:
            places = locate(path)
        except UnknownLayoutError:
            return None
        if not any((place.root / _ELEMENTS).is_dir() for place in places):
            return None
        return partial(_read, path, places)


def _read(path: Path, places: tuple[RankPlace, ...], run: RunChoice) -> tuple[Rank, ...]:
    from opdump.layouts.packed.reader import read_places

    return read_places(path, places, run=run)


PACKED: Final = PackedLayout()
