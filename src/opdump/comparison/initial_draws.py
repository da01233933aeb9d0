"""Random numbers that were drawn into memory, as parameters are at first: whether the runs drew the same, and whether anybody reads them.

Who reads a parameter names the parameter, and not who drew it, so it is found by the memory. What is written over before anybody reads it means nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.differences import difference
from opdump.comparison.execution import draws, recorded
from opdump.comparison.memory import Memory
from opdump.comparison.nodes import Node
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord

OTHER_NUMBERS: Final = 0.05
"""Relative: another draw differs by much more than rounding does."""


def initial_draws(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Suspect]:
    """The draws of B that gave other numbers than in A, and that somebody reads."""
    for there, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[there]
        if other.op.phase != "forward" or not draws(other) or one.written_arguments != other.written_arguments:
            continue
        for slot, record in other.outputs.items():
            first, second = recorded(one.outputs[slot]) if slot in one.outputs else None, recorded(record)
            if record.memory is None or first is None or second is None or first.shape != second.shape:
                continue
            if difference(first, second).relative > OTHER_NUMBERS and is_read(b, other, slot):
                yield drawn_otherwise(one, other, slot)


def drawn_otherwise(one: Node, other: Node, slot: int) -> Suspect:
    """What speaks against a draw that gave other numbers."""
    what = "the same draw gave different random numbers: a different seed, or a different number of draws before it"
    return Suspect("random", one, other, "output", slot, math.inf, what)


def is_read(trace: Trace, drawn: Node, slot: int) -> bool:
    """Whether an operator that does not write over it reads an output, or what others made of it in place; true where its place is unknown."""
    record = drawn.outputs[slot]
    values = recorded(record)
    if record.memory is None or values is None:
        return True
    storage = record.memory.storage
    held = Memory(wide=False)
    held.write(drawn.index, slot, record, values)
    carriers = {drawn.index}
    for node in trace.nodes[drawn.index + 1 :]:
        written = {place: each for place, each in node.outputs.items() if _lies_in(each, storage)}
        reads = any(
            not each.skip
            and _lies_in(each, storage)
            and not node.overwrites(place)
            and held.read(node, place).writers & carriers
            for place, each in node.inputs.items()
        )
        if reads and not written:
            return True
        if reads:
            carriers.add(node.index)
        for place, each in written.items():
            given = recorded(each)
            if given is None:
                return reads
            held.write(node.index, place, each, given)
    return False


def _lies_in(record: TensorRecord, storage: int) -> bool:
    return record.memory is not None and record.memory.storage == storage
