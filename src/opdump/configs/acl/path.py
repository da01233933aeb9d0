"""The directory of a dump under acl.json: `dump_path`, and the variables for dumps of failing operators.

A relative path is below the directory of the program (docs/acl-json.md#dump_path).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from opdump.configs.acl.error import AclConfigError
from opdump.configs.shared.directories import make_writable
from opdump.errors import DumpPathError

EXCEPTION_VARIABLES: Final = ("ASCEND_DUMP_PATH", "ASCEND_WORK_PATH")
LONGEST_PATH: Final = 512

_HOME = re.compile(r"(?:~|\$HOME|\$\{HOME\})(?=/|$)")
_ADDRESS = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3}):")
_ALPHABET = re.compile(r"[A-Za-z0-9\-=\[\];\\,./!@#$%^&*()_+{}:?]*")


def resolve_dump_path(
    text: str | None, where: str, environ: Mapping[str, str], base: Path, *, expand_home: bool = True
) -> Path:
    """The directory that `dump_path` names; None if the key is missing.

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
        raise _bad(text, where, f"{LONGEST_PATH} bytes at most, and it has {size}; choose a shorter one")
    if (rest := _behind_address(text)) is not None:
        if not rest:
            raise _bad(text, where, "a path after the address; write for example 127.0.0.1:/dump")
        _check_alphabet(rest, text, where)
        return base / rest.lstrip("/")
    expanded = _expand_home(text, environ) if expand_home else text
    if expanded is None:
        raise _bad(text, where, "a home directory, and HOME is not set; write an absolute path")
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
            f"{name}: {str(path)!r} cannot be used ({error.__cause__ or error}); the next candidate is taken"
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
        allowed = "letters and digits of ASCII and -=[];\\,./!@#$%^&*()_+{}:? alone"
        raise _bad(text, where, f"{allowed}, and {wrong!r} is none; choose one such as /tmp/dump")


def _check_directory(path: Path, text: str, where: str) -> None:
    try:
        real = os.path.realpath(path, strict=True)
    except OSError as error:
        advice = f"make it: mkdir -p '{_shortened(str(path))}'"
        if "$" in str(path):
            advice = '"$" stands for itself there (only $HOME at the start is replaced, and not by newer versions): write it out'
        raise _bad(text, where, f"a directory that exists ({error.strerror}); {advice}", path) from error
    if not os.path.isdir(real):
        raise _bad(text, where, "a directory, and it is none; name one, or remove what is there", path)
    if not os.access(real, os.R_OK | os.W_OK):
        raise _bad(text, where, f"a directory that can be read and written; chmod u+rw '{path}', or name another", path)


def _bad(text: str, where: str, expected: str, path: Path | None = None) -> AclConfigError:
    behind = "" if path is None or str(path) == text else f" (that is {_shortened(str(path))})"
    return AclConfigError(f"{where}: dump.dump_path: found {_shortened(text)!r}{behind}, expected {expected}", "EP0003")


def _shortened(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."
