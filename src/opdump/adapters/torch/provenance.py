"""Who wrote the memory that an operator reads.

The key is the storage, not the tensor: views, detached aliases and in-place results share it. A weak reference to the storage
is held for as long as the entry lives, so that its address cannot be given to another storage in between.
"""

from __future__ import annotations

from typing import Any

import torch


class Provenance:
    """Maps storages to the operator output, parameter or constant that they hold; emptied at the end of a step."""

    def __init__(self) -> None:
        self._sources: dict[int, str] = {}
        self._weak: dict[int, Any] = {}

    def note(self, tensor: torch.Tensor, source: str) -> None:
        """From now on the storage of `tensor` holds `source`. Tensors without a storage are ignored."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key = storage._cdata
        if key not in self._weak:
            self._weak[key] = storage._weak_ref()
        self._sources[key] = source

    def source(self, tensor: torch.Tensor) -> str:
        """What the storage of `tensor` holds; empty where nobody was seen to write it."""
        storage = storage_of(tensor)
        return "" if storage is None else self._sources.get(storage._cdata, "")

    def clear(self) -> None:
        """Forgets everything and lets the storages go."""
        self._sources.clear()
        while self._weak:
            _, weak = self._weak.popitem()
            torch.UntypedStorage._free_weak_ref(weak)


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a dense tensor; None where there is none (sparse, wrapped)."""
    if tensor.layout is not torch.strided:
        return None
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None
