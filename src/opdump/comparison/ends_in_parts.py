"""Holds against each other what two runs leave, however it is cut into tensors: q, k and v in one matrix, or in three."""

from __future__ import annotations

import itertools
import math
from typing import Final

from opdump.comparison.step_rows import OF_LISTS
from opdump.comparison.value_index import norm_of
from opdump.op_types import bare_name
from opdump.records import TensorRecord

Output = tuple[int, int]
"""A node and a slot of its outputs."""
_MOST_PARTS: Final = 4
_MOST_TRIED: Final = 20_000
"""Combinations of so many parts, of which there are more, are not tried."""
_OF_SQUARES: Final = 4.0
"""Squares, and what six digits leave of them, are off by so many times as much."""
_MOST_WHOLES: Final = 96
"""Tensors that are parts of others are looked for among so many at most."""

Ends = list[tuple[Output, TensorRecord, bool]]
"""What a run leaves, and whether it is noise."""


def without_parts(a: Ends, b: Ends, tolerance: float) -> tuple[list[Output], list[Output]]:
    """What is no noise, and no part of what the other has: q, k and v in one."""
    a, b = _without_same_totals(a, b, tolerance)
    used_a: set[Output] = set()
    used_b: set[Output] = set()
    for wholes, parts, used_wholes, used_parts in ((b, a, used_b, used_a), (a, b, used_a, used_b)):
        for place, record, _ in wholes[:_MOST_WHOLES]:
            found = _parts_of(record, [each for each in parts[:_MOST_WHOLES] if each[0] not in used_parts], tolerance)
            if found and place not in used_wholes:
                used_wholes.add(place)
                used_parts.update(found)
    a, b = _without_same_totals(
        [each for each in a if each[0] not in used_a], [each for each in b if each[0] not in used_b], tolerance
    )
    return [place for place, _, is_noise in a if not is_noise], [place for place, _, is_noise in b if not is_noise]


def _without_same_totals(a: Ends, b: Ends, tolerance: float) -> tuple[Ends, Ends]:
    """The ends without those of a kind of operator that are the same elements in all, however they are cut into tensors."""
    kinds = {_kind_of(record) for _, record, _ in (*a, *b)}
    same = {
        kind
        for kind in kinds
        if _have_same_total(
            [each for each in a if _kind_of(each[1]) == kind],
            [each for each in b if _kind_of(each[1]) == kind],
            tolerance,
        )
    }
    a, b = ([each for each in ends if _kind_of(each[1]) not in same] for ends in (a, b))
    has_noise = any(is_noise for _, _, is_noise in (*a, *b))
    return ([], []) if not has_noise and _have_same_total(a, b, tolerance) else (a, b)


def _kind_of(record: TensorRecord) -> str:
    return bare_name(record.op.op_type).removeprefix(OF_LISTS)


def _have_same_total(a: Ends, b: Ends, tolerance: float) -> bool:
    """Whether as many elements have the same sum of squares; of noise, only how much there is is known."""
    if sum(math.prod(record.shape) for _, record, _ in a) != sum(math.prod(record.shape) for _, record, _ in b):
        return False
    total_a, total_b = (sum(norm_of(record) ** 2 for _, record, _ in ends) for ends in (a, b))
    noise = sum(norm_of(record) ** 2 for _, record, is_noise in (*a, *b) if is_noise)
    return abs(total_a - total_b) <= _OF_SQUARES * tolerance * total_a + 2 * noise


def _parts_of(whole: TensorRecord, candidates: Ends, tolerance: float) -> list[Output]:
    """Tensors that have together the elements that one has; of what is noise, only how much there is is known."""
    size, square = math.prod(whole.shape), norm_of(whole) ** 2
    top, bottom = float(whole.statistics["max"]), float(whole.statistics["min"])
    room = tolerance * (top - bottom)
    small = [
        (place, record, is_noise)
        for place, record, is_noise in candidates
        if math.prod(record.shape) < size
        and (
            is_noise
            or (float(record.statistics["max"]) <= top + room and float(record.statistics["min"]) >= bottom - room)
        )
    ]
    for count in range(2, _MOST_PARTS + 1):
        if math.comb(len(small), count) > _MOST_TRIED:
            break
        for chosen in itertools.combinations(small, count):
            if sum(math.prod(record.shape) for _, record, _ in chosen) != size:
                continue
            squares = sum(norm_of(record) ** 2 for _, record, _ in chosen)
            noise = sum(norm_of(record) ** 2 for _, record, is_noise in chosen if is_noise)
            if abs(squares - square) <= _OF_SQUARES * tolerance * square + 2 * noise:
                return [place for place, _, _ in chosen]
    return []
