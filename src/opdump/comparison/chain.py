"""Several sequences as one, of which some are made anew whenever somebody looks: the table of a comparison may have millions of rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, overload

Item_co = TypeVar("Item_co", covariant=True)


class Part(Protocol[Item_co]):
    """What a chain is made of."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Item_co]: ...


class Chain(Sequence[Item_co]):
    """The items of all parts, in order."""

    def __init__(self, parts: Sequence[Part[Item_co]]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Item_co]:
        return itertools.chain.from_iterable(self._parts)

    @overload
    def __getitem__(self, index: int) -> Item_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item_co]: ...
    def __getitem__(self, index: int | slice) -> Item_co | Sequence[Item_co]:
        if isinstance(index, slice):
            return list(self)[index]
        place = range(len(self))[index]
        for part in self._parts:
            if place < len(part):
                return next(itertools.islice(part, place, None))
            place -= len(part)
        raise IndexError(index)  # range knows it before

    def __repr__(self) -> str:
        return f"<{len(self)} items>"
