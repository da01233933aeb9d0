"""Differences of two programs, judged one by one: which are causes, which are refuted, and which meet again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdump.comparison.alignment import align
from opdump.comparison.end_state import outliving
from opdump.comparison.nodes import Node, Suspect
from opdump.comparison.substitution import Attribution, Substitution, attribute
from opdump.comparison.trace import Trace
from tests.comparison.hand_made import node, record
from tests.comparison.programs import Program, traced

pytestmark = pytest.mark.torch


class Compared:
    """Two programs, and the differences that reach the operators of these types first."""

    def __init__(self, path: Path, a: Program, b: Program, *reached: str) -> None:
        one, other = traced(path / "a", a), traced(path / "b", b)
        alignment = align(one, other)
        self.differences = [{node.index for node in other.nodes if node.bare_type == each} for each in reached]
        assert all(index in alignment.a_of for nodes in self.differences for index in nodes), (
            "A has these operators too"
        )
        lasting = outliving(one, frozenset()), outliving(other, frozenset())
        self.substitution = Substitution(one, other, alignment, set().union(*self.differences), lasting)

    def causes(self) -> tuple[list[int], bool]:
        return self.substitution.causes(self.differences)

    def left_behind(self) -> set[int]:
        return self.substitution.left_behind(self.differences)


def test_a_difference_that_changes_nothing_is_no_cause_and_another_is_one(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        below = (x - 100).relu()
        (below + x).exp()

    def second(x: Any) -> None:
        below = (x - 100).mul(2).relu()
        (below + x.mul(1.1)).exp()

    compared = Compared(tmp_path, first, second, "relu", "add")
    assert compared.causes() == ([1], True)
    assert compared.left_behind() == {0}, "zeros are zeros"


@pytest.mark.parametrize("factor", [2.0, 2.1])
def test_two_differences_that_cancel_each_other_are_no_cause(tmp_path: Path, factor: float) -> None:
    def first(x: Any) -> None:
        x.relu_().neg_().exp()

    def second(x: Any) -> None:
        x.mul_(2).relu_().div_(factor).neg_().exp()

    compared = Compared(tmp_path, first, second, "relu", "neg")
    assert compared.causes() == (([], True) if factor == 2 else ([1], True)), (
        "the output of relu is divided by another number"
    )


@pytest.mark.parametrize("factor", [3.0, 3.1])
def test_a_factor_on_the_other_side_of_a_product_is_left_behind(tmp_path: Path, factor: float) -> None:
    def first(x: Any) -> None:
        (x.mm(x.T) * 3).tanh().sum()

    def second(x: Any) -> None:
        (x * factor).mm(x.T).tanh().sum()

    compared = Compared(tmp_path, first, second, "mm")
    assert compared.left_behind() == ({0} if factor == 3 else set())
    assert compared.causes() == ([], factor == 3), "A's product without its factor is no better"


def test_a_difference_that_meets_at_a_later_value_is_left_behind(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.exp().log().tanh()

    def second(x: Any) -> None:
        ((x + 1).exp().log() - 1).tanh()

    assert Compared(tmp_path, first, second, "exp").left_behind() == {0}


def test_a_difference_that_meets_on_only_one_path_is_not_resolved(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        made = x.exp()
        made.log().tanh()
        made.cos()

    def second(x: Any) -> None:
        made = (x + 1).exp()
        (made.log() - 1).tanh()
        made.cos()

    assert Compared(tmp_path, first, second, "exp").left_behind() == set()


def test_random_numbers_of_the_second_program_are_those_of_the_first(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        import torch

        torch.manual_seed(1)
        (x + torch.rand(5, 3)).tanh()

    def second(x: Any) -> None:
        import torch

        torch.manual_seed(2)
        (torch.rand(5, 3) + x).abs().tanh()

    def without(x: Any) -> None:
        import torch

        torch.manual_seed(2)
        (torch.rand(5, 3) + x).tanh()

    assert Compared(tmp_path / "other", first, second, "tanh").causes() == ([0], True)
    assert Compared(tmp_path / "same", first, without, "tanh").causes() == ([], True)


def test_what_leaves_most_as_it_is_is_no_cause(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.exp()
        x.tanh()
        x.cos()

    def second(x: Any) -> None:
        (x + 1).exp()
        (x + 1).tanh()
        (x + 1).cos()

    assert Compared(tmp_path, first, second, "exp").causes() == ([], False)


def test_what_was_mended_on_the_way_to_the_cause_is_no_cause(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        below = x.exp()
        below.tanh()
        below.cos()

    def second(x: Any) -> None:
        below = (x + 1).exp()
        below.tanh()
        below.cos()

    assert Compared(tmp_path, first, second, "tanh", "exp").causes() == ([1], True)


class Tried:
    """Two programs, a suspect at the first operator of each of these types in B, and the verdict on each suspect."""

    def __init__(self, path: Path, a: Program, b: Program, *types: str, unreached: str = "") -> None:
        one, other = traced(path / "a", a), traced(path / "b", b)
        alignment = align(one, other)

        def suspect(bare_type: str) -> Suspect:
            node = next(node for node in other.nodes if node.bare_type == bare_type)
            partner = alignment.a_of.get(node.index)
            return Suspect(
                "input", None if partner is None else one.nodes[partner], node, "input", 0, math.inf, "differs"
            )

        self.suspects = [suspect(each) for each in types]
        self.unreached = [suspect(unreached)] if unreached else []
        reached = [(each, {_of_b(each).index}) for each in self.suspects]
        lasting = outliving(one, frozenset()), outliving(other, frozenset())
        self.found: Attribution = attribute(one, other, alignment, reached, self.unreached, lasting)

    def names(self, part: str) -> list[str]:
        return [_of_b(suspect).bare_type for suspect in getattr(self.found, part)]


def _of_b(suspect: Suspect) -> Node:
    assert suspect.b is not None
    return suspect.b


def _first(x: Any) -> None:
    below = (x - 100).relu()
    (below + x).exp()


def test_the_difference_that_changes_what_is_left_is_the_cause_and_the_other_is_refuted(tmp_path: Path) -> None:
    def second(x: Any) -> None:
        below = (x - 100).mul(2).relu()
        (below + x.mul(1.1)).exp()

    tried = Tried(tmp_path, _first, second, "relu", "add")
    assert tried.names("causes")[-1] == "add"
    assert "relu" not in tried.names("causes"), "zeros are zeros"
    assert tried.names("refuted") == ["relu"]
    assert tried.names("doubtful") == []


def test_where_both_leave_the_same_nothing_is_a_cause(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.relu().neg().exp()

    def second(x: Any) -> None:
        x.mul(2).relu().div(2).neg().exp()

    tried = Tried(tmp_path, first, second, "relu", "neg")
    assert tried.names("causes") == []
    assert tried.names("doubtful") == []


def test_the_operator_that_gives_what_the_other_program_has_nowhere_is_named(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.tanh().exp().sum().item()

    def second(x: Any) -> None:
        x.mul(1.1).tanh().exp().sum().item()

    tried = Tried(tmp_path, first, second, "tanh")
    (cause, *_) = tried.found.causes
    assert (cause.kind, _of_b(cause).bare_type, cause.a) == ("extra", "mul", None)
    assert "an output that no operator of A produces" in cause.evidence


def test_an_existing_suspect_gets_the_evidence_of_a_missing_output(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.tanh().exp().sum().item()

    def second(x: Any) -> None:
        x.mul(1.1).tanh().exp().sum().item()

    tried = Tried(tmp_path, first, second, "mul", "tanh")
    assert tried.found.causes[0] is tried.suspects[0], "no second suspect is created for it"


def test_what_is_seen_at_the_end_alone_is_refuted_by_a_cause_that_explains_all(tmp_path: Path) -> None:
    def second(x: Any) -> None:
        below = (x - 100).relu()
        (below + x.mul(1.1)).exp()

    tried = Tried(tmp_path, _first, second, "add", unreached="exp")
    assert "add" in tried.names("causes")
    assert tried.names("refuted") == ["exp"]


def test_of_causes_that_explain_a_part_the_others_are_doubtful(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.mul(1.2).exp().sin()
        x.mul(1.2).tanh().cos()
        x.mul(1.3).neg().sigmoid()

    def second(x: Any) -> None:
        x.mul(1.1).exp().sin()
        x.mul(1.1).tanh().cos()
        x.mul(1.2).neg().sigmoid()

    tried = Tried(tmp_path, first, second, "exp", "tanh", unreached="neg")
    assert tried.names("causes") == ["exp", "tanh"]
    assert tried.names("doubtful") == ["neg"]
    assert tried.names("refuted") == []


@pytest.mark.parametrize("other_data", [0.0, 1.0])
def test_a_kernel_that_cannot_run_again_gives_the_outputs_of_the_other_run_only_for_its_inputs(
    other_data: float,
) -> None:
    x = np.arange(1.0, 7.0)

    def step(factor: float, data: float) -> Trace:
        product, hidden = x * factor, np.sin(x * factor) + data
        given = [record(product, 1), record(x + data, 4)]
        nodes = [
            node(0, "neg", [record(-product, 0)], [record(product, 1, io="output")]),
            node(1, "hidden", given, [record(hidden, 2, io="output")], makers={0: (0, 0)}),
            node(2, "update", [record(hidden, 2)], [record(hidden, 3, io="output")], "optimizer", {0: (1, 0)}),
        ]
        return Trace(0, 0, nodes)

    one, other = step(2.0, 0.0), step(3.0, other_data)
    substitution = Substitution(one, other, align(one, other), {0}, ({3}, {3}))
    assert substitution.causes([{0}]) == (([], False) if other_data else ([0], True))
