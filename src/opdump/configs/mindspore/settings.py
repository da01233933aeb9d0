"""The values of data_dump.json, key by key, in the order in which MindSpore checks them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypedDict, cast, get_args

from opdump.configs.shared.json_text import COMMON, E2E, OWN, Section
from opdump.errors import ConfigError
from opdump.plan import (
    Captures,
    DumpPlan,
    FileFormat,
    KernelPattern,
    OverflowKind,
    SavedData,
    Selection,
    StatCalcMode,
    StatPrecision,
    StepSet,
    SyncLayoutName,
)
from opdump.plan.layouts import LAYOUTS
from opdump.plan.unmatched_names import with_nearest
from opdump.statistics import DEFAULT, STATISTICS, one_spelling, statistic, unknown_names

# The asynchronous dump: which files select it, and which of their keys have no effect there.
#
#     {"common_dump_settings": {..., "file_format": "npy"}}                the file has `file_format`, and `enable` is not true
#     MS_ACL_DUMP_CFG_PATH=/path/to/data_dump.json                         the form of ACL: a directory for each step
#     {..., "opdump": {"layout": "mindspore-async", "jit_level": "O2"}}    said outright
#
# See docs/async-dump.md#how-to-select-it.

ASYNC_LAYOUT: Final = "mindspore-async"
_JIT_LEVELS: Final = ("O0", "O1", "O2")
# Keys of the synchronous dump, each with its neutral value.
_SYNCHRONOUS: Final[Mapping[str, object]] = {"save_kernel_args": False, "sample_mode": 0, "stat_calc_mode": "host"}


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """How an asynchronous dump is written."""

    file_format: FileFormat
    step_level: bool
    kernel_by_kernel: bool


def is_asynchronous(e2e: Section, common: Section, own: Section, *, acl_form: bool) -> bool:
    """Whether the sections select the asynchronous dump. If opdump's own `layout` is given, it decides."""
    if own.has("layout"):
        return bool(own.values["layout"] == ASYNC_LAYOUT)
    return acl_form or (common.has("file_format") and e2e.values.get("enable") is not True)


def asynchronous(common: Section, own: Section, *, acl_form: bool) -> Asynchronous:
    """How the sections want it written. Raises ConfigError for an unknown `file_format` or `jit_level`."""
    file_format = common.choice("file_format", get_args(FileFormat)) if common.has("file_format") else "bin"
    # MindSpore calls a program that runs operator by operator O0 or O1.
    level = own.choice("jit_level", _JIT_LEVELS) if own.has("jit_level") else "O0"
    return Asynchronous(cast(FileFormat, file_format), acl_form, acl_form and level != "O2")


def refuse_marks(common: Section, dump_mode: int) -> None:
    """Raises ConfigError for `dump_mode` 2: the asynchronous dump has no `set_dump`."""
    if dump_mode == 2:
        raise common.wrong(
            "dump_mode",
            "0 or 1 in the asynchronous dump, which has no set_dump; or the synchronous dump: remove file_format, or set "
            f'"enable": true in {E2E}',
        )


def refuse_binary_statistics(common: Section, file_format: FileFormat, saved_data: SavedData) -> None:
    """Raises ConfigError for statistics together with binary files."""
    if saved_data != "tensor" and file_format == "bin":
        raise common.wrong(
            "saved_data", 'the asynchronous dump to have statistics only in npy files; write "file_format": "npy"'
        )


def refuse_single_steps(common: Section, steps: StepSet) -> None:
    """Raises ConfigError for overflow detection in selected steps: a program that runs eagerly is always watched as a whole."""
    if steps != StepSet.all():
        raise common.wrong(
            "iteration",
            '"all", which an asynchronous dump of overflows requires if operators run one by one; write '
            '"iteration": "all", or dump synchronously',
        )


def without_effect(e2e: Section) -> list[str]:
    """One sentence for each setting that has no effect in the asynchronous dump."""
    found: list[Any] = [key for key, nothing in _SYNCHRONOUS.items() if e2e.values.get(key, nothing) != nothing]
    return [
        f"{e2e.where}.{key} belongs to the synchronous dump and has no effect in the asynchronous one" for key in found
    ]


# `op_debug_mode` of data_dump.json: records operators that overflow, or the one that fails, instead of the selected ones.
#
# docs/config.md and docs/async-dump.md#unsupported-settings describe what the modes coerce.

