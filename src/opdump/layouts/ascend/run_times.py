"""Assigns each run a {time} directory of its own, even if another run begins in the same second."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PATIENCE_SECONDS: Final = 2.0


def unused_time(root: Path, device_id: int, started: float) -> str:
    """The {time} of a run: a later second if another run of the same second has written files of the device."""
    while True:
        text = time.strftime("%Y%m%d%H%M%S", time.localtime(started))
        if not (root / text / str(device_id)).exists() and not any(root.glob(f"[0-9]*/{text}/{device_id}")):
            return text
        started += 1


def claimed_time(root: Path, device_id: int, started: float, claim: Callable[[str], None]) -> str:
    """`unused_time`, with the directory that `claim` creates for it, while no other run searches for its own. `root` must exist."""
    with _by_itself(root):
        text = unused_time(root, device_id, started)
        claim(text)
    return text


@contextmanager
def _by_itself(root: Path) -> Iterator[None]:
    """One process at a time. If the file system has no locks, or another process holds the lock and hangs, there is no exclusion."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE_SECONDS
        while not _is_locked(descriptor) and time.monotonic() < until:
            time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether there is nothing more to wait for."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return True
    return True
