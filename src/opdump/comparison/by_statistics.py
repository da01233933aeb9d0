"""What statistics alone can prove: structure, arguments and wiring, where the statistics of the operator differ as well.

Nothing can be run again, so an operator is named only if what it is given by operators that both runs have agrees, what it gives does not, and
the programs differ there. What cancels (sums that are zero by mathematics) is left alone: its statistics say nothing.
"""

from __future__ import annotations

import math
from typing import Final

from opdump.comparison.alignment import Alignment
from opdump.comparison.arguments import differing
from opdump.comparison.ranking import ranked
from opdump.comparison.statistics_apart import DIFFERS, apart
from opdump.comparison.suspects import Kind, Suspect
from opdump.comparison.trace import Node, Trace, leaf_name
from opdump.records import TensorRecord

_AGREES: Final = 1e-4
"""Statistics that are closer, relative to the root mean square of the elements, are those of the same tensor."""
_OF_ARGUMENTS: Final = 1e-6
"""Where arguments differ and the inputs have the same statistics to the bit, this much counts."""
_CANCELS: Final = 1e-4
"""Outputs so much smaller than the inputs are what cancellation left."""


def judged_by_statistics(a: Trace, b: Trace, alignment: Alignment, *, is_first: bool) -> list[Suspect]:
    """The suspects of a step of which there are statistics alone. Leaves are compared in the first step: later they are inherited."""
    found: list[Suspect] = []
    for node in b.nodes:
        index = alignment.a_of.get(node.index)
        if index is not None:
            suspect = _judge(a, b, a.nodes[index], node, alignment, is_first=is_first)
            if suspect is not None and all(suspect.place != other.place for other in found):
                found.append(suspect)
    return ranked(found, [], a, b)


def _judge(a: Trace, b: Trace, one: Node, other: Node, alignment: Alignment, *, is_first: bool) -> Suspect | None:
    odd: list[tuple[int, int, int]] = []
    same = True
    for slot, record in other.inputs.items():
        before = one.inputs.get(slot)
        if before is None or record.skip or before.skip:
            continue
        distance = apart(before, record)
        maker_a, maker_b = one.makers.get(slot), other.makers.get(slot)
        paired = maker_a is not None and maker_b is not None and alignment.b_of.get(maker_a[0]) == maker_b[0]
        same = same and distance == 0
        if distance is None or distance <= _AGREES:
            continue
        if paired and not _is_another_part(before, record):
            return None  # it inherits a difference, and what it does with that cannot be told
        if maker_a is None and maker_b is None and not _is_another_part(before, record):
            if is_first and distance > DIFFERS:
                kind: Kind = "parameter" if leaf_name(record).startswith("Parameter.") else "data"
                what = f"{leaf_name(record) or 'an input of the program'} differs where it is read first, by its statistics"
                return Suspect(kind, one, other, "input", slot, math.inf, what)
            return None
        if distance > DIFFERS:
            odd.append((slot, -1 if maker_a is None else maker_a[0], -1 if maker_b is None else maker_b[0]))
    worst = _outputs_apart(one, other)
    arguments = differing(one, other)
    if worst is None or worst <= (_OF_ARGUMENTS if arguments and same else DIFFERS):
        return None
    if arguments and not odd:
        changes = ", ".join(f"{name}: {old} in A, {new} in B" for name, (old, new) in sorted(arguments.items()))
        return Suspect("argument", one, other, "output", 0, math.inf, changes)
    if not odd:
        return None
    return _cause(a, b, one, other, odd[0], alignment)


def _cause(a: Trace, b: Trace, one: Node, other: Node, odd: tuple[int, int, int], alignment: Alignment) -> Suspect:
    slot, maker_a, maker_b = odd
    only_a = maker_a >= 0 and maker_a not in alignment.b_of
    only_b = maker_b >= 0 and maker_b not in alignment.a_of
    if only_b:
        guilty = b.nodes[maker_b]
        partner = a.nodes[maker_a] if only_a else None
        kind: Kind = "operator" if only_a else "extra"
        return Suspect(
            kind, partner, guilty, "output", 0, math.inf, f"{other.op.op_name} reads other statistics from it"
        )
    if only_a:
        return Suspect("missing", a.nodes[maker_a], other, "input", slot, math.inf, "has no counterpart in B")
    before = a.nodes[maker_a].op.op_name if maker_a >= 0 else leaf_name(one.inputs[slot]) or "an input of the program"
    after = b.nodes[maker_b].op.op_name if maker_b >= 0 else leaf_name(other.inputs[slot]) or "an input of the program"
    return Suspect("input", one, other, "input", slot, math.inf, f"reads {after}; in A it reads {before}")


def _is_another_part(one: TensorRecord, other: TensorRecord) -> bool:
    """Whether they are other parts of what their makers wrote."""
    if one.memory is None or other.memory is None or one.shape != other.shape:
        return False
    return (one.memory.offset, one.memory.strides) != (other.memory.offset, other.memory.strides)


def _outputs_apart(one: Node, other: Node) -> float | None:
    """How far the outputs are apart; None where they cannot be compared, or are what cancellation left."""
    norms = [float(record.statistics["l2norm"]) for record in one.inputs.values() if "l2norm" in record.statistics]
    worst: float | None = None
    for slot, record in one.outputs.items():
        after = other.outputs.get(slot)
        if after is None:
            continue
        if norms and float(record.statistics.get("l2norm", math.inf)) < _CANCELS * max(norms):
            continue
        distance = apart(record, after)
        if distance is not None:
            worst = distance if worst is None else max(worst, distance)
    return worst
