"""Reads the nodes of an ONNX model as operators: unique names, makers and readers of values, and which ones are skipped.

>>> [node.name for node in nodes_of(model)]
['conv1', 'Relu_1', 'fc']
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from opdump.adapters.graph_runtime import NamedOperator, UniqueNames
from opdump.adapters.onnxruntime.nodes import arguments_of, older_defaults
from opdump.records import SkipReason

_MADE_UNIQUE: Final = re.compile(r"_token_\d+$")
_DEVICE_ORDER: Final = "_nchwc"
CONTROL_OPERATORS: Final = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One node of the model or of a body of one of its control operators.

    `inputs` and `outputs` are names of values by slot, empty for an omitted slot; `reads` are all values from outside that it needs,
    including those of its bodies. `original_names` are its names in the original model or, for a node made by an optimiser, the names of
    the operators that it replaces. `parent` is the name of the control operator whose body contains it.
    """

    operator: NamedOperator
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    input_arguments: tuple[str, ...]
    output_arguments: tuple[str, ...]
    reads: frozenset[str]
    written_name: str
    """The name in the model, which may be empty or shared by several nodes; `name` is then made up."""
    position: int
    """Its position among the nodes of its graph in the file."""
    parent: str = ""
    original_names: tuple[str, ...] = ()
    bodies: tuple[tuple[ModelNode, ...], ...] = field(default=(), repr=False)
    body_sources: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    """For each body, the makers of its own values that none of its nodes makes: `Parameter.{name}` for an initialiser, empty for a formal
    input.
    """

    @property
    def name(self) -> str:
        return self.operator.op_name

    @property
    def op_type(self) -> str:
        return self.operator.op_type

    @property
    def with_bodies(self) -> Iterator[ModelNode]:
        """The node, then the nodes of its bodies, at any depth."""
        yield self
        for body in self.bodies:
            for node in body:
                yield from node.with_bodies


def nodes_of(
    model: ModelProto, originals: Sequence[ModelNode] | None = None, names: UniqueNames | None = None
) -> tuple[ModelNode, ...]:
    """The nodes in an order in which they can run: the order in the file, except that a node always follows the makers of its inputs.

    A node keeps its name if no earlier node has it, including nodes of bodies; otherwise it is `{op_type}_{number}`, by its
    number in the file. `originals` are the nodes of the original model; None if this is that model. With `names`, the last
    components of names are unique, too, as some layouts require.
    """
    return _Reader(model, originals, names).read()


