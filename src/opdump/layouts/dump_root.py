"""What a directory must be before a run writes into it: no links inside, and nothing that a dead process left half written."""

from __future__ import annotations

import os
from pathlib import Path

from opdump.interpreter.leftovers import SUFFIX, entries_below, is_left_over, remove
from opdump.sink.open_directories import link_error


def prepare(*tops: Path) -> None:
    """Clear what dead processes left below these directories of a dump. Raises DumpPathError for a link in or in place of one."""
    for top in tops:
        if os.path.islink(top):
            raise link_error(top)
        for entry in entries_below(top):
            if entry.is_symlink():
                raise link_error(entry.path)
            if entry.name.endswith(SUFFIX) and is_left_over(entry.name):
                remove(entry)
