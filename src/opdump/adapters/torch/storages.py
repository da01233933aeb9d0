"""Finds the memory locations of the tensors of a step: the storage, the place in it, and how often it was written.

Storages are numbered in the order in which a step first uses them, so that a repeated step has the same numbers. A weak
reference to each is kept until the step ends, so that no other storage gets its identity.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import torch

from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import (
    SOURCES,
    count_of_writes,
    has_ended,
    hold_weakly,
    identity_of,
    no_subclass_functions,
    release_memory,
)
from opdump.adapters.torch.schemas import Found
from opdump.kernels import SeenTensors
from opdump.records import Memory

_STRIDED = torch.strided
_UNTOLD = is_lost(SOURCES)
PLAIN_CLASSES: Final = (torch.Tensor, torch.nn.Parameter)
"""The classes whose properties are PyTorch's own."""
_MOST_KNOWN = 200_000
"""Beyond this many distinct locations the cache is cleared: if steps do not repeat, its entries are not used again."""
_WITHOUT: Final = (RuntimeError, NotImplementedError, ValueError)
"""What PyTorch raises for a tensor without a storage or strides; ValueError for a parameter of a lazy module."""


class Storages:
    """The storages of the running step, emptied at its end."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.first: dict[int, tuple[int, int]] = {}
        """The number of each storage, and the version at which it was first seen, by identity."""
        self.numbers = count()
        self._known: dict[tuple[int, int, tuple[int, ...], int], Memory] = {}
        """One object per location, because comparisons of repeated steps compare identities first."""
        self._soon: set[int] = set()
        """Identities of the tensors whose write counter is about to increase."""
        self.seen = SeenTensors(0)
        """Tensors that were read in this step and not written since; a reader replaces it, with its minimum size."""
        self._is_written_unseen = False

    def hold(self, key: int, storage: torch.UntypedStorage) -> None:
        """Reserve the identity `key` of a storage until the step ends."""
        if key not in self.held:
            self.held[key] = hold_weakly(storage)

    def memory_of(self, tensor: torch.Tensor) -> Memory | None:
        """The current memory location of a tensor; None without a storage (sparse, wrapped)."""
        if tensor.__class__ in PLAIN_CLASSES:
            return self.memory_of_plain(tensor)
        with no_subclass_functions():
            return self.memory_of_plain(tensor)

    def memory_of_plain(self, tensor: torch.Tensor) -> Memory | None:
        """The same for a tensor whose class overrides no properties. It is called about a thousand times per step."""
        if _UNTOLD:
            return None
        try:
            storage = tensor.untyped_storage()
            strides = tensor.stride()
            offset: Any = tensor.storage_offset()
        except _WITHOUT:
            return None
        try:
            version = count_of_writes(tensor)
            if self._soon and id(tensor) in self._soon:
                version += 1
        except RuntimeError:  # made in inference mode, where nothing is counted
            version = 0
        key = identity_of(storage)
        seen = self.first.get(key)
        if seen is None:
            self.hold(key, storage)
            seen = self.first.setdefault(key, (next(self.numbers), version))  # another thread may have numbered it
        place = (seen[0], offset, strides, version - seen[1])
        memory = self._known.get(place)
        if memory is None:
            memory = self._known[place] = Memory(*place)
        return memory

    def read_once(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """The identity of the storage and the version of a tensor. While both stay the same and no operator writes to it,
        it need not be read again.

        None if uncounted writes are possible: by numpy or another owner of the memory (such a storage is not resizable), by
        another process, or by a running collective.
        """
        if _UNTOLD or self._is_written_unseen:
            return None
        try:
            storage, version = tensor.untyped_storage(), count_of_writes(tensor)
        except _WITHOUT:  # in inference mode nothing is counted
            return None
        if not storage.resizable() or storage.is_shared():
            return None
        return identity_of(storage), version + (id(tensor) in self._soon)

    def written(self, tensors: Iterable[torch.Tensor]) -> None:
        """An operator has written to these tensors."""
        if not self.seen:
            return
        for tensor in tensors:
            storage = storage_of(tensor)
            # A storage that is not resizable has external memory, which another storage may share.
            if storage is None or not storage.resizable():
                self.seen.clear()
            else:
                self.seen.forget(identity_of(storage))

    def written_anywhere(self) -> None:
        """An operator has run whose writes are unknown."""
        self.seen.clear()

    def written_unseen(self) -> None:
        """Until the step ends, something may write at any time."""
        self.seen.clear()
        self._is_written_unseen = True

    def see(self, tensors: Iterable[torch.Tensor]) -> None:
        """Number the storages of these tensors, in their order."""
        for tensor in tensors:
            self.memory_of(tensor)

    @contextmanager
    def counted(self, written: Iterable[Found]) -> Iterator[None]:
        """Inside the block, these tensors count as written once more: PyTorch counts only after the mode has returned."""
        soon = {id(tensor) for _, _, tensor in written}
        self._soon |= soon
        try:
            yield
        finally:
            self._soon -= soon

    def is_in_use(self, key: int) -> bool:
        """Whether the program or PyTorch still uses a held storage."""
        return key in self.held and not has_ended(self.held[key])

    def clear(self, kept: Collection[int] = ()) -> None:
        """Forget everything and release all storages except those in `kept`."""
        self.first.clear()
        self.seen.clear()
        self._is_written_unseen = False
        self.numbers = count()
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        for key in [key for key in self.held if key not in kept]:
            release_memory(self.held.pop(key))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The storage of a dense tensor; None without one (sparse, wrapped)."""
    return None if tensor.layout is not _STRIDED else dense_storage(tensor)


def dense_storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """The same for a tensor that is known to be strided."""
    try:
        return None if _UNTOLD else tensor.untyped_storage()
    except _WITHOUT:
        return None


def keep_memory(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Keep the memory of a tensor alive. The returned function returns the program's tensor while that exists (assigning
    `.data` may give it other memory), else a tensor with the kept memory.
    """
    original = weakref.ref(tensor)
    with torch.no_grad():
        alias = tensor.detach()

    def now() -> torch.Tensor:
        found = original()
        return alias if found is None else found

    return now
