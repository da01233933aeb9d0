"""Resolves data_dump.json, MindSpore's configuration of the synchronous and the asynchronous dump, to a DumpPlan.

    plan = load_plan("data_dump.json", environ=os.environ)

Keys, defaults, order of the checks and coercions are those of MindSpore 2.10; docs/config.md explains each key and
docs/compatibility.md lists where opdump differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from itertools import chain
from pathlib import Path
from typing import Any

from opdump.configs.mindspore.settings import is_dump_path, resolve
from opdump.configs.shared.directories import make_writable
from opdump.configs.shared.json_text import (
    COMMON,
    E2E,
    KEYS,
    nearest_key,
    obsolete_sections,
    read_json,
    section_of,
    unknown_keys,
)
from opdump.configs.shared.plan_fields import field_value, unknown_setting
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, KernelPattern, StepSet
from opdump.plan.dialects import Dialect, DialectWords
from opdump.plan.field_types import shown

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
