"""A killed run (SIGKILL): steps that it finished can be read unchanged, others are left out or reported, in every layout and mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.interpreter.leftovers import own_prefix
from opdump.sink.open_directories import prepare
from tests.torch.killed_programs import LAYOUTS, run

CASES = [
    *((layout, "data") for layout in LAYOUTS),
    ("async", "overflow"),
    ("async-npy", "overflow"),
    ("acl", "overflow"),
    ("acl", "exception"),
    ("acl", "watch"),
]
POINTS = 4


def _killed(root: Path, layout: str, mode: str, count: int, *points: int) -> list[int]:
    """The points at which runs were killed, each into a directory named after its point."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch.killed_programs", str(root), layout, mode, str(count), *map(str, points)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit())


def _facts(catalog: opdump.Catalog, step: int) -> list[tuple[object, ...]]:
    return [
        (record.op.op_type, record.op.op_name, record.io, record.slot, record.dtype, record.shape)
        for record in catalog.tensors(step=step)
    ]


def _finished_steps(root: Path) -> set[int]:
    """The steps in the indexes, read with SQLite itself."""
    import shutil
    import sqlite3
    import tempfile

    found = set()
    for index in root.rglob("index.sqlite"):
        with tempfile.TemporaryDirectory() as copy:
            for name in (index.name, f"{index.name}-journal"):
                if index.with_name(name).is_file():
                    shutil.copy(index.with_name(name), copy)
            database = sqlite3.connect(Path(copy) / index.name)
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if "batches" in tables:
                found |= {step for (step,) in database.execute("SELECT DISTINCT step FROM batches")}
            database.close()
    return found


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("layout", "mode"), CASES)
def test_what_a_killed_run_did_not_finish_is_left_out_or_reported(tmp_path: Path, layout: str, mode: str) -> None:
    points = _killed(tmp_path, layout, mode, POINTS)
    whole = opdump.open(tmp_path / "whole")
    assert not whole.problems
    assert points
    for point in points:
        root = tmp_path / str(point)
        catalog = opdump.open(root)
        finished = _finished_steps(root)
        lost = 0
        for step in catalog.steps:
            facts = _facts(catalog, step)
            if step in finished:
                assert facts[: len(_facts(whole, step))] == _facts(whole, step), (point, step)
            for record in catalog.tensors(step=step):
                if record.payload is not None:
                    assert record.payload.to_host().shape == record.shape
                elif record.op.step in finished and whole.op(record.op.op_name, step).op.op_type == record.op.op_type:
                    lost += 1
            if step not in finished and facts:
                assert any(f"step {step} was not finished" in str(problem) for problem in catalog.problems), (
                    point,
                    step,
                )
        assert not any(run.complete for run in catalog.runs), point
        missing = [problem for problem in catalog.problems if "but not on disk" in str(problem)]
        assert len(missing) <= lost
    shown = CliRunner().invoke(main, ["show", str(tmp_path / str(points[0]))], catch_exceptions=False)
    assert shown.exit_code in (0, 1), shown.output
    assert "interrupted" in shown.output
    checked = CliRunner().invoke(main, ["check", str(tmp_path / str(points[0]))], catch_exceptions=False)
    assert checked.exit_code in (0, 1, 2), checked.output


@pytest.mark.parametrize("layout", ["sync-2.3", "async", "acl"])
def test_the_next_run_clears_what_a_killed_one_left_half_written(tmp_path: Path, layout: str) -> None:
    _killed(tmp_path, layout, "data", 0, 5)
    root = tmp_path / "5"
    directory = max((path for path in root.rglob("*") if path.is_dir()), key=lambda path: len(path.parts))
    dead = subprocess.run(
        [sys.executable, "-c", "from opdump.interpreter.leftovers import own_prefix; print(own_prefix())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (directory / f"{dead}0a-1-1.part").write_bytes(b"half")
    (directory / f"{dead}0a-1-2.part").mkdir()
    (directory / f"{dead}0a-1-2.part" / "x.csv").write_bytes(b"half")
    live = directory / f"{own_prefix()}0a-1-1.part"
    elsewhere = directory / f".{'0' * 12}-{os.getpid()}-1-0a-1-1.part"
    others = directory / ".something.part"
    for kept in (live, elsewhere, others):
        kept.write_bytes(b"not ours to remove")
    before = opdump.open(root)
    assert not any(".part" in str(problem) for problem in before.problems)
    run(root, layout, "data")
    assert sorted(root.rglob("*.part")) == sorted([live, elsewhere, others])


def test_a_process_that_took_over_a_number_is_not_the_one_that_wrote(tmp_path: Path) -> None:
    place, number, start = own_prefix().strip(".-").split("-")
    reused = tmp_path / f".{place}-{number}-{int(start) - 1}-0a-1-1.part"
    own = tmp_path / f".{place}-{number}-{start}-0a-1-1.part"
    for file in (reused, own):
        file.write_bytes(b"half")
    prepare(tmp_path)
    assert list(tmp_path.iterdir()) == [own]
