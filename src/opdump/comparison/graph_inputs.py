"""Numbers that compiled code of MindSpore gives its operators as tensors, where PyNative mode gives them as arguments.

BiasAdd   input.2  int64 ()   data-1        the same as an argument: {"2": 0}
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from opdump.errors import CorruptDumpError
from opdump.graph import CONSTANT_PREFIX, PARAMETER_PREFIX
from opdump.records import OpRecord, TensorRecord

_LONGEST: Final = 16
_UPDATES: Final = re.compile(r"(?:Sparse)?Apply|Assign|Fused.*(?:Adam|Momentum)|Adam|SGD$|LARS|ScatterUpdate")
"""Types of operators that write into parameters that they read."""


def as_read(op: OpRecord, inputs: dict[int, TensorRecord]) -> tuple[OpRecord, dict[int, TensorRecord]]:
    """The operator with numbers that the graph holds among its arguments, by slot, and what it read under the slots that it has.

    A number of which the dump has neither elements nor statistics is left out, and so is a parameter that the operator writes: the dump has
    what it held afterwards.
    """
    if _UPDATES.match(op.op_type) and 0 in inputs:
        shape = inputs[0].shape
        inputs = {
            slot: record
            for slot, record in inputs.items()
            if not (record.source.startswith(PARAMETER_PREFIX) and record.shape == shape)
        }
    numbers = {slot: record for slot, record in inputs.items() if _is_number(record)}
    if not numbers:
        return op, inputs
    values = {str(slot): value for slot, record in numbers.items() if (value := _value(record)) is not None}
    return (
        replace(op, arguments={**op.arguments, **values}),
        {slot: record for slot, record in inputs.items() if slot not in numbers},
    )


def shape_given(op: OpRecord, given: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that an operator of compiled code gives an input of this shape, if it only looks at the same memory: MindSpore dumps the shape of that
    memory. None for other operators.
    """
    axes = op.arguments.get("1", op.arguments.get("axis"))
    shape: tuple[int, ...] | None = None
    if op.op_type == "Reshape" and isinstance(axes, list):
        known = math.prod(size for size in axes if size >= 0)
        shape = tuple(size if size >= 0 else math.prod(given) // max(1, known) for size in axes)
    elif op.op_type == "Flatten" and given:
        shape = (given[0], math.prod(given[1:]))
    elif op.op_type == "ExpandDims" and isinstance(axes, int):
        place = axes % (len(given) + 1)
        shape = (*given[:place], 1, *given[place:])
    elif op.op_type == "Squeeze":
        chosen = [axes] if isinstance(axes, int) else axes or [axis for axis, size in enumerate(given) if size == 1]
        left = {axis % max(1, len(given)) for axis in chosen}
        shape = tuple(size for axis, size in enumerate(given) if axis not in left)
    return shape if shape is not None and math.prod(shape) == math.prod(given) else None


def updated_parameter(op: OpRecord, inputs: Mapping[int, TensorRecord], outputs: Mapping[int, TensorRecord]) -> str:
    """The parameter that an operator of compiled code writes and gives as its first output; empty if there is none."""
    if not _UPDATES.match(op.op_type) or 0 not in inputs or 0 not in outputs or inputs[0].shape != outputs[0].shape:
        return ""
    return inputs[0].source if inputs[0].source.startswith(PARAMETER_PREFIX) else ""


def _is_number(record: TensorRecord) -> bool:
    if not record.source.startswith(CONSTANT_PREFIX) or len(record.shape) > 1:
        return False
    return record.shape == () or ("int" in record.dtype and record.shape[0] <= _LONGEST)


def _value(record: TensorRecord) -> Any:
    if record.payload is not None:
        try:
            return record.payload.to_host().tolist()
        except CorruptDumpError:
            return None  # who reads the records is told
    value = record.statistics.get("max")
    if record.shape != () or value is None:
        return None
    return bool(value) if record.dtype == "bool" else value
