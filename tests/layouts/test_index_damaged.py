"""An index that is damaged, malicious, of another version, or of a killed process is not trusted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump
from opdump.catalog.catalog import open_dump
from opdump.errors import DumpPathError, UnknownLayoutError
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_steps, index_file, new_writer, run_sql
from tests.layouts.hostile_indexes import all_kinds
from tests.layouts.killed_in_the_index import LAYOUTS, STEPS, run


@pytest.mark.parametrize(("version", "remedy"), [(1, "capture again"), (99, "update opdump")])
def test_another_version_is_refused_with_what_to_do(version: int, remedy: str, tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    run_sql(f"PRAGMA user_version = {version}")(index_file(tmp_path))
    (problem,) = open_dump(tmp_path).problems
    assert f"version {version} " in str(problem)
    assert "reads version 8" in str(problem)
    assert remedy in str(problem)
    with pytest.raises(DumpPathError, match=f"version {version}; this opdump writes version 8: dump into"):
        new_writer(DumpPlan(path=tmp_path))


def _overwrite(content: bytes, at: int = 0) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at : at + len(content)] = content
        path.write_bytes(data)

    return change


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _memory(text: str) -> Callable[[Path], None]:
    """Replace the memory layout of each tensor with two axes."""
    return run_sql(f"UPDATE signatures SET memory = '{text}' WHERE shape LIKE '%,%' AND shape NOT LIKE '%,%,%'")


_ENDLESS = "CREATE VIEW runs AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n"

HOSTILE: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "text": _overwrite(b"not a database" * 99),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "garbage in the middle": _overwrite(b"\xff" * 30_000, at=4096),
    "a pipe": _as_fifo,
    "another program's": run_sql("PRAGMA application_id = 1"),
    "a later version": run_sql("PRAGMA user_version = 99"),
    "a table missing": run_sql("DROP VIEW tensor_records", "DROP TABLE signatures"),
    "an endless view": run_sql("DROP VIEW tensor_records", "DROP TABLE runs", _ENDLESS),
    "text for numbers": run_sql("UPDATE operators SET position = 'soon'"),
    "words for time stamps": run_sql("UPDATE batches SET timestamps = json_array('soon')"),
    "a time stamp too few": run_sql("UPDATE batches SET timestamps = json_remove(timestamps, '$[0]')"),
    "true for a time stamp": run_sql("UPDATE batches SET timestamps = json_set(timestamps, '$[0]', json('true'))"),
    "a time stamp of a thousand digits": run_sql(f"UPDATE batches SET timestamps = '[{'9' * 1000}]'"),
    "an object for time stamps": run_sql("UPDATE batches SET timestamps = '{}'"),
    "a blob for time stamps": run_sql("UPDATE batches SET timestamps = x'00'"),
    "less than none counted": run_sql("""UPDATE batches SET counted = '{"view": -1}'"""),
    "a word for a count": run_sql("""UPDATE batches SET counted = '{"view": "many"}'"""),
    "a shape of words": run_sql("UPDATE signatures SET shape = 'a,b'"),
    "words for a memory": run_sql("UPDATE signatures SET memory = 'here'"),
    "an object for a memory": run_sql("UPDATE signatures SET memory = '{}'"),
    "a number for a memory": run_sql("UPDATE signatures SET memory = 0"),
    "a blob for a memory": run_sql("UPDATE signatures SET memory = x'00'"),
    "a storage before the first": _memory("[-1, 0, [3, 1], 0]"),
    "an offset before the storage": _memory("[0, -1, [3, 1], 0]"),
    "a stride too many": _memory("[0, 0, [6, 3, 1], 0]"),
    "a stride too few": _memory("[0, 0, [], 0]"),
    "a stride of words": _memory("""[0, 0, ["3", 1], 0]"""),
    "a number for strides": _memory("[0, 0, 3, 0]"),
    "a version of 65 bits": _memory(f"[0, 0, [3, 1], {2**64}]"),
    "true for a version": _memory("[0, 0, [3, 1], true]"),
    "a memory without a version": _memory("[0, 0, [3, 1]]"),
    "a memory with more": _memory("[0, 0, [3, 1], 0, 0]"),
    "an unknown phase": run_sql("UPDATE operators SET phase = 'sideways'"),
    "an unknown direction": run_sql("UPDATE signatures SET io = 'both'"),
    "operators missing": run_sql("DELETE FROM operators"),
    "stacks missing": run_sql("DELETE FROM stacks"),
    "lines missing": run_sql("DELETE FROM lines"),
    "a stack that calls itself": run_sql("UPDATE stacks SET callers = id"),
    "stacks that call each other": run_sql("UPDATE stacks SET callers = (SELECT MAX(id) FROM stacks)"),
    "a stack called from none that is there": run_sql("UPDATE stacks SET callers = 999"),
    "a stack called from before the first": run_sql("UPDATE stacks SET callers = -1"),
    "words for what called a stack": run_sql("UPDATE stacks SET callers = 'main'"),
    "a number beyond lines": run_sql("UPDATE stacks SET line = 999"),
    "patterns missing": run_sql("DELETE FROM patterns"),
    "an operator too few": run_sql("UPDATE patterns SET operators = json_remove(operators, '$[0]')"),
    "an operator that is not there": run_sql("UPDATE patterns SET operators = json_set(operators, '$[0]', 999)"),
    "a signature that is not there": run_sql("UPDATE patterns SET tensors = json_set(tensors, '$[0][1]', 999)"),
    "a tensor of a later operator": run_sql("UPDATE patterns SET tensors = json_set(tensors, '$[0][0]', 999)"),
    "a tensor of an operator before the first": run_sql(
        "UPDATE patterns SET tensors = json_set(tensors, '$[0][0]', -1)"
    ),
    "a number for a pair": run_sql("UPDATE patterns SET tensors = json_set(tensors, '$[0]', 1)"),
    "half a pair": run_sql("UPDATE patterns SET tensors = json_remove(tensors, '$[0][1]')"),
    "a tensor too few": run_sql("UPDATE patterns SET tensors = json_remove(tensors, '$[0]')"),
    "deep JSON in a pattern": run_sql(f"UPDATE patterns SET tensors = '{'[' * 100_000}'"),
    "a short blob of summaries": run_sql("UPDATE batches SET summaries = x'00'"),
    "text for summaries": run_sql("UPDATE batches SET summaries = 'none'"),
    "a file of a tensor past the last": run_sql("""UPDATE batches SET files = '{"999": "a.npy"}'"""),
    "a file of a tensor before the first": run_sql("""UPDATE batches SET files = '{"-1": "a.npy"}'"""),
    "an earlier version": run_sql("PRAGMA user_version = 1"),
    "damaged JSON": run_sql("UPDATE arguments SET json = '{'"),
    "deep JSON": run_sql(f"UPDATE arguments SET json = '{'[' * 100_000}'"),
    "a blob for a name": run_sql("UPDATE operators SET op_name = x'ff'"),
    "text that is no UTF-8": run_sql("UPDATE operators SET op_name = CAST(x'ff' AS TEXT)"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_without_its_index_a_dump_is_read_by_file_names(name: str, tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    HOSTILE[name](index_file(tmp_path))
    catalog = open_dump(tmp_path)
    found = list(catalog)
    expected = [record for record in sample_step(0).tensors if record.payload is not None]
    assert len(found) == len(expected)
    for record, origin in zip(found, expected, strict=True):
        assert (record.io, record.slot, record.shape, record.op.timestamp, record.op.occurrence) == (
            origin.io,
            origin.slot,
            origin.shape,
            origin.op.timestamp,
            origin.op.occurrence,
        )
        assert record.payload is not None
        record.payload.to_host()
    assert bool(catalog.problems) == (name != "gone")
    for problem in catalog.problems:
        assert str(index_file(tmp_path)) in str(problem)


def test_a_reason_of_a_later_version_is_kept(tmp_path: Path) -> None:
    file_steps(DumpPlan(path=tmp_path, saved_data="full"), [sample_step(0)])
    skipped = len([op for op in sample_step(0).ops if op.skip])
    run_sql(
        "UPDATE operators SET skip = 'because' WHERE skip <> ''",
        "UPDATE signatures SET skip = 'as well' WHERE skip <> ''",
        """UPDATE batches SET counted = '{"because": 3}'""",
    )(index_file(tmp_path))
    catalog = open_dump(tmp_path)
    executions = list(catalog.executions(include_skipped=True))
    assert not catalog.problems
    assert [str(each.op.skip) for each in executions].count("because") == skipped > 0
    assert {record.skip for each in executions for record in each.tensors} == {"", "as well"}
    assert dict(catalog.counted(0)) == {"because": 3}


_KINDS = all_kinds()
_PARTS = 16


@pytest.mark.timeout(900)  # about 50 processes, each with a limit of 10 s
@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(_PARTS))
def test_a_hostile_index_is_read_or_refused_within_its_bounds(part: int, tmp_path: Path) -> None:
    names = sorted(_KINDS)[part::_PARTS]
    for number, name in enumerate(names):
        root = tmp_path / str(number)
        file_steps(DumpPlan(path=root, saved_data="full"), [sample_step(0)])
        (index_file(root).parent / "kept.txt").write_text("must not be deleted\n")
        _KINDS[name](index_file(root))
    paths = [str(tmp_path / str(number)) for number in range(len(names))]
    command = [sys.executable, "-m", "tests.layouts.reading_in_bounds", *paths]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))
    bad = {name: each for name, each in found.items() if "error" in each}
    assert not bad, json.dumps(bad, indent=1)
    for number, name in enumerate(names):
        assert (index_file(tmp_path / str(number)).parent / "kept.txt").exists(), name
        for problem in found[name].get("problems", ()):
            assert str(tmp_path / str(number)) in problem


_MOST = 8


def _facts(catalog: opdump.Catalog, step: int) -> list[Any]:
    return [
        (each.op.op_type, each.op.op_name, each.op.occurrence, each.io, each.slot, each.dtype, each.shape)
        for each in catalog.tensors(step=step)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_kill_within_sqlites_own_writes_leaves_whole_steps_or_says_so(layout: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.layouts.killed_in_the_index", str(tmp_path), layout, str(_MOST)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr
    whole = opdump.open(tmp_path / "whole")
    assert not whole.problems
    roots = sorted(path for path in tmp_path.iterdir() if path.name != "whole")
    assert {root.name.partition("-")[0] for root in roots} == {"rows", "pages"}
    seen: set[int] = set()
    for root in roots:
        try:
            catalog = opdump.open(root)
        except UnknownLayoutError:
            # Killed before anything was written.
            assert not [path for path in root.rglob("*") if path.suffix == ".npy"], root.name
            continue
        if any(each.complete for each in catalog.runs):  # the very last callback comes after the last commit
            assert [_facts(catalog, step) for step in range(STEPS)] == [_facts(whole, step) for step in range(STEPS)]
            assert root.name.startswith("rows"), root.name
            continue
        finished = 0
        for step in catalog.steps:
            for record in catalog.tensors(step=step):
                if record.payload is not None:
                    assert record.payload.to_host().size == np.prod(record.shape) or record.sample, root.name
            if not any(f"step {step} was not finished" in str(each) for each in catalog.problems):
                facts = _facts(catalog, step)
                if facts:
                    assert facts == _facts(whole, step), (root.name, step)
                    finished += 1
        seen.add(finished)
        if finished < STEPS and not catalog.problems:
            lists = [list(each.steps) for each in (catalog, whole)]
            assert lists[0] == lists[1][: len(lists[0])], root.name
    assert len(seen) >= 2, "points before and after the end of a step"
    for root in roots[1 :: len(roots) // 2]:
        run(root, layout)
        again = opdump.open(root)
        assert again.runs[-1].complete, root.name
        assert [_facts(again, step) for step in range(STEPS)] == [_facts(whole, step) for step in range(STEPS)], (
            root.name
        )
        assert not list(root.rglob("*.part")), root.name
        if (
            layout == "sync"
        ):  # other layouts write beside an earlier run, and their readers roll back what it did not finish
            assert not [path for path in root.rglob("index.sqlite-journal") if os.path.getsize(path)], root.name
        shutil.rmtree(root)
