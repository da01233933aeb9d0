"""Finds the operators that the runtime inserted into a graph when it rewrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opdump.adapters.program_stacks import Stack
from opdump.adapters.tensorflow.effects import Library
from opdump.adapters.tensorflow.graphs.executed import ExecutedGraph, base_type, is_plumbing, output_count
from opdump.adapters.tensorflow.graphs.library import Slot, outputs_of
from opdump.adapters.tensorflow.graphs.program import Program, ProgramOperator
from opdump.adapters.tensorflow.operator_kinds import PASSES_ON, SKIPS


def rewritten_operators(
    program: Program, executed: ExecutedGraph, nodes: Mapping[str, str], library: Library
) -> Iterator[ProgramOperator]:
    """The operators that are not the program's; `nodes` are the nodes of its own operators.

    Nodes that only pass values on, such as the switches of a loop that was a function, are not included. Tensors have the names of the executed graph.
    """
    operators = {op.name: op for op in program.operators}
    known = {node: operators[name] for name, node in nodes.items()}
    made = {name: outputs_of(node, library) or () for name, node in executed.nodes.items()}
    for name, node in executed.nodes.items():
        shown = executed.paths.get(name, name)
        if name in known or shown in operators or node.op in SKIPS or node.op in PASSES_ON or is_plumbing(node):
            continue
        inputs = []
        for place, key in enumerate(executed.inputs(node)):
            maker, _, slot = key.rpartition(":")
            found = made.get(maker, ())
            dtype = found[int(slot)].dtype if int(slot) < len(found) else 0
            inputs.append(Slot(place, "", key, dtype, f"{executed.paths.get(maker, maker)}:{slot}"))
        outputs = tuple(Slot(slot.slot, slot.argument, f"{name}:{slot.slot}", slot.dtype) for slot in made[name])
        yield ProgramOperator(shown, base_type(node), node, _stack_of(name, known, executed), tuple(inputs), outputs)


def _stack_of(name: str, known: Mapping[str, ProgramOperator], executed: ExecutedGraph) -> Stack:
    """The program lines of the direct or indirect readers of a node, for which it was made."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop(0)
        if current in known:
            return known[current].stack
        for slot in range(output_count(executed.nodes[current])):
            readers = [each for each in executed.readers.get(f"{current}:{slot}", ()) if each not in seen]
            seen.update(readers)
            waiting += readers
    return ()
