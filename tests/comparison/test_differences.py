"""The distance of two tensors, compared with numpy's own arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opdump.comparison.differences import difference

GENERATOR = np.random.default_rng(5)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_difference_is_that_of_root_mean_squares(kind: str, scale: float) -> None:
    one = GENERATOR.standard_normal((37, 11)).astype(kind)
    other = (one + scale * GENERATOR.standard_normal((37, 11))).astype(kind)
    wide = np.complex128 if kind.startswith("complex") else np.float64
    apart = np.abs(one.astype(wide) - other.astype(wide))
    norm = np.abs(one.astype(wide))
    found = difference(one, other)
    assert found.absolute == pytest.approx(math.sqrt(np.mean(apart**2)))
    assert found.relative == pytest.approx(math.sqrt(np.mean(apart**2) / np.mean(norm**2)))
    if kind.startswith("float"):
        assert found.peak == pytest.approx(apart.max() / norm.max())


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 8e307])
def test_numbers_whose_squares_float64_cannot_hold_are_compared(unit: float) -> None:
    one, other = np.array([1.0, -2.0, 0.5]) * unit, np.array([1.0, -2.0, 0.75]) * unit
    found = difference(one, other)
    assert found.relative == pytest.approx(0.25 / math.sqrt(5.25))
    assert found.peak == pytest.approx(0.125)
    assert found.absolute == pytest.approx(0.25 / math.sqrt(3) * unit)


def test_a_least_difference_of_large_numbers_is_seen() -> None:
    one = np.array([1e10, 1e-300])
    assert difference(one, np.array([1e10, 2e-300]))


def test_nan_and_infinities_at_the_same_place_are_no_difference() -> None:
    one = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert not difference(one, one.copy())
    assert difference(one, np.array([np.nan, np.inf, np.inf, 1.0])).relative == math.inf
    assert difference(one, np.array([0.0, np.inf, -np.inf, 1.0])).relative == math.inf


def test_integers_differ_by_the_share_of_unequal_ones() -> None:
    found = difference(np.arange(8), np.array([0, 1, 2, 3, 4, 5, 6, 9]))
    assert (found.relative, found.peak) == (0.125, 1.0)
    assert difference(np.array([True, False]), np.array([True, True])).relative == 0.5


def test_other_shapes_differ_wholly_and_no_elements_not_at_all() -> None:
    assert difference(np.zeros(2), np.zeros(3)).relative == math.inf
    assert not difference(np.zeros((0, 3)), np.zeros((0, 3)))


def test_what_differs_from_zero_differs_wholly() -> None:
    found = difference(np.zeros(3), np.array([0.0, 1e-30, 0.0]))
    assert found.relative == math.inf
    assert found.peak == math.inf
    assert found.absolute == pytest.approx(1e-30 / math.sqrt(3))
