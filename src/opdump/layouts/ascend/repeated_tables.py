"""Fills the tables of repeated operators, each of which is a file.

The output equals that of `encode_operator_csv`, computed from the columns of all tensors' summaries at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdump.index.batch import Batch
from opdump.kernels import TableText
from opdump.layouts.ascend.operator_csv import classic_columns, classic_template, is_whole
from opdump.records import OpRecord
from opdump.statistics import Extremes
from opdump.step_columns import columns_of, extremes_of

_BETWEEN: Final = b"\0"
"""Separates two tables; no table contains it."""


@dataclass(frozen=True, slots=True)
class RepeatedTables:
    """The classic tables of every batch with one pattern whose tensors with summaries have the same indices."""

    owners: Sequence[int]
    """For each table, the index of its operator."""
    neighbours: Sequence[int]
    """For each table, the index of the first operator with the same directory: they share model and graph."""
    names: Sequence[str]
    """For each table, the part of its name before the time stamp."""
    template: TableText
    """All tables."""
    tensors: NDArray[np.intp]
    """For each row with numbers, the index of its tensor."""
    whole: Sequence[int]
    """The rows among them with integers."""

    def texts(self, batch: Batch) -> list[bytes]:
        """The tables of `batch`."""
        assert batch.summaries is not None
        columns = classic_columns(batch.summaries[self.tensors], dict(self._extremes(batch)), self.whole)
        return self.template.fill(columns).split(_BETWEEN)

    def _extremes(self, batch: Batch) -> Iterator[tuple[int, Extremes]]:
        """Max and min by the rules of a device if they differ from the summary, by row."""
        columns = columns_of(batch.ops, batch.tensors)
        known: Mapping[int, Extremes] = extremes_of(batch.tensors) if columns is None else columns.extremes
        if known:
            for row, tensor in enumerate(self.tensors.tolist()):
                if tensor in known:
                    yield row, known[tensor]


def repeated_tables(batch: Batch, name_before_time: Callable[[OpRecord], str | None]) -> RepeatedTables | None:
    """The filler for the tables of batches that repeat `batch`, for operators that leave data. None if there are none, or if
    `name_before_time` does not know a file name that is the same in every step.

    Every tensor with statistics must have a summary.
    """
    bare, ops, tensors = set(batch.bare), [*batch.ops], [*batch.tensors]
    of_operators: dict[int, list[int]] = {}
    for place, owner in enumerate(batch.pattern.places):
        if not ops[owner].skip:
            of_operators.setdefault(owner, []).append(place)
    owners: list[int] = []
    names: list[str] = []
    templates: list[str] = []
    rows: list[int] = []
    for owner, places in of_operators.items():
        own = [tensors[place] for place in places]
        if any(tensor.data_size for tensor in own):
            name = name_before_time(ops[owner])
            if name is None:
                return None
            names.append(name)
            template, filled = classic_template(own, [at for at, place in enumerate(places) if place not in bare])
            owners.append(owner)
            templates.append(template)
            rows += [places[at] for at in filled]
    if not owners:
        return None
    whole = [row for row, place in enumerate(rows) if is_whole(tensors[place])]
    first: dict[tuple[str, int], int] = {}
    neighbours = [first.setdefault((ops[owner].net_name, ops[owner].graph_id), owner) for owner in owners]
    return RepeatedTables(
        owners, neighbours, names, TableText(_BETWEEN.decode().join(templates)), np.array(rows, np.intp), whole
    )
