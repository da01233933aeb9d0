"""Writes files that a user names: each appears complete or not at all. Devices, pipes and other special files receive the bytes and are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opdump.interpreter.leftovers import temporary_name


def is_stream(path: Path) -> bool:
    """Return whether `path` leads to a device, a pipe, a terminal or a socket, which receives bytes and stores no file."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path to write to. If the block succeeds, the file replaces `path`, with `mode` minus the umask; if it raises, `path` is
    unchanged.

    A link to a file is replaced, not followed. If `path` leads to a device, a pipe or a terminal, the bytes are copied into it. Raises OSError.
    """
    copied = is_stream(path)
    # No files are created in the directory of a device, and the pipe behind /dev/stdout has no directory.
    unfinished = (Path(tempfile.gettempdir()) if copied else path.parent) / temporary_name()
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield unfinished
        if copied:
            with unfinished.open("rb") as source, path.open("wb") as stream:
                shutil.copyfileobj(source, stream)
        else:
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
