"""Differences of two programs, judged one by one: which of them change what B leaves, and which meet again at a value that A has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opdump
from opdump.comparison.alignment import align
from opdump.comparison.mending import Mending
from opdump.comparison.trace import Trace
from opdump.comparison.whole_steps import read_step

pytestmark = pytest.mark.torch

Program = Callable[[Any], Any]
"""Computes something of the product of data and a weight."""


def _traced(path: Path, program: Program) -> Trace:
    import torch

    torch.manual_seed(0)
    data, weight = torch.randn(5, 4), torch.randn(4, 3)
    with opdump.capture(path=str(path), saved_data="full"):
        program(data @ weight)
    return read_step(opdump.open(path), 0)


class Compared:
    """Two programs, and the differences that reach the operators of these types first."""

    def __init__(self, path: Path, a: Program, b: Program, *reached: str) -> None:
        one, other = _traced(path / "a", a), _traced(path / "b", b)
        alignment = align(one, other)
        self.differences = [{node.index for node in other.nodes if node.bare_type == each} for each in reached]
        assert all(index in alignment.a_of for nodes in self.differences for index in nodes), (
            "A has these operators, too"
        )
        storages = {
            record.memory.storage
            for node in other.nodes
            for record in node.outputs.values()
            if record.memory is not None
        }
        self.mending = Mending(one, other, alignment, set().union(*self.differences), storages)

    def harmless(self) -> set[int]:
        return self.mending.harmless(self.differences)

    def left_behind(self) -> set[int]:
        return self.mending.left_behind(self.differences)


def test_a_difference_that_changes_nothing_is_harmless_and_another_is_not(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        below = (x - 100).relu()
        (below + x).exp()

    def second(x: Any) -> None:
        below = (x - 100).mul(2).relu()
        (below + x.mul(1.1)).exp()

    compared = Compared(tmp_path, first, second, "relu", "add")
    assert compared.harmless() == {0}
    assert compared.left_behind() == {0}, "zeros are zeros"


@pytest.mark.parametrize("factor", [2.0, 2.1])
def test_two_that_cancel_each_other_are_harmless_together(tmp_path: Path, factor: float) -> None:
    def first(x: Any) -> None:
        x.relu_().neg_().exp()

    def second(x: Any) -> None:
        x.mul_(2).relu_().div_(factor).neg_().exp()

    compared = Compared(tmp_path, first, second, "relu", "neg")
    assert compared.harmless() == ({0, 1} if factor == 2 else {0}), "what relu gives is written over"


@pytest.mark.parametrize("factor", [3.0, 3.1])
def test_a_factor_on_the_other_side_of_a_product_is_left_behind(tmp_path: Path, factor: float) -> None:
    def first(x: Any) -> None:
        (x.mm(x.T) * 3).tanh().sum()

    def second(x: Any) -> None:
        (x * factor).mm(x.T).tanh().sum()

    compared = Compared(tmp_path, first, second, "mm")
    assert compared.left_behind() == ({0} if factor == 3 else set())
    assert compared.harmless() == set(), "what the product gives is something else"


def test_a_difference_that_meets_at_a_later_value_is_left_behind(tmp_path: Path) -> None:
    def first(x: Any) -> None:
        x.exp().log().tanh()

    def second(x: Any) -> None:
        ((x + 1).exp().log() - 1).tanh()

    assert Compared(tmp_path, first, second, "exp").left_behind() == {0}


def test_a_difference_that_meets_on_one_way_alone_is_not_left_behind(tmp_path: Path) -> None:
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

    assert Compared(tmp_path / "other", first, second, "tanh").harmless() == set()
    assert Compared(tmp_path / "same", first, without, "tanh").harmless() == {0}
