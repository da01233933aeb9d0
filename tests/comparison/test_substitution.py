"""Differences of two programs, judged one by one: which change B's end state, and which meet again at a value of A."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opdump.comparison.alignment import align
from opdump.comparison.end_state import outliving
from opdump.comparison.substitution import Substitution
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
