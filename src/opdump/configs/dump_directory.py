"""Makes sure, before the first step, that a dump can be written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from opdump.errors import DumpPathError


def make_writable(path: Path) -> None:
    """Creates the directory, with its parents, and writes and removes a file in it.

    Raises DumpPathError where that fails.
    """
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
