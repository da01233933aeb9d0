"""Which layout a path holds, and its ranks.

Asked in this order: a {time} with devices below it, or above the path, is a device's dump (unless `rank_N` directories beside it
hold npy files), and so are `rank_N` directories that hold dump files, as older versions of MindSpore wrote them; then MindSpore's synchronous layout; then directories that were copied out of a device's dump. A loose directory
that both could read is a device's where it holds a dump file, and a synchronous one where it holds npy files alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from opdump.errors import UnknownLayoutError
from opdump.index.runs import RunChoice
from opdump.layouts.ascend.places import EXPECTED, Found, find_devices, find_loose, is_time
from opdump.layouts.ascend.rank_places import find_in_ranks
from opdump.layouts.base import Rank
from opdump.layouts.mindspore_sync import read_tree
from opdump.layouts.mindspore_sync.files import find_places

if TYPE_CHECKING:
    from opdump.layouts.ascend.files import ExecutionFiles

_MOST_LOOKED_AT = 100
_READS_ONE = ". One dump file is read by opdump.read_dump_file"


def read_ranks(path: Path, *, run: RunChoice = "latest") -> tuple[Rank, ...]:
    """The ranks that `path` means.

    Raises UnknownLayoutError where there is no dump of a known layout, NotInDumpError where it has no run of that number,
    CorruptDumpError where a rank is a link that leads out of it.
    """
    try:
        return _read_ranks(path, run)
    except PermissionError as error:
        raise UnknownLayoutError(
            f"{error.filename or path}: cannot be looked at ({error.strerror}); a directory of a dump was expected that this user can read: "
            "a dump is its owner's alone (directories 0700)"
        ) from error


def _read_ranks(path: Path, run: RunChoice) -> tuple[Rank, ...]:
    if not path.is_dir():
        try:
            return read_tree(path, run=run)
        except UnknownLayoutError as error:
            raise UnknownLayoutError(f"{error}. {EXPECTED}{_READS_ONE if path.is_file() else ''}") from error
    real = path.resolve()
    try:
        with os.scandir(real):
            pass
    except OSError as error:
        raise UnknownLayoutError(
            f"{path}: cannot be listed ({error.strerror}); a directory of a dump was expected"
        ) from error
    found = Found((), ()) if _is_part_of_rank(real) else find_devices(real)
    in_ranks = find_in_ranks(real)
    if in_ranks.devices or (found.devices and not _ranks_hold_tensors(real)):
        return _devices(path, _together(found, in_ranks), run)
    loose = Found((), ()) if _names_ranks(real) else find_loose(real)
    if _holds_dump_files(loose):
        return _devices(path, loose, run)
    try:
        return read_tree(path, run=run)
    except UnknownLayoutError as error:
        if _holds_files(loose):
            return _devices(path, loose, run)
        seen = "".join(f". {problem}" for problem in (*found.problems, *loose.problems)[:3])
        raise UnknownLayoutError(f"{error}. {EXPECTED}{seen}{_hint(real)}") from error


def _together(one: Found, other: Found) -> Found:
    """The places of both, device by device."""
    devices = {device.rank_id: device for device in one.devices}
    for device in other.devices:
        known = devices.get(device.rank_id)
        devices[device.rank_id] = device if known is None else replace(known, places=(*known.places, *device.places))
    return Found(tuple(devices[rank] for rank in sorted(devices)), (*one.problems, *other.problems))


def _hint(path: Path) -> str:
    for child in sorted(path.iterdir())[:_MOST_LOOKED_AT]:
        readable = child.is_dir() and not child.is_symlink() and os.access(child, os.R_OK | os.X_OK)
        if readable and any(is_time(name) for name in os.listdir(child)) and find_devices(child).devices:
            return f". Did you mean {child}?"
    return ""


def _names_ranks(path: Path) -> bool:
    """Whether the path is of the synchronous layout by a name in it or above it."""
    return any(name.startswith("rank_") for name in path.parts[-4:]) or any(path.glob("rank_*"))


def _is_part_of_rank(path: Path) -> bool:
    """Whether it is a net, a graph or an iteration of a `rank_N`: those may have very many entries, and no times."""
    parts = path.parts[-4:]
    return any(name.startswith("rank_") for name in parts[:-1]) and not any(is_time(name) for name in parts)


def _ranks_hold_tensors(path: Path) -> bool:
    return any(find_places(rank) for rank in path.glob("rank_*") if rank.is_dir() and not rank.is_symlink())


def _devices(path: Path, found: Found, run: RunChoice) -> tuple[Rank, ...]:
    from opdump.layouts.ascend.reader import read_devices

    return read_devices(path, found, run=run)


def _holds_dump_files(found: Found) -> bool:
    return any(execution.dump is not None for execution in _named_executions(found))


def _holds_files(found: Found) -> bool:
    return any(True for _ in _named_executions(found))


def _named_executions(found: Found) -> Iterator[ExecutionFiles]:
    if not found.devices:
        return
    from opdump.layouts.ascend.files import list_place  # not where no device was found: it takes a while to import

    for device in found.devices:
        for place in device.places:
            for execution in list_place(device.root, place).executions:
                if execution.name is not None:
                    yield execution
