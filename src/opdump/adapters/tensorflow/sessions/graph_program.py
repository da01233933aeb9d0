"""The operators of a signature as the program has them: those of its graph, and at each place that runs a function those of its body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from opdump.adapters.tensorflow.effects import Library, definition_in
from opdump.adapters.tensorflow.graphs.dataset_operators import datasets_read, hidden_functions
from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import Slot, are_handles, argument_names, callees_of, outputs_of
from opdump.adapters.tensorflow.graphs.program import Program, ProgramBuilder, ProgramOperator
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, op_type_of
from opdump.adapters.tensorflow.stacks import Stack, Stacks, stack_of_node
from opdump.adapters.tensorflow.xla import is_compiled
from opdump.records import SkipReason


def program_of(subgraph: Subgraph, stacks: Stacks) -> Program:
    """Lays out the operators of a signature."""
    library = subgraph.definitions().__getitem__
    builder = ProgramBuilder(library, stacks)
    program = builder.program
    for operation in subgraph.operations:
        own = operator_of(operation, subgraph, stacks)
        program.operators.append(own)
        program.operators += builder.inside(own)
    program.given += [replace(operator_of(each, subgraph, stacks), inputs=()) for each in subgraph.given]
    program.unseen += _elsewhere(subgraph, stacks, library)
    return program


def _slot(slot: int, argument: str, tensor: Any, source: Key = "") -> Slot:
    return Slot(slot, argument, tensor.name, tensor.dtype.base_dtype.as_datatype_enum, source)


def operator_of(operation: Any, subgraph: Subgraph, stacks: Stacks) -> ProgramOperator:
    """An operation of a signature."""
    pure = operation.name not in subgraph.with_effects and not any(
        tensor.dtype._is_ref_dtype for tensor in (*operation.inputs, *operation.outputs)
    )
    node, op_def = operation.node_def, operation.op_def
    inputs = zip(argument_names(op_def.input_arg, op_def, node), operation.inputs, strict=True)
    outputs = zip(argument_names(op_def.output_arg, op_def, node), operation.outputs, strict=True)
    return ProgramOperator(
        operation.name,
        op_type_of(operation),
        node,
        stacks.of_operation(operation),
        tuple(_slot(slot, name, tensor, tensor.name) for slot, (name, tensor) in enumerate(inputs)),
        tuple(_slot(slot, name, tensor) for slot, (name, tensor) in enumerate(outputs)),
        is_pure=pure,
    )


def _elsewhere(subgraph: Subgraph, stacks: Stacks, library: Library) -> Iterator[tuple[ProgramOperator, SkipReason]]:
    """The operators of functions that operators and data sets run where nobody sees them."""
    operations = list(subgraph.operations)
    named = {operation.name for operation in operations}
    operations += [each for each in datasets_read(operations) if each.name not in named]
    waiting: list[tuple[str, str, tuple[str, ...], Stack]] = [
        (f"{operation.name}/{path}", name, (), stacks.of_operation(operation))
        for operation in operations
        for path, name in hidden_functions(operation.node_def)
    ]
    while waiting:
        path, name, chain, stack = waiting.pop(0)
        definition = None if name in chain else definition_in(name, library)
        if definition is None:
            continue
        traced = stacks.of_function(name)
        for node in definition.node_def:
            shown = f"{path}{node.name}"
            own = stack_of_node(node.name, traced, stack)
            reason: SkipReason = "handle" if are_handles(outputs_of(node, library) or ()) else "not observed"
            yield ProgramOperator(shown, node.op, node, own, (), (), is_pure=False), reason
            below = [(f"{each.label}/" if each.label else "", each.function) for each in callees_of(node)]
            if not is_compiled(node):
                below += hidden_functions(node)
                waiting += [(f"{shown}/{inner}", callee, (*chain, name), own) for inner, callee in below]
