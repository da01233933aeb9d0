"""A name selects the same operators and tensors whether steps are searched in columns or as records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.catalog.catalog import Catalog, TensorKeywords
from opdump.errors import NotInDumpError
from opdump.records import TensorRecord

STEPS = 8


KINDS: dict[str, dict[str, Any]] = {
    "statistics": {"saved_data": "statistic"},
    "digests": {"saved_data": "statistic", "statistic_category": ["md5", "max"]},
    "one file of elements": {"saved_data": "full", "layout": "packed"},
}


@pytest.fixture(scope="module", params=KINDS)
def dump(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Identical steps, except for a sigmoid in the second-to-last."""
    path = tmp_path_factory.mktemp("search")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with opdump.capture(path=path, iteration="all", **KINDS[request.param]):
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).sum()
            if step == STEPS - 2:
                loss = loss.sigmoid()
            loss.backward()
            optimizer.step()
    return path


NAMES = [
    "addmm",
    "Conv2D",
    "sigmoid",
    "aten::tanh",
    "0-Linear",
    "Default/network-Sequential/2-Linear",
    "name-regex(.*mm-op.*)",
    "Parameter.0.weight",
    "0.weight",
    "t",  # runs no kernel
    "nobody",
]


def _facts(tensor: TensorRecord) -> object:
    told = tensor.io, tensor.slot, tensor.dtype, tensor.shape, tensor.source, dict(tensor.statistics)
    return asdict(tensor.op), told, None if tensor.payload is None else tensor.numpy().tolist()


@pytest.mark.parametrize("include_skipped", [False, True])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_columns_and_records_agree(
    dump: Path, name: str | None, include_skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        try:
            executions = opdump.open(dump).ops(name, include_skipped=include_skipped)
            return [(asdict(each.op), [*map(_facts, each.tensors)]) for each in executions]
        except NotInDumpError as error:
            return [str(error)]

    in_columns = found()
    monkeypatch.setattr(Catalog, "columns", lambda *_: None)
    assert found() == in_columns
    assert in_columns


@pytest.mark.parametrize("which", [{"source": Path(__file__).name}, {"op_type": "tanh"}, {"graph": 1}, {"step": 6}])
def test_columns_and_records_agree_on_combined_filters(
    dump: Path, which: TensorKeywords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        return [_facts(each) for name in (None, "tanh") for each in opdump.open(dump).tensors(name, **which)]

    in_columns = found()
    monkeypatch.setattr(Catalog, "columns", lambda *_: None)
    assert found() == in_columns


@pytest.mark.parametrize("occurrence", [None, 0, 1])
def test_one_operator_is_the_first_of_that_name(
    dump: Path, occurrence: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sigmoid = next(opdump.open(dump).ops("aten::sigmoid")).op_name

    def found(name: str) -> str:
        try:
            return repr(opdump.open(dump).op(name, occurrence=occurrence).op)
        except NotInDumpError as error:
            return str(error)

    names = [sigmoid, sigmoid.rpartition("/")[2], "sigmoid-op", "0.weight", "Parameter.0.weight"]
    in_columns = [*map(found, names)]
    monkeypatch.setattr(Catalog, "columns", lambda *_: None)
    assert [*map(found, names)] == in_columns
    assert "the nearest are" in in_columns[2]
    assert (f"step {STEPS - 2}" in in_columns[0]) == (occurrence != 1)


def test_no_record_is_made_of_a_step_that_runs_what_an_earlier_one_ran(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opdump.open(dump)
    made: list[int] = []
    whole = Catalog._content

    def content(self: Catalog, rank: int, step: int) -> object:
        made.append(step)
        return whole(self, rank, step)

    monkeypatch.setattr(Catalog, "_content", content)
    with pytest.raises(NotInDumpError, match="nobody"):
        catalog.ops("nobody")
    assert set(made) <= {STEPS - 1}  # the last step may be written in several batches
