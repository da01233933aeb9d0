"""Finds the operator that wrote the memory that another operator reads.

The key is the storage, not the tensor, because views, detached aliases and in-place results share it. `Storages` reserves
its identity as long as the entry exists, so that no other storage can get it.

A write to a part of a storage (`gates.chunk(4, 1)[0].sigmoid_()`) is noted for that part; other parts keep their sources.
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
"""If a storage has more parts than this, the last writer becomes the source of all of it."""
_Place = tuple[int, tuple[int, ...], tuple[int, ...]]


class Provenance:
    """Maps storages to the operator output, parameter or constant in them.

    After the end of a step, only outputs that are still in use remain, such as a loss that the program reads after
    `optimizer.step()`.
    """

    def __init__(self, storages: Storages, *, are_read: bool = True) -> None:
        """`are_read`: the caller of `lives` then reads the memory of all of them."""
        self._storages = storages
        self._are_read = are_read
        self.sources: dict[int, str] = {}
        self.parts: dict[int, dict[_Place, str]] = {}
        self.unwritten: set[str] = set()
        """Outputs of allocations: memory that no recorded operator has written."""

    def note(self, tensor: torch.Tensor, source: str) -> None:
        """Note that the memory of `tensor` now contains `source`. Tensors without a storage are ignored."""
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
        """The source in the memory of `tensor`, the last of several; empty if no writer was seen."""
        storage = storage_of(tensor)
        return "" if storage is None else self.source_by_key(identity_of(storage), tensor)

    def is_written(self, tensor: torch.Tensor) -> bool:
        """Whether an operator of this step wrote the memory of `tensor`, or it is a parameter or constant.

        Memory that was only allocated is not written.
        """
        source = self.source(tensor)
        return bool(source) and source not in self.unwritten and not source.startswith(EARLIER_PREFIX)

    def lives(
        self,
        tensors: Iterable[Found],
        constant: Callable[[int, str, torch.Tensor], str] | None,
        unread: Container[str] = (),
    ) -> list[LiveTensor]:
        """The input tensors of an operator, with their sources.

        `unread` has the arguments whose values it does not read: if no operator wrote these, their memory is not inspected.
        `constant` names inputs without a known writer, which numpy or a library may have written.
        """
        lives: list[LiveTensor] = []
        sources, parts, unwritten = self.sources, self.parts, self.unwritten
        for slot, argument, tensor in tensors:
            # `self.source`, inlined: it would be two calls for each of the thousand tensors of a step.
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
                    # `constant` reads its tensor at once; number the storages of the earlier ones first.
                    self._storages.see(live[2] for live in lives)
                source = constant(slot, argument, tensor)
                self.note(tensor, source)
            lives.append((slot, argument, tensor, source, skip))
        return lives

    def source_by_key(self, key: int, tensor: torch.Tensor) -> str:
        """The same as `source`, for a known identity of the storage."""
        parts = self.parts.get(key)
        if parts is not None:
            place = _place(tensor)
            for other in reversed(parts):
                if other == place or _meet(other, place):
                    return parts[other]
        return self.sources.get(key, "")

    def next_step(self) -> None:
        """Keep the outputs that are still in use, marked as coming from an earlier step, and forget everything else."""
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
        """Forget everything, because operators may now run unrecorded."""
        self.sources.clear()
        self.parts.clear()
        self._storages.clear()

    def _note_part(self, key: int, tensor: torch.Tensor, source: str) -> bool:
        parts = self.parts.setdefault(key, {})
        place = _place(tensor)
        parts.pop(place, None)  # so that the latest write comes last
        parts[place] = source
        return len(parts) <= _MOST_PARTS


def _place(tensor: torch.Tensor) -> _Place:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def _meet(one: _Place, other: _Place) -> bool:
    """Whether two parts of a storage share an element; also true if that is hard to determine."""
    (first, sizes, strides), (second, other_sizes, other_strides) = one, other
    if strides != other_strides or len(sizes) != len(other_sizes):
        return _last(one) >= second and _last(other) >= first
    axes = sorted(zip(strides, sizes, other_sizes, strict=True), reverse=True)
    return _reaches(second - first, axes)


def _reaches(distance: int, axes: Sequence[tuple[int, int, int]]) -> bool:
    """Whether steps along the axes (stride, size, size of the other part) can cover the distance between two elements."""
    if not axes:
        return distance == 0
    (stride, size, other_size), rest = axes[0], axes[1:]
    if stride == 0:
        return _reaches(distance, rest)
    steps = distance // stride  # without overlaps the other axes reach less than one stride, so two counts suffice
    return any(-other_size < step < size and _reaches(distance - step * stride, rest) for step in (steps, steps + 1))


def _last(place: _Place) -> int:
    offset, sizes, strides = place
    return offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
