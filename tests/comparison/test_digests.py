"""Digests of both runs with only statistics recorded: they distinguish tensors whose values are in another order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import opdump
from opdump.comparison.result import Result

torch = pytest.importorskip("torch")


def _compared(path: Path, program: Callable[[list[float]], object], one: list[float], other: list[float]) -> Result:
    for name, numbers in (("a", one), ("b", other)):
        with opdump.capture(
            path=path / name, saved_data="statistic", statistic_category=["max", "avg", "l2norm", "xxh3"]
        ):
            program(numbers)
    return opdump.compare(path / "a", path / "b")


def _sum_of(numbers: list[float]) -> float:
    return float((torch.tensor(numbers) + 1.0).sum().item())


def _plus_one(numbers: list[float]) -> object:
    return torch.tensor(numbers) * 2.0 + 1.0


def test_a_result_with_the_same_statistics_and_another_digest_is_divergent(tmp_path: Path) -> None:
    result = _compared(tmp_path, _plus_one, [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0])
    assert result.verdict == "divergent"
    assert result.headline.startswith("DIVERGENT: results differ, cause not found: first difference at #")
    assert " mul output.0" in result.headline
    assert "has the same statistics and a different digest" in result.introduced[0].evidence


def test_data_in_another_order_are_accepted_if_the_result_has_the_same_digest(tmp_path: Path) -> None:
    result = _compared(tmp_path, _sum_of, [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0])
    assert (result.verdict, result.differing) == ("benign", 1)


def test_the_sign_of_a_zero_changes_a_digest_and_no_verdict(tmp_path: Path) -> None:
    result = _compared(tmp_path, lambda numbers: torch.tensor(numbers) * 2.0, [0.0, 0.0], [-0.0, 0.0])
    assert result.verdict == "benign"


def test_the_same_digests_are_identical(tmp_path: Path) -> None:
    assert _compared(tmp_path, _plus_one, [1.0, 2.0], [1.0, 2.0]).verdict == "identical"
