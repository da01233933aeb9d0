"""Dumps that go to a callback: chunk by chunk, with nothing written to disk."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from opdump import acl
from opdump.acl.dump import DumpChunk
from tests.acl.program import config, converted, dump_files, execute, load, numbers, ok, write_small


class _Received:
    def __init__(self) -> None:
        self.chunks: list[DumpChunk] = []
        self.lengths: list[int] = []

    def __call__(self, chunk: DumpChunk, length: int) -> int:
        self.chunks.append(chunk)
        self.lengths.append(length)
        return 0


def _run(tmp_path: Path, dump: Path, received: _Received, *, after_init_dump: bool = False, **keys: Any) -> None:
    ok(acl.init())
    if not after_init_dump:
        ok(acl.dump.reg_callback(received, 0))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump, **keys))))
    if after_init_dump:
        ok(acl.dump.reg_callback(received, 0))
    execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())


@pytest.mark.parametrize("after_init_dump", [False, True])
def test_files_are_handed_over_and_nothing_goes_to_disk(after_init_dump: bool, dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received, after_init_dump=after_init_dump)
    assert list(dump.iterdir()) == []
    again = tmp_path / "again"
    again.mkdir()
    assert len(received.chunks) == 2
    for chunk in received.chunks:
        path = Path(chunk.file_name)
        assert path.parent.relative_to(dump).parts[1:] == ("0", "small", "1", "0")
        assert (chunk.is_last_chunk, chunk.offset, chunk.flag) == (True, 0, 0)
        (again / path.name).write_bytes(chunk.data)
    arrays = converted(again, tmp_path / "npy")
    (result,) = [array for name, array in arrays.items() if name.startswith("Add") and ".output." in name]
    assert np.array_equal(result, 2 * np.maximum(numbers(2, 3), 0))


def test_a_chunk_is_the_struct_of_the_interface(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received)
    for chunk, length in zip(received.chunks, received.lengths, strict=True):
        raw = bytes(chunk)
        assert length == len(raw) == len(chunk) == 4096 + 4 + 4 + 8 + 4 + len(chunk.data)
        assert raw[:4096].rstrip(b"\0").decode() == chunk.file_name
        assert int.from_bytes(raw[4096:4100], "little") == len(chunk.data)
        assert int.from_bytes(raw[4100:4104], "little") == 1
        assert DumpChunk.from_bytes(raw) == chunk
    with pytest.raises(ValueError, match="4116 bytes"):
        DumpChunk.from_bytes(bytes(100))
    with pytest.raises(ValueError, match="data"):
        DumpChunk.from_bytes(bytes(received.chunks[0])[:-1])


def test_statistics_are_text_with_a_zero_byte(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    _run(tmp_path, dump, received, dump_data="stats")
    assert list(dump.iterdir()) == []
    assert len(received.chunks) == 2
    for chunk in received.chunks:
        assert chunk.file_name.endswith(".csv")
        assert chunk.data.endswith(b"\n\0")
        rows = list(csv.DictReader(io.StringIO(chunk.data[:-1].decode())))
        assert {row["Input/Output"] for row in rows} == {"Input", "Output"}


def test_a_long_name_is_told_in_mapping_csv_which_is_appended_to(dump: Path, tmp_path: Path) -> None:
    path = write_small(tmp_path)
    model = onnx.load(path)
    model.graph.node[0].name = "n" * 300
    onnx.save(model, path)
    received = _Received()
    ok(acl.init())
    ok(acl.dump.reg_callback(received, 0))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    execute(load(path), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert list(dump.iterdir()) == []
    (line,) = [chunk for chunk in received.chunks if chunk.file_name.endswith("/mapping.csv")]
    stored, name = line.data.decode().rstrip("\n").split(",")
    assert line.offset == -1
    assert name.startswith("Relu.nnn")
    assert any(chunk.file_name.endswith(f"/{stored}") for chunk in received.chunks)


def test_after_unreg_callback_files_go_to_disk_again(dump: Path, tmp_path: Path) -> None:
    received = _Received()
    ok(acl.init())
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    model_id = load(write_small(tmp_path))
    ok(acl.dump.reg_callback(received))
    execute(model_id, {"x": numbers(2, 3)})
    acl.dump.unreg_callback()
    execute(model_id, {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert len(received.chunks) == 2
    assert {path.parent.name for path in dump_files(dump)} == {"1"}


def test_a_callback_that_fails_does_not_end_the_run(
    dump: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(chunk: DumpChunk, length: int) -> int:
        raise OSError("the network is gone")

    ok(acl.init())
    ok(acl.dump.reg_callback(failing))
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(str(config(tmp_path, dump))))
    (y,) = execute(load(write_small(tmp_path)), {"x": numbers(2, 3)})
    ok(acl.mdl.finalize_dump())
    assert np.array_equal(y, 2 * np.maximum(numbers(2, 3), 0))
    assert "the network is gone" in caplog.text
