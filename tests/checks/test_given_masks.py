"""Masks that the program provides, and neutral elements of maxima and minima, are no findings and hide none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import opdump
from opdump.checks import Thresholds
from opdump.plan import DumpPlan
from opdump.reports.findings import check_dump
from opdump.verdict import Verdict

pytestmark = pytest.mark.torch
INF = math.inf


def given_masks() -> None:
    mask = torch.from_numpy(np.array([[0, -INF], [0, 0]], np.float32))
    torch.softmax(torch.ones(2, 2) + mask, -1)
    filled = torch.where(torch.tensor([True, False]), torch.ones(2), torch.tensor(-INF))
    torch.softmax(filled, 0)
    torch.minimum(torch.tensor(INF), torch.ones(3)).sum()


def nan_beside_a_mask() -> None:
    torch.tensor([math.nan, 1.0]) + 1
    torch.softmax(torch.zeros(2).masked_fill(torch.tensor([True, False]), -INF), 0)


def nan_after_a_mask() -> None:
    torch.softmax(torch.zeros(2).masked_fill(torch.tensor([True, False]), -INF), 0)
    torch.tensor([math.nan, 1.0]) + 1


def infinite_data() -> None:
    torch.tensor([INF, 1.0]) + 1


def made_beside_a_mask() -> None:
    given_masks()
    torch.log(torch.tensor([0.0, 1.0]))


def recorded(directory: Path, program: object) -> tuple[Verdict, int]:
    assert callable(program)
    with opdump.capture(DumpPlan(path=directory, saved_data="statistic")) as dump:
        program()
    assert dump.report is not None
    found = check_dump(opdump.open(directory), Thresholds()).findings
    return dump.report.verdict, sum(each.check in ("inf", "nan", "killed") for each in found)


def test_given_masks_are_no_findings(tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, given_masks)
    assert verdict.kind == "none"
    assert findings == 0


@pytest.mark.parametrize("program", [nan_beside_a_mask, nan_after_a_mask])
def test_a_nan_that_the_program_gives_is_found_beside_a_mask(program: object, tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, program)
    assert verdict.kind == "nan"
    assert "data-" in verdict.how
    assert findings == 2


@pytest.mark.parametrize(("program", "how"), [(infinite_data, "data-"), (made_beside_a_mask, "output.0")])
def test_other_infinities_are_found(program: object, how: str, tmp_path: Path) -> None:
    verdict, findings = recorded(tmp_path, program)
    assert verdict.kind == "infinity"
    assert how in verdict.how
    assert findings
