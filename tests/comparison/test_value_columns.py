"""Comparing and searching the statistics of many tensors at once equals doing so pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from opdump.comparison.differences import apart
from opdump.comparison.nodes import Node
from opdump.comparison.step_statistics import StepRows, ValueIndex, columns_of, has_statistics, rows_apart
from opdump.kernels import summarise
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import SummaryStatistics

NUMBERS = np.random.default_rng(3)
ODD = [math.nan, math.inf, -math.inf, 0.0, 1.0, -1.0, 1e-300, 1e300]


def record(statistics: Mapping[str, float] | SummaryStatistics, size: int, dtype: str = "float32") -> TensorRecord:
    op = OpRecord(op_type="mm", op_name="mm-op0", timestamp=1)
    return TensorRecord(op, "output", 0, dtype, (size,), statistics=statistics)


def of_values(size: int) -> TensorRecord:
    return record(SummaryStatistics(summarise(NUMBERS.normal(size=size).astype(np.float32))), size)


def odd_records(count: int) -> list[TensorRecord]:
    """Records with statistics of any kind, some of them missing."""
    found = []
    for _ in range(count):
        names = [name for name in ("max", "min", "avg", "l2norm") if NUMBERS.random() < 0.8]
        numbers = {name: float(NUMBERS.choice(ODD)) for name in names}
        if "l2norm" in numbers:
            numbers["l2norm"] = abs(numbers["l2norm"])
        found.append(record(numbers, int(NUMBERS.integers(1, 3))))
    return found


def test_distances_in_columns_equal_those_of_each_pair() -> None:
    one = [*odd_records(3000), *(of_values(size % 5 + 1) for size in range(200))]
    other = [*odd_records(3000), *(of_values(size % 5 + 1) for size in range(200))]
    expected = [apart(a, b) for a, b in zip(one, other, strict=True)]
    found = rows_apart(columns_of(one), columns_of(other)).tolist()
    assert [None if math.isnan(each) else each for each in found] == expected


def test_columns_of_nothing_are_no_rows() -> None:
    assert rows_apart(columns_of([]), columns_of([])).tolist() == []


def test_tensor_that_was_left_out_has_nothing_to_be_told_by() -> None:
    left_out = TensorRecord(OpRecord("mm", "mm-op0", 1), "output", 0, "float32", (2,), skip="opaque")
    assert columns_of([left_out, of_values(3)]).told.tolist() == [False, True]


@pytest.mark.parametrize("wide", [1e-3, 0.5])
def test_nearest_value_is_that_of_all_whose_norm_is_near(wide: float) -> None:
    base = [of_values(8) for _ in range(30)]
    held = [*base, *odd_records(100), *(_shifted(each, 1e-5) for each in base[:5])]
    index = ValueIndex(held, wide)
    for each in [*base, *(_shifted(each, 3e-4) for each in base), *filter(has_statistics, odd_records(100))]:
        assert index.distance(each) == _nearest(each, held, wide)


def _nearest(record: TensorRecord, held: list[TensorRecord], wide: float) -> float:
    found = math.inf
    for each in held:
        if has_statistics(each) and each.shape == record.shape and _is_near(_norm(record), _norm(each), wide):
            distance = apart(record, each)
            found = found if distance is None else min(found, distance)
    return found


def _norm(record: TensorRecord) -> float:
    norm = float(record.statistics["l2norm"])
    return math.inf if math.isnan(norm) else norm


def _is_near(norm: float, other: float, wide: float) -> bool:
    return other == norm if math.isinf(norm) else norm * (1 - wide) <= other <= norm * (1 + wide)


def _shifted(record: TensorRecord, by: float) -> TensorRecord:
    assert isinstance(record.statistics, SummaryStatistics)
    summary = record.statistics.summary
    moved = summary._replace(max=summary.max * (1 + by), sum=summary.sum * (1 - by))
    return TensorRecord(record.op, "output", 0, record.dtype, record.shape, statistics=SummaryStatistics(moved))


def test_mask_is_found_by_what_it_leaves_out() -> None:
    mask = {"max": 1.0, "min": 0.0, "avg": 0.25, "l2norm": math.sqrt(2.0)}
    other = {"max": 1.0, "min": 0.0, "avg": 0.75, "l2norm": math.sqrt(6.0)}
    assert ValueIndex([record(mask, 8, "bool")], 1e-3).distance(record(other, 8, "bool")) < 1e-12


def _node(index: int, kind: str, inputs: list[float], output: float, shapes: tuple[int, int] = (4, 4)) -> Node:
    op = OpRecord(kind, f"{kind}-op{index}", index, phase="backward" if kind.endswith("backward") else "forward")
    given = {slot: record({"l2norm": norm}, shapes[0]) for slot, norm in enumerate(inputs)}
    return Node(index, op, given, {0: record({"l2norm": output}, shapes[1])})


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
        [*(each.outputs[0] for each in nodes), *(record for each in nodes for record in each.inputs.values())]
    )
    shares = StepRows(nodes).shares_left(columns.norms, columns.told)
    assert shares.tolist() == [0.5, 0.5, 0.25, 0.5, math.inf, math.inf, math.inf, 0.2, 0.0]
