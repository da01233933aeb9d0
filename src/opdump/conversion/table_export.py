"""Writes the tensors of a dump to one table that other programs read: Parquet, Arrow IPC or CSV, with polars.

Each row is one tensor with every statistic, in the columns of `Catalog.to_polars`. The table is built step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from opdump import amounts
from opdump.catalog.catalog import Catalog, PolarsFrames, joined_frames
from opdump.errors import NotInDumpError, OpdumpError
from opdump.records import IO
from opdump.sink.outside import is_stream, whole_file

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
    frames = PolarsFrames(catalog.query(**selection._asdict()), selection.io)
    parts: list[pl.DataFrame] = []
    steps = catalog.steps if selection.step is None else (selection.step,)
    ranks = catalog.ranks if selection.rank is None else (selection.rank,)
    for number, step in enumerate(steps):
        parts += [frames.frame(catalog.table(step, rank)) for rank in ranks]
        if progress is not None:
            progress(f"step {step}", number + 1, len(steps))
    table = joined_frames(parts)
    if not table.height and (selection.name is not None or selection.step is not None):
        of_step = "" if selection.step is None else f" of step {selection.step}"
        held = amounts.steps(catalog.steps)
        raise NotInDumpError(f"{catalog.path}: holds no such tensors{of_step}; it holds {held}: see opdump show")
    return table


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
