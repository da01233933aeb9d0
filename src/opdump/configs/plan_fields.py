"""Plan fields that are given as keyword arguments: their types, their checks, and the modes of a dump that code selects."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, cast, get_args, get_type_hints

from opdump.errors import ConfigError, DumpPathError
from opdump.plan import (
    DATA,
    EXCEPTION,
    OVERFLOW,
    WATCH,
    DumpPlan,
    FileFormat,
    KernelPattern,
    Mode,
    ModelSelection,
    OnError,
    SavedData,
    Selection,
    StatCalcMode,
    StatPrecision,
    StepSet,
    Trigger,
)
from opdump.plan.field_types import (
    SHARE_EXAMPLE,
    SIZE_EXAMPLE,
    Size,
    check_value,
    is_a,
    is_a_number,
    parse_share,
    parse_size,
    shown,
    wrong_value,
)
from opdump.plan.unmatched_names import nearest, with_nearest
from opdump.statistics import STATISTICS, one_spelling, unknown_names

# Checks plan fields, and rejects unknown names.

_HINTS: Final[Mapping[str, Any]] = get_type_hints(DumpPlan, include_extras=True)
_KEYS_OF: Final[Mapping[str, str]] = {
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


def unknown_setting(setting: str, near: str | None, known: Iterable[str]) -> ConfigError:
    """The error for a keyword argument that is neither a key of the dialect nor a field; `setting` shows it with its value."""
    return ConfigError(
        f"unknown setting {setting}; " + (f"is {near} meant?" if near else f"known are {', '.join(known)}")
    )


# Fields that overrides must not replace, because they describe the origin of the plan.
_OVERRIDABLE: Final = frozenset(_HINTS) - {"path", "dialect", "config_text", "warnings"}


def sorted_overrides(
    overrides: Mapping[str, Any], known_keys: Iterable[str], nearest: Callable[[str], str | None]
) -> tuple[dict[str, Any], dict[str, Any], Path | None]:
    """The overrides that are keys of the file, those that are fields of the plan, and the directory.

    Raises ConfigError for any other, with the `nearest` key.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    directory = Path(given.pop("path")).expanduser().absolute() if "path" in given else None
    keys = {key: given.pop(key) for key in known_keys if key in given}
    for key, value in given.items():
        if key not in _OVERRIDABLE:
            raise unknown_setting(f"{key}={value!r}", nearest(key), (*known_keys, "path", *sorted(_OVERRIDABLE)))
    if isinstance(given.get("steps"), str):
        given["steps"] = StepSet.parse(given["steps"], "steps")
    if "kernels" in given:
        given["kernels"] = tuple(
            KernelPattern.parse(entry) if isinstance(entry, str) else entry for entry in given["kernels"]
        )
        given.setdefault("selection", "kernels" if given["kernels"] else "all")
    return keys, given, directory


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
        raise _wrong(key, value, with_nearest(f"names from {', '.join(map(repr, known))}", str(unknown[0]), known))
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
        raise _wrong(key, value, with_nearest(f"names from {', '.join(map(repr, known))}", unknown[0], known))
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


_CONVERSIONS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
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


def _wrong(key: str, value: Any, expected: str) -> ConfigError:
    return wrong_value("DumpPlan", key, value, expected)


def _meant(key: str, known: list[str]) -> str:
    if key in _KEYS_OF:
        return f"it is a key of config files; the field is {_KEYS_OF[key]}, as in dataclasses.replace(plan, ...)"
    near = nearest(key, known, 1)
    return f"is {near[0]} meant?" if near else f"the fields are {', '.join(known)}"


# The modes of a dump that code selects without a file: overflow, failures, watched memory.
#
# A plan from keyword arguments gets the layout of devices, which has files for these modes, unless the caller selects another; the
# plan of a file keeps its layout.


def chosen_mode(*, overflow: bool, on_exception: bool, watch: bool) -> Mode:
    """The mode that these arguments of `opdump.capture` select. Raises ConfigError for more than one."""
    chosen: list[tuple[str, Mode]] = []
    if overflow:
        chosen.append(("overflow=True", OVERFLOW))
    if on_exception:
        chosen.append(("on_exception=True", EXCEPTION))
    if watch:
        chosen.append(("watch=...", WATCH))
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(name for name, _ in chosen)} were given; a capture has one mode, choose one")
    return chosen[0][1] if chosen else DATA


