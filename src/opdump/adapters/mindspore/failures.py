"""Finds the operator of a graph that failed. MindSpore dumps an operator after it has run, so the failed one has no files.

Among the operators without files whose makers have all run, it is the one of the type that the error names (`For 'Gather', ...`),
otherwise the first in the planned execution order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.adapters.graph_runtime import NamedOperator, live_tensor
from opdump.adapters.mindspore.executions import Execution, Program
from opdump.graph import Graph, GraphNode
from opdump.layouts.mindspore_sync.program_lines import program_stack
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.recorder import LiveTensor

_NAMED: Final = re.compile(r"For '([A-Za-z0-9_]+)'")


@dataclass(frozen=True, slots=True)
class FailedOperator:
    """An operator that failed; `sources` are the makers of its inputs by slot, as `name:slot` with the names in files."""

    operator: NamedOperator
    sources: tuple[tuple[int, str], ...]


def failed_operator(
    graph: Graph, names: TrueNames, order: Sequence[str], ran: Program, error: BaseException
) -> FailedOperator | None:
    """The operator that raised `error` after those that ran; None if no operator is left."""
    have_run = {op.op_name for op in ran.ops}
    nodes = {node.op_name: node for node in graph.nodes}
    planned = [node for name in order if (node := nodes.get(name))] or list(graph.nodes)
    kernels = {node.op_name for node in planned if node.runs_kernel}
    left = [
        node
        for node in planned
        if node.op_name in kernels
        and node.op_name not in have_run
        and all(maker not in kernels or maker in have_run for maker in _makers(node, names))
    ]
    named = _NAMED.search(str(error))
    found = next((node for node in left if named and node.op_type == named[1]), left[0] if left else None)
    if found is None:
        return None
    given = [(slot, names.source(found, slot)) for slot in range(len(found.inputs))]
    sources = [(slot, each.source) for slot, each in given if each is not None and each.source]
    operator = NamedOperator(
        found.op_type,
        found.op_name,
        arguments=found.attributes,
        stack=program_stack(found.stack),
        kernel=found.op_type,
        phase=found.phase,
    )
    return FailedOperator(operator, tuple(sources))


def inputs_of(failed: FailedOperator, execution: Execution) -> list[LiveTensor]:
    """The inputs of the operator that operators of the same execution made."""
    made = {
        f"{each.operator.op_name}:{slot.slot}": execution.tensors[slot.tensor]
        for each in execution.program.operators
        for slot in each.outputs
    }
    return [live_tensor(slot, "", made[source], source) for slot, source in failed.sources if source in made]


def _makers(node: GraphNode, names: TrueNames) -> list[str]:
    given = [names.source(node, slot) for slot in range(len(node.inputs))]
    return [each.source.rpartition(":")[0] for each in given if each is not None]
