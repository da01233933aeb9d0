"""Tensors in the memory of this process, shared by the adapters of graph runtimes. No framework is imported here.

HostTensor    elements at an address, and the results of a reader
HostColumns   the addresses of many tensors in columns; a Choice selects some of them
NumpyReader   reads summaries and elements
"""

from __future__ import annotations

from opdump.adapters.host.host_columns import Choice, ChosenTensors, HostColumns, facts_of
from opdump.adapters.host.host_tensor import HostTensor, host_tensor
from opdump.adapters.host.reader import NumpyReader

__all__ = ["Choice", "ChosenTensors", "HostColumns", "HostTensor", "NumpyReader", "facts_of", "host_tensor"]
