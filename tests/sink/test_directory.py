"""The directory sink: complete files or none, bounded memory, errors that reach the caller."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from opdump.errors import DumpPathError
from opdump.sink import DirectorySink
from opdump.sink import directory as directory_module
from opdump.sink.directory import Buffer, WriterThreads
from opdump.sink.open_directories import OpenDirectories, OpenDirectory, remedy_for

Write = Callable[[int, Sequence[Buffer]], int]


def _run(program: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=900, check=False
    )


def _files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_files_are_there_after_close_whole_and_read_only(tmp_path: Path) -> None:
    root = tmp_path / "dump" / "rank_0"
    sink = DirectorySink(root)
    for number in range(300):
        sink.write_array(f"Net/0/{number % 3}/x{number}.npy", np.full((number, 3), number, dtype="f4"))
    sink.write_bytes("graphs/a.ir", b"text")
    sink.close()
    assert len(_files(root)) == 301 == sink.files_written
    assert sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) == sink.bytes_written
    for number in range(300):
        found = np.load(root / f"Net/0/{number % 3}/x{number}.npy")
        np.testing.assert_array_equal(found, np.full((number, 3), number, dtype="f4"))
    assert stat.S_IMODE((root / "graphs/a.ir").stat().st_mode) == 0o400
    for directory in (root, root / "Net", root / "Net/0/2", tmp_path / "dump"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_how_long_a_caller_waits_for_the_disk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(descriptor: int, views: list[memoryview]) -> int:
        time.sleep(0.05)
        return writev(descriptor, views)

    writev = os.writev
    for name, write in (("quick", writev), ("slow", slow)):
        monkeypatch.setattr(os, "writev", write)
        sink = DirectorySink(tmp_path / name, writers=1, capacity=10_000)
        for number in range(6):
            sink.write_array(f"{number}.npy", np.full(1000, number))
        waited = sink.seconds_waited
        sink.close()
        assert (waited >= 0.2) == (name == "slow"), waited


def test_write_bytes_replaces_what_had_the_name(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    sink.write_bytes("a/x.csv", b"one")
    sink.write_bytes("a/x.csv", b"two")
    sink.close()
    assert (tmp_path / "a/x.csv").read_bytes() == b"two"


def test_flush_waits_for_every_file(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    for number in range(100):
        sink.write_array(f"{number}.npy", np.zeros(10_000))
    sink.flush()
    assert len(_files(tmp_path)) == 100
    sink.close()
    sink.close()


def test_a_full_queue_makes_the_caller_wait(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path, writers=1, capacity=3_000_000)
    most = 0
    for number in range(40):
        sink.write_array(f"{number}.npy", np.zeros(125_000))
        most = max(most, sink._state.threads.queued_bytes)
    sink.close()
    assert most <= 3_000_000
    assert len(_files(tmp_path)) == 40


def test_an_array_larger_than_the_queue_is_written(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path, capacity=100)
    for number in range(5):
        sink.write_array(f"{number}.npy", np.zeros(1000))
    sink.close()
    assert len(_files(tmp_path)) == 5


def test_several_threads_may_write(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path, capacity=100_000)

    def write(thread: int) -> None:
        for number in range(100):
            sink.write_array(f"{thread}/{number}.npy", np.full(100, thread))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert len(_files(tmp_path)) == 400


def test_many_small_files_are_queued_at_once(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path, file_mode=0o600, lazy=True)
    sink.write_small([])
    assert not list(tmp_path.iterdir())
    sink.write_small([(f"{number % 2}/{number}.csv", b"%d" % number) for number in range(100)])
    sink.flush()
    assert all((tmp_path / f"{number % 2}/{number}.csv").read_bytes() == b"%d" % number for number in range(100))
    assert len(_files(tmp_path)) == sink.files_written == 100
    assert sink.bytes_written == 190
    assert (tmp_path / "0/0.csv").stat().st_mode & 0o777 == 0o600
    sink.close()


def test_of_small_files_those_before_a_failure_are_whole(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    (tmp_path / "Net").write_text("a file in the way")
    sink.write_small([("a.csv", b"a"), ("Net/b.csv", b"b"), ("c.csv", b"c")])
    with pytest.raises(DumpPathError, match="Net"):
        sink.flush()
    with pytest.raises(DumpPathError, match="Net"):
        sink.write_small([("d.csv", b"d")])
    sink.close()
    assert _files(tmp_path) == ["Net", "a.csv"]
    assert (tmp_path / "a.csv").read_bytes() == b"a"


def test_small_files_of_a_new_directory_appear_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(name: str, buffers: Sequence[Buffer], mode: int, directory: OpenDirectory, write: Write) -> int:
        seen.append((tmp_path / "net/1/0").exists())
        return write_file(name, buffers, mode, directory, write)

    write_file = directory_module._write_file
    monkeypatch.setattr(directory_module, "_write_file", watched)
    sink = DirectorySink(tmp_path)
    for step in (0, 0, 1):
        sink.write_small([(f"net/1/{step}/{name}.csv", name.encode()) for name in ("a", "b", "c")])
        sink.flush()
    sink.close()
    assert seen[:3] == [False] * 3, "a new directory is invisible until it is complete"
    assert seen[3:6] == [True] * 3, "an existing directory gets its files one by one"
    assert _files(tmp_path) == ["net/1/0/a.csv", "net/1/0/b.csv", "net/1/0/c.csv"] + [
        f"net/1/1/{name}.csv" for name in ("a", "b", "c")
    ]
    assert (tmp_path / "net/1/0").stat().st_mode & 0o777 == 0o700
    assert sink.files_written == sink.bytes_written == 9


def test_a_directory_that_another_process_made_meanwhile_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interfering(name: str, buffers: Sequence[Buffer], mode: int, directory: OpenDirectory, write: Write) -> int:
        (tmp_path / "net").mkdir(exist_ok=True)
        (tmp_path / "net/other.csv").write_text("another process")
        return write_file(name, buffers, mode, directory, write)

    write_file = directory_module._write_file
    monkeypatch.setattr(directory_module, "_write_file", interfering)
    sink = DirectorySink(tmp_path)
    sink.write_small([("net/a.csv", b"a"), ("net/b.csv", b"b")])
    sink.close()
    assert _files(tmp_path) == ["net/a.csv", "net/b.csv", "net/other.csv"]


def test_of_a_new_directory_those_before_a_failure_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, buffers: Sequence[Buffer], mode: int, directory: OpenDirectory, write: Write) -> int:
        written = write_file(name, buffers, mode, directory, write)
        if name.endswith("c.csv"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written

    write_file = directory_module._write_file
    monkeypatch.setattr(directory_module, "_write_file", full)
    sink = DirectorySink(tmp_path)
    sink.write_small([(f"net/{name}.csv", b"1") for name in ("a", "b", "c", "d")])
    with pytest.raises(DumpPathError, match="No space left"):
        sink.close()
    assert _files(tmp_path) == ["net/a.csv", "net/b.csv"]
    assert sink.files_written == 2


def test_a_directory_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpPathError, match="dump into a directory that this user can write"):
        DirectorySink(tmp_path / "file" / "rank_0")


def test_a_failure_is_raised_at_the_next_calls_and_not_again_by_close(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    (tmp_path / "Net").write_text("a file in the way")
    sink.write_array("Net/0/x.npy", np.zeros(3))
    with pytest.raises(DumpPathError, match="Net"):
        sink.flush()
    with pytest.raises(DumpPathError, match="Net"):
        sink.write_array("other.npy", np.zeros(3))
    sink.close()
    assert _files(tmp_path) == ["Net"]


def test_close_raises_a_failure_that_was_not_raised_before(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    (tmp_path / "Net").write_text("a file in the way")
    sink.write_array("Net/x.npy", np.zeros(3))
    with pytest.raises(DumpPathError):
        sink.close()


def test_a_disk_that_fills_up_leaves_whole_files_and_an_error(tmp_path: Path) -> None:
    # A limit on the size of a file stands in for the full disk: writing stops halfway with a system error.
    program = """