def plan_in_mode(plan: DumpPlan, mode: Mode, *, as_device: bool, nodes: Sequence[str] = ()) -> DumpPlan:
    """The plan in a mode; `as_device` changes to the layout of devices. `nodes` are the names of watched operators.

    Raises ConfigError for a file of another mode, and for watch mode in a layout without files for it.
    """
    if mode is DATA:
        return plan
    if plan.mode not in (DATA, mode):
        raise ConfigError(
            f"the configuration asks for the mode {plan.captures!r}, the arguments for {mode.name!r}; choose one"
        )
    if as_device:
        plan = replace(plan, layout="acl", layout_chosen=True, file_format="bin")
    if mode.watches:
        if not plan.layout_facts.watch:
            raise ConfigError(
                f'watch mode writes files of the layout "acl", not of {plan.layout!r}; choose that layout, or leave `layout` out'
            )
        models = (*(plan.models or ()), *((ModelSelection(watcher_nodes=tuple(nodes)),) if nodes else ()))
        return replace(plan, captures=mode.name, models=models, saved_data="tensor", inputs=False, outputs=True)
    return replace(plan, captures=mode.name, models=None, inputs=True, outputs=mode.detects_overflow)


def plan_on_error(plan: DumpPlan, on_error: OnError | None, *, strict: bool) -> DumpPlan:
    """The plan with the action for a dump that can no longer be written: the requested one, otherwise "stop" under `strict`."""
    chosen = on_error or ("stop" if strict else None)
    return plan if chosen is None else replace(plan, on_error=chosen)


# The keyword arguments of `opdump.capture` and `opdump.start` with their types, for completion in editors and for type checkers.
#
# They are the keys of data_dump.json, of any section, and the fields of `DumpPlan` without such a key. docs/config.md explains the
# keys.

StatisticName = Literal[
    "max",
    "min",
    "avg",
    "count",
    "negative zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "zero count",
    "md5",
    "l2norm",
    "hash",
    "hash:sha1",
    "hash:md5",
    "xxh3",
]


class PlanKeywords(TypedDict, total=False):
    """What to record, where and how."""

    path: str | os.PathLike[str]
    net_name: str
    iteration: str | StepSet
    every: int
    ring: int
    triggers: Iterable[str]
    reread: bool
    max_disk: int | str
    min_free_disk: int | str
    max_memory: int | str
    max_overhead: float | str
    saved_data: SavedData
    kernels: Iterable[str | KernelPattern]
    statistic_category: Iterable[StatisticName] | Iterable[str]
    inputs: bool
    outputs: bool
    input_output: Literal[0, 1, 2]
    dump_mode: Literal[0, 1, 2]
    selection: Selection
    support_device: Iterable[int]
    devices: Iterable[int]
    op_debug_mode: Literal[0, 1, 2, 3, 4]
    overflow_number: int
    initial_iteration: int
    sample_mode: Literal[0, 1]
    sample_num: int
    layout: str
    file_format: FileFormat
    class_names_in_scope: bool
    trailing_comma: bool
    trans_flag: bool
    save_kernel_args: bool
    stat_calc_mode: StatCalcMode
    device_stat_precision_mode: StatPrecision
    enable: bool
    step_level: bool
    kernel_by_kernel: bool
    jit_level: Literal["O0", "O1", "O2"]


class CaptureKeywords(PlanKeywords, total=False):
    """The same, and how to observe the program."""

    eager: bool
    stop_after_dump: bool
    strict: bool
    steps: Literal["auto", "manual"]
    overflow: bool
    on_exception: bool
    watch: Any
    framework: str
    device_id: int | None
    on_error: OnError | None
    children: bool


def show_keywords(function: Any, keywords: type) -> None:
    """Give a function with `**keywords` a signature that names them, for `help` and for completion in notebooks."""
    own = signature(function)
    named = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    known = {each.name for each in named}
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in get_type_hints(keywords).items()
        if name not in known
    ]
    function.__signature__ = own.replace(parameters=[*named, *added])


# Directories of a dump and of the program, and where graph files are written.

# The dump's directory, which must be writable before the first step, and the program's, the base of relative paths.


def program_directory() -> Path | None:
    """The directory of the running script, with all symbolic links resolved, like Python's `sys.path[0]`; None without a script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


def beside_program(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The file that a relative path means: relative to the directory of the running script if the file exists there, otherwise to
    the current directory.
    """
    directory = program_directory()
    if directory is None or os.path.isabs(path) or not (directory / path).is_file():
        return path
    return directory / path


_LATER: Final = ContextVar("_LATER", default=False)


@contextmanager
def made_later() -> Iterator[None]:
    """Within the block, a config is read for a dump that may never begin: no directory is created until the dump begins."""
    token = _LATER.set(True)
    try:
        yield
    finally:
        _LATER.reset(token)


