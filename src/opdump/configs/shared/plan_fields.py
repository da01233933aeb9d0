"""Checks plan fields that are given as keyword arguments, and rejects unknown names."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args, get_type_hints

from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern, ModelSelection, StepSet, Trigger
from opdump.plan.bounds import SHARE_EXAMPLE, SIZE_EXAMPLE, parse_share, parse_size
from opdump.plan.field_types import Size, check_value, is_a, is_a_number, shown, wrong_value
from opdump.plan.nearest import with_nearest
from opdump.statistics import STATISTICS, one_spelling, unknown_names

_HINTS: Final = MappingProxyType(get_type_hints(DumpPlan, include_extras=True))
_KEYS_OF: Final = MappingProxyType(
    {
        "iteration": "steps",
        "dump_step": "steps",
        "dump_mode": "selection",
        "input_output": "inputs and outputs",
        "support_device": "devices",
        "sample_mode": "sample_num",
        "dump_path": "path",
        "dump_list": "models",
        "dump_data": "saved_data",
        "dump_debug": "captures",
    }
)
"""Keys of config files, by the field with the same meaning."""


def with_fields(plan: DumpPlan, settings: Mapping[str, Any]) -> DumpPlan:
    """The plan with new values for some fields.

    Raises ConfigError for an unknown field, with the nearest known one, and for an invalid value.
    """
    known = [item.name for item in fields(DumpPlan)]
    for key, value in settings.items():
        if key not in known:
            raise ConfigError(
                f"DumpPlan has no field {key!r} ({key}={shown(value)} beside a plan): {_meant(key, known)}"
            )
    given = {"statistic_category": plan.statistic_category, **settings}
    if "layout" in settings:
        given.setdefault("layout_chosen", True)
    return replace(plan, **{key: field_value(key, value) for key, value in given.items()})


ALWAYS_ON: Final = ("every", "ring", "triggers", "reread", "max_disk", "min_free_disk", "max_memory", "max_overhead")
"""Keywords without a key in config files: triggers, limits, every Nth step, and re-reading of tensors."""


def always_on_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `ALWAYS_ON` keywords that are given. Raises ConfigError for an invalid value."""
    given = {key: settings[key] for key in ALWAYS_ON if settings.get(key) is not None}
    if "every" in given:
        check_value("DumpPlan", "every", given["every"], int)
    return {key: value if key == "every" else field_value(key, value) for key, value in given.items()}


def with_always_on(plan: DumpPlan, values: Mapping[str, Any]) -> DumpPlan:
    """The plan with the result of `always_on_values`."""
    changed = {key: value for key, value in values.items() if key != "every"}
    if "every" in values:
        changed["steps"] = replace(plan.steps, every=values["every"])
    return replace(plan, **changed) if changed else plan


def field_value(key: str, value: Any) -> Any:
    """The value in the form of the field: `"2|3"` as a StepSet, a list of names as patterns.

    Raises ConfigError for any other kind of value.
    """
    convert = _CONVERSIONS.get(key)
    if convert is not None:
        value = convert(key, value)
    check_value("DumpPlan", key, value, _HINTS[key])
    return value


def _steps(key: str, value: Any) -> StepSet:
    if isinstance(value, str):
        return StepSet.parse(value, key)
    if not isinstance(value, StepSet):
        raise _wrong(key, value, 'a text such as "0|5-8", "all", or a StepSet')
    return value


def _path(key: str, value: Any) -> Path:
    check_value("DumpPlan", key, value, str | os.PathLike[str])
    if value == "":
        raise _wrong(key, value, "a path")
    path = Path(value)
    check_value("DumpPlan", key, path, Path)
    return path.expanduser().absolute()


def _kernels(key: str, value: Any) -> tuple[KernelPattern, ...]:
    return tuple(
        each if isinstance(each, KernelPattern) else KernelPattern.parse(each)
        for each in _items(key, value, (str, KernelPattern), "names or types of operators")
    )


def _devices(key: str, value: Any) -> frozenset[int] | None:
    return None if value is None else frozenset(_items(key, value, (int,), "device ids"))


def _names(key: str, value: Any) -> tuple[str, ...]:
    return tuple(_items(key, value, (str,), "names"))


def _checks(key: str, value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(_items(key, value, (str,), "watchpoints, or None"))


def _kinds(key: str, value: Any) -> frozenset[str]:
    kinds = frozenset(_items(key, value, (str,), '"aicore" and "atomic"'))
    if not kinds <= {"aicore", "atomic"}:
        raise _wrong(key, value, 'a set of "aicore" and "atomic"')
    return kinds


def _models(key: str, value: Any) -> tuple[ModelSelection, ...] | None:
    return None if value is None else tuple(_items(key, value, (ModelSelection,), "ModelSelection"))


def _categories(key: str, value: Any) -> tuple[str, ...]:
    names = _names(key, value)
    if unknown := unknown_names(names):
        known = STATISTICS.names()
        raise _wrong(key, value, with_nearest(f"names out of {', '.join(map(repr, known))}", str(unknown[0]), known))
    return one_spelling(names)


def _items(key: str, value: Any, kinds: tuple[type, ...], what: str) -> list[Any]:
    listed = list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) else None
    if listed is None or not all(isinstance(each, kinds) and not isinstance(each, bool) for each in listed):
        raise _wrong(key, value, f"a list of {what}")
    return listed


def _triggers(key: str, value: Any) -> tuple[str, ...]:
    names = _names(key, value)
    known = get_args(Trigger)
    if unknown := [name for name in names if name not in known]:
        raise _wrong(key, value, with_nearest(f"names out of {', '.join(map(repr, known))}", unknown[0], known))
    return tuple(dict.fromkeys(names))


def _size(key: str, value: Any) -> int | None:
    if isinstance(value, str):
        return _bound(key, value, parse_size)
    if not is_a(value, Size | None):
        raise _wrong(key, value, SIZE_EXAMPLE)
    return cast("int | None", value)


def _share(key: str, value: Any) -> float | None:
    if isinstance(value, str):
        return _bound(key, value, parse_share)
    if value is None:
        return None
    if not is_a_number(value, int | float) or not 0 < value <= 1:
        raise _wrong(key, value, f'{SHARE_EXAMPLE}; more than 1 as a text, such as "150%"')
    return float(value)


_Parsed = TypeVar("_Parsed")


def _bound(key: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None


_CONVERSIONS: Final[Mapping[str, Callable[[str, Any], Any]]] = MappingProxyType(
    {
        "path": _path,
        "steps": _steps,
        "kernels": _kernels,
        "devices": _devices,
        "statistic_category": _categories,
        "warnings": _names,
        "checks": _checks,
        "overflow_kinds": _kinds,
        "models": _models,
        "triggers": _triggers,
        "max_disk": _size,
        "min_free_disk": _size,
        "max_memory": _size,
        "max_overhead": _share,
    }
)


def _wrong(key: str, value: Any, expected: str) -> ConfigError:
    return wrong_value("DumpPlan", key, value, expected)


def _meant(key: str, known: list[str]) -> str:
    if key in _KEYS_OF:
        return f"it is a key of config files; the field is {_KEYS_OF[key]}, as in dataclasses.replace(plan, ...)"
    near = difflib.get_close_matches(key, known, 1)
    return f"is {near[0]} meant?" if near else f"the fields are {', '.join(known)}"
