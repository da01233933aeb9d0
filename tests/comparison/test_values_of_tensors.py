"""Tensors of two runs by their elements and statistics: distances, searches among others, pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from opdump.comparison.differences import Elements, apart, difference, has_statistics
from opdump.comparison.lost_values import joined
from opdump.comparison.nodes import Node
from opdump.comparison.step_statistics import StepRows, ValueIndex, columns_of, rows_apart
from opdump.kernels import summarise
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics

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


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_fills_of_a_mask_hide_no_difference_even_if_numbers_were_added_to_them(kind: str) -> None:
    scores = GENERATOR.standard_normal((6, 6))
    masked, twice = (np.where(np.tri(6, dtype=bool), each, -1e9) for each in (scores, 2 * scores))
    moved, moved_twice = (each - each.max(1, keepdims=True) for each in (masked, twice))
    for one, other in ((masked, twice), (moved, moved_twice)):
        assert difference(one.astype(kind), other.astype(kind)).relative > 0.1
    assert difference(moved.astype("float32"), moved).relative < 1e-6
    others = np.where(masked < -1, -1.01e9, masked)
    assert difference(masked.astype(kind), others.astype(kind)).relative > 1e-3, "another fill is a difference"


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
    ids=["unchanged", "split", "transposed", "by head", "slice"],
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


DRAWN = np.random.default_rng(3)
ODD = [math.nan, math.inf, -math.inf, 0.0, 1.0, -1.0, 1e-300, 1e300]


def record_with(statistics: Mapping[str, float] | SummaryStatistics, size: int, dtype: str = "float32") -> TensorRecord:
    op = OpRecord(op_type="mm", op_name="mm-op0", timestamp=1)
    return TensorRecord(op, "output", 0, dtype, (size,), statistics=statistics)


def of_values(size: int) -> TensorRecord:
    return record_with(SummaryStatistics(summarise(DRAWN.normal(size=size).astype(np.float32))), size)


def odd_records(count: int) -> list[TensorRecord]:
    """Records with statistics of any kind, some of them missing."""
    found = []
    for _ in range(count):
        names = [name for name in ("max", "min", "avg", "l2norm") if DRAWN.random() < 0.8]
        numbers = {name: float(DRAWN.choice(ODD)) for name in names}
        if "l2norm" in numbers:
            numbers["l2norm"] = abs(numbers["l2norm"])
        found.append(record_with(numbers, int(DRAWN.integers(1, 3))))
    return found


def test_distances_in_columns_equal_those_of_each_pair() -> None:
    one = [*odd_records(3000), *(of_values(size % 5 + 1) for size in range(200))]
    other = [*odd_records(3000), *(of_values(size % 5 + 1) for size in range(200))]
    expected = [apart(a, b) for a, b in zip(one, other, strict=True)]
    found = rows_apart(columns_of(one), columns_of(other)).tolist()
    assert [None if math.isnan(each) else each for each in found] == expected


def test_columns_of_nothing_are_no_rows() -> None:
    assert rows_apart(columns_of([]), columns_of([])).tolist() == []


def test_a_tensor_that_was_left_out_cannot_be_compared() -> None:
    left_out = TensorRecord(OpRecord("mm", "mm-op0", 1), "output", 0, "float32", (2,), skip="opaque")
    assert columns_of([left_out, of_values(3)]).told.tolist() == [False, True]


@pytest.mark.parametrize("wide", [1e-3, 0.5])
def test_nearest_value_is_that_of_all_whose_norm_is_near(wide: float) -> None:
    base = [of_values(8) for _ in range(30)]
    held = [*base, *odd_records(100), *(_shifted(each, 1e-5) for each in base[:5])]
    index = ValueIndex(held, wide)
    for each in [*base, *(_shifted(each, 3e-4) for each in base), *filter(has_statistics, odd_records(100))]:
        assert index.distance(each) == _nearest(each, held, wide)


def _nearest(record_with: TensorRecord, held: list[TensorRecord], wide: float) -> float:
    found = math.inf
    for each in held:
        if has_statistics(each) and each.shape == record_with.shape and _is_near(_norm(record_with), _norm(each), wide):
            distance = apart(record_with, each)
            found = found if distance is None else min(found, distance)
    return found


def _norm(record_with: TensorRecord) -> float:
    norm = float(record_with.statistics["l2norm"])
    return math.inf if math.isnan(norm) else norm


def _is_near(norm: float, other: float, wide: float) -> bool:
    return other == norm if math.isinf(norm) else norm * (1 - wide) <= other <= norm * (1 + wide)


def _shifted(record_with: TensorRecord, by: float) -> TensorRecord:
    assert isinstance(record_with.statistics, SummaryStatistics)
    summary = record_with.statistics.summary
    moved = summary._replace(max=summary.max * (1 + by), sum=summary.sum * (1 - by))
    return TensorRecord(
        record_with.op, "output", 0, record_with.dtype, record_with.shape, statistics=SummaryStatistics(moved)
    )


def test_mask_is_found_by_what_it_leaves_out() -> None:
    mask = {"max": 1.0, "min": 0.0, "avg": 0.25, "l2norm": math.sqrt(2.0)}
    other = {"max": 1.0, "min": 0.0, "avg": 0.75, "l2norm": math.sqrt(6.0)}
    assert ValueIndex([record_with(mask, 8, "bool")], 1e-3).distance(record_with(other, 8, "bool")) < 1e-12


def _node(index: int, kind: str, inputs: list[float], output: float, shapes: tuple[int, int] = (4, 4)) -> Node:
    op = OpRecord(kind, f"{kind}-op{index}", index, phase="backward" if kind.endswith("backward") else "forward")
    given = {slot: record_with({"l2norm": norm}, shapes[0]) for slot, norm in enumerate(inputs)}
    return Node(index, op, given, {0: record_with({"l2norm": output}, shapes[1])})


def test_share_left_of_a_sum_is_that_of_its_summands() -> None:
    nodes = [
        _node(0, "add", [3.0, 4.0], 2.0),
        _node(1, "mm", [3.0, 4.0], 6.0),
        _node(2, "mean", [8.0], 1.0, (16, 4)),
        _node(3, "tanh_backward", [2.0, 100.0], 1.0),
        _node(4, "relu", [3.0], 0.0),
        _node(5, "sum", [0.0], 0.0),
        _node(6, "add", [3.0, 4.0], math.nan),
        _node(7, "addmm", [1.0, 2.0, 5.0], 1.0),
        _node(8, "mm", [math.inf, 1.0], 1.0),
    ]
    columns = columns_of(
        [*(each.outputs[0] for each in nodes), *(record_with for each in nodes for record_with in each.inputs.values())]
    )
    shares = StepRows(nodes).shares_left(columns.norms, columns.told)
    assert shares.tolist() == [0.5, 0.5, 0.25, 0.5, math.inf, math.inf, math.inf, 0.2, 0.0]
