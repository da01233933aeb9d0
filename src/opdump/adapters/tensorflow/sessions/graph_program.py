"""The operators of a signature as the program has them: those of its graph, and at each place that runs a function those of its body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from opdump.adapters.tensorflow.effects import definition_in, definitions_of
from opdump.adapters.tensorflow.graphs.dataset_operators import datasets_read, gives_handles, hidden_functions
from opdump.adapters.tensorflow.graphs.library import Library, callees_of
from opdump.adapters.tensorflow.graphs.program import Program, ProgramBuilder, ProgramOperator, ProgramSlot
from opdump.adapters.tensorflow.sessions.subgraph import GraphOperator, Slot, Subgraph
from opdump.adapters.tensorflow.stacks import Stack, Stacks, stack_of_node
from opdump.adapters.tensorflow.xla import is_compiled
from opdump.records import SkipReason


def program_of(subgraph: Subgraph, stacks: Stacks) -> Program:
    """Lays out the operators of a signature."""
    definitions: dict[str, Any] = {}
    if subgraph.operators:
        definitions = definitions_of(subgraph.operators[0].operation.graph)
    library = definitions.__getitem__
    builder = ProgramBuilder(library, stacks)
    operators: list[ProgramOperator] = []
    for op in subgraph.operators:
        own = _operator(op, subgraph, stacks)
        operators.append(own)
        operators += builder.inside(own)
    return Program(
        operators,
        [_operator(op, subgraph, stacks) for op in subgraph.given],
        list(_elsewhere(subgraph, stacks, library)),
        builder.bodies,
        builder.behind,
        builder.arguments,
        builder.results,
    )


def _operator(op: GraphOperator, subgraph: Subgraph, stacks: Stacks) -> ProgramOperator:
    pure = op.name not in subgraph.with_effects and not any(
        slot.tensor.dtype._is_ref_dtype for slot in (*op.inputs, *op.outputs)
    )
    stack = stacks.of_operation(op.operation)
    inputs, outputs = _slots(op.inputs), _slots(op.outputs)
    return ProgramOperator(op.name, op.op_type, op.operation.node_def, stack, inputs, outputs, is_pure=pure)


def _slots(found: Iterable[Slot]) -> tuple[ProgramSlot, ...]:
    return tuple(
        ProgramSlot(
            each.slot, each.argument, each.tensor.name, each.tensor.dtype.base_dtype.as_datatype_enum, each.source
        )
        for each in found
    )


def _elsewhere(subgraph: Subgraph, stacks: Stacks, library: Library) -> Iterator[tuple[ProgramOperator, SkipReason]]:
    """The operators of functions that operators and data sets run where nobody sees them."""
    operations = [op.operation for op in subgraph.operators]
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
            reason: SkipReason = "handle" if gives_handles(node, library) else "not observed"
            yield ProgramOperator(shown, node.op, node, own, (), (), is_pure=False), reason
            below = [(f"{each.label}/" if each.label else "", each.function) for each in callees_of(node)]
            if not is_compiled(node):
                below += hidden_functions(node)
                waiting += [(f"{shown}/{inner}", callee, (*chain, name), own) for inner, callee in below]
