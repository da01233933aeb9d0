"""Finds private names of PyTorch, whatever the release calls them, and lists what a release without them cannot do.

    graph_task = taken("torch._C._current_graph_task_id", of=BACKWARD, instead=gives(-1))

The names themselves: `private_names`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Ability(NamedTuple):
    """What the adapter can do with a private name: what is lost without it, in words."""

    name: str
    lost: str


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A row of the table: names that do the same, the newest first. `by` is what does the same where all of them are missing."""

    paths: tuple[str, ...]
    of: Ability
    by: str = ""


NAMES: list[PrivateName] = []
"""All rows, in the order of this file."""
MISSING: dict[PrivateName, None] = {}
ABSENT = object()


def reasons() -> tuple[str, ...]:
    """For each ability that this release of PyTorch leaves out: what is missing and what that costs. Of names looked up so far."""
    return tuple(reason_of(ability) for ability in dict.fromkeys(name.of for name in MISSING if not name.by))


def reason_of(ability: Ability) -> str:
    """The reason why that ability is lost; empty where it is there."""
    paths = ", ".join(name.paths[0] for name in MISSING if name.of is ability and not name.by)
    version = str(torch.__version__).partition("+")[0]
    return f"PyTorch {version} has no {paths}: {ability.lost} (docs/torch-versions.md)" if paths else ""


def is_lost(ability: Ability) -> bool:
    """Whether a name of that ability is missing, of those that were looked up so far."""
    return any(name.of is ability and not name.by for name in MISSING)


def taken(path: str, *older: str, of: Ability, instead: Any = None, by: str = "") -> Any:
    """What stands at the first of the paths that exists; else `instead`."""
    return first(row(path, *older, of=of, by=by), instead)


def later(path: str, *older: str, of: Ability, instead: Any = None, by: str = "") -> Callable[[], Any]:
    """The same, asked when it is called: its module is not to be imported before."""
    return functools.partial(first, row(path, *older, of=of, by=by), instead)


def row(*paths: str, of: Ability, by: str = "") -> PrivateName:
    name = PrivateName(paths, of, by)
    assert all(path != other.paths[0] for path in paths for other in NAMES), f"{paths[0]} is listed twice"
    NAMES.append(name)
    return name


def first(name: PrivateName, instead: Any) -> Any:
    """What stands at the first path of a row that exists; else `instead`, and the name is noted as missing."""
    for path in name.paths:
        found = look_up(path)
        if found is not ABSENT:
            return found
    MISSING[name] = None
    return instead


def look_up(path: str, default: Any = ABSENT) -> Any:
    """What stands at a path below `torch`; `default` where this release has nothing there."""
    module, *names = path.split(".")
    found: Any = importlib.import_module(module)
    for name in names:
        module = f"{module}.{name}"
        if hasattr(found, name):
            found = getattr(found, name)
            continue
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            return default
    return found


def gives(value: Any) -> Callable[..., Any]:
    """A function that gives that value whatever it is asked."""

    def function(*_: Any) -> Any:
        return value

    return function
