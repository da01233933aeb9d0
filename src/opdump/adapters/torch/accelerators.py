"""The operations of a kind of device that the capture needs, for those that PyTorch knows.

A device works through queues, its streams, in which the host only places orders. So a copy that was ordered is complete when the
host has waited for the stream that it was ordered on, and never before.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Accelerator:
    """One kind of device (`cuda`, `xpu`, `mps`, `npu`). This is one without streams: it has one queue, and the host waits for copies."""

    copies_in_background = False
    """Whether the host goes on while elements are copied into `host_memory`."""
    graphs: tuple[type[Any], ...] = ()
    """Classes whose `replay` carries out a graph that was recorded."""

    def current_stream(self, device: torch.device) -> Hashable:
        """The queue in which the program places its orders now, in this thread."""
        return device

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Orders go to that stream for the length of the block."""
        return nullcontext()

    def wait(self, stream: Any) -> None:
        """The host waits until all that was ordered on that stream is done."""

    def is_capturing(self) -> bool:
        """Whether the orders of this thread are written into a graph now, and none is carried out."""
        return False

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host that the device can write into, pinned where it can be."""
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
            # A device that the program does not use is not asked: that would begin its use, and a child that was forked from a
            # process that uses one must not ask at all.
            return False
        return bool(self._asks_graphs())

    def host_memory(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if self.copies_in_background:
            try:
                return torch.empty_strided(size, stride, dtype=dtype, device="cpu", pin_memory=True)
            except (RuntimeError, NotImplementedError):  # it has no pinned memory: then copies are waited for
                self.copies_in_background = False
        return super().host_memory(size, stride, dtype)


class Accelerators:
    """The devices of this process, by kind."""

    reads_host = True
    """Whether tensors of `cpu` are the host's, whose memory is read in place."""

    def __init__(self) -> None:
        self._known: dict[str, Accelerator] = {}

    def of(self, tensor: torch.Tensor) -> Accelerator | None:
        """The accelerator that a tensor is on; None for the host."""
        kind = tensor.device.type
        return None if kind == "cpu" else self._of_kind(kind)

    def capturing(self) -> Accelerator | None:
        """The accelerator that the program may be recording graphs of; None where PyTorch was built for none that can.

        Whether there is one in the machine is not asked: to ask CUDA for it can make it useless to processes that are forked later.
        """
        kind = _built_for()
        accelerator = None if kind is None else self._of_kind(kind)
        return accelerator if isinstance(accelerator, StreamAccelerator) else None

    def _of_kind(self, kind: str) -> Accelerator:
        found = self._known.get(kind)
        if found is None:
            # Some kinds have no module (`privateuseone` before it is given a name).
            module = getattr(torch, kind, None)
            has_streams = all(hasattr(module, name) for name in ("current_stream", "stream"))
            found = self._known[kind] = StreamAccelerator(module) if has_streams else Accelerator()
        return found


def _built_for() -> str | None:
    if torch.version.cuda or torch.version.hip:
        return "cuda"  # before PyTorch 2.7 the question below is an error where a build for CUDA finds no device
    device: torch.device | None = torch.accelerator.current_accelerator()
    return None if device is None else device.type
