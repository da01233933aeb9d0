"""Resolves the arguments of a caller to a plan: a plan, a config file of any dialect, keyword arguments, or the environment.

    resolve_plan("data_dump.json", {"saved_data": "full"})
    resolve_plan(None, {"path": "/tmp/dump", "kernels": ["conv"]})

Every kind of capture calls this module; the content of a config is up to its dialect.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from opdump.configs import mindspore
from opdump.configs.acl_keys import LARGEST_FILE
from opdump.configs.acl_plan import DialectVersion, exception_directory, plan_from_acl_keywords, plan_from_environment
from opdump.configs.json_text import read_json
from opdump.configs.mindspore import CONFIG_VARIABLE, plan_from_keywords
from opdump.configs.plan_fields import (
    ALWAYS_ON,
    always_on_values,
    plan_in_mode,
    plan_on_error,
    program_directory,
    with_always_on,
    with_fields,
)
from opdump.errors import ConfigError
from opdump.plan import DumpPlan, Mode, OnError
from opdump.plan.dialects import DIALECTS, Dialect, HowToRead

# Detects the dialect of a file, and loads its plan.


def load_plan(
    path: str | os.PathLike[str] | None,
    /,
    *,
    environ: Mapping[str, str],
    dialect: str | None = None,
    strict: bool = False,
    dialect_version: DialectVersion = "seed",
    program_directory: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> DumpPlan:
    """The plan of a config file of any dialect; without `dialect` it is detected from the content.

    `path` None means the file that MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names. `dialect_version` and `program_directory`
    apply to acl.json (see `load_acl_plan`); `overrides` are those of the loader of the dialect.

    Raises ConfigError for a file of no dialect or of two, and the errors of the dialect's loader.
    """
    if dialect is not None and dialect not in DIALECTS:
        raise ConfigError(f"dialect is {dialect!r}, expected one of {', '.join(map(repr, DIALECTS.names()))}")
    if path is None:
        named = any(environ.get(variable) for variable in (mindspore.CONFIG_VARIABLE, mindspore.ACL_VARIABLE))
        path = mindspore.named_file(environ) if named else None
    if dialect is None:
        dialect = "mindspore" if path is None else dialect_of(path)
    chosen = DIALECTS.load(dialect)
    if path is None and dialect != "mindspore":
        file = f"{chosen.words.article} {chosen.words.file}"
        raise ConfigError(f"no configuration: name {file}; `opdump config new --dialect {dialect}` creates one")
    how = HowToRead(
        environ=environ, strict=strict, program_directory=program_directory, dialect_version=dialect_version
    )
    plan: DumpPlan = chosen.load(path, how, overrides)
    return plan


def dialect_of(path: str | os.PathLike[str]) -> str:
    """The dialect of a file, by its top-level keys (`Dialect.signs`).

    A file that cannot be read, or is invalid JSON, is passed to the loader of the dialect whose keys appear in it, which reports
    the error; to the one of data_dump.json if none appear. Dialects of installed packages are only tried for files without keys
    of opdump's own dialects.

    Raises ConfigError for JSON with keys of several dialects or of none.
    """
    where = os.fspath(path)
    data = _start_of(where)
    if data is None:
        return "mindspore"
    try:
        config, _ = read_json(data, where)
    except ConfigError:
        if not data:
            raise _undecided(where, "the file is empty") from None
        return _named_in(data)
    keys = set(config) if isinstance(config, Mapping) else set()
    found = _with_signs(keys, {name: DIALECTS.load(name) for name in DIALECTS.own}) or _with_signs(
        keys, DIALECTS.loaded()
    )
    if len(found) != 1:
        several = " and ".join(f'"{sign}"' for sign in found.values())
        raise _undecided(where, f"found {several} together" if found else "found no key of a known dialect")
    return next(iter(found))


def _with_signs(keys: Collection[str], dialects: Mapping[str, Dialect]) -> dict[str, str]:
    """The dialects with a key in the file, and that key."""
    found = {name: sorted(set(each.signs).intersection(keys)) for name, each in dialects.items()}
    return {name: signs[0] for name, signs in found.items() if signs}


def _named_in(data: bytes) -> str:
    """The dialect whose key appears first in invalid JSON; data_dump.json if there is none."""
    places = {
        name: min((place for sign in each.signs if (place := data.find(f'"{sign}"'.encode())) >= 0), default=-1)
        for name, each in DIALECTS.loaded().items()
    }
    found = {name: place for name, place in places.items() if place >= 0}
    return min(found, key=found.__getitem__, default="mindspore")


def _start_of(path: str) -> bytes | None:
    """The bytes of a file, up to the maximum size of a config; None if it is not a readable file."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as stream:
            return stream.read(LARGEST_FILE + 1)
    except OSError:  # the loader reports the reason
        return None


