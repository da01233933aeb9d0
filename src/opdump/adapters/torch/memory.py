"""The memory of tensors: its values, its location in the storages of a step, and the operator that wrote it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

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
from opdump.graph import CONSTANT_PREFIX, EARLIER_PREFIX, PARAMETER_PREFIX
from opdump.kernels import DTYPE_CODES
from opdump.recorder import LiveTensor
from opdump.records import Memory, SkipReason

# Reads values of dense host tensors into numpy through their address, without running a torch operator.

NAMES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64", "bool"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("complex32", "complex64", "complex128", "qint8", "quint8", "qint32"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
_QUANTISED = frozenset(dtype for dtype, name in NAMES.items() if name in ("qint8", "quint8", "qint32"))
CODES = {dtype: DTYPE_CODES[name] for dtype, name in NAMES.items() if name in DTYPE_CODES}
# numpy has no bfloat16, so its values are read as raw bits.
_NUMPY: dict[torch.dtype, npt.DTypeLike] = {
    dtype: (np.uint16 if name == "bfloat16" else np.dtype(name))
    for dtype, name in NAMES.items()
    if name in DTYPE_CODES or name in ("complex64", "complex128")
}


def dtype_name(tensor: torch.Tensor) -> str:
    """`float32` for torch.float32."""
    return NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def is_opaque(tensor: torch.Tensor) -> bool:
    """Whether the values are unknown: a dtype without numbers, or a quantised dtype without scale and zero point."""
    return tensor.dtype not in NAMES or (tensor.dtype in _QUANTISED and not tensor.is_quantized)


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape; empty for a lazy tensor (no shape yet) and a nested one (several shapes)."""
    return () if tensor.is_nested or is_lazy(tensor) else tuple(tensor.shape)


def elements_of(dense: torch.Tensor) -> npt.NDArray[Any]:
    """A view of the memory, which keeps the tensor alive; bfloat16 as its 16 raw bits."""
    dtype = np.dtype(_NUMPY[dense.dtype])
    shape, strides = tuple(dense.shape), dense.stride()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (extent * dtype.itemsize)).from_address(dense.data_ptr())
    # The array keeps `memory` alive, and `memory` keeps the tensor.
    memory.owner = dense  # type: ignore[attr-defined]  # a ctypes object takes attributes
    elements: npt.NDArray[Any] = np.ndarray(
        shape, dtype, memoryview(memory), strides=tuple(stride * dtype.itemsize for stride in strides)
    )
    return elements


def widened(raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raw bits of bfloat16 as float32, of which they are the upper half."""
    return (raw.astype(np.uint32) << 16).view(np.float32)


# Finds the memory locations of the tensors of a step: the storage, the place in it, and how often it was written.
#
# Storages are numbered in the order in which a step first uses them, so that a repeated step has the same numbers. A weak
# reference to each is kept until the step ends, so that no other storage gets its identity.

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
        self.seen: Any = {}
        """Tensors that were read in this step and not written since: the `SeenTensors` of a reader that reads each once, or empty."""
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


# Finds the operator that wrote the memory that another operator reads.
#
# The key is the storage, not the tensor, because views, detached aliases and in-place results share it. `Storages` reserves
# its identity as long as the entry exists, so that no other storage can get it.
#
# A write to a part of a storage (`gates.chunk(4, 1)[0].sigmoid_()`) is noted for that part; other parts keep their sources.

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
