"""Says how often nodes of a graph run in relation to others: in which loops, and in which branches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.adapters.tensorflow.operator_kinds import ENTERS, EXITS, MERGES

Tensor = tuple[str, int]
"""A node, and the slot of its output."""
Control = tuple[tuple[str, ...], Tensor, int]
"""The loops around a branch, what decides about it, and the output of the Switch."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run equally often: in the same loops (`frame`), in the same branches of them (`controls`)."""

    frame: tuple[str, ...]
    controls: frozenset[Control]

    def behind(self, decides: Tensor, output: int) -> Region:
        """Where an output of a Switch of this region is there, about which a tensor decides."""
        return Region(self.frame, self.controls | {(self.frame, decides, output)})


ROOT: Final = Region((), frozenset())
"""Nodes that run as often as the graph."""


def region_of(op_type: str, read: Sequence[Region], waited: Sequence[Region], entered: str) -> Region:
    """Where a node of this type runs: by the regions of what it reads, without what comes round a loop, and of what it waits for.

    `entered` is the loop that it enters, if it does.
    """
    if op_type in MERGES:  # it runs behind a node in a branch, too, whether that runs or not
        return Region(read[0].frame, frozenset.intersection(*(each.controls for each in read))) if read else ROOT
    around = [*waited, *read]
    frame = max((each.frame for each in around), key=len, default=())
    controls = frozenset().union(*(each.controls for each in around))
    if op_type in ENTERS:
        return Region((*frame, entered), controls)
    if op_type in EXITS:
        return Region(frame[:-1], frozenset(each for each in controls if each[0] != frame))
    return Region(frame, controls)
