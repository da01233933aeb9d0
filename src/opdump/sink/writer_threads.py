"""Runs jobs of a bounded queue in threads; the queue empties whatever happens to them.

Whatever stops a job or a thread is reported to the owner, and no call waits for a thread that is not there: where none could be
started, or all of them died, the caller does the work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class WriterThreads(Generic[Job]):
    """At most `threads` threads, started when there is something to do, and at most `capacity` bytes in the queue.

    `work` does a job; `failed` gets an exception that leaves it, of whichever kind. After `give_up` what is queued is dropped
    and nobody waits for room.
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
        """How long callers have waited for room, all of them together."""
        self._unfinished = 0
        self._idle = 0
        self._started = 0
        """Threads that were started and have not ended."""
        self._gave_up = False
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)

    def put(self, job: Job, size: int) -> bool:
        """Queue a job; wait for room before. False, and nothing queued, where the threads were stopped."""
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
        """Drop what is queued and what comes."""
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
        """Do what is queued, end the threads. May be called again."""
        with self._lock:
            self._stopping = True
            self._work.notify_all()
        self.wait_until_empty()
        for thread in self._threads:
            # One that could not be started cannot be joined, and nobody can join itself.
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="opdump writer", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # no more threads to be had: those that exist, or the caller, do the work
            self._threads.remove(thread)
        else:
            self._started += 1

    def _taken_if_alone(self) -> tuple[Job, int] | None:
        """The next job, where no thread is there to take it."""
        return self._queue.popleft() if self._queue and self._started < 1 else None

    def _run(self) -> None:
        try:
            while (taken := self._next()) is not None:
                self._run_job(*taken)
                del taken
        except BaseException as error:  # noqa: BLE001  nobody else would hear of it
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
