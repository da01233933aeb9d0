"""`opdump unpack` produces the same files as direct writing, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import opdump
from opdump.commands import main
from opdump.records import TensorRecord

_CASES = (
    ("mindspore-2.3", "full", "npy"),
    ("mindspore-2.10", "full", "npy"),
    ("mindspore-2.3", "tensor", "npy"),
    ("mindspore-async", "full", "npy"),
    ("mindspore-async", "tensor", "bin"),
)


class _Clock:
    """Time stamps that repeat in each capture."""

    def __init__(self) -> None:
        self.now = 1_795_000_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def _train(path: Path, layout: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setattr("opdump.adapters.torch.naming.time_ns", _Clock())
    monkeypatch.setenv("OPDUMP_FOLLOW", "0")  # compiled code uses its own clock
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(16, 2, dtype=torch.float32),
    )
    optimizer = torch.optim.Adam(network.parameters())
    data = torch.randn(4, 8)
    settings = {"saved_data": "full", "iteration": "all", **options}
    with opdump.capture(path=path, layout=layout, **settings):
        for _ in range(3):
            optimizer.zero_grad()
            loss = (network(data) ** 2).mean()
            (loss + loss.to(torch.bfloat16)).backward()
            optimizer.step()


def _compute(path: Path, layout: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Operators without a network: device layouts do not record parameter values, which use up time stamps in other
    layouts.
    """
    monkeypatch.setattr("opdump.adapters.torch.naming.time_ns", _Clock())
    monkeypatch.setenv("OPDUMP_FOLLOW", "0")  # compiled code uses its own clock
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    with opdump.capture(path=path, layout=layout, iteration="all", **options):
        for _ in range(3):
            y = (x @ x).relu().to(torch.bfloat16)
            torch.stack([y, y]).sum()
            x.add_(0.5)


def _files(root: Path) -> Mapping[str, bytes]:
    """The files of a dump by path. The index is compared through the reader, and names that are times compare as equal."""
    found = {}
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if path.is_file() and parts[-1] != "index.sqlite":
            named = "/".join("TIME" if len(part) == 14 and part.isdecimal() else part for part in parts)
            found[named] = path.read_bytes().replace(str(root).encode(), b"ROOT")  # the plan contains the path
    return found


def _facts(record: TensorRecord) -> tuple[object, ...]:
    return record.op.op_name, record.io, record.slot, record.dtype, record.shape, dict(record.statistics)


def _unpack(*words: object) -> Result:
    return CliRunner().invoke(main, ["unpack", *map(str, words)], catch_exceptions=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("layout", "saved_data", "file_format"), _CASES)
def test_unpacked_files_are_those_of_direct_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, saved_data: str, file_format: str
) -> None:
    is_device = layout == "mindspore-async"
    for name, chosen in (
        ("direct", layout),
        ("packed", "packed"),
    ):  # both on one line, because graphs contain the program's line
        if is_device:
            own = {"file_format": file_format} if chosen == layout else {}
            _compute(tmp_path / name, chosen, monkeypatch, saved_data=saved_data, **own)
        else:
            _train(tmp_path / name, chosen, monkeypatch, saved_data=saved_data, save_kernel_args=True)
    out = tmp_path / "unpacked"
    done = _unpack(tmp_path / "packed", "-o", out, "--layout", layout, "--file-format", file_format)
    assert done.exit_code == 0, done.output
    direct, unpacked = _files(tmp_path / "direct"), _files(tmp_path / "unpacked")
    assert sorted(unpacked) == sorted(direct)
    assert [name for name in direct if direct[name] != unpacked[name]] == []
    assert len(direct) > 5
    for step in opdump.open(tmp_path / "direct").steps:
        one, other = (list(opdump.open(tmp_path / name).tensors(step=step)) for name in ("direct", "unpacked"))
        assert list(map(_facts, one)) == list(map(_facts, other))
        if not is_device:  # the operators have other task numbers, and the constants no source, in the index
            assert [(a.op, a.source) for a in one] == [(b.op, b.source) for b in other]
    assert [run.complete for run in opdump.open(tmp_path / "unpacked").runs] == [True]


def test_a_directory_that_holds_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _train(tmp_path / "packed", "packed", monkeypatch)
    done = _unpack(tmp_path / "packed", "-o", tmp_path)
    assert done.exit_code == 1
    assert "is not empty" in done.output
    done = _unpack(tmp_path / "packed", "-o", tmp_path / "packed/rank_0/here")
    assert done.exit_code == 1
    assert "inside the dump" in done.output


def test_a_dump_of_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _train(tmp_path / "files", "mindspore-2.3", monkeypatch)
    done = _unpack(tmp_path / "files", "-o", tmp_path / "out")
    assert done.exit_code == 1
    assert "is not packed" in done.output
    assert not (tmp_path / "out").exists()


def test_convert_names_the_command_for_a_packed_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _compute(tmp_path / "packed", "packed", monkeypatch)
    result = CliRunner().invoke(main, ["convert", "--recursive", str(tmp_path / "packed"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "all elements of a packed run; `opdump unpack DUMP -o DIRECTORY`" in result.output


def test_statistics_alone_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, layout in (("direct", "mindspore-2.3"), ("packed", "packed")):
        _train(tmp_path / name, layout, monkeypatch, saved_data="statistic")
    assert not (tmp_path / "packed/rank_0/elements").exists()
    done = _unpack(tmp_path / "packed", "-o", tmp_path / "unpacked")
    assert done.exit_code == 0, done.output
    assert _files(tmp_path / "unpacked") == _files(tmp_path / "direct")


def test_what_is_damaged_is_reported_and_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _train(tmp_path / "packed", "packed", monkeypatch)
    file = tmp_path / "packed/rank_0/elements/1.pack"
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(whole)
    done = _unpack(tmp_path / "packed", "-o", tmp_path / "out", "--json")
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert len(told["problems"]) == 1
    assert told["steps"] == 3
    assert told["files"] > 100
    assert not opdump.open(tmp_path / "out").runs[0].complete


def test_ctrl_c_leaves_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _train(tmp_path / "packed", "packed", monkeypatch)
    from opdump.layouts.mindspore_sync.writer import SyncWriter

    write_step = SyncWriter.write_step

    def interrupted(self: SyncWriter, step: int, *rest: Any) -> None:
        if step == 1:
            raise KeyboardInterrupt
        write_step(self, step, *rest)

    monkeypatch.setattr(SyncWriter, "write_step", interrupted)
    done = _unpack(tmp_path / "packed", "-o", tmp_path / "out")
    assert done.exit_code == 130
    assert "interrupted" in done.output
    catalog = opdump.open(tmp_path / "out")
    assert not catalog.runs[0].complete
    for record in catalog.tensors(step=0):
        if record.payload is not None:
            record.payload.to_host()
