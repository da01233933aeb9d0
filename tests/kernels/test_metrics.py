"""Metrics by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opdump.kernels import compare_pair
from opdump.metrics import METRICS, AddedMetrics

A, B = np.array([[1.0, 2.0, -3.0]]), np.array([[1.5, 2.0, 3.0]])


@pytest.mark.parametrize("name", METRICS.own)
def test_a_metric_of_opdump_is_that_of_the_pair(name: str) -> None:
    assert METRICS.load(name)(A, B) == getattr(compare_pair(A, B), name)


def test_a_metric_that_a_pair_does_not_have_is_nan() -> None:
    assert math.isnan(METRICS.load("argmax_flips")(A * 1j, B * 1j))


def test_a_function_that_raises_leaves_the_pair_without_its_metric_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def writes(a: Any, b: Any) -> float:
        a[0] = 0
        return 0.0

    monkeypatch.setattr(METRICS, "added", lambda: {"writes": writes, "largest": lambda a, b: b.max()})
    metrics = AddedMetrics()
    assert metrics
    assert [metrics.of(A, B), metrics.of(A, B)] == [{"largest": 3.0}] * 2
    (warning,) = caplog.records
    assert warning.getMessage().startswith("the metric 'writes' of a pair is left out: ValueError: ")
    assert A[0, 0] == 1.0
    assert A.flags.writeable
