"""NaN and infinities that one of the runs alone leaves, though both programs come to the same in float64: a type of fewer numbers does not.

A logarithm of a softmax that underflowed is minus infinity; the same of the logits is not. Rounding of that kind is what matters most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from opdump.checks.not_finite import has_nan
from opdump.checks.not_finite import not_finite as count_of_not_finite
from opdump.comparison.alignment import Alignment
from opdump.comparison.ends import read_as_number
from opdump.comparison.execution import recorded
from opdump.comparison.step_rows import Slot, inputs_of
from opdump.comparison.suspects import Suspect
from opdump.comparison.trace import Trace
from opdump.op_types.unspecified import unspecified_outputs
from opdump.records import TensorRecord

_INFINITE: Final = 1
_NAN: Final = 2


def not_finite(a: Trace, b: Trace, alignment: Alignment) -> list[Suspect]:
    """The operators at which NaN or infinities begin that lead to what one run leaves with such and the other without."""
    left_a, left_b = _left(a), _left(b)
    odd_a, odd_b = _odd(a, left_a), _odd(b, left_b)
    if any(odd_a.values()) == any(odd_b.values()):
        return []
    in_b = any(odd_b.values())
    mine, other, partners = (b, a, alignment.a_of) if in_b else (a, b, alignment.b_of)
    all_mine, all_other, odd = (left_b, left_a, odd_b) if in_b else (left_a, left_b, odd_a)
    # What one program prints or keeps, and the other does not, may be what is not finite.
    places = [
        place
        for kind, found in odd.items()
        if len(found) > len(all_mine[kind]) - len(all_other.get(kind, ()))
        for place in found
    ]
    suspects = []
    for (index, slot), of_finite in sorted(_began(mine, other, partners, places).items()):
        run, rest = ("B", "A") if in_b else ("A", "B")
        node, partner = mine.nodes[index], partners.get(index)
        there = None if partner is None else other.nodes[partner]
        what = (
            f"in {run} it gives NaN or infinities{' of finite numbers' if of_finite else ''}, which reach what the step leaves; "
            f"{rest} leaves none"
        )
        one, two = (there, node) if in_b else (node, there)
        suspects.append(Suspect("operator", one, two, "output", slot, math.inf, what))
    return suspects


def leave_as_finite(a: Trace, b: Trace) -> bool:
    """Whether both steps or neither leave NaN or infinities, by the columns of their statistics alone."""
    return _leaves_odd(a) == _leaves_odd(b)


def _leaves_odd(trace: Trace) -> bool:
    columns = trace.columns
    rows = [trace.rows.of_output[place] for place in _ends(trace)]
    return bool((~np.isfinite(columns.numbers[rows]) & columns.held[rows]).any())


def _ends(trace: Trace) -> Sequence[Slot]:
    told = trace.columns.told
    return trace.rows.ends(told if told.any() else np.ones_like(told))


def _left(trace: Trace) -> dict[str, list[Slot]]:
    """What a step leaves: what lasts, or, where nothing is trained, what nobody reads; and the losses by who reads them."""
    trains = any(node.op.phase != "forward" for node in trace.nodes)
    found = {"": list(dict.fromkeys((*_ends(trace), *(() if trains else trace.rows.unread))))}
    for node in trace.nodes:
        if read_as_number(node):
            found.setdefault(node.bare_type, []).extend(
                maker for slot, maker in node.makers.items() if math.prod(node.inputs[slot].shape) == 1
            )
    return found


def _odd(trace: Trace, left: Mapping[str, Sequence[Slot]]) -> dict[str, list[Slot]]:
    """Those with NaN or infinities."""
    return {kind: [place for place in places if _oddness_of(trace, place)] for kind, places in left.items()}


def _began(trace: Trace, other: Trace, partners: Mapping[int, int], left: Sequence[Slot]) -> dict[Slot, bool]:
    """Where on the ways back NaN or infinities begin that the matched operator of the other run does not give; and whether it is given finite
    numbers alone. What a step begins with was given by a step before, or is data, and begins at no operator.
    """

    def is_shared(place: Slot) -> bool:
        partner = partners.get(place[0])
        return partner is not None and _oddness_of(other, (partner, place[1])) >= _oddness_of(trace, place)

    found: dict[Slot, bool] = {}
    seen: set[Slot] = set()
    waiting = list(left)
    while waiting:
        place = waiting.pop()
        if place in seen or not _oddness_of(trace, place) or is_shared(place):
            continue
        seen.add(place)
        node = trace.nodes[place[0]]
        given = [
            slot for slot in inputs_of(node, place[1]) if not node.overwrites(slot) and _oddness(node.inputs[slot])
        ]
        makers = [node.makers[slot] for slot in given if slot in node.makers]
        if len(makers) == len(given) and all(is_shared(maker) for maker in makers):
            found[place] = not given
        waiting += makers
    return found


def _oddness_of(trace: Trace, place: Slot) -> int:
    index, slot = place
    node = trace.nodes[index]
    record = node.outputs.get(slot)
    return 0 if record is None or slot in unspecified_outputs(node.op.kernel or node.op.op_type) else _oddness(record)


def _oddness(record: TensorRecord) -> int:
    """Whether a tensor has NaN or infinities: 0 where it has none. By its statistics, or by its elements where these cannot tell."""
    if record.skip:
        return 0
    statistics = record.statistics
    count = count_of_not_finite(statistics)
    if count is None:
        values = recorded(record)
        if values is None or values.dtype.kind not in "fc" or np.isfinite(values).all():
            return 0
        return _NAN if np.isnan(values).any() else _INFINITE
    return 0 if count == 0 else _NAN if has_nan(statistics) else _INFINITE
