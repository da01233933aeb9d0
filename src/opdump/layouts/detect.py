"""Detects the layout of a path and its ranks; opdump's own layouts are tried first, then those of installed packages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from opdump.errors import OpdumpError, UnknownLayoutError
from opdump.index.runs import RunChoice
from opdump.layouts.ascend.places import EXPECTED, hint, problems_at
from opdump.layouts.base import LAYOUTS, Layout, Rank, ReadRanks
from opdump.layouts.mindspore_sync.files import locate

_ASKED: Final = ("acl", "packed", "mindspore-2.3")
"""In this order. They also detect dumps of the other layouts: `mindspore-async` is a device's, and `mindspore-2.10` differs only
in names.
"""
_READS_ONE: Final = ". One dump file is read by opdump.read_dump_file"


def read_ranks(path: Path, *, run: RunChoice = "latest") -> tuple[Rank, ...]:
    """The ranks that `path` refers to.

    Raises UnknownLayoutError if there is no dump of a known layout, NotInDumpError if it has no run of that number, and
    CorruptDumpError if a rank is a link that leads out of it.
    """
    try:
        read = _detected(path)
        if read is None:
            raise _unknown(path)
        return read(run)
    except PermissionError as error:
        raise UnknownLayoutError(
            f"{error.filename or path}: cannot be read ({error.strerror}); expected a dump directory that this user can read: "
            "only its owner can read a dump (directories 0700)"
        ) from error


def detect_added(path: Path) -> ReadRanks | None:
    """A function that reads the dump at `path`, from a layout of an installed package."""
    readers = (_asked(layout, path) for layout in LAYOUTS.added().values())
    return next((read for read in readers if read is not None), None)


def _asked(layout: Layout, path: Path) -> ReadRanks | None:
    """The answer of one layout. A defect in it causes a warning, and the others are still tried."""
    try:
        return layout.detect(path)
    except OpdumpError:
        raise
    except Exception as error:  # noqa: BLE001  it is not opdump's code
        import logging

        told = f"{type(error).__name__}: {error}"
        log = logging.getLogger("opdump")
        log.warning("%s: the layout %r cannot examine it (%s); it is ignored", path, layout.name, told)
        return None


def _detected(path: Path) -> ReadRanks | None:
    if path.is_dir():
        try:
            with os.scandir(path.resolve()):
                pass
        except OSError as error:
            raise UnknownLayoutError(
                f"{path}: cannot be listed ({error.strerror}); a directory of a dump was expected"
            ) from error
    for name in _ASKED:
        read = LAYOUTS.load(name).detect(path)
        if read is not None:
            return read
    return detect_added(path)


def _unknown(path: Path) -> UnknownLayoutError:
    """The message for a path without a dump: what it contains, and what was expected."""
    if not path.exists():
        return UnknownLayoutError(f"{path}: does not exist; expected the directory of a dump")
    try:
        locate(path)
        said = f"{path}: holds no dump"
    except UnknownLayoutError as error:
        said = str(error)
    if not path.is_dir():
        return UnknownLayoutError(f"{said}. {EXPECTED}{_READS_ONE if path.is_file() else ''}")
    real = path.resolve()
    seen = "".join(f". {problem}" for problem in problems_at(real)[:3])
    return UnknownLayoutError(f"{said}. {EXPECTED}{seen}{hint(real)}")
