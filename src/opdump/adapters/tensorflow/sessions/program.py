"""The operators of a signature as the program has them: those of the graph, and at each place that runs a function those of its body.

Tensors are named by `{operator}:{slot}`, an operator of a body by the path of its caller (`loop/body/MatMul`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from opdump.adapters.tensorflow.effects import definitions_of, is_pure
from opdump.adapters.tensorflow.functions.dataset_operators import datasets_read, gives_handles, hidden_functions
from opdump.adapters.tensorflow.functions.library import (
    BRANCHING,
    CALLS,
    HANDLES,
    LOOPS,
    Body,
    LibraryNode,
    body_of,
    callees_of,
    outputs_of,
)
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON, SKIPS
from opdump.adapters.tensorflow.sessions.executed import ExecutedGraph, Key, base_type, is_plumbing
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph
from opdump.adapters.tensorflow.stacks import Stack, Stacks, stack_of_node
from opdump.adapters.tensorflow.xla import is_compiled
from opdump.records import SkipReason


@dataclass(frozen=True, slots=True)
class ProgramSlot:
    """A tensor in a slot of an operator. `dtype` is the number of its element type; `source` who makes it, of an input."""

    slot: int
    argument: str
    key: Key
    dtype: int
    source: str = ""

    @property
    def is_handle(self) -> bool:
        return self.dtype in HANDLES

    @property
    def dtype_name(self) -> str:
        return str(tf.dtypes.as_dtype(self.dtype).name)


@dataclass(frozen=True, slots=True)
class ProgramOperator:
    """An operator. `is_inner`: it stands in the body of a function; `is_pure`: see `effects`."""

    name: str
    op_type: str
    node: Any
    stack: Stack
    inputs: tuple[ProgramSlot, ...]
    outputs: tuple[ProgramSlot, ...]
    is_inner: bool = False
    is_pure: bool = True
    caller: str = ""
    """Of one of a body, the operator that runs it."""


@dataclass(slots=True)
class Program:
    """The operators of a signature in a running order, each followed by those of the functions that it runs.

    `given` are operators that fed tensors keep from running, `unseen` those of functions that run elsewhere, with why they leave no data.
    """

    operators: list[ProgramOperator]
    given: list[ProgramOperator]
    unseen: list[tuple[ProgramOperator, SkipReason]]
    behind: dict[Key, Key] = field(default_factory=dict)
    """Tensor -> what it is the same as: an argument of a function, and what a call of one gives."""
    arguments: dict[tuple[str, str], list[Key]] = field(default_factory=dict)
    """Operator that runs functions, and the label of one (`body`) -> the tensors that are its arguments."""


def program_of(subgraph: Subgraph, stacks: Stacks) -> Program:
    """Lays out the operators of a signature."""
    return _Builder(subgraph, stacks).program()


def rewritten_operators(
    executed: ExecutedGraph, known: Collection[str], stack_of: Callable[[str], Stack], library: Callable[[str], Any]
) -> Iterator[ProgramOperator]:
    """The operators that the runtime has put into the graph, where it rewrote it; `known` are the nodes of the program's own.

    What only hands on, as the switches of a loop that was a function, is not among them.
    """
    made = {name: outputs_of(node, library) or () for name, node in executed.nodes.items()}
    for name, node in executed.nodes.items():
        if name in known or node.op in SKIPS or node.op in PASSES_ON or is_plumbing(node):
            continue
        shown = executed.paths.get(name, name)
        inputs = []
        for place, key in enumerate(executed.inputs(node)):
            maker, _, slot = key.rpartition(":")
            found = made.get(maker, ())
            dtype = found[int(slot)].dtype if int(slot) < len(found) else 0
            inputs.append(ProgramSlot(place, "", key, dtype, f"{executed.paths.get(maker, maker)}:{slot}"))
        outputs = tuple(ProgramSlot(slot.slot, slot.argument, f"{name}:{slot.slot}", slot.dtype) for slot in made[name])
        yield ProgramOperator(shown, base_type(node), node, stack_of(name), tuple(inputs), outputs, is_inner=True)


class _Builder:
    def __init__(self, subgraph: Subgraph, stacks: Stacks) -> None:
        self._subgraph = subgraph
        self._stacks = stacks
        self._definitions: Mapping[str, Any] | None = None
        self._bodies: dict[str, Body] = {}
        self._behind: dict[Key, Key] = {}
        self._arguments: dict[tuple[str, str], list[Key]] = {}

    def program(self) -> Program:
        operators: list[ProgramOperator] = []
        for op in self._subgraph.operators:
            own = self._of_graph(op)
            operators.append(own)
            operators += self._inside(own, own.node, "", ())
        given = [self._of_graph(op) for op in self._subgraph.given]
        return Program(operators, given, list(self._elsewhere()), self._behind, self._arguments)

    def _library(self, name: str) -> Any:
        if self._definitions is None:
            self._definitions = definitions_of(self._subgraph.operators[0].operation.graph)
        return self._definitions[name]

    def _of_graph(self, op: Any) -> ProgramOperator:
        def slots(found: Any) -> tuple[ProgramSlot, ...]:
            return tuple(
                ProgramSlot(
                    each.slot,
                    each.argument,
                    each.tensor.name,
                    each.tensor.dtype.base_dtype.as_datatype_enum,
                    each.source,
                )
                for each in found
            )

        pure = op.name not in self._subgraph.with_effects and not any(
            slot.tensor.dtype._is_ref_dtype for slot in (*op.inputs, *op.outputs)
        )
        stack = self._stacks.of_operation(op.operation)
        return ProgramOperator(
            op.name, op.op_type, op.operation.node_def, stack, slots(op.inputs), slots(op.outputs), is_pure=pure
        )

    def _inside(
        self, caller: ProgramOperator, node: Any, path: str, chain: tuple[str, ...]
    ) -> Iterator[ProgramOperator]:
        """The operators of the functions that one runs, at this place."""
        if is_compiled(node):
            return
        named = [(each.label, each.function) for each in callees_of(node)]
        if op_def_registry.get(node.op) is None:  # a function stands in the place of a type
            named.append(("", node.op))
        for label, function in named:
            if function in chain:
                continue
            try:
                body = self._body(function)
            except KeyError:
                continue
            below = f"{caller.name}/{label}/" if label else f"{caller.name}/"
            arguments = [argument.name for argument in body.definition.signature.input_arg]
            self._arguments[caller.name, label] = [f"{below}{argument}:0" for argument in arguments]
            given = caller.inputs[1:] if node.op in BRANCHING else caller.inputs
            if node.op in CALLS | BRANCHING or op_def_registry.get(node.op) is None:
                for argument, slot in zip(arguments, given, strict=False):
                    self._behind[f"{below}{argument}:0"] = slot.key
            if node.op not in BRANCHING | LOOPS:
                makers, signature = _makers(body), body.definition.signature
                for place, result in enumerate(signature.output_arg):
                    reference = body.definition.ret[result.name]
                    self._behind[f"{caller.name}:{place}"] = f"{below}{makers.get(reference, f'{reference}:0')}"
            stacks = self._stacks.of_function(function)
            for each in body.nodes:
                own = self._of_body(each, body, below, caller, stacks)
                yield own
                yield from self._inside(own, each.node, below, (*chain, function))

    def _body(self, function: str) -> Body:
        if function not in self._bodies:
            self._bodies[function] = body_of(self._library(function), self._library)
        return self._bodies[function]

    def _of_body(
        self, node: LibraryNode, body: Body, path: str, caller: ProgramOperator, stacks: Mapping[str, Stack]
    ) -> ProgramOperator:
        makers = _makers(body)

        def key(reference: str) -> Key:
            return f"{path}{makers.get(reference, f'{reference}:0')}"

        inputs = tuple(
            ProgramSlot(slot.slot, slot.argument, key(slot.reference), slot.dtype, key(slot.reference))
            for slot in node.inputs
        )
        name = f"{path}{node.node.name}"
        outputs = tuple(
            ProgramSlot(slot.slot, slot.argument, f"{name}:{slot.slot}", slot.dtype) for slot in node.outputs
        )
        stack = stack_of_node(node.node.name, stacks, caller.stack)
        pure = is_pure(node.node, self._library)
        return ProgramOperator(name, node.node.op, node.node, stack, inputs, outputs, True, pure, caller.name)

    def _elsewhere(self) -> Iterator[tuple[ProgramOperator, SkipReason]]:
        """The operators of functions that operators and data sets run where nobody sees them."""
        operations = [op.operation for op in self._subgraph.operators]
        named = {operation.name for operation in operations}
        operations += [each for each in datasets_read(operations) if each.name not in named]
        waiting: list[tuple[str, str, tuple[str, ...], Stack]] = [
            (f"{operation.name}/{path}", name, (), self._stacks.of_operation(operation))
            for operation in operations
            for path, name in hidden_functions(operation.node_def)
        ]
        while waiting:
            path, name, chain, stack = waiting.pop(0)
            if name in chain:
                continue
            try:
                definition = self._library(name)
            except KeyError:
                continue
            stacks = self._stacks.of_function(name)
            for node in definition.node_def:
                shown = f"{path}{node.name}"
                own = stack_of_node(node.name, stacks, stack)
                reason: SkipReason = "handle" if gives_handles(node, self._library) else "not observed"
                yield ProgramOperator(shown, node.op, node, own, (), (), True, False), reason
                below = [(f"{each.label}/" if each.label else "", each.function) for each in callees_of(node)]
                if not is_compiled(node):
                    below += hidden_functions(node)
                    waiting += [(f"{shown}/{inner}", callee, (*chain, name), own) for inner, callee in below]


def _makers(body: Body) -> dict[str, str]:
    """Reference -> `{node}:{slot}`, for what operators of a body make."""
    return {slot.reference: f"{node.node.name}:{slot.slot}" for node in body.nodes for slot in node.outputs}
