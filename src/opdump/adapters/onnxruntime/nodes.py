"""Isolates a node of an ONNX model: its attributes as JSON values, including omitted ones, and a model that consists of this node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from opdump.adapters.host import BY_DTYPE, BY_NUMBER, ElementType
from opdump.errors import CannotReplayError
from opdump.records import RUN_FACTS, OpRecord, TensorRecord

# Converts the attributes of ONNX nodes to JSON values.

_MOST_ELEMENTS: Final = 64
"""For a tensor with more elements, only type and shape are kept: the weights of a model are not arguments."""


def arguments_of(node: onnx.NodeProto) -> Mapping[str, Any]:
    """The attributes in the node, by name. Omitted attributes with defaults are not included (see `defaults_of`).

    Floats are the shortest decimals that represent the same float32; NaN and infinities, which JSON lacks, become
    `{"float": "nan"}`. A tensor is `{"dtype": ..., "shape": [...], "elements": [...]}`, without elements beyond 64; a graph is
    `{"graph": name}`; bytes that are not UTF-8 text are `{"bytes": hexadecimal digits}`. The number of parts of a Split that neither an attribute
    nor an input gives is included as the `num_outputs` of newer versions.
    """
    found = {attribute.name: json_value(attribute) for attribute in node.attribute}
    if node.op_type == "Split" and len(node.input) == 1 and found.keys().isdisjoint(("split", "num_outputs")):
        found["num_outputs"] = len(node.output)
    return found


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


# The values of attributes that a node omits: the defaults of the schema, and those that depend on the shapes of the inputs.

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


@cache
def _runtime_outputs() -> Mapping[tuple[str, str], int]:
    """The numbers of outputs of the same operators, with optional ones; empty if unknown."""
    schemas: list[Any] = getattr(onnxruntime.capi.onnxruntime_pybind11_state, "get_all_operator_schema", list)()
    return {
        (schema.domain, schema.name): len(schema.outputs)
        for schema in schemas
        if schema.domain.startswith("com.") and all(each.option != _VARIADIC for each in schema.outputs)
    }


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


# Rebuilds a model of one recorded node: its type, attributes and inputs, in the recorded types or in wider ones.
#
# A dump does not contain the operator version that the model requested. The newest version that has these attributes and inputs by
# name, and that runs, is used. If an older version defines the same attributes differently, the results of both are compared.

ONNX_DOMAINS: Final = frozenset({"ai.onnx", "ai.onnx.ml"})
_MEANS_SOMETHING_ELSE_BEFORE: Final[Mapping[str, int]] = {
    "Softmax": 13,
    "LogSoftmax": 13,
    "Hardmax": 13,
    "RoiAlign": 16,
}
"""Versions in which the meaning of the same attributes changed."""
_NEWEST_OF_OTHERS: Final = 1
_VARIADIC: Final = onnx.defs.OpSchema.FormalParameterOption.Variadic
_SINGLE: Final = onnx.defs.OpSchema.FormalParameterOption.Single
_FLOATS: Final = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_TYPE_ATTRIBUTES: Final = frozenset({"to", "dtype"})


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A model of one node. Its inputs are called x0, x1, ..., by slot, its outputs y0, y1, ...

    `types` are those of the inputs; types that numpy lacks are fed as float32 and cast in the model.
    """

    proto: ModelProto
    types: Mapping[int, ElementType]
    outputs: int
    version: int

    def computes_in(self, floating: int) -> bool:
        """Whether floats have that ONNX type, except those for which the operator accepts only another one."""
        floats = [element.number for element in self.types.values() if element.number in _FLOATS]
        return not floats or floating in floats


def domain_of(op: OpRecord) -> str:
    """The part of its kernel before `::`: `ai.onnx`, `com.microsoft`."""
    return op.kernel.partition("::")[0]


def versions_of(op: OpRecord, inputs: Mapping[int, TensorRecord]) -> Iterator[int]:
    """The versions of the operator that have these attributes and inputs, newest first. Raises CannotReplayError if there is none."""
    domain = domain_of(op)
    if domain not in ONNX_DOMAINS:
        yield _NEWEST_OF_OTHERS
        return
    found = False
    version = onnx.defs.onnx_opset_version() if domain == "ai.onnx" else 5
    while version > 0:
        schema = _schema(op, version)
        if schema is None:
            break
        if _takes(schema, op, inputs):
            found = True
            yield schema.since_version
        version = schema.since_version - 1
    if not found:
        raise CannotReplayError(f"onnx {onnx.__version__} has no {op.kernel} with these attributes and inputs")


def meant_otherwise(op: OpRecord, version: int) -> bool:
    """Whether versions of the operator before this one define the same attributes differently."""
    return version >= _MEANS_SOMETHING_ELSE_BEFORE.get(op.op_type, 1 << 31)


