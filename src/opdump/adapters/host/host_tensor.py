"""HostTensor: a tensor in the memory of this process, whoever owns that memory."""

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
"""numpy takes long to tell the name of a type."""


class HostTensor:
    """Dense elements in C order at an address, and what a reader has found out about them.

    `owner` keeps the memory alive. `stays`: nobody changes the elements any more, so that an array over the same memory may
    be filed later. `npy`: a file that holds the elements too (`HostPayload.npy`). `fixed`: it is the same tensor in every run (an initialiser).
    `memory` is where they lie among the other tensors of the step, if that is known.
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
        """The generation of a reader in which its digests were taken, and their number."""
        self.array: Array | None = None
        self.others: Mapping[str, StatisticValue] | None = None
        self.extremes: list[Extremes | None] = []
        """Max and min by the rules of a device, once they were asked for; None in it where the summary has them."""

    @classmethod
    def of_ort_value(cls, value: onnxruntime.OrtValue) -> HostTensor:
        """A dense tensor of ONNX Runtime on the host. It stays: nobody but the capture holds it."""
        element = BY_NUMBER[value.element_type()]
        # The memory of text holds objects, and an empty tensor has none.
        return cls(element, tuple(value.shape()), value.data_ptr(), value, stays=True)

    @classmethod
    def of_array(
        cls, array: Array, element: ElementType | None = None, *, stays: bool = False, fixed: bool = False
    ) -> HostTensor:
        """An array; `element` says what its raw bits are where numpy has no name for that (shape then still that of the array)."""
        if element is None:
            element = _ELEMENTS.get(array.dtype) or BY_DTYPE.get(array.dtype.name) or BY_DTYPE["string"]
        contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        if not contiguous.dtype.isnative:
            contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="))
        stays = stays or (contiguous.base is None and contiguous is not array)
        return cls(element, array.shape, contiguous.ctypes.data, contiguous, stays=stays, fixed=fixed)

    def raw(self) -> Array:
        """The memory as a flat array of the element type's storage, without a copy."""
        memory = (ctypes.c_char * self.size).from_address(self.pointer)
        # The array refers to `memory`, and this to whoever frees the elements.
        memory.owner = self.owner  # type: ignore[attr-defined]  # a ctypes object takes attributes
        flat: Array = np.frombuffer(memoryview(memory), self.element.storage)
        return flat


def host_tensor(array: Any) -> HostTensor | str:
    """An array for a reader; the name of its type where no array stands for elements of it."""
    array = np.asarray(array)
    name = str(array.dtype.name)
    element = BY_DTYPE.get(name)
    # Of elements below 8 bits numpy keeps one in each byte, and a HostTensor packs them.
    if element is None or element.bits < 8:
        return name
    return HostTensor.of_array(array, element)
