"""Who made what is read, in dumps that do not say it: those of devices, which have a file for each operator and nothing between these.

An input is taken for the latest output before it that has the same bits, in whatever shape. What is the same throughout, or a single
element, tells nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from opdump.comparison.trace import Trace, has_elements
from opdump.records import TensorRecord

_Bits = tuple[str, bytes]


def tells_sources(trace: Trace) -> bool:
    """Whether the dump says of any input where it comes from."""
    return any(record.source for node in trace.nodes for record in node.inputs.values())


def with_makers(trace: Trace) -> Trace:
    """The trace, with makers inferred if it names no source of any input."""
    if tells_sources(trace):
        return trace
    latest: dict[_Bits, tuple[int, int]] = {}
    nodes = []
    for node in trace.nodes:
        makers = {slot: latest[bits] for slot, bits in _bits_of(node.inputs).items() if bits in latest}
        nodes.append(replace(node, makers=makers))
        latest.update({bits: (node.index, slot) for slot, bits in _bits_of(node.outputs).items()})
    return replace(trace, nodes=nodes)


def _bits_of(records: Mapping[int, TensorRecord]) -> dict[int, _Bits]:
    found = {}
    for slot, record in records.items():
        if not has_elements(record):
            continue
        array = record.numpy()
        if array.size > 1 and not (array == array.flat[0]).all():
            found[slot] = record.dtype, hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()
    return found