_MEANING: Final = "0 to dump as selected, 3 for operators that overflow (1 of the AI Core, 2 of atomic additions), 4 for the one that fails"
_KINDS: Final[Mapping[int, frozenset[OverflowKind]]] = MappingProxyType(
    {1: frozenset({"aicore"}), 2: frozenset({"atomic"}), 3: frozenset({"aicore", "atomic"})}
)


@dataclass(frozen=True, slots=True)
class Debug:
    """The meaning of an `op_debug_mode`."""

    mode: int
    captures: Captures
    overflow_kinds: frozenset[OverflowKind] = _KINDS[3]

    def coerced(
        self, common: Section, steps: StepSet, dump_mode: int, input_output: int, sample_num: int | None
    ) -> list[str]:
        """One sentence for each setting that the mode overrides."""
        if self.captures == "data":
            return []
        because = f"op_debug_mode is {self.mode}"
        found = []
        if dump_mode:
            found.append(f"{common.where}.dump_mode is taken as 0: {because}, and every operator is checked")
        if input_output:
            found.append(f"{common.where}.input_output is taken as 0: {because}")
        if self.captures == "exception":
            if steps != StepSet.all():
                found.append(
                    f'{common.where}.iteration is taken as "all": {because}, and its step is not known in advance'
                )
            if common.values.get("saved_data", "tensor") != "tensor":
                found.append(f'{common.where}.saved_data is taken as "tensor": {because}')
            if sample_num is not None:
                found.append(f"{common.where}: sample_mode is taken as 0: {because}")
        return found


def debug_settings(common: Section) -> Debug:
    """The meaning of the section's `op_debug_mode`. Raises ConfigError for a value outside of 0 to 4."""
    if not common.has("op_debug_mode"):
        return Debug(0, "data")
    mode = common.unsigned("op_debug_mode", _MEANING)
    if mode > 4:
        raise common.wrong("op_debug_mode", f"op_debug_mode 0, 3 or 4: {_MEANING}")
    if mode in _KINDS:
        return Debug(mode, "overflow", _KINDS[mode])
    return Debug(mode, "exception" if mode == 4 else "data")


# All sections.

DIAGNOSTIC_VARIABLE = "MS_DIAGNOSTIC_DATA_PATH"

_REQUIRED = ("dump_mode", "net_name", "iteration", "input_output", "kernels", "support_device")
_LAYOUTS = (*get_args(SyncLayoutName), ASYNC_LAYOUT, "packed")
_PATH_ALPHABET = re.compile(r"[A-Za-z0-9_/-]*")
_NET_NAME_ALPHABET = re.compile(r"[A-Za-z0-9_-]+")


class _DeviceSettings(TypedDict):
    trans_flag: bool
    save_kernel_args: bool
    stat_calc_mode: StatCalcMode
    device_stat_precision_mode: StatPrecision
    sample_num: int | None


