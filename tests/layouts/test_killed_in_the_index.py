"""If a process is killed while SQLite writes the index, finished steps are complete, the others are reported, and the
next run works.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump
from opdump.errors import UnknownLayoutError
from tests.layouts.killed_in_the_index import LAYOUTS, STEPS, run

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