def make_writable(path: Path) -> None:
    """Create the directory and its parents, and write and remove a file in it.

    Raises DumpPathError if that fails.
    """
    if _LATER.get():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, prefix=".opdump-"):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise DumpPathError(
            f"cannot write into the dump directory {path}: {reason}"
            f"{f' ({error.filename})' if error.filename and not str(error.filename).startswith(str(path)) else ''}; "
            f'set "path" (or MS_DIAGNOSTIC_DATA_PATH) to a writable directory'
        ) from error


# Environment variables that determine whether and where graph files are written.
#
# | variable | effect |
# |---|---|
# | DUMP_GE_GRAPH | 1, 2, 3: graphs are written; another number, or none: they are not |
# | DUMP_GRAPH_LEVEL | 1 all stages, 2 (default) the important ones, 3 only `Build`, 4 only `PreRunBegin`, or `part\|part` of a stage's name |
# | DUMP_GRAPH_FORMAT | `ge_proto`, `onnx`, `readable`, joined by `\|`; default `ge_proto\|onnx` |
# | NPU_COLLECT_PATH | `{it}/extra-info/graph/{pid}_{device_id}/`, before |
# | DUMP_GRAPH_PATH | `{it}/pid_{pid}_deviceid_{device_id}/`, before |
# | ASCEND_WORK_PATH | `{it}/pid_{pid}_deviceid_{device_id}/`, before the current directory |
#
# For a program that dumps data, the graph of the stage `Build` is always written, because only it shows which model of the dump
# is the training.
#
# See docs/tensorflow-graph.md#the-files.

STAGE: Final = "Build"
"""The stage of the graph that opdump writes; it has no others."""

_COLLECTED: Final = "extra-info/graph"
_VARIABLES: Final = ("NPU_COLLECT_PATH", "DUMP_GRAPH_PATH", "ASCEND_WORK_PATH")
_FORMATS: Final = ("ge_proto", "onnx", "readable")
_SWITCH: Final = "DUMP_GE_GRAPH"
_LEVEL: Final = "DUMP_GRAPH_LEVEL"
_FORMAT: Final = "DUMP_GRAPH_FORMAT"


def graph_directory(
    environ: Mapping[str, str], *, pid: int, device_id: int, cwd: Path, is_dumping: bool = True
) -> Path | None:
    """The directory of the graph files of a process; None if none are written. A relative path is below `cwd`.

    `is_dumping`: the program dumps data, so DUMP_GE_GRAPH, DUMP_GRAPH_LEVEL and DUMP_GRAPH_FORMAT are ignored.
    """
    if not (is_dumping or _is_asked_for(environ)):
        return None
    for variable in _VARIABLES:
        text = environ.get(variable, "")
        if text:
            inner = (
                f"{_COLLECTED}/{pid}_{device_id}" if variable == _VARIABLES[0] else f"pid_{pid}_deviceid_{device_id}"
            )
            return cwd / text / inner
    return cwd


def graph_directories(environ: Mapping[str, str], *, cwd: Path) -> tuple[tuple[Path, str], ...]:
    """Directories in which any process may have written graph files, with the pattern of their subdirectories, for a reader."""
    found = []
    for variable in _VARIABLES:
        text = environ.get(variable, "")
        if text and variable == _VARIABLES[0]:
            found.append((cwd / text / _COLLECTED, "[0-9]*_[0-9]*"))
        elif text:
            found.append((cwd / text, "pid_*_deviceid_*"))
    return tuple(found)


def graph_warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warnings about requests of the variables that are not fulfilled, and about invalid values."""
    found = []
    switch = environ.get(_SWITCH, "")
    if switch and not switch.isdecimal():
        found.append(f"{_SWITCH}: found {switch[:60]!r}, expected 1, 2 or 3; it switches nothing on")
    formats = _formats(environ)
    unknown = [each for each in formats if each not in _FORMATS]
    if unknown:
        found.append(f"{_FORMAT}: found {'|'.join(unknown)[:60]!r}, expected {', '.join(_FORMATS)} joined by '|'")
    without = [each for each in formats if each in _FORMATS[1:]]
    if environ.get(_FORMAT) and without:
        found.append(f"{_FORMAT}: {' and '.join(without)} are not written, only ge_proto is")
    return tuple(found)


def _is_asked_for(environ: Mapping[str, str]) -> bool:
    level = environ.get(_LEVEL, "").strip() or "2"
    if level in ("1", "2", "3"):
        has_stage = True
    else:
        has_stage = level != "4" and any(part and part in STAGE for part in level.split("|"))
    return environ.get(_SWITCH, "").strip() in ("1", "2", "3") and has_stage and "ge_proto" in _formats(environ)


def _formats(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = environ.get(_FORMAT, "").strip().lower() or "ge_proto|onnx"
    return tuple(part.strip() for part in text.split("|") if part.strip())
