"""The value of a state of B in terms of A: matched by the float64 values that both left, returned as A recorded it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdump.comparison.memory import Carried, Named, StateMapping
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord
from tests.comparison.hand_made import node, record

LEFT = np.random.default_rng(0).normal(size=12)
"""The float64 values that the previous step left."""
OF_A = LEFT.astype(np.float32)
OF_B = (LEFT * (1 + 3e-7)).astype(np.float32)
"""The recorded values of both runs: B rounded differently."""


def _left(values: Any) -> Named:
    held = np.asarray(values)
    return Named("float32", held, np.ones(held.size, np.bool_))


def _found(
    read_a: list[TensorRecord], of_a: dict[int, Named], read_b: TensorRecord, of_b: Named | None, storage_b: int = 5
) -> Any:
    """The counterpart of B's one input; each input of A was found in the storage in which it lies."""
    a = node(0, "Add", read_a)
    b: Node = node(0, "Add", [read_b])
    inputs_a = {(0, slot): each.memory.storage for slot, each in enumerate(read_a) if each.memory is not None}
    carried = Carried(inputs_a), Carried({} if of_b is None else {(0, 0): storage_b})
    left = of_a, ({} if of_b is None else {storage_b: of_b})
    return StateMapping(Trace(1, 0, [a]), carried, left).of(b, 0)


def test_a_state_of_b_is_what_a_recorded_of_the_same_state() -> None:
    found = _found([record(OF_A, 0)], {0: _left(LEFT)}, record(OF_B, 3), _left(LEFT))
    assert np.array_equal(found, OF_A)
    assert not np.array_equal(found, OF_B)


def test_a_state_is_found_in_another_order_and_in_parts() -> None:
    in_parts = [record(OF_A[:5], 0), record(OF_A[5:], 1)]
    of_a = {0: _left(LEFT[:5]), 1: _left(LEFT[5:])}
    turned = LEFT.reshape(3, 4).T
    found = _found(in_parts, of_a, record(OF_B.reshape(3, 4).T.copy(), 3), _left(turned.reshape(-1)))
    assert np.array_equal(found, OF_A.reshape(3, 4).T)


def test_the_elements_of_a_view_are_those_that_the_view_shows() -> None:
    columns = record(OF_B.reshape(3, 4)[:, 1:3], 3, offset=1, strides=(4, 1))
    found = _found([record(OF_A, 0)], {0: _left(LEFT)}, columns, _left(LEFT))
    assert np.array_equal(found, OF_A.reshape(3, 4)[:, 1:3])


def test_a_state_of_which_one_element_is_nowhere_in_a_has_no_counterpart() -> None:
    other = LEFT.copy()
    other[7] *= 1 + 1e-5
    assert _found([record(OF_A, 0)], {0: _left(LEFT)}, record(OF_B, 3), _left(other)) is None


def test_what_no_step_before_left_has_no_counterpart() -> None:
    assert _found([record(OF_A, 0)], {0: _left(LEFT)}, record(OF_B, 3), None) is None


def test_nothing_has_a_counterpart_where_a_found_nothing_of_the_step_before() -> None:
    assert _found([record(OF_A)], {}, record(OF_B, 3), _left(LEFT)) is None


def test_whole_numbers_have_no_counterpart() -> None:
    numbers = np.arange(12)
    held = Named("int64", numbers, np.ones(12, np.bool_))
    assert _found([record(numbers, 0)], {0: held}, record(numbers, 3), held) is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_the_counterparts_of_the_same_values(value: float) -> None:
    left = LEFT.copy()
    left[2] = value
    of_a = left.astype(np.float32)
    found = _found([record(of_a, 0)], {0: _left(left)}, record(of_a, 3), _left(left))
    assert np.array_equal(found, of_a, equal_nan=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_finite_in_a_is_no_counterpart_of_one_that_is_not(value: float) -> None:
    other = LEFT.copy()
    other[2] = value
    assert _found([record(OF_A, 0)], {0: _left(LEFT)}, record(OF_B, 3), _left(other)) is None
