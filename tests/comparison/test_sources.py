"""Where values begin that the other program lacks, and which operator belongs to which: traces made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opdump
from opdump.comparison import alignment
from opdump.comparison.across_frameworks import compare_across, of_different_frameworks
from opdump.comparison.alignment import Precedents, align, common_blocks, run_the_same
from opdump.comparison.arguments import differing
from opdump.comparison.causes import Sources
from opdump.comparison.differences import difference
from opdump.comparison.execution import Constants, Execution
from opdump.comparison.integrity import changed_data
from opdump.comparison.memory import read_step
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace, owners
from opdump.comparison.value_matching import drifted_inputs, match_values
from opdump.records import OpRecord, TensorRecord
from tests.comparison.hand_made import Array, node, record
from tests.comparison.test_repeated_steps import exactly, rounded, written

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


def test_the_reader_of_a_constant_is_a_source_and_the_constant_is_not() -> None:
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


RANDOM = np.random.default_rng(3)
X, WEIGHT, STATE, DRAWN = (RANDOM.standard_normal((4, 4)).astype(np.float32) for _ in range(4))
OUT = X @ WEIGHT
UPDATED = WEIGHT - np.float32(1e-4) * OUT


def trace(*nodes: Node, at: int = 0) -> Trace:
    return Trace(at, 0, nodes)


def update(index: int, op_type: str, given: Sequence[Array], made: Array, *makers: tuple[int, int]) -> Node:
    """An operator in the optimizer phase, made like `step`."""
    one = step(index, op_type, given, made, *makers)
    return replace(one, op=replace(one.op, phase="optimizer"))


def step(index: int, op_type: str, given: Sequence[Array], made: Array, *makers: tuple[int, int]) -> Node:
    """An operator with one output. Its first inputs come from `makers`."""
    return node(
        index, op_type, [record(each) for each in given], [record(made, io="output")], makers=dict(enumerate(makers))
    )


def test_a_weight_that_an_operator_reads_is_not_taken_for_the_weight_after_its_update() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(step(0, "ReadVariableOp", [], WEIGHT), step(1, "MatMul", [WEIGHT, X], OUT, (0, 0)))
    assert {(pair.a, pair.b) for pair in match_values(a, b).pairs.values()} == {((0, 0), (1, 0))}
    assert {(pair.a, pair.b) for pair in match_values(b, a).pairs.values()} == {((1, 0), (0, 0))}
    assert compare_across(a, b).suspects == []


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


@pytest.mark.parametrize(("off", "is_paired"), [(1e-6, True), (2e-3, False)])
def test_numbers_pair_only_within_rounding_and_tensors_within_a_percent(off: float, is_paired: bool) -> None:
    a = trace(step(0, "sum", [X], scalar(4.0)), step(1, "mm", [X, WEIGHT], OUT))
    b = trace(step(0, "Sum", [X], scalar(4.0 * (1 + off))), step(1, "MatMul", [X, WEIGHT], OUT * np.float32(1 + off)))
    pairs = match_values(a, b).pairs
    assert ((0, 0) in pairs, (1, 0) in pairs) == (is_paired, True)


@pytest.mark.parametrize("beginning", ["ones_like", "OnesLike", "zeros_like"])
@pytest.mark.parametrize("loss", [3.0, 4.0])
def test_a_loss_is_compared_though_its_gradient_begins_with_ones(beginning: str, loss: float) -> None:
    def program(types: Sequence[str], loss: float) -> Trace:
        return trace(
            step(0, types[0], [X, WEIGHT], OUT),
            step(1, types[1], [OUT], scalar(loss), (0, 0)),
            step(2, beginning, [scalar(loss)], scalar(1.0), (1, 0)),
            step(3, types[2], [scalar(1.0), OUT], UPDATED, (2, 0), (0, 0)),
        )

    found = compare_across(program(("mm", "sum", "mul"), 3.0), program(("MatMul", "ReduceSum", "Mul"), loss))
    assert [(each.a and each.a.index, each.b and each.b.index) for each in found.suspects] == [(1, 1)] * (loss != 3.0)


def test_a_weight_after_its_update_is_found_where_both_give_it() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(
        step(0, "ReadVariableOp", [], WEIGHT),
        step(1, "MatMul", [WEIGHT, X], OUT, (0, 0)),
        step(2, "Sub", [OUT, WEIGHT], UPDATED, (1, 0), (0, 0)),
    )
    assert {(pair.a, pair.b) for pair in match_values(a, b).pairs.values()} == {((0, 0), (1, 0)), ((1, 0), (2, 0))}


UNREAD = {
    "another result": lambda last: step(last, "relu", [OUT], np.maximum(OUT[:2], 0.1), (0, 0)),
    "a mask": lambda last: step(last, "greater", [OUT], OUT[:2] > 0, (0, 0)),
    "random numbers": lambda last: step(last, "uniform_", [STATE[:2]], DRAWN[:2]),
    "a constant": lambda last: step(last, "Fill", [], DRAWN[:2]),
    "its input": lambda last: step(last, "Identity", [STATE[:2]], STATE[:2]),
    "a count": lambda last: step(last, "add", [np.array(3)], np.array(4)),
}


@pytest.mark.parametrize("unread", UNREAD)
def test_results_without_counterpart_are_noted_unless_they_depend_on_no_input(unread: str) -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "mean", [OUT], OUT.mean(0), (0, 0)))
    b = trace(step(0, "MatMul", [X, WEIGHT], OUT), UNREAD[unread](1))
    found = compare_across(a, b)
    assert found.suspects == []
    assert any("not proven" in note for note in found.notes) == (unread in ("another result", "a mask"))


def test_values_of_which_every_pair_was_dropped_are_not_common() -> None:
    program = step(0, "mm", [X, WEIGHT], OUT), step(1, "exp", [OUT], np.exp(OUT), (0, 0))
    matched = match_values(trace(*program), trace(*program))
    kept = {place: pair for place, pair in matched.pairs.items() if place == (1, 0)}
    assert set(matched.a.made) == {(0, 0), (1, 0)}
    assert set(matched.only(kept).a.made) == set(matched.only(kept).b.made) == {(1, 0)}
    assert matched.only(kept).a.read == matched.a.read


def test_states_that_two_optimizers_scale_differently_are_no_difference() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "mul", [STATE], np.float32(0.9) * STATE))
    b = trace(
        step(0, "MatMul", [X, WEIGHT], OUT), update(1, "Mul", [np.float32(-0.05) * STATE], np.float32(-0.045) * STATE)
    )
    assert compare_across(a, b).suspects == []


def test_numbers_that_were_drawn_are_not_compared_with_an_update() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), update(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(
        step(0, "RandomUniform", [], DRAWN),
        step(1, "Add", [DRAWN], DRAWN - np.float32(0.5), (0, 0)),
        step(2, "MatMul", [X, WEIGHT], OUT),
    )
    assert compare_across(a, b).suspects == []


def test_another_update_of_the_same_gradient_is_a_difference() -> None:
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, WEIGHT], UPDATED, (0, 0)))
    b = trace(step(0, "MatMul", [X, WEIGHT], OUT), step(1, "Add", [OUT, WEIGHT], UPDATED + WEIGHT, (0, 0)))
    (found,) = compare_across(a, b).suspects
    assert (found.a, found.b) == (a.nodes[1], b.nodes[1])


def test_a_number_that_the_program_prints_is_no_result() -> None:
    counted = step(1, "AssignAdd", [np.array([1, 2])], np.array([2, 3]))
    a = trace(step(0, "mm", [X, WEIGHT], OUT), node(1, "_local_scalar_dense", [record(np.float32(3))]))
    found = compare_across(a, trace(step(0, "MatMul", [X, WEIGHT], OUT), counted))
    assert not any("not proven" in note for note in found.notes)


def test_an_operator_that_passes_a_value_on_is_not_compared_with_others() -> None:
    counted = step(2, "AssignAdd", [np.array([1, 2])], np.array([2, 3]))
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "add", [OUT, STATE], OUT + np.float32(0.3) * STATE, (0, 0)))
    b = trace(step(0, "MatMul", [X, WEIGHT], OUT), step(1, "Reshape", [OUT], OUT.reshape(4, 4), (0, 0)), counted)
    assert compare_across(a, b).suspects == []


def drifted(a: Trace, b: Trace) -> dict[tuple[int, int], Array]:
    return dict(drifted_inputs(a, b, match_values(a, b)))


def test_a_later_step_begins_with_what_rounding_has_moved() -> None:
    theirs = WEIGHT * np.float32(1 + 1e-6)
    a = step(0, "mm", [X, WEIGHT], OUT)
    b = step(0, "MatMul", [theirs.T, X], X @ theirs)
    assert drifted(trace(a), trace(b)) == {}
    assert drifted(trace(a, at=4), trace(b)) == {}
    found = drifted(trace(a, at=4), trace(b, at=4))
    np.testing.assert_array_equal(found[0, 1], theirs)
    np.testing.assert_array_equal(found[0, 0], X)


def test_a_weight_that_differs_has_not_drifted() -> None:
    theirs = WEIGHT.copy()
    theirs[1, 1] += 0.02
    a, b = step(0, "mm", [X, WEIGHT], OUT), step(0, "MatMul", [X, theirs], X @ theirs)
    assert set(drifted(trace(a, at=4), trace(b, at=4))) == {(0, 0)}


def test_a_state_that_the_other_does_not_show_moves_by_as_much_as_a_gradient_of_its_size() -> None:
    gradient = OUT * np.float32(1 + 2e-6)
    a = trace(step(0, "mm", [X, WEIGHT], OUT), step(1, "mul", [STATE], np.float32(0.9) * STATE), at=4)
    b = trace(step(0, "MatMul", [X, WEIGHT], gradient), at=4)
    found = drifted(a, b)[1, 0]
    (distance,) = [pair.distance for pair in match_values(a, b).pairs.values()]
    assert 1e-6 < distance < 3e-6
    assert difference(STATE, found).relative == pytest.approx(distance, rel=0.1)
    np.testing.assert_array_equal(drifted(a, b)[1, 0], found)
    assert (1, 0) not in drifted(a, trace(step(0, "MatMul", [X, WEIGHT], OUT), at=4))


def test_frameworks_are_two_by_what_the_dumps_say_or_by_the_names_of_their_operators() -> None:
    one, other = trace(step(0, "MatMul", [X, WEIGHT], OUT)), trace(step(0, "mm", [X, WEIGHT], OUT))
    assert not of_different_frameworks(one, one)
    assert not of_different_frameworks(one, one, ({"tensorflow"}, ()))
    assert not of_different_frameworks(one, one, ({"torch"}, {"torch"}))
    assert of_different_frameworks(one, one, ({"tensorflow"}, {"mindspore"}))
    assert of_different_frameworks(one, other)


def trace_of(*nodes: Node) -> Trace:
    return Trace(0, 0, list(nodes))


def program() -> list[Node]:
    first = node(0, "mul", [record([1.0, 2.0], 0, "Parameter.w")], [record([2.0, 4.0], 1)])
    second = node(1, "add", [record([2.0, 4.0], 1)], [record([3.0, 5.0], 2)], makers={0: (0, 0)})
    return [first, second]


def test_same_operators_on_the_same_memory_are_the_same_program_whatever_they_compute() -> None:
    one, other = program(), program()
    other[1] = replace(other[1], outputs={0: record([9.0, 9.0], 2)})
    assert run_the_same(trace_of(*one), trace_of(*other))


@pytest.mark.parametrize(
    "other",
    [
        node(1, "sub", [record([2.0, 4.0], 1)], [record([3.0, 5.0], 2)], makers={0: (0, 0)}),
        node(1, "add", [record([2.0, 4.0], 1)], [record([3.0, 5.0], 2)]),
        node(1, "add", [record([2.0, 4.0], 3)], [record([3.0, 5.0], 2)], makers={0: (0, 0)}),
        node(1, "add", [record([2.0, 4.0], 1)], [record([[3.0, 5.0]], 2)], makers={0: (0, 0)}),
        node(1, "add", [record([2.0, 4.0], 1, "Parameter.v")], [record([3.0, 5.0], 2)], makers={0: (0, 0)}),
        node(1, "add", [record([2.0, 4.0], 1)], [record([3.0, 5.0], 2)], "backward", {0: (0, 0)}),
    ],
    ids=["type", "maker", "memory", "shape", "name", "phase"],
)
def test_other_operator_makes_another_program(other: Node) -> None:
    first, second = program()
    assert not run_the_same(trace_of(first, second), trace_of(first, other))
    assert not run_the_same(trace_of(first, second), trace_of(first))


def test_operators_are_matched_by_their_places_as_they_are_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = opdump.open(written(tmp_path / "a", exactly)), opdump.open(written(tmp_path / "b", rounded))
    by_place, one_by_one = Precedents(), Precedents()
    for step in a.steps:
        one, other = read_step(a, step), read_step(b, step)
        quick = align(one, other, before=by_place)
        with monkeypatch.context() as patched:
            patched.setattr(alignment, "run_the_same", lambda *_: False)
            slow = align(one, other, before=one_by_one)
        assert quick == slow
        assert quick.b_of == {index: index for index in range(len(one.nodes))}
        by_place.add(one, other, quick)
        one_by_one.add(one, other, slow)


def test_parameters_that_changed_places_are_not_matched_by_place() -> None:
    def reads(*values: float) -> Trace:
        nodes = []
        for place, value in enumerate(values):
            numbers = {"max": value, "min": -value, "l2norm": value}
            given = replace(record([value, -value], place, f"Parameter.w{place}"), statistics=numbers)
            nodes.append(node(place, "mul", [given], [record([value], 10 + place)]))
        return trace_of(*nodes)

    a, b = reads(1.0, 2.0), reads(2.0, 1.0)
    assert run_the_same(a, b)
    assert align(a, b).b_of == {0: 1, 1: 0}


def _matched(blocks: Iterable[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(a + offset, b + offset) for a, b, size in blocks for offset in range(size)}


_EDITS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.booleans()), max_size=6)


@given(st.lists(st.integers(0, 2), max_size=60), _EDITS, st.integers(1, 3))
def test_common_blocks_are_those_of_difflib(a: list[int], edits: Sequence[tuple[int, int, bool]], kinds: int) -> None:
    a = [each % kinds for each in a]
    b = list(a)
    for place, number, inserts in edits:
        b[place : place + (not inserts)] = [number]
    expected = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    assert _matched(common_blocks(a, b)) == _matched(expected)


@pytest.mark.parametrize("body", [["mul"], ["mm", "add", "tanh"]])
def test_common_blocks_of_thousands_of_equal_rounds_with_one_more_operator_each(body: list[str]) -> None:
    a, b = body * 3000, [*body, "neg"] * 3000  # one block for each round: quadratic time for each would be hours
    assert len(_matched(common_blocks(a, b))) == len(a)
