"""The rules of acl.json for single settings and combinations, in the order in which the dump system checks them.

See docs/acl-json.md#modes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opdump.configs.acl.dump_list import check_entries
from opdump.configs.acl.error import AclConfigError
from opdump.configs.acl.keys import EXCEPTION_SCENES, WATCHER
from opdump.configs.shared.json_text import kind_of
from opdump.errors import ConfigError
from opdump.plan import StepSet

MOST_STEP_ITEMS: Final = 100

_STEP_ITEM = re.compile(r"[0-9]+(?:-[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Settled:
    """The results of the checks."""

    path: Path | None = None
    """None in the exception scenes, which have rules of their own."""
    steps: StepSet = field(default_factory=StepSet.all)


def check_constraints(
    dump: Mapping[str, Any], where: str, directory: Callable[[], Path], *, of_documents: bool
) -> Settled:
    """Raises AclConfigError for the first violated rule. Types and closed lists must have been checked.

    The order is: scenes, `dump_path` (which `directory` resolves), the overflow mode, steps, `dump_list`, statistics. After an
    exception scene or the overflow mode, the remaining rules are not checked. `of_documents` selects the rules of the documents
    instead of the current tools: names are unique, and an operator dump beside an exception scene has no effect instead of being
    an error.
    """
    scene = dump.get("dump_scene")
    if scene in EXCEPTION_SCENES:
        _exclude(dump, where, "dump_scene", "dump_debug")
        if not of_documents:
            _exclude(dump, where, "dump_scene", "dump_op_switch")
        return Settled()
    if scene == WATCHER:
        _exclude(dump, where, "dump_scene", "dump_debug")
        _exclude(dump, where, "dump_scene", "dump_op_switch")
        if dump.get("dump_mode", "output") != "output":
            raise AclConfigError(
                f'{where}: dump.dump_mode: found {kind_of(dump["dump_mode"])} beside dump_scene "watcher", '
                f'expected "output"; write that, or take dump_mode out',
                "EP0005",
            )
    path = directory()
    if dump.get("dump_debug") == "on":
        _exclude(dump, where, "dump_debug", "dump_op_switch")
        if dump.get("dump_list"):
            raise AclConfigError(
                f'{where}: dump.dump_list: found {len(dump["dump_list"])} entries beside dump_debug "on", expected none; '
                f"the overflow dump takes every model; take one of the two out",
                "EP0005",
            )
        return Settled(path)
    steps = parse_dump_step(dump["dump_step"], where) if dump.get("dump_step") else StepSet.all()
    check_entries(dump, where, unique_names=of_documents)
    _check_statistics(dump, where)
    return Settled(path, steps)


def parse_dump_step(text: str, where: str) -> StepSet:
    """Parse up to 100 items joined by `|`, each a number or an inclusive range that does not run backwards.

    Raises AclConfigError (EP0003) for anything else, including spaces and empty items.
    """
    items = text.split("|")
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    if len(items) > MOST_STEP_ITEMS:
        raise _bad_step(shown, where, f"{MOST_STEP_ITEMS} items at most, and it has {len(items)}; join some to ranges")
    for item in items:
        if not _STEP_ITEM.fullmatch(item):
            raise _bad_step(
                shown, where, f'numbers and closed ranges, and {item[:40]!r} is none; write it as "0|3-5|10"'
            )
    try:
        return StepSet.parse(text, "dump.dump_step")
    except ConfigError as error:  # a range that runs backwards, or a number beyond 64 bits
        raise AclConfigError(f"{where}: {error}", "EP0003") from error


def _bad_step(text: str, where: str, expected: str) -> AclConfigError:
    return AclConfigError(f"{where}: dump.dump_step: found {text!r}, expected {expected}", "EP0003")


def _exclude(dump: Mapping[str, Any], where: str, first: str, second: str) -> None:
    if dump.get(second) == "on":
        raise AclConfigError(
            f'{where}: dump.{second}: found "on" beside {first} "{dump[first]}", expected one of the two; take one out',
            "EP0005",
        )


def _check_statistics(dump: Mapping[str, Any], where: str) -> None:
    if "dump_stats" not in dump:
        return
    if not dump["dump_stats"]:
        raise AclConfigError(
            f"{where}: dump.dump_stats: found an empty array, expected names of statistics; "
            f'write ["Max", "Min"], or take the key out',
            "EP0001",
        )
    if dump.get("dump_data", "tensor") == "tensor":
        default = "" if "dump_data" in dump else ", the default"
        raise AclConfigError(
            f'{where}: dump.dump_stats: found it beside dump_data "tensor"{default}, expected dump_data "stats"; '
            f'write "dump_data": "stats"',
            "EP0005",
        )
