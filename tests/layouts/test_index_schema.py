"""Readers know the schema of an index by its exact text: a different text is another version, or not from opdump."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path

import pytest

from opdump.catalog.catalog import open_dump
from opdump.errors import DumpPathError
from opdump.index.opening import SCHEMAS
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_steps, new_writer
from tests.layouts.hostile_indexes import all_kinds
from tests.layouts.index_files import index_file, run_sql


def test_another_text_of_the_schema_has_another_version() -> None:
    digests = {
        8: "a2a4c264bf3c28d7",
    }
    for version, statements in SCHEMAS.items():
        text = re.sub(r"\s+", " ", ";".join(statements))
        assert digests[version] == sha256(text.encode()).hexdigest()[:16], (
            "readers know the schema by its text: give the changed schema a new SCHEMA_VERSION, keep the old one if a release wrote it, and add its digest here"
        )


def test_nothing_is_added_to_an_index_of_another_version(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    run_sql("PRAGMA user_version = 7")(index_file(tmp_path))
    with pytest.raises(DumpPathError, match=r"is an index of version 7.*dump into a new directory"):
        new_writer(DumpPlan(path=tmp_path))


def test_an_index_without_its_view_or_after_vacuum_is_read(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    run_sql("DROP VIEW tensor_records", "VACUUM")(index_file(tmp_path))
    catalog = open_dump(tmp_path)
    assert len(list(catalog.tensors(include_skipped=True))) == len(sample_step(0).tensors)
    assert not catalog.problems


@pytest.mark.parametrize("kind", ["a trigger", "an index on an expression", "a check of a huge value"])
def test_nothing_is_written_into_an_index_that_computes(kind: str, tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    all_kinds()[kind](index_file(tmp_path))
    before = index_file(tmp_path).read_bytes()
    with pytest.raises(DumpPathError, match="dump into a new directory"):
        new_writer(DumpPlan(path=tmp_path))
    assert index_file(tmp_path).read_bytes() == before


def test_a_journal_that_names_a_file_above_it_deletes_nothing(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    kept = index_file(tmp_path).with_name("kept.txt")
    kept.write_text("nobody deletes this\n")
    all_kinds()["a hot journal that names another"](index_file(tmp_path))
    (problem,) = open_dump(tmp_path).problems
    assert "names a journal above it" in str(problem)
    with pytest.raises(DumpPathError, match="names a journal above it"):
        new_writer(DumpPlan(path=tmp_path))
    assert kept.exists()
    # For comparison, SQLite itself restores the journal's noise as a page, and then deletes the named file.
    with closing(sqlite3.connect(index_file(tmp_path))) as database, suppress(sqlite3.DatabaseError):
        database.execute("SELECT * FROM runs").fetchall()
    assert not kept.exists(), "SQLite does not accept the journal of this test, so the test shows nothing"
