from __future__ import annotations

import math

import numpy as np
import pytest

from opdump.kernels import SummaryTable, compare_summaries, summarise
from opdump.kernels.pair_metrics import COUNTED


def test_statistics_of_pairs_are_compared_row_by_row() -> None:
    a = [np.array([1.0, -2.0]), np.array([0.0, 0.0]), np.array([math.nan, 1.0]), np.array([math.inf, 1.0]), np.zeros(0)]
    b = [np.array([2.0, -2.0, 1.0]), np.array([0.0, 1.0]), np.array([math.nan]), np.array([5.0, 1.0]), np.zeros(0)]
    found = compare_summaries(np.array([summarise(each) for each in a]), np.array([summarise(each) for each in b]))
    assert found.max.tolist() == [1.0, math.inf, 0.0, math.inf, 0.0]
    assert found.min.tolist() == [0.0, 0.0, 0.0, 0.0, 0.0]
    assert found.avg.tolist() == [pytest.approx((1 / 3 + 0.5) / 0.5), math.inf, 0.0, math.inf, 0.0]
    assert found.l2norm[0] == pytest.approx((3 - math.sqrt(5)) / math.sqrt(5))
    assert dict(zip(COUNTED, found.counts[2].tolist(), strict=True)) == {
        **dict.fromkeys(COUNTED, 0),
        "count": -1,
        "positive": -1,
    }


def test_rows_of_a_table_are_taken_and_other_shapes_are_not() -> None:
    rows = SummaryTable().rows()
    assert compare_summaries(rows, rows).max.shape == (0,)
    with pytest.raises(ValueError, match=r"found \(0, 11\) and \(1, 11\)"):
        compare_summaries(rows, np.zeros((1, 11)))