def _undecided(where: str, found: str) -> ConfigError:
    known = DIALECTS.loaded()
    signs = [f'"{each.signs[0]}" ({each.words.article} {each.words.file})' for each in known.values()]
    return ConfigError(
        f"{where}: {found}, expected one of {', '.join(signs[:-1])} and {signs[-1]}; add one, or select the dialect with --dialect "
        f"{', '.join([*known][:-1])} or {[*known][-1]}"
    )


# The plan of a caller.


def resolve_plan(
    config: str | os.PathLike[str] | DumpPlan | None,
    settings: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    dialect: str | None = None,
    strict: bool = False,
    beside: str | os.PathLike[str] | None = None,
) -> DumpPlan:
    """The plan of a config of any dialect, with its values replaced by `settings`, the keyword arguments of a caller.

    Without a config, the plan consists of the settings: keys of acl.json if `dialect` is "acl", otherwise those of
    data_dump.json. Without settings, MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names the file. `environ` None means the
    environment of this process. A relative path in an acl.json or npu_dump.json is below the directory `beside`, or below the one
    of the running script.

    Raises ConfigError for invalid settings, and DumpPathError if the directory cannot be written.
    """
    settings = settings or {}
    always_on = always_on_values(settings)
    plan = _resolved(
        config,
        {key: value for key, value in settings.items() if key not in ALWAYS_ON},
        environ=environ,
        dialect=dialect,
        strict=strict,
        beside=beside,
    )
    return with_always_on(plan, always_on)


def _resolved(
    config: str | os.PathLike[str] | DumpPlan | None,
    settings: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None,
    dialect: str | None,
    strict: bool,
    beside: str | os.PathLike[str] | None,
) -> DumpPlan:
    overrides = settings if dialect is None else {**settings, "dialect": dialect}
    if isinstance(config, DumpPlan):
        return with_fields(config, overrides)
    environ = os.environ if environ is None else environ
    directory = program_directory() if beside is None else beside
    if config is not None or not settings:
        return load_plan(config, environ=environ, strict=strict, program_directory=directory, **overrides)
    if dialect == "acl":
        return plan_from_acl_keywords(environ=environ, strict=strict, program_directory=directory, **settings)
    return plan_from_keywords(environ=environ, strict=strict, **settings)


def plan_of_capture(
    config: str | os.PathLike[str] | DumpPlan | None,
    settings: Mapping[str, Any],
    *,
    mode: Mode,
    nodes: Sequence[str],
    on_error: OnError | None,
    strict: bool,
) -> DumpPlan:
    """The plan of a capture from Python, in the mode that its arguments select; `nodes` are the names of watched operators.

    Without a config and keyword arguments, ASCEND_DUMP_SCENE may select only failures. A dump of failures without a path goes to
    ASCEND_WORK_PATH, or into the current directory.
    """
    settings = dict(settings)
    as_device = config is None and "layout" not in settings
    if mode.failures_only and config is None and "path" not in settings:
        settings["path"] = exception_directory(None, os.environ, Path.cwd(), [])
    if config is None and not settings and not os.environ.get(CONFIG_VARIABLE):
        config = plan_from_environment(os.environ)
    plan = resolve_plan(config, settings, strict=strict)
    return plan_on_error(plan_in_mode(plan, mode, as_device=as_device, nodes=nodes), on_error, strict=strict)
