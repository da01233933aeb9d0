"""The packed layout: reading returns what was written, whatever happens to the file of elements."""

from __future__ import annotations

import errno
import hashlib
import json
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import opdump
from opdump.errors import CorruptDumpError
from opdump.kernels import AppendFile, append_file
from opdump.layouts.packed import (
    ElementsFile,
    RecordHeader,
    encode_header,
    hash_of,
    read_elements,
    read_header,
    records_of,
)

_ARRAYS: tuple[npt.NDArray[Any], ...] = (
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.array(7, np.int64),
    np.zeros((0, 5), np.uint8),
    np.arange(40_000, dtype=np.float64),  # memory-mapped when it is read
    np.array([[True, False]]),
    np.arange(6, dtype=">i4")[::-2],
)


def _write(path: Path) -> list[int]:
    file = ElementsFile(path, 1 << 20)
    offsets = [file.append(f"Net/0/0/{number}.npy", array) for number, array in enumerate(_ARRAYS)]
    file.close()
    return offsets


def test_arrays_of_every_kind_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "1.pack"
    for offset, array in zip(_write(path), _ARRAYS, strict=True):
        header, elements = read_elements(path, offset)
        assert (header.shape, elements.dtype) == (array.shape, array.dtype.newbyteorder("<"))
        np.testing.assert_array_equal(elements, array)
        assert not elements.flags.writeable
        assert offset % 64 == 0
        assert header.offset % 64 == 0


def test_the_twin_in_python_writes_the_same_bytes(tmp_path: Path) -> None:
    if AppendFile is append_file.AppendFile:
        pytest.skip("no compiled kernels to compare with")
    written = []
    for name, kind in (("native", AppendFile), ("twin", append_file.AppendFile)):
        with (tmp_path / name).open("wb") as file:
            appended = kind(file.fileno(), 2, 1 << 16)
            for array in _ARRAYS:
                flat = np.ascontiguousarray(array)
                header = encode_header(flat.dtype.newbyteorder("<").name, array.shape, "a", flat.nbytes, bytes(16))
                appended.append(header, flat.ctypes.data if flat.nbytes else 0, flat.nbytes)
            appended.stop()
            assert appended.error == 0
            assert appended.bytes_written == appended.bytes_appended
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize("capacity", [1 << 16, 3 << 20, 1 << 26])
def test_blocks_of_any_size_come_where_they_belong(tmp_path: Path, capacity: int) -> None:
    # The page-aligned middle of a large block may bypass the page cache; everything else goes through it.
    random = np.random.default_rng(capacity)
    elements = random.integers(0, 256, 6 << 20, np.uint8)
    sizes = [int(size) for size in np.exp(random.uniform(0, np.log(5 << 20), 60))]
    written = []
    for kind in (AppendFile, append_file.AppendFile):
        path = tmp_path / kind.__module__
        with path.open("wb") as file:
            appended = kind(file.fileno(), 2, capacity)
            for number, size in enumerate(sizes):
                header = encode_header("uint8", (size,), f"{number}", size, bytes(16))
                offset = appended.append(header, elements.ctypes.data + number, size)
                assert offset == appended.bytes_appended - len(header) - size - -size % 64
                if number % 7 == 6:
                    appended.push()
            appended.stop()
            assert (appended.error, appended.bytes_written) == (0, path.stat().st_size)
        written.append(hashlib.sha256(path.read_bytes()).digest())
        headers = [found for _, found in records_of(path)]
        assert [found.shape for found in headers if isinstance(found, RecordHeader)] == [(size,) for size in sizes]
    assert written[0] == written[1]


def test_a_file_that_may_not_grow_ends_behind_whole_records(tmp_path: Path) -> None:
    path = tmp_path / "1.pack"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    elements = np.ones(1 << 20, np.uint8)
    with path.open("wb") as file:
        appended = AppendFile(file.fileno(), 2, 1 << 26)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((10 << 20) + 12_345, limit[1]))
        try:
            for number in range(20):
                header = encode_header("uint8", (1 << 20,), f"{number}", 1 << 20, bytes(16))
                appended.append(header, elements.ctypes.data, elements.nbytes)
            appended.stop()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert appended.error == errno.EFBIG
    assert path.stat().st_size <= (10 << 20) + 12_345
    assert sum(isinstance(header, RecordHeader) for _, header in records_of(path)) == 10


