"""An index is opened once for many calls, and a connection that stays open disturbs nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opdump.catalog.catalog import open_dump
from opdump.errors import DumpPathError
from opdump.index.opening import TURNS
from opdump.index.reader import IndexReader
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_step, file_steps, new_writer
from tests.layouts.index_files import index_file, run_sql


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


def test_a_file_that_took_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
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


def test_nothing_is_kept_of_a_dump_that_nobody_reads(tmp_path: Path) -> None:
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
