"""`sample_mode`: the files contain the first values, everything else describes the whole tensor, and every reader reports this."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.plan import DumpPlan, SavedData
from opdump.records import TensorRecord


def elements(record: TensorRecord) -> npt.NDArray[Any]:
    assert record.payload is not None
    return record.payload.to_host()


def typed(*arguments: str | Path) -> str:
    """The output of a command."""
    return CliRunner().invoke(main, [*map(str, arguments)]).output


def _multiply(path: Path, **settings: Any) -> torch.Tensor:
    numbers = torch.arange(1.0, 1001.0)
    numbers[900] = math.nan
    with opdump.capture(DumpPlan(path=path, sample_num=5, **settings)):
        numbers * 2
    return numbers


@pytest.mark.parametrize(
    ("layout", "saved_data"),
    [
        *itertools.product(("mindspore-2.3", "mindspore-2.10", "mindspore-async"), ("full", "statistic")),
        ("acl", "statistic"),
    ],
)
def test_a_nan_after_the_sample_is_counted_in_every_layout(layout: str, saved_data: SavedData, tmp_path: Path) -> None:
    _multiply(tmp_path, layout=layout, saved_data=saved_data, statistic_category=("nan count", "count", "max"))
    (execution,) = [e for e in opdump.open(tmp_path).executions() if e.op.op_type == "mul"]
    for record in execution.tensors:
        if record.slot == 0:
            assert (record.shape, record.data_size) == ((1000,), 4000)
            assert (record.statistics["nan count"], record.statistics["count"]) == (1, 1000)
            assert record.sample == (0 if saved_data == "statistic" else 5)
    if saved_data == "full":
        assert elements(execution.inputs[0]).tolist() == [1, 2, 3, 4, 5]
    found = json.loads(typed("check", tmp_path, "--json"))
    assert [each["check"] for each in found["findings"] if each["slot"] == 0]
    table = [text for path in tmp_path.rglob("*.csv") if "execution" not in path.name for text in [path.read_text()]]
    assert any("4000" in text and "1000" in text for text in table)


def test_the_npy_is_what_mindspore_writes_of_a_sample(tmp_path: Path) -> None:
    """One axis of exactly `sample_num` values from the start; a tensor with no more values is complete, with its shape."""
    with opdump.capture(path=tmp_path, sample_num=4):
        torch.arange(12.0).reshape(3, 4).t() * torch.ones(4, 1)
    files = {path.name.split(".input.")[1][0]: path for path in tmp_path.rglob("mul.*.input.*.npy")}
    assert np.load(files["0"]).tolist() == [0, 4, 8, 1]
    assert np.load(files["1"]).shape == (4, 1)


def test_show_says_what_is_a_sample(tmp_path: Path) -> None:
    _multiply(tmp_path, saved_data="full")
    shown = typed("show", tmp_path, "--op", "mul")
    assert (
        "input.0: the file holds a sample, the first 5 of 1,000 elements; the statistics are those of the whole"
        in shown
    )
    (operator,) = json.loads(typed("show", tmp_path, "--op", "mul", "--json"))["operators"]
    assert [tensor["sample"] for tensor in operator["tensors"] if tensor["slot"] == 0] == [5, 5]


@pytest.fixture
def without_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumps of values without statistics, as earlier releases made them."""
    monkeypatch.setattr(DumpPlan, "takes_statistics", property(lambda plan: plan.saves_statistics))


@pytest.mark.usefixtures("without_statistics")
def test_numbers_of_a_sample_are_marked_if_there_are_no_statistics(tmp_path: Path) -> None:
    _multiply(tmp_path, saved_data="tensor")
    shown = typed("show", tmp_path, "--op", "mul")
    assert "the first 5 of 1,000 elements; the statistics are those of the sample" in shown
    assert "2 of them by their first elements only" in typed("check", tmp_path)


@pytest.mark.usefixtures("without_statistics")
def test_a_finding_in_a_sample_says_of_how_many_elements(tmp_path: Path) -> None:
    zeros = torch.zeros(50)
    zeros[1] = math.inf
    with opdump.capture(path=tmp_path, sample_num=5):
        zeros.abs()
        torch.zeros(50).abs()
    found = json.loads(typed("check", tmp_path, "--json"))
    texts = [(each["check"], each["text"]) for each in found["findings"]]
    # Five of fifty zeros are known, so the tensor is not reported as all zero.
    assert set(texts) == {("inf", "1 of the first 5 of 50 elements")}


def test_a_dump_without_its_index_still_knows_its_samples(tmp_path: Path) -> None:
    _multiply(tmp_path, saved_data="full", statistic_category=("max", "count"))
    for index in list(tmp_path.rglob("index.sqlite")):
        index.unlink()
    (execution,) = [e for e in opdump.open(tmp_path).executions() if e.op.op_type == "mul"]
    record = execution.inputs[0]
    assert (record.shape, record.sample, record.data_size) == ((1000,), 5, 4000)
    assert elements(record).shape == record.payload_shape == (5,)


def test_a_dump_file_says_by_itself_that_it_holds_a_sample(tmp_path: Path) -> None:
    _multiply(tmp_path / "dump", layout="acl")
    for index in list(tmp_path.rglob("index.sqlite")):
        index.unlink()
    records = [record for record in opdump.open(tmp_path / "dump").tensors() if record.slot == 0]
    assert [(record.shape, record.sample, record.data_size) for record in records] == [((1000,), 5, 4000)] * 2
    assert elements(records[0]).tolist() == [1, 2, 3, 4, 5]
    files = [
        str(path) for path in (tmp_path / "dump").rglob("*") if path.is_file() and ".dump_metadata" not in str(path)
    ]
    assert "2 tensors recorded only in part: the dump has a sample" in typed(
        "convert", *files, "--out", tmp_path / "out"
    )
    refused = typed("convert", *files, "--out", tmp_path / "no", "--format", "NCHW", "--json")
    assert "contains a sample, the first 5 elements of a tensor of shape (1000,)" in refused


def test_an_overflow_is_found_in_the_whole_tensor_and_filed_as_a_sample(tmp_path: Path) -> None:
    numbers = torch.ones(100, dtype=torch.int32)
    numbers[90] = 2**31 - 1
    with opdump.capture(path=tmp_path, sample_num=5, op_debug_mode=3, saved_data="full"):
        numbers + numbers
    (execution,) = opdump.open(tmp_path).executions()
    record = execution.outputs[0]
    assert (record.shape, record.sample, record.statistics["count"]) == ((100,), 5, 100)
    assert elements(record).tolist() == [2] * 5


def test_constants_are_sampled_too(tmp_path: Path) -> None:
    numbers = torch.arange(100.0)
    with opdump.capture(path=tmp_path, sample_num=3):
        numbers + 1
    (record,) = [each for each in opdump.open(tmp_path).constants() if each.shape == (100,)]
    assert record.sample == 3
    assert elements(record).tolist() == [0, 1, 2]
