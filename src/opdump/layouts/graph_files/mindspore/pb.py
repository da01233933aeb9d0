"""Writes and reads the `.pb` file of a graph, `debugger.ModelProto`, as MindSpore writes it and its offline tools read it.

A node is called "1", "2", ... and lists its inputs by the names of nodes, parameters ("fc.weight") and constants ("cst1"). The
schema has no field for the output slot that feeds an input, for phases, for views and for some element types. What cannot be
derived is in one attribute of the node, `opdump.record`, as JSON, which other readers show as text.

The file does not contain the function names of the stack. The type of a parameter or constant without a number in the schema
(complex, 8-bit floats) is stored with the inputs that it feeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple, cast, get_args

from opdump.errors import CorruptDumpError
from opdump.graph import (
    CONSTANT_PREFIX,
    PARAMETER_PREFIX,
    Graph,
    GraphInput,
    GraphNode,
    GraphOutput,
    GraphValue,
    graph_of_word,
    graph_word,
)
from opdump.layouts.graph_files.mindspore import spelling
from opdump.layouts.graph_files.mindspore.spelling import format_frame, format_stack, parse_frames
from opdump.protobuf_messages import Fields, message_classes
from opdump.records import Frame, Phase

# The schema of `debugger.ModelProto`, built on first use.
#
# Field numbers come from MindSpore's public `debug_graph.proto`; fields that no dump uses are left out, and protobuf keeps unknown
# fields. Enumerations are declared as plain integers, which have the same bytes: a number that a later version adds is kept. Text
# is declared as bytes, again the same on disk, because protobuf versions treat invalid UTF-8 differently. The descriptors are in a
# separate pool, so that another library may load its own copy of the schema.

_FILE: Final = "opdump/debug_graph.proto"
_PACKAGE: Final = "debugger"

_MESSAGES: Final[Mapping[str, Fields]] = {
    "ModelProto": (("ir_version", 1, "int64"), ("graph", 4, "GraphProto")),
    "GraphProto": (
        ("node", 1, "*NodeProto"),
        ("name", 2, "bytes"),
        ("parameters", 3, "*ParameterProto"),
        ("outputs", 4, "*OutputProto"),
        ("const_vals", 5, "*NamedValueProto"),
        ("root_name", 6, "bytes"),
    ),
    "NodeProto": (
        ("input", 1, "*InputProto"),
        ("name", 2, "bytes"),
        ("op_type", 3, "bytes"),
        ("scope", 4, "bytes"),
        ("attribute", 5, "*AttributeProto"),
        ("output_type", 6, "TypeProto"),
        ("full_name", 8, "bytes"),
        ("source_address", 9, "bytes"),
    ),
    "InputProto": (("name", 1, "bytes"), ("type", 2, "int32")),
    "AttributeProto": (("name", 1, "bytes"), ("value", 2, "ValueProto")),
    "ParameterProto": (("name", 1, "bytes"), ("type", 2, "TypeProto")),
    "OutputProto": (("name", 1, "bytes"), ("type", 2, "TypeProto")),
    "NamedValueProto": (("key", 1, "bytes"), ("value", 2, "ValueProto"), ("full_name", 3, "bytes")),
    "ValueProto": (
        ("dtype", 1, "int32"),
        ("bool_val", 2, "bool"),
        ("int_val", 3, "int64"),
        ("uint_val", 4, "uint64"),
        ("float_val", 5, "float"),
        ("double_val", 6, "double"),
        ("str_val", 7, "bytes"),
        ("tensor_val", 8, "TensorProto"),
        ("values", 18, "*ValueProto"),
        ("dict_val", 19, "*NamedValueProto"),
        ("type_val", 20, "TypeProto"),
    ),
    "TensorProto": (("dims", 4, "*int64"), ("data_type", 5, "int32")),
    "TypeProto": (
        ("data_type", 1, "int32"),
        ("tensor_type", 2, "TensorType"),
        ("sequence_type", 3, "SequenceType"),
    ),
    "TensorType": (("elem_type", 1, "int32"), ("shape", 2, "TensorShapeProto")),
    "SequenceType": (("elem_types", 1, "*TypeProto"),),
    "TensorShapeProto": (("dim", 1, "*Dimension"),),
    "Dimension": (("size", 1, "int64"),),
}


def model_proto() -> Any:
    """The message class of `debugger.ModelProto`."""
    return _classes()["ModelProto"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(_MESSAGES, package=_PACKAGE, file=_FILE, syntax="proto2")


def to_text(text: str) -> bytes:
    """Text for a field; lone surrogates, which represent undecodable bytes of a file name, are escaped."""
    return text.encode("utf-8", "backslashreplace")


def from_text(field: bytes) -> str:
    """Text of a field. Raises UnicodeDecodeError if it is not UTF-8."""
    return field.decode("utf-8")


# Converts attribute values between JSON and `debugger.ValueProto`.
#
# DumpParser of MindSpore Insight stops at an attribute of an unknown type, including dictionaries, and reads only `float_val`. So
# floats are written to both of their fields, and a value without a plain type becomes JSON text.

_BOOL: Final = 1
_INT64: Final = 5
_FLOAT64: Final = 12
_STRING: Final = 13
_TUPLE: Final = 31
_LIST: Final = 32
_DICT: Final = 33
_TYPE: Final = 39
_SIGNED: Final = range(2, 6)
_UNSIGNED: Final = range(6, 10)
_FLOATS: Final = range(10, 13)


def is_plain(value: Any) -> bool:
    """Whether the value has a type in `ValueProto` that existing readers support."""
    if value is None or isinstance(value, (bool, float, str)):
        return True
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, (list, tuple)) and all(map(is_plain, value))


def fill_value(proto: Any, value: Any) -> None:
    """Write a value into a `ValueProto`; one that is not plain as JSON text."""
    if value is None:
        proto.dtype = 0
    elif isinstance(value, bool):
        proto.dtype, proto.bool_val = _BOOL, value
    elif isinstance(value, float):
        proto.dtype, proto.double_val, proto.float_val = _FLOAT64, value, _as_float32(value)
    elif isinstance(value, str):
        proto.dtype, proto.str_val = _STRING, to_text(value)
    elif not is_plain(value):
        proto.dtype, proto.str_val = _STRING, to_text(json.dumps(value, default=str))
    elif isinstance(value, int):
        proto.dtype, proto.int_val = _INT64, value
    else:
        proto.dtype = _LIST
        for element in value:
            fill_value(proto.values.add(), element)


def read_value(proto: Any) -> Any:
    """The JSON value of a `ValueProto`; the name for a type, None for an unknown kind."""
    kind = proto.dtype
    if kind == _BOOL:
        return proto.bool_val
    if kind in _SIGNED:
        return proto.int_val
    if kind in _UNSIGNED:
        return proto.uint_val
    if kind in _FLOATS:
        return proto.double_val if proto.HasField("double_val") else proto.float_val
    if kind == _STRING:
        return from_text(proto.str_val)
    if kind in (_TUPLE, _LIST):
        return [read_value(element) for element in proto.values]
    if kind == _DICT:
        return {from_text(item.key): read_value(item.value) for item in proto.dict_val}
    if kind == _TYPE:
        return spelling.from_pb_number(proto.type_val.data_type)
    return None


def _as_float32(value: float) -> float:
    """The value, or an infinity if float32 cannot represent it, because protobuf versions treat it differently."""
    limit = 3.4028234663852886e38
    return value if not abs(value) > limit else float("inf") if value > 0 else float("-inf")


RECORD_ATTRIBUTE: Final = "opdump.record"
GRAPH_NAME: Final = "kernel_graph"
# Nodes that connect a MindSpore graph and launch nothing (verified for 43 graphs against their execution order).
VIRTUAL_OP_TYPES: Final = frozenset({"Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState"})
_TENSOR: Final = 14
_SCALARS_OF_CONSTANTS: Final = frozenset(range(1, 14))


class _Edge(NamedTuple):
    """The name of an input's source in the file, and the tensor that it provides."""

    name: str
    slot: int
    dtype: str
    shape: tuple[int, ...]


