"""Checking the selected operators of a step yields the same findings as checking all of them, for any values and operators."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdump
from opdump.catalog.query import Execution, executions_of
from opdump.checks import CHECKS, Checks, Thresholds
from opdump.checks.nonfinite_lineage import Checked
from opdump.checks.tensor_checks import TensorStats
from opdump.records import IO, TensorRecord
from opdump.reports.findings import ChosenOperators, check_dump
from opdump.statistics import SummaryStatistics
from opdump.step_table import StepTable
from tests.checks.generated_dumps import INF, SUMMARIES, kinds, operators, write


def of_all_operators(path: Path) -> Checked:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChosenOperators, "can_choose", staticmethod(lambda _table: False))
        return check_dump(opdump.open(path), Thresholds())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_what_is_found_in_selected_operators_is_what_is_found_in_all(data: st.DataObject) -> None:
    program = data.draw(st.lists(operators, min_size=1, max_size=6))
    count = sum(len(each["tensors"]) for each in program)
    steps = data.draw(st.lists(st.lists(kinds, min_size=count, max_size=count), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "dump")
        write(path, program, steps)
        assert check_dump(opdump.open(path), Thresholds()) == of_all_operators(path)


def usual_operator(op_type: str, name: int, **tensor: Any) -> dict[str, Any]:
    usual = {"io": "output", "source": "", "dtype": "float32", "shape": (2, 3), "storage": None, "skip": ""}
    facts = {"phase": "forward", "has_infinite_argument": False, "skip": ""}
    return {"op_type": op_type, "name": name, "tensors": [{**usual, **tensor}], **facts}


def operator(op_type: str, name: int, *tensors: dict[str, Any], **facts: Any) -> dict[str, Any]:
    usual = {"phase": "forward", "has_infinite_argument": False, "skip": ""}
    return {"op_type": op_type, "name": name, "tensors": list(tensors), **usual, **facts}


def usual_tensor(io: IO, source: str = "", **facts: Any) -> dict[str, Any]:
    usual = {"dtype": "float32", "shape": (2, 3), "storage": None, "skip": ""}
    return {"io": io, "source": source, **usual, **facts}


def gives(**facts: Any) -> dict[str, Any]:
    return usual_tensor("output", **facts)


def reads(source: str, **facts: Any) -> dict[str, Any]:
    return usual_tensor("input", source, **facts)


USUAL_OPERATORS_THAT_COUNT: dict[str, tuple[list[dict[str, Any]], list[list[str]]]] = {
    "one that fills memory with what the program wrote: zeros follow": (
        [operator("ones_like", 0, gives()), operator("mul", 1, reads("Net/op0:0"), gives())],
        [["usual", "usual", "zeros"]],
    ),
    "one that reads a parameter: the step changed it": (
        [operator("mul", 0, reads("Parameter.w"), gives()), operator("Parameter", 0, gives())],
        [["usual", "usual", "zeros"]],
    ),
    "one of the same name that gives no mask any more": (
        [
            operator("masked_fill", 0, gives()),
            operator("masked_fill", 0, gives()),
            operator("mul", 1, reads("Net/op0:0"), gives()),
        ],
        [["mask", "usual", "mask", "mask"]],
    ),
    "one that writes over what was left in memory": (
        [
            operator("add", 0, reads("data-0", storage=0), gives(storage=0)),
            operator("relu", 1, gives(storage=0)),
            operator("add", 2, reads("data-1"), gives()),
        ],
        [["nan", "nan", "usual", "usual", "usual"], ["usual", "usual", "usual", "nan", "nan"]],
    ),
}


@pytest.mark.parametrize("case", USUAL_OPERATORS_THAT_COUNT)
def test_an_operator_of_usual_numbers_counts_where_it_changes_what_is_known_of_others(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, steps = USUAL_OPERATORS_THAT_COUNT[case]
    write(tmp_path / "dump", program, steps)
    catalog = opdump.open(tmp_path / "dump")
    assert all(catalog.table(step, 0).template is not None for step in catalog.steps)
    found = check_dump(catalog, Thresholds())
    assert found == of_all_operators(tmp_path / "dump")
    monkeypatch.setattr(ChosenOperators, "of", unusual_operators_alone)
    assert check_dump(opdump.open(tmp_path / "dump"), Thresholds()) != found, "the case makes a difference"


def unusual_operators_alone(
    _: ChosenOperators, table: StepTable[TensorRecord], __: Checks, ___: Checked
) -> Iterator[Execution]:
    """What `of` would return if operators of ordinary values did not count."""
    for execution in executions_of(table):
        statistics = [record.statistics for record in execution.tensors]
        if any(isinstance(each, SummaryStatistics) and each.summary != SUMMARIES["usual"] for each in statistics):
            yield execution


def test_a_usual_step_is_not_passed_to_the_checks(tmp_path: Path) -> None:
    program = [operator("relu", 0, gives()), operator("zeros_like", 1, gives()), operator("Parameter", 2, gives())]
    write(tmp_path / "dump", program, [["usual"] * 3, ["usual", "zeros", "usual"]])
    catalog, chosen = opdump.open(tmp_path / "dump"), ChosenOperators(Thresholds())
    told = []
    for step in catalog.steps:
        seen = chosen.of(catalog.table(step, 0), Checks(Thresholds()), Checked())
        told.append([execution.op_type for execution in seen])
    assert told == [[], ["zeros_like"]]


def test_checks_of_packages_see_every_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "dump", [operator("relu", 0, gives()), operator("mul", 1, gives())], [["usual"] * 2] * 3)
    own = CHECKS.loaded()

    def everything(stats: TensorStats, dtype: str, _thresholds: Thresholds) -> str:
        return f"{stats.count} of {dtype}"

    monkeypatch.setattr(CHECKS, "loaded", lambda: {**own, "my check": everything})
    found = check_dump(opdump.open(tmp_path / "dump"), Thresholds()).findings
    assert [(each.check, each.step, each.text) for each in found] == [
        ("my check", step, "6 of float32") for step in range(3) for _ in range(2)
    ]


@pytest.mark.torch
def test_a_training_with_a_mask_and_a_parameter_that_becomes_nan_is_checked_alike(tmp_path: Path) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    mask = torch.eye(4, dtype=torch.bool)
    with opdump.capture(path=tmp_path / "dump", saved_data="statistic"):
        for step in range(5):
            optimizer.zero_grad()
            scores = net(torch.randn(4, 8)).masked_fill(mask, -INF).softmax(-1)
            loss = (scores.sum(0) ** 2).mean()
            (loss / (0.0 if step == 2 else 1.0)).backward()
            optimizer.step()
    catalog = opdump.open(tmp_path / "dump")
    # Operators after the last step are written with it, as a separate batch.
    assert all(catalog.table(step, 0).template is not None for step in catalog.steps[:-1])
    found = check_dump(catalog, Thresholds())
    assert found == of_all_operators(tmp_path / "dump")
    assert {"nan", "inf"} & {each.check for each in found.findings}
    assert found.histories
