"""Records collectives, functions that RPC calls for other processes, and callbacks of futures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from opdump.adapters.replacements import ReplacingPart
from opdump.adapters.torch.isolation import hidden_from_torch_modes
from opdump.adapters.torch.mode_stack import RecordingMode, is_on, suspended
from opdump.adapters.torch.private_names import has_rpc_agent, rpc_agent, rpc_invocations, rpc_pickler, run_rpc_function
from opdump.recorder import LiveTensor, Recorder
from opdump.records import OpRecord, SkipReason

# Records outputs of collectives once their data has arrived, without waiting for it.
#
# A collective returns before its results are ready; even a synchronous call waits only after the operator. So its outputs are kept aside
# and checked before every later operator: those that have arrived are recorded before the program can change them. They are also recorded
# when the program waits: for a functional collective (`wait_tensor`), or for a work or its future in Python. Outputs that have not arrived
# when the step ends are listed as `in flight`, and those of a failed collective as `failed`.

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


class Collectives(ReplacingPart):
    """The unfinished collectives of a step."""

    def __init__(self, recorder: Recorder, leaves_device_alone: Callable[[], bool]) -> None:
        """`leaves_device_alone`: whether a call to the device would break a graph that is being recorded."""
        super().__init__()
        self._recorder = recorder
        self._leaves_device_alone = leaves_device_alone
        self.pending: list[_Pending] = []
        """Read before every operator, so not a property."""
        self._lock = threading.RLock()

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

        self.replace(kind, "wait", wait_and_file)
        future: Any = torch.Future
        wait_for_future = future.wait

        def wait_for_future_and_file(waited: Any) -> Any:
            result = wait_for_future(waited)
            if self.pending:
                self._look()
            return result

        self.replace(future, "wait", wait_for_future_and_file)

    def _came_back(self, work: Any, *, has_failed: bool = False) -> None:
        for pending in self.pending:
            if pending.work is work:
                pending.has_failed = has_failed
                pending.was_awaited = True
        self._look()

    def _look(self) -> None:
        """Records what has arrived, between two operators of the program."""
        with suspended(), hidden_from_torch_modes():
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


# Records functions that `torch.distributed.rpc` runs for other processes, in threads made in C++, where no mode is on.
#
#     rpc.rpc_sync("worker1", forward, args=(x,))    worker1 runs `forward` inside its capture, as if a thread had begun there
#
# C++ calls the Python function that the unpickler returns, in the same thread, so the unpickler is replaced. Operators,
# TorchScript functions and gradients across processes run without Python; the calling process counts them for the report.

_UNSEEN = {"builtin": "operators of PyTorch", "torchscript": "functions of TorchScript"}
"""What runs without Python, by the last word of the name of the calling function."""


class RpcCalls(ReplacingPart):
    """Runs functions for other processes inside `enter()`, from `attach` to `detach`, unless `mode` is already on."""

    def __init__(
        self, mode: RecordingMode, enter: Callable[[], AbstractContextManager[Any]], place: Callable[[], object]
    ) -> None:
        """`place` is called while the number of this process among the workers is known: it is lost when RPC shuts down."""
        super().__init__()
        self._mode = mode
        self._enter = enter
        self._place = place
        self._unseen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def attach(self) -> None:
        if not _is_available():
            return
        from torch.distributed import autograd
        from torch.distributed.rpc import api, internal

        pickler, run = rpc_pickler(), run_rpc_function()
        if pickler is None or run is None:
            return
        deserialize, kind, backward = pickler.deserialize, internal.PythonUDF, vars(autograd)["backward"]

        def run_inside(call: Any) -> Any:
            if self._mode.closed or is_on(self._mode):
                return run(call)
            self._place()
            with self._enter():
                return run(call)

        def received(*args: Any) -> Any:
            value = deserialize(*args)
            # Wrap `_run_function` too: it turns an error into text, with the frames below it.
            return kind(run_inside, (value,), {}) if isinstance(value, kind) else value

        self.replace(pickler, "deserialize", received)
        for name, call in rpc_invocations():
            self.replace(api, name, self._counting(call, _UNSEEN.get(name.rpartition("_")[2], "")))
        self.replace(autograd, "backward", self._counting(backward, "gradients"))

    def warnings(self) -> Iterator[str]:
        for what, count in self._unseen.items():
            if what == "gradients":
                yield (
                    f"torch.distributed.autograd computed gradients {count} times: the parts that ran in PyTorch's own threads, here and "
                    "in other processes, are not captured"
                )
            else:
                yield (
                    f"torch.distributed.rpc ran {what} for this process {count} times in another one: they are not captured, "
                    "but a Python function that calls them is"
                )

    def _counting(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self._place()
            if what and self._mode.recording:
                with self._lock:
                    self._unseen[what] += 1
            return call(*args, **kwargs)

        return counting


def worker_number() -> int | None:
    """The number of this process among the RPC workers; None if it is not, or no longer, one of them."""
    if not _is_available():
        return None
    agent, is_set = rpc_agent(), has_rpc_agent()
    return int(agent().get_worker_info().id) if agent is not None and is_set is not None and is_set() else None


def _is_available() -> bool:
    return torch.distributed.is_available() and torch.distributed.rpc.is_available()


# Records operators in callbacks of futures, such as those of `get_future().then(...)`. These often run in a PyTorch thread, where no mode
# is on. Communication hooks of DistributedDataParallel end in such a callback, and so do RPC replies. The callback is captured like a
# thread that the program starts.


class FutureCallbacks(ReplacingPart):
    """From `attach` to `detach`, makes callbacks of futures run inside `enter()`, unless `mode` is already on in their thread."""

    def __init__(self, mode: RecordingMode, enter: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self._mode = mode
        self._enter = enter

    def attach(self) -> None:
        future: Any = torch.Future
        for name in ("then", "add_done_callback"):
            self.replace(future, name, self._with_callback_inside(getattr(future, name)))

    def _with_callback_inside(self, register: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def registering(future: Any, callback: Any) -> Any:
            return register(future, self._inside(callback) if callable(callback) else callback)

        return registering

    def _inside(self, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        here = threading.get_ident()

        def run(future: Any) -> Any:
            # In the thread that registered it, the callback is recorded exactly if that thread records.
            if self._mode.closed or threading.get_ident() == here or is_on(self._mode):
                return callback(future)
            with self._enter():
                return callback(future)

        return run
