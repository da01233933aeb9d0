"""Directories of a dump and of the program, and where graph files are written."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError

# The dump's directory, which must be writable before the first step, and the program's, the base of relative paths.


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


# Environment variables that determine whether and where graph files are written.
#
# | variable | effect |
# |---|---|
# | DUMP_GE_GRAPH | 1, 2, 3: graphs are written; another number, or none: they are not |
# | DUMP_GRAPH_LEVEL | 1 all stages, 2 (default) the important ones, 3 only `Build`, 4 only `PreRunBegin`, or `part\|part` of a stage's name |
# | DUMP_GRAPH_FORMAT | `ge_proto`, `onnx`, `readable`, joined by `\|`; default `ge_proto\|onnx` |
# | NPU_COLLECT_PATH | `{it}/extra-info/graph/{pid}_{device_id}/`, before |
# | DUMP_GRAPH_PATH | `{it}/pid_{pid}_deviceid_{device_id}/`, before |
# | ASCEND_WORK_PATH | `{it}/pid_{pid}_deviceid_{device_id}/`, before the current directory |
#
# For a program that dumps data, the graph of the stage `Build` is always written, because only it shows which model of the dump
# is the training.
#
# See docs/tensorflow-graph.md#the-files.

STAGE: Final = "Build"
"""The stage of the graph that opdump writes; it has no others."""

_COLLECTED: Final = "extra-info/graph"
_VARIABLES: Final = ("NPU_COLLECT_PATH", "DUMP_GRAPH_PATH", "ASCEND_WORK_PATH")
_FORMATS: Final = ("ge_proto", "onnx", "readable")
_SWITCH: Final = "DUMP_GE_GRAPH"
_LEVEL: Final = "DUMP_GRAPH_LEVEL"
_FORMAT: Final = "DUMP_GRAPH_FORMAT"


def graph_directory(
    environ: Mapping[str, str], *, pid: int, device_id: int, cwd: Path, is_dumping: bool = True
) -> Path | None:
    """The directory of the graph files of a process; None if none are written. A relative path is below `cwd`.

    `is_dumping`: the program dumps data, so DUMP_GE_GRAPH, DUMP_GRAPH_LEVEL and DUMP_GRAPH_FORMAT are ignored.
    """
    if not (is_dumping or _is_asked_for(environ)):
        return None
    for variable in _VARIABLES:
        text = environ.get(variable, "")
        if text:
            inner = (
                f"{_COLLECTED}/{pid}_{device_id}" if variable == _VARIABLES[0] else f"pid_{pid}_deviceid_{device_id}"
            )
            return cwd / text / inner
    return cwd


def graph_directories(environ: Mapping[str, str], *, cwd: Path) -> tuple[tuple[Path, str], ...]:
    """Directories in which any process may have written graph files, with the pattern of their subdirectories, for a reader."""
    found = []
    for variable in _VARIABLES:
        text = environ.get(variable, "")
        if text and variable == _VARIABLES[0]:
            found.append((cwd / text / _COLLECTED, "[0-9]*_[0-9]*"))
        elif text:
            found.append((cwd / text, "pid_*_deviceid_*"))
    return tuple(found)


def graph_warnings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warnings about requests of the variables that are not fulfilled, and about invalid values."""
    found = []
    switch = environ.get(_SWITCH, "")
    if switch and not switch.isdecimal():
        found.append(f"{_SWITCH}: found {switch[:60]!r}, expected 1, 2 or 3; it switches nothing on")
    formats = _formats(environ)
    unknown = [each for each in formats if each not in _FORMATS]
    if unknown:
        found.append(f"{_FORMAT}: found {'|'.join(unknown)[:60]!r}, expected {', '.join(_FORMATS)} joined by '|'")
    without = [each for each in formats if each in _FORMATS[1:]]
    if environ.get(_FORMAT) and without:
        found.append(f"{_FORMAT}: {' and '.join(without)} are not written, only ge_proto is")
    return tuple(found)


def _is_asked_for(environ: Mapping[str, str]) -> bool:
    level = environ.get(_LEVEL, "").strip() or "2"
    if level in ("1", "2", "3"):
        has_stage = True
    else:
        has_stage = level != "4" and any(part and part in STAGE for part in level.split("|"))
    return environ.get(_SWITCH, "").strip() in ("1", "2", "3") and has_stage and "ge_proto" in _formats(environ)


def _formats(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = environ.get(_FORMAT, "").strip().lower() or "ge_proto|onnx"
    return tuple(part.strip() for part in text.split("|") if part.strip())
