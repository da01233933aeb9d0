"""A file is removed from a finished run, or truncated: every layout reports the same, and no command prints a
traceback.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.errors import CorruptDumpError
from opdump.plan import DumpPlan
from opdump.records import TensorRecord
from opdump.testing import sample_step
from tests.layouts.filing import file_in_layout

LAYOUTS = {
    "sync 2.3": {"layout": "mindspore-2.3", "saved_data": "full"},
    "sync 2.10": {"layout": "mindspore-2.10", "saved_data": "tensor"},
    "async bin": {"layout": "mindspore-async", "file_format": "bin"},
    "async npy": {"layout": "mindspore-async", "file_format": "npy", "saved_data": "full"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl"},
}


def _swap_for_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut to nothing": lambda file: file.write_bytes(b""),
    "cut to half": lambda file: os.truncate(file, file.stat().st_size // 2),
    "other bytes": lambda file: file.write_bytes(b"\xff" * file.stat().st_size),
    "a directory": _swap_for_directory,
}


def _dump(root: Path, layout: str) -> list[TensorRecord]:
    """A complete dump of two steps; the tensors of the first step that have files."""
    settings: dict[str, str] = LAYOUTS[layout]
    file_in_layout(DumpPlan(path=root, **settings), [sample_step(0), sample_step(1)])  # type: ignore[arg-type]
    catalog = opdump.open(root)
    assert all(run.complete for run in catalog.runs)
    return [record for record in catalog.tensors(step=0) if record.payload is not None]


def _commands(root: Path) -> list[tuple[int, str]]:
    done = []
    for words in (
        ["show", str(root), "--limit", "0"],
        ["show", str(root), "--json"],
        ["show", str(root), "--op", "add"],
        ["check", str(root)],
        ["overflow", str(root)],
        ["convert", str(root), "-o", f"{root} converted", "--recursive"],
    ):
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        done.append((result.exit_code, result.output))
    return done


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_removed_file_is_a_record_without_a_payload_and_a_problem(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    file: Path = whole[0].payload.path  # type: ignore[union-attr]
    file.unlink()
    catalog = opdump.open(root)
    found = list(catalog.tensors(step=0))
    lost = [record for record in found if record.payload is None]
    assert {record.name for record in lost} >= {whole[0].name}
    assert len(found) >= len(whole)
    kept = [record for record in found if record.payload is not None]
    assert len(kept) == len([each for each in whole if each.payload.path != file])  # type: ignore[union-attr]
    for record in kept:
        assert record.payload is not None
        record.payload.to_host()
    told = [str(problem) for problem in catalog.problems]
    assert told == [f"{file}: is in the index but not on disk: it was removed after the run"]
    shown = _commands(root)
    assert str(file) in shown[0][1]
    assert shown[0][0] == 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_removed_directory_is_one_problem(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    directories = {record.payload.path.parent for record in whole}  # type: ignore[union-attr]
    for directory in directories:
        for file in directory.iterdir():
            if file.is_file():
                file.unlink()
    if layout == "acl":
        return  # without files it is no longer a dump of a device
    catalog = opdump.open(root)
    assert all(record.payload is None for record in catalog.tensors(step=0))
    told = [str(problem) for problem in catalog.problems]
    assert sorted(told) == sorted(
        f"{directory}: is empty or missing, and the index lists "
        f"{len([each for each in whole if each.payload.path.parent == directory])} tensors in it: it was removed after the run"  # type: ignore[union-attr]
        for directory in directories
    )
    _commands(root)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_file_is_told_by_its_name_and_spoils_no_command(layout: str, damage: str, tmp_path: Path) -> None:
    root = tmp_path / "dump"
    whole = _dump(root, layout)
    file: Path = whole[0].payload.path  # type: ignore[union-attr]
    DAMAGES[damage](file)
    catalog = opdump.open(root)
    found = list(catalog.tensors(step=0))
    assert [record.name for record in found if record.payload is not None] == [record.name for record in whole]
    for record in found:
        if record.payload is not None and record.payload.path == file:  # type: ignore[attr-defined]
            with pytest.raises(CorruptDumpError, match=f"{file.name}: "):
                record.payload.to_host()
    (_, text), (_, json_text), *_ = _commands(root)
    for shown in (text, json_text):
        assert all(record.op.op_name.rpartition("/")[2] in shown for record in whole), "the others are shown"
    if not whole[0].statistics:
        assert file.name in text.partition("problem: ")[2]
