"""Loads a model, and makes the changed copies of it that ONNX Runtime runs.

Weights in separate files are never read into the model. Only the graph, which is small, is changed, and ONNX Runtime gets the
folder of those files. A model of any size therefore passes through protobuf, whose messages are limited to 2 GB.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

from opdump.adapters.host import BY_DTYPE, BY_NUMBER, HostTensor
from opdump.errors import ModelFileError

ModelSource: TypeAlias = "str | Path | bytes | ModelProto"
LEVELS: Final[Mapping[str, Any]] = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_LAYOUT: Final = getattr(onnxruntime.GraphOptimizationLevel, "ORT_ENABLE_LAYOUT", None)
"""A level between "extended" and "all" that newer versions have."""
_GRAPHS: Final = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_FOLDER_ENTRY: Final = "session.model_external_initializers_file_folder_path"
_OPTIMIZED_WEIGHTS_ENTRY: Final = "session.optimized_model_external_initializers_file_name"
_OPTIMIZED_LEAST_ENTRY: Final = "session.optimized_model_external_initializers_min_size_in_bytes"


class OwnSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # the runtime has no types
    """A session of opdump itself. A capture of the program's sessions does not record it."""


def level_of(options: onnxruntime.SessionOptions) -> str:
    """The name of the optimisation level in a program's options, as a key of LEVELS; the nearest one for a level that has none."""
    asked = options.graph_optimization_level
    if asked == _LAYOUT:
        return "all"
    return next((name for name, level in LEVELS.items() if level == asked), "disable")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model and the place of its weights.

    `source` is what ONNX Runtime gets for the unchanged model, `folder` is where external data is searched (None for a model from
    memory without any). `names` are its names in a `dump_list`, beginning with the stem of its file, or the name of its graph
    if it came from memory. `is_saved_here`: the folder belongs to the session, so changed copies may be written to it.
    """

    proto: ModelProto = field(repr=False)
    source: str | bytes = field(repr=False)
    folder: Path | None
    names: tuple[str, ...]
    is_saved_here: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def has_external_data(self) -> bool:
        return any(
            tensor.data_location == TensorProto.EXTERNAL
            for graph in _graphs(self.proto.graph)
            for tensor in graph.initializer
        )

    def with_outputs(self, names: Iterable[str]) -> bytes:
        """The model with these values as additional outputs, after its own; the runtime determines their types."""
        outputs = self.proto.graph.output
        own = len(outputs)
        known = {output.name for output in outputs}
        try:
            outputs.extend([ValueInfoProto(name=name) for name in names if name not in known])
            return self.proto.SerializeToString()
        finally:
            del outputs[own:]

    def part(
        self,
        positions: Iterable[int],
        outputs: Iterable[str],
        node_names: Mapping[int, str] | None = None,
        *,
        inputs: Iterable[ValueInfoProto] = (),
        reads: Collection[str] | None = None,
    ) -> bytes:
        """A model of the nodes at these positions with these outputs.

        `node_names` renames nodes by position, `inputs` are fed in addition to those of the model, and `reads` are all values that the nodes
        read: the runtime warns of initialisers that are not in it.
        """
        graph = self.proto.graph
        part = ModelProto(ir_version=self.proto.ir_version)
        part.opset_import.extend(self.proto.opset_import)
        part.functions.extend(self.proto.functions)
        part.graph.name = graph.name
        part.graph.input.extend(graph.input)
        part.graph.input.extend(inputs)
        part.graph.initializer.extend(tensor for tensor in graph.initializer if reads is None or tensor.name in reads)
        part.graph.sparse_initializer.extend(
            tensor for tensor in graph.sparse_initializer if reads is None or tensor.values.name in reads
        )
        kept = sorted(set(positions))
        part.graph.node.extend([graph.node[position] for position in kept])
        for node, position in zip(part.graph.node, kept, strict=True):
            if node_names is not None:
                node.name = node_names[position]
        part.graph.output.extend([ValueInfoProto(name=name) for name in outputs])
        return part.SerializeToString()

    def constants(self) -> dict[str, TensorProto]:
        """The values that are the same in every run, by name: initialisers, tensors of Constant, and copies of both by Identity.

        Initialisers that an input can override are included; copies of these by Identity are not.
        """
        graph = self.proto.graph
        found = {tensor.name: tensor for tensor in graph.initializer}
        may_be_fed = {value.name for value in graph.input}
        for node in graph.node:
            if node.op_type == "Constant" and [attribute.name for attribute in node.attribute] == ["value"]:
                found[node.output[0]] = node.attribute[0].t
            elif node.op_type == "Identity" and node.input[0] in found and node.input[0] not in may_be_fed:
                found[node.output[0]] = found[node.input[0]]
        return found

    def fixed_tensors(self, graph: GraphProto) -> dict[str, HostTensor | str]:
        """The initialisers of a graph of the model, by name; the type for sparse ones and for text."""
        found: dict[str, HostTensor | str] = {tensor.name: self.fixed_tensor(tensor) for tensor in graph.initializer}
        for sparse in graph.sparse_initializer:
            element = BY_NUMBER.get(sparse.values.data_type)
            found[sparse.values.name] = f"sparse_tensor({'undefined' if element is None else element.dtype})"
        return found

    def fixed_tensor(self, tensor: TensorProto) -> HostTensor | str:
        """An initialiser as a constant tensor; the name of its element type if it cannot be an array."""
        element = BY_NUMBER.get(tensor.data_type)
        if element is None or element.bits == 0:
            return f"type_{tensor.data_type}" if element is None else element.dtype
        shape = tuple(tensor.dims)
        raw = self._raw_elements(tensor, element.storage, element.size(int(np.prod(shape, dtype=np.int64))))
        return HostTensor(element, shape, raw.ctypes.data, raw, stays=True, fixed=True)

    def _raw_elements(self, tensor: TensorProto, storage: np.dtype[Any], size: int) -> npt.NDArray[Any]:
        if tensor.data_location == TensorProto.EXTERNAL:
            facts = {entry.key: entry.value for entry in tensor.external_data}
            if self.folder is None or size == 0:
                return np.empty(0, storage)
            # Mapped, so that pages are read on demand; the file of a large model may not fit into memory twice.
            return np.memmap(
                self.folder / facts["location"],
                storage,
                "r",
                offset=int(facts.get("offset", 0)),
                shape=(size // storage.itemsize,),
            )
        if tensor.HasField("raw_data"):
            return np.frombuffer(tensor.raw_data, storage)
        elements = numpy_helper.to_array(tensor)
        if elements.nbytes != size:  # packed types are returned unpacked
            raw = numpy_helper.from_array(elements, tensor.name).raw_data
            return np.frombuffer(raw, storage)
        return np.ascontiguousarray(elements).reshape(-1).view(storage)


def load_model(model: str | Path | bytes | ModelProto) -> ModelFile:
    """The model in a file, in the bytes of a file, or in memory.

    Raises ModelFileError for a missing file, and for one that is not an ONNX model.
    """
    if isinstance(model, ModelProto):
        return ModelFile(model, model.SerializeToString(), None, _names_in_memory(model))
    if isinstance(model, bytes):
        proto = _parsed(model, "the bytes given")
        return ModelFile(proto, model, None, _names_in_memory(proto))
    path = Path(model)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read as a model: {error.strerror}; expected an ONNX file") from error
    proto = _parsed(content, str(path))
    return ModelFile(proto, str(path), path.absolute().parent, tuple(dict.fromkeys((path.stem, proto.graph.name))))


def optimized(
    model: ModelFile,
    level: str,
    folder: Path,
    options: onnxruntime.SessionOptions,
    providers: Sequence[Any],
    disabled_optimizers: Collection[str] | None = None,
) -> ModelFile:
    """The model as ONNX Runtime optimises it at this level, saved in `folder`, which must outlive its sessions."""
    path = folder / "optimized.onnx"
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    if model.has_external_data:
        options.add_session_config_entry(_OPTIMIZED_WEIGHTS_ENTRY, "optimized.weights")
        options.add_session_config_entry(_OPTIMIZED_LEAST_ENTRY, "1024")
    severity = options.log_severity_level
    try:
        # ONNX Runtime warns that such a model may only work on this machine, which is sufficient here.
        options.log_severity_level = max(severity, 3)
        _own_session(model, model.source, options, providers, disabled_optimizers=disabled_optimizers)
    finally:
        options.optimized_model_filepath = ""
        options.log_severity_level = severity
    saved = load_model(path)
    return ModelFile(saved.proto, saved.source, folder, model.names, is_saved_here=True)


def open_session(
    model: ModelFile, content: str | bytes, level: str, options: onnxruntime.SessionOptions, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    """A session of the model, or of a changed copy of it. Raises the runtime's own error for a model that it rejects."""
    options.graph_optimization_level = LEVELS[level]
    return _own_session(model, content, options, providers)