def resolve(
    config: Mapping[str, Any],
    where: str,
    environ: Mapping[str, str],
    *,
    directory: Path | None,
    complete: bool,
    acl_form: bool,
    warnings: list[str],
) -> DumpPlan:
    """The plan of a config's sections. Adds coerced and ignored settings to `warnings`.

    `directory` replaces the `path` of the config, without its restrictions. With `complete`, the keys that MindSpore requires
    must exist; without it, a missing `support_device` means every device. `acl_form`: MS_ACL_DUMP_CFG_PATH selects the
    asynchronous dump in the form of ACL.

    Raises ConfigError for the first invalid value.
    """
    e2e, own = _section(config, E2E, where), _section(config, OWN, where)
    is_async = is_asynchronous(e2e, _section(config, COMMON, where), own, acl_form=acl_form)
    device = _device_settings(e2e)
    warnings += without_effect(e2e) if is_async else _enabled_anyway(config, e2e, where)
    if is_async:
        device |= {"save_kernel_args": False, "sample_num": None, "stat_calc_mode": "host"}
    common = _common_section(config, where)
    if complete:
        common.require(*_REQUIRED)
    mode = _dump_mode(common)
    path = directory or _path(common, environ)
    net_name = _net_name(common)
    steps = _steps(common)
    input_output = common.unsigned("input_output", "0 for inputs and outputs, 1 for inputs, 2 for outputs")
    if input_output > 2:
        raise common.wrong("input_output", "0 for inputs and outputs, 1 for inputs or 2 for outputs")
    kernels = _kernels(common, mode, warnings)
    devices = _devices(common, warnings)
    debug = debug_settings(common)
    filed = asynchronous(common, own, acl_form=acl_form) if is_async else Asynchronous("npy", False, False)
    overflow_number = _overflow_number(common, debug)
    saved_data = _saved_data(common, debug)
    initial_iteration = _initial_iteration(common, steps, warnings)
    if is_async:
        _refuse_of_mode(common, debug.captures, mode, steps)
        refuse_binary_statistics(common, filed.file_format, saved_data)
    warnings += debug.coerced(common, steps, mode, input_output, device["sample_num"])
    if debug.captures != "data":
        mode, kernels, input_output = 0, (), 0
    if debug.captures == "exception":
        steps, device["sample_num"] = StepSet.all(), None
    warnings += _on_host(device, saved_data, where)
    categories = _categories(common, saved_data, device["stat_calc_mode"], warnings)
    if not is_async and "file_format" in common.values:
        warnings.append(
            f"{common.where}.file_format belongs to the asynchronous dump and is ignored: tensors are written as npy"
        )
    return DumpPlan(
        path=path,
        net_name=net_name,
        steps=steps,
        saved_data=saved_data,
        inputs=input_output != 2,
        outputs=input_output != 1,
        selection=_selection(mode, kernels),
        kernels=kernels,
        devices=devices,
        statistic_category=categories,
        initial_iteration=initial_iteration,
        op_debug_mode=debug.mode,
        captures=debug.captures,
        overflow_kinds=debug.overflow_kinds,
        overflow_number=overflow_number,
        layout=_layout(own, is_async=is_async),
        layout_chosen=own.has("layout") or is_async,
        file_format=filed.file_format,
        step_level=filed.step_level,
        kernel_by_kernel=filed.kernel_by_kernel,
        class_names_in_scope=not own.has("class_names_in_scope") or own.boolean("class_names_in_scope"),
        trailing_comma=own.has("trailing_comma") and own.boolean("trailing_comma"),
        **device,
    )


def _refuse_of_mode(common: Section, captures: Captures, mode: int, steps: StepSet) -> None:
    if captures == "data":
        refuse_marks(common, mode)
    if captures == "overflow":
        refuse_single_steps(common, steps)


def is_dump_path(text: str) -> bool:
    """Whether MindSpore accepts this text as the `path` of a config."""
    return text.startswith("/") and _PATH_ALPHABET.fullmatch(text) is not None


def _section(config: Mapping[str, Any], name: str, where: str) -> Section:
    """A section of the config; a value that is not an object has no keys, as in MindSpore. opdump's own section must be an
    object.
    """
    values = config.get(name, {})
    if name == OWN and not isinstance(values, Mapping):
        raise Section(where, config).wrong(name, 'an object such as {"layout": "mindspore-2.10"}')
    return Section(f"{where}: {name}", values if isinstance(values, Mapping) else {})


def _common_section(config: Mapping[str, Any], where: str) -> Section:
    """The section that every config has. Raises ConfigError if it is missing."""
    if COMMON not in config:
        advice = "`opdump config new` writes a whole file"
        if "dump" in config:
            advice = 'found "dump": is this an acl.json? `opdump config check --dialect acl` reads it'
        raise ConfigError(f"{where}: {COMMON} not found, and it is required; {advice}")
    return _section(config, COMMON, where)


def _enabled_anyway(config: Mapping[str, Any], e2e: Section, where: str) -> list[str]:
    """The warning if nothing enables the synchronous dump, which is written anyway."""
    if E2E not in config:
        text = (
            f"{where}: {E2E} is missing; the dump is synchronous with its defaults (on Ascend, MindSpore would dump "
            f'asynchronously); add "{E2E}": {{"enable": true}} to be clear'
        )
        return [text]
    if not e2e.values.get("enable", False):
        found = "false" if "enable" in e2e.values else "missing"
        text = (
            f"{e2e.where}.enable is {found}, and the dump is made anyway, as MindSpore does on CPU and GPU; to dump "
            'nothing, run without a configuration; to dump asynchronously, add "file_format"'
        )
        return [text]
    return []


