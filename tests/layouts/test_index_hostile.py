"""Malicious indexes are read, or refused with the name of the file, within 2 GB of memory and 10 s of CPU time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_steps
from tests.layouts.hostile_indexes import all_kinds
from tests.layouts.index_files import index_file

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
        (index_file(root).parent / "kept.txt").write_text("nobody deletes this\n")
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
