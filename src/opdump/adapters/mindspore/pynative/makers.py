"""Who wrote the memory that an operator reads: by its address, as long as the tensors that were written live."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Final, NamedTuple

from mindspore import Tensor

from opdump.adapters.host import HostTensor
from opdump.adapters.mindspore.pynative.tensors import host_tensor, storage_of
from opdump.graph import PARAMETER_PREFIX

_MOST_BYTES: Final = 2**31
"""Memory of a step that is held beyond the program's own use of it, so that no other tensor comes to lie there."""

_MOST_VIEWS: Final = 16


class Written(NamedTuple):
    """A result of an operator, which is held so that its memory is no other tensor's."""

    source: str
    tensor: Any
    size: int


class Makers:
    """The results of the operators of a step, and the parameters, by the address of their memory.

    Not for use by several threads at once.
    """

    def __init__(self) -> None:
        self._written: OrderedDict[int, Written] = OrderedDict()
        self._parameters: dict[int, str] = {}
        self._held = 0
        self._views: deque[Tensor] = deque(maxlen=_MOST_VIEWS)

    def source_of(self, tensor: Tensor) -> str:
        """What wrote the memory: `{op_name}:{slot}`, `Parameter.{name}`, or nothing where that is not known."""
        address = storage_of(tensor)
        found = self._written.get(address)
        if found is not None:
            return found.source
        if address in self._parameters:
            return self._parameters[address]
        view = self.copied_view(tensor)
        return "" if view is None else self.source_of(view)

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
            self._drop(next(iter(self._written)))

    def read(self, tensor: Tensor) -> None:
        """An operator reads a tensor, whoever wrote it: the program has it."""
        if not self.knows(tensor):
            self._hold(storage_of(tensor), Written("", tensor, int(tensor.nbytes)))

    def knows(self, tensor: Tensor) -> bool:
        """Whether an operator wrote it or read it before, or it is a parameter."""
        address = storage_of(tensor)
        return address in self._written or address in self._parameters

    def clear(self) -> None:
        """The step has ended."""
        self._written.clear()
        self._parameters.clear()
        self._views.clear()
        self._held = 0

    def _drop(self, address: int) -> None:
        gone = self._written.pop(address, None)
        if gone is not None:
            self._held -= gone.size


def _have_same_bits(one: HostTensor, other: HostTensor | str) -> bool:
    return isinstance(other, HostTensor) and one.size == other.size and one.raw().tobytes() == other.raw().tobytes()