def _on_host(device: _DeviceSettings, saved_data: SavedData, where: str) -> list[str]:
    """Change `device` if the device would not compute the statistics; returns the warning about it."""
    if saved_data == "statistic" or device["stat_calc_mode"] != "device":
        return []
    device["stat_calc_mode"] = "host"
    text = (
        f'{where}: stat_calc_mode is taken as "host": the device computes statistics only if saved_data is '
        f'"statistic", and it is "{saved_data}"'
    )
    return [text]


def _device_settings(e2e: Section) -> _DeviceSettings:
    if e2e.has("enable"):
        e2e.boolean("enable")
    trans_flag = e2e.boolean("trans_flag") if e2e.has("trans_flag") else True
    save_kernel_args = e2e.boolean("save_kernel_args") if e2e.has("save_kernel_args") else False
    stat_calc_mode, precision = "host", "high"
    if e2e.has("stat_calc_mode"):
        stat_calc_mode = e2e.choice("stat_calc_mode", get_args(StatCalcMode))
    if e2e.has("device_stat_precision_mode"):
        precision = e2e.choice("device_stat_precision_mode", get_args(StatPrecision))
    return {
        "trans_flag": trans_flag,
        "save_kernel_args": save_kernel_args,
        "stat_calc_mode": cast(StatCalcMode, stat_calc_mode),
        "device_stat_precision_mode": cast(StatPrecision, precision),
        "sample_num": _sample_num(e2e),
    }


def _sample_num(e2e: Section) -> int | None:
    if not e2e.has("sample_mode"):
        return None  # sample_num by itself has no effect, whatever its value
    mode = e2e.unsigned("sample_mode", "0 for whole tensors, 1 for the first sample_num elements")
    if mode > 1:
        raise e2e.wrong("sample_mode", "0 for whole tensors or 1 for the first sample_num elements")
    if mode == 0:
        return None
    if not e2e.has("sample_num"):
        return 100
    number = e2e.unsigned("sample_num", "elements to keep of a tensor, 1 or more")
    if number == 0:
        raise e2e.wrong("sample_num", "sample_num greater than 0: elements to keep of a tensor, such as 100")
    return number


def _dump_mode(common: Section) -> int:
    meaning = "0 for all operators, 1 for those in kernels, 2 for those that set_dump marked"
    mode = common.unsigned("dump_mode", meaning)
    if mode > 2:
        raise common.wrong("dump_mode", meaning)
    return mode


def _path(common: Section, environ: Mapping[str, str]) -> Path:
    key = f"{common.where}.path"
    text = common.text("path", "an absolute path") if common.has("path") else ""
    if not text:
        root = environ.get(DIAGNOSTIC_VARIABLE, "")
        if not root:
            raise ConfigError(
                f"{key} is empty, and so is {DIAGNOSTIC_VARIABLE}: the dump has no directory; "
                f'write "path": "/tmp/dump" or set {DIAGNOSTIC_VARIABLE}'
            )
        key, text = DIAGNOSTIC_VARIABLE, f"{root}/debug_dump"
    # MindSpore checks the characters first, so "./dump" fails for its dot and "dump" for its start
    if not _PATH_ALPHABET.fullmatch(text):
        wrong = next(char for char in text if not _PATH_ALPHABET.fullmatch(char))
        raise ConfigError(
            f"{key}: found {text!r} with {wrong!r}; a dump path may contain only ASCII letters and digits, "
            f"'-', '_' and '/'; choose one such as \"/tmp/dump\""
        )
    if not text.startswith("/"):
        raise ConfigError(
            f"{key}: found {text!r}; a dump path must be absolute and start with '/'; "
            f'write for example "{Path.cwd() / text}"'
        )
    return Path(text)


def _net_name(common: Section) -> str:
    name = common.text("net_name", "a name such as ResNet50") if common.has("net_name") else "Net"
    if not _NET_NAME_ALPHABET.fullmatch(name):
        raise common.wrong(
            "net_name", "a net_name that is not empty and has only ASCII letters and digits, '-' and '_'"
        )
    return name


def _steps(common: Section) -> StepSet:
    text = common.text("iteration", 'steps such as "0|5-8|100-120", or "all"')
    try:
        return StepSet.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{common.where}: {error}") from error