def encode_pb(graph: Graph) -> bytes:
    """The file of the graph. It can always be written: bytes of names outside of UTF-8 are dropped."""
    model = model_proto()()
    model.ir_version = 1
    proto = model.graph
    proto.name = to_text(f"{GRAPH_NAME}{graph_word(graph.graph_id)}")
    proto.root_name = to_text(graph.root_name or graph_word(graph.graph_id))
    edges = _edges(graph)
    # Each frame once: the operators of a graph share most lines of their stacks.
    quoted = cache(partial(format_frame, form="colon"))
    for index, node in enumerate(graph.nodes, start=1):
        _fill_node(proto.node.add(), node, str(index), edges, quoted)
    for parameter in graph.parameters:
        entry = proto.parameters.add(name=to_text(edges[PARAMETER_PREFIX + parameter.name].name))
        _fill_type(entry.type, GraphOutput(parameter.dtype, parameter.shape))
    for constant in graph.constants:
        entry = proto.const_vals.add(
            key=to_text(edges[constant.name].name), full_name=to_text(f"Default_{constant.name}")
        )
        entry.value.dtype = _TENSOR
        entry.value.tensor_val.dims.extend(constant.shape)
        entry.value.tensor_val.data_type = spelling.pb_number(constant.dtype)
    return cast("bytes", model.SerializeToString(deterministic=True))


