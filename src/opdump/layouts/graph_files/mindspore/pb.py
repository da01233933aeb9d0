"""Writes and reads the `.pb` file of a graph, `debugger.ModelProto`, as MindSpore writes it and its offline tools read it.

A node is called "1", "2", ... and lists its inputs by the names of nodes, parameters ("fc.weight") and constants ("cst1"). The
schema has no field for the output slot that feeds an input, for phases, for views and for some element types. What cannot be
derived is in one attribute of the node, `opdump.record`, as JSON, which other readers show as text.

The file does not contain the function names of the stack. The type of a parameter or constant without a number in the schema
(complex, 8-bit floats) is stored with the inputs that it feeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from opdump.layouts.graph_files.mindspore import dtypes
from opdump.layouts.graph_files.mindspore.pb_schema import from_text, model_proto, to_text
from opdump.layouts.graph_files.mindspore.pb_values import fill_value, is_plain, read_value
from opdump.layouts.graph_files.mindspore.source_lines import format_frame, format_stack, parse_frames
from opdump.records import Frame, Phase

RECORD_ATTRIBUTE: Final = "opdump.record"
GRAPH_NAME: Final = "kernel_graph"
# Nodes that connect a MindSpore graph and launch nothing (verified for 43 graphs against their execution order).
VIRTUAL_OP_TYPES: Final = frozenset({"Depend", "Load", "MakeTuple", "Return", "TupleGetItem", "UpdateState"})
_TENSOR: Final = 14
_TUPLE: Final = 31
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
        entry.value.tensor_val.data_type = dtypes.pb_number(constant.dtype)
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
    return dtypes.from_pb_number(dtypes.pb_number(dtype))


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
    record: dict[str, Any] = {"phase": node.phase}
    if not node.runs_kernel:
        record["view"] = True
    slots, types = [], {}
    for index, graph_input in enumerate(node.inputs):
        edge = edges.get(graph_input.source)
        proto.input.add(name=to_text(edge.name if edge else graph_input.source), type=0)
        slots.append(edge.slot if edge else 0)
        if edge is None or (edge.dtype, edge.shape) != (graph_input.dtype, graph_input.shape):
            types[str(index)] = [graph_input.dtype, list(graph_input.shape)]
    if any(slots):
        record["slots"] = slots
    if types:
        record["inputs"] = types
    if len(node.outputs) == 1:
        _fill_type(proto.output_type, node.outputs[0])
    elif node.outputs:
        proto.output_type.data_type = _TUPLE
        for output in node.outputs:
            _fill_type(proto.output_type.sequence_type.elem_types.add(), output)
    if any(_numbered(output.dtype) != output.dtype for output in node.outputs):
        record["outputs"] = [output.dtype for output in node.outputs]
    texts = []
    for key, value in node.attributes.items():
        attribute = proto.attribute.add(name=to_text(key))
        # DumpParser turns these two into lists, and fails on a value that is neither list nor text.
        if is_plain(value) and (key not in ("input_names", "output_names") or isinstance(value, (list, tuple, str))):
            fill_value(attribute.value, value)
        else:
            fill_value(attribute.value, json.dumps(value, default=str))
            texts.append(key)
    if texts:
        record["json"] = texts
    attribute = proto.attribute.add(name=to_text(RECORD_ATTRIBUTE))
    fill_value(attribute.value, json.dumps(record, separators=(",", ":")))


def _fill_type(proto: Any, output: GraphOutput) -> None:
    proto.data_type = _TENSOR
    proto.tensor_type.elem_type = dtypes.pb_number(output.dtype)
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
        return GraphValue(name, dtypes.from_pb_number(tensor.data_type), tuple(tensor.dims))
    dtype = dtypes.from_pb_number(entry.value.dtype) if entry.value.dtype in _SCALARS_OF_CONSTANTS else ""
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
                    f"{where}: {RECORD_ATTRIBUTE} of {from_text(proto.full_name)} names no known phase"
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
        return [GraphOutput(dtypes.from_pb_number(proto.tensor_type.elem_type), shape)]
    return [] if proto.data_type == _TUPLE else [GraphOutput(dtypes.from_pb_number(proto.data_type), ())]


def _attributes(proto: Any, texts: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for attribute in proto.attribute:
        name = from_text(attribute.name)
        if name != RECORD_ATTRIBUTE:
            value = read_value(attribute.value)
            attributes[name] = json.loads(value) if name in texts else value
    return attributes