import resource, sys, numpy as np
from pathlib import Path
from opdump.errors import DumpPathError
from opdump.sink import DirectorySink
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
sink = DirectorySink(Path(sys.argv[1]))
for number in range(5):
    sink.write_array(f"{number}.npy", np.zeros(1000))
sink.flush()
try:
    sink.write_array("big.npy", np.zeros(100_000))
    sink.flush()
except DumpPathError as error:
    print(error)
sink.close()
"""
    done = _run(program, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "big.npy: cannot be written (File too large) after 5 files" in done.stdout
    assert "free space" in done.stdout
    assert _files(tmp_path) == ["0.npy", "1.npy", "2.npy", "3.npy", "4.npy"]


def test_kill_9_leaves_only_whole_files(tmp_path: Path) -> None:
    program = """
import sys, numpy as np
from pathlib import Path
from opdump.sink import DirectorySink
sink = DirectorySink(Path(sys.argv[1]), capacity=10_000_000)
print("begun", flush=True)
number = 0
while True:
    sink.write_array(f"{number}.npy", np.full(50_000, number))
    number += 1
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while len(_files(tmp_path)) < 20:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    names = [name for name in _files(tmp_path) if not name.startswith(".")]
    assert len(names) >= 18
    for name in names:
        assert np.load(tmp_path / name)[0] == int(name.removesuffix(".npy"))


