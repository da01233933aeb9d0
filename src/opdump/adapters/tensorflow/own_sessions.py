"""Sessions of the capture itself: nothing in them is the program's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

_making = threading.local()


def is_own() -> bool:
    """Whether the session that this thread makes is the capture's."""
    return getattr(_making, "is_own", False)


@contextmanager
def own_session(graph: Any, config: Any) -> Iterator[Any]:
    """A session that nobody records, closed when the block ends."""
    _making.is_own = True
    try:
        session = tf.compat.v1.Session(graph=graph, config=config)
    finally:
        _making.is_own = False
    with session:
        yield session
