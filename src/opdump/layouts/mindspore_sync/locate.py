"""Determines what a path given by the user is: a whole dump, a rank, a net, or one iteration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdump.errors import UnknownLayoutError
from opdump.index.payload import inside
from opdump.index.runs import METADATA
from opdump.layouts.mindspore_sync.files import Place, find_places, list_files

_RANK: Final = re.compile(r"rank_([0-9]{1,9})", re.ASCII)
_MARKS: Final = (METADATA, "graphs", "execution_order")
_EXPECTED: Final = (
    "expected the directory that was dumped into (it holds rank_0/), one of its rank_N/, a net in it, or an iteration "
    "(rank_0/Net/0/0)"
)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The directory of a rank; `places` restricts it to a part, None is all of it."""

    root: Path
    rank_id: int
    places: tuple[Place, ...] | None = None


def locate(path: Path) -> tuple[RankPlace, ...]:
    """The ranks that `path` refers to, by rank.

    Raises UnknownLayoutError with the content of the path, and CorruptDumpError for a rank that is a link out of the dump.
    """
    if not path.exists():
        raise UnknownLayoutError(f"{path}: does not exist; {_EXPECTED}")
    if not path.is_dir():
        raise UnknownLayoutError(f"{path}: is a file; {_EXPECTED}")
    path = path.resolve()
    found = (
        [RankPlace(inside(path, name), rank) for rank, name in _ranks(path) if _is_rank(path / name)]
        or _rank_itself(path)
        or _part_of_rank(path)
        or _loose_part(path)
    )
    if not found:
        raise UnknownLayoutError(f"{path}: holds no dump of a known layout: {_content(path)}; {_EXPECTED}{_hint(path)}")
    return tuple(sorted(found, key=lambda place: place.rank_id))


def _ranks(path: Path) -> list[tuple[int, str]]:
    return [
        (int(match[1]), name) for name in _names(path) if (match := _RANK.fullmatch(name)) and (path / name).is_dir()
    ]


def _is_rank(path: Path) -> bool:
    return any((path / mark).is_dir() for mark in _MARKS) or bool(find_places(path))


def _rank_itself(path: Path) -> list[RankPlace]:
    match = _RANK.fullmatch(path.name)
    if (path / METADATA).is_dir() or (match and _is_rank(path)):
        return [RankPlace(path, int(match[1]) if match else 0)]
    return []


def _part_of_rank(path: Path) -> list[RankPlace]:
    """A net, a graph or an iteration in a rank's directory, so that the index and the graphs are available."""
    for root in list(path.parents)[:3]:
        match = _RANK.fullmatch(root.name)
        if match:
            relative = path.relative_to(root).as_posix()
            places = tuple(place for place in find_places(root) if f"{place.relative}/".startswith(f"{relative}/"))
            return [RankPlace(root, int(match[1]), places)] if places else []
    return []


def _loose_part(path: Path) -> list[RankPlace]:
    """A net or an iteration that was copied out of its rank."""
    step = int(path.name) if path.name.isascii() and path.name.isdigit() and len(path.name) < 19 else 0
    here = Place("", 0, step, "")
    files = list_files(path, here)
    if files.tensors or files.statistics is not None:
        return [RankPlace(path, 0, (here,))]
    places = [place for place in find_places(path.parent) if place.net_name == path.name]
    moved = tuple(
        Place(place.net_name, place.graph_id, place.step, place.relative.partition("/")[2]) for place in places
    )
    if any(list_files(path, place).tensors for place in moved):
        return [RankPlace(path, 0, moved)]
    return []


def _names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def _content(path: Path) -> str:
    names = _names(path)
    if not names:
        return "it is empty"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"it holds {', '.join(names[:6])}{more}"


def _hint(path: Path) -> str:
    inner = [child.name for child in path.iterdir() if child.is_dir() and not child.is_symlink() and _ranks(child)]
    return f". Did you mean {path / inner[0]}?" if inner else ""
