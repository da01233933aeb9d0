"""The operators of a signature in the program: those of its graph and, at each place that runs a function, those of its body."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opdump.adapters.tensorflow.graphs.dataset_operators import datasets_read, hidden_functions, hidden_operators
from opdump.adapters.tensorflow.graphs.executed import Key
from opdump.adapters.tensorflow.graphs.library import Slot, argument_names
from opdump.adapters.tensorflow.graphs.program import Program, ProgramBuilder, ProgramOperator
from opdump.adapters.tensorflow.sessions.subgraph import Subgraph, op_type_of
from opdump.adapters.tensorflow.stacks import Stacks


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
    read = {each.name: each for each in (*subgraph.operations, *datasets_read(subgraph.operations))}
    hidden = (
        (f"{each.name}/{path}", name, stacks.of_operation(each))
        for each in read.values()
        for path, name in hidden_functions(each.node_def)
    )
    program.unseen += hidden_operators(hidden, library, stacks)
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