def _edges(graph: Graph) -> dict[str, _Edge]:
    """By source: the edge, with the type that a reader will derive for it."""
    edges: dict[str, _Edge] = {}
    for index, node in enumerate(graph.nodes, start=1):
        for slot, output in enumerate(node.outputs):
            edges[f"{node.op_name}:{slot}"] = _Edge(str(index), slot, output.dtype, output.shape)
    for parameter in graph.parameters:
        name = _parameter_name(parameter.name)
        edges[PARAMETER_PREFIX + parameter.name] = _Edge(name, 0, _numbered(parameter.dtype), parameter.shape)
    for index, constant in enumerate(graph.constants, start=1):
        edges[constant.name] = _Edge(f"cst{index}", 0, _numbered(constant.dtype), constant.shape)
    return edges


def _numbered(dtype: str) -> str:
    """The type, or nothing if the schema has no number for it."""
    return spelling.from_pb_number(spelling.pb_number(dtype))


def _parameter_name(name: str) -> str:
    """The parameter's name, escaped if it could be mistaken for a node ("1"), a constant ("cst1") or a source."""
    plain = from_text(to_text(name))
    taken = plain.isdigit() or plain.startswith(("cst", PARAMETER_PREFIX, CONSTANT_PREFIX)) or ":" in plain or not plain
    return PARAMETER_PREFIX + plain if taken else plain


def _fill_node(
    proto: Any, node: GraphNode, name: str, edges: Mapping[str, _Edge], quoted: Callable[[Frame], str]
) -> None:
    proto.name = to_text(name)
    proto.op_type = to_text(node.op_type)
    proto.full_name = to_text(node.op_name)
    proto.scope = proto.full_name.rpartition(b"/")[0]
    # Innermost line first, unlike in the .ir, as MindSpore writes it.
    proto.source_address = to_text("".join(f"{line}\n" for line in format_stack(node.stack, quoted)))
    slots, types = _fill_inputs(proto, node, edges)
    _fill_outputs(proto, node.outputs)
    is_derived = all(_numbered(output.dtype) == output.dtype for output in node.outputs)
    record = {
        "view": not node.runs_kernel,
        "slots": any(slots) and slots,
        "inputs": types,
        "outputs": [] if is_derived else [output.dtype for output in node.outputs],
        "json": _fill_attributes(proto, node.attributes),
    }
    text = json.dumps({"phase": node.phase, **{k: v for k, v in record.items() if v}}, separators=(",", ":"))
    fill_value(proto.attribute.add(name=to_text(RECORD_ATTRIBUTE)).value, text)


def _fill_inputs(proto: Any, node: GraphNode, edges: Mapping[str, _Edge]) -> tuple[list[int], dict[str, list[Any]]]:
    """Returns the slot of each input, and the types that a reader does not derive."""
    slots, types = [], {}
    for index, graph_input in enumerate(node.inputs):
        edge = edges.get(graph_input.source)
        proto.input.add(name=to_text(edge.name if edge else graph_input.source), type=0)
        slots.append(edge.slot if edge else 0)
        if edge is None or (edge.dtype, edge.shape) != (graph_input.dtype, graph_input.shape):
            types[str(index)] = [graph_input.dtype, list(graph_input.shape)]
    return slots, types


