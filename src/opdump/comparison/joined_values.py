"""Finds tensors that one run has in one piece and the other in several, by their statistics alone: q, k and v in one, the weights of two gates.

Of pieces that make up a whole, one has its max and one its min, and their numbers of elements, sums and sums of squares add up to its own.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from opdump.comparison.value_index import has_statistics
from opdump.records import TensorRecord

_OF_SQUARES: Final = 4.0
"""Squares, and what six digits leave of them, are off by so many times as much."""
_NEEDED: Final = ("max", "min", "avg", "l2norm")
_MOST_TRIED: Final = 4096
"""Of one whole, so many combinations of pieces are tried at most."""


def joined(
    a: Iterable[TensorRecord], b: Iterable[TensorRecord], tolerance: float
) -> tuple[list[TensorRecord], list[TensorRecord]]:
    """Of each run, the wholes that the other has in pieces, and the pieces of which the other has the whole."""
    pieces_a, pieces_b = _Pieces(a, tolerance), _Pieces(b, tolerance)
    found_a: list[TensorRecord] = []
    found_b: list[TensorRecord] = []
    for wholes, pieces, own, others in ((pieces_b, pieces_a, found_b, found_a), (pieces_a, pieces_b, found_a, found_b)):
        for whole in wholes.distinct:
            parts = pieces.of(whole)
            if parts:
                own.append(whole)
                others.extend(parts)
    return found_a, found_b


class _Pieces:
    """The tensors of a run of which others may be made."""

    def __init__(self, records: Iterable[TensorRecord], tolerance: float) -> None:
        self._tolerance = tolerance
        by_numbers = {(_size(each), *_numbers(each)): each for each in records if _can_be_told(each)}
        self.distinct: Collection[TensorRecord] = by_numbers.values()
        """One of each that differ."""
        self._by_end = {name: _Sorted(self.distinct, name) for name in ("max", "min")}
        by_size: dict[int, list[TensorRecord]] = defaultdict(list)
        for each in self.distinct:
            by_size[_size(each)].append(each)
        self._by_size = {size: _Sorted(found, "l2norm") for size, found in by_size.items()}

    def of(self, whole: TensorRecord) -> list[TensorRecord]:
        """Pieces that make up a tensor, two to four; empty where there are none, and where all its elements are the same."""
        if whole.statistics["max"] == whole.statistics["min"]:
            return []
        room = self._tolerance * _root_mean_square(whole)
        top, bottom = float(whole.statistics["max"]), float(whole.statistics["min"])
        highest = [each for each in self._by_end["max"].near(top, room) if _size(each) < _size(whole)]
        lowest = [each for each in self._by_end["min"].near(bottom, room) if _size(each) < _size(whole)]
        tried = 0
        for high in highest:
            for low in lowest:
                begun = [high] if high is low else [high, low]
                for parts in self._completed(whole, begun, top + room, bottom - room):
                    tried += 1
                    if _make_up(whole, parts, self._tolerance):
                        return parts
                    if tried > _MOST_TRIED:
                        return []
        return []

    def _completed(
        self, whole: TensorRecord, begun: list[TensorRecord], top: float, bottom: float
    ) -> Iterator[list[TensorRecord]]:
        """The pieces with as many others as may be left, none, one or two, that fit by their norms."""
        size = _size(whole) - sum(map(_size, begun))
        if size == 0:
            yield begun
        if size <= 0:
            return
        square = float(whole.statistics["l2norm"]) ** 2
        room = _OF_SQUARES * self._tolerance * square
        left = square - sum(float(each.statistics["l2norm"]) ** 2 for each in begun)
        for last in self._with_square(size, left, room):
            yield [*begun, last]
        for others in self._by_size.values():
            for one in others.records:
                rest = left - float(one.statistics["l2norm"]) ** 2
                if _size(one) >= size or rest < -room:
                    break
                if float(one.statistics["max"]) <= top and float(one.statistics["min"]) >= bottom:
                    for last in self._with_square(size - _size(one), rest, room):
                        yield [*begun, one, last]

    def _with_square(self, size: int, square: float, room: float) -> Iterator[TensorRecord]:
        """Tensors of so many elements with that sum of squares."""
        found = self._by_size.get(size)
        if found is not None and square + room >= 0:
            low, high = math.sqrt(max(0.0, square - room)), math.sqrt(square + room)
            yield from found.near((low + high) / 2, (high - low) / 2)


class _Sorted:
    """Tensors in the order of one of their statistics."""

    def __init__(self, records: Iterable[TensorRecord], name: str) -> None:
        self.records = sorted(records, key=lambda each: float(each.statistics[name]))
        self._keys = [float(each.statistics[name]) for each in self.records]

    def near(self, value: float, room: float) -> list[TensorRecord]:
        return self.records[bisect_left(self._keys, value - room) : bisect_right(self._keys, value + room)]


def _can_be_told(record: TensorRecord) -> bool:
    """Whether it has all statistics, and these say something."""
    if record.dtype == "bool" or not has_statistics(record) or not all(each in record.statistics for each in _NEEDED):
        return False
    return all(map(math.isfinite, _numbers(record)))


def _make_up(whole: TensorRecord, parts: list[TensorRecord], tolerance: float) -> bool:
    square, total = (
        sum(float(each.statistics["l2norm"]) ** 2 for each in parts),
        sum(float(each.statistics["avg"]) * _size(each) for each in parts),
    )
    size, expected = _size(whole), float(whole.statistics["l2norm"]) ** 2
    room = tolerance * _root_mean_square(whole)
    return (
        abs(square - expected) <= _OF_SQUARES * tolerance * expected
        and abs(total / size - float(whole.statistics["avg"])) <= room
    )


def _numbers(record: TensorRecord) -> tuple[float, ...]:
    return tuple(float(record.statistics[name]) for name in _NEEDED)


def _size(record: TensorRecord) -> int:
    return math.prod(record.shape)


def _root_mean_square(record: TensorRecord) -> float:
    return float(record.statistics["l2norm"]) / math.sqrt(_size(record))
