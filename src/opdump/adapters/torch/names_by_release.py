"""Looks up private names of PyTorch across releases, and lists what is lost if a release lacks them.

    graph_task = resolve("torch._C._current_graph_task_id", of=BACKWARD, instead=constant(-1))

The names themselves are in `private_names`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class Ability(NamedTuple):
    """Something that the adapter can do only with certain private names; `lost` states what happens without them."""

    name: str
    lost: str


@dataclass(frozen=True, slots=True)
class PrivateName:
    """A row of the table: equivalent names, newest first. `by` describes the substitute if all are missing."""

    paths: tuple[str, ...]
    of: Ability
    by: str = ""


NAMES: list[PrivateName] = []
"""All rows, in the order of `private_names`."""
MISSING: dict[PrivateName, None] = {}
ABSENT = object()


def reasons() -> tuple[str, ...]:
    """What is missing and what that costs, for each ability that this release lacks, by the names looked up so far."""
    return tuple(reason_of(ability) for ability in dict.fromkeys(name.of for name in MISSING if not name.by))


def reason_of(ability: Ability) -> str:
    """Why the ability is lost; empty if it is available."""
    paths = ", ".join(name.paths[0] for name in MISSING if name.of is ability and not name.by)
    version = str(torch.__version__).partition("+")[0]
    return f"PyTorch {version} has no {paths}: {ability.lost} (docs/torch-versions.md)" if paths else ""


def is_lost(ability: Ability) -> bool:
    """Whether a name that the ability needs is missing, by the names looked up so far."""
    return any(name.of is ability and not name.by for name in MISSING)


def resolve(path: str, *older: str, of: Ability, instead: Any = None, by: str = "") -> Any:
    """The object at the first path that exists; else `instead`."""
    return first(row(path, *older, of=of, by=by), instead)


def lazy(path: str, *older: str, of: Ability, instead: Any = None, by: str = "") -> Callable[[], Any]:
    """The same, looked up when called, so that its module is not imported earlier."""
    return functools.partial(first, row(path, *older, of=of, by=by), instead)


def row(*paths: str, of: Ability, by: str = "") -> PrivateName:
    name = PrivateName(paths, of, by)
    assert all(path != other.paths[0] for path in paths for other in NAMES), f"{paths[0]} is listed twice"
    NAMES.append(name)
    return name


def first(name: PrivateName, instead: Any) -> Any:
    """The object at the first path of the row that exists; else `instead`, and the name is noted as missing."""
    for path in name.paths:
        found = look_up(path)
        if found is not ABSENT:
            return found
    MISSING[name] = None
    return instead


def look_up(path: str, default: Any = ABSENT) -> Any:
    """The object at a path below `torch`; `default` if this release has none."""
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
            # The module exists, but something that it imports does not.
            if not f"{module}.".startswith(f"{error.name}."):
                raise
            return default
    return found


def constant(value: Any) -> Callable[..., Any]:
    """A function that returns `value` for any arguments."""

    def function(*_: Any) -> Any:
        return value

    return function
