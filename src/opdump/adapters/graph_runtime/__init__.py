"""The common parts of adapters for graph runtimes. Such a runtime executes a graph of named operators, whose values are available while
it runs or afterwards.

RunEmitter         passes the operators of runs to a recorder, one by one
Block              consecutive operators, prepared once
ArrayBlock         a block whose tensors are arrays, which are passed by address
GraphRun           one run: numbers its operators, lists skipped ones once, and records a failed one with its inputs
NamedOperator      an operator of a graph: the common part of the records of all its executions
UniqueNames        operator names whose last components are unique in a graph, for layouts that use these in file names
OperatorSelection  the operators of a graph that a plan selects, and their slots
StepCount          numbers the runs of a graph as steps

No framework is imported here. Values in host memory are `opdump.adapters.host`; each adapter obtains the values of a run itself.
"""

from __future__ import annotations

from opdump.adapters.graph_runtime.array_block import ArrayBlock
from opdump.adapters.graph_runtime.block import Block, BlockOperator, BlockSlot
from opdump.adapters.graph_runtime.named_operator import NamedOperator, UniqueNames
from opdump.adapters.graph_runtime.operator_selection import OperatorSelection
from opdump.adapters.graph_runtime.run_emitter import GraphRun, RunEmitter, live_tensor
from opdump.adapters.graph_runtime.step_count import StepCount

__all__ = [
    "ArrayBlock",
    "Block",
    "BlockOperator",
    "BlockSlot",
    "GraphRun",
    "NamedOperator",
    "OperatorSelection",
    "RunEmitter",
    "StepCount",
    "UniqueNames",
    "live_tensor",
]
