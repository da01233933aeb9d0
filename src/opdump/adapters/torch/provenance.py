"""Finds the operator that wrote the memory that another reads.

The key is the storage, not the tensor: views, detached aliases and in-place results share it. It is held for as long as the entry
lives (`Storages`), so that its address cannot be given to another storage in between.

Writes into a part of a storage (`gates.chunk(4, 1)[0].sigmoid_()`) are kept apart by the part, so that each of the others
keeps the source that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

import torch

from opdump.adapters.torch.names_by_release import is_lost
from opdump.adapters.torch.private_names import SOURCES, identity_of
from opdump.adapters.torch.schemas import Found
from opdump.adapters.torch.storages import Storages, dense_storage, storage_of
from opdump.graph import CONSTANT_PREFIX, EARLIER_PREFIX, PARAMETER_PREFIX
from opdump.recorder import LiveTensor
from opdump.records import SkipReason

_STRIDED = torch.strided
_UNTOLD = is_lost(SOURCES)
_MOST_PARTS = 64
"""Beyond this many parts of one storage, the last writer stands for all of it."""
_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


class Provenance:
    """Maps storages to the operator output, parameter or constant in them.

    At the end of a step only outputs remain that are still in use, such as a loss that the program reads after `optimizer.step()`.
    """

    def __init__(self, storages: Storages, *, are_read: bool = True) -> None:
        """`are_read`: whoever asks for `lives` looks at the memory of all of them then."""
        self._storages = storages
        self._are_read = are_read
        self.sources: dict[int, str] = {}
        self.parts: dict[int, dict[_Place, str]] = {}
        self.unwritten: set[str] = set()
        """Outputs of allocations: memory that no recorded operator has written."""

    def note(self, tensor: torch.Tensor, source: str) -> None:
        """From now on `source` is in the memory of `tensor`. Tensors without a storage are ignored."""
        storage = storage_of(tensor)
        if storage is None:
            return
        key = identity_of(storage)
        if key not in self.sources:
            self._storages.hold(key, storage)
        elif tensor.numel() * tensor.element_size() < storage.nbytes() and self._note_part(key, tensor, source):
            return
        self.sources[key] = source
        self.parts.pop(key, None)

    def source(self, tensor: torch.Tensor) -> str:
        """The source in the memory of `tensor`; empty where no writer was seen. Of several writers, the last."""
        storage = storage_of(tensor)
        return "" if storage is None else self.source_by_key(identity_of(storage), tensor)

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Whether an operator of this step wrote the memory of `tensor`, or it has a name: memory of an allocation is not written."""
        source = self.source(tensor)
        return bool(source) and source not in self.unwritten and not source.startswith(EARLIER_PREFIX)

    def lives(
        self,
        tensors: Iterable[Found],
        constant: Callable[[int, str, torch.Tensor], str] | None,
        unread: Container[str] = (),
    ) -> list[LiveTensor]:
        """The tensors that an operator is given, with their sources.

        `unread` names the arguments of which it reads no element: where no operator wrote these, their memory is not to be looked at.
        `constant` names what it reads and no operator was seen to write: something else did, numpy or a library.
        """
        lives: list[LiveTensor] = []
        sources, parts, unwritten = self.sources, self.parts, self.unwritten
        for slot, argument, tensor in tensors:
            # `source`, without two calls for each of the thousand tensors of a step.
            storage = None if tensor.layout is not _STRIDED else dense_storage(tensor)
            if storage is None:
                source = ""
            elif parts:
                source = self.source_by_key(identity_of(storage), tensor)
            else:
                source = sources.get(identity_of(storage), "")
            skip: SkipReason = ""
            if source in unwritten:
                if argument.partition("[")[0] in unread:
                    skip = "allocation"
                else:
                    source = ""
            if not source and constant is not None and not _UNTOLD:
                if self._are_read:
                    self._storages.see(live[2] for live in lives)  # who files the constant looks at it before them
                source = constant(slot, argument, tensor)
                self.note(tensor, source)
            lives.append((slot, argument, tensor, source, skip))
        return lives

    def source_by_key(self, key: int, tensor: torch.Tensor) -> str:
        """The same where the identity of the storage is known."""
        parts = self.parts.get(key)
        if parts is not None:
            place = _place(tensor)
            for other in reversed(parts):
                if other == place or _meet(other, place):
                    return parts[other]
        return self.sources.get(key, "")

    def next_step(self) -> None:
        """Keep the outputs that are still in use, marked as those of an earlier step, and forget everything else."""
        kept: dict[int, str] = {}
        for key, source in self.sources.items():
            is_earlier = source.startswith(EARLIER_PREFIX)
            is_output = is_earlier or not source.startswith((PARAMETER_PREFIX, CONSTANT_PREFIX))
            if is_output and key not in self.parts and source not in self.unwritten and self._storages.is_in_use(key):
                kept[key] = source if is_earlier else EARLIER_PREFIX + source
        self.parts.clear()
        self.sources.clear()
        self.sources.update(kept)
        self._storages.clear(kept)

    def clear(self) -> None:
        """Forget everything: operators may run that are not recorded."""
        self.sources.clear()
        self.parts.clear()
        self._storages.clear()

    def _note_part(self, key: int, tensor: torch.Tensor, source: str) -> bool:
        parts = self.parts.setdefault(key, {})
        place = _place(tensor)
        parts.pop(place, None)  # the latest comes last
        parts[place] = source
        return len(parts) <= _MOST_PARTS


def _place(tensor: torch.Tensor) -> _Place:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _meet(one: _Place, other: _Place) -> bool:
    """Whether two parts of a storage share an element; also true where that is hard to find out."""
    (first, sizes, strides), (second, other_sizes, other_strides) = one, other
    if strides != other_strides or len(sizes) != len(other_sizes):
        return _last(one) >= second and _last(other) >= first
    axes = sorted(zip(strides, sizes, other_sizes, strict=True), reverse=True)
    return _reaches(second - first, axes)


def _reaches(distance: int, axes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether steps along the axes, (stride, size, size of the other), can cover the distance between two elements."""
    if not axes:
        return distance == 0
    (stride, size, other_size), rest = axes[0], axes[1:]
    if stride == 0:
        return _reaches(distance, rest)
    steps = distance // stride
    return any(-other_size < step < size and _reaches(distance - step * stride, rest) for step in (steps, steps + 1))


def _last(place: _Place) -> int:
    offset, sizes, strides = place
    return offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
