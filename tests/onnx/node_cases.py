"""The node tests in the `onnx` package, as feeds that ONNX Runtime accepts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime

_NEWEST_IR_VERSION = 13


@cache
def node_cases() -> tuple[Any, ...]:
    """Every node test: a model and its inputs. The package creates them with numpy, which takes half a minute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they divide by zero on purpose
        from onnx.backend.test.loader import load_model_tests

        cases = tuple(load_model_tests(kind="node"))
    for case in cases:
        # The package stamps its newest version on models that do not need it, and ONNX Runtime supports it later.
        assert case.model is not None
        case.model.ir_version = min(case.model.ir_version, _NEWEST_IR_VERSION)
    return cases


class Bits(NamedTuple):
    """A tensor of a type that numpy lacks."""

    elements: np.ndarray[Any, Any]
    number: int
    """The number of the type in ONNX."""


def feeds_of(case: Any) -> Iterator[dict[str, Any]]:
    """The inputs of each data set, by name."""
    for inputs in inputs_of(case):
        yield {
            name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(*value) if isinstance(value, Bits) else value
            for name, value in inputs.items()
        }


def inputs_of(case: Any) -> Iterator[dict[str, Any]]:
    """The same without values of ONNX Runtime."""
    for inputs, _ in case.data_sets:
        names = [value.name for value in case.model.graph.input]
        # An optional input without a value is not fed.
        yield {
            name: _fed(value, information.type)
            for name, value, information in zip(names, inputs, case.model.graph.input, strict=False)
        }


def _fed(value: Any, kind: Any) -> Any:
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if not isinstance(value, np.ndarray) or value.dtype.kind != "V":
        return value
    element = kind.tensor_type.elem_type
    if value.dtype.itemsize == 1 and element in _PACKED:
        return value  # ONNX Runtime cannot create such a value from Python
    raw = value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
    return Bits(raw, element)


_PACKED = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("UINT4", "INT4", "FLOAT4E2M1", "UINT2", "INT2")
    if hasattr(onnx.TensorProto, name)
)
