"""The DumpParser of MindSpore Insight 2.3.1 reads the result of `opdump convert --layout mindspore` for an asynchronous dump.

Insight has its own conversion, for the directories of older versions (`rank_N/{net}/{graph}/{iteration}`). It creates the same
files with the same names, except for formats: it requests NCHW from msaccucmp for every tensor.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.dump_file import DumpTensor, read_dump_file
from tests.parity import ascend_lenet, peers
from tests.parity.ascend_lenet import DEVICES, GRAPH, NET, SCRIPT, STEPS, Operator, Value


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("asynchronous")
    ascend_lenet.write_dump(directory / "dump")
    command: list[str | Path] = ["-m", "opdump", "convert", directory / "dump", "-o", directory / "tree"]
    print(peers.run(Path(sys.executable), [*command, "--layout", "mindspore"], {"PYTHONPATH": str(peers.ROOT / "src")}))
    return directory / "tree"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory for the logs and workbooks of MindSpore Insight."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def found(tree: Path, home: Path) -> dict[str, Any]:
    return _found(tree, home)


def _found(directory: Path, home: Path) -> dict[str, Any]:
    arguments: list[str | Path] = [peers.SCRIPTS / "read_with_mindinsight.py", directory, home, SCRIPT]
    result: dict[str, Any] = json.loads(peers.run(peers.MINDINSIGHT, arguments, {"HOME": str(home)}).splitlines()[-1])
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


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """The same dump files in the directories of older versions, converted in place by Insight with msaccucmp 26.2."""
    directory = tmp_path_factory.mktemp("older")
    settings = {"common_dump_settings": {"net_name": NET, "input_output": 0}}
    headers = {}
    ascend_lenet.write_graphs(directory)
    for device in DEVICES:
        rank = directory / f"rank_{device}"
        (rank / ".dump_metadata").mkdir()
        (rank / ".dump_metadata" / "data_dump.json").write_text(json.dumps(settings))
        for step in STEPS:
            place = rank / NET / str(GRAPH) / str(step)
            executed = ascend_lenet.operators(device, step)
            ascend_lenet.write_operators(place, executed)
            for operator in executed:
                path = place / (operator.stored or operator.file_name)
                headers[str(path)] = _header(path)
    (home / "headers.json").write_text(json.dumps(headers))
    script = peers.SCRIPTS / "convert_with_mindinsight.py"
    arguments: list[str | Path] = [script, directory, peers.msaccucmp().parent, home / "headers.json"]
    printed = peers.run(peers.MINDINSIGHT, arguments, {"HOME": str(home)})
    assert json.loads(printed.splitlines()[-1]) == [], "Insight could not convert these"
    return directory


def test_insight_would_have_made_the_same_files(tree: Path, theirs: Path) -> None:
    for device in DEVICES:
        for step in STEPS:
            place = Path(f"rank_{device}", NET, str(GRAPH), str(step))
            left = {path.name for path in (theirs / place).glob("*.npy")}
            for operator in ascend_lenet.operators(device, step):
                for value in operator.values:
                    ours = operator.converted_name(value)
                    name = _name_of_insight(operator, value)
                    left.remove(name)
                    read = np.load(theirs / place / name, allow_pickle=False)
                    if (value.format, _format_of_insight(value)) == ("NHWC", "NCHW"):
                        read = read.transpose(0, 2, 3, 1)
                    expected = np.load(tree / place / ours, allow_pickle=False)
                    assert (read.dtype, read.shape) == (expected.dtype, expected.shape), name
                    assert np.array_equal(read, expected), name
            assert left == set()


def test_insight_would_not_have_found_a_name_with_an_underscore(tree: Path, theirs: Path, home: Path) -> None:
    """It searches for the last component of a name, but its own conversion keeps only the part after the last `_`."""
    operator = next(each for each in ascend_lenet.operators(0, STEPS[0]) if each.op_type == "MaxPool")
    assert (_place(theirs) / _name_of_insight(operator, operator.values[0])).is_file()
    for directory, count in ((tree, 1), (theirs, 0)):
        listed = _found(directory, home)["queries"][SCRIPT][operator.op_name]["rank_0"][str(STEPS[0])]
        assert len(listed["output"]) == count


def _place(directory: Path) -> Path:
    return directory / "rank_0" / NET / str(GRAPH) / str(STEPS[0])


def _name_of_insight(operator: Operator, value: Value) -> str:
    last = operator.op_name.rpartition("/")[2]
    name = operator.converted_name(value).replace(f".{last}.", f".{last.rpartition('_')[2]}.")
    return name.replace(f".{value.format}.npy", f".{_format_of_insight(value)}.npy")


def _format_of_insight(value: Value) -> str:
    """NCHW if msaccucmp can convert to it, even for a matrix; otherwise the device's format."""
    return "ND" if value.device_format == "ND" else "NCHW"


def _header(path: Path) -> dict[str, Any]:
    """The header of a dump file in the form in which CANN's library returns it to msaccucmp."""
    file = read_dump_file(path)
    return {
        "version": file.version,
        "op_name": file.op_name,
        "input": [_tensor_header(tensor) for tensor in file.inputs],
        "output": [_tensor_header(tensor) for tensor in file.outputs],
    }


def _tensor_header(tensor: DumpTensor) -> dict[str, Any]:
    return {
        "data_type": tensor.data_type,
        "format": tensor.format,
        "shape": {"dim": list(tensor.shape)},
        "size": tensor.size,
        "original_shape": {"dim": list(tensor.original_shape)},
    }
