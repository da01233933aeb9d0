"""The relative frequency of nodes of a graph: the loops, and the branches in them, in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opdump.adapters.tensorflow.operator_kinds import ENTERS, EXITS, MERGES

Tensor = tuple[str, int]
"""A node, and the slot of its output."""
Control = tuple[tuple[str, ...], Tensor, int]
"""The loops around a branch, the deciding tensor, and the output of the Switch."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that run equally often: in the same loops (`frame`), in the same branches of them (`controls`)."""

    frame: tuple[str, ...]
    controls: frozenset[Control]

    def behind(self, decides: Tensor, output: int) -> Region:
        """The region of an output of a Switch in this region, for a deciding tensor."""
        return Region(self.frame, self.controls | {(self.frame, decides, output)})


ROOT: Final = Region((), frozenset())
"""Nodes that run as often as the graph."""


def region_of(op_type: str, read: Sequence[Region], waited: Sequence[Region], entered: str) -> Region:
    """The region of a node of this type, from the regions of its inputs (without the values of the previous iteration) and of the nodes
    that it waits for.

    `entered` is the loop that it enters, if any.
    """
    if op_type in MERGES:  # it also runs after a node in a branch, whether that runs or not
        return Region(read[0].frame, frozenset.intersection(*(each.controls for each in read))) if read else ROOT
    around = [*waited, *read]
    frame = max((each.frame for each in around), key=len, default=())
    controls = frozenset().union(*(each.controls for each in around))
    if op_type in ENTERS:
        return Region((*frame, entered), controls)
    if op_type in EXITS:
        return Region(frame[:-1], frozenset(each for each in controls if each[0] != frame))
    return Region(frame, controls)
