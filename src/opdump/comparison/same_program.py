"""Whether two steps are the same in all but what was computed: the same operators in the same order, on the same memory."""

from __future__ import annotations

from collections.abc import Mapping

from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord


def run_the_same(a: Trace, b: Trace) -> bool:
    """Whether each operator of A is that of B at its place, by everything that operators are matched by but values."""
    return len(a.nodes) == len(b.nodes) and all(map(_is_same, a.nodes, b.nodes))


def _is_same(one: Node, other: Node) -> bool:
    first, second = one.op, other.op
    return (
        first.op_name == second.op_name
        and first.occurrence == second.occurrence
        and first.op_type == second.op_type
        and first.phase == second.phase
        and first.arguments == second.arguments
        and first.line == second.line
        and one.makers == other.makers
        and _look(one.inputs) == _look(other.inputs)
        and _look(one.outputs) == _look(other.outputs)
    )


def _look(records: Mapping[int, TensorRecord]) -> list[tuple[object, ...]]:
    return [(slot, each.shape, each.dtype, each.source, each.memory) for slot, each in records.items()]
