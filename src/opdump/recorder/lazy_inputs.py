"""A look at the outputs alone: enough for nearly every operator of overflow mode.

Where every number that came out is finite, nothing that went in can make an overflow of it. So the inputs need not be read before the
operator runs, but for those that it writes into; and no elements are copied until an operator is under suspicion.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from opdump.recorder.snapshots import LiveTensor, Reader, TensorSnapshot
from opdump.records import OpRecord


@runtime_checkable
class SupportsLazyInputs(Protocol):
    """A reader that can look at a tensor without a copy of its elements."""

    def without_elements(self) -> Reader:
        """A reader of summaries, with tables of its own."""

    def memory_of(self, tensor: Any) -> object:
        """What is equal for tensors that share memory; None where that is not known."""


@runtime_checkable
class SupportsClearing(Protocol):
    """A detector that can often tell from the outputs."""

    def clears(self, op: OpRecord, outputs: Sequence[TensorSnapshot]) -> bool:
        """Whether the outputs, of which statistics are there, prove that the operator did not overflow."""


class Inputs(NamedTuple):
    """The inputs of an operator that is about to run."""

    now: list[LiveTensor]
    """Those that may be others when it has run."""
    later: list[LiveTensor]
    """Those that it leaves as they are."""


def split_by_aliasing(
    inputs: Iterable[LiveTensor], changes: Collection[str], memory_of: Callable[[Any], object]
) -> Inputs:
    """Tells the inputs apart by whether they share memory with an argument among `changes`, into which the operator writes."""
    lives = list(inputs)
    if not changes:
        return Inputs([], lives)
    memories = [memory_of(live[2]) for live in lives]
    written = {
        memory
        for (_, argument, *_), memory in zip(lives, memories, strict=True)
        if argument.partition("[")[0] in changes
    }
    if None in written:
        return Inputs(lives, [])
    written.add(None)
    now: list[LiveTensor] = []
    later: list[LiveTensor] = []
    for live, memory in zip(lives, memories, strict=True):
        (now if memory in written else later).append(live)
    return Inputs(now, later)
