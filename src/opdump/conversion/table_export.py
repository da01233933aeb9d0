"""Writes the tensors of a dump to one table that other programs read: Parquet, Arrow IPC or CSV, with polars.

Each row is one tensor with every statistic, in the columns of `Catalog.to_polars`. The table is built step by step: a step needs
memory for its rows and its records, and a step stored as columns (`StepFrames`) needs no records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from opdump import amounts
from opdump.catalog.catalog import FACTS, Catalog, polars_frame, polars_kind, statistic_column
from opdump.catalog.query import SourcePlace
from opdump.errors import NotInDumpError, OpdumpError
from opdump.index.reader import BatchColumns, FactsByProgram
from opdump.kernels import Summary
from opdump.records import IO, StatisticValue
from opdump.sink.outside import is_stream, whole_file
from opdump.statistics import OWN

if TYPE_CHECKING:
    import polars as pl

TableKind = Literal["parquet", "arrow", "csv"]
KINDS: Final[tuple[TableKind, ...]] = get_args(TableKind)
Tell = Callable[[str, int, int], object]


class TableExportError(OpdumpError):
    """The table cannot be written: the file exists already, its directory does not, or the disk is full."""


class Selection(NamedTuple):
    """The selected tensors: those that `Catalog.tensors` returns for these arguments."""

    name: str | None = None
    step: int | None = None
    rank: int | None = None
    source: str | None = None
    io: IO | None = None
    include_skipped: bool = False


EVERYTHING: Final = Selection()


class WrittenTable(NamedTuple):
    """A table that was written."""

    path: Path
    rows: int
    columns: tuple[str, ...]
    bytes: int


def export_table(
    catalog: Catalog,
    path: Path,
    kind: TableKind,
    selection: Selection = EVERYTHING,
    *,
    overwrite: bool = False,
    progress: Tell | None = None,
) -> WrittenTable:
    """Write the tensors to a table at `path`. The file appears when it is complete; a device or pipe is written directly.

    A shape is a list of numbers, in CSV its text (`[2, 3]`). A statistic that is NaN stays NaN, a missing one is null; in CSV
    `NaN` and an empty field. `progress` is called with what is read, the number of finished steps and of all steps.

    Raises TableExportError for an output that cannot be written, PackageMissingError if polars is not installed, and the errors
    of `Catalog.tensors`.
    """
    if path.exists() and not overwrite and not is_stream(path):
        raise TableExportError(f"{path}: exists already; name another file, or use --overwrite")
    if not path.parent.is_dir():
        raise TableExportError(f"{path}: its directory does not exist; create it, or name another file")
    table = _table(catalog, selection, progress)
    try:
        size = _write(table, path, kind)
    except OSError as error:
        raise TableExportError(f"{path}: cannot be written ({error.strerror or error})") from error
    return WrittenTable(path, table.height, tuple(table.columns), size)


def _table(catalog: Catalog, selection: Selection, progress: Tell | None) -> pl.DataFrame:
    which = selection._asdict()
    if selection.name is not None or selection.step is not None:  # a name is looked up in the whole dump
        table = polars_frame(catalog.tensors(**which))
        if not table.height:
            of_step = "" if selection.step is None else f" of step {selection.step}"
            held = amounts.steps(catalog.steps)
            raise NotInDumpError(f"{catalog.path}: holds no such tensors{of_step}; it holds {held}: see opdump show")
        return table
    parts = [polars_frame(())]
    steps = catalog.steps
    frames = StepFrames(source=selection.source, io=selection.io, include_skipped=selection.include_skipped)
    ranks = catalog.ranks if selection.rank is None else (selection.rank,)
    for number, step in enumerate(steps):
        for rank in ranks:
            columns = catalog.columns(step, rank)
            part = None if columns is None else frames.frame(columns)
            if part is None:
                part = polars_frame(catalog.tensors(**{**which, "step": step, "rank": rank}))
            if part.height:
                parts.append(part)
        if progress is not None:
            progress(f"step {step}", number + 1, len(steps))
    import polars as pl

    # Steps may differ in their statistics, and in the types of those of a package.
    return pl.concat(parts, how="diagonal_relaxed")


def _write(table: pl.DataFrame, path: Path, kind: TableKind) -> int:
    """Returns the number of bytes written."""
    with whole_file(path) as file:
        if kind == "parquet":
            table.write_parquet(file)
        elif kind == "arrow":
            table.write_ipc(file)
        else:
            _with_text(table).write_csv(file)
        return file.stat().st_size


def _with_text(table: pl.DataFrame) -> pl.DataFrame:
    """The table without lists, which CSV does not support."""
    shapes: list[Any] = table["shape"].to_list()
    import polars as pl

    texts = [None if shape is None else str(list(shape)) for shape in shapes]
    return table.with_columns(pl.Series("shape", texts, dtype=pl.String))


# The rows of an exported table for a step stored as columns: the list of operators is built once, the numbers come directly from
# the stored summaries.

_ORDER: Final = {name: place for place, name in enumerate(OWN)}
_NOTHING: Final[Mapping[str, StatisticValue]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """The rows of a program, without their numbers."""

    tensors: npt.NDArray[np.intp]
    """The index of the tensor of each row."""
    frame: pl.DataFrame
    """The columns of `polars_frame` without statistics."""


class StepFrames:
    """Builds the rows for steps stored as columns: the tensors that `Catalog.tensors` returns for the same arguments, in the form
    of `polars_frame`.
    """

    def __init__(self, *, source: str | None, io: IO | None, include_skipped: bool) -> None:
        self._place = None if source is None else SourcePlace(source)
        self._io = io
        self._include_skipped = include_skipped
        self._facts = FactsByProgram(self._facts_of)

    def frame(self, columns: BatchColumns) -> pl.DataFrame | None:
        """The rows of the step; None if a statistic outside of the summaries has the name of one of theirs, which no writer
        produces.
        """
        import polars as pl

        names = sorted(set().union(*columns.statistics.values()))
        if not all(map(_is_beside_summaries, names)):
            return None
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
        statistics += _others(columns.statistics, facts.tensors.tolist(), names)
        statistics.sort(key=lambda each: _in_order(each.name))
        return facts.frame.with_columns(pl.lit(columns.step, dtype=pl.Int64).alias("step"), *statistics)

    def _facts_of(self, columns: BatchColumns) -> _Facts:
        _, tensors = columns.records()
        places = list(self._places(columns))
        frame = polars_frame(tensors[place] for place in places).select(FACTS)
        return _Facts(np.array(places, np.intp), frame)

    def _places(self, columns: BatchColumns) -> Iterator[int]:
        """The indices of the selected tensors, operator by operator."""
        ops, tensors = columns.records()
        of_op: dict[int, list[int]] = {}
        for place, record in enumerate(tensors):
            if self._include_skipped or not record.skip:
                of_op.setdefault(id(record.op), []).append(place)
        for op in ops:
            if (self._include_skipped or not op.skip) and (self._place is None or self._place.is_on(op.stack)):
                yield from (place for place in of_op.get(id(op), ()) if self._io in (None, tensors[place].io))


def _in_order(name: str) -> tuple[int, str]:
    """The sort key for columns of statistics."""
    return _ORDER.get(name, len(_ORDER)), name


def _is_beside_summaries(name: str) -> bool:
    own = OWN.get(name)
    return own is None or (own.of_summary is None and not own.same_as)


def _others(
    found: Mapping[int, Mapping[str, StatisticValue]], tensors: Sequence[int], names: Iterable[str]
) -> Iterator[pl.Series]:
    """The statistics of tensors that are not in the summaries, by these names, without those that no tensor has."""
    import polars as pl

    of_tensors = [found.get(tensor, _NOTHING) for tensor in tensors] if found else []
    for name in names:
        values = [each.get(name) for each in of_tensors]
        if any(value is not None for value in values):
            yield pl.Series(name, statistic_column(name, values), dtype=polars_kind(name, values))


def _statistics(rows: npt.NDArray[np.float64], given: npt.NDArray[np.bool_]) -> Iterator[pl.Series]:
    """The statistics of summaries, in the order of their names; rows without a summary contain arbitrary numbers."""
    import polars as pl

    summaries = Summary(*np.where(given[:, None], rows, 0.0).T)
    for name, each in OWN.items():
        of_summaries = each.of_summaries or each.of_summary
        if of_summaries is not None:
            values = np.ascontiguousarray(of_summaries(summaries))
            yield pl.Series(name, values.astype(np.int64) if each.kind is int else values)
