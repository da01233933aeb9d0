"""The part of an exported table that a step in columns gives: what ran is made once, the numbers come from the summaries as they are filed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from opdump.catalog.data_frames import polars_frame
from opdump.catalog.source_place import SourcePlace
from opdump.index.columns import BatchColumns, FactsByProgram
from opdump.kernels import Summary
from opdump.records import IO
from opdump.statistics import OWN

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What the rows of a program are, but for their numbers."""

    tensors: npt.NDArray[np.intp]
    """The place of the tensor of each row."""
    frame: pl.DataFrame
    """The columns of `polars_frame` without statistics."""


class StepFrames:
    """Makes the rows of steps in columns, those that `Catalog.tensors` with these arguments gives, as `polars_frame` has them."""

    def __init__(self, *, source: str | None, io: IO | None, include_skipped: bool) -> None:
        self._place = None if source is None else SourcePlace(source)
        self._io = io
        self._include_skipped = include_skipped
        self._facts = FactsByProgram(self._facts_of)

    def frame(self, columns: BatchColumns) -> pl.DataFrame:
        """The rows of the step."""
        import polars as pl

        facts = self._facts.of(columns)
        if not len(facts.tensors):
            return facts.frame
        rows = columns.summaries[facts.tensors]
        given = columns.with_summary[facts.tensors]
        statistics = list(_statistics(rows, given)) if given.any() else []
        if not given.all():
            is_given = pl.Series(given)
            statistics = [
                pl.select(pl.when(is_given).then(each).otherwise(None).alias(each.name)).to_series()
                for each in statistics
            ]
        return facts.frame.with_columns(pl.lit(columns.step, dtype=pl.Int64).alias("step"), *statistics)

    def _facts_of(self, columns: BatchColumns) -> _Facts:
        _, tensors = columns.records()
        places = list(self._places(columns))
        frame = polars_frame(tensors[place] for place in places)
        frame = frame.drop([name for name in OWN if name in frame.columns])
        return _Facts(np.array(places, np.intp), frame)

    def _places(self, columns: BatchColumns) -> Iterator[int]:
        """The places of the tensors that are asked for, operator by operator."""
        ops, tensors = columns.records()
        of_op: dict[int, list[int]] = {}
        for place, record in enumerate(tensors):
            if self._include_skipped or not record.skip:
                of_op.setdefault(id(record.op), []).append(place)
        for op in ops:
            if (self._include_skipped or not op.skip) and (self._place is None or self._place.is_on(op.stack)):
                yield from (place for place in of_op.get(id(op), ()) if self._io in (None, tensors[place].io))


def _statistics(rows: npt.NDArray[np.float64], given: npt.NDArray[np.bool_]) -> Iterator[pl.Series]:
    """The statistics of summaries, in the order of their names; of a row without a summary they are any numbers."""
    import polars as pl

    summaries = Summary(*np.where(given[:, None], rows, 0.0).T)
    for name, each in OWN.items():
        of_summaries = each.of_summaries or each.of_summary
        if of_summaries is not None:
            values = np.ascontiguousarray(of_summaries(summaries))
            yield pl.Series(name, values.astype(np.int64) if each.kind is int else values)
