"""Tensors that are one piece in one run and several in the other are found by their statistics."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from opdump.comparison.lost_values import joined
from opdump.records import OpRecord, TensorRecord

Array = NDArray[np.float64]
NUMBERS = np.random.default_rng(7)
PIECES = [NUMBERS.normal(size=shape) for shape in ((4, 6), (4, 6), (4, 3), (4, 2))]


def record(values: Array, slot: int = 0) -> TensorRecord:
    op = OpRecord(op_type="mm", op_name="mm-op0", timestamp=1)
    numbers = {"max": values.max(), "min": values.min(), "avg": values.mean(), "l2norm": np.linalg.norm(values)}
    statistics = {name: float(value) for name, value in numbers.items()}
    return TensorRecord(op, "output", slot, "float32", values.shape, statistics=statistics)


def records(*tensors: Array) -> list[TensorRecord]:
    return [record(values, slot) for slot, values in enumerate(tensors)]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_matrix_is_found_in_its_pieces_and_they_in_it(count: int) -> None:
    whole = np.concatenate(PIECES[:count], axis=1)
    others = [NUMBERS.normal(size=piece.shape) for piece in PIECES]
    pieces = records(*others, *PIECES[:count])
    wholes, parts = joined([record(whole)], pieces, 1e-6)
    assert [each.shape for each in wholes] == [whole.shape]
    assert {each.slot for each in parts} == set(range(4, 4 + count))
    assert joined(pieces, [record(whole)], 1e-6) == (parts, wholes)


def test_one_of_the_pieces_that_is_another_makes_no_whole() -> None:
    whole = np.concatenate(PIECES[:3], axis=1)
    changed = PIECES[1] * 1.001
    assert joined([record(whole)], records(PIECES[0], changed, PIECES[2]), 1e-6) == ([], [])


def test_pieces_of_another_size_make_no_whole() -> None:
    whole = np.concatenate([PIECES[0], PIECES[2]], axis=1)
    assert joined([record(whole)], records(PIECES[0], PIECES[2][:, :2]), 1e-6) == ([], [])


def test_counts_that_are_written_one_after_another_are_found_in_the_vector_of_all() -> None:
    counts = np.array([17.0, 10.0, 14.0, 7.0])
    wholes, parts = joined([record(counts)], records(*(counts[each : each + 1] for each in range(4))), 1e-6)
    assert (len(wholes), len(parts)) == (1, 4)


def test_tensor_of_one_value_is_no_whole_of_others() -> None:
    assert joined([record(np.zeros(6))], records(np.zeros(2), np.zeros(4)), 1e-6) == ([], [])
