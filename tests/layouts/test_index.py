"""The index survives kill -9, can be read while it is written and on read-only file systems, and stores nothing twice."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.checks import Thresholds
from opdump.errors import CorruptDumpError, DumpPathError
from opdump.index.payload import FilePayload, dumps_unchanged
from opdump.kernels import summarise
from opdump.plan import DumpPlan
from opdump.records import HostPayload, SkipReason, StatisticValue
from opdump.reports.findings import check_dump
from opdump.reports.text_format import StepRows
from opdump.statistics import SummaryStatistics
from opdump.testing import sample_step
from tests.layouts.filing import file_step, file_steps, new_writer
from tests.layouts.index_files import index_file, run_sql

_WRITE_FOR_EVER = """
import sys
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_step, new_writer
from pathlib import Path
writer = new_writer(DumpPlan(path=Path(sys.argv[1]), saved_data="full"))
step = 0
while True:
    file_step(writer, sample_step(step))
    print(step, flush=True)
    step += 1
"""


def _capture(root: Path) -> subprocess.Popen[bytes]:
    here = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOR_EVER, str(root)], stdout=subprocess.PIPE, env=environment, cwd=here
    )


@pytest.mark.parametrize("delay", [0.0, 0.003, 0.011, 0.02])
def test_after_kill_9_every_finished_step_is_whole(delay: float, tmp_path: Path) -> None:
    with _capture(tmp_path) as process:
        assert process.stdout is not None
        for _ in range(5):
            finished = int(process.stdout.readline())
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        finished = max([finished, *(int(line) for line in process.stdout.read().split())])
    catalog = open_dump(tmp_path)
    assert not catalog.problems
    assert not catalog.runs[0].complete
    assert set(range(finished + 1)) <= set(catalog.steps)
    for step in range(finished + 1):
        assert [each.op for each in catalog.ops(step=step, include_skipped=True)] == list(sample_step(step).ops)
    for record in catalog:
        if record.payload is not None:
            record.payload.to_host()


def test_a_dump_that_is_being_written_can_be_read(tmp_path: Path) -> None:
    with _capture(tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            for _ in range(5):
                catalog = open_dump(tmp_path)
                assert not catalog.problems
                whole = catalog.steps[:-1]
                for step in whole[-2:]:
                    assert [each.op for each in catalog.ops(step=step, include_skipped=True)] == list(
                        sample_step(step).ops
                    )
                before = int(process.stdout.readline())
        finally:
            process.kill()
    assert before > 0


def test_a_reader_holds_no_lock_on_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opdump.index.writer._PATIENCE_SECONDS", 0)
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    file_step(writer, sample_step(0))
    catalog = open_dump(tmp_path)
    records = iter(catalog)
    next(records)
    file_step(writer, sample_step(1))  # immediately, or "database is locked"
    assert len(list(records)) > 0
    assert open_dump(tmp_path).steps == (0, 1)
    writer.close({})


def _with_hot_journal(root: Path) -> None:
    """Leave the index in the state of a process that was killed within a transaction."""
    program = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 1")
database.execute("BEGIN IMMEDIATE")
database.execute("DELETE FROM batches")
database.execute("DELETE FROM patterns")
database.executemany("INSERT INTO arguments VALUES (?, ?)", [(n, "x" * 4000) for n in range(1000, 1500)])
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(index_file(root))], check=False)
    assert index_file(root).with_name("index.sqlite-journal").stat().st_size > 512


def test_a_transaction_that_was_killed_is_rolled_back_without_touching_the_dump(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path), [sample_step(0)])
    _with_hot_journal(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    catalog = open_dump(tmp_path)
    assert [each.op for each in catalog.ops(include_skipped=True)] == list(sample_step(0).ops)
    assert not catalog.problems
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_next_run_repairs_an_index_that_was_killed(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path), [sample_step(0)])
    _with_hot_journal(tmp_path)
    file_steps(DumpPlan(path=tmp_path), [sample_step(1)])
    catalog = open_dump(tmp_path)
    assert catalog.steps == (0, 1)
    assert [each.op for each in catalog.ops(include_skipped=True)] == [*sample_step(0).ops, *sample_step(1).ops]


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="must mount a directory read-only")
@pytest.mark.parametrize("killed", [False, True])
def test_a_dump_on_a_read_only_file_system_is_read(tmp_path: Path, killed: bool) -> None:
    root = tmp_path / "dump"
    file_steps(DumpPlan(path=root), [sample_step(0)])
    if killed:
        _with_hot_journal(root)
    program = f"""