def model_of(
    op: OpRecord, inputs: Mapping[int, TensorRecord], version: int, floating: int | None, *, all_outputs: bool
) -> NodeModel:
    """The model with that version of the operator, with floats in the ONNX type `floating` if the operator accepts it.

    `all_outputs` includes optional outputs. Raises CannotReplayError if the dump lacks part of an attribute.
    """
    schema = _schema(op, version)
    types = {slot: _type_of(schema, slot, record, floating) for slot, record in inputs.items()}
    names = [f"x{slot}" if slot in inputs else "" for slot in range(max(inputs, default=-1) + 1)]
    domain = domain_of(op)
    if schema is not None:
        count = _outputs_of(schema, op, inputs, all_outputs=all_outputs)
    else:
        count = _runtime_outputs().get((domain, op.op_type), 1) if all_outputs else 1
    node = helper.make_node(
        op.op_type,
        [f"{name}_" if name and not types[slot].known_to_numpy else name for slot, name in enumerate(names)],
        [f"y{slot}" for slot in range(count)],
        domain="" if domain == "ai.onnx" else domain,
    )
    node.attribute.extend(_attributes(schema, op, floating))
    casts, fed = [], []
    for slot, element in types.items():
        number = element.number
        if not element.known_to_numpy:
            casts.append(helper.make_node("Cast", [f"x{slot}"], [f"x{slot}_"], to=number))
            number = TensorProto.FLOAT
        fed.append(helper.make_tensor_value_info(f"x{slot}", number, inputs[slot].shape))
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    imports = [helper.make_opsetid(node.domain, version)]
    if node.domain:
        imports.append(helper.make_opsetid("", min(onnx.defs.onnx_opset_version(), 21)))
    graph = helper.make_graph([*casts, node], op.op_type, fed, results)
    return NodeModel(helper.make_model(graph, opset_imports=imports, ir_version=10), types, count, version)


def _schema(op: OpRecord, version: int) -> Any:
    """The schema of that version; None if onnx does not know the operator."""
    domain = domain_of(op)
    try:
        return onnx.defs.get_schema(op.op_type, version, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None


def _takes(schema: Any, op: OpRecord, inputs: Mapping[int, TensorRecord]) -> bool:
    names = [each.name for each in schema.inputs]
    is_variadic = bool(schema.inputs) and schema.inputs[-1].option == _VARIADIC
    fits = all(
        is_variadic or (slot < len(names) and record.argument in ("", names[slot])) for slot, record in inputs.items()
    )
    required = {slot for slot, each in enumerate(schema.inputs) if each.option == _SINGLE}
    needed = {name for name, each in schema.attributes.items() if each.required}
    return fits and required <= inputs.keys() and needed <= op.arguments.keys() - RUN_FACTS <= schema.attributes.keys()


def _outputs_of(schema: Any, op: OpRecord, inputs: Mapping[int, TensorRecord], *, all_outputs: bool) -> int:
    if schema.outputs and schema.outputs[-1].option == _VARIADIC:
        sizes = op.arguments.get("split")
        counts = [op.arguments.get("num_outputs"), len(sizes) if isinstance(sizes, list) else None]
        counts += [record.shape[0] for record in inputs.values() if record.argument == "split" and record.shape]
        count = next((count for count in counts if isinstance(count, int)), None)
        if count is None:
            raise CannotReplayError(f"the dump does not contain the number of outputs of {op.op_name}")
        return count
    return len(schema.outputs) if all_outputs else max(1, schema.min_output)


def _type_of(schema: Any, slot: int, record: TensorRecord, floating: int | None) -> ElementType:
    element = BY_DTYPE.get(record.dtype)
    if element is None or element.bits < 8 or not (element.known_to_numpy or element.dtype == "bfloat16"):
        raise CannotReplayError(f"tensors of type {record.dtype} cannot be fed to ONNX Runtime")
    if floating is None or element.number not in _FLOATS:
        return element
    wanted = next(each for each in BY_DTYPE.values() if each.number == floating)
    if schema is None:
        return wanted  # ONNX Runtime then decides whether it has a kernel
    parameter = schema.inputs[min(slot, len(schema.inputs) - 1)]
    return wanted if f"tensor({wanted.runtime_name})" in parameter.types else element


def _attributes(schema: Any, op: OpRecord, floating: int | None) -> Iterator[AttributeProto]:
    for name, value in op.arguments.items():
        if name in RUN_FACTS:
            continue
        kind = None if schema is None else schema.attributes[name].type
        decoded = _decoded(op, name, value)
        if floating is not None and name in _TYPE_ATTRIBUTES and decoded in _FLOATS:
            decoded = floating
        if isinstance(decoded, TensorProto) and floating is not None and decoded.data_type in _FLOATS:
            decoded = helper.make_tensor(name, floating, decoded.dims, onnx.numpy_helper.to_array(decoded).reshape(-1))
        if decoded is None or (kind is None and decoded == []):
            continue
        if kind is None:
            yield helper.make_attribute(name, decoded)
        else:
            yield helper.make_attribute(name, decoded, attr_type=AttributeProto.AttributeType.Value(kind.name))


def _decoded(op: OpRecord, name: str, value: Any) -> Any:
    """The value of JSON that `arguments_of` wrote."""
    if isinstance(value, list):
        return [_decoded(op, name, each) for each in value]
    if not isinstance(value, Mapping):
        return value
    if "float" in value:
        return float(value["float"])
    if "bytes" in value:
        return bytes.fromhex(value["bytes"])
    if "elements" in value:
        elements = [_decoded(op, name, each) for each in value["elements"]]
        return helper.make_tensor(name, BY_DTYPE[value["dtype"]].number, value["shape"], elements)
    raise CannotReplayError(f"the attribute {name} of {op.op_name} is not in the dump: {value}")


def node_of(model: NodeModel) -> NodeProto:
    """The node itself, which follows the casts."""
    found: NodeProto = model.proto.graph.node[-1]
    return found
