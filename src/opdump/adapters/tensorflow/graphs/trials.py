"""Tries whether a node of the executed graph has the result of the program's operator, where the runtime rewrote its inputs.

The rewriting moves factors and summands from one operator to another, so that a node with the name and the type of an operator may have
another result. Both are computed in float64 from the same random values of tensors that the program and the executed graph share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tensorflow.python.eager import execute
from tensorflow.python.framework import function_def_to_graph, op_def_registry

from opdump.adapters.tensorflow.graphs.library import HANDLES, Key, Library, output_count
from opdump.adapters.tensorflow.graphs.program import Program

Shape = tuple[int, ...]
ShapeOf = Callable[[Key], Shape | None]
_REFUSALS: Final = (tf.errors.OpError, TypeError, ValueError, KeyError, AttributeError, LookupError)
_MOST_ELEMENTS: Final = 1 << 20
_SAME: Final = 1e-4
_UNKNOWN_SIZE: Final = 2


class UntriedError(Exception):
    """The results cannot be computed, because a shape or a kernel is missing. The caller decides in another way."""


class Trial:
    """One trial; tensors that the program and the executed graph share have the same values in both."""

    def __init__(self, shape_of: ShapeOf) -> None:
        self._shape_of = shape_of
        self._shared: dict[Key, Any] = {}
        self._random = np.random.default_rng(0)

    def shared(self, key: Key, dtype: int) -> Any:
        """Random values for a shared tensor. Raises UntriedError for integers, which may be indices or shapes."""
        if key not in self._shared:
            shape, kind = self._shape_of(key), tf.as_dtype(dtype)
            if shape is None or not kind.is_floating or np.prod(shape, dtype=np.int64) > _MOST_ELEMENTS:
                raise UntriedError
            self._shared[key] = _on_host(lambda: tf.constant(self._random.uniform(0.5, 1.5, shape)))
        return self._shared[key]

    @staticmethod
    def constant(node: Any) -> Any:
        """The value of a constant."""
        value = tf.make_ndarray(node.attr["value"].tensor)
        is_float = tf.as_dtype(node.attr["dtype"].type).is_floating
        return _on_host(lambda: tf.constant(value.astype(np.float64) if is_float else value))

    @staticmethod
    def run(node: Any, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a node in float64."""
        op_def = op_def_registry.get(node.op)
        if op_def is None:
            raise UntriedError
        attributes: list[Any] = []
        for attribute in op_def.attr:
            if attribute.name in node.attr:
                attributes += [attribute.name, _attribute(node.attr[attribute.name], attribute.type)]
        count = output_count(node)
        outputs: Sequence[Any] = _on_host(
            lambda: execute.quick_execute(node.op, count, [*inputs], tuple(attributes), eager_context.context())
        )
        return outputs


def agree(one: Any, other: Any) -> bool:
    """Whether two results are equal within the rounding of constants to float32."""
    first, second = np.asarray(one), np.asarray(other)
    if first.shape != second.shape:
        return False
    return bool(np.allclose(first, second, rtol=_SAME, atol=_SAME * float(np.abs(first).max(initial=0.0))))


def shape_in_graph(tensor: Any) -> Shape | None:
    """The shape of a tensor of a graph, with a small size for an unknown one; None if the rank is unknown."""
    if tensor.shape.rank is None:
        return None
    return tuple(_UNKNOWN_SIZE if size is None else size for size in tensor.shape.as_list())


def _on_host(run: Callable[[], Any]) -> Any:
    try:
        with eager_context.eager_mode(), tf.device("/CPU:0"):
            return run()
    except _REFUSALS as error:
        raise UntriedError from error