class _Reader:
    """Reads one model."""

    def __init__(self, model: ModelProto, originals: Sequence[ModelNode] | None, names: UniqueNames | None) -> None:
        self._model = model
        self._is_original = originals is None
        self._names = names
        self._originals = {value: node for node in originals or () for value in node.outputs if value}
        self._original_names = {node.written_name for node in originals or ()}
        self._versions = {opset.domain: opset.version for opset in model.opset_import}
        self._functions = {(function.domain, function.name): function for function in model.functions}
        self._taken: set[str] = set()
        self._written = {node.name for node in _all_nodes(model.graph)}
        self._number = 0
        self._constants = {tensor.name for tensor in model.graph.initializer}
        self._constants -= {value.name for value in model.graph.input}

    def read(self) -> tuple[ModelNode, ...]:
        nodes = self._read_graph(self._model.graph, "")
        return nodes if self._is_original else _with_reordered(nodes)

    def _read_graph(self, graph: GraphProto, parent: str) -> tuple[ModelNode, ...]:
        self._constants.update(tensor.name for tensor in graph.initializer)
        if parent:
            # A body's inputs hide outer values with the same name.
            self._constants.difference_update(value.name for value in graph.input)
        return in_running_order([self._read_node(node, place, parent) for place, node in enumerate(graph.node)])

    def _read_node(self, node: NodeProto, position: int, parent: str) -> ModelNode:
        own_name = self._own_name(node)
        name = own_name if self._names is None else self._names.of(own_name)
        skip = self._skip_reason(node)
        if skip == "constant":
            self._constants.update(node.output)
        bodies = tuple(self._read_graph(body, name) for body in bodies_of(node))
        input_arguments, output_arguments = self._argument_names(node)
        return ModelNode(
            NamedOperator(
                node.op_type,
                name,
                arguments={**older_defaults(node, self._version_of(node)), **arguments_of(node)},
                kernel=f"{node.domain or 'ai.onnx'}::{node.op_type}",
                skip=skip,
            ),
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            input_arguments=input_arguments,
            output_arguments=output_arguments,
            reads=frozenset(values_read(node)),
            written_name=node.name,
            position=position,
            parent=parent,
            original_names=self._stands_for(node) + ((own_name,) if own_name != name else ()),
            bodies=bodies,
            body_sources=tuple(_own_sources(body) for body in bodies_of(node)),
        )

    def _own_name(self, node: NodeProto) -> str:
        number = self._number
        self._number += 1
        name = node.name
        if not self._is_original and name not in self._original_names:
            # The optimiser appends numbers to its own names, which differ from run to run.
            name = _MADE_UNIQUE.sub("", name)
        if not name or name in self._taken:
            name = f"{node.op_type}_{number}"
            while name in self._taken or name in self._written:
                name += "_"
        self._taken.add(name)
        return name

    def _stands_for(self, node: NodeProto) -> tuple[str, ...]:
        """The original makers of the node's outputs; for outputs in the order of elements of a device, by the node's name."""
        values = [*node.output, node.name.removesuffix(_DEVICE_ORDER)]
        makers = [self._originals[value] for value in values if value in self._originals]
        return tuple(dict.fromkeys(name for maker in makers for name in (maker.name, *maker.original_names)))

    def _skip_reason(self, node: NodeProto) -> SkipReason:
        if node.domain not in ("", "ai.onnx"):
            return ""
        if node.op_type in CONTROL_OPERATORS:
            return "control flow"
        if node.op_type == "Constant" or (node.op_type == "Identity" and node.input[0] in self._constants):
            return "constant"
        return ""

    def _version_of(self, node: NodeProto) -> int:
        other = "" if node.domain == "ai.onnx" else "ai.onnx"
        return self._versions.get(node.domain, self._versions.get(other)) or 1

    def _argument_names(self, node: NodeProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the values in the operator's schema, by slot; empty texts without a schema."""
        function = self._functions.get((node.domain, node.op_type))
        if function is not None:
            return _by_slot(function.input, len(node.input)), _by_slot(function.output, len(node.output))
        try:
            schema = onnx.defs.get_schema(
                node.op_type, self._version_of(node), "" if node.domain == "ai.onnx" else node.domain
            )
        except onnx.defs.SchemaError:
            return ("",) * len(node.input), ("",) * len(node.output)
        inputs, outputs = [each.name for each in schema.inputs], [each.name for each in schema.outputs]
        return _by_slot(inputs, len(node.input)), _by_slot(outputs, len(node.output))


def _with_reordered(nodes: tuple[ModelNode, ...]) -> tuple[ModelNode, ...]:
    """Nodes whose results are only reordered as in the original model also replace the original makers of the reordered results."""
    makers: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if node.op_type == "ReorderOutput":
            makers[node.inputs[0]] = (*makers.get(node.inputs[0], ()), *node.original_names)
    return tuple(
        replace(
            node,
            original_names=tuple(
                dict.fromkeys(
                    (*node.original_names, *(name for value in node.outputs for name in makers.get(value, ())))
                )
            ),
        )
        for node in nodes
    )


def fusions(
    originals: Sequence[ModelNode], nodes: Sequence[ModelNode], graph: GraphProto
) -> Mapping[str, tuple[str, ...]]:
    """For each node of an optimised model, the nodes of the original model that it replaces, in their order.

    These are the makers of its outputs, and all nodes between them and the inputs and initialisers of the optimised `graph`, except
    constants. A node that an optimiser added to change the order of elements has the maker of the output that it passes on.
    """
    values = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    makers = {value: node for node in originals if node.operator.skip != "constant" for value in node.outputs if value}
    named = {node.name: node for node in originals}
    claims = {name: node.name for node in nodes for name in node.original_names}
    order = {node.name: place for place, node in enumerate(originals)}

    def replaced_by(node: ModelNode) -> set[str]:
        waiting = [makers[value] for value in node.outputs if value in makers]
        waiting += [named[name] for name in node.original_names if name in named]
        done: set[str] = set()
        while waiting:
            original = waiting.pop()
            if original.name not in done:
                done.add(original.name)
                read = [makers[value] for value in original.reads if value in makers and value not in values]
                waiting += [maker for maker in read if claims.get(maker.name, node.name) == node.name]
        return done

    return {node.name: tuple(sorted(replaced_by(node), key=order.__getitem__)) or (node.name,) for node in nodes}


def with_origins(
    nodes: Sequence[ModelNode], originals: Sequence[ModelNode], graph: GraphProto
) -> tuple[ModelNode, ...]:
    """The nodes of an optimised model; nodes that replace others list these in their arguments."""
    made_of = fusions(originals, nodes, graph)
    known = {node.name for node in originals}
    return tuple(
        node
        if made_of[node.name] == (node.name,) and node.name in known
        else replace(
            node,
            operator=replace(
                node.operator, arguments={**node.operator.arguments, "stands_for": list(made_of[node.name])}
            ),
        )
        for node in nodes
    )


def in_running_order(nodes: Sequence[ModelNode]) -> tuple[ModelNode, ...]:
    """The same nodes, each after the makers of its inputs, otherwise in the given order."""
    made_here = {value for node in nodes for value in node.outputs if value}
    made: set[str] = set()
    ordered: list[ModelNode] = []
    waiting: list[ModelNode] = list(nodes)
    while waiting:
        later: list[ModelNode] = []
        for node in waiting:
            if (node.reads & made_here) <= made:
                ordered.append(node)
                made.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            return (*ordered, *later)  # a cycle, which the runtime rejects
        waiting = later
    return tuple(ordered)


def values_read(node: NodeProto) -> set[str]:
    """The values that a node needs, including the outer values that its bodies read."""
    return {value for value in node.input if value}.union(*(values_read_in(body) for body in bodies_of(node)))


def values_read_in(body: GraphProto) -> set[str]:
    """The outer values that a body reads."""
    inside = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    inside.update(tensor.values.name for tensor in body.sparse_initializer)
    inside.update(value for inner in body.node for value in inner.output)
    needed = {value.name for value in body.output}.union(*(values_read(inner) for inner in body.node))
    return needed - inside


def bodies_of(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of a control operator, in the order of its attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _own_sources(body: GraphProto) -> dict[str, str]:
    names = [tensor.name for tensor in body.initializer] + [tensor.values.name for tensor in body.sparse_initializer]
    return {**{name: f"Parameter.{name}" for name in names}, **{value.name: "" for value in body.input}}


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in bodies_of(node):
            yield from _all_nodes(body)


def _by_slot(names: Sequence[str], count: int) -> tuple[str, ...]:
    # The last argument of a schema may stand for any number of values.
    return tuple(names[min(slot, len(names) - 1)] if names else "" for slot in range(count))


# Finds the parts of a model for which a second run, or a run with more outputs, changes numbers or repeats an effect.

RANDOM_OPERATORS: Final = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
    | {"BiasDropout", "BitmaskDropout", "BitmaskBiasDropout"}
)
# Operators of these domains compute their outputs from their inputs. The effects of other operators are unknown.
_WITHOUT_EFFECTS: Final = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft"}
    | {"com.microsoft.nchwc", "com.microsoft.experimental", "com.microsoft.dml", "com.ms.internal.nhwc"}
)
# Domains of ONNX Runtime itself whose operators call Python.
_CALLS_PYTHON: Final = frozenset({("com.microsoft", "PythonOp"), ("com.microsoft", "PythonOpGrad")})
_HALF: Final = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes with an element type.
_TYPE_ATTRIBUTES: Final = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"}
)


