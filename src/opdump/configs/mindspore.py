"""Resolves data_dump.json, MindSpore's configuration of the synchronous and the asynchronous dump, to a DumpPlan.

    plan = load_plan("data_dump.json", environ=os.environ)

Keys, defaults, order of the checks and coercions are those of MindSpore 2.10; docs/config.md explains each key and
docs/compatibility.md lists where opdump differs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypedDict, cast, get_args

from opdump.configs.json_text import (
    COMMON,
    E2E,
    KEYS,
    OWN,
    Section,
    nearest_key,
    obsolete_sections,
    read_json,
    section_of,
    unknown_keys,
)
from opdump.configs.plan_fields import field_value, make_writable, unknown_setting
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
from opdump.plan.dialects import Dialect, DialectWords
from opdump.plan.field_types import shown
from opdump.plan.layouts import LAYOUTS
from opdump.plan.unmatched_names import with_nearest
from opdump.statistics import DEFAULT, STATISTICS, one_spelling, statistic, unknown_names

# The values of the file, key by key, in the order in which MindSpore checks them.

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
    file_format = common.choice("file_format", get_args(FileFormat), "bin")
    # MindSpore calls a program that runs operator by operator O0 or O1.
    level = own.choice("jit_level", _JIT_LEVELS, "O0")
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
_KINDS: Final[Mapping[int, frozenset[OverflowKind]]] = {
    1: frozenset({"aicore"}),
    2: frozenset({"atomic"}),
    3: frozenset({"aicore", "atomic"}),
}


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
        class_names_in_scope=own.boolean("class_names_in_scope", True),
        trailing_comma=own.boolean("trailing_comma"),
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
    e2e.boolean("enable")
    return {
        "trans_flag": e2e.boolean("trans_flag", True),
        "save_kernel_args": e2e.boolean("save_kernel_args"),
        "stat_calc_mode": cast(StatCalcMode, e2e.choice("stat_calc_mode", get_args(StatCalcMode), "host")),
        "device_stat_precision_mode": cast(
            StatPrecision, e2e.choice("device_stat_precision_mode", get_args(StatPrecision), "high")
        ),
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
    text = common.text("path", "an absolute path", "")
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
    name = common.text("net_name", "a name such as ResNet50", "Net")
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


# The plan that the values describe.

CONFIG_VARIABLE = "MINDSPORE_DUMP_CONFIG"
ACL_VARIABLE = "MS_ACL_DUMP_CFG_PATH"
_ACL_ALONE = "1"  # the form of ACL for the file that CONFIG_VARIABLE names


def load_plan(
    path: str | os.PathLike[str] | None, /, *, environ: Mapping[str, str], strict: bool = False, **overrides: Any
) -> DumpPlan:
    """Read and fully check a config file, create its dump directory, and return the plan.

    `path` None means the file that MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names; if the second variable names the file,
    its dump is asynchronous and in the form of ACL. `overrides` are keys of the config, of any section, or fields of DumpPlan;
    they replace values of the file (`saved_data="full"`, `iteration="0-2"`, `layout="mindspore-2.10"`, `inputs=False`). An
    override of None is ignored, and `path` may be any directory. With `strict`, an unknown key is an error.

    Raises ConfigError and DumpPathError.
    """
    if path is None:
        path = named_file(environ)
    data = _read_file(path)
    where = os.fspath(path)
    config, warnings = read_json(data, where)
    source = _Source(
        where, text=data.decode("utf-8-sig"), warnings=tuple(warnings), acl_form=_is_acl_form(path, environ)
    )
    return _plan_of(config, source, environ, strict, overrides)


def named_file(environ: Mapping[str, str]) -> str:
    """The file that the environment names. Raises ConfigError if it names none, or two."""
    path, acl = environ.get(CONFIG_VARIABLE, ""), environ.get(ACL_VARIABLE, "")
    if acl not in ("", _ACL_ALONE):
        if path and not _is_acl_form(path, environ):
            raise ConfigError(
                f"{CONFIG_VARIABLE} names {path!r} and {ACL_VARIABLE} names {acl!r}, expected the same file or only "
                f"one of them: unset {ACL_VARIABLE} to use the first, {CONFIG_VARIABLE} to use the second"
            )
        path = path or acl
    if not path:
        raise ConfigError(
            f"no configuration: name a data_dump.json, or set {CONFIG_VARIABLE} to one; `opdump config new` creates one"
        )
    return path


def _is_acl_form(path: str | os.PathLike[str], environ: Mapping[str, str]) -> bool:
    acl = environ.get(ACL_VARIABLE, "")
    return acl == _ACL_ALONE or (acl != "" and os.path.realpath(acl) == os.path.realpath(path))


def plan_from_keywords(*, environ: Mapping[str, str], strict: bool = False, **keys: Any) -> DumpPlan:
    """The plan of a config with these keys, of any section, or fields of DumpPlan, and defaults for all others.

    The defaults dump inputs and outputs of every operator, step and device; with `kernels`, only those kernels. `path` may be any
    directory; its default is MS_DIAGNOSTIC_DATA_PATH. Raises like `load_plan`.
    """
    config = {COMMON: {"dump_mode": 0, "iteration": "all", "input_output": 0, "kernels": []}, E2E: {"enable": True}}
    return _plan_of(config, _Source("keyword arguments", complete=False), environ, strict, keys)


@dataclass(frozen=True, slots=True)
class _Source:
    """The origin of a config."""

    where: str
    text: str = ""
    complete: bool = True
    warnings: tuple[str, ...] = ()
    acl_form: bool = False


def _plan_of(
    config: object, source: _Source, environ: Mapping[str, str], strict: bool, overrides: Mapping[str, Any]
) -> DumpPlan:
    sections = dict(config) if isinstance(config, Mapping) else {}
    directory, fields = _override(sections, overrides)
    warnings = [*source.warnings]
    unknown = unknown_keys(sections, source.where)
    plan = resolve(
        sections,
        source.where,
        environ,
        directory=directory,
        complete=source.complete,
        acl_form=source.acl_form,
        warnings=warnings,
    )
    warnings += obsolete_sections(sections, source.where, fields.get("layout", plan.layout))
    if strict and unknown:
        raise ConfigError("; ".join(unknown).replace(" is ignored", " is an error under strict"))
    make_writable(plan.path)
    return replace(plan, config_text=source.text, warnings=(*warnings, *unknown), **fields)


# Fields of DumpPlan without an identical key in the config.
_PLAN_FIELDS = ("inputs", "outputs", "selection", "devices", "step_level", "kernel_by_kernel", "on_error")

# Keys that a section ignores in some cases, or interprets differently from a keyword.
_CHECKED = frozenset(
    {
        *_PLAN_FIELDS,
        "path",
        "steps",
        "kernels",
        "statistic_category",
        "sample_num",
        "initial_iteration",
        "op_debug_mode",
        "overflow_number",
        "layout",
    }
)

_ONLY_IN_A_PLAN = frozenset(item.name for item in dataclass_fields(DumpPlan)) - {"steps", "path", *_PLAN_FIELDS}


# Keys that a keyword implies: a caller who names kernels wants only these, and a file format belongs to one of the two dumps.
_IMPLIED = {"kernels": ("dump_mode", 1), "file_format": ("enable", False), "sample_num": ("sample_mode", 1)}


def _override(sections: dict[str, Any], overrides: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """Apply overrides to the sections; returns the directory that replaces the config's path, and the plan's fields."""
    given = {key: value for key, value in overrides.items() if value is not None}
    checked = {key: field_value(key, value) for key, value in given.items() if key in _CHECKED}
    fields = {key: checked[key] for key in _PLAN_FIELDS if given.pop(key, None) is not None}
    directory = checked.get("path")
    given.pop("path", None)
    if "steps" in given:
        given["iteration"] = given.pop("steps")
    for key, (implied, value) in _IMPLIED.items():
        if key in given:
            given.setdefault(implied, value)
    for key, value in given.items():
        section = section_of(key)
        if section is None:
            if key in _ONLY_IN_A_PLAN:
                raise ConfigError(
                    f"{key}={shown(value)}: {key} is a field of DumpPlan without a keyword; pass a plan: "
                    f"capture(DumpPlan(path=..., {key}=...))"
                )
            known = (*chain.from_iterable(KEYS.values()), "steps", *_PLAN_FIELDS)
            raise unknown_setting(f"{key}={shown(value)}", nearest_key(key), known)
        values = sections.get(section)
        kept = dict(values) if isinstance(values, Mapping) else {}
        sections[section] = kept | {key: _as_json_value(value)}
    return directory, fields


def _as_json_value(value: Any) -> Any:
    if isinstance(value, StepSet):
        return str(value)
    if isinstance(value, KernelPattern):
        return value.text
    return (
        [_as_json_value(item) for item in value] if isinstance(value, list | tuple | set | frozenset | range) else value
    )


def _read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a config file. The file must exist, and its name must end in `.json`, checked in this order."""
    file = Path(path)
    text = os.fspath(path)
    if not file.exists() or text.endswith("/"):
        raise ConfigError(f"config file not found: {text!r} (looked in {Path.cwd()}); `opdump config new` creates one")
    if text and file.is_dir() and not text.endswith(".json"):
        raise ConfigError(f"{text!r} is a directory, expected a config file; to dump into it: path={text!r}")
    if not text.endswith(".json"):
        raise ConfigError(f"invalid json file name: {text!r}; the name of a config file must end in .json; rename it")
    try:
        return file.read_bytes()
    except IsADirectoryError as error:
        raise ConfigError(f"{text!r} is a directory, expected a json file; name the file in it") from error
    except OSError as error:
        raise ConfigError(f"cannot read the config file {text!r}: {error.strerror or error}") from error


