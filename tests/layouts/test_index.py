"""The index survives kill -9, is opened once for many calls, and is known by the text of its schema."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.catalog.catalog import open_dump
from opdump.checks import Thresholds
from opdump.errors import CorruptDumpError, DumpPathError
from opdump.index.opening import SCHEMAS, TURNS
from opdump.index.reader import IndexReader
from opdump.index.values import FilePayload, dumps_unchanged
from opdump.kernels import summarise
from opdump.plan import DumpPlan
from opdump.records import HostPayload, SkipReason, StatisticValue
from opdump.reports.findings import check_dump
from opdump.reports.text_format import StepRows
from opdump.statistics import SummaryStatistics
from opdump.testing import sample_step
from tests.layouts.filing import file_step, file_steps, index_file, new_writer, run_sql
from tests.layouts.hostile_indexes import all_kinds

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
def test_a_damaged_constant_is_reported_as_a_problem(damage: str, tmp_path: Path) -> None:
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that connections were opened with."""
    addresses: list[str] = []
    connect: Callable[..., Any] = sqlite3.connect

    def recording(address: Any, *arguments: Any, **others: Any) -> Any:
        addresses.append(str(address))
        return connect(address, *arguments, **others)

    monkeypatch.setattr(sqlite3, "connect", recording)
    return addresses


def _dump(root: Path, steps: int) -> Path:
    file_steps(DumpPlan(path=root, saved_data="full"), [sample_step(number) for number in range(steps)])
    return root


def _read(root: Path) -> list[tuple[int, str]]:
    return [(record.op.step, record.op.op_name) for record in open_dump(str(root)).tensors()]


def test_many_steps_are_read_by_one_connection(tmp_path: Path, opened: list[str]) -> None:
    root = _dump(tmp_path / "dump", 20)
    opened.clear()
    assert len({step for step, _ in _read(root)}) == 20
    assert len([address for address in opened if "index.sqlite" in address]) == 1


def test_a_capture_goes_on_while_its_index_is_read(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    for number in range(3):
        file_step(writer, sample_step(number))
        reader = IndexReader(index_file(tmp_path), tmp_path / "rank_0")
        assert [batch.step for batch in reader.batches] == list(range(number + 1))
        locked = sqlite3.connect(index_file(tmp_path), timeout=0, isolation_level=None)
        locked.execute("BEGIN EXCLUSIVE")  # the lock that the next step needs; fails if the reader holds one
        locked.execute("ROLLBACK")
        locked.close()
    writer.close({})


def test_a_reader_takes_no_lock_away_from_a_transaction_of_another_thread(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="full"))
    file_step(writer, sample_step(0))
    path = index_file(tmp_path)
    intruder = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None); d.execute('BEGIN IMMEDIATE')"
    with TURNS.take(), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        reading = threading.Thread(target=IndexReader, args=(path, tmp_path / "rank_0"))
        reading.start()
        reading.join(0.5)  # it waits for the end of the transaction
        other = subprocess.run([sys.executable, "-c", intruder, str(path)], capture_output=True, text=True, check=False)
        database.execute("ROLLBACK")
    reading.join()
    assert "database is locked" in other.stderr
    file_step(writer, sample_step(1))
    writer.close({})


def test_a_child_of_another_thread_s_transaction_can_read(tmp_path: Path) -> None:
    root = _dump(tmp_path / "dump", 1)
    begun, done = threading.Event(), threading.Event()

    def transaction() -> None:
        with TURNS.take():
            begun.set()
            done.wait()

    other = threading.Thread(target=transaction)
    other.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if _read(root) else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    other.join()
    assert status == 0


def test_a_file_that_took_the_place_of_another_is_read_again(tmp_path: Path) -> None:
    root, other = _dump(tmp_path / "dump", 1), _dump(tmp_path / "other", 3)
    reader = IndexReader(index_file(root), root / "rank_0")
    (batch,) = reader.batches
    assert reader.table(batch).tensors
    run_sql("DELETE FROM batches")(index_file(other))
    shutil.move(index_file(other), index_file(root))
    with pytest.raises(Exception, match="no longer holds batch"):
        reader.table(batch)


def test_a_child_process_opens_its_own(tmp_path: Path) -> None:
    root = _dump(tmp_path / "dump", 4)
    expected = _read(root)
    child = os.fork()
    if child == 0:
        os._exit(0 if _read(root) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert _read(root) == expected


def test_threads_read_at_once(tmp_path: Path) -> None:
    roots = [_dump(tmp_path / str(number), 5) for number in range(2)] * 4
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(_read, roots))
    assert found == [found[0]] * len(roots)


def test_nothing_is_kept_of_a_dump_that_is_not_read(tmp_path: Path) -> None:
    root = _dump(tmp_path / "dump", 1)
    reader = IndexReader(index_file(root), root / "rank_0")
    assert _is_open(index_file(root))
    del reader
    assert not _is_open(index_file(root))


def test_the_steps_of_a_run_are_written_by_one_connection_that_no_child_has(tmp_path: Path, opened: list[str]) -> None:
    writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
    opened.clear()
    for number in range(3):
        file_step(writer, sample_step(number))
    assert not opened
    assert _is_open(index_file(tmp_path))
    child = os.fork()
    if child == 0:
        os._exit(1 if _is_open(index_file(tmp_path)) else 0)
    assert os.waitpid(child, 0)[1] == 0
    file_step(writer, sample_step(3))
    assert len(opened) == 1
    writer.close({"executed": 4})
    assert not _is_open(index_file(tmp_path))
    assert open_dump(str(tmp_path)).steps == (0, 1, 2, 3)


def test_what_was_filed_is_there_without_the_end_of_the_run(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        writer = new_writer(DumpPlan(path=tmp_path, saved_data="statistic"))
        for number in range(3):
            file_step(writer, sample_step(number))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert open_dump(str(tmp_path)).steps == (0, 1, 2)


def test_a_writer_finds_that_its_index_was_removed_or_replaced(tmp_path: Path) -> None:
    writer = new_writer(DumpPlan(path=tmp_path / "dump", saved_data="statistic"))
    file_step(writer, sample_step(0))
    other = _dump(tmp_path / "other", 2)
    shutil.move(index_file(other), index_file(tmp_path / "dump"))
    file_step(writer, sample_step(7))
    assert [batch.step for batch in IndexReader(index_file(tmp_path / "dump"), tmp_path).batches] == [0, 1, 7]
    index_file(tmp_path / "dump").unlink()
    with pytest.raises(DumpPathError, match="it was removed during the run"):
        file_step(writer, sample_step(8))


def _is_open(path: Path) -> bool:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return str(path) in [os.readlink(link) for link in links if os.path.exists(link)]


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
    kept.write_text("must not be deleted\n")
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
