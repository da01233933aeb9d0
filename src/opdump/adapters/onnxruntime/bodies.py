"""Runs the bodies of If, Loop and Scan again, on the inputs of the operator, to record the operators inside.

The runtime only provides the inputs and outputs of a control operator. Additional outputs of a body could make the model invalid
(branches must agree, iterations must have one shape). A body is therefore run as a separate model: its formal inputs and the outer values
that it reads are fed, and all its values are outputs. It is emitted only if its results equal those of the real run bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from opdump.adapters.host import BY_NUMBER, Array, ElementType, HostTensor, element_of_type
from opdump.adapters.onnxruntime.model_file import ModelFile, open_session
from opdump.adapters.onnxruntime.model_graph import ModelNode, bodies_of, values_read_in
from opdump.adapters.onnxruntime.tensors_of_run import Tensors, answer_and_tensors

_MOST_BYTES: Final = 2**30
"""Maximum size of the iterations of one operator that are kept until it is known whether they are emitted."""


class NotReplayableError(Exception):
    """A body cannot be run again; the text is for the manifest."""


@dataclass(frozen=True, slots=True)
class BodyRun:
    """One execution of a body: its nodes, the tensors that they read and wrote, and the executions inside its control operators."""

    nodes: tuple[ModelNode, ...]
    tensors: Tensors
    within: dict[str, list[BodyRun]]
    """By node name."""


class BodyReplay:
    """Runs the bodies of one model's control operators."""

    def __init__(self, model: ModelFile, options: onnxruntime.SessionOptions, providers: Sequence[Any]) -> None:
        self._model = model
        self._options = options
        self._providers = providers
        self._held = 0
        """The size in bytes of the results of the bodies."""
        self._sessions: dict[tuple[str, int, tuple[int, ...]], onnxruntime.InferenceSession] = {}
        self._fixed: dict[tuple[str, int], Tensors] = {}

    def runs(self, node: ModelNode, tensors: Tensors) -> list[BodyRun]:
        """The executions of the bodies of a node of the model's own graph, in execution order.

        `tensors` are all values around the node. Raises NotReplayableError if a body reads or returns a value that is not a tensor, if the
        results differ from those in `tensors`, and beyond 1 GiB.
        """
        executed: list[BodyRun] = []
        self._held = 0
        written = self._model.proto.graph.node[node.position]
        self._replay(written, node, tensors, executed)
        return executed

    def _replay(self, written: NodeProto, node: ModelNode, around: Tensors, executed: list[BodyRun]) -> None:
        if node.op_type == "If":
            results = self._replay_if(written, node, around, executed)
        elif node.op_type == "Loop":
            results = self._replay_loop(written, node, around, executed)
        elif node.op_type == "Scan":
            results = self._replay_scan(written, node, around, executed)
        else:
            raise NotReplayableError(f"the runtime expands {node.op_type} itself")
        for name, result in zip(node.outputs, results, strict=False):
            if name and not _same(result, around.get(name)):
                raise NotReplayableError(f"a second run returned a different {name}")

    def _replay_if(
        self, written: NodeProto, node: ModelNode, around: Tensors, executed: list[BodyRun]
    ) -> list[HostTensor]:
        taken = "then_branch" if _array(_tensor(around, node.inputs[0])).reshape(-1)[0] else "else_branch"
        branches = [attribute.name for attribute in written.attribute if attribute.HasField("g")]
        place = branches.index(taken)
        return self._run_body(list(bodies_of(written))[place], node, place, [], around, executed)

    def _replay_loop(
        self, written: NodeProto, node: ModelNode, around: Tensors, executed: list[BodyRun]
    ) -> list[HostTensor]:
        (body,) = bodies_of(written)
        given = [*node.inputs, "", ""]
        most = int(_array(_tensor(around, given[0])).reshape(-1)[0]) if given[0] else None
        goes_on = bool(_array(_tensor(around, given[1])).reshape(-1)[0]) if given[1] else True
        states = [_tensor(around, name) for name in node.inputs[2:]]
        gathered: list[list[HostTensor]] = []
        number = 0
        while goes_on and (most is None or number < most):
            counters = [_scalar(np.int64(number), body.input[0]), _scalar(np.bool_(goes_on), body.input[1])]
            results = self._run_body(body, node, 0, [*counters, *states], around, executed)
            goes_on = bool(_array(results[0]).reshape(-1)[0])
            states = results[1 : 1 + len(states)]
            gathered.append(results[1 + len(states) :])
            number += 1
        return [*states, *(_stacked(each, 0, backwards=False) for each in zip(*gathered, strict=True))]

    def _replay_scan(
        self, written: NodeProto, node: ModelNode, around: Tensors, executed: list[BodyRun]
    ) -> list[HostTensor]:
        (body,) = bodies_of(written)
        attributes: Mapping[str, Any] = {
            attribute.name: helper.get_attribute_value(attribute)
            for attribute in written.attribute
            if not attribute.HasField("g")
        }
        scanned = attributes["num_scan_inputs"]
        if len(body.input) != len(node.inputs) or "directions" in attributes:
            raise NotReplayableError("Scan of operator set 8 has batches")
        first = len(node.inputs) - scanned
        states = [_tensor(around, name) for name in node.inputs[:first]]
        sequences = [_tensor(around, name) for name in node.inputs[first:]]
        axes = attributes.get("scan_input_axes") or [0] * scanned
        backwards = attributes.get("scan_input_directions") or [0] * scanned
        length = sequences[0].shape[axes[0]]
        gathered: list[list[HostTensor]] = []
        for number in range(length):
            slices = [
                _slice(sequence, axis, length - 1 - number if back else number)
                for sequence, axis, back in zip(sequences, axes, backwards, strict=True)
            ]
            results = self._run_body(body, node, 0, [*states, *slices], around, executed)
            states = results[:first]
            gathered.append(results[first:])
        count = len(body.output) - first
        out_axes = attributes.get("scan_output_axes") or [0] * count
        out_backwards = attributes.get("scan_output_directions") or [0] * count
        stacks = zip(zip(*gathered, strict=True), out_axes, out_backwards, strict=False)
        return [*states, *(_stacked(each, axis, backwards=bool(back)) for each, axis, back in stacks)]

    def _run_body(
        self,
        body: GraphProto,
        node: ModelNode,
        place: int,
        given: Sequence[HostTensor],
        around: Tensors,
        executed: list[BodyRun],
    ) -> list[HostTensor]:
        """Run a body, and those of the control operators in it. Returns its results."""
        feeds = {formal.name: tensor for formal, tensor in zip(body.input, given, strict=True)}
        for name in sorted(values_read_in(body)):
            feeds[name] = _tensor(around, name)
        session = self._session(body, node, place, feeds)
        types = {output.name: output.type for output in session.get_outputs()}
        if any(element_of_type(types[output.name]) is None for output in body.output):
            raise NotReplayableError("a body returns a value that is not a tensor")
        held = {name: _ort_value(tensor) for name, tensor in feeds.items()}  # keeps them alive until the run is over
        _, made = answer_and_tensors(session, (), list(types), held, None, answer_is_private=False)
        inside: Tensors = {**around, **self._constants(body, node, place), **feeds, **made}
        self._held += sum(tensor.size for tensor in made.values() if isinstance(tensor, HostTensor))
        if self._held > _MOST_BYTES:
            raise NotReplayableError(f"the results of its bodies exceed {_MOST_BYTES} bytes")
        run = BodyRun(node.bodies[place], inside, {})
        executed.append(run)
        for inner in run.nodes:
            if inner.bodies:
                run.within[inner.name] = []
                self._replay(body.node[inner.position], inner, inside, run.within[inner.name])
        return [_tensor(inside, output.name) for output in body.output]

    def _constants(self, body: GraphProto, node: ModelNode, place: int) -> Tensors:
        """The initialisers of a body, which are the same in every run of it. They hide outer values with the same name."""
        key = (node.name, place)
        if key not in self._fixed:
            self._fixed[key] = self._model.fixed_tensors(body)
        return self._fixed[key]

    def _session(
        self, body: GraphProto, node: ModelNode, place: int, feeds: Mapping[str, HostTensor]
    ) -> onnxruntime.InferenceSession:
        key = (node.name, place, tuple(tensor.element.number for tensor in feeds.values()))
        if key not in self._sessions:
            options = self._options
            content = self._body_model(body, feeds)
            self._sessions[key] = open_session(self._model, content, "disable", options, self._providers)
        return self._sessions[key]

    def _body_model(self, body: GraphProto, feeds: Mapping[str, HostTensor]) -> bytes:
        whole = self._model.proto
        model = ModelProto(ir_version=whole.ir_version)
        model.opset_import.extend(whole.opset_import)
        model.functions.extend(whole.functions)
        graph = model.graph
        graph.name = body.name or "body"
        graph.node.extend(body.node)
        graph.initializer.extend(body.initializer)
        graph.sparse_initializer.extend(body.sparse_initializer)
        for name, tensor in feeds.items():
            kind = TypeProto()
            kind.tensor_type.elem_type = tensor.element.number
            graph.input.append(ValueInfoProto(name=name, type=kind))
        made = [name for inner in body.node for name in inner.output if name]
        names = dict.fromkeys((*(output.name for output in body.output), *made))
        graph.output.extend([ValueInfoProto(name=name) for name in names])
        return model.SerializeToString()