def test_ctrl_c_in_a_waiting_caller_leaves_a_sink_that_closes(tmp_path: Path) -> None:
    program = """
import os, signal, sys, threading, numpy as np
from pathlib import Path
from opdump.sink import DirectorySink
sink = DirectorySink(Path(sys.argv[1]), writers=1, capacity=1)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
number = 0
try:
    while True:
        sink.write_array(f"{number}.npy", np.full(1000, number))
        number += 1
except KeyboardInterrupt:
    sink.close()
    files = len(list(Path(sys.argv[1]).iterdir()))
    print(abs(files - number) <= 1, not list(Path(sys.argv[1]).glob(".*")))
"""
    done = _run(program, str(tmp_path))
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_what_is_queued_is_written_when_the_program_ends_without_closing(tmp_path: Path) -> None:
    program = """
import sys, numpy as np
from pathlib import Path
from opdump.sink import DirectorySink
sink = DirectorySink(Path(sys.argv[1]))
for number in range(200):
    sink.write_array(f"{number}.npy", np.zeros(10_000))
"""
    assert _run(program, str(tmp_path)).returncode == 0
    assert len(_files(tmp_path)) == 200


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_neither_writes_nor_hangs(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)
    for number in range(50):
        sink.write_array(f"{number}.npy", np.zeros(10_000))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            sink.write_array("from_the_child.npy", np.zeros(3))
            sink.write_bytes("from_the_child.csv", b"")
            sink.flush()
            sink.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    sink.close()
    assert len(_files(tmp_path)) == 50


def test_a_directory_may_be_forgotten_while_one_writes_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that needs many directories does this; the old descriptor's number may then belong to another
    file.
    """

    def forgetting(self: OpenDirectories, relative: str) -> OpenDirectory:
        found = find(self, relative)
        self._open.clear()
        return found

    find = OpenDirectories.at
    monkeypatch.setattr(OpenDirectories, "at", forgetting)
    sink = DirectorySink(tmp_path)
    sink.append("a/b/c.csv", b"1")
    sink.append("a/b/c.csv", b"2")
    sink.write_small([("a/b/d.csv", b"3"), ("a/e/f.csv", b"4"), ("a/e/g.csv", b"5")])
    sink.write_array("a/b/h.npy", np.ones(3))
    sink.flush()
    assert sink.read("a/b/c.csv") == b"12"
    assert sink.exists("a/b/d.csv")
    sink.close()
    assert _files(tmp_path) == ["a/b/c.csv", "a/b/d.csv", "a/b/h.npy", "a/e/f.csv", "a/e/g.csv"]


def test_threads_that_append_below_many_directories_lose_nothing(tmp_path: Path) -> None:
    sink = DirectorySink(tmp_path)

    def append(thread: int) -> None:
        for number in range(60):
            sink.append(f"{thread}/{number}/history.csv", b"%d\n" % number)
            sink.write_array(f"{thread}/{number}/x.npy", np.full(10, thread))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close()
    assert len(_files(tmp_path)) == 480
    for first in range(4):
        assert [(tmp_path / f"{first}/{number}/history.csv").read_bytes() for number in range(60)] == [
            b"%d\n" % number for number in range(60)
        ]


def test_a_file_is_taken_over_with_the_permissions_of_a_dump(tmp_path: Path) -> None:
    source = tmp_path / "source.npy"
    source.write_bytes(b"elements")
    sink = DirectorySink(tmp_path / "dump")
    assert sink.take_over("net/0/a.npy", str(source))
    assert not source.exists()
    assert not sink.take_over("net/0/b.npy", str(source)), "it no longer exists"
    sink.close()
    taken = tmp_path / "dump/net/0/a.npy"
    assert (taken.read_bytes(), taken.stat().st_mode & 0o777) == (b"elements", 0o400)
    assert (sink.files_written, sink.bytes_written, sink.files_lost) == (1, 8, 0)


def test_no_link_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "target.npy").write_bytes(b"elements")
    (tmp_path / "link.npy").symlink_to(tmp_path / "target.npy")
    sink = DirectorySink(tmp_path / "dump")
    assert not sink.take_over("a.npy", str(tmp_path / "link.npy"))
    sink.close()
    assert sink.files_written == 0


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
def test_any_exception_in_a_writer_is_raised_by_the_next_call(
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
def test_an_exception_that_no_call_raised_is_raised_by_close(
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
