"""Summaries and copies of tensors on an accelerator, without a synchronisation per operator.

Statistics are computed by the device into one buffer of rows that travels to the host once per step. Copies of elements are
queued behind the operator on its own stream, into pinned memory, and are complete after `finish`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from opdump.kernels import SUMMARY_FIELDS, Summary

_CHUNK = 4096
_PENDING_LIMIT = 2**30


class PendingCopy:
    """Elements on their way to the host; `array` is valid after `DeviceSummaries.finish`."""

    __slots__ = ("host",)

    def __init__(self, host: torch.Tensor) -> None:
        self.host = host

    def to_numpy(self) -> npt.NDArray[Any]:
        """The elements in row-major order; bfloat16 widened to float32."""
        host = self.host
        return (host.float() if host.dtype is torch.bfloat16 else host).numpy()


class DeviceSummaries:
    """The summary rows of one step, one buffer per device.

    Values accumulate in float64, or, with `low_precision`, in the tensor's own type (`device_stat_precision_mode`).
    """

    def __init__(self, *, low_precision: bool) -> None:
        self._low_precision = low_precision
        self._chunks: dict[torch.device, list[torch.Tensor]] = {}
        self._used: dict[torch.device, int] = {}
        self._where: list[tuple[torch.device, int]] = []
        self._rows: dict[torch.device, npt.NDArray[np.float64]] = {}
        self._devices: set[torch.device] = set()
        self._pending = 0

    def add(self, tensor: torch.Tensor) -> int:
        """Queues the summary of a tensor on its device; the handle is good for `summary` after `finish`."""
        with torch.no_grad():
            device = tensor.device
            used = self._used.get(device, 0)
            chunks = self._chunks.setdefault(device, [])
            if used == len(chunks) * _CHUNK:
                chunks.append(torch.empty(_CHUNK, len(SUMMARY_FIELDS), dtype=torch.float64, device=device))
            chunks[used // _CHUNK][used % _CHUNK].copy_(self._row(tensor.detach()))
            self._used[device] = used + 1
            self._devices.add(device)
        self._where.append((device, used))
        return len(self._where) - 1

    def copy(self, tensor: torch.Tensor) -> PendingCopy:
        """Queues a copy of the elements behind the work of the current stream."""
        with torch.no_grad():
            source = tensor.detach().contiguous()
            pinned = source.device.type == "cuda"
            host = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
            host.copy_(source, non_blocking=pinned)
        self._devices.add(tensor.device)
        self._pending += host.numel() * host.element_size()
        return PendingCopy(host)

    @property
    def must_finish(self) -> bool:
        """Whether so much pinned memory waits that the copies should be completed before the step ends."""
        return self._pending > _PENDING_LIMIT

    def finish(self) -> None:
        """Waits for the devices once and brings all rows to the host."""
        for device, chunks in self._chunks.items():
            rows = torch.cat(chunks)[: self._used[device]] if chunks else torch.empty(0)
            self._rows[device] = rows.cpu().numpy()
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self._pending = 0

    def summary(self, handle: int) -> Summary:
        device, row = self._where[handle]
        return Summary._make(self._rows[device][row].tolist())

    def clear(self) -> None:
        for device in self._used:
            self._used[device] = 0
        self._where.clear()
        self._rows.clear()
        self._devices.clear()

    def _row(self, tensor: torch.Tensor) -> torch.Tensor:
        values = tensor if self._low_precision and tensor.is_floating_point() else tensor.to(torch.float64)
        nan, inf = values.isnan(), values.isinf()
        fields = (
            torch.full((), tensor.numel(), dtype=torch.float64, device=tensor.device),
            nan.sum(),
            (inf & (values > 0)).sum(),
            (inf & (values < 0)).sum(),
            (values == 0).sum(),
            (values < 0).sum(),
            (values > 0).sum(),
            values.amax(),
            values.amin(),
            values.sum(),
            (values * values).sum(),
        )
        return torch.stack([field.to(torch.float64) for field in fields])
