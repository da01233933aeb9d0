"""npu_dump.json: the keys of a `parameter_map` in a file, for programs whose script should not be changed.

    {"enable_dump": true, "dump_path": "/tmp/dump", "dump_step": "0|5-10", "dump_mode": "all"}

The TensorFlow adapter has no such file; keys and values are those of its `parameter_map`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from opdump.configs.acl.file import LARGEST_FILE
from opdump.configs.shared.directories import make_writable
from opdump.configs.shared.json_text import kind_of, read_json
from opdump.configs.tensorflow.error import TensorflowConfigError
from opdump.configs.tensorflow.keys import (
    DUMP_KEYS,
    Kind,
    ParameterValue,
    nearest_tensorflow_key,
    unknown_tensorflow_keys,
)
from opdump.configs.tensorflow.plan import TrainingDump, training_dump_of
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern, StepSet

NOTHING_ENABLED: Final = "valid, but enables nothing"

_EXPECTED: Final[Mapping[Kind, tuple[type, str]]] = {
    "b": (bool, "true or false"),
    "i": (int, "a whole number"),
    "s": (str, "a string"),
    "f": (float, "a number"),
}
# Fields that overrides must not replace, because they describe the origin of the plan.
_PLAN_FIELDS: Final = frozenset(
    item.name for item in fields(DumpPlan) if item.name not in ("path", "dialect", "config_text", "warnings")
)


def load_tensorflow_plan(
    path: str | os.PathLike[str],
    /,
    *,
    environ: Mapping[str, str],
    strict: bool = False,
    program_directory: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> DumpPlan:
    """The plan of a file. If neither flag is on, it enables nothing (`plan.enables_nothing`, and a warning).

    A relative `dump_path` is below `program_directory`, or below the current directory. `overrides` are keys of the file
    (`dump_step="0-2"`) or fields of DumpPlan; they replace values of the file, and None is ignored. An override `path` may be any
    directory, and is created. With `strict`, an unknown key is an error.

    Raises TensorflowConfigError, ConfigError for an invalid override, and DumpPathError.
    """
    where = os.fspath(path)
    text = _read(where)
    config, warnings = read_json(text, where, whole=True)
    if not isinstance(config, Mapping):
        raise TensorflowConfigError(
            f'{where}: found {kind_of(config)}, expected an object such as {{"enable_dump": true, "dump_path": "/tmp/dump"}}'
        )
    keys, plan_fields, override = _sorted_overrides(overrides)
    settings = {**config, **keys}
    if strict and (unknown := unknown_tensorflow_keys(settings, where)):
        raise TensorflowConfigError("; ".join(unknown).replace(" is ignored", " is an error under strict"))
    dump = training_dump_of(
        _values(settings, where),
        environ=environ,
        directory=None if program_directory is None else Path(program_directory).absolute(),
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


def _sorted_overrides(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Path | None]:
    """The overrides that are keys of the file, those that are fields of the plan, and the directory."""
    given = {key: value for key, value in overrides.items() if value is not None}
    directory = Path(given.pop("path")).expanduser().absolute() if "path" in given else None
    keys = {key: given.pop(key) for key in DUMP_KEYS if key in given}
    for key, value in given.items():
        if key not in _PLAN_FIELDS:
            near = nearest_tensorflow_key(key)
            known = ", ".join((*DUMP_KEYS, "path", *sorted(_PLAN_FIELDS)))
            raise ConfigError(
                f"unknown setting {key}={value!r}; " + (f"is {near} meant?" if near else f"known are {known}")
            )
    if isinstance(given.get("steps"), str):
        given["steps"] = StepSet.parse(given["steps"], "steps")
    if "kernels" in given:
        given["kernels"] = tuple(
            KernelPattern.parse(entry) if isinstance(entry, str) else entry for entry in given["kernels"]
        )
        given.setdefault("selection", "kernels" if given["kernels"] else "all")
    return keys, given, directory


def _read(where: str) -> bytes:
    try:
        if not os.path.isfile(where):  # a pipe would wait for a writer
            reason = "it is not a regular file" if os.path.exists(where) else "there is none"
            raise TensorflowConfigError(
                f"cannot read the config file {where!r}: {reason} (looked in {os.getcwd()}); "
                f"`opdump config new --dialect tensorflow` writes a first one"
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
