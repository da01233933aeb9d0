"""Consecutive operators of a graph, prepared once. Between runs, little more than their tensors changes.

block = Block([BlockOperator(relu, inputs=(BlockSlot(0, "x", "conv:0", 0),), outputs=(BlockSlot(0, "", "", 1),))])
run.emit_block(block, tensors.__getitem__, lambda: tensors)     # tensors[0] is the input of relu, tensors[1] its output
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import add
from typing import Final, NamedTuple

from opdump.adapters.graph_runtime.named_operator import NamedOperator
from opdump.records import IO, Frame, OpRecord, SkipReason
from opdump.step_columns import OperatorSequence

MOST_RECORDS: Final = 50_000
"""Maximum number of records that are kept for the operators of one block, at the different positions in a step at which it runs: a
loop runs it many times.
"""


class BlockSlot(NamedTuple):
    """A slot of an operator; `tensor` is the position of its tensor among those of a run, `source` the producer of the tensor."""

    slot: int
    argument: str
    source: str
    tensor: int


class BlockOperator(NamedTuple):
    """An operator of a block. If it is skipped, it has no slots."""

    operator: NamedOperator
    inputs: Sequence[BlockSlot] = ()
    outputs: Sequence[BlockSlot] = ()


class Block:
    """Operators in execution order."""

    def __init__(self, operators: Sequence[BlockOperator]) -> None:
        self.operators = operators
        self.places = [place for place, each in enumerate(operators) if not each.operator.skip]
        """The positions of operators that are not skipped."""
        self.ran = [operators[place].operator for place in self.places]
        self.slots = [*self._slots()]
        """All slots, in the form for a recorder (`SupportsBlocks`)."""
        self.skipped: Counter[SkipReason] = Counter(each.operator.skip for each in operators if each.operator.skip)
        self.is_known = not self.skipped
        """Whether the skipped operators are already listed."""
        self.is_entered = False
        """Whether the operators are in the graph of the model."""
        self._names = [each.op_name for each in self.ran]
        seen: Counter[str] = Counter()
        self._before: list[int] = []
        """For each operator, the number of its earlier executions in the block."""
        for name in self._names:
            self._before.append(seen[name])
            seen[name] += 1
        self._sequences: dict[tuple[object, ...], _Known] = {}

    def sequence(
        self,
        numbers: Sequence[int] | None,
        executions: dict[str, int],
        called_at: Sequence[Frame],
        *,
        net_name: str,
        graph_id: int,
        rank_id: int,
        device_id: int,
    ) -> OperatorSequence:
        """The operators that are not skipped, for the current run. If nothing differs from another step, the same object is returned.

        `numbers` are the orders of all operators; None if these are their positions in the graph. `executions` counts the executions of each
        operator in the step, by name, and is updated.
        """
        occurrences = [*map(executions.get, self._names, repeat(0))]
        if len(self._names) > 1:
            occurrences = [*map(add, occurrences, self._before)]
        key = (
            net_name,
            graph_id,
            rank_id,
            device_id,
            numbers[0] if numbers else -1,
            occurrences[0] if occurrences else 0,
        )
        known = self._sequences.get(key)
        if (
            known is None
            or known.numbers != numbers
            or known.occurrences != occurrences
            or known.called_at is not called_at
        ):
            while len(self._sequences) * len(self.ran) > MOST_RECORDS:
                del self._sequences[next(iter(self._sequences))]
            orders = [each.task_id for each in self.ran] if numbers is None else [numbers[at] for at in self.places]
            ops = [
                OpRecord(
                    each.op_type,
                    each.op_name,
                    0,
                    0,
                    net_name,
                    graph_id,
                    rank_id,
                    device_id,
                    task_id=each.task_id,
                    order=order,
                    occurrence=occurrence,
                    phase=each.phase,
                    kernel=each.own_kernel,
                    stack=each.stack or called_at,
                    arguments=each.arguments,
                )
                for each, order, occurrence in zip(self.ran, orders, occurrences, strict=True)
            ]
            executed = {name: occurrence + 1 for name, occurrence in zip(self._names, occurrences, strict=True)}
            known = _Known(OperatorSequence(ops, self.slots), numbers, occurrences, called_at, executed)
            self._sequences[key] = known
        dict.update(executions, known.executed)
        return known.sequence

    def _slots(self) -> Iterator[tuple[int, IO, int, str, str, int]]:
        for number, place in enumerate(self.places):
            each = self.operators[place]
            sides: tuple[tuple[IO, Sequence[BlockSlot]], ...] = (("input", each.inputs), ("output", each.outputs))
            for io, slots in sides:
                for slot, argument, source, tensor in slots:
                    yield number, io, slot, argument, source, tensor


class _Known(NamedTuple):
    sequence: OperatorSequence
    numbers: Sequence[int] | None
    occurrences: Sequence[int]
    called_at: Sequence[Frame]
    executed: Mapping[str, int]
    """The number of executions of each operator afterwards."""
