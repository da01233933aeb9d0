"""Records outputs of collectives once their data has arrived, without waiting for it.

A collective returns before its results are ready; even a synchronous call waits only after the operator. So its outputs are kept aside
and checked before every later operator: those that have arrived are recorded before the program can change them. They are also recorded
when the program waits: for a functional collective (`wait_tensor`), or for a work or its future in Python. Outputs that have not arrived
when the step ends are listed as `in flight`, and those of a failed collective as `failed`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.mode_stack import suspended
from opdump.adapters.torch.unseen import unseen
from opdump.recorder import LiveTensor, Recorder
from opdump.records import OpRecord, SkipReason

WAIT = "_c10d_functional::wait_tensor"
"""Its input is still being written until it returns, so it is read only then."""


@dataclass(slots=True)
class _Pending:
    """A collective whose results may not have arrived."""

    op: OpRecord
    outputs: Sequence[LiveTensor]
    work: Any
    """None for a functional collective."""
    future: Any = None
    """The future of the work: it has the results before the work reports completion. None on a device, where it is done too early."""
    memory: set[int] = field(default_factory=set)
    """Without a work: the addresses of the results that the program has not waited for."""
    was_awaited: bool = False
    has_failed: bool = False

    def has_arrived(self) -> bool:
        if self.was_awaited or (self.future is not None and self.future.done()):
            return True
        return self.work is not None and bool(self.work.is_completed())


class Collectives:
    """The unfinished collectives of a step."""

    def __init__(self, recorder: Recorder, leaves_device_alone: Callable[[], bool]) -> None:
        """`leaves_device_alone`: whether a call to the device would break a graph that is being recorded."""
        self._recorder = recorder
        self._leaves_device_alone = leaves_device_alone
        self.pending: list[_Pending] = []
        """Read before every operator, so not a property."""
        self._lock = threading.RLock()
        self._replacements = Replacements()

    def attach(self) -> None:
        """Watches the program's waits, because some works never report completion themselves."""
        if not torch.distributed.is_available():
            return
        kind: Any = torch.distributed.Work
        wait = kind.wait

        def wait_and_file(work: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = wait(work, *args, **kwargs)
            except Exception:
                # A timeout does not mean that the collective failed: it may still be running.
                if self.pending and work.is_completed():
                    self._came_back(work, has_failed=True)
                raise
            if self.pending and result:
                self._came_back(work)
            return result

        self._replacements.replace(kind, "wait", wait_and_file)
        future: Any = torch.Future
        wait_for_future = future.wait

        def wait_for_future_and_file(waited: Any) -> Any:
            result = wait_for_future(waited)
            if self.pending:
                self._look()
            return result

        self._replacements.replace(future, "wait", wait_for_future_and_file)

    def detach(self) -> None:
        self._replacements.restore()

    def _came_back(self, work: Any, *, has_failed: bool = False) -> None:
        for pending in self.pending:
            if pending.work is work:
                pending.has_failed = has_failed
                pending.was_awaited = True
        self._look()

    def _look(self) -> None:
        """Records what has arrived, between two operators of the program."""
        with suspended(), unseen():
            self.file_arrived()

    def ran(self) -> None:
        """A collective is called. Sets the rank of this process now, because its group may be gone at the end."""
        self._recorder.place()

    def may_run(self) -> None:
        """The same for a call that may contain collectives that no mode sees (a compiled region)."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._recorder.place()

    def began(self, op: OpRecord, outputs: Sequence[LiveTensor], result: Any) -> None:
        work = _work_of(result)
        storages = [] if work is not None else [live[2].untyped_storage() for live in outputs]
        # The result of a send is empty.
        memory = {storage.data_ptr() for storage in storages if storage.nbytes()}
        nothing_to_wait_for = work is None and not memory
        pending = _Pending(op, outputs, work, _future_of(work, outputs), memory, nothing_to_wait_for)
        with self._lock:
            self.pending.append(pending)

    def waited_for(self, tensor: torch.Tensor, *, has_failed: bool = False) -> None:
        memory = tensor.untyped_storage().data_ptr()
        for pending in self.pending:
            if memory in pending.memory:
                pending.memory.discard(memory)
                # Several results share one work, except those of `batch_p2p_ops`, which must all be awaited.
                pending.was_awaited = not pending.memory or pending.op.op_type != "batch_p2p_ops"
                pending.has_failed |= has_failed
        self.file_arrived()

    def file_arrived(self, *, step_ends: bool = False) -> None:
        """Records what has arrived. At the end of the step, lists the rest."""
        with self._lock:
            if not step_ends and self._leaves_device_alone():
                return
            later = []
            for pending in self.pending:
                if pending.has_arrived():
                    has_failed = pending.has_failed or (not pending.was_awaited and _has_failed(pending))
                    self._file(pending, "failed" if has_failed else "")
                elif step_ends:
                    self._file(pending, "in flight")
                else:
                    later.append(pending)
            self.pending = later

    def _file(self, pending: _Pending, reason: SkipReason) -> None:
        outputs = pending.outputs
        if reason:
            outputs = [(slot, argument, tensor, source, reason) for slot, argument, tensor, source, _ in outputs]
        self._recorder.after_op(pending.op, outputs)


def _future_of(work: Any, outputs: Sequence[LiveTensor]) -> Any:
    if work is None or any(live[2].device.type != "cpu" for live in outputs):
        return None
    try:
        return work.get_future()
    except (RuntimeError, NotImplementedError):
        return None  # a work without a future (gloo's recv); an error reaches the program when it waits


def _has_failed(pending: _Pending) -> bool:
    """Whether a finished work failed, if its future can report it. On a device, the backend ends the process instead."""
    if pending.future is None or not pending.future.done():
        return False
    try:
        pending.future.value()
    except Exception:  # noqa: BLE001  the error belongs to the program, which gets it when it waits
        return True
    return False


def _work_of(result: Any) -> Any:
    """The work that a c10d operator returned; None for a functional collective."""
    last = result[-1] if isinstance(result, tuple) and result else result
    if isinstance(last, torch.ScriptObject):
        return torch.distributed.Work.unbox(last)
    return None
