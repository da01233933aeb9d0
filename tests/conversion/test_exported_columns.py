"""An exported table has the rows of the records."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdump
from opdump.catalog.catalog import FACTS
from opdump.conversion.table_export import Selection, export_table
from opdump.plan import DumpPlan
from opdump.records import StatisticValue
from opdump.testing import sample_step
from tests.checks.generated_dumps import kinds, operators, write
from tests.layouts.filing import file_steps
from tests.layouts.hostile_indexes import all_kinds
from tests.layouts.index_files import index_file

pl = pytest.importorskip("polars")


def table_of(path: Path, selection: Selection) -> Any:
    export_table(opdump.open(path), path / "table.parquet", "parquet", selection, overwrite=True)
    return pl.read_parquet(path / "table.parquet")


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    facts = ("step", "operator", "io", "slot", "dtype", "shape")
    rows = []
    for row in table.to_dicts():
        statistics = {name: row[name] for name in row if name not in FACTS and row[name] is not None}
        rows.append((*(row[name] for name in facts), texts_of(statistics)))
    return rows


def texts_of(statistics: Mapping[str, StatisticValue]) -> list[str]:
    """The statistics as text: a column with numbers beyond 64 bits, or with some text, has all of its numbers in another type."""
    return sorted(f"{name} {each if isinstance(each, str) else float(each)}" for name, each in statistics.items())


def rows_of_records(path: Path, selection: Selection) -> list[tuple[Any, ...]]:
    return [
        (
            each.op.step,
            each.op.op_name,
            each.io,
            each.slot,
            each.dtype,
            [*each.shape],
            texts_of(each.statistics),
        )
        for each in opdump.open(path).tensors(**selection._asdict())
    ]


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(), io=st.sampled_from([None, "input", "output"]), include_skipped=st.booleans(), digests=st.booleans()
)
def test_the_table_is_that_of_the_records(data: st.DataObject, io: Any, include_skipped: bool, digests: bool) -> None:
    program = data.draw(st.lists(operators, min_size=1, max_size=5))
    count = sum(len(each["tensors"]) for each in program)
    steps = data.draw(st.lists(st.lists(kinds, min_size=count, max_size=count), min_size=1, max_size=4))
    selection = Selection(io=io, include_skipped=include_skipped)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump")
        write(path, program, steps, digests=digests)
        assert rows_of(table_of(path, selection)) == rows_of_records(path, selection)


@pytest.mark.parametrize(
    "kind", ["a statistic of thousands of digits", "a count beyond 64 bits", "a surrogate in a digest"]
)
def test_a_statistic_that_no_table_holds_is_refused_and_told(kind: str, tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic"), [sample_step(0)])
    all_kinds()[kind](index_file(tmp_path))
    catalog = opdump.open(tmp_path)
    export_table(catalog, tmp_path / "table.csv", "csv")
    assert any("expected a statistic" in str(each) for each in catalog.problems)


def test_a_training_with_a_line_chosen(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with opdump.capture(path=tmp_path / "dump", saved_data="statistic") as dump:
        for step in range(4):
            x = torch.ones(3)
            x.log()
            x[step % 3 : 2].exp()  # empty in the third
            dump.step()
    line = Path(__file__).read_text().splitlines().index("            x.log()") + 1
    for selection in (Selection(), Selection(source=f"{Path(__file__).name}:{line}"), Selection(source="elsewhere.py")):
        found = table_of(tmp_path / "dump", selection)
        assert rows_of(found) == rows_of_records(tmp_path / "dump", selection)
        assert (found.height == 0) == (selection.source == "elsewhere.py")
