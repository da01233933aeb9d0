"""Directories: the dump's, which must be writable before the first step, and the program's, where relative paths start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError


def program_directory() -> Path | None:
    """The directory of the running script, behind every symbolic link, as Python's `sys.path[0]` is; None without a script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


def beside_program(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """A relative path of a file as it is meant: from the directory of the running script, if the file is there; else from the current one."""
    directory = program_directory()
    if directory is None or os.path.isabs(path) or not (directory / path).is_file():
        return path
    return directory / path


_LATER: Final = ContextVar("_LATER", default=False)


@contextmanager
def made_later() -> Iterator[None]:
    """In the block a config is read for a dump that may never begin: nothing is made, and who begins it finds out."""
    token = _LATER.set(True)
    try:
        yield
    finally:
        _LATER.reset(token)


def make_writable(path: Path) -> None:
    """Creates the directory, with its parents, and writes and removes a file in it.

    Raises DumpPathError where that fails.
    """
    if _LATER.get():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, prefix=".opdump-"):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise DumpPathError(
            f"cannot write into the dump directory {path}: {reason}"
            f"{f' ({error.filename})' if error.filename and not str(error.filename).startswith(str(path)) else ''}; "
            f'set "path" (or MS_DIAGNOSTIC_DATA_PATH) to a directory that can be written'
        ) from error
