"""The layouts of opdump itself. Their writers and readers are imported when they are needed, so that commands start quickly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.dump_file.names import UNKNOWN_ID
from opdump.plan import LayoutFacts

if TYPE_CHECKING:
    from opdump.index.runs import RunChoice
    from opdump.index.writer import RunFacts
    from opdump.layouts.ascend.places import Found
    from opdump.layouts.base import Rank, RankWriter, ReadRanks
    from opdump.layouts.mindspore_sync.files import RankPlace
    from opdump.plan import DumpPlan


@dataclass(frozen=True, slots=True)
class OwnLayout:
    """A layout by the module and the class of its writer."""

    name: str
    facts: LayoutFacts
    writer: tuple[str, str]
    find: Callable[[Path], ReadRanks | None]

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> RankWriter:
        """The writer of one rank or device."""
        module, name = self.writer
        writer: RankWriter = getattr(import_module(f"opdump.layouts.{module}"), name)(plan, run)
        return writer

    def detect(self, path: Path) -> ReadRanks | None:
        """The ranks at `path`. Raises CorruptDumpError for a rank that is a link out of the dump."""
        return self.find(path)


def _find_device_dump(path: Path) -> ReadRanks | None:
    """The devices at `path`: below it, above it, or copied out of their directories. MindSpore's form is read like any other."""
    from opdump.layouts.ascend.places import find_dump

    found = find_dump(path)
    return None if found is None else partial(_read_devices, path, found)


def _read_devices(path: Path, found: Found, run: RunChoice) -> tuple[Rank, ...]:
    from opdump.layouts.ascend.reader import read_devices  # slow to import, and not needed unless a device was found

    return read_devices(path, found, run=run)


def _find_packed_dump(path: Path) -> ReadRanks | None:
    """The ranks at `path`, or one of them."""
    from opdump.layouts.mindspore_sync.files import places_at

    places = places_at(path)
    return partial(_read_packed, path, places) if any((each.root / "elements").is_dir() for each in places) else None


def _read_packed(path: Path, places: tuple[RankPlace, ...], run: RunChoice) -> tuple[Rank, ...]:
    from opdump.layouts.packed import read_places

    return read_places(path, places, run=run)


def _find_synchronous_dump(path: Path) -> ReadRanks | None:
    """The ranks at `path`, one of them, a net, or an iteration. The names of both generations are read."""
    from opdump.layouts.mindspore_sync.files import places_at
    from opdump.layouts.mindspore_sync.reader import read_places

    places = places_at(path)
    return partial(read_places, path, places) if places else None


ACL: Final = OwnLayout(
    "acl",
    LayoutFacts(
        files="operators",
        by_model=True,
        values=False,
        device_extremes=True,
        watch=True,
        unknown_id=UNKNOWN_ID,
        fields=frozenset({"file_format", "stream_in_names"}),
    ),
    ("ascend.writer", "AscendWriter"),
    _find_device_dump,
)
"""Written like acl, and detected in every dump of a device."""
MINDSPORE_ASYNC: Final = OwnLayout(
    "mindspore-async",
    LayoutFacts(
        files="operators",
        values=False,
        unknown_id=UNKNOWN_ID,
        fields=frozenset({"file_format", "stream_in_names", "step_level", "kernel_by_kernel"}),
    ),
    ("ascend.writer", "AsyncWriter"),
    _find_device_dump,
)
"""MindSpore's asynchronous form, whose operators have the names of its net."""
MINDSPORE_2_3: Final = OwnLayout(
    "mindspore-2.3", LayoutFacts(), ("mindspore_sync.writer", "SyncWriter"), _find_synchronous_dump
)
MINDSPORE_2_10: Final = OwnLayout("mindspore-2.10", MINDSPORE_2_3.facts, MINDSPORE_2_3.writer, MINDSPORE_2_3.find)
"""MindSpore's synchronous layout, with the names of either generation."""
PACKED: Final = OwnLayout("packed", LayoutFacts(copies_elements=True), ("packed", "PackedWriter"), _find_packed_dump)
"""One file of elements for each run of a rank, which is the fastest to write, and an index with the position of each tensor."""
