"""Fills the tables of operators that repeat, of which each is a file.

What is printed is what `encode_operator_csv` prints, from the columns of all tensors' summaries at once.
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
"""Two tables; none has it."""


@dataclass(frozen=True, slots=True)
class RepeatedTables:
    """The classic tables of every batch of one pattern whose summaries are at the same places."""

    owners: Sequence[int]
    """Of each table the place of its operator."""
    neighbours: Sequence[int]
    """Of each table the place of the first operator whose directory is the same: they share model and graph."""
    names: Sequence[str]
    """Of each table what its name has before the time stamp."""
    template: TableText
    """All of them."""
    tensors: NDArray[np.intp]
    """Of each row with numbers the place of its tensor."""
    whole: Sequence[int]
    """Those of these rows that are of whole numbers."""

    def texts(self, batch: Batch) -> list[bytes]:
        """The tables of `batch`."""
        assert batch.summaries is not None
        columns = classic_columns(batch.summaries[self.tensors], dict(self._extremes(batch)), self.whole)
        return self.template.fill(columns).split(_BETWEEN)

    def _extremes(self, batch: Batch) -> Iterator[tuple[int, Extremes]]:
        """Max and min by the rules of a device where they are not those of the summary, by row."""
        columns = columns_of(batch.ops, batch.tensors)
        known: Mapping[int, Extremes] = extremes_of(batch.tensors) if columns is None else columns.extremes
        if known:
            for row, tensor in enumerate(self.tensors.tolist()):
                if tensor in known:
                    yield row, known[tensor]


def repeated_tables(batch: Batch, name_before_time: Callable[[OpRecord], str | None]) -> RepeatedTables | None:
    """What fills the tables of batches that repeat `batch`, of operators that leave data. None where there are none, or where
    `name_before_time` does not know how the file of one is called in every step.

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
