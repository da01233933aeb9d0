"""Describes an operator as a node of the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from opdump.adapters.torch.memory import dtype_name, shape_of
from opdump.adapters.torch.schemas import Found
from opdump.graph import GraphInput, GraphNode, GraphOutput
from opdump.recorder import LiveTensor
from opdump.records import OpRecord

Described = TypeVar("Described", GraphInput, GraphOutput)


def node_of(op: OpRecord, inputs: Sequence[LiveTensor], outputs: Sequence[Found], *, runs_kernel: bool) -> GraphNode:
    """The graph node of an operator that has run."""
    return GraphNode(
        op_name=op.op_name,
        op_type=op.op_type,
        phase=op.phase,
        inputs=_by_slot(
            {slot: GraphInput(source, dtype_name(tensor), shape_of(tensor)) for slot, _, tensor, source, _ in inputs},
            GraphInput(),
        ),
        outputs=_by_slot(
            {slot: GraphOutput(dtype_name(tensor), shape_of(tensor)) for slot, _, tensor in outputs},
            GraphOutput("", ()),
        ),
        attributes=op.arguments,
        stack=op.stack,
        runs_kernel=runs_kernel,
    )


def _by_slot(values: Mapping[int, Described], nothing: Described) -> tuple[Described, ...]:
    """The values in slot order; `nothing` in a slot without a tensor."""
    return tuple(values.get(slot, nothing) for slot in range(max(values, default=-1) + 1))