# The dialect of data_dump.json, and the starting file that `opdump config new` writes.


def starting_file(directory: Path | None) -> str:
    """The text of a data_dump.json that dumps all of the first step into `directory`.

    None means `dump` in the working directory, or /tmp/dump if MindSpore's rules forbid that path. The text contains the most
    important keys, each with a working value.

    Raises ConfigError for a directory that those rules forbid.
    """
    if directory is None:
        here = Path.cwd() / "dump"
        directory = here if is_dump_path(str(here)) else Path("/tmp/dump")  # noqa: S108  a suggestion, shown to the user
    elif not is_dump_path(str(directory)):
        raise ConfigError(
            f"found the dump path {str(directory)!r}, expected an absolute path of ASCII letters and digits, '-', "
            f"'_' and '/'; choose one such as \"/tmp/dump\""
        )
    config = {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(directory),
            "net_name": "Net",
            "iteration": "0",
            "saved_data": "full",
            "input_output": 0,
            "kernels": [],
            "support_device": [0, 1, 2, 3, 4, 5, 6, 7],
            "op_debug_mode": 0,
            "statistic_category": ["max", "min", "avg", "l2norm", "nan count", "positive inf count"],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True, "stat_calc_mode": "host"},
    }
    return json.dumps(config, indent=2) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        file="data_dump.json",
        path="path",
        steps="iteration",
        operators="kernels",
        list_key="models: {}",
        marked='write "dump_mode": 2 to dump what is marked',
    ),
    signs=(COMMON, E2E),
    load=lambda path, how, overrides: load_plan(path, environ=how.environ, strict=how.strict, **overrides),
    starting_file=starting_file,
)
