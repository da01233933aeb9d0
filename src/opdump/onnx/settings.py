"""The plan that a config file, a plan or keyword arguments ask for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from opdump.configs.plans import resolve_plan
from opdump.plan import DumpPlan

# Words that only a dump of an offline model knows; `dump_mode` is in both dialects.
_ACL_WORDS: Final = frozenset(
    {"dump_path", "dump_list", "dump_data", "dump_stats", "dump_step", "dump_scene", "dump_debug", "dump_op_switch"}
)


def plan_of(
    config: str | os.PathLike[str] | DumpPlan | None,
    *,
    dialect: str | None = None,
    strict: bool = False,
    beside: Path | None = None,
    **settings: Any,
) -> DumpPlan:
    """The plan of a config file of any dialect, with keyword arguments in place of its values.

    Without a config the keyword arguments are the plan: keys of acl.json where one of them is a word of that file alone
    (`dump_path="/tmp/dump"`) or `dialect` is "acl", else those of data_dump.json (`path="/tmp/dump"`). Without any of them
    MINDSPORE_DUMP_CONFIG names the file. A relative path of an acl.json lies in the directory `beside`; without it, in that of the
    running script.

    Raises ConfigError for what cannot be used, DumpPathError where the directory cannot be written.
    """
    if config is None and dialect is None and not _ACL_WORDS.isdisjoint(settings):
        dialect = "acl"
    return resolve_plan(config, settings, dialect=dialect, strict=strict, beside=beside)
