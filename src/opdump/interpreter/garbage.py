"""Reduces garbage collection during work that creates many objects and little garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS: Final = 50_000


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Collect garbage only after 50,000 new objects during the block.

    A comparison holds a record for each tensor of a step, without cycles; searching them for garbage would take a third of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during the block. Thousands of records are created and freed at once, and searching them for cycles would take
    longer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
