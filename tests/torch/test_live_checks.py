"""Checks during the run: they find what `opdump check` finds in a dump with tensors, and do not change the program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import opdump
from opdump.capturing.report import CaptureReport
from opdump.checks import Thresholds
from opdump.checks.nonfinite_lineage import Checked
from opdump.checks.watchpoints import WATCHPOINTS, Condition, Parameter, above
from opdump.configs.watchpoints import watchpoints_of
from opdump.plan import DumpPlan
from opdump.recorder.live_checks import LiveChecks
from opdump.reports.findings import check_dump

WATCH = (
    "recommended",
    "weight_initialization max_gt=0.3 min_lt=-0.3",
    "weight_not_changed",
    "weight_change_too_large abs_mean_update_ratio_gt=0.02",
    "weight_change_too_small abs_mean_update_ratio_lt=0.02",
    "weight_too_large abs_mean_gt=0.1",
    "gradient_vanishing abs_mean_lt=1e-2",
    "gradient_too_large abs_mean_gt=1e-2",
    "activation_range range_start_inclusive=0 range_end_inclusive=0.5 range_percentage_gt=50 max_min_gt=1",
    "tensor_range range_start_inclusive=-0.5 range_end_inclusive=0.5 range_percentage_lt=60",
    "tensor_overflow",
)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.frozen = nn.Linear(8, 8, bias=False).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.tanh(self.frozen(torch.relu(self.first(x)))))
        return result


def train(plan: DumpPlan | None) -> tuple[list[torch.Tensor], CaptureReport | None]:
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)

    def steps() -> None:
        for step in range(4):
            optimizer.zero_grad()
            x = torch.randn(5, 6)
            if step == 3:
                x = x / (x > 0)  # infinities, and NaN in later operators
            nn.functional.cross_entropy(network(x), torch.tensor([0, 1, 2, 0, 1])).backward()
            optimizer.step()

    if plan is None:
        steps()
        return list(network.parameters()), None
    with opdump.capture(plan) as dump:
        steps()
    return list(network.parameters()), dump.report


def told(checked: Checked) -> list[dict[str, Any]]:
    return [{**asdict(hit), "timestamp": 0} for hit in checked.hits]


@pytest.mark.parametrize("saved", ["statistic", "full"])
@pytest.mark.parametrize("layout", ["mindspore-2.3", "acl"])
def test_they_say_what_is_said_of_a_dump_of_tensors(saved: Any, layout: str, tmp_path: Path) -> None:
    _, report = train(DumpPlan(path=tmp_path / "live", saved_data=saved, layout=layout, checks=WATCH))
    assert report is not None
    assert report.checked is not None
    train(DumpPlan(path=tmp_path / "full", saved_data="full"))
    dumped = check_dump(opdump.open(tmp_path / "full"), Thresholds(), watchpoints=watchpoints_of(WATCH))
    live = report.checked
    assert live.problems == []
    if layout == "acl":  # this layout does not write parameters as the step left them
        assert {hit["condition"] for hit in told(live)} == {hit["condition"] for hit in told(dumped)}
        return
    assert told(live) == told(dumped)
    assert {hit.condition for hit in live.hits} == {watch.split()[0] for watch in WATCH[1:]} | {
        "tensor_all_zero",
        "gradient_vanishing",
    }
    assert live.findings == dumped.findings
    assert {each.check for each in live.findings} >= {"nan", "inf"}
    assert live.histories == dumped.histories
    assert live.tensors == dumped.tensors


def test_they_change_nothing_of_the_program(tmp_path: Path) -> None:
    plain, _ = train(None)
    checked, _ = train(DumpPlan(path=tmp_path / "dump", saved_data="statistic", checks=WATCH))
    assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(plain, checked, strict=True))


def test_without_a_plan_for_them_there_are_none(tmp_path: Path) -> None:
    _, report = train(DumpPlan(path=tmp_path / "dump", saved_data="statistic"))
    assert report is not None
    assert report.checked is None


def test_an_overflow_dump_hits_the_watchpoint_of_operators(tmp_path: Path) -> None:
    with opdump.capture(path=tmp_path / "plain", op_debug_mode=3) as dump:
        torch.full((2,), 3e38) * 2
    assert dump.report is not None
    plan = DumpPlan(path=tmp_path / "dump", captures="overflow", checks=("operator_overflow",))
    with opdump.capture(plan) as dump:
        torch.full((2,), 3e38) * 2
        torch.ones(2) + 1
    report = dump.report
    assert report is not None
    assert report.checked is not None
    assert [(hit.condition, hit.op_type) for hit in report.checked.hits] == [("operator_overflow", "mul")]


def test_a_formula_that_raises_ends_the_checks_and_not_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> Any:
        raise ZeroDivisionError("no such luck")

    broken = Condition(
        id="tensor_max",
        target="tensor",
        parameters=(Parameter(name="max_gt", range="number", judge=above("max_gt", raises)),),
    )
    watchpoint = watchpoints_of(["tensor_too_large max_gt=1"])[0]
    monkeypatch.setattr(
        "opdump.recorder.live_checks.watchpoints_of",
        lambda _: (type(watchpoint)(broken, {"max_gt": 1.0}, ("max_gt",)),),
    )
    _, report = train(DumpPlan(path=tmp_path / "dump", saved_data="statistic", checks=("tensor_too_large max_gt=1",)))
    assert report is not None
    assert report.checked is not None
    assert report.failure == ""
    assert report.steps == (0, 1, 2, 3)
    (problem,) = report.checked.problems
    assert problem == "the checks ended in step 0: ZeroDivisionError: no such luck"


def test_a_reader_without_elements_leaves_statistics() -> None:
    class Plain:
        def skip(self, *_: object) -> None: ...

    live = LiveChecks(DumpPlan(path=Path("x"), checks=("gradient_vanishing abs_mean_lt=1e-9",)), Plain())  # type: ignore[arg-type]
    lives = iter([(0, "", np.zeros(2), "", "")])
    assert live.look(opdump.records.OpRecord("mm", "mm", 1), "output", lives) is lives  # type: ignore[arg-type]
    assert "gradient_vanishing" in WATCHPOINTS
