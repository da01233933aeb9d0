"""The end states of two programs: what is compared, and where the values of one are found in the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from opdump.comparison.alignment import Alignment
from opdump.comparison.end_state import End, ExpectedEndState, LastingTensor, is_same, outliving, remaining
from opdump.comparison.execution import Execution
from opdump.comparison.memory import Carried, Named, StateMapping
from opdump.comparison.nodes import Node
from opdump.comparison.results import results
from opdump.comparison.trace import Trace
from opdump.records import TensorRecord
from tests.comparison.hand_made import Array, node, record

WEIGHT = np.arange(6.0, dtype=np.float32).reshape(2, 3)
AVERAGE = np.linspace(0, 1, 4, dtype=np.float32)


def _step(weight: int, average: int, finals: bool = True) -> Trace:
    """A MatMul reads the weight, an SGD updates it, and a Lerp updates the average, in these storages. The activation
    is in storage 9.
    """
    given = record(WEIGHT, weight, "Parameter.net.weight")
    nodes = [
        node(0, "MatMul", [given], [record(WEIGHT, 9, io="output")]),
        node(1, "SGD", [record(WEIGHT, weight)], [record(WEIGHT, weight, io="output")], "optimizer"),
        node(2, "Lerp", [record(AVERAGE, average)], [record(AVERAGE, average, io="output")], "optimizer"),
    ]
    return Trace(0, 0, nodes, {"net.weight": record(WEIGHT, weight)} if finals else {})


def _run(trace: Trace, weight: Any, average: Any) -> Execution:
    """The step, in which SGD left this weight and Lerp this average."""
    run = Execution(trace)
    run.write(trace.nodes[1], {0: np.asarray(weight)})
    run.write(trace.nodes[2], {0: np.asarray(average)})
    return run


def _remaining(of_b: tuple[Any, Any], storages: Mapping[int, int], *, finals: bool = True) -> list[LastingTensor]:
    reference = _run(_step(0, 1, finals), WEIGHT, AVERAGE)
    run = _run(_step(4, 3, finals), *of_b)
    same = {0: 0, 1: 1, 2: 2}
    return list(remaining(reference, run, Alignment(same, same, storages=storages)))


def test_a_parameter_is_compared_by_its_name_and_the_rest_by_its_storage() -> None:
    weight, average = _remaining((WEIGHT, AVERAGE), {0: 4, 1: 3})
    assert (weight.records[0].memory, weight.records[1].memory) == (
        record(WEIGHT, 0).memory,
        record(WEIGHT, 4).memory,
    )
    assert not weight.difference
    assert not average.difference
    assert average.writers_a == average.writers_b == {2}


def test_what_was_left_different_is_reported_with_its_writer() -> None:
    (weight, average) = _remaining((WEIGHT * 2, AVERAGE), {0: 4, 1: 3})
    assert weight.difference.relative == 1.0
    assert weight.writers_a == weight.writers_b == {1}
    assert weight.b.index == 3, "as if it were read after the last node"
    assert not average.difference


def test_a_storage_that_is_none_of_the_other_program_is_not_compared() -> None:
    (weight,) = _remaining((WEIGHT, AVERAGE * 2), {0: 4})
    assert weight.records[1].memory == record(WEIGHT, 4).memory


def test_without_names_parameters_are_compared_by_storage_too() -> None:
    found = _remaining((WEIGHT * 2, AVERAGE), {0: 4, 1: 3}, finals=False)
    assert [bool(each.difference) for each in found] == [True, False]


def test_a_single_number_counts_steps_and_is_left_unchanged() -> None:
    trace = Trace(0, 0, [node(0, "Add", [], [record(np.ones(1), 0, io="output")])])
    one, other = Execution(trace), Execution(trace)
    one.write(trace.nodes[0], {0: np.ones(1)})
    other.write(trace.nodes[0], {0: np.full(1, 2.0)})
    assert list(remaining(one, other, Alignment({0: 0}, {0: 0}, storages={0: 0}))) == []


def test_elements_that_neither_program_wrote_are_not_compared() -> None:
    def halves(written: Array) -> Execution:
        trace = Trace(0, 0, [node(0, "Add", [], [record(written, 0, offset=4, io="output")])])
        run = Execution(trace)
        run.write(trace.nodes[0], {0: written})
        return run

    (found,) = remaining(halves(np.ones(4)), halves(np.ones(4)), Alignment({0: 0}, {0: 0}, storages={0: 0}))
    assert not found.difference
    (found,) = remaining(halves(np.ones(4)), halves(np.full(4, 3.0)), Alignment({0: 0}, {0: 0}, storages={0: 0}))
    assert found.difference.relative == 2.0


def test_a_state_outlives_the_step_if_both_of_its_storages_do() -> None:
    weight, _ = _remaining((WEIGHT, AVERAGE), {0: 4, 1: 3})
    assert weight.outlives({0}, {4, 7})
    assert not weight.outlives({0}, {7})
    assert not weight.outlives(set(), {4})


def test_named_rewritten_and_trained_storages_outlive_a_step_and_activations_do_not() -> None:
    assert outliving(_step(0, 1), frozenset()) == {0}
    assert outliving(_step(0, 1), {1}) == {0, 1}
    nodes = [
        node(0, "MatMul", [record(WEIGHT, 2)], [record(WEIGHT, 9, io="output")]),
        node(1, "SGD", [record(WEIGHT, 2)], [record(WEIGHT, 2, io="output")], "optimizer"),
        node(2, "Lerp", [record(AVERAGE, 5)], [record(AVERAGE, 5, io="output")], "optimizer"),
    ]
    assert outliving(Trace(0, 0, nodes), frozenset()) == {2}, "read in the forward pass and written by an optimizer"
    data = [node(0, "MatMul", [record(WEIGHT, 2, "Parameter.inputs0")])]
    assert outliving(Trace(0, 0, data), frozenset()) == set(), "an input of a network is no state"


RANDOM = np.random.default_rng(0)
GOAL_WEIGHT = RANDOM.normal(size=(6, 4))
BIAS = RANDOM.normal(size=6)
LOSS = End(np.array([0.7, 0.9]), scale=1.0)


def _goal(*, is_coarse: bool = False) -> ExpectedEndState:
    return ExpectedEndState([End(GOAL_WEIGHT, 1.0), End(BIAS, 1.0)], [LOSS], is_coarse=is_coarse)


def test_what_is_left_in_other_places_is_not_missed() -> None:
    joined = np.concatenate([GOAL_WEIGHT.T.reshape(-1), BIAS])
    assert list(_goal().missed_by({7: End(joined, 1.0)}, [LOSS])) == []


def test_what_is_left_nowhere_is_named_by_its_storage_and_a_loss_by_its_place() -> None:
    left = {3: End(GOAL_WEIGHT * 1.01, 1.0), 4: End(BIAS, 1.0)}
    other_loss = End(np.array([0.7, 0.8]), 1.0)
    assert list(_goal().missed_by(left, [LOSS, other_loss])) == [3, ("other", 1)]


def test_what_lasts_is_not_found_among_the_losses() -> None:
    assert list(_goal().missed_by({3: LOSS}, [End(BIAS, 1.0)])) == [3, ("other", 0)]


def test_a_single_number_and_whole_numbers_count_steps_and_are_left_unchanged() -> None:
    counters = {1: End(np.array([17.0]), 1.0), 2: End(np.array([5, 6, 7]), 1.0)}
    assert list(_goal().missed_by(counters, [])) == []


@pytest.mark.parametrize(
    ("share", "is_missed_coarsely", "is_missed"), [(1e-2, True, True), (1e-4, False, True), (1e-8, False, False)]
)
def test_a_coarse_goal_takes_what_is_off_by_less_than_a_thousandth_of_what_the_step_did(
    share: float, is_missed_coarsely: bool, is_missed: bool
) -> None:
    left = {3: End(GOAL_WEIGHT + share, 1.0)}
    assert bool(list(_goal(is_coarse=True).missed_by(left, []))) is is_missed_coarsely
    assert bool(list(_goal().missed_by(left, []))) is is_missed


def test_a_tensor_may_be_off_by_what_a_step_does_to_it_and_not_by_what_it_holds() -> None:
    goal = ExpectedEndState([End(GOAL_WEIGHT, 1e-3)], [], is_coarse=False)
    assert list(goal.missed_by({3: End(GOAL_WEIGHT + 1e-6, 1e-3)}, [])) == [3]
    assert list(goal.missed_by({3: End(GOAL_WEIGHT + 1e-6, 1e3)}, [])) == []


def test_gradients_that_are_zero_by_mathematics_are_not_missed_beside_those_that_are_not() -> None:
    rounding = RANDOM.normal(size=6) * 1e-16
    left = {9: End(rounding, 1e-16)}
    others = [End(GOAL_WEIGHT, 1.0), End(BIAS, 1.0)]
    zeros = End(np.zeros(6), 0.0)
    assert list(ExpectedEndState([*others, zeros], [], is_coarse=False).missed_by(left, [])) == []
    assert list(ExpectedEndState([zeros], [], is_coarse=False).missed_by(left, [])) == [9], (
        "nothing shows how large a step is"
    )


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


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_end_without_a_finite_value_is_only_the_same_as_itself(value: float) -> None:
    lost, kept = End(np.full(3, value), np.inf), End(np.ones(3), 1.0)
    assert is_same(lost, lost)
    assert not is_same(kept, lost)
    assert not is_same(lost, kept)
    assert np.isfinite(lost.tolerance)


@pytest.mark.parametrize(("kernel", "count"), [("mindspore::Adam", 0), ("mindspore::ApplyMomentum", 1)])
def test_an_output_with_unspecified_content_is_no_write_to_a_parameter(kernel: str, count: int) -> None:
    update = node(0, "Update", [record(WEIGHT, 0, "Parameter.weight")], [record(WEIGHT, 0, io="output")], "optimizer")
    update = replace(update, op=replace(update.op, kernel=kernel))
    assert len(results(Trace(0, 0, [update])).written) == count
