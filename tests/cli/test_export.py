"""`opdump export`: the tensors of a dump as a table for other programs."""

from __future__ import annotations

import csv
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result

from opdump.catalog.catalog import open_dump
from opdump.commands import main
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.cli.json_shapes import mistakes
from tests.layouts.filing import file_steps


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    root = tmp_path / "dump"
    file_steps(DumpPlan(path=root, saved_data="full"), [sample_step(step) for step in range(3)])
    return root


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


@pytest.mark.parametrize(("kind", "read"), [("parquet", pl.read_parquet), ("arrow", pl.read_ipc)])
def test_the_table_is_that_of_the_catalog(dump: Path, tmp_path: Path, kind: str, read: Any) -> None:
    file = tmp_path / f"table.{kind}"
    done = export(dump, "--to", kind, "-o", file)
    expected = open_dump(str(dump)).to_polars()
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{file}: {expected.height} rows of {expected.width} columns, ")
    found = read(file)
    assert sorted(found.columns) == sorted(expected.columns)
    assert found.select(expected.columns).equals(expected)
    assert expected["max"].is_nan().any()
    assert expected["max"].is_null().any()


@pytest.mark.parametrize(("name", "start"), [("t.csv", b"rank,"), ("t.arrow", b"ARROW1"), ("t.table", b"PAR1")])
def test_the_suffix_selects_the_type_of_file(dump: Path, tmp_path: Path, name: str, start: bytes) -> None:
    assert export(dump, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_bytes().startswith(start)


def test_csv_has_shapes_as_text_and_nothing_for_what_is_missing(dump: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    assert export(dump, "--to", "csv", "-o", file).exit_code == 0
    expected = open_dump(str(dump)).to_polars().to_dicts()
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert len(rows) == len(expected)
    for row, values in zip(rows, expected, strict=True):
        assert json.loads(row["shape"]) == values["shape"]
        assert (row["operator"], row["step"]) == (values["operator"], str(values["step"]))
        if values["max"] is None:
            assert row["max"] == ""
        else:
            assert repr(float(row["max"])) == repr(values["max"])


def test_the_file_is_named_after_the_dump_and_is_not_replaced(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert export(dump).exit_code == 0
    before = (tmp_path / "dump.parquet").read_bytes()
    again = export(dump, "--step", "1")
    assert again.exit_code == 1
    assert "dump.parquet: exists already; name another file, or use --overwrite" in again.stderr
    assert (tmp_path / "dump.parquet").read_bytes() == before
    assert export(dump, "--step", "1", "--overwrite").exit_code == 0
    assert set(pl.read_parquet(tmp_path / "dump.parquet")["step"]) == {1}


@pytest.mark.parametrize(
    ("options", "which"),
    [
        (["--step", "2"], {"step": 2}),
        (["--io", "output"], {"io": "output"}),
        (["--op", "Cast"], {"name": "Cast"}),
        (["--op", "Cast", "--io", "input", "--step", "1"], {"name": "Cast", "io": "input", "step": 1}),
        (["--skipped"], {"include_skipped": True}),
    ],
)
def test_a_part_can_be_asked_for(dump: Path, tmp_path: Path, options: list[str], which: dict[str, Any]) -> None:
    file = tmp_path / "part.parquet"
    assert export(dump, "-o", file, *options).exit_code == 0
    expected = open_dump(str(dump)).to_polars(**which)
    assert expected.height > 0
    assert pl.read_parquet(file).select(expected.columns).equals(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--op", "no such operator"], "no such operator"),
        (["--step", "77"], "no such tensors of step 77; it holds steps 0-2"),
        (["--rank", "5"], "holds no rank 5"),
        (["-o", "nowhere/table.parquet"], "its directory does not exist"),
    ],
)
def test_what_is_not_there_is_reported_and_leaves_no_file(
    dump: Path, tmp_path: Path, options: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = export(dump, *options)
    assert done.exit_code == 1
    assert words in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["dump"]


def test_a_damaged_file_is_reported_and_the_rest_is_exported(dump: Path, tmp_path: Path) -> None:
    whole = open_dump(str(dump)).to_polars().height
    (dump / "rank_0/.dump_metadata/index.sqlite").write_bytes(b"nothing")
    file = tmp_path / "rest.parquet"
    done = export(dump, "-o", file)
    assert done.exit_code == 1
    assert "opdump: problem: " in done.stderr
    assert "index.sqlite" in done.stderr
    assert 0 < pl.read_parquet(file).height <= whole


def test_json_names_the_file(dump: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.parquet"
    found = json.loads(export(dump, "-o", file, "--json").stdout)
    assert mistakes("export", found) == []
    assert (found["file"], found["rows"], found["bytes"]) == (
        str(file),
        open_dump(str(dump)).to_polars().height,
        file.stat().st_size,
    )


def test_without_polars_it_says_what_to_install(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    done = export(dump, "-o", tmp_path / "table.parquet")
    assert done.exit_code == 1
    assert "pip install 'opdump[polars]'" in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--overwrite",)])
def test_a_pipe_gets_the_table_and_stays_a_pipe(dump: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit(pipe.read_bytes)
        done = export(dump, "-o", pipe, *arguments)
    # The line about the table must not mix with the table if standard output is the pipe.
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith(f"{pipe}: ")
    assert pl.read_parquet(found.result()).height == open_dump(str(dump)).to_polars().height
    assert pipe.is_fifo()
