"""The tensors of a run in columns. Their common properties are prepared once; each run only adds the addresses.

choice = Choice(tensors, [(0, 3), (1, 0)])   # prepared once: the fourth tensor of section 0, the first of section 1
columns = HostColumns()                      # one for each run
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
"""The row of a tensor that has not been summarised yet. Other negative rows count from the end of `block_summaries`."""


def facts_of(tensor: HostTensor | str) -> TensorFacts:
    """The facts of a tensor that need no elements. A text is the type of a value that is not an array."""
    if isinstance(tensor, str):
        return TensorFacts(tensor, (), 0, "opaque")
    element = tensor.element
    skip: SkipReason = "opaque" if element.bits == 0 else "empty" if tensor.count == 0 else ""
    return TensorFacts(element.dtype, tensor.shape, tensor.size, skip)


class KeptSummaries(NamedTuple):
    """The summaries of tensors whose memory may be gone."""

    places: npt.NDArray[np.intp]
    """Positions in columns."""
    summaries: npt.NDArray[np.float64]
    extremes: Mapping[int, Extremes]
    """Max and min by the rules of a device, if they differ from the summary, by position in `summaries`."""


class HostColumns:
    """The addresses of the tensors of one run, and the rows of their summaries."""

    def __init__(self) -> None:
        self.pointers: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self.rows: npt.NDArray[np.intp] = np.empty(0, np.intp)
        """NOT_READ until a reader has summarised the tensor."""
        self.generation = -1
        """The reader's step in which the rows are valid."""
        self.kept: KeptSummaries | None = None
        """The summaries of tensors whose memory may be gone."""

    def extend(self, pointers: npt.NDArray[np.int64]) -> int:
        """Add tensors; returns the position of the first."""
        first = len(self.pointers)
        self.pointers = np.concatenate([self.pointers, pointers])
        self.rows = np.concatenate([self.rows, np.full(len(pointers), NOT_READ, np.intp)])
        return first

    def cut(self, first: int) -> None:
        """Remove the tensors from position `first` on."""
        self.pointers = self.pointers[:first]
        self.rows = self.rows[:first]

    def lend_row(self, place: int, tensor: HostTensor) -> None:
        """If the tensor at a position has been summarised, give the row to another object of the same tensor."""
        row = int(self.rows[place])
        if row >= 0:
            tensor.row, tensor.generation = row, self.generation


Place = tuple[int, int]
"""A section of columns, and the position of a tensor in it."""


class Choice:
    """Selected tensors, by their places in columns. Their types and shapes are the same in each run."""

    def __init__(self, tensors: Sequence[HostTensor | str], places: Sequence[Place | None]) -> None:
        """`tensors` are from any one run. The place is None for a tensor that is not in columns."""
        self.facts = tuple(map(facts_of, tensors))
        self.objects: list[int] = []
        """The numbers of tensors that must be passed as objects: those not in columns, and those that are widened before a summary."""
        read: list[tuple[int, int, int, int, int]] = []
        for number, (tensor, place) in enumerate(zip(tensors, places, strict=True)):
            element = None if isinstance(tensor, str) else tensor.element
            if place is None or (element is not None and element.code is None and not element.known_to_numpy):
                self.objects.append(number)
            elif isinstance(tensor, HostTensor) and tensor.element.code is not None and not self.facts[number].skip:
                read.append((number, *place, tensor.element.code, tensor.count))
        columns: npt.NDArray[np.int64] = np.array(read, np.int64).reshape(-1, 5).T.copy()
        self.read, self._sections, self._numbers, self.codes, self.counts = columns
        """`read` has the numbers of the tensors that are summarised at their addresses; the others their places, type codes and element counts."""
        self.are_floats = np.array(["float" in self.facts[number].dtype for number in self.read.tolist()], np.bool_)
        """Whether the elements of each tensor in `read` are floats."""

    def tensor_at(self, place: int, pointer: int) -> HostTensor:
        """The tensor at position `place` of `read`, at this address."""
        dtype, shape, *_ = self.facts[self.read[place]]
        return HostTensor(BY_DTYPE[dtype], shape, pointer, None, stays=False)

    def of(
        self, columns: HostColumns, begins: Sequence[int] = (0,), objects: Sequence[HostTensor | str] = ()
    ) -> ChosenTensors:
        """The selected tensors of a run. `begins` are the beginnings of the sections, `objects` the tensors for `self.objects`."""
        return ChosenTensors(self, columns, np.array(begins)[self._sections] + self._numbers, objects)


class ChosenTensors(NamedTuple):
    """The tensors of a choice in one run."""

    choice: Choice
    columns: HostColumns
    places: npt.NDArray[np.int64]
    """The positions in columns of the tensors that are summarised at their addresses."""
    objects: Sequence[HostTensor | str]
    """The tensors that are passed as objects."""
