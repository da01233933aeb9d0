"""Loads a model, and makes the changed copies of it that ONNX Runtime runs.

Weights in files of their own are never read into the model: what is changed is the graph, which stays small, and ONNX
Runtime gets the folder of those files. So a model of any size goes through protobuf, whose messages end at 2 GB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, ValueInfoProto, numpy_helper

from opdump.adapters.host.element_types import BY_NUMBER
from opdump.adapters.host.host_tensor import HostTensor
from opdump.errors import ModelFileError

ModelSource: TypeAlias = "str | Path | bytes | ModelProto"
LEVELS: Final[Mapping[str, Any]] = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_GRAPHS: Final = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_FOLDER_ENTRY: Final = "session.model_external_initializers_file_folder_path"
_OPTIMIZED_WEIGHTS_ENTRY: Final = "session.optimized_model_external_initializers_file_name"
_OPTIMIZED_LEAST_ENTRY: Final = "session.optimized_model_external_initializers_min_size_in_bytes"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model and where its weights lie.

    `source` is what ONNX Runtime gets for the model unchanged, `folder` where external data is looked for (None for a model from
    memory without any). `names` are those that a `dump_list` may call it by: the stem of its file, or the name of its graph
    where it came from memory, first. `is_saved_here`: the folder is the session's own, and changed copies may lie in it.
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
        """The model with these values as outputs too, behind its own; their types are left to the runtime."""
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

        `node_names` renames nodes by position, `inputs` are fed beside those of the model, `reads` all that the nodes read: the
        runtime warns of initialisers that are not among it.
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
        """The values that are the same in every run, by name: initialisers, tensors of Constant, and what Identity makes of both.

        An initialiser that may be fed in its place is among them, and what Identity makes of it is not.
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
        """The initialisers of a graph of the model by name; of sparse ones and of text the type."""
        found: dict[str, HostTensor | str] = {tensor.name: self.fixed_tensor(tensor) for tensor in graph.initializer}
        for sparse in graph.sparse_initializer:
            element = BY_NUMBER.get(sparse.values.data_type)
            found[sparse.values.name] = f"sparse_tensor({'undefined' if element is None else element.dtype})"
        return found

    def fixed_tensor(self, tensor: TensorProto) -> HostTensor | str:
        """An initialiser as a tensor that is the same in every run; the name of its element type where no array stands for that."""
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
            # Read where it is asked for, page by page; the file of a large model does not fit in memory twice.
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
        if elements.nbytes != size:  # packed types come unpacked
            raw = numpy_helper.from_array(elements, tensor.name).raw_data
            return np.frombuffer(raw, storage)
        return np.ascontiguousarray(elements).reshape(-1).view(storage)


def load_model(model: str | Path | bytes | ModelProto) -> ModelFile:
    """The model of a file, of a file's bytes, or one in memory.

    Raises ModelFileError for a file that is not there or holds no ONNX model.
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
    model: ModelFile, level: str, folder: Path, options: onnxruntime.SessionOptions, providers: Sequence[Any]
) -> ModelFile:
    """The model as ONNX Runtime optimises it at this level, saved under `folder`, which has to outlive its sessions."""
    path = folder / "optimized.onnx"
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    if model.has_external_data:
        options.add_session_config_entry(_OPTIMIZED_WEIGHTS_ENTRY, "optimized.weights")
        options.add_session_config_entry(_OPTIMIZED_LEAST_ENTRY, "1024")
    severity = options.log_severity_level
    try:
        # It warns that such a model may fit this machine alone, which is all that is asked of it.
        options.log_severity_level = max(severity, 3)
        onnxruntime.InferenceSession(model.source, options, providers=providers)
    finally:
        options.optimized_model_filepath = ""
        options.log_severity_level = severity
    saved = load_model(path)
    return ModelFile(saved.proto, saved.source, folder, model.names, is_saved_here=True)


def open_session(
    model: ModelFile, content: str | bytes, level: str, options: onnxruntime.SessionOptions, providers: Sequence[Any]
) -> onnxruntime.InferenceSession:
    """A session of the model, or of a changed copy of it. Raises the runtime's own error for what it does not take."""
    options.graph_optimization_level = LEVELS[level]
    if isinstance(content, bytes) and model.folder is not None and model.has_external_data:
        if model.is_saved_here:
            # The options' folder would hold for the model as it was given too, whose weights lie elsewhere.
            path = model.folder / "changed.onnx"
            path.write_bytes(content)
            return onnxruntime.InferenceSession(str(path), options, providers=providers)
        options.add_session_config_entry(_FOLDER_ENTRY, str(model.folder))
    return onnxruntime.InferenceSession(content, options, providers=providers)


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
        raise ModelFileError(f"{place}: not an ONNX model, the protobuf message cannot be read: {error}") from error
    if not proto.opset_import or not proto.HasField("graph"):
        raise ModelFileError(f"{place}: not an ONNX model, it has no graph or no operator set")
    return proto


def _names_in_memory(proto: ModelProto) -> tuple[str, ...]:
    return (proto.graph.name or "model",)
