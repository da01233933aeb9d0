"""Which operator of a graph failed: MindSpore dumps an operator once it has run, so it is one of those that have left nothing.

Among the operators whose makers have all run, it is the one of the type that the error names (`For 'Gather', ...`), or else the first in
the order that MindSpore planned.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from opdump.adapters.graph_runtime import live_tensor
from opdump.adapters.host import HostTensor
from opdump.adapters.mindspore.executions import Execution
from opdump.graph import Graph, GraphNode
from opdump.layouts.mindspore_sync.program_lines import program_stack
from opdump.layouts.mindspore_sync.true_names import TrueNames
from opdump.recorder import LiveTensor
from opdump.records import OpRecord

_NAMED: Final = re.compile(r"For '([A-Za-z0-9_]+)'")


def failed_operator(
    graph: Graph, names: TrueNames, order: Sequence[str], ran: Sequence[Execution], error: BaseException
) -> GraphNode | None:
    """The operator that raised `error` after those that `ran`; None where the graph has no other."""
    executed = {node.op_name for node in names.nodes(execution.op.op_name for execution in ran).values()}
    nodes = {node.op_name: node for node in graph.nodes}
    planned = [nodes[name] for name in order if name in nodes] or list(graph.nodes)
    kernels = {node.op_name for node in planned if node.runs_kernel}
    left = [
        node
        for node in planned
        if node.op_name in kernels - executed
        and all(maker not in kernels or maker in executed for maker in _makers(node))
    ]
    named = _NAMED.search(str(error))
    return next((node for node in left if named and node.op_type == named[1]), left[0] if left else None)


def record_of(node: GraphNode, like: OpRecord) -> OpRecord:
    """The record of an operator that failed; `like` is one of the same execution of the graph."""
    return OpRecord(
        op_type=node.op_type,
        op_name=node.op_name,
        timestamp=time.time_ns() // 1000,
        step=like.step,
        net_name=like.net_name,
        graph_id=like.graph_id,
        rank_id=like.rank_id,
        device_id=like.device_id,
        phase=node.phase,
        kernel=node.op_type,
        stack=program_stack(node.stack),
        arguments=node.attributes,
    )


def inputs_of(node: GraphNode, names: TrueNames, ran: Sequence[Execution]) -> list[LiveTensor]:
    """What the operator read, as far as operators of the same execution have made it."""
    made: dict[str, HostTensor | str] = {}
    of_graph = names.nodes(execution.op.op_name for execution in ran)
    for execution in ran:
        maker = of_graph.get(execution.op.op_name)
        for io, slot, tensor, _ in execution.tensors:
            if io == "output" and maker is not None:
                made[f"{maker.op_name}:{slot}"] = tensor
    found = []
    for slot in range(len(node.inputs)):
        given = names.source(node, slot)
        if given is not None and given.source in made:
            found.append(live_tensor(slot, "", made[given.source], given.source))
    return found


def _makers(node: GraphNode) -> list[str]:
    return [given.source.rpartition(":")[0] for given in node.inputs]
