"""Copies a dump, so that the copy can be completed and the original stays unchanged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from opdump.errors import DumpPathError
from opdump.layouts.mindspore_sync.locate import locate

_DIRECTORY_MODE = 0o700


def copy_dump(source: Path, out: Path, *, progress: Callable[[str, int, int], None] | None = None) -> Path:
    """Copy the ranks of a dump into `out`, with file modes and times; links are left out. Returns `out`.

    Raises UnknownLayoutError if `source` is not a dump, and DumpPathError if `out` is not empty or cannot be written.
    """
    ranks = locate(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DumpPathError(f"{out}: is not empty; name a new or an empty directory after -o")
    if any(rank.root in (out.resolve(), *out.resolve().parents) for rank in ranks):
        raise DumpPathError(f"{out}: is inside the dump to be copied; name a directory outside of it")
    files = [
        (Path(directory) / name, out / f"rank_{rank.rank_id}" / os.path.relpath(directory, rank.root) / name)
        for rank in ranks
        for directory, _, names in os.walk(rank.root)
        for name in names
        if not os.path.islink(os.path.join(directory, name))
    ]
    try:
        for number, (file, target) in enumerate(files, start=1):
            target.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            shutil.copy2(file, target)
            if progress is not None:
                progress("copying", number, len(files))
    except OSError as error:
        raise DumpPathError(
            f"{error.filename}: cannot be copied into {out} ({error.strerror}): free space, or name another directory after -o"
        ) from error
    return out