def has_random_operators(model: ModelProto) -> bool:
    """Whether a second run may have different results, because of the graph, its bodies or its functions.

    A Dropout counts, in training or not, because that is decided while it runs.
    """
    return any(_is_random(node) for node in _nodes_of_model(model))


def has_half_precision(model: ModelProto) -> bool:
    """Whether a value may be float16 or bfloat16: such a type comes from inputs, stored values or attributes.

    If a device lacks a kernel for such a type, ONNX Runtime computes in float32 between two operators, and rounds only the outputs of the
    model. Numbers therefore depend on which values are outputs.
    """
    graph = model.graph
    return _has_half_values(graph) or any(_has_half_attributes(node) for node in _nodes_of_model(model))


def is_random(node: ModelNode) -> bool:
    """Whether a second run of a node, or of its bodies, may have different results."""
    return any(each.op_type in RANDOM_OPERATORS for each in node.with_bodies)


def operators_of_program(model: ModelProto, nodes: Iterable[ModelNode]) -> dict[str, str]:
    """The nodes of the model's own graph that run an operator of the program, by name, with that operator (`domain::type`).

    The domain of such an operator belongs neither to ONNX nor to ONNX Runtime, and the operator is not a function of the model: it is a
    library that the program registered, or its Python. It may count, write or communicate, so it must not run more often than the program
    requested. A node that contains such an operator in a body or a function counts, too.
    """
    functions = {(function.domain, function.name): function.node for function in model.functions}
    known: dict[tuple[str, str], str] = dict.fromkeys(functions, "")

    def found_in(node: NodeProto) -> str:
        kind = (node.domain, node.op_type)
        if kind in functions:
            return known[kind]
        if node.domain not in _WITHOUT_EFFECTS or kind in _CALLS_PYTHON:
            return f"{node.domain}::{node.op_type}"
        return next((found for body in bodies_of(node) for inner in body.node if (found := found_in(inner))), "")

    # A function may call another one; each round finds those one call further away.
    for _ in functions:
        known.update((kind, next(filter(None, map(found_in, body)), "")) for kind, body in functions.items())
    written = model.graph.node
    return {node.name: found for node in nodes if (found := found_in(written[node.position]))}


