"""Directories below a root, opened once and never through a link.

What is written into an open directory lands there whatever its name means by now: a link that appears later leads nowhere, and a
directory that was removed is not made again.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError

DIRECTORY_MODE: Final = 0o700
"""As MindSpore sets it: a dump holds weights and data."""

_MOST_OPEN: Final = 24
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY


class OpenDirectory:
    """A directory by its descriptor, which is closed with the last reference to it.

    The descriptor is for the methods alone: who kept the number, and not the directory, would use another file's by and by.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    # `os` may be gone at the end of the interpreter.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """The descriptor of a file in it, never through a link and not inherited. Raises OSError, as all methods do."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self._descriptor)

    def open_directory(self, name: str) -> OpenDirectory:
        """A directory in it."""
        return OpenDirectory(self.open(name, _FLAGS))

    def make_directory(self, name: str) -> None:
        """Make a directory in it, for its owner alone."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=self._descriptor)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory in it."""
        os.rmdir(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file in it."""
        os.unlink(name, dir_fd=self._descriptor)

    def change_mode(self, name: str, mode: int) -> None:
        """Set the permissions of a file in it."""
        os.chmod(name, mode, dir_fd=self._descriptor)

    def move(self, name: str, new: str, into: OpenDirectory | None = None) -> None:
        """Give what is in it another name, here or `into` another directory, in place of what has that name."""
        other = self if into is None else into
        os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor)

    def take(self, file: str, name: str, mode: int) -> int:
        """Move a file from elsewhere into it, which has these permissions then; its size."""
        status = os.stat(file, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(file, mode)
        os.replace(file, name, dst_dir_fd=self._descriptor)
        return status.st_size

    def mode_of(self, name: str) -> int:
        """The type and the permissions of what is in it; of a link those of the link."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode


class OpenDirectories:
    """The directories below `root`, by their paths relative to it; missing ones are made. Threads may ask at the same time."""

    def __init__(self, root: str) -> None:
        self._root_path = root
        self._root: OpenDirectory | None = None
        self._open: dict[str, OpenDirectory] = {}
        self._lock = threading.Lock()

    def at(self, relative: str) -> OpenDirectory:
        """The directory; the root for an empty path.

        Raises DumpPathError for a link in its place or above it, and where the root cannot be made; OSError otherwise.
        """
        found = self._open.get(relative)
        if found is not None:
            return found
        with self._lock:
            return self._at(relative)

    def exists(self, relative: str) -> bool:
        """Whether there is something of that name, whatever it is."""
        above, _, name = relative.rpartition("/")
        try:
            self.at(above).mode_of(name)
        except FileNotFoundError:
            return False
        return True

    def is_open(self, relative: str) -> bool:
        """Whether it is open."""
        return relative in self._open

    def _at(self, relative: str) -> OpenDirectory:
        if not relative:
            return self._opened_root()
        found = self._open.get(relative)
        if found is not None:
            return found
        above, _, name = relative.rpartition("/")
        parent = self._at(above)
        path = f"{self._root_path}/{relative}"
        try:
            with suppress(FileExistsError):
                parent.make_directory(name)
            opened = parent.open_directory(name)
        except OSError as error:
            refuse_link(path, name, parent, error)
            raise
        if len(self._open) >= _MOST_OPEN:
            del self._open[next(iter(self._open))]  # who still writes into it holds it
        self._open[relative] = opened
        return opened

    def _opened_root(self) -> OpenDirectory:
        if self._root is None:
            make_directory(Path(self._root_path))
            self._root = OpenDirectory(os.open(self._root_path, _FLAGS | os.O_CLOEXEC))
        return self._root


def refuse_link(path: str, name: str, parent: OpenDirectory, error: OSError) -> None:
    """Raises DumpPathError where `name` in the open directory `parent` is a link; `path` is what it is called."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return
    try:
        is_link = stat.S_ISLNK(parent.mode_of(name))
    except OSError:
        return
    if is_link:
        raise link_error(path) from error


def link_error(path: str | Path) -> DumpPathError:
    """The error for a link inside a dump."""
    return DumpPathError(
        f"{path}: is a symbolic link inside the dump, expected a directory or a file of the dump: opdump writes through none, since what "
        "it leads to is no part of the dump. Remove it, or dump into another directory"
    )


def make_directory(path: Path) -> None:
    """Make `path` and the missing directories above it, all for their owner alone. Raises DumpPathError."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path.parent == path:
            break
        path = path.parent
    try:
        for directory in reversed(missing):
            directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise DumpPathError(
            f"{directory}: the directory cannot be made ({error.strerror}): dump into a directory that this user can write"
        ) from error