def _fill_outputs(proto: Any, outputs: Sequence[GraphOutput]) -> None:
    if len(outputs) == 1:
        _fill_type(proto.output_type, outputs[0])
    elif outputs:
        proto.output_type.data_type = _TUPLE
        for output in outputs:
            _fill_type(proto.output_type.sequence_type.elem_types.add(), output)


def _fill_attributes(proto: Any, attributes: Mapping[str, Any]) -> list[str]:
    """Returns the names of those that are written as JSON."""
    texts = []
    for key, value in attributes.items():
        # DumpParser turns these two into lists, and fails on a value that is neither list nor text.
        fits = is_plain(value) and (key not in ("input_names", "output_names") or isinstance(value, (list, tuple, str)))
        fill_value(proto.attribute.add(name=to_text(key)).value, value if fits else json.dumps(value, default=str))
        if not fits:
            texts.append(key)
    return texts


def _fill_type(proto: Any, output: GraphOutput) -> None:
    proto.data_type = _TENSOR
    proto.tensor_type.elem_type = spelling.pb_number(output.dtype)
    for size in output.shape:
        proto.tensor_type.shape.dim.add(size=size)


def decode_pb(data: bytes, *, where: str = ".pb file") -> Graph:
    """The graph of a `.pb` file of opdump or of MindSpore (tested: 2.7 and 2.10).

    For a MindSpore file, `by_mindspore` is true, `runs_kernel` is false for connecting nodes (`Load`, `MakeTuple`, ...), a node
    with a name in `Gradients/` is backward, and the elements of a tuple have no shape, because the file has none. Raises
    CorruptDumpError for other content: cut off, other messages, a node without a name.
    """
    from google.protobuf.message import DecodeError

    model = model_proto()()
    try:
        model.ParseFromString(data)
        if not model.HasField("graph"):
            raise CorruptDumpError(
                f"{where}: expected a debugger.ModelProto with a graph, found {len(data)} bytes without"
            )
        return _graph(model.graph, where)
    except (DecodeError, UnicodeDecodeError) as error:
        raise CorruptDumpError(
            f"{where}: expected a debugger.ModelProto, found {len(data)} other bytes ({error})"
        ) from error


def _graph(proto: Any, where: str) -> Graph:
    parameters = tuple(
        GraphValue(
            from_text(entry.name).removeprefix(PARAMETER_PREFIX), *(_outputs(entry.type) or (GraphOutput("", ()),))[0]
        )
        for entry in proto.parameters
    )
    constants = tuple(_constant(entry, index) for index, entry in enumerate(proto.const_vals))
    makers: dict[str, tuple[str, tuple[GraphOutput, ...]]] = {}
    for entry, parameter in zip(proto.parameters, parameters, strict=True):
        makers[from_text(entry.name)] = (
            PARAMETER_PREFIX + parameter.name,
            (GraphOutput(parameter.dtype, parameter.shape),),
        )
    for entry, constant in zip(proto.const_vals, constants, strict=True):
        makers[from_text(entry.key)] = (constant.name, (GraphOutput(constant.dtype, constant.shape),))
    for entry in proto.node:
        if not entry.full_name or not entry.name:
            number, op_type = from_text(entry.name) or "?", from_text(entry.op_type) or "no type"
            raise CorruptDumpError(f"{where}: node {number} ({op_type}) has no full name")
        makers[from_text(entry.name)] = (from_text(entry.full_name), _outputs(entry.output_type, _record(entry, where)))
    graph_id = graph_of_word(from_text(proto.name).removeprefix(GRAPH_NAME))
    return Graph(
        graph_id=graph_id or 0,
        root_name=from_text(proto.root_name),
        nodes=tuple(_node(entry, makers, where) for entry in proto.node),
        parameters=parameters,
        constants=constants,
        by_mindspore=bool(proto.node) and all(_record(entry, where) is None for entry in proto.node),
    )


def _constant(entry: Any, index: int) -> GraphValue:
    full_name = from_text(entry.full_name)
    position = full_name.rfind(CONSTANT_PREFIX)
    name = full_name[position:] if position >= 0 else f"{CONSTANT_PREFIX}{index}"
    if entry.value.dtype == _TENSOR:
        tensor = entry.value.tensor_val
        return GraphValue(name, spelling.from_pb_number(tensor.data_type), tuple(tensor.dims))
    dtype = spelling.from_pb_number(entry.value.dtype) if entry.value.dtype in _SCALARS_OF_CONSTANTS else ""
    return GraphValue(name, dtype, value=read_value(entry.value))


