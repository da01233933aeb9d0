"""The DumpParser of MindSpore Insight 2.3.1 reads what `opdump convert --layout mindspore` made of an asynchronous dump."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity import ascend_lenet, peers
from tests.parity.ascend_lenet import DEVICES, GRAPH, NET, SCRIPT, STEPS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("asynchronous")
    ascend_lenet.write_dump(directory / "dump")
    command: list[str | Path] = ["-m", "opdump", "convert", directory / "dump", "-o", directory / "tree"]
    print(peers.run(Path(sys.executable), [*command, "--layout", "mindspore"], {}))
    return directory / "tree"


@pytest.fixture(scope="module")
def found(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")  # MindSpore Insight writes logs there
    arguments: list[str | Path] = [peers.SCRIPTS / "read_with_mindinsight.py", tree, home, SCRIPT]
    printed = peers.run(peers.MINDINSIGHT, arguments, {"HOME": str(home)})
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return result


def test_it_lists_every_operator_with_its_type_and_line(found: dict[str, Any]) -> None:
    for number, operator in enumerate(ascend_lenet.operators(0, STEPS[0])):
        listed = found["operators"][operator.op_name]
        assert listed["type"] == operator.op_type
        assert [Path(line["file_path"]).name for line in listed["stack"]] == [SCRIPT]
        assert listed["stack"][0]["line_no"] == 10 + number
    assert len(found["operators"]) == len(ascend_lenet.operators(0, STEPS[0]))


def test_it_finds_the_tensors_of_every_operator_and_they_are_the_originals(tree: Path, found: dict[str, Any]) -> None:
    left = {str(path) for path in tree.rglob("*.npy")}
    count = len(left)
    for device in DEVICES:
        for step in STEPS:
            place = tree / f"rank_{device}" / NET / str(GRAPH) / str(step)
            for operator in ascend_lenet.operators(device, step):
                theirs = found["queries"][SCRIPT][operator.op_name][f"rank_{device}"][str(step)]
                listed = {*theirs["input"], *theirs["output"]}
                assert listed == {str(place / operator.converted_name(value)) for value in operator.values}
                left -= listed
                for value in operator.values:
                    path = place / operator.converted_name(value)
                    assert str(path) in theirs[value.io]
                    read = np.load(path, allow_pickle=False)
                    assert (read.dtype, read.shape) == (value.array.dtype, value.array.shape), path
                    assert np.array_equal(read, value.array), path
    assert left == set(), "files that no operator of Insight has"
    print(f"{count} tensor files of {len(found['operators'])} operators, {len(DEVICES)} ranks, {len(STEPS)} steps")
    assert count == sum(len(operator.values) for operator in ascend_lenet.operators(0, 3)) * 4


def test_it_exports_a_workbook(found: dict[str, Any]) -> None:
    assert Path(found["xlsx"]).stat().st_size > 1000