def test_a_file_cut_off_anywhere_holds_its_records_up_to_the_last_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "1.pack"
    offsets = _write(path)
    whole = path.read_bytes()
    ends = [*offsets[1:], len(whole)]
    cut = tmp_path / "cut.pack"
    # Every byte of the last three records, and a sample of the others.
    for size in (*range(0, offsets[3], 97), *range(offsets[4] - 1, len(whole) + 1)):
        cut.write_bytes(whole[:size])
        assert [offset for offset, header in records_of(cut) if isinstance(header, RecordHeader)] == [
            offset for offset, end in zip(offsets, ends, strict=True) if end <= size
        ]


def test_behind_a_damaged_record_the_next_whole_one_of_the_file_is_found(tmp_path: Path) -> None:
    other = tmp_path / "other.pack"
    _write(other)
    path = tmp_path / "1.pack"
    file = ElementsFile(path, 1 << 20)
    file.append("Net/0/0/first.npy", np.zeros(4))
    file.append("Net/0/0/pack.npy", np.fromfile(other, np.uint8))  # elements that look like records
    last = file.append("Net/0/0/last.npy", np.ones(4))
    file.close()
    whole = bytearray(path.read_bytes())
    second = read_header(path, 0).end
    whole[second + 70] ^= 1
    path.write_bytes(whole)
    found = [(offset, isinstance(header, RecordHeader)) for offset, header in records_of(path)]
    assert found == [(0, True), (second, False), (last, True)]


def _spoilt(header: bytes, field: int, value: bytes) -> bytes:
    """A header with another value in a field, and a matching hash."""
    made = bytearray(header)
    made[field : field + len(value)] = value
    made[56:64] = bytes(8)
    made[56:64] = struct.pack("<Q", hash_of(made))
    return bytes(made)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (0, b"OPDPACK2", "no record begins"),
        (8, struct.pack("<I", 2**31), "claims"),
        (8, struct.pack("<I", 65), "claims"),
        (8, struct.pack("<I", 0), "claims"),
        (12, struct.pack("<H", 65535), "claims"),
        (14, b"\xff", "claims"),
        (15, b"\xff", "claims"),
        (16, struct.pack("<Q", 2**64 - 1), "claims"),
        (16, struct.pack("<Q", 44), "claims 44 bytes"),
        (24, struct.pack("<Q", 64), "another position"),
        (64, struct.pack("<Q", 2**63), "claims 48 bytes"),
        (80, b"object!", "claims 48 bytes"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, field: int, value: bytes, said: str) -> None:
    path = tmp_path / "1.pack"
    _write(path)
    whole = bytearray(path.read_bytes())
    whole[:128] = _spoilt(bytes(whole[:128]), field, value)
    path.write_bytes(whole)
    with pytest.raises(CorruptDumpError, match=said):
        read_elements(path, 0)


def test_a_bit_that_fell_over_is_found(tmp_path: Path) -> None:
    path = tmp_path / "1.pack"
    offsets = _write(path)
    whole = path.read_bytes()
    header = read_header(path, offsets[0])
    for place in range(header.offset + header.data_size):
        spoilt = bytearray(whole)
        spoilt[place] ^= 4
        path.write_bytes(spoilt)
        with pytest.raises(CorruptDumpError):
            read_elements(path, 0)


@pytest.mark.parametrize("offset", [-64, 1, 64, 10**15])
def test_a_place_where_no_record_begins_is_refused(tmp_path: Path, offset: int) -> None:
    _write(tmp_path / "1.pack")
    with pytest.raises(CorruptDumpError, match="no record begins"):
        read_elements(tmp_path / "1.pack", offset)


def _train(path: Path, layout: str, **options: Any) -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    data = torch.randn(4, 8)
    with opdump.capture(path=path, layout=layout, saved_data="full", iteration="all", **options):
        for _ in range(3):
            optimizer.zero_grad()
            (network(data) ** 2).mean().backward()
            optimizer.step()


