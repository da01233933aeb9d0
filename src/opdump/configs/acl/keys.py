"""The keys of acl.json with their types and closed lists of values, and the warnings about unknown keys.

All types are checked before any value, and closed lists before other rules for values. Values must match exactly, including case
and spaces (docs/acl-json.md#keys).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Final

from opdump.configs.acl.error import AclConfigError
from opdump.configs.shared.json_text import kind_of
from opdump.configs.shared.known_keys import COMMON, E2E
from opdump.plan import ExceptionDetail
from opdump.statistics import dump_stats

EXCEPTION_SCENES: Final[Mapping[str, ExceptionDetail]] = MappingProxyType(
    {
        "lite_exception": "brief",
        "aic_err_brief_dump": "brief",
        "aic_err_norm_dump": "norm",
        "aic_err_detail_dump": "detail",
    }
)
WATCHER: Final = "watcher"

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "dump_mode": ("input", "output", "all"),
        "dump_level": ("op", "kernel", "all"),
        "dump_op_switch": ("on", "off"),
        "dump_data": ("tensor", "stats"),
        "dump_debug": ("on", "off"),
        "dump_scene": (*EXCEPTION_SCENES, WATCHER),
    }
)
_KERNEL_DATA: Final = ("all", "printf", "tensor", "assert", "timestamp")


def check_values(dump: Mapping[str, Any], where: str) -> None:
    """Raises AclConfigError for the first value outside of its list: EP0001 for an empty one, EP0002 for any other.

    The types of `dump` must have been checked.
    """
    for key, allowed in _CHOICES.items():
        if key in dump:
            _check_member(dump[key], allowed, where, f"dump.{key}")
    names = dump.get("dump_stats", ())
    for index, name in enumerate(names):
        _check_member(name, tuple(dump_stats(names)), where, f"dump.dump_stats[{index}]", empty="EP0002")
    if "dump_kernel_data" in dump:
        text = dump["dump_kernel_data"]
        for name in text.split(",") if text else ("",):
            _check_member(name, _KERNEL_DATA, where, "dump.dump_kernel_data", empty="EP0002" if text else "EP0001")


def _check_member(value: str, allowed: Collection[str], where: str, path: str, empty: Any = "EP0001") -> None:
    if value in allowed:
        return
    near = difflib.get_close_matches(value.strip().lower(), [name.lower() for name in allowed], 1, 0.6)
    meant = next((name for name in sorted(allowed) if near and name.lower() == near[0]), None)
    advice = f'; write "{meant}"' if meant else "; write one of them, or leave the key out"
    raise AclConfigError(
        f"{where}: {path}: found {kind_of(value)}, expected one of {'/'.join(sorted(allowed))}{advice}",
        "EP0002" if value else empty,
    )


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    example: str


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array whose items have one type."""

    item: Text | Table


@dataclass(frozen=True, slots=True)
class Table:
    """An object; None for a key of any type."""

    keys: Mapping[str, Text | ArrayOf | None]


_NAME: Final = Text('a name such as "conv1"')
_EXCLUSIONS: Final = ArrayOf(Table(MappingProxyType({"name": _NAME, "pos": ArrayOf(Text('a slot such as "input0"'))})))

DUMP: Final = Table(
    MappingProxyType(
        {
            "dump_path": Text('a directory such as "/tmp/dump"'),
            "dump_list": ArrayOf(
                Table(
                    MappingProxyType(
                        {
                            "model_name": Text('a name such as "ResNet-50"'),
                            "layer": ArrayOf(_NAME),
                            "watcher_nodes": ArrayOf(_NAME),
                            "optype_blacklist": _EXCLUSIONS,
                            "opname_blacklist": _EXCLUSIONS,
                            "opname_range": ArrayOf(Table(MappingProxyType({"begin": _NAME, "end": _NAME}))),
                        }
                    )
                )
            ),
            "dump_mode": Text('"input", "output" or "all"'),
            "dump_level": Text('"op", "kernel" or "all"'),
            "dump_op_switch": Text('"on" or "off"'),
            "dump_step": Text('steps such as "0|3-5|10"'),
            "dump_data": Text('"tensor" or "stats"'),
            "dump_stats": ArrayOf(Text('a statistic such as "Max"')),
            "dump_debug": Text('"on" or "off"'),
            "dump_scene": Text('"lite_exception" or "watcher"'),
            "dump_kernel_data": Text('"all", or names such as "printf,assert"'),
            "dump_status": None,
        }
    )
)

