"""The directory that a conversion writes into, and the names of the files in it; it writes nowhere else.

Every file appears completely or not at all: it is written under a temporary name and renamed, which replaces an existing file or
link of that name. The directories below the root are opened one by one and never through a link, so that no name leads out of it.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdump.errors import CorruptDumpError, DumpPathError
from opdump.interpreter.leftovers import SUFFIX, clear, own_prefix

if TYPE_CHECKING:
    import numpy.typing as npt

    from opdump.conversion.formatted import ConversionPlan, PlainTensor
    from opdump.conversion.stored_tensor import StoredTensor

    Part = bytes | memoryview | npt.NDArray[Any]

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
LONGEST_NAME = 255
"""Maximum length of a file name on Linux file systems, in bytes."""

_SLICE = 1 << 26
_MOST_OPEN = 64
_HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class OutputFullError(DumpPathError):
    """The output directory accepts no more files: the disk is full, over quota, or read-only."""


class OutputDirectory:
    """Files below `root`, which is created if missing; call `close` at the end.

    Raises DumpPathError if the root cannot be created or is not a directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: dict[str, int] = {}
        self._cleared: set[str] = set()
        """Directories from which the leftovers of dead conversions were removed."""
        # One process may have several, and containers may have equal process ids.
        self._token = f"{own_prefix()}{os.urandom(6).hex()}"
        self._serial = 0
        try:
            root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            clear(self._root)
        except OSError as error:
            raise DumpPathError(
                f"{root}: is not a writable directory ({error.strerror}); name another one after -o"
            ) from error

    def close(self) -> None:
        for descriptor in (*self._open.values(), self._root):
            os.close(descriptor)
        self._open.clear()

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode, to recognise the directory below a source."""
        status = os.fstat(self._root)
        return status.st_dev, status.st_ino

    @contextmanager
    def new_file(self, directory: str, name: str) -> Iterator[int]:
        """A descriptor to write `directory/name`; the file appears if the block ends without an error.

        Raises DumpPathError if a link or file takes the place of a directory, or if the name is not a single file name, and
        OutputFullError if the disk accepts no more.
        """
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            raise DumpPathError(f"{name!r} is not a file name; nothing was written")
        parent = self._directory(directory)
        self._serial += 1
        temporary = f"{self._token}-{self._serial:x}{SUFFIX}"
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE, dir_fd=parent
            )
            try:
                try:
                    yield descriptor
                finally:
                    os.close(descriptor)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
        except OSError as error:
            raise self._error(os.path.join(directory, name), error) from error

    def read(self, directory: str, name: str, most: int) -> bytes:
        """The content of a regular file of at most `most` bytes; empty if there is none. Raises DumpPathError for anything else."""
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._directory(directory)
            )
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._error(os.path.join(directory, name), error) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise DumpPathError(
                    f"{self.root / directory / name}: is not a file of at most {most} bytes; move it away"
                )
            return os.pread(descriptor, status.st_size, 0)
        finally:
            os.close(descriptor)

    def _directory(self, relative: str) -> int:
        if not relative:
            return self._root
        descriptor = self._open.get(relative)
        if descriptor is not None:
            return descriptor
        above, _, name = relative.rpartition("/")
        if "\0" in name or name in ("", ".", ".."):
            raise DumpPathError(f"{relative!r} is not a path below {self.root}; nothing was written")
        parent = self._directory(above)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with suppress(FileExistsError):
                os.mkdir(name, DIRECTORY_MODE, dir_fd=parent)
            descriptor = os.open(name, flags, dir_fd=parent)
        except OSError as error:
            raise self._error(relative, error) from error
        if len(self._open) >= _MOST_OPEN:
            # Close the oldest; if it is a parent of the new one, it is opened again when needed.
            os.close(self._open.pop(next(iter(self._open))))
        self._open[relative] = descriptor
        if relative not in self._cleared:
            self._cleared.add(relative)
            clear(descriptor)
        return descriptor

    def _error(self, relative: str, error: OSError) -> DumpPathError:
        path = self.root / relative
        if error.errno in _HOPELESS:
            return OutputFullError(
                f"{path}: cannot be written ({error.strerror}): free space or name another directory after -o, then run "
                "the same command again; the files written so far are whole"
            )
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            return DumpPathError(
                f"{path}: a link or a file takes the place of a directory, and links are not followed out of "
                f"{self.root}: remove it, or name another directory after -o"
            )
        return DumpPathError(f"{path}: cannot be written ({error.strerror})")


def write_all(descriptor: int, parts: Iterable[Part]) -> int:
    """Write the parts one after another; returns the number of bytes written."""
    total = 0
    for part in parts:
        view = memoryview(part).cast("B")  # type: ignore[arg-type]  # an array is a buffer; its type says so from 3.12 on
        while view:
            written = os.write(descriptor, view[:_SLICE])
            view = view[written:]
            total += written
        del part, view  # frees the part before the next is made
    return total


def write_two(descriptor: int, header: bytes, elements: memoryview) -> int:
    """Write a header and the data after it, in one system call if possible."""
    size = len(header) + len(elements)
    written = os.writev(descriptor, (header, elements)) if elements else os.write(descriptor, header)
    if written < len(header):
        return written + write_all(descriptor, (header[written:], elements))
    if written < size:
        write_all(descriptor, (elements[written - len(header) :],))
    return size


# Names converted files like msaccucmp, so that scripts that search for them keep working.
#
#     Conv2D.conv1.1.5.1732082705016774.output.0.npy                         npy, pt and txt
#     Conv2D.conv1.1.5.1732082705016774.output.0.1x3x224x224.npy             with --format: the final shape
#     Conv2D.conv1.1.5.1732082705016774.output.0.150528.float16.NC1HWC0.bin  bin: elements, element type, format
#     Conv2D.conv1.1.5.1732082705016774.output.0.1_3_224_224.float16.NCHW.bin
#     Conv2D.conv1.1.5.1732082705016774.l1buffer.0.bin                       and space.0.bin
#     Opdebug.Node_OpDebug.59.1597922031178434.output.0.json                 an overflow file
#
# A name of more than 255 bytes is replaced by the UUID of the long name in hexadecimal (version 3, DNS name space), and a row of
# `mapping.csv` in its directory has both names. See docs/convert.md#other-file-formats.


def tensor_ending(stored: StoredTensor | PlainTensor, plan: ConversionPlan) -> str:
    """The part of the file name of a tensor after the name of the dump."""
    base = f"{stored.tensor.io}.{stored.tensor.slot}"
    shape = stored.shape
    if plan.file_type == "bin":
        sizes = "_".join(map(str, shape)) or "1" if plan.format else str(math.prod(shape))
        return f"{base}.{sizes}.{stored.dtype_name}.{stored.format_name}.bin"
    if plan.format:
        return f"{base}.{'x'.join(map(str, shape)) or '1'}.{plan.file_type}"
    return f"{base}.{plan.file_type}"


def synchronous_name(dump: str, true_name: str, stored: StoredTensor) -> str:
    """The name of a tensor's file in the synchronous layout of MindSpore 2.3; `true_name` is the name in the header.

    Raises CorruptDumpError if the name of the dump file has no task and time.
    """
    from opdump.dump_file.names import UNKNOWN_ID, parse_dump_name
    from opdump.layouts.mindspore_sync.files import FileName, op_name_in_files, sanitise  # imports the whole layout

    name = parse_dump_name(dump)
    if name is None:
        raise CorruptDumpError(
            f"{dump}: is not the name of a dump file, which has the form Conv2D.conv1.1.5.1732082705016774; "
            "it cannot be placed in a MindSpore tree"
        )
    name = name.in_true_order(true_name)
    return str(
        FileName(
            op_type=sanitise(name.op_type),
            op_name=op_name_in_files(name.op_type, true_name or name.op_name, "mindspore-2.3"),
            task_id=name.task_id,
            stream_id=UNKNOWN_ID if name.stream_id is None else name.stream_id,
            timestamp=name.microseconds,
            io=stored.tensor.io,
            slot=stored.tensor.slot,
            format=sanitise(stored.format_name),
        )
    )


def short_name(name: str) -> str:
    """`name`, or its replacement if it is longer than a file system accepts."""
    # A character takes at most four bytes.
    if len(name) <= LONGEST_NAME // 4 or len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    import uuid  # long names are rare

    # Device names are ASCII. Other bytes appear in text as surrogates, which a UUID cannot be computed from.
    plain = os.fsencode(name).decode("utf-8", "backslashreplace")
    return uuid.uuid3(uuid.NAMESPACE_DNS, plain).hex + os.path.splitext(name)[1]
