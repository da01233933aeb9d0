"""The error for an invalid acl.json, with the two codes that the dump system uses.

docs/acl-json.md lists them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal

from opdump.configs.json_text import COMMON, E2E, kind_of, read_json
from opdump.errors import ConfigError
from opdump.plan import ExceptionDetail, Exclusion, ModelSelection, OperatorRange, StepSet
from opdump.plan.unmatched_names import nearest
from opdump.statistics import dump_stats

AclCode = Literal["EP0001", "EP0002", "EP0003", "EP0004", "EP0005"]
"""Missing, empty or of a wrong type; not in a closed list; an invalid value; invalid JSON; two settings that exclude each other."""

INVALID_FILE: Final = 100003
PARSE_FILE: Final = 100006
INVALID_DUMP_CONFIG: Final = 100009


class AclConfigError(ConfigError):
    """An acl.json is invalid.

    `code` is the code in the message; None for a file that is rejected unread. `error_code` is the return value of `aclInit` and
    `aclmdlSetDump`.
    """

    def __init__(self, message: str, code: AclCode | None = None, error_code: int = INVALID_DUMP_CONFIG) -> None:
        shown = str(error_code) if code is None else f"{code} ({error_code})"
        super().__init__(f"{shown}: {message}")
        self.code = code
        self.error_code = error_code

    def __reduce__(self) -> tuple[object, ...]:
        # the message has the codes already, so it does not pass through __init__ again
        return _rebuilt, (str(self), self.code, self.error_code)


def _rebuilt(message: str, code: AclCode | None, error_code: int) -> AclConfigError:
    error = AclConfigError.__new__(AclConfigError, message)
    error.args = (message,)
    error.code, error.error_code = code, error_code
    return error


# The content of acl.json: reads the file, and checks its keys, its `dump_list` and combinations of settings.
#
# The order of the checks is that of the dump system. docs/acl-json.md explains each key.

# The keys with their types and closed lists of values, and the warnings about unknown keys.
#
# All types are checked before any value, and closed lists before other rules for values. Values must match exactly, including case
# and spaces (docs/acl-json.md#keys).

EXCEPTION_SCENES: Final[Mapping[str, ExceptionDetail]] = {
    "lite_exception": "brief",
    "aic_err_brief_dump": "brief",
    "aic_err_norm_dump": "norm",
    "aic_err_detail_dump": "detail",
}
WATCHER: Final = "watcher"

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "dump_mode": ("input", "output", "all"),
    "dump_level": ("op", "kernel", "all"),
    "dump_op_switch": ("on", "off"),
    "dump_data": ("tensor", "stats"),
    "dump_debug": ("on", "off"),
    "dump_scene": (*EXCEPTION_SCENES, WATCHER),
}
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
    near = nearest(value, sorted(allowed), 1)
    advice = f'; write "{near[0]}"' if near else "; write one of them, or leave the key out"
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
_EXCLUSIONS: Final = ArrayOf(Table({"name": _NAME, "pos": ArrayOf(Text('a slot such as "input0"'))}))

DUMP: Final = Table(
    {
        "dump_path": Text('a directory such as "/tmp/dump"'),
        "dump_list": ArrayOf(
            Table(
                {
                    "model_name": Text('a name such as "ResNet-50"'),
                    "layer": ArrayOf(_NAME),
                    "watcher_nodes": ArrayOf(_NAME),
                    "optype_blacklist": _EXCLUSIONS,
                    "opname_blacklist": _EXCLUSIONS,
                    "opname_range": ArrayOf(Table({"begin": _NAME, "end": _NAME})),
                }
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
_DATA_DUMP_ADVICE: Final = "it is a section of a data_dump.json; if this is one, use --dialect mindspore"


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
        found.append(f"{where}: {rest} more unknown keys are ignored")
    return found


def nearest_acl_key(key: str) -> str | None:
    """The key of the section `dump` that `key` may stand for; None if none is similar."""
    return next(iter(nearest(key, DUMP.keys, 1)), None)


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
            raise _wrong_type(where, path, value, f"an object with keys from {', '.join(kind.keys)}")
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
    near = nearest(key, here, 1)
    if near:
        return f'the nearest known key is "{near[0]}"'
    known = (*DUMP.keys, *_entry_keys())
    elsewhere = [key] if key in known else nearest(key, known, 1, alike=0.75)
    if elsewhere:
        return f'"{elsewhere[0]}" is a key of {"dump" if elsewhere[0] in DUMP.keys else "an entry of dump.dump_list"}'
    return f"known keys: {', '.join(here)}"


def _entry_keys() -> tuple[str, ...]:
    entries = DUMP.keys["dump_list"]
    assert isinstance(entries, ArrayOf)
    assert isinstance(entries.item, Table)
    return tuple(entries.item.keys)


# The file: unsuitable ones are rejected before their content is checked, in this order: a regular file, its size, the depth of its
# brackets, JSON.

LARGEST_FILE: Final = 10 * 1024 * 1024
DEEPEST: Final = 10

_BRACKETS: Final = ((ord("{"), ord("}")), (ord("["), ord("]")))


def read_acl_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a config file of any name.

    Raises AclConfigError (100003) if it is not a regular file, cannot be read, or has more than 10 MiB.
    """
    text = os.fspath(path)
    try:
        found = os.stat(text)  # a FIFO must not be opened, because that would wait for a writer
        if not stat.S_ISREG(found.st_mode):
            raise AclConfigError(
                f"{text!r} is a {_kind_of_file(found.st_mode)}, expected a regular file; name an acl.json",
                error_code=INVALID_FILE,
            )
        _check_size(found.st_size, text)
        with open(text, "rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AclConfigError(
            f"cannot read the config file {text!r}: {reason} (looked in {os.getcwd()}); "
            f"`opdump config new --dialect acl` creates one",
            error_code=INVALID_FILE,
        ) from error
    _check_size(len(data), text)
    return data


