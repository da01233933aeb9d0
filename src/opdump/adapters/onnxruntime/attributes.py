"""Converts the attributes of ONNX nodes to JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from opdump.adapters.host.element_types import BY_NUMBER

_MOST_ELEMENTS: Final = 64
"""For a tensor with more elements, only type and shape are kept: the weights of a model are not arguments."""


def arguments_of(node: onnx.NodeProto) -> Mapping[str, Any]:
    """The attributes in the node, by name. Omitted attributes with defaults are not included (see `defaults.py`).

    Floats are the shortest decimals that represent the same float32; NaN and infinities, which JSON lacks, become
    `{"float": "nan"}`. A tensor is `{"dtype": ..., "shape": [...], "elements": [...]}`, without elements beyond 64; a graph is
    `{"graph": name}`; bytes that are not UTF-8 text are `{"bytes": hexadecimal digits}`.
    """
    return {attribute.name: json_value(attribute) for attribute in node.attribute}


def json_value(attribute: AttributeProto) -> Any:
    """The value of an attribute, in the form of `arguments_of`."""
    if attribute.ref_attr_name:
        return {"attribute": attribute.ref_attr_name}
    return _plain(onnx.helper.get_attribute_value(attribute))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return {"bytes": value.hex()}
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if isinstance(value, onnx.GraphProto):
        return {"graph": value.name}
    if isinstance(value, onnx.SparseTensorProto):
        return {"sparse tensor": {"shape": list(value.dims)}}
    if isinstance(value, onnx.TypeProto):
        return {"type": value.WhichOneof("value")}
    return [_plain(item) for item in value]


def _tensor(tensor: onnx.TensorProto) -> dict[str, Any]:
    kind = BY_NUMBER.get(tensor.data_type)
    found: dict[str, Any] = {"dtype": kind.dtype if kind else str(tensor.data_type), "shape": list(tensor.dims)}
    in_file = tensor.data_location == onnx.TensorProto.EXTERNAL
    if math.prod(tensor.dims) <= _MOST_ELEMENTS and not in_file and kind is not None:
        elements = numpy_helper.to_array(tensor)
        if elements.dtype.kind == "V":
            elements = elements.astype(np.float32)
        found["elements"] = [_scalar(item) for item in elements.reshape(-1).tolist()]
    return found


def _scalar(item: Any) -> Any:
    if isinstance(item, complex):
        return {"complex": [_scalar(item.real), _scalar(item.imag)]}
    if isinstance(item, float):
        return item if math.isfinite(item) else {"float": str(item)}
    if isinstance(item, bytes):
        return _plain(item)
    return item if isinstance(item, (int, str)) else float(item)
