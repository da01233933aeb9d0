"""A name selects the same operators and tensors in steps with a template as in single records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.catalog.catalog import Catalog, TensorKeywords
from opdump.errors import NotInDumpError
from opdump.records import OpRecord, TensorRecord
from opdump.step_table import StepTable, StepTemplate

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


def without_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, tables consist of single records."""
    whole = Catalog.table

    def table(self: Catalog, step: int, rank: int | None = None) -> StepTable[TensorRecord]:
        found = whole(self, step, rank)
        return StepTable.of([*found.ops], [*found.tensors], found.counted)

    monkeypatch.setattr(Catalog, "table", table)


def _facts(tensor: TensorRecord) -> object:
    told = tensor.io, tensor.slot, tensor.dtype, tensor.shape, tensor.source, dict(tensor.statistics)
    return asdict(tensor.op), told, None if tensor.payload is None else tensor.numpy().tolist()


@pytest.mark.parametrize("include_skipped", [False, True])
@pytest.mark.parametrize("name", [*NAMES, None])
def test_templates_and_records_agree(
    dump: Path, name: str | None, include_skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        try:
            executions = opdump.open(dump).ops(name, include_skipped=include_skipped)
            return [(asdict(each.op), [*map(_facts, each.tensors)]) for each in executions]
        except NotInDumpError as error:
            return [str(error)]

    with_templates = found()
    without_templates(monkeypatch)
    assert found() == with_templates
    assert with_templates


@pytest.mark.parametrize("which", [{"source": Path(__file__).name}, {"op_type": "tanh"}, {"graph": 1}, {"step": 6}])
def test_templates_and_records_agree_on_combined_filters(
    dump: Path, which: TensorKeywords, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[object]:
        return [_facts(each) for name in (None, "tanh") for each in opdump.open(dump).tensors(name, **which)]

    with_templates = found()
    without_templates(monkeypatch)
    assert found() == with_templates


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
    with_templates = [*map(found, names)]
    without_templates(monkeypatch)
    assert [*map(found, names)] == with_templates
    assert "the nearest are" in with_templates[2]
    assert (f"step {STEPS - 2}" in with_templates[0]) == (occurrence != 1)


def test_no_record_is_made_of_a_step_that_runs_what_an_earlier_one_ran(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opdump.open(dump)
    made: list[int] = []
    real = StepTable._tensor

    def tensor(self: StepTable[Any], template: StepTemplate, within: int, place: int, op: OpRecord, row: Any) -> Any:
        made.append(op.step)
        return real(self, template, within, place, op, row)

    monkeypatch.setattr(StepTable, "_tensor", tensor)
    with pytest.raises(NotInDumpError, match="nobody"):
        catalog.ops("nobody")
    # The first steps differ in their memory, the second-to-last has another operator, and the last may be written in several batches.
    assert set(made) <= {0, 1, 2, STEPS - 2, STEPS - 1}