def _nodes_of_model(model: ModelProto) -> Iterable[NodeProto]:
    yield from model.graph.node
    for function in model.functions:
        yield from function.node


def _is_random(node: NodeProto) -> bool:
    return node.op_type in RANDOM_OPERATORS or any(_is_random(inner) for body in bodies_of(node) for inner in body.node)


def _has_half_values(graph: GraphProto) -> bool:
    values = (*graph.input, *graph.output, *graph.value_info)
    return (
        any(_is_half(value.type) for value in values)
        or any(tensor.data_type in _HALF for tensor in graph.initializer)
        or any(tensor.values.data_type in _HALF for tensor in graph.sparse_initializer)
    )


def _is_half(kind: TypeProto) -> bool:
    held = kind.WhichOneof("value")
    if held in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, held).elem_type in _HALF
    if held in ("sequence_type", "optional_type"):
        return _is_half(getattr(kind, held).elem_type)
    return held == "map_type" and _is_half(kind.map_type.value_type)


def _has_half_attributes(node: NodeProto) -> bool:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in _TYPE_ATTRIBUTES and attribute.i in _HALF:
            return True
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in _HALF:
            return True
    return any(
        _has_half_values(body) or any(_has_half_attributes(inner) for inner in body.node) for body in bodies_of(node)
    )
