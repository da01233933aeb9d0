"""Merging the statistics of parts yields the statistics of the whole tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from opdump.kernels import SUMMARY_FIELDS, summarise
from opdump.statistics import SummaryStatistics, merge_statistics

_EXACT_FIELDS = tuple(name for name in SUMMARY_FIELDS if not name.startswith("sum"))
_DTYPES = ("float16", "float32", "float64", "int8", "int32", "uint64", "bool")


def _statistics(array: npt.NDArray[Any]) -> SummaryStatistics:
    return SummaryStatistics(summarise(array))


@given(data=st.data(), dtype=st.sampled_from(_DTYPES))
def test_parts_have_the_statistics_of_the_whole(data: st.DataObject, dtype: str) -> None:
    whole = data.draw(arrays.arrays(dtype, st.integers(0, 60)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    found = merge_statistics(map(_statistics, np.split(whole, cuts)))
    expected = _statistics(whole)
    for name in _EXACT_FIELDS:
        assert np.array_equal(getattr(found.summary, name), getattr(expected.summary, name), equal_nan=True), name
    scale = float(np.abs(whole.astype(np.float64)).sum()) if len(whole) else 0.0
    for name in ("sum", "sum_squares"):
        one, other = getattr(found.summary, name), getattr(expected.summary, name)
        if math.isfinite(one) and math.isfinite(other):
            bound = scale if name == "sum" else other
            assert abs(one - other) <= 1e-14 * bound, name
        else:
            assert np.array_equal(one, other, equal_nan=True), name


def test_large_parts_that_cancel_keep_what_is_left() -> None:
    parts = [np.full(1000, 1e16), np.full(1000, 1.0), np.full(1000, -1e16)]
    assert merge_statistics(map(_statistics, parts))["avg"] == 1000 / 3000


def test_no_parts_are_no_elements() -> None:
    found, empty = merge_statistics([]), _statistics(np.empty(0, np.float32))
    assert {name: str(found[name]) for name in empty} == {name: str(empty[name]) for name in empty}


def test_what_cannot_be_merged_is_left_out() -> None:
    part = SummaryStatistics(summarise(np.arange(3.0)), {"md5": "0" * 32})
    assert "md5" not in merge_statistics([part, part])


def test_statistics_without_a_summary_are_refused() -> None:
    with pytest.raises(ValueError, match=r"part 1 has no summary .* these statistics: max, min"):
        merge_statistics([_statistics(np.arange(3.0)), {"max": 1.0, "min": 0.0}])
