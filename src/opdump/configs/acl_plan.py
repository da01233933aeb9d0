"""Resolves acl.json, the dump configuration of offline models and single operators, to a DumpPlan.

    plan = load_acl_plan("acl.json", environ=os.environ)

Keys, defaults, order of the checks and codes are those of the dump system. If older documents and newer behaviour differ,
`dialect_version` decides: "seed" (the documents) or "current". docs/acl-json.md explains each key.
"""

from __future__ import annotations

import json
import os
import re
import warnings as python_warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from opdump.configs.acl_keys import (
    DUMP,
    EXCEPTION_SCENES,
    WATCHER,
    AclConfigError,
    Settled,
    check_constraints,
    check_types,
    check_values,
    dump_section,
    model_selections,
    nearest_acl_key,
    read_acl_file,
    unknown_acl_keys,
)
from opdump.configs.plan_fields import make_writable, sorted_overrides
from opdump.errors import ConfigError, DumpPathError
from opdump.plan import DumpPlan, ExceptionDetail, Mode, ModelSelection, StepSet
from opdump.plan.dialects import Dialect, DialectWords
from opdump.statistics import DEVICE_DEFAULT, dump_stats

DialectVersion = Literal["seed", "current"]
NOTHING_ENABLED: Final = "valid, but enables nothing"
SCENE_VARIABLE: Final = "ASCEND_DUMP_SCENE"
COLLECT_VARIABLE: Final = "NPU_COLLECT_PATH"

