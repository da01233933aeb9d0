"""A tensor that nothing has written is read once per step, and the dump is the same as with `reread`."""

from __future__ import annotations

import csv
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import opdump
from opdump.adapters.torch import reader
from opdump.adapters.torch.adapter import TorchAdapter
from opdump.kernels import BatchSummarizer
from opdump.plan import Captures, DumpPlan
from tests.torch.programs import PROGRAMS

_STATISTICS: Mapping[str, Any] = {
    "saved_data": "statistic",
    "statistic_category": ["max", "min", "avg", "l2norm", "md5"],
}
_LARGE = 1 << 18


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember small tensors too."""
    monkeypatch.setattr(reader, "WORTH_KNOWING", 8)
    monkeypatch.setattr(reader, "WORTH_KNOWING_DIGEST", 8)


@contextmanager
def _rows_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of tensors that were read in each step."""
    read: list[int] = []

    forget = reader.TensorReader.clear

    def clear(self: reader.TensorReader) -> None:
        read.append(len(self.table))
        forget(self)

    with monkeypatch.context() as patched:
        patched.setattr(reader.TensorReader, "clear", clear)
        yield read


def _rows(path: Path) -> list[dict[str, str]]:
    rows = []
    for file in sorted(path.rglob("statistic.csv")):
        with file.open(newline="") as text:
            rows += [{key: value for key, value in row.items() if key != "Timestamp"} for row in csv.DictReader(text)]
    assert rows
    return rows


def _dumped(program: Callable[[], object], path: Path, **settings: Any) -> list[dict[str, str]]:
    with opdump.capture(path=path, **{**_STATISTICS, **settings}):
        program()
    return _rows(path)


def _of(rows: list[dict[str, str]], op_type: str, io: str = "input") -> dict[str, str]:
    return next(row for row in rows if row["Op Type"] == op_type and row["IO"] == io)


