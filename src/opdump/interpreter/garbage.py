"""Garbage collection, less often, for work that makes many objects and little garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS: Final = 50_000


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Looks for garbage once for so many new objects in the block.

    A comparison holds a record for each tensor of a step, in no cycles: a third of its time would go into looking through them.
    """
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Thousands of records are made at once and freed at once; to look for cycles among them would take longer than that."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
