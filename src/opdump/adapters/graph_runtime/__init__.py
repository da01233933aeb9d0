"""What adapters of graph runtimes share: a runtime has a graph of named operators, whose values are had while it runs or afterwards.

RunEmitter         hands the operators of runs to a recorder, one after the other
Block              operators that run one after the other, prepared once
ArrayBlock         such a block whose tensors are arrays, which are handed over by their addresses
GraphRun           one run: numbers its operators, lists those that leave no data once, files a failed one with what it was given
NamedOperator      an operator of a graph: what the records of all its executions say
UniqueNames        names of operators whose last components are unique in a graph, for layouts whose files are called by these
OperatorSelection  which operators of a graph a plan takes, and which of their slots
StepCount          numbers the runs of a graph as steps

No framework is imported here. Values in host memory are `opdump.adapters.host`; how the values of a run are had is the adapter's own.
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
