"""Matched operators whose recorded inputs agree and whose arguments differ, and whether their outputs differ."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing, told_of
from opdump.comparison.fills import LEAST_FILL
from opdump.comparison.nodes import Node
from opdump.comparison.statistics_apart import apart, same_statistics
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.comparison.value_index import has_statistics
from opdump.op_types.unspecified import unspecified_outputs

_ARRANGES: Final = frozenset({"roll", "flip", "rot90", "permute_copy", "transpose_copy", "clone"})
"""What comes out has the elements of what goes in, in an order that the arguments say: statistics do not tell it."""


@dataclass(frozen=True, slots=True)
class OtherArguments:
    """A pair of operators with what differs; `slot` is the output that does, None where none does."""

    one: Node
    other: Node
    arguments: dict[str, tuple[Any, Any]]
    slot: int | None

    @property
    def differs(self) -> bool:
        """Whether an output is something else."""
        return self.slot is not None

    @property
    def told(self) -> str:
        """What differs, for people."""
        return told_of(self.arguments)

    def suspect(self) -> Suspect:
        """What it says of the operator."""
        return Suspect("argument", self.one, self.other, "output", self.slot or 0, math.inf, self.told)


def other_arguments(a: Trace, b: Trace, alignment: Alignment) -> Iterator[OtherArguments]:
    """All such pairs, in the order of B. An input of which neither elements nor statistics were recorded never agrees."""
    read = b.users().keys()
    for index, here in sorted(alignment.a_of.items()):
        one, other = a.nodes[here], b.nodes[index]
        if one.written_arguments == other.written_arguments or not (arguments := differing(one, other)):
            continue
        arguments = {name: both for name, both in arguments.items() if not all(map(_fills, both))}
        if not arguments:
            continue  # the fill of a mask, which may be any large number
        if one.inputs.keys() == other.inputs.keys() and all(_is_same(one, other, slot) for slot in other.inputs):
            yield OtherArguments(one, other, arguments, _differing_output(one, other, read))


def does_the_same(one: Node, other: Node) -> bool:
    """Whether an operator is given the same as another, by what was recorded, with the same arguments."""
    return (
        one.op.kernel == other.op.kernel
        and bool(other.inputs)
        and one.inputs.keys() == other.inputs.keys()
        and all(same_statistics(one.inputs[slot], record) for slot, record in other.inputs.items())
        and not differing(one, other)
    )


def _is_same(one: Node, other: Node, slot: int) -> bool:
    before, after = one.inputs[slot], other.inputs[slot]
    if before.skip and after.skip:
        return before.skip == after.skip == "empty"
    if before.shape != after.shape or not (has_statistics(before) and has_statistics(after)):
        return 0 in before.shape and before.shape == after.shape
    return same_statistics(before, after)


def _fills(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("float") in ("inf", "-inf")  # as an index has what JSON cannot say
    return isinstance(value, (int, float)) and abs(value) >= LEAST_FILL


def _differing_output(one: Node, other: Node, read: Collection[tuple[int, int]]) -> int | None:
    unspecified = unspecified_outputs(other.op.kernel or other.op.op_type)
    for slot, record in other.outputs.items():
        before = one.outputs.get(slot)
        if before is None or slot in unspecified:
            continue
        if before.shape != record.shape or apart(before, record):
            return slot
        if (
            other.bare_type in _ARRANGES
            and (other.index, slot) not in read
            and record.statistics.get("max") != record.statistics.get("min")
        ):
            return slot
    return None
