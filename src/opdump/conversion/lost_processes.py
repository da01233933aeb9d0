"""Finds and ends processes of a pool that could not be started, or that receive no more work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

NOT_TO_BE_HAD: Final = (OSError, RuntimeError, MemoryError)
"""Exceptions raised when starting a process or thread exceeds a limit of processes, open files or memory."""


def is_attended(pool: ProcessPoolExecutor | None) -> bool:
    """Whether the thread that assigns work to the processes is alive; without it, futures never finish and report no error."""
    thread = getattr(pool, "_executor_manager_thread", None)
    return thread is None or thread.is_alive()


def end_processes(processes: Iterable[BaseProcess]) -> None:
    """End processes that wait for work that never comes; otherwise the interpreter would wait for them."""
    for process in processes:
        process.terminate()
        process.join()
