"""The layouts of dumps that devices write: acl's, of loaded models and single operators, and MindSpore's asynchronous one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.dump_file.names import UNKNOWN_ID
from opdump.plan import LayoutFacts

if TYPE_CHECKING:
    from opdump.index.runs import RunChoice
    from opdump.index.writer import RunFacts
    from opdump.layouts.ascend.places import Found
    from opdump.layouts.ascend.writer import AscendWriter, AsyncWriter
    from opdump.layouts.base import Rank, ReadRanks
    from opdump.plan import DumpPlan


class AclLayout:
    """Written like acl, and detected in every dump of a device, including MindSpore's form."""

    name = "acl"
    facts = LayoutFacts(
        files="operators",
        by_model=True,
        values=False,
        device_extremes=True,
        watch=True,
        unknown_id=UNKNOWN_ID,
        fields=frozenset({"file_format", "stream_in_names"}),
    )

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> AscendWriter:
        """The writer of one device."""
        from opdump.layouts.ascend.writer import AscendWriter

        return AscendWriter(plan, run, device_id=run.rank_id)

    def detect(self, path: Path) -> ReadRanks | None:
        """The devices at `path`: below it, above it, or copied out of their directories."""
        from opdump.layouts.ascend.places import find_dump

        found = find_dump(path)
        return None if found is None else partial(_read, path, found)


def _read(path: Path, found: Found, run: RunChoice) -> tuple[Rank, ...]:
    from opdump.layouts.ascend.reader import read_devices  # slow to import, and not needed unless a device was found

    return read_devices(path, found, run=run)


ACL: Final = AclLayout()


# MindSpore's asynchronous layout. Its dumps are read like those of any device.


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
        from opdump.layouts.ascend.writer import AsyncWriter

        return AsyncWriter(plan, run, device_id=run.rank_id)

    def detect(self, path: Path) -> ReadRanks | None:
        """The result of `ACL`."""
        return ACL.detect(path)


MINDSPORE_ASYNC: Final = AsyncLayout()
