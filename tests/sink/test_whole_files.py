"""Files that a user names appear only when complete; a path that is not a regular file keeps its type."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from opdump import DumpFile, write_dump_file
from opdump.comparison.result import Result
from opdump.dump_file import DumpTensor, HeldBytes, read_dump_file
from opdump.reports.comparison import write_comparison
from opdump.sink.outside import whole_file

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
