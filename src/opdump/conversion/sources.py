"""Finds the files to convert, their true names, and the output subdirectory of their parts.

A directory contributes its files and, with `recursive`, those of its subdirectories, at the same relative paths. Links are not
followed, except one named on the command line. Files that dumps and conversions leave beside dump files are skipped: csv, json
and npy files, graphs, opdump's own files, and files with the first bytes of another type.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from opdump.conversion.convert_file import is_same_directory
from opdump.conversion.formatted import Failure, SourceFile, failure
from opdump.dump_file.names import MAPPING_NAME, NameMapping, parse_converted_name, parse_dump_name, read_mapping
from opdump.errors import CorruptDumpError, DumpPathError, OpdumpError

_DEEPEST = 64
_NO_DUMPS = (
    *(".csv", ".json", ".npy", ".part", ".txt", ".log", ".sqlite"),
    *(".pb", ".pbtxt", ".ir", ".dot", ".onnx", ".om", ".py"),
)
_METADATA = ".dump_metadata"
# First bytes of other files beside dumps. A dump file never begins so, because its first byte is the tag of a field.
_BEGINNINGS = (b"SQLite format 3\0", b"\x93NUMPY", b"PK\x03\x04", b"\x7fELF", b"\x89PNG", b"\x1f\x8b\x08", b"#!")


@dataclass(slots=True)
class Sources:
    """Files to convert, in the order of their names; problems of the search, and skipped files."""

    files: list[SourceFile] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Files whose names are not those of dump files."""
    subdirectories: list[str] = field(default_factory=list)
    """Directories that were not entered: without `recursive`, or the output directory itself."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def find_sources(paths: Iterable[str], *, recursive: bool, output: tuple[int, int]) -> Sources:
    """The files to convert. `output` is the device and inode of the output directory, which is never a source."""
    search = _Search(recursive, output)
    for path in paths:
        search.add_path(path)
    return search.found


def has_dump_name(name: str) -> bool:
    """Whether a file has the name of a dump file, or the digits that replace a long name."""
    return parse_dump_name(name) is not None or name.isdigit()


def _is_no_dump(path: str, name: str) -> bool:
    """Whether a file of a directory is something else, by its name or by its first bytes."""
    if has_dump_name(name):
        return False
    if name.startswith(".") or name.endswith((*_NO_DUMPS, "-journal", "-wal", "-shm")):
        return True
    if parse_converted_name(name) is not None:
        return True
    try:
        with open(path, "rb") as stream:
            return stream.read(16).startswith(_BEGINNINGS)
    except OSError:  # its conversion reports the reason
        return False


class _Search:
    def __init__(self, recursive: bool, output: tuple[int, int]) -> None:
        self.found = Sources()
        self._recursive = recursive
        self._output = output
        self._taken: dict[tuple[str, str], str] = {}
        self._mappings: dict[str, NameMapping] = {}

    def add_path(self, path: str) -> None:
        try:
            if os.path.isdir(path):
                self.walk(path)
            else:
                self.add("", os.path.dirname(path), [(os.path.basename(path), os.stat(path).st_size)], named=True)
        except OSError as error:
            self.fail(path, error)

    def walk(self, root: str) -> None:
        waiting = [("", root)]
        while waiting:
            relative, directory = waiting.pop()
            files: list[tuple[str, int]] = []
            below = []
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        if entry.name == _METADATA and entry.is_dir(follow_symlinks=False):
                            self.found.skipped.extend(sorted(file.path for file in os.scandir(entry.path)))
                        elif entry.is_dir(follow_symlinks=False):
                            below.append((os.path.join(relative, entry.name), entry.path))
                        elif entry.is_file(follow_symlinks=False):
                            files.append((entry.name, entry.stat(follow_symlinks=False).st_size))
                        elif entry.name != MAPPING_NAME:
                            self._refuse(entry)
            except OSError as error:
                self.fail(directory, error)
            self.add(relative, directory, sorted(files), named=False)
            for inner in sorted(below, reverse=True):
                if self._recursive and inner[0].count("/") >= _DEEPEST:
                    self.fail(inner[1], CorruptDumpError(f"is more than {_DEEPEST} directories down; name it directly"))
                elif self._recursive and not is_same_directory(inner[1], self._output):
                    waiting.append(inner)
                else:
                    self.found.subdirectories.append(inner[1])

    def add(self, relative: str, directory: str, names: list[tuple[str, int]], *, named: bool) -> None:
        """Files of a directory; `named` if the command line names one of them."""
        mapping = self._mapping(directory) if any(name.isdigit() for name, _ in names) else NameMapping()
        # A file with this name takes precedence over one that a table maps to it.
        for name, size in sorted(names, key=lambda each: (mapping.true_name(each[0]) != each[0], each[0])):
            path = os.path.join(directory, name)
            if not named and _is_no_dump(path, name):
                self.found.skipped.append(path)
                continue
            true_name = mapping.true_name(name)
            if true_name != name and (relative, true_name) in self._taken:
                self.fail(
                    path,
                    CorruptDumpError(
                        f"{MAPPING_NAME} gives it the name {true_name}, which another file also has; it was converted under its own name"
                    ),
                )
                true_name = name
            other = self._taken.get((relative, true_name))
            if other == path:  # named twice
                continue
            if other is not None:
                self.fail(
                    path,
                    DumpPathError(
                        f"has the same name as {other}, and would replace its converted files: convert it into another "
                        "directory"
                    ),
                )
                continue
            self._taken[relative, true_name] = path
            self.found.files.append(SourceFile(path, relative, true_name, size))

    def fail(self, path: str, error: Exception) -> None:
        if isinstance(error, OSError):
            error = CorruptDumpError(f"cannot be read ({error.strerror}); expected a dump file or a directory")
        self.found.failures.append(failure(path, error))

    def _refuse(self, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink():
            problem = "is a symbolic link, and links in a directory are not followed: name its target as another SRC"
        else:
            problem = "is not a regular file; expected a dump file"
        self.fail(entry.path, CorruptDumpError(problem))

    def _mapping(self, directory: str) -> NameMapping:
        """The true names of a directory. A problem of its table is reported once and excludes no file."""
        known = self._mappings.get(directory)
        if known is not None:
            return known
        path = os.path.join(directory, MAPPING_NAME)
        mapping = NameMapping()
        if os.path.lexists(path):
            try:
                if os.path.islink(path):
                    raise CorruptDumpError("is a symbolic link, which is not followed; files keep their numeric names")
                mapping = read_mapping(Path(path))
            except OpdumpError as error:
                self.fail(path, error)
            for problem in mapping.problems:
                self.fail(path, problem)
        self._mappings[directory] = mapping
        return mapping
