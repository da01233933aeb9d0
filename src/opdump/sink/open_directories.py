"""Directories below a root, opened once and never through a link.

A file written into an open directory ends up there, whatever has the directory's name by then: a link that appears later is not followed, and a
removed directory is not created again.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError
from opdump.interpreter.leftovers import SUFFIX, entries_below, is_left_over, remove

DIRECTORY_MODE: Final = 0o700
"""The mode that MindSpore sets, because a dump contains weights and data."""

_MOST_OPEN: Final = 24
_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY


class OpenDirectory:
    """A directory by its descriptor, which is closed with the last reference to this object.

    Only the methods use the descriptor: a caller that kept the number but not the object would later use another file's descriptor.
    """

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    # At the end of the interpreter, `os` may be gone: hence the default argument.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._descriptor)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """Open a file in the directory and return its descriptor, which is not inherited. Links are not followed. Raises OSError, like all
        methods.
        """
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self._descriptor)

    def open_directory(self, name: str) -> OpenDirectory:
        """Open a directory in the directory."""
        return OpenDirectory(self.open(name, _FLAGS))

    def make_directory(self, name: str) -> None:
        """Create a directory in the directory, accessible only to its owner."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=self._descriptor)

    def remove_directory(self, name: str) -> None:
        """Remove an empty directory in the directory."""
        os.rmdir(name, dir_fd=self._descriptor)

    def remove(self, name: str) -> None:
        """Remove a file in the directory."""
        os.unlink(name, dir_fd=self._descriptor)

    def change_mode(self, name: str, mode: int) -> None:
        """Set the permissions of a file in the directory."""
        os.chmod(name, mode, dir_fd=self._descriptor)

    def move(self, name: str, new: str, into: OpenDirectory | None = None) -> None:
        """Rename an entry, in this directory or `into` another one. An entry with the new name is replaced."""
        other = self if into is None else into
        os.replace(name, new, src_dir_fd=self._descriptor, dst_dir_fd=other._descriptor)

    def take(self, file: str, name: str, mode: int) -> int:
        """Move a file from elsewhere into the directory and set its permissions. Return its size in bytes."""
        status = os.stat(file, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), file)
        if stat.S_IMODE(status.st_mode) != mode:
            os.chmod(file, mode)
        os.replace(file, name, dst_dir_fd=self._descriptor)
        return status.st_size

    def mode_of(self, name: str) -> int:
        """Return the type and the permissions of an entry; links are not followed."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode


class OpenDirectories:
    """The directories below `root`, by relative path. Missing ones are created. Safe for several threads."""

    def __init__(self, root: str) -> None:
        self._root_path = root
        self._root: OpenDirectory | None = None
        self._open: dict[str, OpenDirectory] = {}
        self._lock = threading.Lock()

    def at(self, relative: str) -> OpenDirectory:
        """Return the directory; the root for an empty path.

        Raises DumpPathError for a link at this path or above it, and if the root cannot be created; OSError for other failures.
        """
        found = self._open.get(relative)
        if found is not None:
            return found
        with self._lock:
            return self._at(relative)

    def exists(self, relative: str) -> bool:
        """Return whether an entry of any type with that name exists."""
        above, _, name = relative.rpartition("/")
        try:
            self.at(above).mode_of(name)
        except FileNotFoundError:
            return False
        return True

    def is_open(self, relative: str) -> bool:
        """Return whether the directory is open."""
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
            del self._open[next(iter(self._open))]  # code that still writes into it keeps it open
        self._open[relative] = opened
        return opened

    def _opened_root(self) -> OpenDirectory:
        if self._root is None:
            make_directory(Path(self._root_path))
            self._root = OpenDirectory(os.open(self._root_path, _FLAGS | os.O_CLOEXEC))
        return self._root


def refuse_link(path: str, name: str, parent: OpenDirectory, error: OSError) -> None:
    """Raise DumpPathError if `name` in the open directory `parent` is a link. `path` is its path for the message."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return
    try:
        is_link = stat.S_ISLNK(parent.mode_of(name))
    except OSError:
        return
    if is_link:
        raise link_error(path) from error


def link_error(path: str | Path) -> DumpPathError:
    """Return the error for a link inside a dump."""
    return DumpPathError(
        f"{path}: is a symbolic link inside the dump, expected a directory or a file: opdump does not write through links, because "
        "their targets are not part of the dump. Remove it, or dump into another directory"
    )


def make_directory(path: Path) -> None:
    """Create `path` and the missing directories above it, accessible only to their owner. Raises DumpPathError."""
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
            f"{directory}: the directory cannot be created ({error.strerror}): dump into a directory that this user can write to"
        ) from error


# Prepares a directory before a run writes into it: no links inside, and no partial files of dead processes.


def prepare(*tops: Path) -> None:
    """Remove partial files of dead processes below these directories of a dump. Raises DumpPathError for a link in or instead of
    one.
    """
    for top in tops:
        if os.path.islink(top):
            raise link_error(top)
        for entry in entries_below(top):
            if entry.is_symlink():
                raise link_error(entry.path)
            if entry.name.endswith(SUFFIX) and is_left_over(entry.name):
                remove(entry)


# Creates the error for a file that could not be written: one message for each cause, with a remedy.

_NO_ROOM: Final = "free space, or dump less (fewer steps, fewer operators, only statistics), or to another disk"
_GONE: Final = "the directory was removed or replaced during the run; run the program again, and do not touch the directory meanwhile"
_TOO_MANY: Final = "too many files are open; raise the limit (ulimit -n)"
_KEPT_OUT: Final = "make the directory writable for this user, or dump into another one"
_REMEDIES: Final = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _NO_ROOM),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP), _GONE),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _TOO_MANY),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _KEPT_OUT),
}
_OTHER_DISK: Final = "check the disk, or dump to another one"


def write_error(path: str, error: BaseException, *, files: int, size: int) -> DumpPathError:
    """Return the error for `path`, whose writing failed with `error` after this many files and bytes."""
    if isinstance(error, DumpPathError):
        return error
    failure = DumpPathError(
        f"{path}: cannot be written ({reason_of(error)}) after {files} files and {size} bytes: {remedy_for(error)}; the files "
        "written so far are complete"
    )
    if isinstance(error, MemoryError):
        # The frames of its traceback keep the large arrays alive.
        error.__traceback__ = None
    failure.__cause__ = error
    return failure


def reason_of(error: BaseException) -> str:
    """Return the reason in the words of the system or the interpreter: `No space left on device`, `MemoryError`, `ValueError: embedded null byte`."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[0]


def remedy_for(error: BaseException) -> str:
    """Return what the user can do about the error."""
    if isinstance(error, OSError):
        return _REMEDIES.get(error.errno or 0, _OTHER_DISK)
    if isinstance(error, MemoryError):
        return "give the program more memory, or dump less (fewer steps, fewer operators, only statistics)"
    return "this is a defect of opdump, please report it"
