"""What wrote the memory that an operator reads, and where that memory lies: by its address, as long as the tensors that were written live."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from typing import Any, Final, NamedTuple

from mindspore import Tensor

from opdump.adapters.host import HostTensor
from opdump.adapters.mindspore.pynative.tensors import host_tensor, storage_of
from opdump.graph import PARAMETER_PREFIX
from opdump.records import Memory

_MOST_BYTES: Final = 2**31
"""Memory of a step that is held beyond the program's own use of it, so that no other tensor comes to lie there."""

_MOST_VIEWS: Final = 16


class Origin(NamedTuple):
    """What wrote a tensor (`{op_name}:{slot}`, `Parameter.{name}`, or nothing if that is not known), and where its elements lie."""

    source: str
    memory: Memory | None


class Written(NamedTuple):
    """A result of an operator, or what one read: it is held so that its memory is no other tensor's.

    `view` is the view that it is a copy of, and `base` what had been written there when it was copied.
    """

    source: str
    tensor: Any
    size: int
    view: Any = None
    base: Written | None = None


class Makers:
    """The results of the operators of a step, and the parameters, by the address of their memory.

    Not for use by several threads at once.
    """

    def __init__(self) -> None:
        self._written: OrderedDict[int, Written] = OrderedDict()
        self._parameters: dict[int, str] = {}
        self._held = 0
        self._views: deque[Tensor] = deque(maxlen=_MOST_VIEWS)
        self._numbers: dict[int, int] = {}
        """The numbers of storages, by address."""
        self._next_number = itertools.count()

    def origin(self, tensor: Tensor) -> Origin:
        """Where a tensor that is read comes from; of a copy of a view, where the view does."""
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
        if written.view is not None and self._written.get(storage_of(written.view)) is written.base:
            return self.origin(written.view)
        return Origin(written.source, self.place(tensor))

    def place(self, tensor: Tensor) -> Memory | None:
        """Where the elements of a tensor lie; None if it has none."""
        if not tensor.nbytes:
            return None
        address = storage_of(tensor)
        number = self._numbers.get(address)
        if number is None:
            number = self._numbers[address] = next(self._next_number)
        return Memory(number, int(tensor.storage_offset()), tuple(int(step) for step in tensor.stride()))

    def viewed(self, tensor: Tensor) -> None:
        """An operator has given another look at memory."""
        self._views.append(tensor)

    def copied_view(self, tensor: Tensor) -> Tensor | None:
        """The view that a tensor is a copy of: MindSpore copies most of them before an operator reads them."""
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
        """An operator has written a tensor."""
        address = storage_of(tensor)
        if address in self._parameters:  # in place: it is the same parameter with other elements
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
            self._numbers.pop(oldest, None)  # other tensors may come to lie there

    def knows(self, tensor: Tensor) -> bool:
        """Whether an operator wrote it or read it before, or it is a parameter."""
        address = storage_of(tensor)
        return address in self._written or address in self._parameters

    def clear(self) -> None:
        """The step has ended."""
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