@pytest.mark.parametrize("program", sorted(PROGRAMS))
@pytest.mark.parametrize("digests", [True, False])
def test_the_dump_is_the_same(program: str, digests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {} if digests else {"statistic_category": ["max", "min", "avg", "l2norm"]}
    with _rows_read(monkeypatch) as once:
        found = _dumped(lambda: PROGRAMS[program](steps=2), tmp_path / "once", **settings)
    with _rows_read(monkeypatch) as each_time:
        again = _dumped(lambda: PROGRAMS[program](steps=2), tmp_path / "again", reread=True, **settings)
    assert found == again
    assert sum(once) < 0.8 * sum(each_time)


def _in_place() -> None:
    x = torch.arange(64.0)
    view = x.view(8, 8)
    (x + 1).sum()
    view[2:4].mul_(3)
    (x + 1).sum()
    x.detach().neg_()
    x.data.add_(5)  # its writes are counted separately
    (x + 1).sum()
    torch._foreach_mul_([x, view], 2)
    (x + 1).sum()
    torch.add(x, 1, out=x)
    (x + 1).sum()
    np.copyto(x.numpy(), 7)
    (x + 1).sum()


def _running_statistics() -> None:
    net = torch.nn.BatchNorm1d(16)
    for _ in range(3):
        net(torch.arange(64.0).view(4, 16)).sum()


def _inference() -> None:
    with torch.inference_mode():
        x = torch.arange(64.0)
        (x + 1).sum()
        x.mul_(2)
        (x + 1).sum()


def _resized() -> None:
    x = torch.arange(64.0)
    (x + 1).sum()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(256)
    ctypes.memset(x.data_ptr(), 0, 256)
    x.copy_(torch.ones(64))
    (x + 1).sum()


def _memory_again() -> None:
    for each in range(8):
        x = torch.full((_LARGE,), float(each))
        (x + 1).sum()
        del x


def _failing() -> None:
    x = torch.arange(64.0)
    for _ in range(2):
        (x + 1).sum()
        with pytest.raises(RuntimeError):
            x.add_(torch.ones(63))


@torch.library.custom_op("opdump_one_look::doubles", mutates_args=())
def _doubles(x: Tensor) -> Tensor:
    x.untyped_storage().copy_((x.clone() * 2).untyped_storage())  # its schema does not declare this write
    return x.sum()


def _custom() -> None:
    x = torch.arange(64.0)
    (x + 1).sum()
    _doubles(x)
    (x + 1).sum()


def _of_a_thread() -> None:
    x = torch.arange(64.0)
    (x + 1).sum()
    thread = threading.Thread(target=x.mul_, args=(2,))
    thread.start()
    thread.join()
    (x + 1).sum()


def _shared() -> None:
    x = torch.arange(64.0).share_memory_()
    (x + 1).sum()
    ctypes.memset(x.data_ptr() + 80, 1, 1)  # as another process would
    (x + 1).sum()


def _numpys() -> None:
    memory = np.arange(float(_LARGE))
    x = torch.from_numpy(memory)
    (x + 1).sum()
    memory[12345] = np.nan
    (x + 1).sum()


def _twice_in_torch() -> None:
    x = torch.arange(float(_LARGE))
    (x + 1).sum()
    other: Tensor = torch.utils.dlpack.from_dlpack(x)  # a separate storage on the same memory
    other[12345] = torch.nan
    (x + 1).sum()


_WRITERS = (
    *(_in_place, _running_statistics, _inference, _resized, _memory_again, _failing, _custom, _of_a_thread, _shared),
    _numpys,
    _twice_in_torch,
)


@pytest.mark.parametrize("program", _WRITERS, ids=lambda program: program.__name__)
def test_what_was_written_is_read_again(program: Callable[[], object], tmp_path: Path) -> None:
    assert _dumped(program, tmp_path / "once") == _dumped(program, tmp_path / "again", reread=True)


def _written_by(write: Callable[[Tensor], object]) -> Callable[[], object]:
    def program() -> None:
        x = torch.arange(float(_LARGE))
        torch.neg(x)
        write(x)
        torch.abs(x)

    return program


_UNSEEN: Mapping[str, Callable[[Tensor], object]] = {
    "ctypes": lambda x: ctypes.memset(x.data_ptr(), 0, x.nbytes // 2),
    "dlpack": lambda x: np.copyto(np.from_dlpack(x), 1),
}


@pytest.mark.parametrize("writer", _UNSEEN)
def test_the_fingerprint_finds_large_writes_outside_of_operators(writer: str, tmp_path: Path) -> None:
    rows = _dumped(_written_by(_UNSEEN[writer]), tmp_path)
    assert _of(rows, "neg")["MD5"] != _of(rows, "abs")["MD5"]


def test_a_write_of_one_element_through_an_address_is_found_only_with_reread(tmp_path: Path) -> None:
    # The fingerprint is a sample: docs/performance.md states this limit.
    program = _written_by(lambda x: ctypes.memset(x.data_ptr() + 4 * 100_001, 255, 4))
    once, again = _dumped(program, tmp_path / "once"), _dumped(program, tmp_path / "again", reread=True)
    assert _of(once, "abs")["Max Value"] != "nan"
    assert _of(again, "abs")["Max Value"] == "nan"


@pytest.mark.skipif(BatchSummarizer is None, reason="without compiled kernels, every tensor is read each time")
@pytest.mark.parametrize("captures", ["overflow", "watch"])
def test_modes_that_watch_memory_read_each_time(
    captures: Captures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def summarizer(*arguments: Any) -> Any:
        made.append(arguments[4:])
        return BatchSummarizer(*arguments)

    monkeypatch.setattr(reader, "BatchSummarizer", summarizer)
    for mode in ("data", captures):
        TorchAdapter().reader(DumpPlan(path=tmp_path, captures=mode, saved_data="statistic"))
    assert made[0][0] is not None
    assert made[1:] == [(None, None)]
