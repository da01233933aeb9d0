"""Records functions that `torch.distributed.rpc` runs for other processes, in threads made in C++, where no mode is on.

    rpc.rpc_sync("worker1", forward, args=(x,))    worker1 runs `forward` inside its capture, as if a thread had begun there

C++ calls the Python function that the unpickler returns, in the same thread, so the unpickler is replaced. Operators,
TorchScript functions and gradients across processes run without Python; the calling process counts them for the report.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from opdump.adapters.replacements import Replacements
from opdump.adapters.torch.mode_stack import RecordingMode, is_on
from opdump.adapters.torch.private_names import has_rpc_agent, rpc_agent, rpc_invocations, rpc_pickler, run_rpc_function

_UNSEEN = {"builtin": "operators of PyTorch", "torchscript": "functions of TorchScript"}
"""What runs without Python, by the last word of the name of the calling function."""


class RpcCalls:
    """Runs functions for other processes inside `enter()`, from `attach` to `detach`, unless `mode` is already on."""

    def __init__(
        self, mode: RecordingMode, enter: Callable[[], AbstractContextManager[Any]], place: Callable[[], object]
    ) -> None:
        """`place` is called while the number of this process among the workers is known: it is lost when RPC shuts down."""
        self._mode = mode
        self._enter = enter
        self._place = place
        self._unseen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._replacements = Replacements()

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

        self._replacements.replace(pickler, "deserialize", received)
        for name, call in rpc_invocations():
            self._replacements.replace(api, name, self._counting(call, _UNSEEN.get(name.rpartition("_")[2], "")))
        self._replacements.replace(autograd, "backward", self._counting(backward, "gradients"))

    def detach(self) -> None:
        self._replacements.restore()

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