def _attribute(value: Any, kind: str) -> Any:
    if kind == "type":
        return tf.float64.as_datatype_enum if tf.as_dtype(value.type).is_floating else value.type
    if kind == "shape":
        return None if value.shape.unknown_rank else [dim.size for dim in value.shape.dim]
    if kind in ("int", "float", "bool", "string"):
        return getattr(value, {"int": "i", "float": "f", "bool": "b", "string": "s"}[kind])
    if kind in ("list(int)", "list(float)", "list(string)"):
        return [*getattr(value.list, kind[5])]
    raise UntriedError


class FunctionShapes:
    """The shapes of the tensors in a function and in the functions that it calls, for a call with arguments of these shapes.

    The shape of the handle of a variable is that of the variable.
    """

    def __init__(self, program: Program, library: Library, inputs: Sequence[Shape | None]) -> None:
        self._program = program
        self._library = library
        self._inputs = inputs
        self._graphs: dict[int, Any] = {}
        self._bodies = {op.name: op.body for op in program.operators}
        names = [each.name for each in library(program.bodies[0].function).signature.input_arg]
        self._given = {f"{name}:0": shape for name, shape in zip(names, inputs, strict=False)}

    def __call__(self, key: Key) -> Shape | None:
        """The shape of a tensor, with a small size for an unknown one; None if the rank is unknown."""
        if key in self._given:
            return self._given[key]
        number = self._bodies.get(key.rpartition(":")[0], 0)
        try:
            if number not in self._graphs:
                self._graphs[number] = self._graph(number)
            tensor = self._graphs[number].get_tensor_by_name(key.removeprefix(self._program.bodies[number].path))
        except _REFUSALS:
            return None
        return shape_in_graph(tensor)

    def _graph(self, number: int) -> Any:
        body = self._program.bodies[number]
        definition = type(self._library(body.function))()
        definition.CopyFrom(self._library(body.function))
        arguments = list(definition.signature.input_arg)
        shapes = [*self._inputs]
        if number:
            shapes = [self(self._program.resolved(key)) for key in self._program.arguments.get((body.caller, ""), ())]
        if len(shapes) != len(arguments):
            return function_def_to_graph.function_def_to_graph(definition)
        handles = {each.name: shape for each, shape in zip(arguments, shapes, strict=True) if each.type in HANDLES}
        _hold_variables(definition, handles)
        given = [
            None if shape is None or each.type in HANDLES else tf.TensorShape(shape)
            for each, shape in zip(arguments, shapes, strict=True)
        ]
        return function_def_to_graph.function_def_to_graph(definition, given)


def _hold_variables(definition: Any, handles: Mapping[str, Shape | None]) -> None:
    """Replace the reads of variables by placeholders of their shapes, because the handles of a definition do not tell them."""
    renamed = {}
    for node in [*definition.node_def]:
        shape = handles.get(node.input[0]) if node.op in ("ReadVariableOp", "ResourceGather") else None
        if shape is None:
            continue
        dtype = node.attr["dtype"].type
        renamed[f"{node.name}:{'value' if node.op == 'ReadVariableOp' else 'output'}:0"] = f"{node.name}:output:0"
        held = node
        if node.op == "ResourceGather":
            held = definition.node_def.add(name=f"{node.name}/held")
            axis = definition.node_def.add(name=f"{node.name}/axis", op="Const")
            axis.attr["dtype"].type = tf.int32.as_datatype_enum
            axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
            indices, kind = node.input[1], node.attr["Tindices"].type
            node.op, node.input[:] = "GatherV2", [f"{held.name}:output:0", indices, f"{axis.name}:output:0"]
            node.attr.clear()
            node.attr["Tparams"].type, node.attr["Tindices"].type = dtype, kind
            node.attr["Taxis"].type = tf.int32.as_datatype_enum
        else:
            del node.input[:]
        held.op = "Placeholder"
        held.attr.clear()
        held.attr["dtype"].type = dtype
        held.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    for node in definition.node_def:
        node.input[:] = [renamed.get(text, text) for text in node.input]
    for name in list(definition.ret):
        definition.ret[name] = renamed.get(definition.ret[name], definition.ret[name])
