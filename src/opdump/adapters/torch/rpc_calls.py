"""What `torch.distributed.rpc` runs for other processes: in threads of PyTorch's, made in C++, where no mode is on.

    rpc.rpc_sync("worker1", forward, args=(x,))    worker1 runs `forward` inside its capture, as if a thread had begun there

A function of Python comes out of the unpickler, and what comes out there is called by C++ in the same thread. An operator, a function of
TorchScript and a gradient over processes run without Python: whoever asks for them counts them, and the report tells.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from opdump.adapters.replacements import Replacements

from .mode_stack import RecordingMode, is_on

_UNSEEN = {
    "_invoke_rpc_builtin": "operators of PyTorch",
    "_invoke_remote_builtin": "operators of PyTorch",
    "_invoke_rpc_torchscript": "functions of TorchScript",
    "_invoke_remote_torchscript": "functions of TorchScript",
}
_SEEN = ("_invoke_rpc_python_udf", "_invoke_remote_python_udf")


class RpcCalls:
    """Has functions that other processes ask for run inside `enter()`, from `attach` to `detach`, where `mode` is not on already."""

    def __init__(
        self, mode: RecordingMode, enter: Callable[[], AbstractContextManager[Any]], place: Callable[[], object]
    ) -> None:
        """`place` is called where the number of this process among the workers is known, which it is not for ever."""
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

        pickler: Any = internal._internal_rpc_pickler
        run: Callable[[Any], Any] = internal._run_function
        deserialize, kind, backward = pickler.deserialize, internal.PythonUDF, vars(autograd)["backward"]

        def run_inside(call: Any) -> Any:
            if self._mode.closed or is_on(self._mode):
                return run(call)
            self._place()
            with self._enter():
                return run(call)

        def received(*args: Any) -> Any:
            value = deserialize(*args)
            # `_run_function` too stands inside: it makes a text of an error, with the frames below it.
            return kind(run_inside, (value,), {}) if isinstance(value, kind) else value

        self._replacements.replace(pickler, "deserialize", received)
        for name in _SEEN:
            self._replacements.replace(api, name, self._asking(getattr(api, name), ""))
        for name, what in _UNSEEN.items():
            self._replacements.replace(api, name, self._asking(getattr(api, name), what))
        self._replacements.replace(autograd, "backward", self._asking(backward, "gradients"))

    def detach(self) -> None:
        self._replacements.restore()

    def warnings(self) -> Iterator[str]:
        """What was asked for and nobody saw."""
        for what, count in self._unseen.items():
            if what == "gradients":
                yield (
                    f"torch.distributed.autograd computed gradients {count} times: what of them ran in threads of PyTorch's, here and in "
                    "other processes, is not captured"
                )
            else:
                yield (
                    f"torch.distributed.rpc ran {what} for this process {count} times in another one: they are not captured. "
                    "A function of Python that calls them is"
                )

    def _asking(self, call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def asking(*args: Any, **kwargs: Any) -> Any:
            self._place()
            if what and self._mode.recording:
                with self._lock:
                    self._unseen[what] += 1
            return call(*args, **kwargs)

        return asking


def worker_number() -> int | None:
    """The number of this process among the workers of RPC; None where it is none of them, or not any more."""
    if not _is_available():
        return None
    from torch._C._distributed_rpc import _get_current_rpc_agent, _is_current_rpc_agent_set

    return int(_get_current_rpc_agent().get_worker_info().id) if _is_current_rpc_agent_set() else None


def _is_available() -> bool:
    return torch.distributed.is_available() and torch.distributed.rpc.is_available()
