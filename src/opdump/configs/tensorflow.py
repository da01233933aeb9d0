"""The dump configuration of a TensorFlow program for Ascend devices: the `parameter_map` of its NpuOptimizer, or npu_dump.json.

    values = parameter_values(optimizer.parameter_map)
    dump = training_dump_of(values, environ=os.environ)
    dump.plan                       # a DumpPlan; None if nothing is dumped

Keys, defaults, checks and messages are those of the TensorFlow adapter; docs/tensorflow-config.md explains each key. The keys
unrelated to dumps are those of the adapter's public reference of session configurations.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from opdump.configs.acl_keys import LARGEST_FILE
from opdump.configs.json_text import kind_of, read_json
from opdump.configs.plan_fields import make_writable, sorted_overrides
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, ModelSelection, OverflowKind, StepSet
from opdump.plan.dialects import Dialect, DialectWords
from opdump.plan.unmatched_names import nearest
from opdump.statistics import DEVICE_DEFAULT

# The keys and their values, and the warnings about unknown keys.
#
# A value is a message with one field for each kind, of which one is set. The adapter reads the field that it expects. If another
# one is set it reads zero, the protobuf default, and so does opdump, with a warning.

Kind = Literal["b", "i", "s", "f"]
_WRITTEN: Final[Mapping[Kind, str]] = {"b": "True", "i": "1", "s": 'tf.compat.as_bytes("...")', "f": "1.0"}


@dataclass(frozen=True, slots=True)
class ParameterValue:
    """One value: `kind` is the field that is set, any field of AttrValue; None if none is."""

    kind: str | None
    value: Any = None

    @classmethod
    def of(cls, value: object) -> ParameterValue:
        """Convert a bool, an int, a float, a str or bytes. Raises TypeError for another type."""
        if isinstance(value, bool):
            return cls("b", value)
        if isinstance(value, int):
            return cls("i", value)
        if isinstance(value, float):
            return cls("f", value)
        if isinstance(value, str | bytes):
            return cls("s", value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
        raise TypeError(f"found a {type(value).__name__}, expected bool, int, float, str or bytes")


def parameter_values(parameter_map: Mapping[str, Any]) -> dict[str, ParameterValue]:
    """The values of a protobuf `parameter_map`, with the field that is set in each."""
    found = {}
    for key, message in parameter_map.items():
        kind = message.WhichOneof("value")
        found[key] = ParameterValue(kind, None if kind is None else getattr(message, kind))
    return found


def read_flag(values: Mapping[str, ParameterValue], key: str, default: bool, warnings: list[str]) -> bool:
    """The field `b` of a key; `default` if the key is missing, False if another field is set."""
    return bool(_read(values, key, "b", default, False, warnings))


def read_number(values: Mapping[str, ParameterValue], key: str, default: int, warnings: list[str]) -> int:
    """The field `i` of a key; `default` if the key is missing, 0 if another field is set."""
    return int(_read(values, key, "i", default, 0, warnings))


def read_text(values: Mapping[str, ParameterValue], key: str, default: str | None, warnings: list[str]) -> str | None:
    """The field `s` of a key; `default` if the key is missing, the empty text if another field is set.

    Bytes that are not UTF-8 are decoded like Python decodes file names.
    """
    value = _read(values, key, "s", default, "", warnings)
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _read(
    values: Mapping[str, ParameterValue], key: str, kind: Kind, default: Any, zero: Any, warnings: list[str]
) -> Any:
    if key not in values:
        return default
    if values[key].kind == kind:
        return values[key].value
    found = "without a value" if values[key].kind is None else f"as .{values[key].kind}"
    warnings.append(
        f'{key} is set {found} and read as .{kind}, which is {zero!r}; write parameter_map["{key}"].{kind} = {_WRITTEN[kind]}'
    )
    return zero


DUMP_KEYS: Final[Mapping[str, Kind]] = {
    "use_off_line": "b",
    "enable_dump": "b",
    "enable_dump_debug": "b",
    "dump_path": "s",
    "dump_step": "s",
    "dump_mode": "s",
    "dump_debug_mode": "s",
    "dump_data": "s",
    "dump_layer": "s",
    "quant_dumpable": "s",
    "enable_exception_dump": "i",
    "session_device_id": "i",
    "iterations_per_loop": "i",
}
"""Keys of a dump, and the field with the value."""

_OTHERS: Final = """
HCCL_algorithm ac_parallel_enable aoe_config_file aoe_mode atomic_clean_policy auto_tune_mode autotune_tune_mode
buffer_optimize compile_dynamic_mode compress_weight_conf customize_dtypes debug_dir deterministic device_type
disable_reuse_memory distribute_config dynamic_dims dynamic_graph_execute_mode dynamic_input
dynamic_inputs_shape_range dynamic_node_type enable_compress_weight enable_data_pre_proc enable_profiling
enable_reduce_precision enable_scope_fusion_passes enable_small_channel es_cluster_config event_sync_timeout
execute_times experimental_accelerate_train_mode export_compile_stat external_weight frozen_variable
fusion_switch_file graph_compiler_cache_dir graph_exec_timeout graph_max_parallel_model_num graph_memory_max_size
graph_memory_optimize_config graph_run_mode graph_slice hccl_timeout hcom_multi_mode hcom_parallel horovod_mode
in_out_pair in_out_pair_flag input_batch_cpy input_fusion_size input_shape insert_op_file is_dynamic_input
is_tailing_optimization is_variable_memory_optimize_enable jit_compile job local_device_list local_rank_id
logical_device_cluster_deploy_mode logical_device_id lower_functional_ops memory_optimize_config min_group_size
mix_compile_mode model_deploy_config model_deploy_devicelist model_deploy_mode modify_mixlist oo_constant_folding
oo_level op_compiler_cache_dir op_compiler_cache_mode op_debug_config op_debug_level op_execute_timeout
op_precision_mode op_select_implmode op_tune_mode op_wait_timeout optimization_switch optypelist_for_implmode
precision_mode precision_mode_v2 profiling_options resource_config_path shape_generalization_mode soc_config
static_memory_policy stream_max_parallel_num stream_sync_timeout task_index topo_sorting_mode train_graph
variable_format_optimize variable_location variable_memory_max_size variable_placement variable_use_1g_huge_page
work_path
"""
_OTHER_KEYS: Final = frozenset(_OTHERS.split())
"""Keys of other parts of the adapter, which cause no warning."""


def unknown_tensorflow_keys(keys: Iterable[str], where: str) -> list[str]:
    """One sentence for each key that the adapter does not know, with the nearest known one."""
    return [
        f"{where}: unknown key {key!r} is ignored; " + (f'is "{near}" meant?' if near else f"a dump knows {_known()}")
        for key in keys
        if key not in DUMP_KEYS and key not in _OTHER_KEYS
        for near in (nearest_tensorflow_key(key),)
    ]


def nearest_tensorflow_key(key: str) -> str | None:
    """The dump key or, failing that, any key that `key` may stand for; None if none is similar."""
    for known in (DUMP_KEYS, _OTHER_KEYS):
        if near := nearest(key, sorted(known), 1, alike=0.75):
            return near[0]
    return None


def _known() -> str:
    return ", ".join(DUMP_KEYS)


# The plan that the values describe.

TensorflowCode = Literal["E10001", "E10058"]
"""Codes of the graph engine: an invalid value, a missing value."""


class TensorflowConfigError(ConfigError):
    """A dump configuration of TensorFlow is invalid. `code` is the code of the graph engine, if it has one."""

    def __init__(self, message: str, code: TensorflowCode | None = None) -> None:
        super().__init__(message if code is None else f"{code}: {message}")
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # the message has the code already, so it does not pass through __init__ again
        return _rebuilt, (str(self), self.code)


def _rebuilt(message: str, code: TensorflowCode | None) -> TensorflowConfigError:
    error = TensorflowConfigError.__new__(TensorflowConfigError, message)
    error.args = (message,)
    error.code = code
    return error


# From the `parameter_map` to a plan.


def resolve_dump_path(text: str | None, where: str, directory: Path | None = None) -> Path:
    """The real path of `text`, relative to `directory`, or to the current directory if that is None.

    Raises TensorflowConfigError for a missing path, and for one that is not a readable and writable directory.
    """
    if text is None:
        raise TensorflowConfigError(
            f"{where}: dump_path: if use dump function, dump_path must be set. It is missing, expected a directory that "
            f'exists; write "dump_path": "/tmp/dump" beside enable_dump or enable_dump_debug',
            "E10058",
        )
    # The current directory is not prepended: it may have been removed, which realpath reports.
    path = text if directory is None else os.path.join(directory, text)
    if not text or not os.path.isdir(path):
        there = bool(text) and os.path.lexists(path)
        advice = "name a directory" if there or not text else f"create it: mkdir -p '{path}'"
        if text.startswith(("~", "$")):
            advice = f"{text.split('/', 1)[0]!r} is not expanded here: write the path out"
        raise _bad_path(where, f"the path {text} is not directory.", f"expected a directory that exists; {advice}")
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        raise _bad_path(
            where, f"the path {text} is invalid.", f"it cannot be resolved ({error.strerror}); write an absolute path"
        ) from error
    if not os.access(real, os.R_OK | os.W_OK):
        raise _bad_path(
            where,
            f"the path {text} does't have read, write permissions.",
            f"expected both; chmod u+rw '{real}', or name another",
        )
    return Path(real)


def _bad_path(where: str, words: str, advice: str) -> TensorflowConfigError:
    return TensorflowConfigError(f"{where}: dump_path: {words} ({advice})")


__all__ = [
    "ExceptionDump",
    "ParameterValue",
    "TrainingDump",
    "device_of",
    "parameter_values",
    "plan_of_failures",
    "training_dump_of",
    "training_dump_of_options",
]

ExceptionDump = Literal[0, 1, 2]
"""`enable_exception_dump`: off, full, lite."""

DEVICE_VARIABLES: Final = ("ASCEND_DEVICE_ID", "DEVICE_ID")
MODES: Final = ("input", "output", "all")
OVERFLOW_KINDS: Final[Mapping[str, frozenset[OverflowKind]]] = {
    "aicore_overflow": frozenset({"aicore"}),
    "atomic_overflow": frozenset({"atomic"}),
    "all": frozenset({"aicore", "atomic"}),
}
DATA: Final = ("tensor", "stats")

_BOTH: Final = "ge.exec.enableDump and ge.exec.enableDumpDebug cannot be set to 1 at the same time."
_SPACE: Final = re.compile(r"[ \t\n\v\f\r]+")
# The texts for flags when options are strings (npu_device).
_FLAGS: Final[Mapping[str, bool]] = {"1": True, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDump:
    """The dumps that a program requests."""

    plan: DumpPlan | None
    """None if neither data nor overflow is dumped."""
    exceptions: ExceptionDump = 2
    device_id: int = 0
    quant_dumpable: str = ""
    """Passed on unchanged: for models quantised by AMCT."""
    warnings: tuple[str, ...] = ()


def training_dump_of(
    parameters: Mapping[str, ParameterValue],
    *,
    environ: Mapping[str, str],
    directory: Path | None = None,
    where: str = "NpuOptimizer",
    dump_path: Path | None = None,
) -> TrainingDump:
    """The dumps that the values of a `parameter_map` request. Messages begin with `where`.

    A relative `dump_path` is below `directory`, or below the current directory if that is None. The argument `dump_path` replaces
    the key, unchecked. If `session_device_id` is missing or negative, ASCEND_DEVICE_ID and DEVICE_ID in `environ` are used, in
    this order.

    Unknown keys, values in an unexpected field, and keys without effect cause warnings.

    Raises TensorflowConfigError for the first invalid value, in the order of the adapter: path, steps, mode, overflow mode, data,
    exception dump, then data and overflow together.
    """
    warnings = unknown_tensorflow_keys(parameters, where)
    notes: list[str] = []
    data = read_flag(parameters, "enable_dump", False, notes)
    overflow = read_flag(parameters, "enable_dump_debug", False, notes)
    path = dump_path
    if (data or overflow) and path is None:
        path = resolve_dump_path(read_text(parameters, "dump_path", None, notes), where, directory)
    steps = parse_dump_step(read_text(parameters, "dump_step", "", notes) or "", where) if data else None
    mode = read_text(parameters, "dump_mode", "output", notes) if data else "output"
    _check_member(where, "dump_mode", mode, MODES, "dump mode should be one of the list:[input, output, all]")
    debug_mode = read_text(parameters, "dump_debug_mode", "all", notes) if overflow else "all"
    _check_member(
        where,
        "dump_debug_mode",
        debug_mode,
        tuple(OVERFLOW_KINDS),
        "dump debug mode should be one of the list:[aicore_overflow, atomic_overflow, all]",
    )
    saved = read_text(parameters, "dump_data", "tensor", notes)
    _check_member(where, "dump_data", saved, DATA, "dump_data should be 'tensor' or 'stats'.")
    exceptions = _exceptions(parameters, where, notes)
    if data and overflow:
        raise TensorflowConfigError(
            f"{where}: enable_dump and enable_dump_debug: {_BOTH} Found both, expected one of the two; remove one",
            "E10001",
        )
    plan = _plan(parameters, notes, path, steps, mode=mode, saved=saved, debug_mode=debug_mode if overflow else None)
    device_id = _device_id(parameters, environ, where, notes)
    quant_dumpable = read_text(parameters, "quant_dumpable", "", notes) or ""
    said = (*warnings, *(f"{where}: {note}" for note in notes))
    return TrainingDump(
        plan=None if plan is None else replace(plan, warnings=said),
        exceptions=exceptions,
        device_id=device_id,
        quant_dumpable=quant_dumpable,
        warnings=said,
    )


def _plan(
    parameters: Mapping[str, ParameterValue],
    notes: list[str],
    path: Path | None,
    steps: StepSet | None,
    *,
    mode: str | None,
    saved: str | None,
    debug_mode: str | None,
) -> DumpPlan | None:
    """The plan of a dump of data (`steps` is given) or of overflows (`debug_mode` is given); None if neither is on."""
    layers = read_text(parameters, "dump_layer", "", notes) or ""
    plan = None
    if path is not None and steps is not None:
        plan = replace(
            _plan_into(path),
            steps=steps,
            saved_data="statistic" if saved == "stats" else "tensor",
            inputs=mode != "output",
            outputs=mode != "input",
            models=_models(layers, parameters, notes),
        )
    elif path is not None and debug_mode is not None:  # every operator that overflows, completely
        plan = replace(_plan_into(path), captures="overflow", overflow_kinds=OVERFLOW_KINDS[debug_mode])
        notes += _without_effect(parameters)
    return None if plan is None else _where_it_runs(plan, parameters, notes)


def _plan_into(path: Path) -> DumpPlan:
    """A plan with what the adapter fixes."""
    return DumpPlan(
        path=path,
        inputs=True,
        statistic_category=DEVICE_DEFAULT,
        file_format="bin",
        stream_in_names=False,
        layout="acl",
        dialect="tensorflow",
    )


def training_dump_of_options(
    options: Mapping[str, str], *, environ: Mapping[str, str], directory: Path | None = None
) -> TrainingDump:
    """The dumps that the options of `npu_device` request, given as strings: flags are "1" and "0", numbers are decimal.

    Keys, checks and errors are those of `training_dump_of`; an invalid flag or number is an error (E10001). Options unrelated to
    dumps are ignored.
    """
    values: dict[str, ParameterValue] = {}
    for key, text in options.items():
        if key not in DUMP_KEYS:
            continue
        if key in ("enable_dump", "enable_dump_debug"):
            if text not in _FLAGS:
                raise TensorflowConfigError(
                    f"npu_device: dump_config.{key}: found {text!r}: The value must be 1 or 0. Assign True or False",
                    "E10001",
                )
            values[key] = ParameterValue.of(_FLAGS[text])
        elif DUMP_KEYS[key] == "i":
            values[key] = ParameterValue.of(_number(f"npu_device: {key}", text))
        else:
            values[key] = ParameterValue.of(text)
    return training_dump_of(values, environ=environ, directory=directory, where="npu_device")


def plan_of_failures(path: Path, exceptions: ExceptionDump) -> DumpPlan:
    """The plan for operators that fail: their complete inputs (1), or only their metadata (2)."""
    return DumpPlan(
        path=path,
        captures="exception",
        exception_detail="norm" if exceptions == 1 else "brief",
        inputs=True,
        outputs=False,
        file_format="bin",
        stream_in_names=False,
        layout="acl",
        dialect="tensorflow",
    )


def _exceptions(parameters: Mapping[str, ParameterValue], where: str, notes: list[str]) -> ExceptionDump:
    exceptions = read_number(parameters, "enable_exception_dump", 2, notes)
    if exceptions not in (0, 1, 2):
        raise TensorflowConfigError(
            f"{where}: enable_exception_dump: found {exceptions}: enable_exception_dump should be one of 0, 1 and 2. "
            f"(0 for none, 1 for whole inputs, 2 for metadata only)"
        )
    return cast(ExceptionDump, exceptions)


def _where_it_runs(plan: DumpPlan, parameters: Mapping[str, ParameterValue], notes: list[str]) -> DumpPlan | None:
    """The plan, or None if the graph stays on the host. Adds other differences from a device to `notes`."""
    off_line = read_flag(parameters, "use_off_line", True, notes)
    if not off_line:
        notes.append(
            "use_off_line is False, so the graph stays on the host and nothing is dumped; remove it, or set it to True"
        )
    if (loop := read_number(parameters, "iterations_per_loop", 1, notes)) > 1:
        notes.append(f"iterations_per_loop is {loop} and has no effect here: each run of a session is one step")
    return plan if off_line else None


def _check_member(where: str, key: str, value: str | None, allowed: Sequence[str], words: str) -> None:
    if value not in allowed:
        raise TensorflowConfigError(
            f"{where}: {key}: found {value!r}: {words} (with this case and without spaces; or leave the key out)"
        )


def _models(
    layers: str, parameters: Mapping[str, ParameterValue], notes: list[str]
) -> tuple[ModelSelection, ...] | None:
    """The operators that `dump_layer` names, each once; None for all."""
    names = tuple(dict.fromkeys(name for name in _SPACE.split(layers) if name))
    if not names:
        if "dump_layer" in parameters:
            notes.append("dump_layer names no operator, so all are dumped; leave the key out, or name some")
        return None
    return (ModelSelection(layers=names),)


def _without_effect(parameters: Mapping[str, ParameterValue]) -> list[str]:
    """One sentence that names the keys that the overflow dump ignores; empty if they only have empty texts and defaults."""
    defaults = {"dump_step": b"", "dump_mode": b"output", "dump_data": b"tensor", "dump_layer": b""}
    unused = [
        key
        for key, default in defaults.items()
        if key in parameters and parameters[key].value not in (default, b"", None)
    ]
    return [f"under enable_dump_debug these have no effect: {', '.join(unused)}"] if unused else []


def _device_id(
    parameters: Mapping[str, ParameterValue], environ: Mapping[str, str], where: str, notes: list[str]
) -> int:
    chosen = read_number(parameters, "session_device_id", -1, notes)
    return chosen if chosen >= 0 else device_of(environ, where)


def device_of(environ: Mapping[str, str], where: str = "the environment") -> int:
    """The device that ASCEND_DEVICE_ID or DEVICE_ID names; 0 without them. Raises TensorflowConfigError if it is not a number."""
    for name in DEVICE_VARIABLES:
        if environ.get(name):
            return _number(f"{where}: {name}", environ[name])
    return 0


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise TensorflowConfigError(f"{name}: found {text!r}, expected a number, 0 or more")
    return int(text)


# `dump_step`: which iterations are dumped. The rule is that of the graph engine, which is stricter than the adapter's
# (docs/tensorflow-config.md#dump_step).

MOST_ITEMS: Final = 100
LARGEST_STEP: Final = 2**31 - 1

_TOO_MANY: Final = "dump_step only support dump <= 100 sets of data"
_NO_STEP: Final = "dump_step string style is error, correct example:'0|5|10|50-100'"
_BACKWARDS: Final = "in range steps, the first step is >= second step, correct example:'0|5|10-20'"

_ITEM = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def parse_dump_step(text: str, where: str) -> StepSet:
    """Parse up to 100 items joined by `|`, each a number up to 2147483647 or a range whose end is larger than its start.

    The empty text means every step. Items may overlap, repeat, and come in any order.

    Raises TensorflowConfigError for anything else: signs, spaces, empty items, a range of one step.
    """
    if not text:
        return StepSet.all()
    items = text.split("|")
    if len(items) > MOST_ITEMS:
        raise _bad(text, where, _TOO_MANY, f"found {len(items)} items; merge neighbours into ranges such as 50-100")
    for item in items:
        found = _ITEM.fullmatch(item)
        if found is None:
            raise _bad(text, where, _NO_STEP, f"the item {_shortened(item)!r} is neither a number nor a closed range")
        first, last = found[1].lstrip("0") or "0", found[2] and (found[2].lstrip("0") or "0")
        for number in filter(None, (first, last)):
            # Python refuses to convert thousands of digits, so their number is checked first.
            if len(number) > len(str(LARGEST_STEP)) or int(number) > LARGEST_STEP:
                raise _bad(text, where, _NO_STEP, f"{_shortened(number)} is beyond the largest step, {LARGEST_STEP}")
        if last and int(first) >= int(last):
            advice = f"write {first}" if first == last else f"write {last}-{first}"
            raise _bad(text, where, _BACKWARDS, f"the item {_shortened(item)!r} has no end after its start; {advice}")
    return StepSet.parse(text)


def _bad(text: str, where: str, words: str, reason: str) -> TensorflowConfigError:
    return TensorflowConfigError(f"{where}: dump_step: found {_shortened(text)!r}: {words} ({reason})")


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


# npu_dump.json: the keys of a `parameter_map` in a file, for programs whose script should not be changed. The TensorFlow adapter
# has no such file; keys and values are those of its `parameter_map`.

NOTHING_ENABLED: Final = "valid, but enables nothing"

_EXPECTED: Final[Mapping[Kind, tuple[type, str]]] = {
    "b": (bool, "true or false"),
    "i": (int, "a whole number"),
    "s": (str, "a string"),
    "f": (float, "a number"),
}


def load_tensorflow_plan(
    path: str | os.PathLike[str],
    /,
    *,
    environ: Mapping[str, str],
    strict: bool = False,
    **overrides: Any,
) -> DumpPlan:
    """The plan of a file. If neither flag is on, it enables nothing (`plan.enables_nothing`, and a warning).

    A relative `dump_path` is below the current directory, as in a program's own configuration. `overrides` are keys of the file
    (`dump_step="0-2"`) or fields of DumpPlan; they replace values of the file, and None is ignored. An override `path` may be any
    directory, and is created. With `strict`, an unknown key is an error.

    Raises TensorflowConfigError, ConfigError for an invalid override, and DumpPathError.
    """
    where = os.fspath(path)
    text = _file_content(where)
    config, warnings = read_json(text, where, whole=True)
    if not isinstance(config, Mapping):
        raise TensorflowConfigError(
            f'{where}: found {kind_of(config)}, expected an object such as {{"enable_dump": true, "dump_path": "/tmp/dump"}}'
        )
    keys, plan_fields, override = sorted_overrides(overrides, DUMP_KEYS, nearest_tensorflow_key)
    settings = {**config, **keys}
    if strict and (unknown := unknown_tensorflow_keys(settings, where)):
        raise TensorflowConfigError("; ".join(unknown).replace(" is ignored", " is an error under strict"))
    dump = training_dump_of(
        _values(settings, where),
        environ=environ,
        where=where,
        dump_path=override,
    )
    if override is not None:
        make_writable(override)
    plan = replace(_plan_of(dump, override or Path.cwd()), **plan_fields)
    if dump.plan is None and plan.enables_nothing:
        warnings.append(f'{where}: {NOTHING_ENABLED}; write "enable_dump": true, or "enable_dump_debug": true')
    return replace(plan, config_text=text.decode("utf-8-sig"), warnings=(*warnings, *dump.warnings))


def _plan_of(dump: TrainingDump, path: Path) -> DumpPlan:
    if dump.plan is not None:
        return dump.plan
    return DumpPlan(
        path=path,
        inputs=False,
        models=(),
        single_operators=False,
        single_operator_models=False,
        file_format="bin",
        stream_in_names=False,
        layout="acl",
        dialect="tensorflow",
    )


def _values(settings: Mapping[str, Any], where: str) -> dict[str, ParameterValue]:
    """The values of known keys, checked for the type that the adapter reads; unknown keys keep only their names."""
    values = {}
    for key, value in settings.items():
        if key not in DUMP_KEYS:
            values[key] = ParameterValue(None)
            continue
        kind, wanted = _EXPECTED[DUMP_KEYS[key]]
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            raise TensorflowConfigError(f"{where}: {key}: found {kind_of(value)}, expected {wanted}")
        values[key] = ParameterValue.of(value)
    return values


def _file_content(where: str) -> bytes:
    try:
        if not os.path.isfile(where):  # a pipe would wait for a writer
            reason = "it is not a regular file" if os.path.exists(where) else "there is none"
            raise TensorflowConfigError(
                f"cannot read the config file {where!r}: {reason} (looked in {os.getcwd()}); "
                f"`opdump config new --dialect tensorflow` creates one"
            )
        with open(where, "rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise TensorflowConfigError(
            f"cannot read the config file {where!r}: {error.strerror or error}; name a file that can be read"
        ) from error
    if len(data) > LARGEST_FILE:
        raise TensorflowConfigError(f"{where}: found more than {LARGEST_FILE} bytes, expected a small JSON object")
    return data


# The dialect of npu_dump.json, and the starting file that `opdump config new --dialect tensorflow` writes.


def tensorflow_starting_file(directory: Path | None) -> str:
    """The text of an npu_dump.json that dumps inputs and outputs of every operator of the first step into `directory`, or `dump`."""
    config = {
        "enable_dump": True,
        "dump_path": str(directory or Path("dump").absolute()),
        "dump_step": "0",
        "dump_mode": "all",
        "dump_data": "tensor",
    }
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        article="an",
        file="npu_dump.json",
        path="dump_path",
        steps="dump_step",
        operators="dump_layer",
        list_key="dump_layer",
        marked="TensorFlow programs select by dump_layer",
    ),
    signs=("enable_dump", "enable_dump_debug", "dump_path"),
    load=lambda path, how, overrides: load_tensorflow_plan(path, environ=how.environ, strict=how.strict, **overrides),
    starting_file=tensorflow_starting_file,
    directory_must_exist=True,
    names_models=False,
    rank_of=device_of,
)


# The configuration of an estimator: the values of its `parameter_map`, and a RunConfig for installations that have none.
#
# Oddities of the adapter are reproduced (docs/tensorflow-config.md#npu_bridge). The list of graph optimizers that the adapter also
# sets is left out: in stock TensorFlow it would change the results.

# Text settings by the attributes of an NPURunConfig; each is written if it is not None.
_TEXTS: Final = {
    "quant_dumpable": "quant_dumpable",
    "fusion_switch_file": "_fusion_switch_file",
    "op_debug_config": "_op_debug_config",
    "debug_dir": "_debug_dir",
}


def parameters_of_run_config(config: Any) -> dict[str, ParameterValue]:
    """The values by key. An attribute that `config` lacks has its default.

    Without a `dump_config`, both flags are written as False, and no other dump key. With one, flags are written unchanged, and
    texts if they are not None; `dump_debug_mode` is written if `dump_mode` is not None.

    Raises TypeError for a value that is not a text, and for a `dump_debug_mode` of None together with a `dump_mode`.
    """
    values = {
        "use_off_line": ParameterValue.of(True),
        "enable_exception_dump": ParameterValue.of(getattr(config, "enable_exception_dump", 2)),
        "iterations_per_loop": ParameterValue.of(getattr(config, "iterations_per_loop", 1)),
        "mix_compile_mode": ParameterValue.of(getattr(config, "mix_compile_mode", False)),
        "enable_data_pre_proc": ParameterValue.of(getattr(config, "enable_data_pre_proc", True)),
    }
    device_id = getattr(config, "_session_device_id", None)
    if device_id is not None:
        values["session_device_id"] = ParameterValue.of(device_id)
    for key, attribute in _TEXTS.items():
        if (text := getattr(config, attribute, None)) is not None:
            values[key] = _bytes_of(key, text)
    return values | _of_dump_config(getattr(config, "_dump_config", None))


def _of_dump_config(dump: Any) -> dict[str, ParameterValue]:
    if dump is None:
        return {"enable_dump": ParameterValue.of(False), "enable_dump_debug": ParameterValue.of(False)}
    values = {
        "enable_dump": _flag(dump._enable_dump),
        "enable_dump_debug": _flag(dump._enable_dump_debug),
    }
    texts = {
        "dump_path": dump._dump_path,
        "dump_step": dump._dump_step,
        "dump_mode": dump._dump_mode,
        "dump_data": dump.dump_data,
        "dump_layer": dump.dump_layer,
    }
    values |= {key: _bytes_of(key, text) for key, text in texts.items() if text is not None}
    if dump._dump_mode is not None:  # the adapter tests the other mode here
        values["dump_debug_mode"] = _bytes_of("dump_debug_mode", dump._dump_debug_mode)
    return values


def _flag(value: object) -> ParameterValue:
    """A valid value of a protobuf boolean field."""
    if not isinstance(value, int):
        raise TypeError(f"DumpConfig: found {value!r} for a flag, expected True or False")
    return ParameterValue.of(bool(value))


def _bytes_of(key: str, text: object) -> ParameterValue:
    if not isinstance(text, str | bytes):
        raise TypeError(f"{key}: Expected binary or unicode string, got {text!r}")
    return ParameterValue.of(text)


# A RunConfig for installations where neither TensorFlow nor tensorflow-estimator has one: stores its settings, without clusters.
#
# Names and defaults are those of `tf.estimator.RunConfig`.

_DEFAULTS: Final[Mapping[str, Any]] = {
    "model_dir": None,
    "tf_random_seed": None,
    "save_summary_steps": 100,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": None,
    "session_config": None,
    "keep_checkpoint_max": 5,
    "keep_checkpoint_every_n_hours": 10000,
    "log_step_count_steps": 100,
    "train_distribute": None,
    "device_fn": None,
    "protocol": None,
    "eval_distribute": None,
    "experimental_distribute": None,
    "experimental_max_worker_delay_secs": None,
    "session_creation_timeout_secs": 7200,
    "checkpoint_save_graph_def": True,
}
# The values of a program that runs without a cluster.
_ALONE: Final[Mapping[str, Any]] = {
    "cluster_spec": None,
    "evaluation_master": "",
    "global_id_in_cluster": 0,
    "is_chief": True,
    "master": "",
    "num_ps_replicas": 0,
    "num_worker_replicas": 1,
    "service": None,
    "task_id": 0,
    "task_type": "worker",
}


class PlainRunConfig:
    """Settings of a run, each a read-only property.

    Without `save_checkpoints_steps` and `save_checkpoints_secs`, a checkpoint is due every 600 seconds.
    """

    def __init__(self, model_dir: Any = None, **settings: Any) -> None:
        _check(settings)
        settings["model_dir"] = model_dir
        if settings.get("save_checkpoints_steps") is None and settings.get("save_checkpoints_secs") is None:
            settings["save_checkpoints_secs"] = 600
        for name, default in _DEFAULTS.items():
            self.__dict__[f"_{name}"] = settings.get(name, default)

    def __getattr__(self, name: str) -> Any:
        if name in _ALONE:
            return _ALONE[name]
        if name in _DEFAULTS and f"_{name}" in self.__dict__:
            return self.__dict__[f"_{name}"]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _DEFAULTS or name in _ALONE:
            raise AttributeError(f"{name} cannot be assigned; make another one: config.replace({name}=...)")
        super().__setattr__(name, value)

    def replace(self, **settings: Any) -> PlainRunConfig:
        """A copy with other settings."""
        _check(settings)
        made = copy.copy(self)
        for name, value in settings.items():
            made.__dict__[f"_{name}"] = value
        return made


def _check(settings: Mapping[str, Any]) -> None:
    if unknown := [name for name in settings if name not in _DEFAULTS]:
        raise TypeError(f"RunConfig: found {', '.join(unknown)}, expected some of {', '.join(_DEFAULTS)}")
    if settings.get("save_checkpoints_steps") is not None and settings.get("save_checkpoints_secs") is not None:
        raise ValueError("found save_checkpoints_steps and save_checkpoints_secs, expected one of the two; remove one")
