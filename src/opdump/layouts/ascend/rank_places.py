"""Dump files in the directories of the synchronous layout: `rank_N/{net}/{graph}/{iteration}`, from older versions of MindSpore."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opdump.dump_file.names import parse_dump_name
from opdump.errors import CorruptDumpError, UnknownLayoutError
from opdump.layouts.ascend.places import DevicePlaces, Found
from opdump.layouts.ascend.places import Place as DevicePlace
from opdump.layouts.mindspore_sync.files import Place, find_places
from opdump.layouts.mindspore_sync.locate import RankPlace, locate

_LOOKED_AT: Final = 64


def find_in_ranks(path: Path) -> Found:
    """The ranks at `path`, or above it, one of whose iterations holds a dump file; none where npy files or nothing is there."""
    try:
        ranks = locate(path)
    except (UnknownLayoutError, CorruptDumpError):
        return Found((), ())
    devices = []
    for rank in ranks:
        places = find_places(rank.root) if rank.places is None else rank.places
        if rank.root.name.startswith("rank_") and any(_holds_dump_file(rank.root, place) for place in places):
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


def _holds_dump_file(root: Path, place: Place) -> bool:
    try:
        with os.scandir(root / place.relative) as entries:
            return any(parse_dump_name(entry.name) is not None for entry in itertools.islice(entries, _LOOKED_AT))
    except OSError:
        return False  # listing it tells what is wrong
