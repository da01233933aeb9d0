"""The arguments of one call of a function: their addresses in columns, and tensor objects on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdump.adapters.host import HostColumns, HostTensor
from opdump.adapters.jax.host import (
    Array,
    Facts,
    Memory,
    borrowed,
    copied,
    facts_of,
    given_again,
    host_tensor,
    memory_of,
    pointers_of,
)

Tensor = HostTensor | str


class KnownFacts:
    """The facts of the arrays of each call. While they stay the same, so does the returned object, which callers compare by identity."""

    def __init__(self) -> None:
        self._shardings: list[Any] = []
        self._facts: Sequence[Facts] = ()

    def of(self, arrays: Sequence[Any]) -> Sequence[Facts]:
        shardings = [getattr(array, "sharding", None) for array in arrays]
        if shardings != self._shardings or len(self._facts) != len(arrays):
            facts = tuple(map(facts_of, arrays))
            self._shardings, self._facts = shardings, self._facts if facts == self._facts else facts
        return self._facts


class Arguments:
    """The arguments of a call. `columns` begins with their addresses."""

    def __init__(
        self, values: Sequence[Any], facts: Sequence[Facts], dtypes: Sequence[Any], copied_ones: Sequence[bool] = ()
    ) -> None:
        """`values` are the program's, `dtypes` the types in which the function takes them. `copied_ones` marks those to copy, since they are donated."""
        self.facts = facts
        self.columns = HostColumns()
        self._values = values
        self._dtypes = dtypes
        self._copies = {
            place: copied(values[place], dtypes[place]) for place, is_one in enumerate(copied_ones) if is_one
        }
        self.are_read = False
        """Whether everything needed was read ahead. Their memory may then be gone."""
        self._tensors: dict[int, Tensor] = {}
        pointers = pointers_of(values, facts)
        for place, copy in self._copies.items():
            if facts[place].element is not None and not isinstance(copy, str):
                pointers[place] = copy.ctypes.data
        self.columns.extend(pointers)

    def again(self) -> list[Any]:
        """The arguments for another call; donated ones are restored from their copies."""
        return [
            given_again(self._copies[place], value) if place in self._copies else value
            for place, value in enumerate(self._values)
        ]

    def array(self, place: int) -> Array | str:
        """The argument as a numpy array; its type as text if it is not an array."""
        found = self._copies.get(place)
        return borrowed(self._values[place], self._dtypes[place]) if found is None else found

    def tensor(self, place: int) -> Tensor:
        """The argument for a reader; always the same object."""
        known = self._tensors.get(place)
        if known is None:
            element, shape = self.facts[place]
            if element is None:
                known = host_tensor(self.array(place), stays=False)
            else:
                owner = self._copies.get(place, self._values[place])
                known = HostTensor(element, shape, int(self.columns.pointers[place]), owner, stays=False)
            self._tensors[place] = known
        return known

    def tensors(self) -> list[Tensor]:
        """All arguments, for a reader."""
        return [*map(self.tensor, range(len(self.facts)))]

    def memory(self, place: int) -> Memory:
        """The argument in memory."""
        if self.facts[place].element is not None:
            return self.tensor(place)
        return memory_of(self.array(place), stays=False)
