"""`dump_list` of acl.json, which selects operators of models.

See docs/acl-json.md#dump_list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opdump.configs.acl.error import AclCode, AclConfigError
from opdump.configs.shared.json_text import kind_of
from opdump.plan import Exclusion, ModelSelection, OperatorRange

MOST_EXCLUSIONS: Final = 100

_SLOT = re.compile(r"(input|output)([0-9]+)")
_BLACKLISTS: Final = ("optype_blacklist", "opname_blacklist")


def check_entries(dump: Mapping[str, Any], where: str, *, unique_names: bool) -> None:
    """Raises AclConfigError for the first entry that breaks a rule, then, with `unique_names`, for a duplicate name.

    The order within an entry is: its name and layers, its watched nodes, the size of blacklists, the level that they need,
    ranges. Types and closed lists of `dump` must have been checked.
    """
    entries = dump.get("dump_list", ())
    for index, entry in enumerate(entries):
        path = f"dump.dump_list[{index}]"
        _check_name_and_layer(entry, dump, where, path)
        _check_watched(entry, dump, where, path)
        _check_blacklists(entry, dump, where, path)
        _check_ranges(entry, dump, where, path)
    if unique_names:
        _check_unique(entries, where)


def model_selections(
    entries: Sequence[Mapping[str, Any]], where: str, warnings: list[str]
) -> tuple[ModelSelection, ...]:
    """The entries in the form of the plan. Adds warnings about parts without effect to `warnings`.

    If entries have the same model name, the last one counts, and blacklists are combined.
    """
    selections: dict[object, ModelSelection] = {}
    for index, entry in enumerate(entries):
        path = f"{where}: dump.dump_list[{index}]"
        made = _selection(entry, path, warnings)
        key: object = made.model_name if made.model_name is not None else index
        if key in selections:
            warnings.append(f"{path}.model_name: {key!r} comes twice; the last entry counts, and blacklists add up")
            made = _merged(selections[key], made)
        selections[key] = made
    return tuple(selections.values())


def _check_name_and_layer(entry: Mapping[str, Any], dump: Mapping[str, Any], where: str, path: str) -> None:
    if dump.get("dump_op_switch") == "on":
        return
    if entry.get("model_name") == "":
        raise _broken(
            "EP0001", where, f"{path}.model_name", "", "the name of a model; leave the key out to dump every model"
        )
    if entry.get("layer") == []:
        raise _broken(
            "EP0001", where, f"{path}.layer", [], "names of operators; leave the key out to dump every operator"
        )


def _check_watched(entry: Mapping[str, Any], dump: Mapping[str, Any], where: str, path: str) -> None:
    nodes = entry.get("watcher_nodes")
    if dump.get("dump_scene") != "watcher":
        if nodes:
            raise _broken(
                "EP0005",
                where,
                f"{path}.watcher_nodes",
                nodes,
                'none without "dump_scene": "watcher"; write both, or take watcher_nodes out',
            )
        return
    if not nodes:
        found = "it is missing" if nodes is None else f"found {kind_of(nodes)}"
        raise AclConfigError(
            f"{where}: {path}.watcher_nodes: {found}, expected names of operators whose outputs are watched; "
            f'write "watcher_nodes": ["conv1"]',
            "EP0001",
        )
    if "model_name" in entry:
        raise _broken(
            "EP0005",
            where,
            f"{path}.model_name",
            entry["model_name"],
            'none under "dump_scene": "watcher"; take it out',
        )


def _check_blacklists(entry: Mapping[str, Any], dump: Mapping[str, Any], where: str, path: str) -> None:
    for key in _BLACKLISTS:
        size = len(entry.get(key, ()))
        if size > MOST_EXCLUSIONS:
            raise AclConfigError(
                f"{where}: {path}.{key}: found {size} items, expected {MOST_EXCLUSIONS} at most; take some out",
                "EP0003",
            )
    for key in _BLACKLISTS:
        if entry.get(key):
            _check_level(dump, where, f"{path}.{key}")


def _check_ranges(entry: Mapping[str, Any], dump: Mapping[str, Any], where: str, path: str) -> None:
    ranges = entry.get("opname_range", ())
    if not ranges:
        return
    _check_level(dump, where, f"{path}.opname_range")
    if not entry.get("model_name"):
        raise AclConfigError(
            f'{where}: {path}.opname_range: found it without a model_name, expected the model that it is for; write "model_name"',
            "EP0001",
        )
    for index, each in enumerate(ranges):
        for key in ("begin", "end"):
            if not each.get(key):
                raise _broken(
                    "EP0003",
                    where,
                    f"{path}.opname_range[{index}].{key}",
                    each.get(key),
                    'the name of an operator; write {"begin": "conv1", "end": "pool1"}',
                )


def _check_level(dump: Mapping[str, Any], where: str, path: str) -> None:
    level = dump.get("dump_level")
    if level != "op":
        raise AclConfigError(
            f"{where}: {path}: found it under dump_level {kind_of(level) if level else 'all, the default'}, "
            f'expected dump_level "op"; write "dump_level": "op"',
            "EP0005",
        )


def _check_unique(entries: Iterable[Mapping[str, Any]], where: str) -> None:
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        name = entry.get("model_name")
        if not name:
            continue
        if name in seen:
            raise _broken(
                "EP0003",
                where,
                f"dump.dump_list[{index}].model_name",
                name,
                f"a name of its own, and dump_list[{seen[name]}] has this one; join the two entries",
            )
        seen[name] = index


def _selection(entry: Mapping[str, Any], path: str, warnings: list[str]) -> ModelSelection:
    layers = tuple(dict.fromkeys(entry.get("layer", ()))) or None
    watched = tuple(dict.fromkeys(entry.get("watcher_nodes", ())))
    if both := sorted({*(layers or ())} & {*watched}):
        warnings.append(f"{path}: in layer and in watcher_nodes, and not written: {', '.join(both)}")
    return ModelSelection(
        model_name=entry.get("model_name") or None,
        layers=layers,
        watcher_nodes=watched,
        ranges=tuple(OperatorRange(each["begin"], each["end"]) for each in entry.get("opname_range", ())),
        type_exclusions=_exclusions(entry, "optype_blacklist", path, warnings),
        name_exclusions=_exclusions(entry, "opname_blacklist", path, warnings),
    )


def _exclusions(entry: Mapping[str, Any], key: str, path: str, warnings: list[str]) -> tuple[Exclusion, ...]:
    made: list[Exclusion] = []
    for index, each in enumerate(entry.get(key, ())):
        slots: dict[str, set[int]] = {"input": set(), "output": set()}
        ignored: list[str] = []
        for text in each.get("pos", ()):
            found = _SLOT.fullmatch(text)
            if found is None or len(found[2]) > 9:  # no operator has a billion slots
                ignored.append(text)
            else:
                slots[found[1]].add(int(found[2]))
        if ignored:
            shown = ", ".join(repr(text[:40]) for text in ignored[:5]) + (", ..." if len(ignored) > 5 else "")
            warnings.append(f"{path}.{key}[{index}].pos: ignored: {shown}; expected input0, output1 and so on")
        if not each.get("name") or not (slots["input"] or slots["output"]):
            missing = "a name" if not each.get("name") else "a slot in pos"
            warnings.append(f"{path}.{key}[{index}] leaves nothing out: it needs {missing}")
        made.append(Exclusion(each.get("name", ""), frozenset(slots["input"]), frozenset(slots["output"])))
    return tuple(made)


def _merged(first: ModelSelection, second: ModelSelection) -> ModelSelection:
    return replace(
        second,
        type_exclusions=first.type_exclusions + second.type_exclusions,
        name_exclusions=first.name_exclusions + second.name_exclusions,
    )


def _broken(code: AclCode, where: str, path: str, value: object, expected: str) -> AclConfigError:
    found = "it is missing" if value is None else f"found {kind_of(value)}"
    return AclConfigError(f"{where}: {path}: {found}, expected {expected}", code)