def _kernels(common: Section, mode: int, warnings: list[str]) -> tuple[KernelPattern, ...]:
    entries = common.array("kernels", 'names, types or expressions such as ["Conv2D", "name-regex(Default/.+)"]')
    if mode != 1:
        return ()
    patterns: dict[str, KernelPattern] = {}
    for entry in entries:
        text = entry if isinstance(entry, str) else _as_text(entry)
        try:
            pattern = KernelPattern.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{common.where}: {error}") from error
        if pattern.text in patterns:
            warnings.append(f"{common.where}.kernels: duplicate entry {pattern.text!r}")
        elif pattern.text:
            patterns[pattern.text] = pattern
    return tuple(patterns.values())


def _as_text(entry: object) -> str:
    """An entry that is not a string, as JSON: MindSpore takes that text for the type."""
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _selection(mode: int, kernels: tuple[KernelPattern, ...]) -> Selection:
    if mode == 2:
        return "marked"
    return "kernels" if kernels else "all"  # an empty list selects everything, as in MindSpore


def _devices(common: Section, warnings: list[str]) -> frozenset[int] | None:
    if not common.has("support_device"):
        return None
    devices: list[int] = []
    for entry in common.array("support_device", "device ids such as [0, 1, 2, 3, 4, 5, 6, 7]"):
        if not isinstance(entry, int | float):  # true is 1 and 1.5 is 1 to MindSpore
            raise common.wrong("support_device", "a number in each place, without quotes, such as [0, 1]")
        device = int(entry) % 2**32
        if device in devices:
            warnings.append(f"{common.where}.support_device: duplicate device {device}")
        devices.append(device)
    return frozenset(devices)


def _overflow_number(common: Section, debug: Debug) -> int:
    if not common.has("overflow_number"):
        return 0
    if debug.captures != "overflow":
        raise ConfigError(
            f"{common.where}.overflow_number has an effect only if op_debug_mode is 1 to 3, found op_debug_mode "
            f"{common.values.get('op_debug_mode', 0)}; remove overflow_number"
        )
    return common.unsigned("overflow_number", "overflows to dump, 0 for all")


def _saved_data(common: Section, debug: Debug) -> SavedData:
    if not common.has("saved_data"):
        return "tensor"
    if debug.captures == "exception":  # always records tensors, whatever is configured here
        common.text("saved_data", '"tensor"')
        return "tensor"
    return cast(SavedData, common.choice("saved_data", get_args(SavedData)))


def _initial_iteration(common: Section, steps: StepSet, warnings: list[str]) -> int:
    if not common.has("initial_iteration"):
        return 0
    first = common.unsigned("initial_iteration", "the number of the first step")
    never = [last for _, last in steps.ranges or () if last < first]
    if steps.last is not None and steps.last < first:
        raise ConfigError(
            f"{common.where}: iteration {str(steps)!r} matches no step, because the first step is "
            f"{first} (initial_iteration); count `iteration` from there"
        )
    if never:
        warnings.append(f"{common.where}: steps of iteration before initial_iteration {first} do not exist")
    return first


def _categories(common: Section, saved_data: SavedData, calculated_on: str, warnings: list[str]) -> tuple[str, ...]:
    # Not even the type is checked if no statistics are saved.
    if saved_data == "tensor" or not common.has("statistic_category"):
        return DEFAULT
    names = common.array("statistic_category", 'names such as ["max", "min", "l2norm"]')
    if invalid := unknown_names(names):
        known = STATISTICS.names()
        text = (
            f"{common.where}.statistic_category is invalid: {', '.join(map(_as_text, invalid))}; "
            f"expected names from {', '.join(map(_as_text, known))}"
        )
        raise ConfigError(with_nearest(text, str(invalid[0]), known))
    kept = names
    if calculated_on == "device":
        kept = [name for name in names if statistic(name).on_device]
        if dropped := [name for name in names if name not in kept]:
            warnings.append(
                f"{common.where}.statistic_category: only computed on the host, and dropped because stat_calc_mode is "
                f'"device": {", ".join(dropped)}; the device has max, min, avg and l2norm'
            )
    return one_spelling(kept)


def _layout(own: Section, *, is_async: bool) -> str:
    if own.has("layout"):
        return own.choice("layout", _LAYOUTS if own.values["layout"] in _LAYOUTS else (*_LAYOUTS, *LAYOUTS.others()))
    return ASYNC_LAYOUT if is_async else "mindspore-2.3"
