"""Files that are complete or absent, whichever way they are written, and temporary directories outside of the dump."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from opdump import DumpFile, write_dump_file
from opdump.comparison.result import Result
from opdump.dump_file import DumpTensor, HeldBytes, read_dump_file
from opdump.interpreter.leftovers import this_process
from opdump.reports.comparison import write_comparison
from opdump.sink import directory
from opdump.sink.directory import Buffer, FileBytes
from opdump.sink.outside import temporary_directory, whole_file

OUTPUT = DumpTensor(
    io="output", slot=0, data_type=1, format=2, shape=(3,), data=HeldBytes(np.arange(3, dtype="<f4").tobytes())
)
FILE = DumpFile(outputs=(OUTPUT,))


def test_a_file_has_what_was_written_and_the_rights_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with whole_file(path, 0o600) as unfinished:
        unfinished.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError), whole_file(path) as unfinished:
        unfinished.write_text("\ud800", encoding="utf-8")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError), whole_file(tmp_path / "directory"):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["directory"]


def test_a_dump_file_is_written_into_a_pipe(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit(pipe.read_bytes)
        write_dump_file(link, FILE)
    (tmp_path / "copy").write_bytes(found.result())
    assert read_dump_file(tmp_path / "copy").outputs[0].to_host().tolist() == [0, 1, 2]
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_file_of_a_comparison_is_written_into_the_pipe_that_has_its_name(tmp_path: Path) -> None:
    pipe = tmp_path / "compare.json"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit(pipe.read_text)
        write_comparison(tmp_path, Result(verdict="incomparable", a="a", b="b"), limit=5)
    assert json.loads(found.result())["verdict"] == "incomparable"
    assert pipe.is_fifo()
    assert (tmp_path / "compare.txt").is_file()


RANDOM = np.random.default_rng(0).integers(0, 256, 20 << 20, np.uint8)


def written(path: Path, ways: FileBytes, buffers: list[Buffer]) -> bytes:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        size = ways.write(descriptor, buffers)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == size
    finally:
        os.close(descriptor)
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 4096, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (4 << 20) + 4095, 17 << 20])
def test_all_sizes_in_one_part_or_several(tmp_path: Path, size: int) -> None:
    ways = FileBytes()
    whole = RANDOM[:size].tobytes()
    parts: list[Buffer] = [whole[:128], RANDOM[128:size], b""]
    parts = [part for part in parts if len(part)]
    cases: list[list[Buffer]] = [[whole], parts, [memoryview(whole)], [whole[: size // 3], whole[size // 3 :]]]
    for number, buffers in enumerate(cases):
        assert written(tmp_path / f"{number}", ways, buffers) == whole


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_writes_its_own_bytes(tmp_path: Path) -> None:
    ways = FileBytes()
    written(tmp_path / "before", ways, [RANDOM])  # this thread's buffer is already allocated
    children = []
    for number in range(4):
        child = os.fork()
        if child == 0:
            try:
                for again in range(8):
                    written(tmp_path / f"{number}-{again}", ways, [RANDOM[number:]])
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    for number in range(4):
        for again in range(8):
            assert (tmp_path / f"{number}-{again}").read_bytes() == RANDOM[number:].tobytes()


def test_what_the_system_refuses_is_written_through_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(descriptor: int, _: object) -> int:
        asked.append(descriptor)
        return 0

    asked: list[int] = []
    monkeypatch.setattr(directory, "_write_past_cache", refusing)
    ways = FileBytes()
    for number in range(3):
        assert written(tmp_path / f"{number}", ways, [RANDOM]) == RANDOM.tobytes()
    assert len(asked) <= 1  # and is not tried again


def test_a_write_that_ends_in_the_middle_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2 + 1]))
    assert written(tmp_path / "file", FileBytes(), [RANDOM[:128], RANDOM[128:]]) == RANDOM.tobytes()


def test_a_file_that_may_not_grow_gives_the_error(tmp_path: Path) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((6 << 20) + 123, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            written(tmp_path / "file", FileBytes(), [RANDOM])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert raised.value.errno == errno.EFBIG


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="this system cannot bypass its page cache")
@pytest.mark.parametrize(("past", "through", "expected"), [(0.010, 0.001, False), (0.003, 0.001, True)])
def test_the_faster_way_is_taken_and_the_other_tried_now_and_then(
    past: float, through: float, *, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    taken: list[bool] = []

    def past_cache(_: int, views: list[memoryview]) -> int:
        nonlocal now
        now += past
        taken.append(True)
        return sum(map(len, views))

    def through_cache(_: int, views: list[memoryview]) -> int:
        nonlocal now
        if views:
            now += through
            taken.append(False)
        return 0

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(directory, "_write_past_cache", past_cache)
    monkeypatch.setattr(directory, "_write_views", through_cache)
    ways = FileBytes()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(200):
            ways.write(file.fileno(), [RANDOM])
    assert taken[:4] == [True, False, True, False]
    assert [place for place, way in enumerate(taken[4:]) if way is not expected] == [15, 47, 111]


MAKES = """
import os, sys
from pathlib import Path
from opdump.sink.outside import temporary_directory
folder = temporary_directory("kind", Path(sys.argv[1]))
(folder / "file").write_text("1")
print(folder, flush=True)
sys.stdin.read()
"""


def started(where: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has created a directory, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKES, str(where)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_directories_of_dead_processes_are_cleared_and_no_others(tmp_path: Path) -> None:
    killed, left = started(tmp_path)
    working, used = started(tmp_path)
    with killed, working:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        place, number, start = this_process().split("-")
        others = [
            tmp_path / f"opdump-kind--{place[::-1]}-{killed.pid}-{start}--of_another_system",
            tmp_path / f"opdump-other--{left.name.split('--')[1]}--of_another_kind",
            tmp_path / "opdump-kind--without_a_process",
            tmp_path / f"opdump-kind--{left.name.split('--')[1]}--1--2",
        ]
        reused = tmp_path / f"opdump-kind--{place}-{number}-{int(start) - 1}--of_a_process_with_this_id_before"
        target = tmp_path / "target"
        for folder in (*others, reused, target):
            folder.mkdir()
        link = tmp_path / f"opdump-kind--{left.name.split('--')[1]}--link"
        link.symlink_to(target)
        own = temporary_directory("kind", tmp_path)
        assert (left.exists(), reused.exists()) == (False, False)
        assert all(folder.is_dir() for folder in (own, used, *others, target, link))
        assert own.stat().st_mode & 0o777 == 0o700
        assert working.stdin is not None
        working.stdin.close()


def test_a_directory_of_a_dead_process_stays_as_long_as_others_use_it(tmp_path: Path) -> None:
    process, left = started(tmp_path)
    with process:
        process.kill()
        process.wait()
        temporary_directory("kind", tmp_path, is_in_use=lambda folder: (folder / "file").exists())
        assert left.is_dir()
        (left / "file").unlink()
        temporary_directory("kind", tmp_path, is_in_use=lambda folder: (folder / "file").exists())
        assert not left.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="must create a directory of another user")
def test_a_directory_of_another_user_stays(tmp_path: Path) -> None:
    process, left = started(tmp_path)
    with process:
        process.kill()
        process.wait()
        os.chown(left, 12345, -1)
        temporary_directory("kind", tmp_path)
        assert left.is_dir()


FORKS = """
import os, sys
from pathlib import Path
from opdump.sink.outside import remove_own, temporary_directory
folder = temporary_directory("kind", Path(sys.argv[1]))
if (child := os.fork()) == 0:
    remove_own(folder)
    os._exit(0)
os.waitpid(child, 0)
print(folder.is_dir())
remove_own(folder)
print(folder.is_dir())
"""


def test_a_forked_process_leaves_the_directory_of_its_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