_ENVIRONMENT_SCENES: Final = tuple(name for name in EXCEPTION_SCENES if name != "lite_exception")
_WITHOUT_EFFECT: Final = {
    "exception": ("dump_list", "dump_op_switch", "dump_mode", "dump_level", "dump_step", "dump_data", "dump_stats"),
    "overflow": ("dump_list", "dump_mode", "dump_level", "dump_step", "dump_data", "dump_stats"),
    "watch": ("dump_level", "dump_data", "dump_stats"),
}
_BLACKLISTS: Final = ("optype_blacklist", "opname_blacklist")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The options for reading a config."""

    where: str
    environ: Mapping[str, str]
    strict: bool
    dialect_version: DialectVersion
    base: Path
    """The base of a relative path."""
    overrides: Mapping[str, Any]


def load_acl_plan(
    path: str | os.PathLike[str],
    /,
    *,
    environ: Mapping[str, str],
    strict: bool = False,
    dialect_version: DialectVersion = "seed",
    program_directory: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> DumpPlan:
    """Read and fully check an acl.json, and return its plan.

    A relative `dump_path` is below `program_directory`, or below the current directory if that is None. `overrides` are keys of
    the section `dump` (`dump_data="stats"`, `dump_step="0-2"`) or fields of DumpPlan (`inputs=False`); they replace values of the
    file, and None is ignored. An override `path` may be any directory, and is created. With `strict`, an unknown key is an error.

    `plan.enables_nothing` is true for a valid file that selects nothing; a warning reports this, too.

    Raises AclConfigError with the dump system's codes, ConfigError for an invalid override, and DumpPathError.
    """
    data = read_acl_file(path)
    return plan_from_acl_text(
        data,
        where=os.fspath(path),
        environ=environ,
        strict=strict,
        dialect_version=dialect_version,
        program_directory=program_directory,
        **overrides,
    )


def plan_from_acl_text(
    text: str | bytes,
    /,
    *,
    environ: Mapping[str, str],
    where: str = "acl.json",
    strict: bool = False,
    dialect_version: DialectVersion = "seed",
    program_directory: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> DumpPlan:
    """The plan of the text of an acl.json; its messages begin with `where`. Otherwise like `load_acl_plan`."""
    if dialect_version not in get_args(DialectVersion):
        raise ConfigError(f'dialect_version is {dialect_version!r}, expected "seed" or "current"')
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    dump, config, warnings = dump_section(data, where)
    reading = _Reading(
        where=where,
        environ=environ,
        strict=strict,
        dialect_version=dialect_version,
        base=Path(program_directory or ".").absolute(),
        overrides={key: value for key, value in overrides.items() if value is not None},
    )
    keys, plan_fields, directory = sorted_overrides(reading.overrides, DUMP.keys, nearest_acl_key)
    settings = {**dump, **{key: _as_json_value(value) for key, value in keys.items()}}
    plan = _resolve(settings, reading, directory, warnings) if settings else plan_of_nothing(directory or reading.base)
    plan = replace(plan, **plan_fields)
    unknown = unknown_acl_keys(config if isinstance(config, Mapping) else {}, settings, where)
    if strict and unknown:
        raise AclConfigError("; ".join(unknown).replace(" is ignored", " is an error under strict"))
    if plan.enables_nothing:
        warnings.append(f"{where}: {NOTHING_ENABLED}: {_how_to_enable(plan)}")
    return replace(plan, config_text=data.decode("utf-8-sig"), warnings=(*warnings, *unknown))


def plan_from_acl_keywords(
    *, environ: Mapping[str, str], strict: bool, program_directory: str | os.PathLike[str] | None, **keys: Any
) -> DumpPlan:
    """The plan of an acl.json whose section `dump` has these keys. Otherwise like `load_acl_plan`."""
    return plan_from_acl_text(
        '{"dump": {}}',
        environ=environ,
        where="the keyword arguments",
        strict=strict,
        program_directory=program_directory,
        **keys,
    )


def plan_from_environment(environ: Mapping[str, str]) -> DumpPlan | None:
    """The dump of failing operators that environment variables request without a file; None if they request none.

    ASCEND_DUMP_SCENE names the scene, and ASCEND_DUMP_PATH, ASCEND_WORK_PATH or the current directory is the destination. Without
    a scene, NPU_COLLECT_PATH selects `aic_err_norm_dump` into that directory. The directory is created.

    An unknown scene causes a Python warning. Raises DumpPathError if no directory is writable.
    """
    scene = environ.get(SCENE_VARIABLE, "")
    warnings: list[str] = []
    if scene in _ENVIRONMENT_SCENES:
        detail = EXCEPTION_SCENES[scene]
        variables: tuple[str, ...] = EXCEPTION_VARIABLES
    else:
        if scene:
            python_warnings.warn(
                f"{SCENE_VARIABLE} is {scene!r} and is ignored, expected one of {', '.join(_ENVIRONMENT_SCENES)}",
                stacklevel=2,
            )
        if not environ.get(COLLECT_VARIABLE):
            return None
        detail, variables = EXCEPTION_SCENES["aic_err_norm_dump"], (COLLECT_VARIABLE,)
    path = exception_directory(None, environ, Path.cwd(), warnings, variables)
    return replace(_exception_plan(path, detail), warnings=tuple(warnings))


def _as_json_value(value: Any) -> Any:
    if isinstance(value, StepSet):
        return "" if value == StepSet.all() else str(value)
    if isinstance(value, Mapping):
        return {key: _as_json_value(item) for key, item in value.items()}
    return [_as_json_value(item) for item in value] if isinstance(value, list | tuple) else value


def _resolve(dump: Mapping[str, Any], reading: _Reading, directory: Path | None, warnings: list[str]) -> DumpPlan:
    """The plan of a section `dump` that is not empty. Checks types, then closed lists, then rules."""
    where = reading.where
    check_types(dump, where)
    check_values(dump, where)

    def dump_path() -> Path:
        if directory is not None:
            return directory
        return resolve_dump_path(
            dump.get("dump_path"),
            where,
            reading.environ,
            reading.base,
            expand_home=reading.dialect_version == "seed",
        )

    settled = check_constraints(dump, where, dump_path, of_documents=reading.dialect_version == "seed")
    if directory is not None:
        make_writable(directory)
    warnings += [
        f"{where}: dump.{key} has no effect here: there is no device that prints or keeps a status"
        for key in ("dump_kernel_data", "dump_status")
        if key in dump
    ]
    scene = dump.get("dump_scene", "")
    if scene in EXCEPTION_SCENES:
        path = directory or exception_directory(dump.get("dump_path"), reading.environ, reading.base, warnings)
        plan = _exception_plan(path, EXCEPTION_SCENES[scene])
    else:
        plan = _data_plan(dump, settled, reading, warnings)
        _warn_of_variables(reading, warnings)
    unused = _keys_without_effect(dump, plan.mode)
    if unused:
        mode = f'dump_scene "{scene}"' if scene else 'dump_debug "on"'
        warnings.append(f"{where}: under {mode} these have no effect: {', '.join(f'dump.{key}' for key in unused)}")
    return plan


def _keys_without_effect(dump: Mapping[str, Any], mode: Mode) -> list[str]:
    unused = [key for key in _WITHOUT_EFFECT.get(mode.name, ()) if key in dump and _has_no_effect(dump, key)]
    if mode.watches:
        entries = dump.get("dump_list", ())
        unused += [f"dump_list[].{key}" for key in _BLACKLISTS if any(entry.get(key) for entry in entries)]
    return unused


def _has_no_effect(dump: Mapping[str, Any], key: str) -> bool:
    """Whether a key without effect deserves a warning: an empty list and a default value do not."""
    return bool(dump[key]) and (key, dump[key]) not in (
        ("dump_mode", "output"),
        ("dump_data", "tensor"),
        ("dump_level", "all"),
        ("dump_op_switch", "off"),
    )


def _exception_plan(path: Path, detail: ExceptionDetail) -> DumpPlan:
    return DumpPlan(
        path=path,
        captures="exception",
        exception_detail=detail,
        inputs=True,
        outputs=False,
        statistic_category=DEVICE_DEFAULT,
        dump_level="all",
        file_format="bin",
        layout="acl",
        dialect="acl",
    )


def _data_plan(dump: Mapping[str, Any], settled: Settled, reading: _Reading, warnings: list[str]) -> DumpPlan:
    assert settled.path is not None
    mode = dump.get("dump_mode", "output")
    plan = DumpPlan(
        path=settled.path,
        steps=settled.steps,
        saved_data="statistic" if dump.get("dump_data") == "stats" else "tensor",
        inputs=mode != "output",
        outputs=mode != "input",
        statistic_category=_statistics(dump),
        dump_level=dump.get("dump_level", "all"),
        file_format="bin",
        layout="acl",
        dialect="acl",
    )
    if dump.get("dump_debug") == "on":  # every operator that overflows, completely
        return replace(plan, captures="overflow", saved_data="tensor", inputs=True, outputs=True)
    models = model_selections(dump.get("dump_list", ()), reading.where, warnings)
    if dump.get("dump_scene") == WATCHER:
        return replace(plan, captures="watch", saved_data="tensor", models=models)
    switched_on = dump.get("dump_op_switch") == "on"
    if reading.dialect_version == "seed" and not switched_on and dump.get("dump_list") == []:
        models = (
            ModelSelection(),
        )  # the sample in the documents for single-operator calls: everything that runs is dumped
    return replace(
        plan,
        models=models,
        single_operators=switched_on or any(entry.model_name is None for entry in models),
        single_operator_models=switched_on,
    )


def plan_of_nothing(path: Path) -> DumpPlan:
    """The plan of a file without a section `dump`, or with an empty one, and of a program without a file."""
    return DumpPlan(
        path=path,
        models=(),
        single_operators=False,
        single_operator_models=False,
        inputs=False,
        statistic_category=DEVICE_DEFAULT,
        dump_level="all",
        file_format="bin",
        layout="acl",
        dialect="acl",
    )


def _statistics(dump: Mapping[str, Any]) -> tuple[str, ...]:
    """The statistics in the order of the columns, regardless of their order in the file."""
    if "dump_stats" not in dump:
        return DEVICE_DEFAULT
    names = dump["dump_stats"]
    return tuple(meant for name, meant in dump_stats(names).items() if name in names)


def _how_to_enable(plan: DumpPlan) -> str:
    if plan.mode.watches:
        return 'no watcher_nodes are named; write "dump_list": [{"layer": ["A"], "watcher_nodes": ["C"]}]'
    return 'it selects no model and no operator; write "dump_list": [{}] for all, or "dump_op_switch": "on"'


def _warn_of_variables(reading: _Reading, warnings: list[str]) -> None:
    warnings += [
        f"{reading.where}: {name} is set and has no effect: it requests a dump of failing operators, but the file requests another kind of dump"
        for name in (SCENE_VARIABLE, COLLECT_VARIABLE)
        if reading.environ.get(name)
    ]


# The directory of a dump under acl.json: `dump_path`, and the variables for dumps of failing operators.
#
# A relative path is below the directory of the program (docs/acl-json.md#dump_path).

EXCEPTION_VARIABLES: Final = ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH")
LONGEST_PATH: Final = 512

_HOME = re.compile(r"(?:~|\$HOME|\$\{HOME\})(?=/|$)")
_ADDRESS = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3}):")
_ALPHABET = re.compile(r"[A-Za-z0-9\-=\[\];\\,./!@#$%^&*()_+{}:?]*")


def resolve_dump_path(
    text: str | None, where: str, environ: Mapping[str, str], base: Path, *, expand_home: bool = True
) -> Path:
    """The directory that `dump_path` names.

    `$HOME`, `${HOME}` and `~` at its start are replaced by the home directory in `environ`. A relative path is below `base`.
    `1.2.3.4:rest` is `rest` below `base`, even if it starts with a slash, and need not exist; any other path must exist.

    Raises AclConfigError: EP0001 for a missing or empty path; EP0003 for more than 512 bytes, for a character that is not
    allowed, and for a path that is not a readable and writable directory.
    """
    if not text:
        found = "it is missing" if text is None else 'found "" (a string)'
        raise AclConfigError(
            f'{where}: dump.dump_path: {found}, expected a directory that exists; write "dump_path": "/tmp/dump"',
            "EP0001",
        )
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > LONGEST_PATH:
        raise _bad(text, where, f"at most {LONGEST_PATH} bytes, but it has {size}; choose a shorter one")
    if (rest := _behind_address(text)) is not None:
        if not rest:
            raise _bad(text, where, "a path after the address; write for example 127.0.0.1:/dump")
        _check_alphabet(rest, text, where)
        return base / rest.lstrip("/")
    expanded = _expand_home(text, environ) if expand_home else text
    if expanded is None:
        raise _bad(text, where, "a home directory, but HOME is not set; write an absolute path")
    _check_alphabet(expanded, text, where)
    path = base / expanded
    _check_directory(path, text, where)
    return path


def exception_directory(
    dump_path: str | None,
    environ: Mapping[str, str],
    base: Path,
    warnings: list[str],
    variables: Iterable[str] = EXCEPTION_VARIABLES,
) -> Path:
    """The first of `variables`, then `dump_path`, then the current directory, that is writable; it is created.

    Adds unusable ones to `warnings`. Raises DumpPathError if none is writable.
    """
    candidates = [(name, Path(environ[name]).absolute()) for name in variables if environ.get(name)]
    if dump_path:
        rest = _behind_address(dump_path)
        text = rest.lstrip("/") if rest else _expand_home(dump_path, environ) or dump_path
        candidates.append(("dump_path", base / text))
    for name, path in candidates:
        if _can_write(name, path, warnings):
            return path
    here = Path.cwd()
    make_writable(here)
    return here


def _can_write(name: str, path: Path, warnings: list[str]) -> bool:
    try:
        make_writable(path)
    except (DumpPathError, ValueError) as error:  # ValueError: a path that contains NUL
        warnings.append(
            f"{name}: {str(path)!r} cannot be used ({error.__cause__ or error}); the next candidate is used"
        )
        return False
    return True


def check_alphabet(text: str) -> str | None:
    """The first character that is not allowed in a dump path; None if there is none."""
    return next((char for char in text if not _ALPHABET.fullmatch(char)), None)


def _behind_address(text: str) -> str | None:
    """The part after `1.2.3.4:`; None for a path without an address."""
    found = _ADDRESS.match(text)
    if found is None or any(int(number) > 255 for number in found.groups()):
        return None
    return text[found.end() :]


def _expand_home(text: str, environ: Mapping[str, str]) -> str | None:
    """The path with its home directory; None if it names one but there is none."""
    found = _HOME.match(text)
    if found is None:
        return text
    home = environ.get("HOME", "")
    return home + text[found.end() :] if home else None


def _check_alphabet(path: str, text: str, where: str) -> None:
    if wrong := check_alphabet(path):
        allowed = "only ASCII letters, digits and -=[];\\,./!@#$%^&*()_+{}:?"
        raise _bad(text, where, f"{allowed}, but it contains {wrong!r}; choose one such as /tmp/dump")


def _check_directory(path: Path, text: str, where: str) -> None:
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        advice = f"create it: mkdir -p '{_shortened(str(path))}'"
        if "$" in str(path):
            advice = '"$" is not expanded here (only $HOME at the start is replaced, and not by newer versions): write the path out'
        raise _bad(text, where, f"a directory that exists ({error.strerror}); {advice}", path) from error
    if not os.path.isdir(real):
        raise _bad(text, where, "a directory, but it is not one; name a directory, or remove what is there", path)
    if not os.access(real, os.R_OK | os.W_OK):
        raise _bad(text, where, f"a directory that can be read and written; chmod u+rw '{path}', or name another", path)


def _bad(text: str, where: str, expected: str, path: Path | None = None) -> AclConfigError:
    behind = "" if path is None or str(path) == text else f" (that is {_shortened(str(path))})"
    return AclConfigError(f"{where}: dump.dump_path: found {_shortened(text)!r}{behind}, expected {expected}", "EP0003")


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


# The dialect of acl.json, and the starting file that `opdump config new --dialect acl` writes.


def acl_starting_file(directory: Path | None) -> str:
    """The text of an acl.json that dumps inputs and outputs of every model and every operator into `directory`, or `dump`.

    Raises ConfigError for a directory name that the dump system does not accept.
    """
    directory = directory or Path("dump").absolute()
    if wrong := check_alphabet(str(directory)):
        raise ConfigError(
            f"found the dump path {str(directory)!r} with {wrong!r}; a dump path may contain only ASCII letters, digits and "
            f"-=[];\\,./!@#$%^&*()_+{{}}:?; choose one with --path, such as /tmp/dump"
        )
    config = {
        "dump": {
            "dump_path": str(directory),
            "dump_list": [{}],
            "dump_mode": "all",
            "dump_level": "all",
            "dump_op_switch": "on",
            "dump_data": "tensor",
            "dump_step": "0",
        }
    }
    return json.dumps(config, indent=2) + "\n"


DIALECT = Dialect(
    words=DialectWords(
        article="an",
        file="acl.json",
        path="dump_path",
        steps="dump_step",
        operators="dump_list",
        list_key="dump_list.{}",
        marked='an acl.json selects by dump_list; marks need a data_dump.json with "dump_mode": 2',
    ),
    signs=("dump",),
    load=lambda path, how, overrides: load_acl_plan(
        path,
        environ=how.environ,
        strict=how.strict,
        dialect_version=how.dialect_version,
        program_directory=how.program_directory,
        **overrides,
    ),
    starting_file=acl_starting_file,
    directory_must_exist=True,
    files_api_calls=True,
)
