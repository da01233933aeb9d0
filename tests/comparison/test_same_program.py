"""Matching the operators of two runs of one program by place equals matching them one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import opdump
from opdump.comparison import alignment
from opdump.comparison.alignment import Precedents, align, common_blocks, run_the_same
from opdump.comparison.memory import read_step
from opdump.comparison.nodes import Node
from opdump.comparison.trace import Trace
from tests.comparison.hand_made import node, record
from tests.comparison.test_repeated_steps import exactly, rounded, written


def trace(*nodes: Node) -> Trace:
    return Trace(0, 0, list(nodes))


def program() -> list[Node]:
    first = node(0, "mul", [record([1.0, 2.0], 0, "Parameter.w")], [record([2.0, 4.0], 1)])
    second = node(1, "add", [record([2.0, 4.0], 1)], [record([3.0, 5.0], 2)], makers={0: (0, 0)})
    return [first, second]


def test_same_operators_on_the_same_memory_are_the_same_program_whatever_they_compute() -> None:
    one, other = program(), program()
    other[1] = replace(other[1], outputs={0: record([9.0, 9.0], 2)})
    assert run_the_same(trace(*one), trace(*other))


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
    assert not run_the_same(trace(first, second), trace(first, other))
    assert not run_the_same(trace(first, second), trace(first))


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
        return trace(*nodes)

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
