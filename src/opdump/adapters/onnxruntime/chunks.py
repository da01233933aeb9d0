"""Splits the nodes of a run into chunks whose tensors fit a memory limit.

Each chunk costs a run of the model. The sizes of tensors are known from the last run; before the first one, they are inferred from the
shapes of the inputs. If the size of a tensor is unknown, its node is a chunk of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from opdump.adapters.host.element_types import BY_NUMBER
from opdump.adapters.onnxruntime.selection import ChosenNode


def chunks_of(
    nodes: Sequence[ChosenNode],
    computed: Collection[str],
    limit: int,
    model: ModelProto,
    feeds: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> list[tuple[int, int]]:
    """Ranges of `nodes` (first, past the end) whose `computed` values together take at most `limit` bytes.

    A node whose own values exceed the limit is a chunk of its own. `sizes` are bytes known from an earlier run.
    """
    computed = frozenset(computed)
    known = sizes or _inferred_sizes(model, feeds)
    pieces: list[tuple[int, int]] = []
    first, held = 0, set[str]()
    for place, chosen in enumerate(nodes):
        values = computed.intersection(chosen.values)
        together = held | values
        if held and values and _bytes(together, known, limit) > limit:
            pieces.append((first, place))
            first, together = place, set(values)
        held = together
    pieces.append((first, len(nodes)))
    return pieces


def _bytes(values: Collection[str], known: Mapping[str, int], limit: int) -> int:
    return sum(known.get(value, limit) for value in values)


def _inferred_sizes(model: ModelProto, feeds: Mapping[str, Any]) -> dict[str, int]:
    graph = model.graph
    bare = ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.name = graph.name
    bare.graph.node.extend(graph.node)
    bare.graph.output.extend(graph.output)
    inputs = {value.name: value for value in graph.input}
    for name, value in inputs.items():
        added = bare.graph.input.add()
        added.CopyFrom(value)
        if isinstance(feeds.get(name), np.ndarray) and value.type.HasField("tensor_type"):
            shape = added.type.tensor_type.shape
            shape.ClearField("dim")
            for size in feeds[name].shape:
                shape.dim.add().dim_value = size
    for tensor in graph.initializer:
        if tensor.name not in inputs:
            # Type and shape of a weight are sufficient, except for the few numbers that are shapes themselves.
            if int(np.prod(tensor.dims)) <= 64 and tensor.data_location != onnx.TensorProto.EXTERNAL:
                bare.graph.initializer.append(tensor)
            else:
                bare.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        inferred = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}
    return {
        value.name: size
        for value in (*inferred.graph.value_info, *inferred.graph.output)
        if (size := _size(value)) is not None
    }


def _size(value: onnx.ValueInfoProto) -> int | None:
    kind = value.type.tensor_type
    element = BY_NUMBER.get(kind.elem_type)
    if element is None or not kind.HasField("shape") or any(not dim.HasField("dim_value") for dim in kind.shape.dim):
        return None
    return element.size(int(np.prod([dim.dim_value for dim in kind.shape.dim], dtype=np.int64)))
