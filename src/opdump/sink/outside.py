"""Writes outside of a dump: files that a user names, and temporary directories."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from opdump.interpreter.leftovers import is_dead, temporary_name, this_process

# Writes files that a user names: each appears complete or not at all. Devices, pipes and other special files receive the bytes and are kept.


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


# Temporary directories outside of the dump. Their names contain the process, so that a later process can remove those of dead ones.
#
# /tmp/opdump-family--4f1c02aa91d3-41237-8812345--k3x9q0zd
#             kind          process                 random
#
# A name has only letters, digits, `-` and `_`, because MindSpore dumps into no other directories.


def temporary_directory(
    kind: str, where: Path | None = None, is_in_use: Callable[[Path], bool] = lambda _directory: False
) -> Path:
    """Create a directory that only this user can access, below `where` or in the system's temporary directory. `remove_own` removes it.

    Directories of the same kind that dead processes of this user left there are removed, unless other processes use them. Raises OSError if the
    directory cannot be created.
    """
    place = Path(tempfile.gettempdir()) if where is None else where
    for directory in _of_dead_processes(place, kind):
        if not is_in_use(directory):
            shutil.rmtree(directory, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"opdump-{kind}--{this_process()}--", dir=place))


def is_of_dead_process(directory: Path) -> bool:
    """Return whether the process that created a temporary directory is dead."""
    return is_dead(_process_of(directory.name))


def remove_own(directory: Path) -> None:
    """Remove a temporary directory and its contents. Do nothing in a process that was forked from its owner."""
    if _process_of(directory.name) == this_process():
        shutil.rmtree(directory, ignore_errors=True)


def _of_dead_processes(place: Path, kind: str) -> list[Path]:
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not entry.name.startswith(f"opdump-{kind}--") or not is_dead(_process_of(entry.name)):
                continue
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False) and _is_own(entry.stat(follow_symlinks=False)):
                    found.append(Path(entry.path))
    return found


def _is_own(status: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()


def _process_of(name: str) -> str:
    parts = name.split("--")
    return parts[1] if len(parts) == 3 else ""
