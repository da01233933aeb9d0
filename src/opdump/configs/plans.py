"""Resolves the arguments of a caller to a plan: a plan, a config file, keyword arguments, or the environment.

    resolve_plan("data_dump.json", {"saved_data": "full"})
    resolve_plan(None, {"path": "/tmp/dump", "kernels": ["conv"]})

Every kind of capture calls this module; the content of a config is up to its dialect.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opdump.configs.acl.path import exception_directory
from opdump.configs.acl.plan import plan_from_acl_keywords, plan_from_environment
from opdump.configs.dialects import load_plan
from opdump.configs.mindspore.plan import CONFIG_VARIABLE, plan_from_keywords
from opdump.configs.shared.directories import program_directory
from opdump.configs.shared.modes import plan_in_mode, plan_on_error
from opdump.configs.shared.plan_fields import ALWAYS_ON, always_on_values, with_always_on, with_fields
from opdump.plan import DumpPlan, Mode, OnError


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