def _contents(path: Path) -> list[tuple[Any, ...]]:
    catalog = opdump.open(path)
    assert not catalog.problems
    return [
        (
            record.op.step,
            record.op.op_name,
            record.op.occurrence,
            record.io,
            record.slot,
            record.dtype,
            record.shape,
            None if record.payload is None else record.payload.to_host().tobytes(),
            sorted(record.statistics.items()),
        )
        for step in catalog.steps
        for record in catalog.tensors(step=step)
    ]


def test_a_packed_dump_reads_as_one_of_files(tmp_path: Path) -> None:
    _train(tmp_path / "packed", "packed")
    _train(tmp_path / "files", "mindspore-2.3")
    assert _contents(tmp_path / "packed") == _contents(tmp_path / "files")
    assert not list((tmp_path / "packed").rglob("*.npy"))
    assert json.loads((tmp_path / "packed/rank_0/.dump_metadata/config.json").read_text())["layout"] == "packed"


def test_elements_are_those_of_the_moment_in_which_they_were_read(tmp_path: Path) -> None:
    """The file keeps the values at the time of the call; in-place operators then overwrite the same memory."""
    values = torch.arange(100_000, dtype=torch.float32)
    with opdump.capture(path=tmp_path, layout="packed", saved_data="tensor"):
        for _ in range(20):
            values.add_(1)
    records = [record for record in opdump.open(tmp_path).tensors(step=0) if record.op.op_type == "add_"]
    times = sorted({record.op.timestamp for record in records})
    assert len(times) == 20
    for record in records:
        if record.shape:
            assert record.payload is not None
            assert record.payload.to_host()[0] == times.index(record.op.timestamp) + (record.io == "output")


def test_without_its_index_a_packed_dump_is_read_by_its_records(tmp_path: Path) -> None:
    _train(tmp_path, "packed")
    whole = {row[:5]: row[5:8] for row in _contents(tmp_path)}
    (tmp_path / "rank_0/.dump_metadata/index.sqlite").unlink()
    catalog = opdump.open(tmp_path)
    found = [record for step in catalog.steps for record in catalog.tensors(step=step)]
    assert len(found) == sum(row[2] is not None for row in whole.values())
    elements = sorted(row[2] for row in whole.values() if row[2] is not None)
    assert sorted(record.payload.to_host().tobytes() for record in found if record.payload) == elements


def test_without_its_index_only_a_damaged_record_is_left_out_and_reported(tmp_path: Path) -> None:
    _train(tmp_path, "packed")
    (tmp_path / "rank_0/.dump_metadata/index.sqlite").unlink()
    whole = list(opdump.open(tmp_path).tensors(step=0))
    file = tmp_path / "rank_0/elements/1.pack"
    file.chmod(0o600)
    spoilt = bytearray(file.read_bytes())
    spoilt[read_header(file, 0).end + 70] ^= 1
    file.write_bytes(spoilt)
    catalog = opdump.open(tmp_path)
    assert len(list(catalog.tensors(step=0))) == len(whole) - 1
    assert ["the header of a record is damaged" in str(problem) for problem in catalog.problems] == [True]
    file.write_bytes(file.read_bytes()[:-1])
    told = [str(problem) for problem in opdump.open(tmp_path).problems]
    assert len(told) == 2
    assert "it was cut off" in told[1]


def test_elements_have_the_name_of_their_type_without_an_order_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "1.pack"
    offset = _write(path)[0]
    assert repr(read_elements(path, offset)[1].dtype) == repr(np.dtype("float32"))


def test_two_runs_into_one_directory_have_a_file_each(tmp_path: Path) -> None:
    for _ in range(2):
        _train(tmp_path, "packed")
    assert sorted(path.name for path in (tmp_path / "rank_0/elements").iterdir()) == ["1.pack", "2.pack"]
    first, second = (opdump.open(tmp_path, run=number) for number in (1, 2))
    assert len(list(first.tensors(step=0))) == len(list(second.tensors(step=0))) > 0


def test_statistics_alone_make_no_file_of_elements(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path, layout="packed", saved_data="statistic"):
        torch.ones(3) + 1
    assert not (tmp_path / "rank_0/elements").exists()
    assert list(opdump.open(tmp_path).tensors(step=0))