def _own_session(
    model: ModelFile,
    content: str | bytes,
    options: onnxruntime.SessionOptions,
    providers: Sequence[Any],
    **keywords: Any,
) -> OwnSession:
    if isinstance(content, bytes) and model.folder is not None and model.has_external_data:
        if model.is_saved_here:
            # With the folder in the program's options, it would also apply to the unchanged model, whose weights are elsewhere.
            path = model.folder / "changed.onnx"
            path.write_bytes(content)
            return OwnSession(str(path), options, providers=providers, **keywords)
        options.add_session_config_entry(_FOLDER_ENTRY, str(model.folder))
    return OwnSession(content, options, providers=providers, **keywords)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph, and the bodies of its control operators at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                yield from _graphs(body)


def _parsed(content: bytes, place: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ModelFileError(f"{place}: not an ONNX model: the protobuf message cannot be read: {error}") from error
    if not proto.opset_import or not proto.HasField("graph"):
        raise ModelFileError(f"{place}: not an ONNX model: it has no graph or no operator set")
    return proto


def _names_in_memory(proto: ModelProto) -> tuple[str, ...]:
    return (proto.graph.name or "model",)


# Infers the shapes of the outputs of a model from those of its inputs, without a run.

_SMALL: Final = 1024
"""Maximum number of elements of an initialiser that may be a shape; larger ones are weights."""


def output_shapes(model: ModelFile, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the outputs by name; -1 for a dimension that is only known in a run. Outputs of unknown rank are omitted.

    Raises ModelFileError for a graph that cannot have inputs of these shapes, as far as shape inference detects it.
    """
    proto = ModelProto(ir_version=max(model.proto.ir_version, 4))
    proto.opset_import.extend(model.proto.opset_import)
    proto.functions.extend(model.proto.functions)
    graph = model.proto.graph
    proto.graph.name = graph.name or "graph"
    proto.graph.node.extend(graph.node)
    proto.graph.output.extend(graph.output)
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    fixed = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in fixed:
            element = value.type.tensor_type.elem_type
            proto.graph.input.append(helper.make_tensor_value_info(value.name, element, inputs.get(value.name)))
    for tensor in graph.initializer:
        _add(proto, tensor)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelFileError(f"{model.name}: inputs of {dict(inputs)} do not fit the graph: {error}") from error
    found = {}
    for output in inferred.graph.output:
        if output.type.tensor_type.HasField("shape"):
            dims = output.type.tensor_type.shape.dim
            found[output.name] = tuple(dim.dim_value if dim.HasField("dim_value") else -1 for dim in dims)
    return found


def _add(proto: ModelProto, tensor: TensorProto) -> None:
    """Keep only the shapes of weights: copying them is unnecessary, and those in separate files cannot be read here."""
    if tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > _SMALL:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    else:
        proto.graph.initializer.append(tensor)


# Makes a model of one operator from the description in a call.

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""Element type and shape of each tensor; -1 for an unknown dimension."""


def one_node_model(op_type: str, inputs: Signature, outputs: Signature, attributes: Mapping[str, Any]) -> ModelProto:
    """A model whose only node is that operator of ONNX; the type is also its name.

    Raises ModelFileError for an operator that ONNX does not have, and for attributes, numbers of tensors and types that it does
    not accept.
    """
    if not onnx.defs.has(op_type):
        raise ModelFileError(
            f"{op_type}: ONNX has no operator of that type; expected one such as Add, MatMul or Softmax"
        )
    named_inputs = [f"x{slot}" for slot in range(len(inputs))]
    named_outputs = [f"y{slot}" for slot in range(len(outputs))]
    node = helper.make_node(op_type, named_inputs, named_outputs, name=op_type, **attributes)
    context = onnx.checker.C.CheckerContext()
    context.ir_version = _ir_version()
    context.opset_imports = {"": _newest_opset()}
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        raise ModelFileError(f"{op_type}: does not match ONNX's definition: {error}") from error
    return helper.make_model(
        helper.make_graph(
            [node],
            op_type,
            [_value_info(name, *kind) for name, kind in zip(named_inputs, inputs, strict=True)],
            [_value_info(name, dtype, None) for name, (dtype, _) in zip(named_outputs, outputs, strict=True)],
        ),
        opset_imports=[helper.make_opsetid("", _newest_opset())],
        ir_version=_ir_version(),
    )


def load_one_node_model(source: Path | bytes) -> tuple[str, ModelProto]:
    """Type and model of an operator from a file or its bytes. Raises ModelFileError for a model with more than one node."""
    proto = load_model(source).proto
    if len(proto.graph.node) != 1:
        where = source if isinstance(source, Path) else "the bytes given"
        raise ModelFileError(f"{where}: a model with {len(proto.graph.node)} nodes, expected a single operator")
    return proto.graph.node[0].op_type, proto


def takes(model: ModelProto, inputs: Signature) -> bool:
    """Whether the inputs of a model have these types, and compatible shapes."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    wanted = [value.type.tensor_type for value in model.graph.input if value.name not in fixed]
    if len(wanted) != len(inputs):
        return False
    for kind, (dtype, dims) in zip(wanted, inputs, strict=True):
        element = BY_DTYPE.get(dtype)
        if element is None or element.number != kind.elem_type:
            return False
        if kind.HasField("shape") and not _fits(kind.shape.dim, dims):
            return False
    return True


def _fits(wanted: Sequence[Any], dims: tuple[int, ...]) -> bool:
    if len(wanted) != len(dims):
        return False
    return all(
        not dim.HasField("dim_value") or given in (-1, dim.dim_value) for dim, given in zip(wanted, dims, strict=True)
    )


def _value_info(name: str, dtype: str, dims: tuple[int, ...] | None) -> onnx.ValueInfoProto:
    element = BY_DTYPE.get(dtype)
    if element is None:
        raise ModelFileError(f"{name}: ONNX has no element type {dtype!r}")
    shape = None if dims is None else [None if dim < 0 else dim for dim in dims]
    return helper.make_tensor_value_info(name, element.number, shape)


# The runtime may only accept versions older than those that onnx writes; its own operators are complete up to these.
def _newest_opset() -> int:
    return min(onnx.defs.onnx_opset_version(), 21)


def _ir_version() -> int:
    return min(onnx.IR_VERSION, 10)