def values_around(node: ModelNode) -> Iterator[str]:
    """The values around a control operator that are needed to run its bodies again and to compare the results."""
    yield from node.reads
    yield from (name for name in node.outputs if name)


def _tensor(tensors: Tensors, name: str) -> HostTensor:
    tensor = tensors.get(name)
    if not isinstance(tensor, HostTensor):
        raise NotReplayableError(f"a body reads {name}, which is not a tensor of numbers")
    return tensor


def _array(tensor: HostTensor) -> Array:
    """The elements in their shape; raw bits if numpy lacks the type."""
    if tensor.count == 0:
        return np.empty(tensor.shape, tensor.element.storage)
    if tensor.element.bits < 8:
        raise NotReplayableError(f"{tensor.element.dtype} cannot be sliced")
    return tensor.raw().reshape(tensor.shape)


def _host(array: Array, element: ElementType) -> HostTensor:
    return HostTensor.of_array(array, element, stays=True)


def _scalar(value: Any, formal: ValueInfoProto) -> HostTensor:
    ranks = len(formal.type.tensor_type.shape.dim)
    number = 7 if isinstance(value, np.int64) else 9
    return _host(np.asarray(value).reshape((1,) * ranks), BY_NUMBER[number])


def _slice(sequence: HostTensor, axis: int, number: int) -> HostTensor:
    # Of a vector, numpy takes a number and not an array.
    return _host(np.asarray(np.take(_array(sequence), number, axis)), sequence.element)


def _stacked(each: Sequence[HostTensor], axis: int, *, backwards: bool) -> HostTensor:
    arrays = [_array(tensor) for tensor in each]
    if backwards:
        arrays.reverse()
    return _host(np.stack(arrays, axis), each[0].element)


def _ort_value(tensor: HostTensor) -> onnxruntime.OrtValue:
    if isinstance(tensor.owner, onnxruntime.OrtValue):
        return tensor.owner
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.ascontiguousarray(_array(tensor)).reshape(tensor.shape), tensor.element.number
    )


def _same(one: HostTensor, other: HostTensor | str | None) -> bool:
    if not isinstance(other, HostTensor) or (one.element, one.shape) != (other.element, other.shape):
        return False
    return one.count == 0 or one.raw().tobytes() == other.raw().tobytes()
