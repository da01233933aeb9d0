"""Runs the work of the program's threads inside a context. A dispatch mode of PyTorch and a callback of TensorFlow only affect the thread
that entered them, so each thread must enter them itself.

    ThreadEntry(enter).attach()              every thread that starts now runs its work inside `with enter():`
    threading.Thread(target=train).start()
    pool.submit(evaluate, model)             also if the pool and its threads are older

Covered: threads started through `threading.Thread`, including subclasses that override `run` (the thread object gets a wrapped `run`),
and each call submitted to a `ThreadPoolExecutor`. This includes `loop.run_in_executor`, `asyncio.to_thread` and existing pools.

Not covered: threads that are already running, except those of an executor; threads started through `_thread`; the threads of PyTorch's
data loader and compiler, of Keras' data loader, and of opdump itself. Processes (data-loader workers) are not captured: a forked child
removes the mode and opens none of its parent's files.

Autograd needs nothing: it runs the backward pass of CPU tensors in the calling thread, and its device threads get the modes of that thread.

A mode cannot be entered in another thread. So a thread that may still run in the next recorded step keeps the mode on all the time; while
nothing is recorded, the mode passes operators on, at four microseconds per operator of such a thread. A thread that outlives the capture
has this cost until its work ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from opdump.adapters.replacements import Replacements

_OWN_WORK = (
    "opdump.",
    "torch.utils.data.",
    "torch._inductor.",
    "torch._dynamo.",
    "multiprocessing.queues.",
    "concurrent.futures.",
    "keras.src.trainers.data_adapters.",
    "keras.src.utils.data_utils.",
)
"""Modules whose threads do not run the user's operators. The threads of an executor enter for each call."""


class ThreadEntry:
    """Runs the work of threads inside `enter()`, from `attach` to `detach`.

    `enter` is called in the thread that works. A thread that outlives `detach` stays inside until its work ends. In a forked child process
    the hooks are removed, and then `forked` is called. `beginning` is called in the thread that starts another one or submits a call to an
    executor; its result is `begun` in the other thread.
    """

    def __init__(
        self,
        enter: Callable[[], AbstractContextManager[Any]],
        *,
        forked: Callable[[], None] | None = None,
        beginning: Callable[[], object] | None = None,
    ) -> None:
        self._enter = enter
        self._forked = forked
        self._beginning = beginning
        self._replacements = Replacements()
        self._inside = threading.local()
        self._attached = False

    @property
    def begun(self) -> Any:
        """The result of `beginning` in the thread that started the work of this one; None in other threads."""
        return getattr(self._inside, "begun", None)

    def attach(self) -> None:
        if self._attached:
            return
        self._attached = True
        start, submit = threading.Thread.start, ThreadPoolExecutor.submit

        def start_inside(thread: threading.Thread) -> None:
            if self._attached and not _is_own_work(getattr(thread, "_target", None) or thread.run):
                self._bring_in(thread, start, self._begin())
            else:
                start(thread)

        def submit_inside(
            pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
        ) -> Future[Any]:
            if self._attached and not _is_own_work(function):
                return submit(pool, self._call, self._begin(), function, *args, **kwargs)
            return submit(pool, function, *args, **kwargs)

        self._replacements.replace(threading.Thread, "start", start_inside)
        self._replacements.replace(ThreadPoolExecutor, "submit", submit_inside)
        if hasattr(os, "register_at_fork"):
            # This cannot be unregistered, so it must not keep the object alive.
            reference = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _leave(reference))

    def detach(self) -> None:
        self._replacements.restore()
        self._attached = False

    def _begin(self) -> Any:
        return None if self._beginning is None else self._beginning()

    def _bring_in(self, thread: threading.Thread, start: Callable[[threading.Thread], None], begun: Any) -> None:
        run, attributes = thread.run, vars(thread)
        own = {"run": run} if "run" in attributes else {}

        def put_back() -> None:
            if attributes.get("run") is run_inside:
                del attributes["run"]
                attributes.update(own)

        def run_inside() -> None:
            # First restore `run`, so that the program sees its own attribute and the object does not refer to itself.
            put_back()
            self._call(begun, run)

        attributes["run"] = run_inside
        try:
            start(thread)
        except BaseException:
            put_back()
            raise

    def _call(self, begun: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not self._attached or getattr(self._inside, "here", False):
            return function(*args, **kwargs)
        self._inside.here, self._inside.begun = True, begun
        try:
            with self._enter():
                return function(*args, **kwargs)
        finally:
            self._inside.here, self._inside.begun = False, None


def _leave(reference: weakref.ref[ThreadEntry]) -> None:
    entry = reference()
    if entry is None or not entry._attached:
        return
    entry.detach()
    if entry._forked is not None:
        entry._forked()


def _is_own_work(function: Any) -> bool:
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and f"{module}.".startswith(_OWN_WORK)
