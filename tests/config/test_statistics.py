"""Every named statistic against float64 numpy, and its text against the rules of statistic.csv."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from opdump.kernels import Summary, summarise
from opdump.kernels.append_file import xxh3_128
from opdump.records import format_statistic
from opdump.statistics import (
    DEFAULT,
    OWN,
    ElementStatistics,
    SummaryStatistics,
    md5,
    name_of_heading,
    one_spelling,
    sha1,
    xxh3,
)


def _arrays() -> list[npt.NDArray[Any]]:
    random = np.random.default_rng(5)
    special = np.array([0.0, -0.0, 1.5, -2.5, math.inf, -math.inf, math.nan, 1e-40])
    return [
        random.standard_normal((7, 33)).astype(np.float32),
        random.standard_normal(30_000),
        special,
        special[:6].astype(np.float16),
        random.integers(-100, 100, 1000, dtype=np.int8),
        random.integers(0, 2, 99).astype(bool),
        np.array(3, dtype=np.int64),
        np.empty((0, 4), dtype=np.float32),
    ]


@pytest.mark.parametrize("array", _arrays(), ids=lambda array: f"{array.dtype}{array.shape}")
def test_statistics_equal_float64_numpy(array: npt.NDArray[Any]) -> None:
    statistics = SummaryStatistics(summarise(array), ElementStatistics(OWN).of(array))
    wide = array.astype(np.float64).ravel()
    with np.errstate(invalid="ignore"):
        expected: dict[str, float] = {
            "max": wide.max(initial=-np.inf),
            "min": wide.min(initial=np.inf),
            "avg": float(wide.mean()) if wide.size else math.nan,
            "l2norm": math.sqrt(float((wide * wide).sum())),
        }
    counts = {
        "count": wide.size,
        "negative zero count": int((wide < 0).sum()),
        "positive zero count": int((wide > 0).sum()),
        "nan count": int(np.isnan(wide).sum()),
        "negative inf count": int((wide == -np.inf).sum()),
        "positive inf count": int((wide == np.inf).sum()),
        "zero count": int((wide == 0).sum()),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(statistics[name], value, rtol=1e-12, err_msg=name)
    for name, count in counts.items():
        assert statistics[name] == count, name
        assert isinstance(statistics[name], int), name
    assert set(statistics) == set(one_spelling(OWN))
    assert statistics["md5"] == statistics["hash:md5"] == hashlib.md5(array.tobytes()).hexdigest()
    assert statistics["xxh3"] == xxh3_128(array.tobytes())
    assert len(statistics) == 14


def test_an_unknown_statistic_or_one_not_taken_is_a_key_error() -> None:
    statistics = SummaryStatistics(summarise(np.zeros(3)))
    assert "md5" not in statistics
    assert "bogus" not in statistics
    with pytest.raises(KeyError):
        statistics["hash"]


def test_nan_equals_nan_and_nothing_else() -> None:
    array = np.array([1.0, math.nan])
    one = SummaryStatistics(summarise(array))
    assert one == SummaryStatistics(summarise(array.copy()))
    assert one == dict(one)
    assert one != SummaryStatistics(summarise(np.array([1.0, 2.0])))
    assert one != SummaryStatistics(summarise(array), {"md5": "0"})
    assert one != 5


def test_sha1_of_large_tensors_is_that_of_their_slices_digests() -> None:
    array = np.arange(50_000, dtype=np.float32)
    slices = [array[start : start + 20480] for start in range(0, array.size, 20480)]
    joined = "".join(hashlib.sha1(piece.tobytes()).hexdigest() for piece in slices)
    assert (
        sha1(array) == ElementStatistics(["hash:sha1"]).of(array)["hash"] == hashlib.sha1(joined.encode()).hexdigest()
    )
    small = array[:20480]
    assert sha1(small) == hashlib.sha1(small.tobytes()).hexdigest()


def test_a_digest_sees_elements_and_not_strides_or_byte_order() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert md5(array.T) == md5(array.T.copy())
    assert md5(array.astype(">i4")) == md5(array)
    assert xxh3(array.T) == xxh3(array.T.copy())
    assert xxh3(array.astype(">i4")) == xxh3(array) != xxh3(array.T)
    assert sha1(array.T) == sha1(array.T.copy())
    assert sha1(array.astype(">i4")) == sha1(array) != sha1(array.T)
    assert md5(np.empty(0)) == hashlib.md5(b"").hexdigest()


def test_only_wanted_digests_are_taken() -> None:
    assert not ElementStatistics(["max", "l2norm"])
    assert list(ElementStatistics(["hash:md5", "md5"]).of(np.zeros(2))) == ["md5"]
    assert list(ElementStatistics(["xxh3", "max"]).of(np.zeros(2))) == ["xxh3"]


def test_digests_without_other_statistics_are_recognised_by_their_names() -> None:
    assert ElementStatistics(["hash:md5", "max", "xxh3"]).digests_alone == ("md5", "xxh3")
    assert ElementStatistics(["max"]).digests_alone == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.449951, "0.449951"),
        (1e-9, "1e-09"),
        (1234567.0, "1.23457e+06"),
        (3.0, "3"),
        (-0.0, "-0"),
        (100000.0, "100000"),
        (math.nan, "nan"),
        (-math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (12345678, "12345678"),
        (True, "1"),
        ("d41d8cd9", "d41d8cd9"),
    ],
)
def test_values_have_six_significant_digits_and_counts_all(value: float | str, text: str) -> None:
    assert format_statistic(value) == text


def test_headings_are_those_of_statistic_csv() -> None:
    assert [each.heading for each in OWN.values()] == [
        "Max Value",
        "Min Value",
        "Avg Value",
        "Count",
        "Negative Zero Count",
        "Positive Zero Count",
        "NaN Count",
        "Negative Inf Count",
        "Positive Inf Count",
        "Zero Count",
        "MD5",
        "L2Norm Value",
        "SHA1",
        "SHA1",
        "MD5",
        "XXH3",
    ]
    assert {name for name, each in OWN.items() if each.on_device} == {"max", "min", "avg", "l2norm"}
    assert set(DEFAULT) <= set(OWN)


def test_headings_are_read_in_any_case() -> None:
    assert name_of_heading("Nan Count") == "nan count"
    assert name_of_heading(" sha1 ") == "hash"
    assert name_of_heading("Shape") is None


def test_nothing_of_no_elements_is_an_error() -> None:
    empty = Summary(0, 0, 0, 0, 0, 0, 0, -math.inf, math.inf, 0, 0)
    statistics = SummaryStatistics(empty)
    assert statistics["max"] == -math.inf
    assert math.isnan(float(statistics["avg"]))
    assert statistics["l2norm"] == 0
