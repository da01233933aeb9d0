"""HostColumns: the tensors of a run in columns: what is the same in each run is prepared once, and a run gives their addresses.

choice = Choice(tensors, [(0, 3), (1, 0)])   # prepared once: the fourth of one section of columns, the first of another
columns = HostColumns()                      # of each run
begins = [columns.extend(pointers), columns.extend(others)]
recorder.take_block(sequence, step, timestamps, choice.of(columns, begins))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.adapters.host.element_types import BY_DTYPE
from opdump.adapters.host.host_tensor import HostTensor
from opdump.records import SkipReason
from opdump.statistics import Extremes
from opdump.step_columns import TensorFacts

NOT_READ: Final = np.iinfo(np.intp).min
"""Stands in the place of a row of a tensor that nobody has looked at yet."""


def facts_of(tensor: HostTensor | str) -> TensorFacts:
    """What is known of a tensor without its elements. A text is the type of a value that no array stands for."""
    if isinstance(tensor, str):
        return TensorFacts(tensor, (), 0, "opaque")
    element = tensor.element
    skip: SkipReason = "opaque" if element.bits == 0 else "empty" if tensor.count == 0 else ""
    return TensorFacts(element.dtype, tensor.shape, tensor.size, skip)


class KeptSummaries(NamedTuple):
    """What was found of tensors whose memory is gone."""

    places: npt.NDArray[np.intp]
    """In columns."""
    summaries: npt.NDArray[np.float64]
    extremes: Mapping[int, Extremes]
    """Max and min by the rules of a device where they are not those of the summary, by the place among `summaries`."""


class HostColumns:
    """Where the tensors of one run lie, and which rows their summaries have."""

    def __init__(self) -> None:
        self.pointers: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        """NOT_READ until a reader has looked."""
        self.generation = -1
        """For the reader: its step in which the rows are good."""
        self.kept: KeptSummaries | None = None
        """Of tensors whose memory is gone."""

    def extend(self, pointers: npt.NDArray[np.int64]) -> int:
        """Adds tensors; the place of the first."""
        first = len(self.pointers)
        self.pointers = np.concatenate([self.pointers, pointers])
        self.rows = np.concatenate([self.rows, np.full(len(pointers), NOT_READ, np.intp)])
        return first

    def cut(self, first: int) -> None:
        """Forgets the tensors from a place on."""
        self.pointers = self.pointers[:first]
        self.rows = self.rows[:first]

    def lend_row(self, place: int, tensor: HostTensor) -> None:
        """Tells an object of the same tensor which row its summary has, if it has been looked at."""
        row = int(self.rows[place])
        if row >= 0:
            tensor.row, tensor.generation = row, self.generation


Place = tuple[int, int]
"""A section of columns, and the number of a tensor in it."""


class Choice:
    """Some of the tensors of runs, by their places in columns. In each run they have the same types and shapes."""

    def __init__(self, tensors: Sequence[HostTensor | str], places: Sequence[Place | None]) -> None:
        """`tensors` are those of one run; a place of None is for one that is not in columns."""
        self.facts = tuple(map(facts_of, tensors))
        self.objects: list[int] = []
        """The numbers of those that are given as objects: what is not in columns, and what is summarised once it is widened."""
        read: list[tuple[int, int, int, int, int]] = []
        for number, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
            element = None if isinstance(tensor, str) else tensor.element
            if place is None or (element is not None and element.code is None and not element.known_to_numpy):
                self.objects.append(number)
            elif isinstance(tensor, HostTensor) and tensor.element.code is not None and not self.facts[number].skip:
                read.append((number, *place, tensor.element.code, tensor.count))
        columns: npt.NDArray[np.int64] = np.array(read, np.int64).reshape(-1, 5).T.copy()
        self.read, self._sections, self._numbers, self.codes, self.counts = columns
        """The numbers of those that are summarised at their addresses; of each its place, the code of its type, and how many elements it has."""
        self.are_floats = np.array(["float" in self.facts[number].dtype for number in self.read.tolist()], np.bool_)
        """Of each of these, whether its elements are."""

    def tensor_at(self, place: int, pointer: int) -> HostTensor:
        """One of those that are summarised at their addresses, by its place among them, where it lies at that address."""
        dtype, shape, *_ = self.facts[self.read[place]]
        return HostTensor(BY_DTYPE[dtype], shape, pointer, None, stays=False)

    def of(
        self, columns: HostColumns, begins: Sequence[int] = (0,), objects: Sequence[HostTensor | str] = ()
    ) -> ChosenTensors:
        """The tensors of a run: where each section begins, and those that are given as objects."""
        return ChosenTensors(self, columns, np.array(begins)[self._sections] + self._numbers, objects)


class ChosenTensors(NamedTuple):
    """The tensors of a choice in one run."""

    choice: Choice
    columns: HostColumns
    places: npt.NDArray[np.int64]
    """In columns, of those that are summarised at their addresses."""
    objects: Sequence[HostTensor | str]
    """Those that the choice wants as objects."""
