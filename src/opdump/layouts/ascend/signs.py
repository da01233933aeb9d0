"""Distinguishes dumps of devices from dumps in MindSpore's synchronous layout.

The checks, in order: a {time} with devices below it, or above the path, is a device's dump (unless `rank_N` directories beside it
contain npy files), and so are `rank_N` directories that contain dump files, as older versions of MindSpore wrote them; then
directories that were copied out of a device's dump. A directory that both layouts could read is a device's if it contains a dump
file, and a synchronous one if it contains only npy files.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdump.dump_file.names import parse_dump_name
from opdump.errors import CorruptDumpError, UnknownLayoutError
from opdump.layouts.ascend.places import DevicePlaces, Found, find_devices, find_loose, is_time
from opdump.layouts.ascend.places import Place as DevicePlace
from opdump.layouts.mindspore_sync.files import Place, find_places
from opdump.layouts.mindspore_sync.layout import MINDSPORE_2_3
from opdump.layouts.mindspore_sync.locate import RankPlace, locate

if TYPE_CHECKING:
    from opdump.layouts.ascend.files import ExecutionFiles

_MOST_LOOKED_AT: Final = 100
_LOOKED_AT: Final = 64
_NOTHING: Final = Found((), ())


def find_dump(path: Path) -> Found | None:
    """The devices that a path refers to; None if it is a synchronous dump, or not a dump."""
    if not path.is_dir():
        return None
    real = path.resolve()
    found, in_ranks = _anchored(real), _in_ranks(real)
    if in_ranks.devices or (found.devices and not _ranks_hold_tensors(real)):
        return _together(found, in_ranks)
    loose = _NOTHING if _names_ranks(real) else find_loose(real)
    if _holds_dump_files(loose) or (_holds_files(loose) and MINDSPORE_2_3.detect(path) is None):
        return loose
    return None


def problems_at(path: Path) -> tuple[CorruptDumpError, ...]:
    """The problems of a search for devices in a directory."""
    loose = _NOTHING if _names_ranks(path) else find_loose(path)
    return (*_anchored(path).problems, *loose.problems)


def hint(path: Path) -> str:
    """A suggestion of a subdirectory that contains devices; empty if there is none."""
    for child in sorted(path.iterdir())[:_MOST_LOOKED_AT]:
        readable = child.is_dir() and not child.is_symlink() and os.access(child, os.R_OK | os.X_OK)
        if readable and any(is_time(name) for name in os.listdir(child)) and find_devices(child).devices:
            return f". Did you mean {child}?"
    return ""


def _in_ranks(path: Path) -> Found:
    """Older versions of MindSpore: the ranks at `path`, or above it, with an iteration that contains a dump file; none if there
    are npy files or nothing.
    """
    try:
        ranks = locate(path)
    except (UnknownLayoutError, CorruptDumpError):
        return _NOTHING
    devices = []
    for rank in ranks:
        places = find_places(rank.root) if rank.places is None else rank.places
        if rank.root.name.startswith("rank_") and any(
            _holds_dump_file(f"{rank.root}/{place.relative}") for place in places
        ):
            devices.append(_device(path, rank, places))
    return Found(tuple(devices), ())


def _device(path: Path, rank: RankPlace, places: Sequence[Place]) -> DevicePlaces:
    below = os.path.relpath(rank.root, path)
    is_below = not below.startswith("..")
    prefix = f"{below}/" if is_below and below != "." else ""
    root = path if is_below else rank.root
    found = tuple(
        DevicePlace(prefix + place.relative, net_name=place.net_name, graph_id=place.graph_id, data_index=place.step)
        for place in places
        if place.step is not None
    )
    return DevicePlaces(root, path if prefix else rank.root.parent, rank.rank_id, found)


def _holds_dump_file(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(parse_dump_name(entry.name) is not None for entry in itertools.islice(entries, _LOOKED_AT))
    except OSError:
        return False  # listing it reports the problem


def _anchored(path: Path) -> Found:
    return _NOTHING if _is_part_of_rank(path) else find_devices(path)


def _together(one: Found, other: Found) -> Found:
    """The places of both, device by device."""
    devices = {device.rank_id: device for device in one.devices}
    for device in other.devices:
        known = devices.get(device.rank_id)
        devices[device.rank_id] = device if known is None else replace(known, places=(*known.places, *device.places))
    return Found(tuple(devices[rank] for rank in sorted(devices)), (*one.problems, *other.problems))


def _names_ranks(path: Path) -> bool:
    """Whether the path belongs to the synchronous layout, by a name in it or above it."""
    return any(name.startswith("rank_") for name in path.parts[-4:]) or any(path.glob("rank_*"))


def _is_part_of_rank(path: Path) -> bool:
    """Whether it is a net, a graph or an iteration of a `rank_N`, which may have very many entries, and have no times."""
    parts = path.parts[-4:]
    return any(name.startswith("rank_") for name in parts[:-1]) and not any(is_time(name) for name in parts)


def _ranks_hold_tensors(path: Path) -> bool:
    return any(find_places(rank) for rank in path.glob("rank_*") if rank.is_dir() and not rank.is_symlink())


def _holds_dump_files(found: Found) -> bool:
    return any(execution.dump is not None for execution in _named_executions(found))


def _holds_files(found: Found) -> bool:
    return any(True for _ in _named_executions(found))


def _named_executions(found: Found) -> Iterator[ExecutionFiles]:
    if not found.devices:
        return
    from opdump.layouts.ascend.files import list_place  # slow to import, and not needed unless a device was found

    for device in found.devices:
        for place in device.places:
            for execution in list_place(device.root, place).executions:
                if execution.name is not None:
                    yield execution
