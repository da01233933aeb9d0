"""A failure of a writer is reported once, loses nothing silently, and leaves no call waiting."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opdump.errors import DumpPathError
from opdump.sink import DirectorySink
from opdump.sink import directory as directory_module
from opdump.sink.directory import Buffer, WriterThreads
from opdump.sink.open_directories import OpenDirectory, remedy_for

Write = Callable[[int, Sequence[Buffer]], int]

ERRORS = [
    MemoryError(),
    RecursionError("maximum recursion depth exceeded"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ValueError("embedded null byte"),
    KeyboardInterrupt(),
    SystemExit(3),
    OSError(errno.ENOSPC, "No space left on device"),
]


def _raising(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, after: int) -> None:
    """Make the writers raise `error` from file number `after` on."""
    written = iter(range(10**9))
    write_file = directory_module._write_file

    def failing(name: str, buffers: Sequence[Buffer], mode: int, directory: OpenDirectory, write: Write) -> int:
        if next(written) >= after:
            raise error
        return write_file(name, buffers, mode, directory, write)

    monkeypatch.setattr(directory_module, "_write_file", failing)


def _fill(sink: DirectorySink) -> None:
    """Write many times what a bounded queue accepts."""
    for number in range(500):
        sink.write_array(f"{number}.npy", np.full(1000, number))
    sink.flush()


def _whole_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.name.endswith(".part")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_in_a_writer_is_told_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    _raising(monkeypatch, error, after=5)
    sink = DirectorySink(tmp_path, capacity=20_000)
    with pytest.raises(DumpPathError) as told:
        _fill(sink)
    said = os.strerror(errno.ENOSPC) if isinstance(error, OSError) else type(error).__name__
    assert f"cannot be written ({said}" in str(told.value)
    assert remedy_for(error) in str(told.value)
    sink.close()
    files = _whole_files(tmp_path)
    assert len(files) == 5 == sink.files_written
    assert sink.files_lost > 0
    assert sink.failed
    for file in files:
        assert (np.load(file) == int(file.stem)).all()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_exception_that_no_call_told_is_told_by_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    _raising(monkeypatch, error, after=0)
    sink = DirectorySink(tmp_path)
    sink.write_small([("net/a.csv", b"a"), ("net/b.csv", b"b"), ("c.csv", b"c")])
    with pytest.raises(DumpPathError):
        sink.close()
    assert sink.files_lost == 3
    assert not _whole_files(tmp_path)


def test_a_file_written_at_once_fails_as_one_of_a_thread_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, MemoryError(), after=0)
    sink = DirectorySink(tmp_path)
    with pytest.raises(DumpPathError, match="MemoryError"):
        sink.write_bytes("a.csv", b"a")
    assert sink.files_lost == 1
    sink.close()


def test_where_no_thread_can_be_started_the_caller_writes(tmp_path: Path) -> None:
    # A stack that no address space has room for: the system refuses the thread, as at a limit on processes.
    program = """
import sys, threading, numpy as np
from pathlib import Path
from opdump.sink import DirectorySink
threading.stack_size(1 << 47)
try:
    threading.Thread(target=print).start()
except RuntimeError as error:
    print(error)
sink = DirectorySink(Path(sys.argv[1]), capacity=100)
for number in range(20):
    sink.write_array(f"{number}.npy", np.full(1000, number))
sink.flush()
sink.write_small([("a/x.csv", b"1"), ("a/y.csv", b"2")])
if sys.argv[2] == "close":
    sink.close()
print(sink.files_written, sink.files_lost, threading.active_count())
"""
    for ending in ("close", "leave"):
        root = tmp_path / ending
        done = subprocess.run(
            [sys.executable, "-c", program, str(root), ending], capture_output=True, text=True, timeout=900, check=False
        )
        assert done.stdout.splitlines() == ["can't start new thread", "22 0 1"], done.stderr
        assert done.stderr == ""
        assert len(_whole_files(root)) == 22


def test_work_that_dead_threads_left_in_the_queue_is_done_by_the_waiting_caller() -> None:
    # The threads die from an exception of the queue itself, not from a job.
    done: list[int] = []
    told: list[BaseException] = []
    threads: WriterThreads[int] = WriterThreads(
        done.append, lambda job, error: told.append(error), threads=1, capacity=10
    )
    take, dead = threads._next, threading.Barrier(2)

    def dying() -> tuple[int, int] | None:
        dead.wait()
        raise MemoryError

    threads._next = dying  # type: ignore[method-assign]
    threads.put(1, 10)
    dead.wait()
    threads._threads[0].join()
    threads._next = take  # type: ignore[method-assign]
    threads.wait_until_empty()
    assert done == [1]
    for number in range(2, 30):
        assert threads.put(number, 10)
    threads.stop()
    assert done == list(range(1, 30))
    assert [type(error) for error in told] == [MemoryError]
    assert not threads.put(30, 1)


def test_one_thread_that_dies_leaves_its_work_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(monkeypatch, SystemExit(), after=3)
    sink = DirectorySink(tmp_path, writers=4, capacity=10_000)
    with pytest.raises(DumpPathError, match="SystemExit"):
        _fill(sink)
    sink.close()
    assert sink.files_written == 3
