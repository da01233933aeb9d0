"""Prepares a directory before a run writes into it: no links inside, and no partial files of dead processes."""

from __future__ import annotations

import os
from pathlib import Path

from opdump.interpreter.leftovers import SUFFIX, entries_below, is_left_over, remove
from opdump.sink.open_directories import link_error


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
