"""Keeps the current context of each thread; a new thread has none."""

from __future__ import annotations

import threading

from opdump.acl.codes import Code
from opdump.acl.failures import CallError
from opdump.acl.handles import Context, Handles


class Contexts:
    """The contexts of a process. The first `set_device` makes the default one of the device, which the next ones find."""

    def __init__(self, handles: Handles) -> None:
        self._handles = handles
        self._of_thread = threading.local()
        self._default: int | None = None

    def create(self, device_id: int) -> int:
        """A context, which is the current one of the calling thread from now on."""
        context = self._handles.add(Context(device_id))
        self._of_thread.context = context
        return context

    def use(self, context: int, where: str) -> None:
        self._handles.get(context, Context, where)
        self._of_thread.context = context

    def current(self, where: str) -> int:
        """Raises CallError (107002) where the thread has none, or it was destroyed."""
        context: int | None = getattr(self._of_thread, "context", None)
        if context is None or not self._handles.has(context, Context):
            raise CallError(
                Code.CONTEXT_NULL,
                f"{where}: this thread has no context; call acl.rt.set_device, or acl.rt.set_context with that of another thread",
                is_answer=True,
            )
        return context

    def use_default(self, device_id: int) -> None:
        if self._default is None:
            self._default = self._handles.add(Context(device_id))
        self._of_thread.context = self._default

    def destroy(self, context: int, where: str) -> None:
        self._handles.remove(context, Context, where)
        if context == self._default:
            self._default = None

    def reset(self) -> None:
        """Destroys the default context, where there is one."""
        if self._default is not None:
            self.destroy(self._default, "acl.rt.reset_device")
