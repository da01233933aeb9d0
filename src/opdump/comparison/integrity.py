"""Whether what operators read is what was written there: one run by itself, bit for bit.

A flipped bit, memory that somebody else wrote, a write that went past the framework: the input of an operator differs from what its
maker left, and no operator in between wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.memory import Memory
from opdump.comparison.trace import Node, Trace, leaf_name
from opdump.records import TensorRecord

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Violation:
    """An input that does not hold what was written: how many elements, of how many, and who had written it (-1: nobody was seen)."""

    changed: int
    size: int
    writers: frozenset[int]


@dataclass(slots=True)
class Integrity:
    """`violations` by node and slot. `state` is what named tensors (parameters, buffers, states of optimizers) held at the end."""

    violations: dict[tuple[int, int], Violation] = field(default_factory=dict)
    inherited: set[tuple[int, int]] = field(default_factory=set)
    """Inputs that no operator of the step wrote, and that hold what the step before left in them."""
    state: dict[str, Array] = field(default_factory=dict)


def check_integrity(trace: Trace, before: Mapping[str, Array]) -> Integrity:
    """Follows the memory of a step. `before` is the state that the step before left."""
    memory = Memory(wide=False)
    found = Integrity(state=dict(before))
    named: dict[str, tuple[Node, int]] = {}
    for node in trace.nodes:
        for slot, record in node.inputs.items():
            if record.payload is None or record.skip:
                continue
            values = record.numpy()
            read = memory.read(node, slot)
            name = leaf_name(record)
            if name and name not in named:
                named[name] = (node, slot)
            if read.values is None or read.unknown is not None:
                if read.values is None and name in before and before[name].shape == values.shape:
                    if _is_equal(before[name], values).all():
                        found.inherited.add((node.index, slot))
                    else:
                        unequal = int(np.count_nonzero(~_is_equal(before[name], values)))
                        found.violations[node.index, slot] = Violation(unequal, values.size, frozenset())
                if record.memory is not None:
                    memory.write(-1, slot, record, values)
                continue
            unequal = 0 if record.memory is None else int(np.count_nonzero(~_is_equal(read.values, values)))
            if unequal:
                found.violations[node.index, slot] = Violation(unequal, values.size, read.writers)
                if record.memory is not None:
                    memory.write(-1, slot, record, values)
        for slot, record in node.outputs.items():
            if record.payload is not None:
                memory.write(node.index, slot, record, record.numpy())
    for name, (node, slot) in named.items():
        read = memory.read(node, slot)
        if read.values is not None and node.inputs[slot].memory is not None:
            found.state[name] = read.values
    for name, record in trace.finals.items():
        if record.payload is not None:
            found.state[f"Parameter.{name}"] = record.numpy()
    return found


def _is_equal(one: Array, other: Array) -> NDArray[np.bool_]:
    equal = one == other
    if one.dtype.kind in "fc":
        equal |= np.isnan(one) & np.isnan(other)
    return np.asarray(equal)


def holds_elements(records: Mapping[int, TensorRecord]) -> bool:
    """Whether any of the tensors has its elements in the dump."""
    return any(record.payload is not None for record in records.values())
