"""Large files are complete whichever way they are written, and the faster way is found."""

from __future__ import annotations

import errno
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from opdump.sink import directory
from opdump.sink.directory import Buffer, FileBytes

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
