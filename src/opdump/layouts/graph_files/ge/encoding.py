"""Encodes a graph as `ge.proto.ModelDef`, in text and in JSON."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opdump.dtypes.data_types import BY_NAME
from opdump.layouts.graph_files.ge.graph import GeGraph, GeOperator, GeOrigin, GeTensor, is_control_edge
from opdump.layouts.graph_files.ge.schema import model_def

ORIGINAL_NAMES: Final = "_datadump_original_op_names"
NO_TASK: Final = "_no_task"
ORIGIN_NAME: Final = "_datadump_origin_name"
ORIGIN_SLOT: Final = "_datadump_origin_output_index"
UNKNOWN_RANK: Final = -2
"""The value of the graph engine for an unknown number of dimensions."""
_INT64: Final = 2**63
_ONE_VALUE: Final = (str, int, float, bytes)
_LIST_TYPES: Final = {"s": 1, "i": 2, "f": 3, "b": 4}


def model_of(graphs: Sequence[GeGraph]) -> Any:
    """The message. Its own name is empty, and the root is the first of its graphs, as in files of the graph engine."""
    model = model_def()()
    for graph in graphs:
        written = model.graph.add(name=graph.name)
        written.input.extend(graph.inputs)
        written.output.extend(graph.outputs)
        readers = _readers(graph)
        for number, operator in enumerate(graph.operators):
            _fill(written.op.add(), operator, number, readers[operator.name])
        for name, value in graph.attributes.items():
            _add(written.attr, name, value)
    return model


def encode_text(model: Any) -> str:
    """The message in the text format of protobuf; UTF-8 is unchanged, in every version of protobuf."""
    from google.protobuf import text_format  # slow to import, and reading does not need it

    return str(text_format.MessageToString(model, as_utf8=True))


def encode_json(model: Any) -> str:
    """The message as JSON: numbers as numbers, names of enumerations, entries of a map as `{"key": ..., "value": ...}`."""
    # Without indentation, which the compiled JSON encoder lacks.
    return json.dumps(_as_json(model), ensure_ascii=False) + "\n"


def _readers(graph: GeGraph) -> Mapping[str, list[tuple[str, int]]]:
    """For each operator its readers, with the slot that they read; operators that only wait for it have slot -1."""
    readers: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for operator in graph.operators:
        for slot, source in enumerate(operator.inputs):
            if source:
                place = -1 if is_control_edge(source) else slot
                readers[source.rpartition(":")[0]].append((operator.name, place))
    return readers


def _fill(op: Any, operator: GeOperator, number: int, readers: list[tuple[str, int]]) -> None:
    op.name = operator.name
    op.type = operator.op_type
    op.input.extend(operator.inputs)
    op.id = number
    op.stream_id = 0
    op.input_name.extend(operator.input_names)
    for source in operator.inputs:
        if source:
            name, _, slot = source.rpartition(":")
            op.src_name.append(name)
            op.src_index.append(int(slot))
    for reader, place in readers:
        op.dst_name.append(reader)
        op.dst_index.append(place)
    op.is_input_const.extend(operator.constant_inputs)
    for tensor in operator.input_tensors:
        _describe(op.input_desc.add(), tensor)
    origins = operator.origins or (None,) * len(operator.outputs)
    for tensor, origin in zip(operator.outputs, origins, strict=True):
        described = op.output_desc.add()
        _describe(described, tensor)
        if origin is not None:
            _add_origin(described, tensor, origin)
    op.subgraph_name.extend(operator.subgraphs)
    for name, value in operator.attributes.items():
        _add(op.attr, name, value)
    if operator.original_names:
        _add(op.attr, ORIGINAL_NAMES, list(operator.original_names))
    if not operator.runs:
        _add(op.attr, NO_TASK, True)


def _describe(described: Any, tensor: GeTensor) -> None:
    kind = BY_NAME.get(tensor.dtype)
    described.dtype = kind.number if kind is not None else 0
    described.layout = tensor.format
    described.device_type = "NPU"
    if tensor.shape is None:
        described.shape.dim.append(UNKNOWN_RANK)
        return
    described.shape.dim.extend(tensor.shape)
    described.real_dim_cnt = len(tensor.shape)
    if kind is not None and kind.bits and all(dim >= 0 for dim in tensor.shape):
        size = (math.prod(tensor.shape) * kind.bits + 7) // 8
        if size < _INT64:
            described.size = size


def _add_origin(described: Any, tensor: GeTensor, origin: GeOrigin) -> None:
    _add(described.attr, ORIGIN_NAME, origin.op_name)
    _add(described.attr, ORIGIN_SLOT, origin.slot)
    _add(described.attr, "_datadump_origin_format", tensor.format)
    _add(described.attr, "origin_format", tensor.format)
    if tensor.shape:  # readers expect the numbers of a list if there is one, and a scalar has none
        _add(described.attr, "origin_shape", list(tensor.shape))
    _add(described.attr, "_datadump_is_multiop", False)


def _add(attributes: Any, name: str, value: Any) -> None:
    entry = attributes.add(key=name)
    attribute = entry.value
    if isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int) and -_INT64 <= value < _INT64:
        attribute.i = value
    elif isinstance(value, float):
        attribute.f = value
    elif isinstance(value, str):
        attribute.s = value
    elif isinstance(value, list | tuple) and (kind := _kind_of_list(value)) is not None:
        getattr(attribute.list, kind).extend(value)
        attribute.list.val_type = _LIST_TYPES[kind]
    else:
        attribute.s = json.dumps(value, ensure_ascii=False)


def _kind_of_list(values: Sequence[Any]) -> str | None:
    """The field for a list of one kind; None for another list."""
    if all(isinstance(value, str) for value in values):
        return "s"
    if all(isinstance(value, bool) for value in values):
        return "b"
    if all(isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64 for value in values):
        return "i"
    return "f" if all(isinstance(value, float) for value in values) else None


def _as_json(message: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field, value in message.ListFields():
        if isinstance(value, _ONE_VALUE) or not hasattr(value, "__len__"):
            shown[field.name] = _json_value(field, value)
        elif field.message_type is None and field.enum_type is None and not (value and isinstance(value[0], float)):
            shown[field.name] = list(value)
        else:
            shown[field.name] = [_json_value(field, each) for each in value]
    return shown


def _json_value(field: Any, value: Any) -> Any:
    if isinstance(value, str):
        return value
    if field.message_type is not None:
        return _as_json(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value
