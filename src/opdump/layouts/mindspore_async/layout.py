"""MindSpore's asynchronous layout. Its dumps are read like those of any device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.dump_file.names import UNKNOWN_ID
from opdump.layouts.ascend.layout import ACL
from opdump.plan import LayoutFacts

if TYPE_CHECKING:
    from opdump.index.writer import RunFacts
    from opdump.layouts.base import ReadRanks
    from opdump.layouts.mindspore_async.writer import AsyncWriter
    from opdump.plan import DumpPlan


class AsyncLayout:
    """MindSpore's form, whose operators have the names of its net."""

    name = "mindspore-async"
    facts = LayoutFacts(
        files="operators",
        values=False,
        unknown_id=UNKNOWN_ID,
        fields=frozenset({"file_format", "stream_in_names", "step_level", "kernel_by_kernel"}),
    )

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> AsyncWriter:
        """The writer of one device."""
        from opdump.layouts.mindspore_async.writer import AsyncWriter

        return AsyncWriter(plan, run, device_id=run.rank_id)

    def detect(self, path: Path) -> ReadRanks | None:
        """The result of `ACL`."""
        return ACL.detect(path)


MINDSPORE_ASYNC: Final = AsyncLayout()
