"""Temporary directories outside of the dump, named for their process, so that a later one removes those of dead ones.

/tmp/opdump-family--4f1c02aa91d3-41237-8812345--k3x9q0zd
            kind          process                 random

There are letters, digits, `-` and `_` in a name alone: MindSpore dumps into no other.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from opdump.interpreter.leftovers import is_dead, this_process


def temporary_directory(
    kind: str, where: Path | None = None, is_in_use: Callable[[Path], bool] = lambda _directory: False
) -> Path:
    """A new directory for this user alone, below `where` or the system's place for such; `remove_own` removes it.

    Those of the same kind that dead processes of this user left there are removed, unless they are in use by others.
    Raises OSError where there is no room for one.
    """
    place = Path(tempfile.gettempdir()) if where is None else where
    for directory in _of_dead_processes(place, kind):
        if not is_in_use(directory):
            shutil.rmtree(directory, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"opdump-{kind}--{this_process()}--", dir=place))


def is_of_dead_process(directory: Path) -> bool:
    """Whether the process that made a temporary directory is dead."""
    return is_dead(_process_of(directory.name))


def remove_own(directory: Path) -> None:
    """Removes a temporary directory with all that is in it; in a process that was forked from its owner, nothing."""
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
