"""Which layout a path holds, and its ranks.

Asked in this order: a {time} with devices below it, or above the path, is a device's dump (unless `rank_N` directories beside it
hold tensors); then MindSpore's synchronous layout; then directories that were copied out of a device's dump. A loose directory
that both could read is a device's where it holds a dump file, and a synchronous one where it holds npy files alone.
"""

from __future__ import annotations

from pathlib import Path

from opdump.errors import UnknownLayoutError
from opdump.layouts.ascend.files import list_place
from opdump.layouts.ascend.places import EXPECTED, Found, find_devices, find_loose
from opdump.layouts.ascend.reader import read_devices
from opdump.layouts.mindspore_sync import read_tree
from opdump.layouts.mindspore_sync.files import find_places
from opdump.layouts.rank import Rank, RunChoice


def read_ranks(path: Path, *, run: RunChoice = "latest") -> tuple[Rank, ...]:
    """The ranks that `path` means.

    Raises UnknownLayoutError where there is no dump of a known layout, NotInDumpError where it has no run of that number,
    CorruptDumpError where a rank is a link that leads out of it.
    """
    if not path.is_dir():
        return read_tree(path, run=run)
    real = path.resolve()
    found = find_devices(real)
    if found.devices and not _ranks_hold_tensors(real):
        return read_devices(path, found, run=run)
    loose = Found((), ()) if _names_ranks(real) else find_loose(real)
    if _holds_dump_files(loose):
        return read_devices(path, loose, run=run)
    try:
        return read_tree(path, run=run)
    except UnknownLayoutError as error:
        if _holds_files(loose):
            return read_devices(path, loose, run=run)
        seen = "".join(f". {problem}" for problem in (*found.problems, *loose.problems)[:3])
        raise UnknownLayoutError(f"{error}; {EXPECTED}{seen}") from error


def _names_ranks(path: Path) -> bool:
    """Whether the path is of the synchronous layout by a name in it or above it."""
    return any(name.startswith("rank_") for name in path.parts[-4:]) or any(path.glob("rank_*"))


def _ranks_hold_tensors(path: Path) -> bool:
    return any(find_places(rank) for rank in path.glob("rank_*") if rank.is_dir() and not rank.is_symlink())


def _holds_dump_files(found: Found) -> bool:
    return any(
        execution.dump is not None and execution.name is not None
        for device in found.devices
        for place in device.places
        for execution in list_place(device.root, place).executions
    )


def _holds_files(found: Found) -> bool:
    return any(
        execution.name is not None
        for device in found.devices
        for place in device.places
        for execution in list_place(device.root, place).executions
    )
