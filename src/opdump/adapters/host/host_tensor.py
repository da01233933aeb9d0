"""HostTensor: a tensor in the memory of this process. The memory may have any owner."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from opdump.adapters.host.element_types import BY_DTYPE, BY_NUMBER, ElementType
from opdump.records import Memory, StatisticValue
from opdump.statistics import Extremes

if TYPE_CHECKING:
    import onnxruntime

Array = npt.NDArray[Any]

_ELEMENTS: Final = {element.storage: element for element in BY_DTYPE.values() if element.known_to_numpy}
"""By dtype, because numpy takes long to form the name of a type."""


class HostTensor:
    """Dense elements in C order at an address, and the results of a reader.

    `owner` keeps the memory alive. `stays`: the elements will not change, so an array over the same memory may be filed later. `npy`: a
    file that also contains the elements (`HostPayload.npy`). `fixed`: the tensor is the same in every run (an initialiser). `memory`: its
    location among the tensors of the step, if known.
    """

    __slots__ = ("array", "count", "digest", "element", "extremes", "fixed", "generation", "memory", "npy", "others", "owner", "pointer", "row", "shape", "size",
                 "stays")  # fmt: skip

    def __init__(
        self,
        element: ElementType,
        shape: tuple[int, ...],
        pointer: int,
        owner: object,
        *,
        stays: bool,
        fixed: bool = False,
        npy: str = "",
    ) -> None:
        self.npy = npy
        self.memory: Memory | None = None
        self.element = element
        self.shape = shape
        self.count = math.prod(shape)
        self.size = element.size(self.count)
        self.pointer = pointer
        self.owner = owner
        self.stays = stays
        self.fixed = fixed
        self.row = -1
        self.generation = -1
        self.digest = (-1, -1)
        """The generation of the reader when the digests were computed, and their number."""
        self.array: Array | None = None
        self.others: Mapping[str, StatisticValue] | None = None
        self.extremes: list[Extremes | None] = []
        """Max and min by the rules of a device; empty until they are computed, None if they equal the summary."""

    @classmethod
    def of_ort_value(cls, value: onnxruntime.OrtValue) -> HostTensor:
        """A dense tensor of ONNX Runtime on the host. Its elements do not change, because only the capture has it."""
        element = BY_NUMBER[value.element_type()]
        # No reader uses the pointer of text, whose memory contains objects, or of an empty tensor, which has no memory.
        return cls(element, tuple(value.shape()), value.data_ptr(), value, stays=True)

    @classmethod
    def of_array(
        cls, array: Array, element: ElementType | None = None, *, stays: bool = False, fixed: bool = False
    ) -> HostTensor:
        """A tensor over an array, or over a copy if the array is not contiguous or not in native byte order.

        `element` is the type of the raw bits if numpy has no name for it; the shape remains that of the array.
        """
        if element is None:
            element = _ELEMENTS.get(array.dtype) or BY_DTYPE.get(array.dtype.name) or BY_DTYPE["string"]
        contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        if not contiguous.dtype.isnative:
            contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="))
        # A copy that was made here does not change.
        stays = stays or (contiguous.base is None and contiguous is not array)
        return cls(element, array.shape, contiguous.ctypes.data, contiguous, stays=stays, fixed=fixed)

    def raw(self) -> Array:
        """The memory as a flat array of the element type's storage, without a copy."""
        memory = (ctypes.c_char * self.size).from_address(self.pointer)
        # The array keeps `memory` alive, and `memory` keeps the owner of the elements alive.
        memory.owner = self.owner  # type: ignore[attr-defined]  # a ctypes object takes attributes
        flat: Array = np.frombuffer(memoryview(memory), self.element.storage)
        return flat


def host_tensor(array: Any) -> HostTensor | str:
    """An array as a HostTensor; the name of its type if that is not an element type of at least 8 bits."""
    array = np.asarray(array)
    name = str(array.dtype.name)
    element = BY_DTYPE.get(name)
    # numpy uses one byte for an element below 8 bits, but a HostTensor has packed ones.
    if element is None or element.bits < 8:
        return name
    return HostTensor.of_array(array, element)
