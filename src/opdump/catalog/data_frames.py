"""Creates tables of tensors with pandas or polars: one row per tensor, with its operator and every statistic. Both packages are optional.

| column | type | |
|---|---|---|
| rank, step | int | |
| order, occurrence | int | position in the step; number of the execution with this name in the step |
| operator, type, kernel, phase | text | the full name of the operator; its type; the framework's name of it |
| module | text | the operator's scope: the full name without its last component |
| file, line, code | text, int, text | the innermost line of the program; missing if unknown |
| io, slot, argument | text, int, text | `input` or `output`, position, name in the operator's schema |
| dtype, shape, elements | text, tuple (list of int in polars), int | of the whole tensor, before any widening |
| made_by | text | for an input: its producer |
| max, min, avg, l2norm | float | each statistic that any of the tensors has, named as in the config; missing for a tensor without it |
| nan count, ... | int (float in pandas where some are missing) | |
| md5, hash, xxh3 | text | |

A statistic that is NaN is NaN in polars, and a missing one is null; in pandas both are NaN.
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
    """Return the table as a DataFrame of pandas. Raises PackageMissingError if pandas is not installed."""
    package = _package("pandas")
    columns = _columns(tensors)
    columns["line"] = package.array(columns["line"], dtype="Int64")
    frame: pd.DataFrame = package.DataFrame(columns)
    return frame


def polars_frame(tensors: Iterable[TensorRecord]) -> pl.DataFrame:
    """Return the table as a DataFrame of polars. Raises PackageMissingError if polars is not installed."""
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
    """Return the type of a column of `polars_frame` with these values of a statistic."""
    package = _package("polars")
    return {float: package.Float64, int: package.Int64, str: package.String}[_kind_of(name, column)]


def statistic_column(name: str, values: Sequence[StatisticValue | None]) -> list[StatisticValue | None]:
    """Convert the values of a statistic to a single type, as a table requires."""
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
        count = elements if elements <= _LARGEST else None  # a damaged dump may have such a shape
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
    """Return the type of a statistic. That of an extension is derived from its values. A column with numbers beyond 64 bits has floats."""
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
            f"to_{name}() returns a table of {name}, which cannot be imported here ({error}); type: pip install 'opdump[{name}]'"
        ) from error
