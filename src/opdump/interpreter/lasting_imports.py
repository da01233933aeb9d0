"""Imports without garbage collection, for short commands."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_for_good(module: str) -> Iterator[None]:
    """Import `module` in the block without garbage collection, and exclude its objects from later collections.

    Imports create many objects and no garbage. Collecting during imports takes a tenth of the start-up time, and collecting at the end of the program
    as much again. Do nothing if `module` was imported before.
    """
    if module in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
