"""Where values begin that the other program lacks, which parameter an optimizer's operator belongs to, and which data
differ.
"""

from __future__ import annotations

import numpy as np
import pytest

from opdump.comparison.arguments import differing
from opdump.comparison.causes import Sources
from opdump.comparison.execution import Constants, Execution
from opdump.comparison.integrity import changed_data
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, owners
from opdump.records import OpRecord, TensorRecord
from tests.comparison.hand_made import node, record

VALUES = np.arange(1.0, 7.0, dtype=np.float32)


def chain(*types: str) -> Trace:
    """Operators that each read the output of the one before."""
    nodes = [
        node(index, each, [record(VALUES)], [record(VALUES, io="output")], makers={0: (index - 1, 0)} if index else {})
        for index, each in enumerate(types)
    ]
    return Trace(0, 0, nodes)


def followed(trace: Trace, known: set[int]) -> Sources:
    """The sources of a program if the other program has the outputs of `known`."""
    found = Sources(trace)
    for each in trace.nodes:
        for slot, (maker, _) in each.makers.items():
            found.read(each, slot, VALUES, [maker], is_known=maker in known)
        found.gives(each, {0: VALUES}, is_known=each.index in known)
    return found


def test_the_first_that_gives_something_else_is_the_source() -> None:
    assert followed(chain("mul", "exp", "sum"), known={0}).of([2], matched={1, 2}) == [1]


def test_an_operator_whose_effect_is_known_further_on_is_no_source() -> None:
    trace = Trace(
        0,
        0,
        [
            node(0, "mul", [record(VALUES)], [record(VALUES, io="output")]),
            node(1, "div", [record(VALUES)], [record(VALUES, io="output")], makers={0: (0, 0)}),
            node(2, "exp", [record(VALUES)], [record(VALUES, io="output")]),
            node(
                3, "add", [record(VALUES), record(VALUES)], [record(VALUES, io="output")], makers={0: (0, 0), 1: (2, 0)}
            ),
        ],
    )
    assert followed(trace, known={1}).of([3], matched={2, 3}) == [2]


def test_of_a_copy_of_another_part_the_reader_is_named() -> None:
    assert followed(chain("mul", "clone", "sum"), known={0}).of([2], matched={1, 2}) == [2]


def test_nothing_is_a_source_where_all_is_known() -> None:
    assert followed(chain("mul", "exp"), known={0, 1}).of([1], matched={0, 1}) == []


def test_a_constant_is_no_source_and_who_reads_it_is() -> None:
    trace = chain("mul", "exp", "sum")
    assert followed(trace, known=set()).of([2], matched={1, 2}, constants={0}) == [1]


def test_an_operator_with_different_data_is_no_source() -> None:
    trace = chain("mul", "exp")
    found = Sources(trace)
    found.read(trace.nodes[0], 0, VALUES, [-1], is_known=False)
    for each in trace.nodes:
        found.gives(each, {0: VALUES}, is_known=False)
    found.read(trace.nodes[1], 0, VALUES, [0], is_known=False)
    assert found.of([1], matched={0, 1}) == []


def test_what_gives_floats_comes_before_what_gives_a_mask() -> None:
    nodes = [
        node(0, "gt", [record(VALUES)], [record(VALUES > 2, io="output")]),
        node(1, "mul", [record(VALUES)], [record(VALUES, io="output")]),
        node(2, "where", [record(VALUES > 2), record(VALUES)], makers={0: (0, 0), 1: (1, 0)}),
    ]
    found = Sources(Trace(0, 0, nodes))
    found.gives(nodes[0], {0: VALUES > 2}, is_known=False)
    found.gives(nodes[1], {0: VALUES}, is_known=False)
    found.read(nodes[2], 0, VALUES > 2, [0], is_known=False)
    found.read(nodes[2], 1, VALUES, [1], is_known=False)
    found.gives(nodes[2], {0: VALUES}, is_known=False)
    assert found.of([2], matched={2}) == [1]


def test_an_operator_of_an_optimizer_belongs_to_the_parameter_that_is_written() -> None:
    trace = Trace(
        0,
        0,
        [
            node(0, "mul", [record(VALUES, 1)], [record(VALUES, 2, io="output")], phase="optimizer"),
            node(
                1,
                "add_",
                [record(VALUES, 7), record(VALUES, 2)],
                [record(VALUES, 7, io="output")],
                phase="optimizer",
                makers={1: (0, 0)},
            ),
        ],
    )
    assert owners(trace, {7}) == {0: 7, 1: 7}
    assert owners(trace, set()) == {}


def test_what_serves_two_parameters_has_no_owner() -> None:
    writes = [
        node(
            index,
            "add_",
            [record(VALUES, storage), record(VALUES, 2)],
            [record(VALUES, storage, io="output")],
            phase="optimizer",
            makers={1: (0, 0)},
        )
        for index, storage in ((1, 7), (2, 8))
    ]
    trace = Trace(0, 0, [node(0, "norm", [], [record(VALUES, 2, io="output")], phase="optimizer"), *writes])
    assert owners(trace, {7, 8}) == {1: 7, 2: 8}


def data(values: list[float], kind: str = "float32") -> Trace:
    return Trace(0, 0, [node(0, "exp", [record(np.array(values, kind))], [record(VALUES, io="output")])])


def test_data_with_another_element_is_found() -> None:
    one, other = data([1, 2, 3, 4]), data([1, 2, 9, 4])
    ((first, second),) = changed_data(one, other, {(0, 0)}, {(0, 0)})
    assert (first.node, second.node) == (one.nodes[0], other.nodes[0])


@pytest.mark.parametrize("values", [[1, 2, 3, 4], [4, 3, 2, 1], [5, 6, 7, 4], [1, 2, 3], [1, 2, 3.000001, 4]])
def test_the_same_data_or_other_data_is_not_changed_data(values: list[float]) -> None:
    assert not list(changed_data(data([1, 2, 3, 4]), data(values), {(0, 0)}, {(0, 0)}))


def test_what_an_operator_writes_into_is_no_data() -> None:
    def sums(values: list[float]) -> Trace:
        array = np.array(values, np.float32)
        return Trace(0, 0, [node(0, "add_", [record(array, 1)], [record(VALUES, 1, io="output")])])

    assert not list(changed_data(sums([1, 2, 3, 4]), sums([1, 2, 9, 4]), {(0, 0)}, {(0, 0)}))


def test_what_is_made_of_nothing_is_constant_and_what_reads_data_is_not() -> None:
    nodes = [node(0, "arange"), node(1, "mul", [record(VALUES)]), node(2, "exp", [record(VALUES)])]
    run = Execution(Trace(0, 0, nodes))
    run.writers[2, 0] = frozenset({0})
    constants = Constants(run)
    assert [index in constants for index in range(3)] == [True, False, True]


def with_dimension(dim: int, rank: int) -> Node:
    read = TensorRecord(OpRecord("sum", "sum", 0), "input", 0, "float32", (2,) * rank)
    return Node(0, OpRecord("sum", "sum", 0, arguments={"dim": dim}), {0: read}, {})


def test_a_dimension_counted_from_the_last_is_the_same_as_from_the_first() -> None:
    assert not differing(with_dimension(-1, 3), with_dimension(2, 3))
    assert differing(with_dimension(-1, 3), with_dimension(1, 3)) == {"dim": (-1, 1)}
