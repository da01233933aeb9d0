"""The contracts of adapters and layouts, and the results of the check, the watchpoint, the statistic and the metric for a few arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toyflow
from opdump_toyflow.adapter import ToyflowAdapter
from opdump_toyflow.all_equal import all_equal
from opdump_toyflow.appended import APPENDED, Appended
from opdump_toyflow.markdown import table
from opdump_toyflow.share_within import share_within_one_percent
from opdump_toyflow.tensor_magnitude import TENSOR_MAGNITUDE
from opdump_toyflow.zero_fraction import zero_fraction

from opdump.checks import Thresholds, stats_of_summary
from opdump.checks.watchpoints import Measured, Watchpoint
from opdump.configs.dialects import load_plan
from opdump.kernels import summarise
from opdump.testing import AdapterTests, LayoutTests


class TestToyflow(AdapterTests):
    """The contract of adapters."""

    def adapter(self) -> ToyflowAdapter:
        return ToyflowAdapter()

    def tensor(self, array: Any) -> Any:
        return array.copy()

    def array(self, tensor: Any) -> Any:
        return tensor

    def multiply(self, one: Any, other: Any) -> Any:
        return toyflow.multiply(one, other)

    def add_in_place(self, tensor: Any, other: Any) -> None:
        toyflow.add_(tensor, other)

    def view(self, tensor: Any) -> Any:
        return toyflow.flatten(tensor)


def test_equal_elements_are_found() -> None:
    def said(array: Any) -> str:
        return all_equal(stats_of_summary(summarise(array)), "float32", Thresholds())

    assert said(np.full(5, 0.25, np.float32)) == "5 times 0.25"
    assert said(np.arange(5, dtype=np.float32)) == ""
    assert said(np.zeros(5, np.float32)) == ""


def test_a_large_element_of_either_sign_is_a_hit() -> None:
    watchpoint = Watchpoint(TENSOR_MAGNITUDE, {"magnitude_gt": 3.0}, ("magnitude_gt",))
    found = [watchpoint.look(Measured(2, {"max": 1.0, "min": low})).text for low in (-2.0, -3.0, -4.0)]
    assert found == ["", "", "magnitude 4 > 3"]


def test_the_fraction_of_zeros_takes_zeros_of_either_sign() -> None:
    assert zero_fraction(np.array([[0.0, -0.0], [1.0, np.nan]], np.float32)) == 0.5
    assert zero_fraction(np.zeros(3, np.int8)) == 1


def test_the_share_of_near_elements_takes_equal_zeros_and_no_nan() -> None:
    reference = np.array([1.0, 100.0, 0.0, np.nan])
    assert share_within_one_percent(reference, np.array([1.02, 100.5, 0.0, np.nan], np.float32)) == 0.5
    assert share_within_one_percent(np.zeros(0), np.zeros(0)) == 1


class TestAppended(LayoutTests):
    """The contract of layouts."""

    def layout(self) -> Appended:
        return APPENDED


def test_a_file_of_the_dialect_is_told_by_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "toyflow.json"
    file.write_text('{"toyflow_dump": "/tmp/dump", "toyflow_steps": "0|2-3"}')
    plan = load_plan(file, environ={}, saved_data="full")
    assert (plan.dialect, str(plan.path), str(plan.steps), plan.saved_data) == ("toyflow", "/tmp/dump", "0|2-3", "full")


def test_a_bar_stays_within_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    table(("one", "other"), [("a|b", 1)])
    assert capsys.readouterr().out == "| one | other |\n| --- | --- |\n| a\\|b | 1 |\n"
