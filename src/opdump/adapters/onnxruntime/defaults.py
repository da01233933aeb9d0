"""The values of attributes that a node omits: the defaults of the schema, and those that depend on the shapes of the inputs.

>>> defaults_of(dequantize, inputs)
{'axis': 1}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import onnx
import onnxruntime
from onnx import AttributeProto

from opdump.adapters.onnxruntime.attributes import json_value
from opdump.adapters.onnxruntime.replay_model import domain_of, versions_of
from opdump.errors import CannotReplayError
from opdump.records import OpRecord, TensorRecord

_Shape = tuple[int, ...]
_Shapes = Mapping[int, _Shape]
_FILTERS: Final[Mapping[str, int]] = {
    "Conv": 1, "ConvTranspose": 1, "ConvInteger": 1, "FusedConv": 1, "QLinearConv": 3, "NhwcFusedConv": 1,
}  # fmt: skip
"""Convolutions, and the slot of their filters."""
_POOLS: Final = frozenset({"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"})
_GATES: Final[Mapping[str, tuple[str, ...]]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_RECURRENT_WEIGHTS: Final = 2


def defaults_of(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
    """The values of omitted attributes, as JSON values like those of `arguments_of`."""
    found = _of_schema(op, inputs)
    shapes = {slot: record.shape for slot, record in inputs.items()}
    by_shape = _BY_SHAPE.get(op.op_type)
    return {**found, **by_shape(op, shapes)} if by_shape is not None and 0 in shapes else found


def older_defaults(node: onnx.NodeProto, version: int) -> Mapping[str, Any]:
    """The omitted attributes whose default differs in the newest version; a dump does not contain the version."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return {}
    own, newest = _of_version(node.op_type, schema.since_version, domain), _newest(node.op_type, domain)
    given = {attribute.name for attribute in node.attribute}
    return {
        name: value for name, value in own.items() if name not in given and name in newest and newest[name] != value
    }


def _newest(op_type: str, domain: str) -> Mapping[str, Any]:
    return _of_version(op_type, onnx.defs.onnx_opset_version(), domain)


def _of_schema(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Mapping[str, Any]:
    domain = domain_of(op)
    try:
        version = next(iter(versions_of(op, inputs)))
    except CannotReplayError:
        return {}
    return _of_version(op.op_type, version, domain)


@cache
def _of_version(op_type: str, version: int, domain: str) -> Mapping[str, Any]:
    try:
        return _values(onnx.defs.get_schema(op_type, version, "" if domain == "ai.onnx" else domain))
    except onnx.defs.SchemaError:
        return _runtime_schemas().get((domain, op_type), {})


def _values(schema: Any) -> Mapping[str, Any]:
    return {
        name: json_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != AttributeProto.UNDEFINED
    }


@cache
def _runtime_schemas() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """The defaults of ONNX Runtime's own operators; empty for a release that does not provide them."""
    try:
        schemas = onnxruntime.capi.onnxruntime_pybind11_state.get_all_operator_schema()
    except AttributeError:
        return {}
    found = {}
    for schema in schemas:
        if schema.domain.startswith("com."):
            values = {name: _parsed(attribute) for name, attribute in schema.attributes.items()}
            found[schema.domain, schema.name] = {
                name: json_value(value) for name, value in values.items() if value.type != AttributeProto.UNDEFINED
            }
    return found


def _parsed(attribute: Any) -> AttributeProto:
    return AttributeProto.FromString(attribute._default_value)


def _windows(op: OpRecord, shapes: _Shapes) -> Mapping[str, Any]:
    """For an operator that moves a window over an image."""
    axes = len(shapes[0]) - 2
    found: dict[str, Any] = {"strides": [1] * axes, "dilations": [1] * axes}
    if op.arguments.get("auto_pad", "NOTSET") == "NOTSET":
        found["pads"] = [0] * (2 * axes)
    filters = _FILTERS.get(op.op_type, -1)
    if filters in shapes:
        found["kernel_shape"] = list(shapes[filters][2:])
    return found


def _order(_: OpRecord, shapes: _Shapes) -> Mapping[str, Any]:
    return {"perm": [*range(len(shapes[0]))][::-1]}


def _recurrence(op: OpRecord, shapes: _Shapes) -> Mapping[str, Any]:
    directions = 2 if op.arguments.get("direction") == "bidirectional" else 1
    found: dict[str, Any] = {"activations": list(_GATES[op.op_type]) * directions}
    if _RECURRENT_WEIGHTS in shapes:
        found["hidden_size"] = shapes[_RECURRENT_WEIGHTS][-1]
    return found


def _all_axes(_: OpRecord, shapes: _Shapes) -> Mapping[str, Any]:
    return {} if 1 in shapes else {"axes": [*range(len(shapes[0]))]}


_REDUCTIONS: Final = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_BY_SHAPE: Final[Mapping[str, Callable[[OpRecord, _Shapes], Mapping[str, Any]]]] = {
    **dict.fromkeys((*_FILTERS, *_POOLS), _windows),
    **dict.fromkeys(_GATES, _recurrence),
    **{f"Reduce{name}": _all_axes for name in _REDUCTIONS},
    "Transpose": _order,
}
