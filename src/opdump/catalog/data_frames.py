"""Makes tables of tensors with pandas or polars: one row for each, with its operator and every statistic. Both packages are optional.

| column | type | |
|---|---|---|
| rank, step | int | |
| order, occurrence | int | position in the step; which execution of the name in it |
| operator, type, kernel, phase | text | the full name of the operator; its type; what the framework calls it |
| module | text | the operator's scope: the full name without its last component |
| file, line, code | text, int, text | the innermost line of the program; missing where none is known |
| io, slot, argument | text, int, text | `input` or `output`, position, name in the operator's schema |
| dtype, shape, elements | text, tuple (list of int in polars), int | of the whole tensor, before any widening |
| made_by | text | of an input: who made it |
| max, min, avg, l2norm | float | each statistic that any of the tensors has, by the config's spelling; missing where a tensor has it not |
| nan count, ... | int (float in pandas where some are missing) | |
| md5, hash, xxh3 | text | |

NaN of a statistic is NaN in polars and a missing statistic is null; pandas writes NaN for both.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from opdump.errors import PackageMissingError
from opdump.records import StatisticValue, TensorRecord
from opdump.statistics import OWN

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

FACTS: Final = (
    *("rank", "step", "order", "occurrence", "operator", "type", "kernel", "phase", "module", "file", "line", "code"),
    *("io", "slot", "argument", "dtype", "shape", "elements", "made_by"),
)
"""The columns that every table has."""
_LARGEST: Final = 2**63 - 1


def pandas_frame(tensors: Iterable[TensorRecord]) -> pd.DataFrame:
    """The table as a DataFrame of pandas. Raises PackageMissingError where pandas is not installed."""
    package = _package("pandas")
    columns = _columns(tensors)
    columns["line"] = package.array(columns["line"], dtype="Int64")
    frame: pd.DataFrame = package.DataFrame(columns)
    return frame


def polars_frame(tensors: Iterable[TensorRecord]) -> pl.DataFrame:
    """The table as a DataFrame of polars. Raises PackageMissingError where polars is not installed."""
    package = _package("polars")
    columns = _columns(tensors)
    whole, text = package.Int64, package.String
    kinds = dict.fromkeys(columns, text)
    kinds |= dict.fromkeys(("rank", "step", "order", "occurrence", "line", "slot", "elements"), whole)
    kinds |= {name: polars_kind(name, columns[name]) for name in columns if name not in FACTS}
    kinds["shape"] = package.List(whole)
    frame: pl.DataFrame = package.DataFrame(columns, schema=kinds)
    return frame


def polars_kind(name: str, column: Iterable[StatisticValue | None]) -> Any:
    """The type of a column of `polars_frame` that has these values of a statistic."""
    package = _package("polars")
    return {float: package.Float64, int: package.Int64, str: package.String}[_kind_of(name, column)]


def statistic_column(name: str, values: Sequence[StatisticValue | None]) -> list[StatisticValue | None]:
    """The values of a statistic as a table has them: of one type."""
    kind = _kind_of(name, values)
    return [value if value is None else kind(value) for value in values] if kind is not int else [*values]


def _columns(tensors: Iterable[TensorRecord]) -> dict[str, list[Any]]:
    rows: list[tuple[Any, ...]] = []
    statistics: list[dict[str, Any]] = []
    found: set[str] = set()
    last, of_op = None, ()
    for record in tensors:
        op = record.op
        if op is not last:
            frame = op.stack[0] if op.stack else None
            place = (frame.file, frame.line, frame.code) if frame is not None else (None, None, None)
            scope = op.op_name.rpartition("/")[0]
            names = (op.op_name, op.op_type, op.kernel, op.phase, scope)
            last, of_op = op, (op.rank_id, op.step, op.order, op.occurrence, *names, *place)
        shape = record.shape
        elements = math.prod(shape)
        count = elements if elements <= _LARGEST else None  # of a shape that no tensor has
        rows.append((*of_op, record.io, record.slot, record.argument, record.dtype, shape, count, record.source))
        values = dict(record.statistics)
        found.update(values)
        statistics.append(values)
    columns = (
        dict(zip(FACTS, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in FACTS}
    )
    for name in (*(name for name in OWN if name in found), *sorted(found.difference(OWN, FACTS))):
        columns[name] = statistic_column(name, [values.get(name) for values in statistics])
    return columns


def _kind_of(name: str, column: Iterable[StatisticValue | None]) -> type[StatisticValue]:
    """Of the values of a statistic: those of a package tell by themselves. Numbers beyond 64 bits have a column of floats."""
    if name in OWN:
        return OWN[name].kind
    values = [value for value in column if value is not None]
    if any(isinstance(value, str) for value in values):
        return str
    return int if values and all(isinstance(value, int) and abs(value) <= _LARGEST for value in values) else float


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PackageMissingError(
            f"to_{name}() makes a table of {name}, which cannot be imported here ({error}); type: pip install 'opdump[{name}]'"
        ) from error