def dump_section(data: bytes, where: str) -> tuple[Mapping[str, Any], Any, list[str]]:
    """The value of the key `dump`, the whole value of the file, and warnings.

    An empty file, a missing key `dump` and an empty object are valid, and return an empty mapping.

    Raises AclConfigError: 100003 for more than 10 MiB, 100006 for brackets nested deeper than 10, EP0004 for invalid JSON, EP0001
    for a `dump` that is not an object.
    """
    _check_size(len(data), where)
    if not data:
        return {}, {}, [f"{where}: the file is empty"]
    _check_depth(data, where)
    try:
        config, warnings = read_json(data, where, whole=True)
    except ConfigError as error:
        raise AclConfigError(str(error), "EP0004") from error
    if not isinstance(config, Mapping):
        warnings.append(f'{where}: found {kind_of(config)}, expected an object with the key "dump"')
        return {}, {}, warnings
    if "dump" not in config:
        return {}, config, [*warnings, f'{where}: there is no key "dump"']
    dump = config["dump"]
    if not isinstance(dump, Mapping):
        raise AclConfigError(
            f'{where}: dump: found {kind_of(dump)}, expected an object such as {{"dump_path": "/tmp/dump"}}', "EP0001"
        )
    return dump, config, warnings


def _check_size(size: int, where: str) -> None:
    if size > LARGEST_FILE:
        raise AclConfigError(
            f"{where}: found {size} bytes or more, expected {LARGEST_FILE} at most (10 MiB); name an acl.json",
            error_code=INVALID_FILE,
        )


def _check_depth(data: bytes, where: str) -> None:
    """Check the depth of brackets in the raw text, including those inside strings."""
    for opening, closing in _BRACKETS:
        if data.count(opening) <= DEEPEST:
            continue
        depth = 0
        for byte in data:
            if byte == opening:
                depth += 1
                if depth > DEEPEST:
                    raise AclConfigError(
                        f"{where}: '{chr(opening)}' is nested deeper than {DEEPEST} (those inside strings count too); "
                        f"a dump configuration needs four levels",
                        error_code=PARSE_FILE,
                    )
            elif byte == closing:
                depth -= 1


def _kind_of_file(mode: int) -> str:
    return "directory" if stat.S_ISDIR(mode) else "device, pipe or socket"


# `dump_list`, which selects operators of models (docs/acl-json.md#dump_list).

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
            warnings.append(f"{path}.model_name: {key!r} occurs twice; the last entry is used, and blacklists add up")
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
                'none without "dump_scene": "watcher"; write both, or remove watcher_nodes',
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
            'none under "dump_scene": "watcher"; remove it',
        )


def _check_blacklists(entry: Mapping[str, Any], dump: Mapping[str, Any], where: str, path: str) -> None:
    for key in _BLACKLISTS:
        size = len(entry.get(key, ()))
        if size > MOST_EXCLUSIONS:
            raise AclConfigError(
                f"{where}: {path}.{key}: found {size} items, expected {MOST_EXCLUSIONS} at most; remove some",
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
            f'{where}: {path}.opname_range: found without a model_name, expected one beside it; write "model_name"',
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
            f"{where}: {path}: found with dump_level {kind_of(level) if level else 'all, the default'}, "
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
                f"a unique name, but dump_list[{seen[name]}] has the same one; merge the two entries",
            )
        seen[name] = index


def _selection(entry: Mapping[str, Any], path: str, warnings: list[str]) -> ModelSelection:
    layers = tuple(dict.fromkeys(entry.get("layer", ()))) or None
    watched = tuple(dict.fromkeys(entry.get("watcher_nodes", ())))
    if both := sorted({*(layers or ())} & {*watched}):
        warnings.append(f"{path}: in both layer and watcher_nodes, so not written: {', '.join(both)}")
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
            warnings.append(f"{path}.{key}[{index}] excludes nothing: it needs {missing}")
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


# The rules for single settings and combinations, in the order in which the dump system checks them (docs/acl-json.md#modes).

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
                f'expected "output"; write that, or remove dump_mode',
                "EP0005",
            )
    path = directory()
    if dump.get("dump_debug") == "on":
        _exclude(dump, where, "dump_debug", "dump_op_switch")
        if dump.get("dump_list"):
            raise AclConfigError(
                f'{where}: dump.dump_list: found {kind_of(dump["dump_list"])} beside dump_debug "on", expected no entries; '
                f"the overflow dump takes every model; remove one of the two",
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
        raise _bad_step(
            shown, where, f"at most {MOST_STEP_ITEMS} items, but it has {len(items)}; merge some into ranges"
        )
    for item in items:
        if not _STEP_ITEM.fullmatch(item):
            raise _bad_step(
                shown, where, f'numbers and closed ranges, but {item[:40]!r} is neither; write it as "0|3-5|10"'
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
            f'{where}: dump.{second}: found "on" beside {first} "{dump[first]}", expected one of the two; remove one',
            "EP0005",
        )


def _check_statistics(dump: Mapping[str, Any], where: str) -> None:
    if "dump_stats" not in dump:
        return
    if not dump["dump_stats"]:
        raise AclConfigError(
            f"{where}: dump.dump_stats: found an empty array, expected names of statistics; "
            f'write ["Max", "Min"], or remove the key',
            "EP0001",
        )
    if dump.get("dump_data", "tensor") == "tensor":
        default = "" if "dump_data" in dump else ", the default"
        raise AclConfigError(
            f'{where}: dump.dump_stats: found beside dump_data "tensor"{default}, expected dump_data "stats"; '
            f'write "dump_data": "stats"',
            "EP0005",
        )
