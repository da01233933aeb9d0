"""Tensors in the memory of this process: what adapters of graph runtimes share. No framework is imported here.

HostTensor    elements at an address, and what a reader found out about them
NumpyReader   takes summaries and elements of them
ElementType   the element types, those that numpy lacks among them
"""

from __future__ import annotations

from opdump.adapters.host.element_types import BY_DTYPE, BY_NUMBER, ElementType, element_of_type, widened_elements
from opdump.adapters.host.host_tensor import HostTensor, host_tensor
from opdump.adapters.host.reader import NumpyReader

__all__ = [
    "BY_DTYPE",
    "BY_NUMBER",
    "ElementType",
    "HostTensor",
    "NumpyReader",
    "element_of_type",
    "host_tensor",
    "widened_elements",
]
