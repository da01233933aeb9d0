"""Creates the error for a file that could not be written: one message for each cause, with a remedy."""

from __future__ import annotations

import errno
import traceback
from types import MappingProxyType
from typing import Final

from opdump.errors import DumpPathError

_NO_ROOM: Final = "free space, or dump less (fewer steps, fewer operators, only statistics), or to another disk"
_GONE: Final = "the directory was removed or replaced while the dump was written; run it again, and leave the directory"
_TOO_MANY: Final = "too many files are open; raise the limit (ulimit -n)"
_KEPT_OUT: Final = "make the directory writable for this user, or dump into another one"
_REMEDIES: Final = MappingProxyType(
    {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _NO_ROOM),
        **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP), _GONE),
        **dict.fromkeys((errno.EMFILE, errno.ENFILE), _TOO_MANY),
        **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _KEPT_OUT),
    }
)
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
