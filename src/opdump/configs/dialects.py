"""Detects the dialect of a config file, and loads its plan."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from opdump.configs.acl.file import LARGEST_FILE
from opdump.configs.acl.plan import DialectVersion
from opdump.configs.mindspore import plan as mindspore
from opdump.configs.shared.json_text import read_json
from opdump.errors import ConfigError
from opdump.plan import DumpPlan
from opdump.plan.dialects import DIALECTS, Dialect, HowToRead


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

    `path` None means the file that MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names. `dialect_version` applies to acl.json,
    `program_directory` to acl.json and npu_dump.json (see `load_acl_plan`); `overrides` are those of the loader of the dialect.

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
        raise ConfigError(f"no configuration: name {file}; `opdump config new --dialect {dialect}` writes a first one")
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
        raise _undecided(where, f"{several} are there together" if found else "none is there")
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
        f"{where}: {found}, expected one of {', '.join(signs[:-1])} and {signs[-1]}; add one, or say which it is with --dialect "
        f"{', '.join([*known][:-1])} or {[*known][-1]}"
    )
