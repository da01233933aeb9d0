"""Finds and ends processes of a pool that could not be started, or that get no more work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

NOT_TO_BE_HAD: Final = (OSError, RuntimeError, MemoryError)
"""What starting a process or a thread raises at a limit of them, of open files or of memory."""


def is_attended(pool: ProcessPoolExecutor | None) -> bool:
    """Whether the thread that hands work to the processes lives; where it died, futures are never done, without an error."""
    thread = getattr(pool, "_executor_manager_thread", None)
    return thread is None or thread.is_alive()


def end_processes(processes: Iterable[BaseProcess]) -> None:
    """End processes that wait for work that never comes; the interpreter would wait for them."""
    for process in processes:
        process.terminate()
        process.join()
