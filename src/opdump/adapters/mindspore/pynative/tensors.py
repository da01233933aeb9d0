"""MindSpore tensors as tensors in the memory of this process, and their makers."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from mindspore import Tensor

from opdump.adapters.host import BY_DTYPE, ElementType, HostTensor
from opdump.graph import PARAMETER_PREFIX
from opdump.records import Memory

# MindSpore tensors as tensors in the memory of this process.

_NAMES: Final = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}
"""MindSpore's names of types, if opdump has different ones."""


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results, in order."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)


def host_tensor(tensor: Tensor) -> HostTensor | str:
    """The current elements of a tensor; its type as text if they cannot be read.

    Reading the address waits for the operator that writes the tensor, and raises its error.
    """
    element = _element_of(str(tensor.dtype))
    if element is None:
        return str(tensor.dtype).lower()
    shape = tuple(tensor.shape)
    if 0 in shape:
        return HostTensor(element, shape, 0, None, stays=True)
    if not is_on_host(tensor):
        return (
            str(tensor.dtype).lower() if not element.known_to_numpy else HostTensor.of_array(tensor.asnumpy(), element)
        )
    pointer = tensor.data_ptr()
    if tensor.is_contiguous():
        return HostTensor(element, shape, pointer, tensor, stays=False)
    return _gathered(tensor, element, shape, pointer)


def has_several_values(tensor: HostTensor) -> bool:
    """Whether the elements are not all the same."""
    raw = bytes(tensor.raw())
    size = tensor.element.storage.itemsize
    return raw[size:] != raw[:-size]


def is_on_host(tensor: Tensor) -> bool:
    """Whether the tensor can be read at its address."""
    return str(tensor.device).startswith("CPU")


@functools.cache
def _element_of(name: str) -> ElementType | None:
    name = name.lower()
    return BY_DTYPE.get(_NAMES.get(name, name))


def storage_of(tensor: Tensor) -> int:
    """The address of the storage of a tensor."""
    return int(tensor.untyped_storage().data_ptr())


def _gathered(tensor: Tensor, element: ElementType, shape: tuple[int, ...], pointer: int) -> HostTensor:
    """A copy of the elements of a view."""
    strides = tuple(step * element.storage.itemsize for step in tensor.stride())
    size = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + element.storage.itemsize
    memory = (ctypes.c_char * size).from_address(pointer)
    flat = np.frombuffer(memory, element.storage, 1)
    array = np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False).copy()
    return HostTensor(element, shape, array.ctypes.data, array, stays=True)


# Finds the maker and the location of the memory that an operator reads, by address. The written tensors are kept alive meanwhile.

_MOST_BYTES: Final = 2**31
"""Maximum memory of a step that is kept alive, so that no other tensor gets the same address. Beyond it, the oldest is released."""

_MOST_VIEWS: Final = 64
"""The number of latest views that a tensor is compared with."""


class Origin(NamedTuple):
    """The maker of a tensor (`{op_name}:{slot}`, `Parameter.{name}`, or empty if unknown), and the location of its elements."""

    source: str
    memory: Memory | None


class Written(NamedTuple):
    """A tensor that an operator wrote or read. It is kept alive so that its memory is not reused.

    If it is a copy of a view, `view` is that view, and `base` the entry of the view's memory at the time of the copy.
    """

    source: str
    tensor: Any
    size: int
    view: Any = None
    base: Written | None = None


class Makers:
    """The results of the operators of a step, and the parameters, by address. Not thread-safe."""

    def __init__(self) -> None:
        self._written: OrderedDict[int, Written] = OrderedDict()
        self._parameters: dict[int, str] = {}
        self._held = 0
        self._views: deque[Tensor] = deque(maxlen=_MOST_VIEWS)
        self._numbers: dict[int, int] = {}
        """The numbers of storages, by address."""
        self._next_number = itertools.count()

    def origin(self, tensor: Tensor) -> Origin:
        """The origin of a tensor that is read. A copy of a view has the origin of the view."""
        address = storage_of(tensor)
        if address in self._parameters:
            return Origin(self._parameters[address], self.place(tensor))
        if address not in self._written:
            view = self.copied_view(tensor)
            base = None if view is None else self._written.get(storage_of(view))
            self._hold(address, Written("", tensor, int(tensor.nbytes), view, base))
        written = self._written.get(address)
        if written is None:
            return Origin("", self.place(tensor))
        # Only if nothing was written into the view's memory since the copy.
        if written.view is not None and self._written.get(storage_of(written.view)) is written.base:
            return self.origin(written.view)
        return Origin(written.source, self.place(tensor))

    def place(self, tensor: Tensor) -> Memory | None:
        """The location of the elements of a tensor; None if it has none."""
        if not tensor.nbytes:
            return None
        address = storage_of(tensor)
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = next(self._next_number)
        return Memory(number, int(tensor.storage_offset()), tuple(int(step) for step in tensor.stride()))

    def viewed(self, tensor: Tensor) -> None:
        """Note the result of an operator that may return a view."""
        self._views.append(tensor)

    def copied_view(self, tensor: Tensor) -> Tensor | None:
        """The view that a tensor is a copy of, found by equal bits. MindSpore copies most views before an operator reads them."""
        if self.knows(tensor):
            return None
        shape, dtype = tuple(tensor.shape), tensor.dtype
        alike = (view for view in reversed(self._views) if tuple(view.shape) == shape and view.dtype == dtype)
        elements = host_tensor(tensor)
        if not isinstance(elements, HostTensor):
            return None
        return next((view for view in alike if _have_same_bits(elements, host_tensor(view))), None)

    def add_parameter(self, parameter: Any) -> None:
        self._parameters[storage_of(parameter)] = f"{PARAMETER_PREFIX}{parameter.name}"

    def add(self, tensor: Tensor, source: str) -> None:
        """Note that an operator wrote a tensor."""
        address = storage_of(tensor)
        if address in self._parameters:  # written in place, it is still the same parameter
            return
        self._hold(address, Written(source, tensor, int(tensor.nbytes)))

    def _hold(self, address: int, written: Written) -> None:
        if not written.size:
            return
        self._drop(address)
        self._written[address] = written
        self._held += written.size
        while self._held > _MOST_BYTES:
            oldest = next(iter(self._written))
            self._drop(oldest)
            self._numbers.pop(oldest, None)  # another tensor may get this address

    def knows(self, tensor: Tensor) -> bool:
        """Whether an operator has written or read the tensor, or it is a parameter."""
        address = storage_of(tensor)
        return address in self._written or address in self._parameters

    def clear(self) -> None:
        """Forget the step, which has ended."""
        self._written.clear()
        self._parameters.clear()
        self._views.clear()
        self._numbers.clear()
        self._next_number = itertools.count()
        self._held = 0

    def _drop(self, address: int) -> None:
        gone = self._written.pop(address, None)
        if gone is not None:
            self._held -= gone.size


def _have_same_bits(one: HostTensor, other: HostTensor | str) -> bool:
    return isinstance(other, HostTensor) and one.size == other.size and one.raw().tobytes() == other.raw().tobytes()
