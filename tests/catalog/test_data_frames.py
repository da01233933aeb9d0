"""`Catalog.to_pandas()` and `to_polars()`: one row per tensor."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from opdump.catalog.catalog import Catalog, PolarsFrames, open_dump
from opdump.catalog.query import Asked
from opdump.errors import NotInDumpError, PackageMissingError
from opdump.plan import DumpPlan
from opdump.records import OpRecord, TensorRecord
from opdump.step_table import StepTable
from opdump.testing import sample_step
from tests.layouts.filing import file_steps


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    path = tmp_path_factory.mktemp("frames") / "dump"
    file_steps(DumpPlan(path=path, saved_data="full"), [sample_step(0), sample_step(7)])
    return open_dump(path)


def _rows(frame: Any) -> list[dict[str, Any]]:
    return list(frame.to_dict("records") if isinstance(frame, pd.DataFrame) else frame.to_dicts())


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_row_says_what_the_record_says(kind: str, catalog: Catalog) -> None:
    rows = _rows(getattr(catalog, f"to_{kind}")())
    records = list(catalog.tensors())
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        op = record.op
        assert f"{row['operator']}:{row['io']}:{row['slot']}" == record.name
        assert (row["rank"], row["step"], row["order"], row["occurrence"]) == (
            op.rank_id,
            op.step,
            op.order,
            op.occurrence,
        )
        assert (row["type"], row["kernel"], row["phase"], row["made_by"]) == (
            op.op_type,
            op.kernel,
            op.phase,
            record.source,
        )
        assert row["operator"].startswith(row["module"])
        assert (row["dtype"], tuple(row["shape"]), row["elements"]) == (
            record.dtype,
            record.shape,
            math.prod(record.shape),
        )
        if op.stack:
            assert (row["file"], row["line"], row["code"]) == (op.stack[0].file, op.stack[0].line, op.stack[0].code)
        else:
            assert all(_is_missing(row[name]) for name in ("file", "line", "code"))
        for name in ("max", "min", "avg", "l2norm", "nan count", "zero count", "md5"):
            if name not in record.statistics or _is_missing(record.statistics[name]):
                assert _is_missing(row[name])
            else:
                assert row[name] == record.statistics[name]


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_the_filters_are_those_of_tensors(kind: str, catalog: Catalog) -> None:
    rows = _rows(getattr(catalog, f"to_{kind}")("matmul", step=7, io="output", source="model.py:7"))
    assert [f"{row['operator']}:output:{row['slot']}" for row in rows] == [
        record.name for record in catalog.tensors("matmul", step=7, io="output", source="model.py:7")
    ]
    assert {row["step"] for row in rows} == {7}
    with pytest.raises(NotInDumpError):
        getattr(catalog, f"to_{kind}")("no-such-operator")


def test_numbers_are_numbers_and_polars_distinguishes_nan_from_missing(catalog: Catalog) -> None:
    frame, other = catalog.to_polars(), catalog.to_pandas()
    assert frame.schema["max"] == pl.Float64
    assert frame.schema["line"] == frame.schema["nan count"] == pl.Int64
    assert frame.schema["shape"] == pl.List(pl.Int64)
    assert (other["max"].dtype, other["step"].dtype, str(other["line"].dtype)) == ("float64", "int64", "Int64")
    odd = frame.filter(pl.col("operator").str.ends_with("add-op91"))
    assert odd["avg"].is_nan().all()
    assert frame.filter(pl.col("dtype") == "complex64")["avg"].is_null().all()
    assert other[other["operator"].str.endswith("add-op91")]["avg"].isna().all()


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_no_tensor_is_an_empty_table_with_the_columns_of_the_facts(kind: str, tmp_path: Path) -> None:
    step = sample_step(0)
    file_steps(DumpPlan(path=tmp_path), [replace(step, ops=tuple(op for op in step.ops if op.skip), tensors=())])
    frame = getattr(open_dump(tmp_path), f"to_{kind}")()
    assert len(frame) == 0
    assert {"operator", "step", "shape", "line"} <= set(frame.columns)


def test_a_shape_that_no_tensor_has_is_a_row_all_the_same() -> None:
    op = OpRecord(op_type="a", op_name="a-op0", timestamp=1)
    record = TensorRecord(op, "output", 0, "float32", (2**40, 2**40))
    (row,) = PolarsFrames(Asked(True)).frame(StepTable.of([op], [record])).to_dicts()
    assert (row["elements"], row["shape"]) == (None, [2**40, 2**40])


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_package_that_does_not_exist_is_named_with_what_to_type(
    kind: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    with pytest.raises(PackageMissingError, match=rf"pip install 'opdump\[{kind}\]'"):
        getattr(catalog, f"to_{kind}")()
