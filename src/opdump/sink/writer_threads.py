"""Runs jobs of a bounded queue in threads, and empties the queue whatever happens to the threads.

Anything that stops a job or a thread is reported to the owner. No call waits for a thread that does not exist: if none could be started, or all of
them died, the caller does the work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class WriterThreads(Generic[Job]):
    """At most `threads` threads, started on demand, and at most `capacity` bytes in the queue.

    `work` executes a job. `failed` receives an exception of any kind that leaves it. After `give_up`, queued jobs are dropped, and callers do not
    wait for room.
    """

    def __init__(
        self,
        work: Callable[[Job], None],
        failed: Callable[[Job | None, BaseException], None],
        *,
        threads: int,
        capacity: int,
    ) -> None:
        self._do = work
        self._failed = failed
        self._most = threads
        self._capacity = capacity
        self._queue: deque[tuple[Job, int]] = deque()
        self.queued_bytes = 0
        """Bytes queued or being written."""
        self.seconds_waited = 0.0
        """How long callers have waited for room, in total."""
        self._unfinished = 0
        self._idle = 0
        self._started = 0
        """Number of threads that were started and have not ended."""
        self._gave_up = False
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    def put(self, job: Job, size: int) -> bool:
        """Queue a job, after waiting for room. Return False, having queued nothing, if the threads were stopped."""
        while True:
            with self._lock:
                if self._stopping:
                    return False
                if not self.queued_bytes or self.queued_bytes + size <= self._capacity or self._gave_up:
                    self._queue.append((job, size))
                    self.queued_bytes += size
                    self._unfinished += 1
                    if self._idle:
                        self._work.notify()
                    elif self._started < self._most:
                        self._start()
                    taken = self._taken_if_alone()
                    break
                taken = self._taken_if_alone()
                if taken is None:
                    began = time.monotonic()
                    try:
                        self._room.wait()
                    finally:
                        self.seconds_waited += time.monotonic() - began
                    continue
            self._run_job(*taken)
        if taken is not None:
            self._run_job(*taken)
        return True

    def give_up(self) -> None:
        """Drop the queued jobs and all later ones."""
        self._gave_up = True
        with self._lock:
            self._room.notify_all()

    def wait_until_empty(self) -> None:
        """Return when every job is done or dropped."""
        while True:
            with self._lock:
                if not self._unfinished:
                    return
                taken = self._taken_if_alone()
                if taken is None:
                    self._room.wait()
                    continue
            self._run_job(*taken)

    def stop(self) -> None:
        """Execute the queued jobs and end the threads. May be called again."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
        self.wait_until_empty()
        for thread in self._threads:
            # A thread that was not started cannot be joined, and no thread can join itself.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="opdump writer", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more threads available: existing ones or the caller do the work
            self._threads.remove(thread)
        else:
            self._started += 1

    def _taken_if_alone(self) -> tuple[Job, int] | None:
        """Take the next job if there is no thread to do so."""
        return self._queue.popleft() if self._queue and self._started < 1 else None

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                self._run_job(*taken)
                del taken
        except BaseException as error:  # noqa: BLE001  it would be lost otherwise
            self._failed(None, error)
        finally:
            with self._lock:
                self._started -= 1
                self._room.notify_all()

    def _next(self) -> tuple[Job, int] | None:
        with self._lock:
            while not self._queue:
                if self._stopping:
                    return None
                self._idle += 1
                try:
                    self._work.wait()
                finally:
                    self._idle -= 1
            return self._queue.popleft()

    def _run_job(self, job: Job, size: int) -> None:
        try:
            if not self._gave_up:
                self._do(job)
        except BaseException as error:
            self._failed(job, error)
            if not isinstance(error, Exception):
                raise  # Ctrl-C in a caller that does the work itself; a thread ends
        finally:
            with self._lock:
                self.queued_bytes -= size
                self._unfinished -= 1
                self._room.notify_all()
