"""Files that a user names: each appears whole or not at all; what is no regular file gets the bytes and stays what it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opdump.interpreter.leftovers import temporary_name


def is_stream(path: Path) -> bool:
    """Whether `path` leads to a device, a pipe, a terminal or a socket, which takes bytes and holds no file."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A path to write to. When the block ends well, `path` is that file, with `mode` less the umask; when it raises, `path` is as before.

    A link to a file is replaced, not followed. If `path` leads to a device, a pipe or a terminal, the bytes are copied into it. Raises OSError.
    """
    copied = is_stream(path)
    # The directory of a device is no place for files, and a pipe behind /dev/stdout has none.
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
