"""Operators of a graph that run one after the other, prepared once: what differs from run to run is their tensors, and little else.

block = Block([BlockOperator(relu, inputs=(BlockSlot(0, "x", "conv:0", 0),), outputs=(BlockSlot(0, "", "", 1),))])
run.emit_block(block, tensors)       # tensors[0] is what relu read, tensors[1] what it wrote
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from opdump.adapters.graph_runtime.named_operator import NamedOperator
from opdump.records import IO, SkipReason


class BlockSlot(NamedTuple):
    """A slot of an operator; `tensor` is the place of its tensor among those of a run, `source` the producer of that."""

    slot: int
    argument: str
    source: str
    tensor: int


class BlockOperator(NamedTuple):
    """An operator of a block. One that leaves no data has no slots."""

    operator: NamedOperator
    inputs: Sequence[BlockSlot] = ()
    outputs: Sequence[BlockSlot] = ()


class Block:
    """Operators in their order."""

    def __init__(self, operators: Sequence[BlockOperator]) -> None:
        self.operators = operators
        self.places = [place for place, each in enumerate(operators) if not each.operator.skip]
        """Where those stand that leave data."""
        self.ran = [operators[place].operator for place in self.places]
        self.slots = [*self._slots()]
        """All slots, as a recorder takes them (`SupportsBlocks`)."""
        self.skipped: Counter[SkipReason] = Counter(each.operator.skip for each in operators if each.operator.skip)
        self.is_known = not self.skipped
        """Whether those that leave no data are listed already."""

    def _slots(self) -> Iterator[tuple[int, IO, int, str, str, int]]:
        for number, place in enumerate(self.places):
            each = self.operators[place]
            sides: tuple[tuple[IO, Sequence[BlockSlot]], ...] = (("input", each.inputs), ("output", each.outputs))
            for io, slots in sides:
                for slot, argument, source, tensor in slots:
                    yield number, io, slot, argument, source, tensor
