"""Steps made by hand: nodes, their inputs and outputs, and the memory of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opdump.comparison.nodes import Node
from opdump.records import IO, HostPayload, Memory, OpRecord, Phase, TensorRecord

Array = NDArray[Any]
NOWHERE = OpRecord("nothing", "Default/nothing", 0)


def record(
    values: Any,
    storage: int | None = None,
    source: str = "",
    *,
    offset: int = 0,
    strides: Sequence[int] | None = None,
    io: IO = "input",
    slot: int = 0,
    op: OpRecord = NOWHERE,
) -> TensorRecord:
    """A tensor in a storage, row-major unless `strides` is given; without a storage its memory is unknown."""
    array = np.asarray(values)
    dense = [each // array.itemsize for each in np.empty(array.shape, array.dtype).strides]
    memory = None if storage is None else Memory(storage, offset, tuple(dense if strides is None else strides))
    return TensorRecord(
        op, io, slot, array.dtype.name, array.shape, payload=HostPayload(array), source=source, memory=memory
    )


def node(
    index: int,
    op_type: str,
    inputs: Sequence[TensorRecord] = (),
    outputs: Sequence[TensorRecord] = (),
    phase: Phase = "forward",
    makers: Mapping[int, tuple[int, int]] | None = None,
) -> Node:
    """An execution of an operator with these inputs and outputs, in slot order."""
    op = OpRecord(op_type, f"Default/{op_type}-op{index}", index, order=index, phase=phase)
    return Node(index, op, dict(enumerate(inputs)), dict(enumerate(outputs)), makers or {})
