"""MindSpore's synchronous layout, with the names of either generation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from opdump.errors import UnknownLayoutError
from opdump.plan import LayoutFacts

if TYPE_CHECKING:
    from opdump.index.writer import RunFacts
    from opdump.layouts.base import ReadRanks
    from opdump.layouts.mindspore_sync.writer import SyncWriter
    from opdump.plan import DumpPlan, SyncLayoutName


@dataclass(frozen=True, slots=True)
class SyncLayout:
    """One of the generations. Each reads both, so it does not matter which one is used."""

    name: SyncLayoutName
    facts: ClassVar[LayoutFacts] = LayoutFacts()

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> SyncWriter:
        """The writer of `{path}/rank_{rank}/`."""
        from opdump.layouts.mindspore_sync.writer import SyncWriter

        return SyncWriter(plan, run)

    def detect(self, path: Path) -> ReadRanks | None:
        """The ranks at `path`, one of them, a net, or an iteration. Raises CorruptDumpError for a rank that is a link out of the
        dump.
        """
        from opdump.layouts.mindspore_sync.files import locate
        from opdump.layouts.mindspore_sync.reader import read_places

        try:
            return partial(read_places, path, locate(path))
        except UnknownLayoutError:
            return None


MINDSPORE_2_3: Final = SyncLayout("mindspore-2.3")
MINDSPORE_2_10: Final = SyncLayout("mindspore-2.10")
