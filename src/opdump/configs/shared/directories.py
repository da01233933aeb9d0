"""Directories: the dump's, which must be writable before the first step, and the program's, the base of relative paths."""

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
    """The directory of the running script, with all symbolic links resolved, like Python's `sys.path[0]`; None without a script."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve().parent if file else None


def beside_program(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The file that a relative path means: relative to the directory of the running script if the file exists there, otherwise to
    the current directory.
    """
    directory = program_directory()
    if directory is None or os.path.isabs(path) or not (directory / path).is_file():
        return path
    return directory / path


_LATER: Final = ContextVar("_LATER", default=False)


@contextmanager
def made_later() -> Iterator[None]:
    """Within the block, a config is read for a dump that may never begin: no directory is created until the dump begins."""
    token = _LATER.set(True)
    try:
        yield
    finally:
        _LATER.reset(token)


def make_writable(path: Path) -> None:
    """Create the directory and its parents, and write and remove a file in it.

    Raises DumpPathError if that fails.
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
            f'set "path" (or MS_DIAGNOSTIC_DATA_PATH) to a writable directory'
        ) from error
