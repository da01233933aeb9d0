"""Reads the file acl.json, and rejects unsuitable files before their content is checked.

The order is: a regular file, its size, the depth of its brackets, JSON.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any, Final

from opdump.configs.acl.error import INVALID_FILE, PARSE_FILE, AclConfigError
from opdump.configs.shared.json_text import kind_of, read_json
from opdump.errors import ConfigError

LARGEST_FILE: Final = 10 * 1024 * 1024
DEEPEST: Final = 10

_BRACKETS: Final = ((ord("{"), ord("}")), (ord("["), ord("]")))


def read_acl_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a config file of any name.

    Raises AclConfigError (100003) if it is not a regular file, cannot be read, or has more than 10 MiB.
    """
    text = os.fspath(path)
    try:
        found = os.stat(text)  # a FIFO must not be opened, because that would wait for a writer
        if not stat.S_ISREG(found.st_mode):
            raise AclConfigError(
                f"{text!r} is a {_kind_of_file(found.st_mode)}, expected a regular file; name an acl.json",
                error_code=INVALID_FILE,
            )
        _check_size(found.st_size, text)
        with open(text, "rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AclConfigError(
            f"cannot read the config file {text!r}: {reason} (looked in {os.getcwd()}); "
            f"`opdump config new --dialect acl` writes a first one",
            error_code=INVALID_FILE,
        ) from error
    _check_size(len(data), text)
    return data


def dump_section(data: bytes, where: str) -> tuple[Mapping[str, Any], Any, list[str]]:
    """The value of the key `dump`, the whole value of the file, and warnings.

    An empty file, a missing key `dump` and an empty object are valid, and return an empty mapping.

    Raises AclConfigError: 100003 for more than 10 MiB, 100006 for brackets nested deeper than 10, EP0004 for invalid JSON, EP0001
    for a `dump` that is not an object.
    """
    _check_size(len(data), where)
    if not data:
        return {}, {}, [f"{where}: the file is empty"]
    _check_depth(data, where)
    try:
        config, warnings = read_json(data, where, whole=True)
    except ConfigError as error:
        raise AclConfigError(str(error), "EP0004") from error
    if not isinstance(config, Mapping):
        warnings.append(f'{where}: found {kind_of(config)}, expected an object with the key "dump"')
        return {}, {}, warnings
    if "dump" not in config:
        return {}, config, [*warnings, f'{where}: there is no key "dump"']
    dump = config["dump"]
    if not isinstance(dump, Mapping):
        raise AclConfigError(
            f'{where}: dump: found {kind_of(dump)}, expected an object such as {{"dump_path": "/tmp/dump"}}', "EP0001"
        )
    return dump, config, warnings


def _check_size(size: int, where: str) -> None:
    if size > LARGEST_FILE:
        raise AclConfigError(
            f"{where}: found {size} bytes or more, expected {LARGEST_FILE} at most (10 MiB); name an acl.json",
            error_code=INVALID_FILE,
        )


def _check_depth(data: bytes, where: str) -> None:
    """Check the depth of brackets in the raw text, including those inside strings."""
    for opening, closing in _BRACKETS:
        if data.count(opening) <= DEEPEST:
            continue
        depth = 0
        for byte in data:
            if byte == opening:
                depth += 1
                if depth > DEEPEST:
                    raise AclConfigError(
                        f"{where}: '{chr(opening)}' is nested deeper than {DEEPEST} (those inside of strings count too); "
                        f"a dump configuration needs four levels",
                        error_code=PARSE_FILE,
                    )
            elif byte == closing:
                depth -= 1


def _kind_of_file(mode: int) -> str:
    return "directory" if stat.S_ISDIR(mode) else "device, pipe or socket"
