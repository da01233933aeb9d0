"""The device operations that the capture needs, for each kind of device that PyTorch supports.

A device executes work from queues (streams), to which the host only adds. So an asynchronous copy is complete only after the host has
waited for the stream that it was queued on.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Accelerator:
    """One kind of device (`cuda`, `xpu`, `mps`, `npu`). This base class is for devices without streams: one queue, blocking copies."""

    copies_in_background = False
    """Whether copies into `host_memory` are asynchronous."""
    graphs: tuple[type[Any], ...] = ()
    """Classes whose `replay` runs a recorded graph."""

    def current_stream(self, device: torch.device) -> Hashable:
        """The stream that the program uses now in this thread."""
        return device

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Queue work on `stream` within the block."""
        return nullcontext()

    def wait(self, stream: Any) -> None:
        """Block until all work queued on `stream` is done."""

    def is_capturing(self) -> bool:
        """Whether the work of this thread is now recorded into a graph instead of executed."""
        return False

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device can write into, pinned if possible."""
        return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


class StreamAccelerator(Accelerator):
    """A device with streams, by its module in torch (`torch.cuda`, `torch.xpu`, `torch.npu`)."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._asks_graphs = getattr(module, "is_current_stream_capturing", None)
        self._is_in_use = getattr(module, "is_initialized", None)
        self.copies_in_background = True
        found = (getattr(module, name, None) for name in ("CUDAGraph", "XPUGraph", "NPUGraph"))
        self.graphs = tuple(graph for graph in found if graph is not None)

    def current_stream(self, device: torch.device) -> Hashable:
        stream: Hashable = self._module.current_stream(device)
        return stream

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def wait(self, stream: Any) -> None:
        stream.synchronize()

    def is_capturing(self) -> bool:
        if self._asks_graphs is None or not (self._is_in_use is None or self._is_in_use()):
            # Do not query a device that the program does not use: the query would initialise it. In a child forked from a process
            # that uses the device, the query is an error.
            return False
        return bool(self._asks_graphs())

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.copies_in_background:
            try:
                return torch.empty_strided(size, stride, dtype=dtype, device="cpu", pin_memory=True)
            except (RuntimeError, NotImplementedError):  # no pinned memory on this device: copies block
                self.copies_in_background = False
        return super().host_memory(size, stride, dtype)


class Accelerators:
    """The devices of this process, by kind."""

    reads_host = True
    """Whether `cpu` tensors lie in host memory that can be read in place."""

    def __init__(self) -> None:
        self._known: dict[str, Accelerator] = {}

    def of(self, tensor: torch.Tensor) -> Accelerator | None:
        """The accelerator that holds a tensor; None for the host."""
        kind = tensor.device.type
        return None if kind == "cpu" else self._of_kind(kind)

    def capturing(self) -> Accelerator | None:
        """The accelerator whose graphs the program may record; None if this build of PyTorch supports no such device.

        It does not check whether the machine has the device: querying CUDA can make it unusable in processes forked later.
        """
        kind = _built_for()
        accelerator = None if kind is None else self._of_kind(kind)
        return accelerator if isinstance(accelerator, StreamAccelerator) else None

    def _of_kind(self, kind: str) -> Accelerator:
        found = self._known.get(kind)
        if found is None:
            # Some kinds have no module (`privateuseone` until it is renamed).
            module = getattr(torch, kind, None)
            has_streams = all(hasattr(module, name) for name in ("current_stream", "stream"))
            found = self._known[kind] = StreamAccelerator(module) if has_streams else Accelerator()
        return found


def _built_for() -> str | None:
    if torch.version.cuda or torch.version.hip:
        return "cuda"  # before PyTorch 2.7, the call below raises if a CUDA build finds no device
    device: torch.device | None = torch.accelerator.current_accelerator()
    return None if device is None else device.type
