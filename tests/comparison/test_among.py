"""Search for the values of a tensor among other tensors: parts, rows and columns are found, chance proximity is not."""

from __future__ import annotations

import numpy as np
import pytest

from opdump.comparison.differences import Elements

RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.normal(size=(48, 16))
MANY = RANDOM.normal(size=200_000)
"""So many values that any similar number is close to one of them."""
NEAR = 1e-2


@pytest.mark.parametrize(
    "parts",
    [
        [WEIGHTS],
        [WEIGHTS[:16], WEIGHTS[16:32], WEIGHTS[32:]],
        [WEIGHTS.T],
        [WEIGHTS.reshape(3, 4, 4, 16).transpose(1, 0, 2, 3)],
        [np.concatenate([RANDOM.normal(size=(16, 16)), WEIGHTS])],
    ],
    ids=["as it is", "in parts", "transposed", "by head", "a part of more"],
)
@pytest.mark.parametrize("tolerance", [1e-12, 1e-3])
def test_what_lies_there_in_order_is_found(parts: list[np.ndarray], tolerance: float) -> None:
    elements = Elements([(np.ascontiguousarray(part), tolerance) for part in (MANY, *parts)])
    assert elements.have(WEIGHTS * (1 + 1e-13), tolerance)


def test_what_is_near_by_chance_is_not_found() -> None:
    other = RANDOM.normal(size=(48, 16)).clip(-2, 2)
    elements = Elements([(MANY, NEAR)])
    assert not elements.have(other, NEAR)
    assert elements.have(other, NEAR, is_noise=True), "noise need not match any better"


def test_elements_in_any_order_are_found_where_chance_does_not_find_them() -> None:
    assert Elements([(MANY, 0.0)]).have(RANDOM.permutation(MANY)[:1000], 1e-12)
    assert not Elements([(MANY, 0.0)]).have(np.array([*MANY[:999], 0.1234567]), 1e-12)


def test_zeros_are_found_among_zeros() -> None:
    elements = Elements([(MANY, NEAR), (np.zeros(10), 0.0)])
    assert elements.have(np.zeros(7), 0.0)
    assert not Elements([(MANY + 10, 0.0)]).have(np.zeros(7), 0.0)


def test_an_empty_search_finds_nothing() -> None:
    assert not Elements([]).have(np.zeros(1), 1.0)