# Top-level keys of other parts of the same file, which cause no warning.
_OTHER_SUBSYSTEMS: Final = frozenset(
    {
        "profiler",
        "err_msg_mode",
        "max_opqueue_num",
        "defaultDevice",
        "StackSize",
        "acl_graph",
        "event_mode",
    }
)
_MOST_TOLD: Final = 20
_DATA_DUMP_ADVICE: Final = "it is a section of a data_dump.json: is this one? Then say --dialect mindspore"


def check_types(dump: Mapping[str, Any], where: str) -> None:
    """Raises AclConfigError (EP0001) for the first value of a wrong type, in the order of the keys above."""
    _check(dump, DUMP, where, "dump")


def unknown_acl_keys(config: Mapping[str, Any], dump: Mapping[str, Any], where: str) -> list[str]:
    """One sentence for each of the first 20 keys without a meaning in their place, with the nearest known key.

    Top-level keys of other subsystems are not mentioned.
    """
    top = (("", key, ("dump",)) for key in config if key != "dump" and key not in _OTHER_SUBSYSTEMS)
    every = chain(top, _unknown(dump, DUMP, "dump"))
    found = [_unknown_key(where, *each) for each in islice(every, _MOST_TOLD)]
    if rest := sum(1 for _ in every):
        found.append(f"{where}: {rest} more unknown keys; each is ignored")
    return found


def nearest_acl_key(key: str) -> str | None:
    """The key of the section `dump` that `key` may stand for; None if none is similar."""
    near = difflib.get_close_matches(key.lower(), DUMP.keys, 1, 0.6)
    return near[0] if near else None


def _check(value: object, kind: Text | ArrayOf | Table | None, where: str, path: str) -> None:
    if isinstance(kind, Text):
        if not isinstance(value, str):
            raise _wrong_type(where, path, value, f"a string: {kind.example}")
    elif isinstance(kind, ArrayOf):
        if not isinstance(value, list):
            items = "objects" if isinstance(kind.item, Table) else f"strings, each {kind.item.example}"
            raise _wrong_type(where, path, value, f"an array of {items}")
        for index, item in enumerate(value):
            _check(item, kind.item, where, f"{path}[{index}]")
    elif isinstance(kind, Table):
        if not isinstance(value, Mapping):
            raise _wrong_type(where, path, value, f"an object with keys out of {', '.join(kind.keys)}")
        for key, inner in kind.keys.items():
            if key in value:
                _check(value[key], inner, where, f"{path}.{key}")


def _wrong_type(where: str, path: str, value: object, expected: str) -> AclConfigError:
    return AclConfigError(f"{where}: {path}: found {kind_of(value)}, expected {expected}", "EP0001")


def _unknown(
    value: object, kind: Text | ArrayOf | Table | None, path: str
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    if isinstance(kind, ArrayOf) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unknown(item, kind.item, f"{path}[{index}]")
    elif isinstance(kind, Table) and isinstance(value, Mapping):
        for key, inner in value.items():
            if key in kind.keys:
                yield from _unknown(inner, kind.keys[key], f"{path}.{key}")
            else:
                yield path, key, tuple(kind.keys)


def _unknown_key(where: str, place: str, key: str, known: tuple[str, ...]) -> str:
    advice = _DATA_DUMP_ADVICE if not place and key in (COMMON, E2E) else _advice(key, known)
    shown = key if len(key) <= 60 else f"{key[:57]}..."
    return f"{where}: {f'{place}: ' if place else ''}unknown key {shown!r} is ignored; {advice}"


def _advice(key: str, here: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(key.lower(), here, 1, 0.6)
    if near:
        return f'the nearest known key is "{near[0]}"'
    elsewhere = difflib.get_close_matches(key.lower(), (*DUMP.keys, *_entry_keys()), 1, 0.75)
    if elsewhere:
        return f'"{elsewhere[0]}" is a key of {"dump" if elsewhere[0] in DUMP.keys else "an entry of dump.dump_list"}'
    return f"known here are {', '.join(here)}"


def _entry_keys() -> tuple[str, ...]:
    entries = DUMP.keys["dump_list"]
    assert isinstance(entries, ArrayOf)
    assert isinstance(entries.item, Table)
    return tuple(entries.item.keys)
