"""The graph of a model, in the structure of a graph file, and the files that are written of it."""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from opdump.dtypes import BY_NAME, DATA_TYPES
from opdump.errors import DumpPathError
from opdump.interpreter.leftovers import temporary_name
from opdump.protobuf_messages import Fields, message_classes
from opdump.sink import make_directory


@dataclass(frozen=True, slots=True)
class GeTensor:
    """Element type (lower case, empty if unknown) and shape of a value; -1 is an unknown dimension.

    `shape` None: the number of dimensions is unknown, too.
    """

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    format: str = "ND"


@dataclass(frozen=True, slots=True)
class GeOrigin:
    """The operator of the original model that produced a value."""

    op_name: str
    slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GeOperator:
    """One operator.

    `inputs` are the sources `{op_name}:{slot}`, empty for an omitted slot; `input_tensors` and `input_names` are parallel to
    them. They are followed by control dependencies, `{op_name}:-1`, without parallel entries. `origins` belong to the outputs.
    `runs` is False if no task runs the operator, so that it leaves no data. `attributes` are JSON values.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...] = ()
    input_tensors: tuple[GeTensor, ...] = ()
    input_names: tuple[str, ...] = ()
    constant_inputs: tuple[bool, ...] = ()
    outputs: tuple[GeTensor, ...] = ()
    origins: tuple[GeOrigin | None, ...] = ()
    original_names: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    subgraphs: tuple[str, ...] = ()
    """Names of the graphs of its bodies."""
    runs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GeGraph:
    """The operators of a model in execution order, preceded by those of type Data and Const."""

    name: str
    inputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of the inputs of the model."""
    outputs: tuple[str, ...] = ()
    """`{op_name}:{slot}` of the outputs of the model."""
    operators: tuple[GeOperator, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""


def is_control_edge(source: str) -> bool:
    """Whether an input is a control dependency instead of a value."""
    return source.endswith(":-1")


# Finds the computational graph: the training graph, among those that initialise, save and restore.
#
# See docs/tensorflow-graph.md#the-rule.

COMPUTE_GRAPH: Final = "_opdump_compute_graph"
"""Attribute of the graph of a training program without an iterator, in which the document's rule finds nothing."""

_OF_THE_DOCUMENT: Final = ("IteratorV2", "Iterator", "GetNext")
_OF_TENSORFLOW: Final = ("IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional", "OneShotIterator")
_READERS: Final = ("GetNext", "IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional")
_STARTERS: Final = ("MakeIterator", "IteratorFromStringHandle", "IteratorFromStringHandleV2")
_UPDATE: Final = re.compile(r"Apply[A-Z]|AssignSub")  # the latter: optimizers of Keras 3


def update_of(graphs: Sequence[GeGraph]) -> str:
    """The type of an operator of the graphs that updates a variable, like those of an optimizer; empty if there is none.

    A training graph has one; an evaluation graph, which also reads data, has none.
    """
    types = (operator.op_type for graph in graphs for operator in graph.operators)
    return next((op_type for op_type in types if _UPDATE.search(op_type)), "")


def is_computational(graphs: Sequence[GeGraph]) -> str | None:
    """Why the graphs of a file are computational: the operator type that the rule finds in them, or the attribute with which
    opdump marks them; None if they are not.

    A graph that starts an iterator without reading it also has an IteratorV2, and only initialises.
    """
    types = {operator.op_type for graph in graphs for operator in graph.operators}
    if not (types.intersection(_STARTERS) and not types.intersection(_READERS)):
        for op_type in (*_OF_THE_DOCUMENT, *_OF_TENSORFLOW):
            if op_type in types:
                return op_type
    is_marked = any(graph.attributes.get(COMPUTE_GRAPH) is True for graph in graphs)
    return COMPUTE_GRAPH if is_marked else None


# The schema of `ge.proto.ModelDef`, built on first use.
#
# Field numbers come from the graph engine's public schema; fields that no dump uses are left out. It declares explicit presence, as
# in older protobuf: a zero in an attribute is then written, and readers need it. An entry of a map is a message with `key` and
# `value`, which has the same text form.
#
# See docs/tensorflow-graph.md#the-files.

_MESSAGES: Final[Mapping[str, Fields]] = {
    "ModelDef": (
        ("name", 1, "string"),
        ("version", 2, "uint32"),
        ("custom_version", 3, "string"),
        ("graph", 7, "*GraphDef"),
        ("attr", 11, "*AttrEntry"),
    ),
    "GraphDef": (
        ("name", 1, "string"),
        ("input", 4, "*string"),
        ("output", 5, "*string"),
        ("op", 6, "*OpDef"),
        ("attr", 11, "*AttrEntry"),
    ),
    "OpDef": (
        ("name", 1, "string"),
        ("type", 2, "string"),
        ("input", 5, "*string"),
        ("attr", 10, "*AttrEntry"),
        ("id", 21, "int64"),
        ("stream_id", 22, "int64"),
        ("input_name", 23, "*string"),
        ("src_name", 24, "*string"),
        ("src_index", 25, "*int64"),
        ("dst_name", 26, "*string"),
        ("dst_index", 27, "*int64"),
        ("is_input_const", 32, "*bool"),
        ("input_desc", 33, "*TensorDescriptor"),
        ("output_desc", 34, "*TensorDescriptor"),
        ("subgraph_name", 35, "*string"),
    ),
    "TensorDescriptor": (
        ("name", 1, "string"),
        ("dtype", 2, "#DataType"),
        ("shape", 3, "ShapeDef"),
        ("layout", 4, "string"),
        ("attr", 5, "*AttrEntry"),
        ("size", 10, "int64"),
        ("device_type", 14, "string"),
        ("real_dim_cnt", 16, "int64"),
    ),
    "ShapeDef": (("dim", 1, "*int64"),),
    "AttrEntry": (("key", 1, "string"), ("value", 2, "AttrDef")),
    # One of these is set; text and JSON need no oneof for that.
    "AttrDef": (
        ("list", 1, "ListValue"),
        ("s", 2, "string"),
        ("i", 3, "int64"),
        ("f", 4, "float"),
        ("b", 5, "bool"),
    ),
    "ListValue": (
        ("s", 2, "*string"),
        ("i", 3, "*int64"),
        ("f", 4, "*float"),
        ("b", 5, "*bool"),
        ("val_type", 20, "#ListValueType"),
    ),
}
_LIST_TYPES: Final = {
    "VT_LIST_NONE": 0,
    "VT_LIST_STRING": 1,
    "VT_LIST_INT": 2,
    "VT_LIST_FLOAT": 3,
    "VT_LIST_BOOL": 4,
}


def model_def() -> Any:
    """The class of the message in a graph file."""
    return _classes()["ModelDef"]


@cache
def _classes() -> Mapping[str, Any]:
    return message_classes(
        _MESSAGES,
        package="ge.proto",
        file="opdump/ge_ir.proto",
        syntax="proto2",
        enums={
            "DataType": {f"DT_{kind.name}": number for number, kind in DATA_TYPES.items()},
            "ListValueType": _LIST_TYPES,
        },
    )


# Encodes a graph as `ge.proto.ModelDef`, in text and in JSON.

ORIGINAL_NAMES: Final = "_datadump_original_op_names"
NO_TASK: Final = "_no_task"
ORIGIN_NAME: Final = "_datadump_origin_name"
ORIGIN_SLOT: Final = "_datadump_origin_output_index"
UNKNOWN_RANK: Final = -2
"""The value of the graph engine for an unknown number of dimensions."""
_INT64: Final = 2**63
_ONE_VALUE: Final = (str, int, float, bytes)
_LIST_TYPE_NUMBERS: Final = {"s": 1, "i": 2, "f": 3, "b": 4}


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
        attribute.list.val_type = _LIST_TYPE_NUMBERS[kind]
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
    for member, value in message.ListFields():
        if isinstance(value, _ONE_VALUE) or not hasattr(value, "__len__"):
            shown[member.name] = _json_value(member, value)
        elif member.message_type is None and member.enum_type is None and not (value and isinstance(value[0], float)):
            shown[member.name] = list(value)
        else:
            shown[member.name] = [_json_value(member, each) for each in value]
    return shown


def _json_value(member: Any, value: Any) -> Any:
    if isinstance(value, str):
        return value
    if member.message_type is not None:
        return _as_json(value)
    if member.enum_type is not None:
        return member.enum_type.values_by_number[value].name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    return value


# Writes the files of a model's graph.

GRAPH_NAME: Final = "ge_proto_{:05d}_Build.txt"
"""With five digits, every known reader finds it."""
LONG_GRAPH_NAME: Final = "ge_proto_{:08d}_graph_{}_Build.txt"
"""The name in newer graph engines; `precision_tool` does not find it."""
Naming = Literal["ge5", "ge8"]
_MODE: Final = 0o600
_MOST_NUMBERS: Final = 1_000_000


class WrittenGraph(NamedTuple):
    """The path of a written graph, and a warning for the user, if any."""

    path: Path
    warning: str


def write_ge_graph(directory: Path, number: int, graphs: Sequence[GeGraph]) -> Path:
    """Write the text and the JSON of a model's graphs into a directory, which is created; returns the path of the text.

    Raises DumpPathError if they cannot be written.
    """
    make_directory(directory)
    path = directory / GRAPH_NAME.format(number)
    try:
        _write(path, graphs)
    except OSError as error:
        raise DumpPathError(
            f"{path}: cannot be written ({error.strerror}): free space, or dump into another directory"
        ) from error
    return path


def write_new_ge_graph(
    directories: Sequence[Path], first: int, graphs: Sequence[GeGraph], *, naming: Naming = "ge5", graph_id: int = 0
) -> WrittenGraph:
    """The same, with the number `first` or the next one that is free in the directory: files of other runs are never overwritten.

    The first writable directory is used; if it is not the first in the list, `warning` is set. `naming` "ge8" selects the name of
    newer graph engines, `ge_proto_00000001_graph_{graph_id}_Build.txt`. Raises DumpPathError if none is writable.
    """
    failures = []
    for directory in directories:
        try:
            make_directory(directory)
            path = _claimed(directory, first, naming, graph_id)
            try:
                _write(path, graphs)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        except (OSError, DumpPathError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            failures.append(f"{directory}: the graph cannot be written ({getattr(cause, 'strerror', cause)})")
            continue
        return WrittenGraph(path, f"{'; '.join(failures)}; it is {path}" if failures else "")
    tried = "; ".join(failures) or "no directory was given"
    raise DumpPathError(f"{tried}: name a directory in DUMP_GRAPH_PATH that this user can write")


def _claimed(directory: Path, first: int, naming: Naming, graph_id: int) -> Path:
    """An empty file of the first free number: two processes never get the same one."""
    for number in range(first, first + _MOST_NUMBERS):
        name = GRAPH_NAME.format(number) if naming == "ge5" else LONG_GRAPH_NAME.format(number, graph_id)
        path = directory / name
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
        except FileExistsError:
            continue
        return path
    raise FileExistsError(None, f"every number from {first} on is taken")


def _write(path: Path, graphs: Sequence[GeGraph]) -> None:
    """Both files, each completely or not at all."""
    model = model_of(graphs)
    write_whole(path, encode_text(model))
    write_whole(path.with_name(f"{path.name}.json"), encode_json(model))


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears completely or not at all. Raises OSError."""
    unfinished = path.with_name(temporary_name())
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _MODE), "w", encoding="utf-8") as stream:
            stream.write(text)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