from opdump.catalog.catalog import open_dump
catalog = open_dump({str(root)!r})
assert not catalog.problems, catalog.problems
print(len(list(catalog)))
"""
    mount = f"mount --bind {root} {root} && mount -o remount,ro,bind {root} && ! touch {root}/x 2>/dev/null"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )
    if "denied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip("this machine forbids mounting")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len([record for record in sample_step(0).tensors if not record.skip])


def test_records_can_be_asked_for_in_sql(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path), [sample_step(0), sample_step(1)])
    database = sqlite3.connect(index_file(tmp_path))
    rows = database.execute(
        "SELECT step, op_name, io, slot, dtype, shape FROM tensor_records WHERE phase = 'backward' ORDER BY step"
    ).fetchall()
    database.close()
    name = "Gradients/Default/network-Net/MatMul-op95"
    assert rows == [(step, name, "output", 1, "float64", "5,4") for step in (0, 1)]


def test_two_runs_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="statistic")
    one, other = new_writer(plan), new_writer(plan)
    file_step(one, sample_step(0))
    file_step(other, sample_step(1))
    file_step(one, sample_step(2))
    one.close({})
    other.close({})
    assert [run.id for run in open_dump(tmp_path).runs] == [1, 2]
    for number, steps in ((1, (0, 2)), (2, (1,))):
        catalog = open_dump(tmp_path, run=number)
        assert catalog.steps == steps
        expected = [op for step in steps for op in sample_step(step).ops]
        assert [each.op for each in catalog.ops(include_skipped=True)] == expected


def _ask(root: Path, query: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(index_file(root))
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


def test_a_step_that_repeats_another_is_one_row(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    file_step(writer, sample_step(0))
    tables = ("patterns", "operators", "signatures", "arguments", "stacks", "lines")
    count = "SELECT " + ", ".join(f"(SELECT COUNT(*) FROM {table})" for table in tables)
    first = _ask(tmp_path, count)
    for step in range(1, 4):
        file_step(writer, sample_step(step))
    writer.close({})
    assert _ask(tmp_path, count) == first
    assert first[0][0] == 1
    assert _ask(tmp_path, "SELECT step, pattern FROM batches") == [(step, 1) for step in range(4)]
    catalog = open_dump(tmp_path)
    for step in range(4):
        assert [each.op for each in catalog.ops(step=step, include_skipped=True)] == list(sample_step(step).ops)


def test_what_is_only_counted_comes_back_as_numbers(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    steps = [sample_step(number) for number in range(3)]
    counts: list[Mapping[SkipReason, int]] = [{}, {"view": 3, "allocation": 1}, {"view": 2}]
    for step, counted in zip(steps, counts, strict=True):
        writer.write_step(step.step, step.ops, step.tensors, [None] * len(step.tensors), counted)
    # A part of a step that has nothing to list.
    writer.write_step(2, [], [], [], {"view": 5, "metadata": 1})
    writer.close({})
    catalog = open_dump(tmp_path)
    assert [dict(catalog.counted(step)) for step in catalog.steps] == [
        {},
        {"view": 3, "allocation": 1},
        {"view": 7, "metadata": 1},
    ]
    assert len(list(catalog.ops(step=2, include_skipped=True))) == len(steps[2].ops)


def test_another_step_makes_another_pattern(tmp_path: Path) -> None:
    whole = sample_step(0)
    steps = [
        whole,
        replace(sample_step(1), tensors=sample_step(1).tensors[1:]),
        replace(sample_step(2), tensors=sample_step(2).tensors[::-1]),
        replace(sample_step(3), ops=sample_step(3).ops[:-1], tensors=sample_step(3).tensors[:1]),
        sample_step(4),
    ]
    file_steps(DumpPlan(path=tmp_path, saved_data="statistic"), steps)
    assert _ask(tmp_path, "SELECT pattern FROM batches") == [(1,), (2,), (3,), (4,), (1,)]
    catalog = open_dump(tmp_path)
    for step in steps:
        assert [each.op for each in catalog.ops(step=step.step, include_skipped=True)] == list(step.ops)
        names = sorted((record.name, record.op.timestamp) for record in step.tensors)
        found = catalog.tensors(step=step.step, include_skipped=True)
        assert sorted((record.name, record.op.timestamp) for record in found) == names


def test_a_second_run_stores_its_own_patterns(tmp_path: Path) -> None:
    plan = DumpPlan(path=tmp_path, saved_data="statistic")
    one, other = new_writer(plan), new_writer(plan)
    for step in range(4):
        file_step((one, other)[step % 2], sample_step(step))
    one.close({})
    other.close({})
    assert _ask(tmp_path, "SELECT run, pattern FROM batches") == [(1, 1), (2, 2), (1, 1), (2, 2)]


def test_what_a_failed_step_would_have_stored_is_stored_by_the_next(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    step = sample_step(0)
    unknown = replace(step.tensors[0], statistics={"max": 1.0}, skip="empty")
    with closing(sqlite3.connect(index_file(tmp_path), isolation_level=None)) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON batches BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(DumpPathError, match="full"):
            writer.write_step(0, step.ops, [unknown], [None])
        database.execute("DROP TRIGGER full")
    file_step(writer, sample_step(1))
    catalog = open_dump(tmp_path)
    assert [each.op for each in catalog.ops(step=1, include_skipped=True)] == list(sample_step(1).ops)
    assert not catalog.problems


def test_a_tensor_without_summary_stands_among_others(tmp_path: Path) -> None:
    step = sample_step(0)
    kinds: list[Mapping[str, StatisticValue]] = [
        SummaryStatistics(summarise(np.array([1.0, math.nan]))),
        {},
        {"max": 3.5, "md5": "ab"},
        SummaryStatistics(summarise(np.zeros(0)), {"md5": "cd"}),
        {},
    ]
    tensors = [
        replace(record, statistics=statistics, payload=None)
        for record, statistics in zip([r for r in step.tensors if not r.skip], kinds, strict=False)
    ]
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    writer.write_step(0, step.ops, tensors, [None, "Net/0/0/a.npy", None, None, None])
    writer.write_step(1, [], [replace(r, statistics={}, op=replace(r.op, step=1)) for r in tensors], [None] * 5)
    writer.close({})
    found = {record.name: record.statistics for record in open_dump(tmp_path).tensors(step=0)}
    assert [found[record.name] for record in tensors] == kinds
    assert [type(found[record.name]) for record in tensors] == [type(statistics) for statistics in kinds]
    assert [
        tuple(each and json.loads(each) for each in row)
        for row in _ask(tmp_path, "SELECT files, statistics FROM batches")
    ] == [({"1": "Net/0/0/a.npy"}, {"2": {"max": 3.5, "md5": "ab"}, "3": {"md5": "cd"}}), (None, None)]
    assert _ask(tmp_path, "SELECT step, length(summaries) FROM batches") == [(0, 5 * 88), (1, None)]
    assert all(not record.statistics for record in open_dump(tmp_path).tensors(step=1))


def test_what_has_statistics_without_a_summary_is_checked_and_shown_beside_others(tmp_path: Path) -> None:
    step = sample_step(0)
    kinds: list[Mapping[str, StatisticValue]] = [
        SummaryStatistics(summarise(np.array([1.0, 2.0]))),
        {
            "max": math.nan,
            "min": 0.5,
            "avg": math.nan,
            "nan count": 7,
            "negative inf count": 0,
            "positive inf count": 0,
        },
    ]
    tensors = [
        replace(record, statistics=statistics, payload=None)
        for record, statistics in zip([r for r in step.tensors if not r.skip], kinds, strict=False)
    ]
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    writer.write_step(0, step.ops, tensors, [None, None])
    writer.close({})
    found = check_dump(open_dump(tmp_path), Thresholds())
    assert [(each.check, each.step) for each in found.findings] == [("nan", 0)]
    assert (found.tensors, found.unknown) == (2, 0)
    assert StepRows(open_dump(tmp_path), 0).row(0)[5] == "1"


def test_constants_are_kept_apart_from_the_steps(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    step = sample_step(0)
    array = np.array([1.0, 2.0], dtype="float32")
    record = replace(
        step.tensors[0],
        op=step.ops[3],
        dtype="float32",
        shape=(2,),
        payload=HostPayload(array),
        statistics=SummaryStatistics(summarise(array), {"md5": "ab"}),
    )
    file_step(writer, step)
    writer.write_constant(7, record)
    writer.write_constant(8, replace(record, statistics={}))
    writer.close({})
    catalog = open_dump(tmp_path)
    assert catalog.steps == (0,)
    assert [each.op for each in catalog.ops(include_skipped=True)] == list(step.ops)
    assert [constant.op.op_name for constant in catalog.constants()] == ["data-7", "data-8"]
    assert [constant.statistics for constant in catalog.constants()] == [record.statistics, {}]
    for constant in catalog.constants():
        assert constant.payload is not None
        np.testing.assert_array_equal(constant.payload.to_host(), array)
    assert _ask(tmp_path, "SELECT run, step, data_id FROM constants") == [(1, 0, 7), (1, 0, 8)]
    assert len(_ask(tmp_path, "SELECT * FROM batches")) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE constants SET summary = x'00'",
        "UPDATE constants SET operator = 999",
        "UPDATE constants SET signature = 'a'",
        "UPDATE constants SET timestamp = 'soon'",
        "UPDATE constants SET statistics = '['",
    ],
)
def test_a_damaged_constant_is_told_as_a_problem(damage: str, tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    record = sample_step(0).tensors[0]
    writer.write_constant(7, replace(record, statistics={"max": 1.0}))
    writer.close({})
    run_sql(damage)(index_file(tmp_path))
    catalog = open_dump(tmp_path)
    assert len(catalog.constants()) == 1  # named after its file
    (problem,) = catalog.problems
    assert str(index_file(tmp_path)) in str(problem)


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 38), reason="the view needs SQLite's JSON functions")
def test_the_view_gives_what_the_catalog_gives(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(step) for step in range(3)])
    rows = _ask(
        tmp_path,
        "SELECT run, step, position, op_type, op_name, occurrence, timestamp, graph_id, phase, io, slot, dtype, shape,"
        " data_size, argument, source, file, skip FROM tensor_records",
    )
    records = list(open_dump(tmp_path).tensors(include_skipped=True))
    assert len(rows) == len(records) > 0
    expected = [
        (
            *(1, record.op.step, record.op.order, record.op.op_type, record.op.op_name, record.op.occurrence),
            *(record.op.timestamp, record.op.graph_id, record.op.phase, record.io, record.slot, record.dtype),
            *(",".join(map(str, record.shape)), record.data_size, record.argument, record.source),
            str(record.payload.path.relative_to(tmp_path / "rank_0"))
            if isinstance(record.payload, FilePayload)
            else None,
            record.skip or record.op.skip,
        )
        for record in records
    ]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def test_tensors_of_an_unchanged_dump_are_read_once(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    records = [record for record in open_dump(tmp_path) if record.payload is not None and record.numpy().nbytes < 2**16]
    with dumps_unchanged():
        before = [record.numpy() for record in records]
        with dumps_unchanged():
            assert all(record.numpy() is kept for record, kept in zip(records, before, strict=True))
        assert all(record.numpy() is kept for record, kept in zip(records, before, strict=True))
    assert len(before) > 3
    for record, kept in zip(records, before, strict=True):
        assert not kept.flags.writeable
        assert record.numpy() is not kept
        np.testing.assert_array_equal(record.numpy(), kept)


def test_elements_that_were_read_outlast_their_file_only_while_the_dump_counts_as_unchanged(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    record, *others = [record for record in open_dump(tmp_path) if record.payload is not None]
    with dumps_unchanged():
        kept = record.numpy()
        for file in tmp_path.rglob("*.npy"):
            file.unlink()
        assert record.numpy() is kept
        with pytest.raises(CorruptDumpError):
            others[-1].numpy()
    with pytest.raises(CorruptDumpError):
        record.numpy()