def _record(proto: Any, where: str) -> Mapping[str, Any] | None:
    """What opdump wrote in addition to the schema; None in a file of another tool."""
    for attribute in proto.attribute:
        if attribute.name == to_text(RECORD_ATTRIBUTE):
            try:
                record = json.loads(attribute.value.str_val)
            except ValueError as error:
                raise CorruptDumpError(
                    f"{where}: {RECORD_ATTRIBUTE} of {from_text(proto.full_name)} is not JSON: {error}"
                ) from error
            if not isinstance(record, dict) or record.get("phase") not in get_args(Phase):
                raise CorruptDumpError(
                    f"{where}: {RECORD_ATTRIBUTE} of {from_text(proto.full_name)} has an unknown phase"
                )
            return record
    return None


def _node(proto: Any, makers: Mapping[str, tuple[str, tuple[GraphOutput, ...]]], where: str) -> GraphNode:
    record = _record(proto, where)
    op_name, op_type = from_text(proto.full_name), from_text(proto.op_type)
    foreign = record is None
    record = record or {}
    named = "backward" if op_name.startswith("Gradients/") else "forward"
    phase = cast("Phase", named if foreign else record["phase"])
    try:
        return GraphNode(
            op_name=op_name,
            op_type=op_type,
            phase=phase,
            inputs=tuple(
                _input(index, from_text(entry.name), makers, record) for index, entry in enumerate(proto.input)
            ),
            outputs=_outputs(proto.output_type, record),
            attributes=_attributes(proto, record.get("json", ())),
            stack=parse_frames(from_text(proto.source_address).split("\n")),
            runs_kernel=op_type not in VIRTUAL_OP_TYPES if foreign else not record.get("view", False),
        )
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise CorruptDumpError(
            f"{where}: {RECORD_ATTRIBUTE} of {from_text(proto.full_name)} does not fit the node: {error}"
        ) from error


def _input(
    index: int, name: str, makers: Mapping[str, tuple[str, tuple[GraphOutput, ...]]], record: Mapping[str, Any]
) -> GraphInput:
    slots = record.get("slots", ())
    slot = int(slots[index]) if slots else 0
    if name in makers:
        source, outputs = makers[name]
        if not source.startswith((PARAMETER_PREFIX, CONSTANT_PREFIX)):
            source = f"{source}:{slot}"
        dtype, shape = outputs[slot] if slot < len(outputs) else GraphOutput("", ())
        if len(outputs) > 1 and not record:
            dtype, shape = "tuple", ()
    else:
        source, dtype, shape = name, "", ()
    if str(index) in record.get("inputs", {}):
        dtype, sizes = record["inputs"][str(index)]
        shape = tuple(int(size) for size in sizes)
    return GraphInput(source, str(dtype), shape)


def _outputs(proto: Any, record: Mapping[str, Any] | None = None) -> tuple[GraphOutput, ...]:
    if not proto.data_type:
        return ()
    outputs = tuple(_leaves(proto))
    named = (record or {}).get("outputs")
    if named and len(named) == len(outputs):
        outputs = tuple(GraphOutput(str(dtype), output.shape) for dtype, output in zip(named, outputs, strict=True))
    return outputs


def _leaves(proto: Any) -> list[GraphOutput]:
    if proto.HasField("sequence_type"):
        return [leaf for element in proto.sequence_type.elem_types for leaf in _leaves(element)]
    if proto.data_type == _TENSOR:
        shape = tuple(dimension.size for dimension in proto.tensor_type.shape.dim)
        return [GraphOutput(spelling.from_pb_number(proto.tensor_type.elem_type), shape)]
    return [] if proto.data_type == _TUPLE else [GraphOutput(spelling.from_pb_number(proto.data_type), ())]


def _attributes(proto: Any, texts: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for attribute in proto.attribute:
        name = from_text(attribute.name)
        if name != RECORD_ATTRIBUTE:
            value = read_value(attribute.value)
            attributes[name] = json.loads(value) if name in texts else value
    return attributes
