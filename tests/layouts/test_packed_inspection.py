"""Checking the headers of all records of a step at once gives the same result as checking them one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import opdump
from opdump.checks import Thresholds
from opdump.errors import CorruptDumpError
from opdump.layouts.packed import ExpectedHeaders, PackedPayload, are_as_expected, encode_header, hash_of
from opdump.plan import DumpPlan
from opdump.reports.findings import ChosenOperators, check_dump
from opdump.testing import sample_step
from tests.layouts.filing import file_in_layout


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two steps, with a complete index and one file of elements."""
    path = tmp_path / "dump"
    file_in_layout(DumpPlan(path=path, saved_data="full", layout="packed"), [sample_step(0), sample_step(1)])
    elements(path).chmod(0o600)
    return path


def elements(dump: Path) -> Path:
    return dump / "rank_0/elements/1.pack"


def payloads(dump: Path) -> list[PackedPayload]:
    return [each.payload for each in opdump.open(dump) if isinstance(each.payload, PackedPayload)]


def kinds_of(found: Sequence[PackedPayload]) -> list[tuple[str, tuple[int, ...]]]:
    """The dtype and shape in the index; for a sample, the number of elements in the file."""
    return [(each.dtype, each.shape or ()) for each in found]


def expected_of(found: Sequence[PackedPayload]) -> tuple[npt.NDArray[np.int64], ExpectedHeaders]:
    """The offsets of these records, and their expected headers."""
    expected = ExpectedHeaders.of(kinds_of(found))
    return np.array([each.offset for each in found], np.int64), expected


def test_sound_headers_are_as_expected(dump: Path) -> None:
    found = payloads(dump)
    offsets, expected = expected_of(found)
    assert len({each.dtype for each in found}) > 1
    assert len({each.shape for each in found}) > 1
    assert are_as_expected(elements(dump), offsets, expected)
    odd = np.arange(1, len(found), 2)
    assert are_as_expected(elements(dump), offsets[odd], expected.at(odd))


def test_each_byte_of_a_header_counts(dump: Path) -> None:
    found = payloads(dump)
    offsets, expected = expected_of(found)
    sound = elements(dump).read_bytes()
    payload = found[len(found) // 2]
    length = payload.header().offset - payload.offset
    for place in range(payload.offset, payload.offset + length):
        damaged = bytearray(sound)
        damaged[place] ^= 1 << place % 8
        elements(dump).write_bytes(damaged)
        assert not are_as_expected(elements(dump), offsets, expected), place - payload.offset
        with pytest.raises(CorruptDumpError):
            payload.inspect()


@pytest.mark.parametrize("of", ["dtype", "shape"])
def test_a_tensor_of_another_kind_is_not_as_expected(of: str, dump: Path) -> None:
    found = payloads(dump)
    offsets, _ = expected_of(found)
    kinds = kinds_of(found)
    dtype, shape = kinds[0]
    kinds[0] = ("int16" if dtype != "int16" else "int8", shape) if of == "dtype" else (dtype, (*shape, 1))
    expected = ExpectedHeaders.of(kinds)
    assert not are_as_expected(elements(dump), offsets, expected)


def test_a_file_cut_off_anywhere_behind_its_last_record_is_not_as_expected(dump: Path) -> None:
    found = payloads(dump)
    offsets, expected = expected_of(found)
    sound = elements(dump).read_bytes()
    for size in range(int(offsets.max()), len(sound)):
        elements(dump).write_bytes(sound[:size])
        assert not are_as_expected(elements(dump), offsets, expected), size


def test_many_tensors_at_one_large_header_take_little_memory(tmp_path: Path) -> None:
    name = "x" * 60_000
    content = bytearray(encode_header("float32", (1,), name, 4, bytes(16)))
    content[56:64] = hash_of(content).to_bytes(8, "little")
    path = tmp_path / "1.pack"
    path.write_bytes(content + bytes(64))
    count = 2000
    expected = ExpectedHeaders.of([("float32", (1,))] * count)
    tracemalloc.start()
    try:
        assert are_as_expected(path, np.zeros(count, np.int64), expected)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [("float32", (1,) * 65), ("float32", (2**40, 2**40)), ("text", (1,))])
def test_a_tensor_that_no_record_can_hold_is_not_as_expected(kind: tuple[str, tuple[int, ...]], dump: Path) -> None:
    found = payloads(dump)
    offsets, _ = expected_of(found)
    expected = ExpectedHeaders.of([*kinds_of(found), kind])
    assert are_as_expected(elements(dump), offsets, expected.at(np.arange(len(found))))
    assert not are_as_expected(elements(dump), offsets, expected.at(np.arange(1, len(found) + 1)))


@pytest.mark.parametrize("offset", [-64, 1, 1 << 40])
def test_a_place_outside_of_the_file_is_none(offset: int, dump: Path) -> None:
    offsets, expected = expected_of(payloads(dump))
    offsets[-1] = offset
    assert not are_as_expected(elements(dump), offsets, expected)


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def cut_within_zeros(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def damaged(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("harm", [cut_off, cut_within_zeros, emptied, damaged, Path.unlink])
def test_damage_is_reported_as_it_is_by_records(
    harm: Callable[[Path], None], dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = check_dump(opdump.open(dump), Thresholds())
    assert not sound.problems
    harm(elements(dump))
    found = check_dump(opdump.open(dump), Thresholds())
    monkeypatch.setattr(ChosenOperators, "can_choose", staticmethod(lambda _table: False))
    assert found == check_dump(opdump.open(dump), Thresholds())
    assert found.problems
