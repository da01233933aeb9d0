"""Which dialect a config file is written in, and its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, get_args

from opdump.configs.acl.file import LARGEST_FILE
from opdump.configs.acl.plan import DialectVersion, load_acl_plan
from opdump.configs.mindspore import plan as mindspore
from opdump.configs.shared.json_text import read_json
from opdump.configs.shared.known_keys import COMMON, E2E
from opdump.configs.tensorflow.file import SIGNS, load_tensorflow_plan
from opdump.errors import ConfigError
from opdump.plan import Dialect, DumpPlan

_ACL: Final = "dump"


def load_plan(
    path: str | os.PathLike[str] | None,
    /,
    *,
    environ: Mapping[str, str],
    dialect: Dialect | None = None,
    strict: bool = False,
    dialect_version: DialectVersion = "seed",
    program_directory: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> DumpPlan:
    """The plan of a config file of any dialect; without `dialect` the file's content tells which.

    `path` None means the file that MINDSPORE_DUMP_CONFIG or MS_ACL_DUMP_CFG_PATH names. `dialect_version` is for acl.json, `program_directory`
    for acl.json and npu_dump.json (see `load_acl_plan`); `overrides` are those of the dialect's own loader.

    Raises ConfigError, its own for a file of no or of two dialects, and what the dialect's loader raises.
    """
    if dialect is not None and dialect not in get_args(Dialect):
        raise ConfigError(f"dialect is {dialect!r}, expected one of {', '.join(map(repr, get_args(Dialect)))}")
    if path is None:
        named = any(environ.get(variable) for variable in (mindspore.CONFIG_VARIABLE, mindspore.ACL_VARIABLE))
        path = mindspore.named_file(environ) if named else None
    if dialect is None:
        dialect = "mindspore" if path is None else dialect_of(path)
    if dialect == "mindspore":
        return mindspore.load_plan(path, environ=environ, strict=strict, **overrides)
    if path is None:
        file = "an acl.json" if dialect == "acl" else "an npu_dump.json"
        raise ConfigError(f"no configuration: name {file}; `opdump config new --dialect {dialect}` writes a first one")
    if dialect == "tensorflow":
        return load_tensorflow_plan(
            path, environ=environ, strict=strict, program_directory=program_directory, **overrides
        )
    return load_acl_plan(
        path,
        environ=environ,
        strict=strict,
        dialect_version=dialect_version,
        program_directory=program_directory,
        **overrides,
    )


def dialect_of(path: str | os.PathLike[str]) -> Dialect:
    """The dialect that a file is written in, by its top-level keys: `dump`, a section of data_dump.json, or a key of npu_dump.json.

    A file that cannot be read, or is no JSON, is left to the loader whose words it holds, to say what is wrong; that of
    data_dump.json where it holds none.

    Raises ConfigError for JSON that holds the keys of several or of none.
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
    found: list[tuple[Dialect, str]] = []
    if _ACL in keys:
        found.append(("acl", _ACL))
    if sections := sorted(keys & {COMMON, E2E}):
        found.append(("mindspore", sections[0]))
    if signs := sorted(keys & SIGNS):
        found.append(("tensorflow", signs[0]))
    if len(found) != 1:
        several = " and ".join(f'"{key}"' for _, key in found)
        raise _undecided(where, f"{several} are there together" if found else "none is there")
    return found[0][0]


def _named_in(data: bytes) -> Dialect:
    """The dialect whose keys stand in what is no JSON; that of data_dump.json where there are none, or several."""
    if f'"{COMMON}"'.encode() in data:
        return "mindspore"
    if f'"{_ACL}"'.encode() in data:
        return "acl"
    return "tensorflow" if any(f'"{key}"'.encode() in data for key in SIGNS) else "mindspore"


def _start_of(path: str) -> bytes | None:
    """The bytes of a file, as far as a config may reach; None for what is no file that can be read."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as stream:
            return stream.read(LARGEST_FILE + 1)
    except OSError:  # the loader tells the reason
        return None


def _undecided(where: str, found: str) -> ConfigError:
    return ConfigError(
        f'{where}: {found}, expected one of "{_ACL}" (an acl.json), "{COMMON}" (a data_dump.json) and "enable_dump" '
        f"(an npu_dump.json); add one, or say which it is with --dialect acl, mindspore or tensorflow"
    )
