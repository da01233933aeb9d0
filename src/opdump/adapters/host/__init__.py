"""Tensors in the memory of this process: what adapters of graph runtimes share. No framework is imported here.

HostTensor    elements at an address, and what a reader found out about them
HostColumns   many of them in columns, of which a Choice names some
NumpyReader   takes summaries and elements of them
"""

from __future__ import annotations

from opdump.adapters.host.host_columns import Choice, ChosenTensors, HostColumns, facts_of
from opdump.adapters.host.host_tensor import HostTensor, host_tensor
from opdump.adapters.host.reader import NumpyReader

__all__ = ["Choice", "ChosenTensors", "HostColumns", "HostTensor", "NumpyReader", "facts_of", "host_tensor"]
