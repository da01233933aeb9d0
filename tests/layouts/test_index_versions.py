"""Dumps from earlier opdump versions stay readable, with everything in their index."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import numpy as np
import pytest

from opdump.call_stacks import Stack
from opdump.catalog.catalog import open_dump
from opdump.errors import DumpPathError
from opdump.layouts.detect import read_ranks
from opdump.plan import DumpPlan
from tests.layouts.filing import new_writer
from tests.layouts.index_files import index_file, run_sql

ARCHIVES = Path(__file__).parents[1] / "data/index"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """The dumps of version 2."""
    return _unpacked("version_2", tmp_path)


def _unpacked(version: str, where: Path) -> Path:
    with tarfile.open(ARCHIVES / f"{version}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(where, filter="data")
        else:  # Python 3.10 and 3.11 before their security updates
            archive.extractall(where)
    return where


def test_an_index_of_version_2_gives_what_only_an_index_knows(dumps: Path) -> None:
    catalog = open_dump(dumps / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    op = catalog.op("addmm-op4", step=1)
    assert (op.op.kernel, op.op.stack[0].line) == ("aten::addmm", 7)
    assert [(tensor.argument, tensor.shape, tensor.sample) for tensor in op.inputs.values()] == [
        ("self", (2,), 0),
        ("mat1", (2, 3), 0),
        ("mat2", (3, 2), 0),
    ]
    result = op.outputs[0].payload
    assert result is not None
    assert op.outputs[0].statistics["max"] == np.max(result.to_host())


def test_reasons_of_version_2_are_called_as_today(dumps: Path) -> None:
    for table in ("signatures", "operators"):
        run_sql(f"UPDATE {table} SET skip = 'untold'")(index_file(dumps / "sync"))
    (rank,) = read_ranks(dumps / "sync")
    content = rank.step(1)
    assert {op.skip for op in content.ops} == {"not observed"}
    assert {tensor.skip for tensor in content.tensors} == {"not observed"}


@pytest.mark.parametrize(("name", "tensors"), [("sync", 81), ("sampled", 81), ("device", 10)])
def test_dumps_of_version_2_are_read_whole(name: str, tensors: int, dumps: Path) -> None:
    catalog = open_dump(dumps / name)
    assert not catalog.problems
    records = [record for record in catalog.tensors() if record.payload is not None]
    assert len(records) == tensors
    for record in records:
        assert record.payload is not None
        assert record.payload.to_host().shape == record.shape


def test_an_index_of_version_2_with_a_column_of_version_3_is_of_neither(dumps: Path) -> None:
    run_sql("ALTER TABLE signatures ADD COLUMN sample INTEGER NOT NULL DEFAULT 0")(index_file(dumps / "sync"))
    (problem,) = open_dump(dumps / "sync").problems
    assert "does not read an index with foreign tables, views, triggers or columns" in str(problem)


def test_nothing_is_added_to_an_index_of_version_2(dumps: Path) -> None:
    before = index_file(dumps / "sync").read_bytes()
    with pytest.raises(DumpPathError, match=r"is an index of version 2.*dump into a new directory"):
        new_writer(DumpPlan(path=dumps / "sync"))
    assert index_file(dumps / "sync").read_bytes() == before


def test_an_index_of_version_3_knows_of_no_memory(tmp_path: Path) -> None:
    catalog = open_dump(_unpacked("version_3", tmp_path) / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    op = catalog.op("addmm-op2", step=1)
    assert [(tensor.argument, tensor.shape, tensor.memory) for tensor in op.inputs.values()] == [
        ("self", (2,), None),
        ("mat1", (4, 3), None),
        ("mat2", (3, 2), None),
    ]
    assert op.op.arguments == {}
    for record in catalog:
        assert record.numpy().shape == record.shape


def test_an_index_of_version_4_knows_of_no_bounds(tmp_path: Path) -> None:
    catalog = open_dump(_unpacked("version_4", tmp_path) / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    assert catalog.runs[0].degraded == ()
    assert all(record.numpy().shape == record.shape for record in catalog)


def test_an_index_of_version_5_has_a_pattern_for_all_arguments(tmp_path: Path) -> None:
    catalog = open_dump(_unpacked("version_5", tmp_path) / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    given = [op.op.arguments["value"] for op in catalog.ops() if "/addcdiv_-op" in op.op.op_name]
    assert len(given) == 6
    assert given[0] == given[1] == pytest.approx(-0.1)
    assert len({*given}) == 3
    assert all(record.numpy().shape == record.shape for record in catalog)


def test_an_index_of_version_6_has_a_row_for_each_file_and_digest(tmp_path: Path) -> None:
    where = _unpacked("version_6", tmp_path)
    catalog = open_dump(where / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    records = [record for record in catalog if not record.op.step]
    assert records
    for record in records:
        assert record.statistics["md5"] == hashlib.md5(record.numpy().tobytes()).hexdigest()
        assert record.payload is not None
    packed = open_dump(where / "packed")
    assert not packed.problems
    assert [record.numpy().max() == record.statistics["max"] for record in packed] == [True] * len([*packed])


def test_an_index_of_version_7_has_all_lines_of_each_stack(tmp_path: Path) -> None:
    catalog = open_dump(_unpacked("version_7", tmp_path) / "sync")
    assert not catalog.problems
    assert catalog.steps == (0, 1, 2)
    halves = [op.op.stack for op in catalog.ops(step=1) if op.op.op_type == "div" and op.op.phase == "forward"]
    assert [[frame.line for frame in stack] for stack in halves[:5]] == [[5] * level + [13] for level in range(1, 6)]
    assert {(frame.function, frame.code) for frame in halves[4][:5]} == {
        ("halved", "return halved(x / 2, times - 1) if times else x")
    }
    inner, outer = halves[4], halves[3]
    assert isinstance(inner, Stack)
    assert inner.callers is outer


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_nothing_is_added_to_an_index_of_a_version_before(version: int, tmp_path: Path) -> None:
    dump = _unpacked(f"version_{version}", tmp_path) / "sync"
    with pytest.raises(DumpPathError, match=rf"is an index of version {version}.*dump into a new directory"):
        new_writer(DumpPlan(path=dump))


def test_an_index_of_version_3_with_a_column_of_version_4_is_of_neither(tmp_path: Path) -> None:
    dump = _unpacked("version_3", tmp_path) / "sync"
    run_sql("ALTER TABLE signatures ADD COLUMN memory TEXT NOT NULL DEFAULT ''")(index_file(dump))
    (problem,) = open_dump(dump).problems
    assert "does not read an index with foreign tables, views, triggers or columns" in str(problem)
    with pytest.raises(DumpPathError, match=r"is an index of version 3.*dump into a new directory"):
        new_writer(DumpPlan(path=dump))
