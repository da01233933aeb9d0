"""Any file is read correctly or refused with one named error, quickly and in little memory."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdump import errors
from opdump.dump_file import DumpFile, DumpTensor, read_dump_file
from opdump.dump_file.reading import varint
from opdump.errors import CorruptDumpError, OpdumpError, UndecodableTensorError
from tests.dump_file.samples import DATA, DEVICE, NanoTensor, dump_files, encoded, nano_file

HOSTILE = DATA / "hostile"
ERRORS: dict[str, tuple[str, str]] = json.loads((HOSTILE / "errors.json").read_text(encoding="utf-8"))
_MOST_MEMORY = 16 << 20


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "Add.add.1.2.1700000000000000"


def _outcome(path: Path, data: bytes) -> DumpFile | None:
    """The file if it can be read, after checking it against the bytes; None if it is corrupt."""
    path.write_bytes(data)
    try:
        file = read_dump_file(path)
    except CorruptDumpError:
        with pytest.raises(CorruptDumpError, match=path.name):
            read_dump_file(path)
        return None
    assert sum(tensor.size for tensor in file.tensors) <= len(data)
    for tensor in file.tensors:
        try:
            array = tensor.to_host()
        except UndecodableTensorError:
            continue
        assert array.nbytes <= 8 * tensor.size
        assert bytes(tensor.data.read()) in data
    if file == DumpFile(version=""):  # the file declared nothing, so nothing can be written
        return file
    # The decoded contents equal those of a file that is written from them.
    path.write_bytes(encoded(replace(file, variant="2.0") if file.variant == "nano" else file))
    again = read_dump_file(path)
    assert replace(again, variant=file.variant) == file
    return file


def _read_all(path: Path) -> None:
    for tensor in read_dump_file(path).tensors:
        tensor.to_host()


@pytest.mark.parametrize("name", ERRORS)
def test_a_hostile_file_gives_its_error_in_little_memory(name: str) -> None:
    wanted, message = ERRORS[name]
    path = HOSTILE / name
    tracemalloc.start()
    try:
        with pytest.raises(OpdumpError) as caught:
            _read_all(path)
        assert tracemalloc.get_traced_memory()[1] < _MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert type(caught.value) is getattr(errors, wanted)
    assert message in str(caught.value)
    assert name in str(caught.value)


def test_every_hostile_file_has_its_error() -> None:
    assert sorted(path.name for path in HOSTILE.iterdir()) == sorted([*ERRORS, "errors.json"])


def test_large_files_of_tiny_fields_are_refused_soon(scratch: Path) -> None:
    """The scanner looks at each field of a message in Python, so the number of fields is limited."""
    inner = b"\x22\x00" * (8 << 20)
    entry = b"\x22" + varint(len(inner)) + inner
    for data in (
        b"\x0a\x031.0" + entry,
        b"\x0a\x031.0" + inner,
        b"\x0a\x031.0" + b"\x10\x01" * (8 << 20),
        struct.pack("<Q", len(inner)) + inner,
        struct.pack("<Q", len(entry)) + entry,
    ):
        scratch.write_bytes(data)
        begun = time.process_time()
        with pytest.raises(CorruptDumpError):
            read_dump_file(scratch)
        assert time.process_time() - begun < 20


def _seeds() -> list[bytes]:
    file = DumpFile(
        inputs=(DumpTensor.of("input", 0, np.arange(4, dtype=np.float32), original_shape=(2, 2)),),
        outputs=(replace(DumpTensor.of("output", 0, np.arange(3, dtype=np.int8)), address=64, dim_range=((0, 1),)),),
        op_name="net/add",
        attributes=(("a", "b"),),
    )
    nano = nano_file([NanoTensor(1, (2,), b"abcd")], [NanoTensor(4, (1, 1), b"e", name="conv")])
    return [
        encoded(file),
        encoded(replace(file, variant="1.0", version="1.0")),
        nano,
        *(path.read_bytes() for path in DEVICE if path.stat().st_size < 240),
    ]


SEEDS = _seeds()


@pytest.mark.parametrize("seed", SEEDS, ids=range(len(SEEDS)))
def test_a_file_cut_off_anywhere_is_read_right_or_refused(seed: bytes, scratch: Path) -> None:
    whole = _outcome(scratch, seed)
    assert whole is not None
    for length in range(len(seed)):
        file = _outcome(scratch, seed[:length])
        if file is not None and whole.variant != "1.0":
            assert not all(tensor.is_readable for tensor in file.tensors) or file == whole


@pytest.mark.parametrize("seed", SEEDS[:4], ids=range(4))
def test_a_file_with_any_byte_changed_is_read_or_refused(seed: bytes, scratch: Path) -> None:
    read = 0
    for position in range(len(seed)):
        for change in (0x01, 0x80, 0xFF):
            changed = bytearray(seed)
            changed[position] ^= change
            read += _outcome(scratch, bytes(changed)) is not None
    assert 0 < read < 3 * len(seed)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for path in _somewhere():
        _outcome(path, data)
        _outcome(path, struct.pack("<Q", len(data)) + data)
        _outcome(path, struct.pack("<QI", len(data) + 4, 0x5A5A5A5A) + data)


@settings(max_examples=300)
@given(
    st.sampled_from(SEEDS) | dump_files().map(encoded),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), st.binary(max_size=12)), min_size=1, max_size=6),
)
def test_files_that_were_tampered_with_are_read_or_refused(
    data: bytes, changes: list[tuple[float, int, bytes]]
) -> None:
    for where, dropped, put in changes:
        position = int(where * len(data))
        data = data[:position] + put + data[position + dropped :]
    for path in _somewhere():
        _outcome(path, data)


def _somewhere() -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "Add.add.1.2.1700000000000000")
