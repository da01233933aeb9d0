"""The end states of two programs: parameters are compared by name, everything else by storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opdump.comparison.alignment import Alignment
from opdump.comparison.end_state import LastingTensor, outliving, remaining
from opdump.comparison.execution import Execution
from opdump.comparison.trace import Trace
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


def test_what_was_left_otherwise_is_told_with_who_wrote_it() -> None:
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


def test_a_single_number_counts_steps_and_is_left_alone() -> None:
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
