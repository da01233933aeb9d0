"""Operators that cannot be replayed: from another package, or graphs that both runs compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdump
from opdump.comparison.alignment import align
from opdump.comparison.kernel_accuracy import opaque_suspects
from opdump.comparison.nodes import Suspect
from opdump.comparison.trace import Trace
from tests.comparison.hand_made import node, record

GIVEN = np.array([1.0, -2.0, 3.0, 0.5], np.float32)


def judged(
    first: Any, second: Any, *, given: Any = GIVEN, given_b: Any = None, kernel: str = "mine::fused"
) -> tuple[list[Suspect], set[str]]:
    """The verdict on an operator with output `first` in A and `second` in B."""

    def trace(values: Any, read: Any) -> Trace:
        made = node(0, "fused", [record(read)], [record(values, io="output")])
        return Trace(0, 0, [replace(made, op=replace(made.op, kernel=kernel))], {})

    a, b = trace(first, given), trace(second, given if given_b is None else given_b)
    return opaque_suspects(a, b, align(a, b))


@pytest.fixture
def fused() -> Iterator[Any]:
    """mine::fused multiplies by `factor[0]`."""
    torch = pytest.importorskip("torch")
    factor = [1.0]
    library = torch.library.Library("mine", "DEF")
    library.define("fused(Tensor x) -> Tensor")
    library.impl("fused", lambda x: x * factor[0], "CPU")
    yield factor
    library._destroy()


def test_an_operator_of_a_package_that_gives_something_else_is_named(tmp_path: Path, fused: Any) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net, data = torch.nn.Linear(6, 8), torch.randn(4, 6)
    for name, fused[0] in (("one", 1.0), ("same", 1.0), ("rounded", 1.000001), ("other", 1.1)):
        with opdump.capture(path=str(tmp_path / name), saved_data="full"), torch.no_grad():
            torch.ops.mine.fused(net(data)).relu()
    assert opdump.compare(tmp_path / "one", tmp_path / "same").verdict == "identical"
    rounded = opdump.compare(tmp_path / "one", tmp_path / "rounded")
    assert rounded.verdict == "benign"
    assert any("mine::fused" in note for note in rounded.notes)
    result = opdump.compare(tmp_path / "one", tmp_path / "other")
    assert [(each.kind, each.op.op_type) for each in result.introduced] == [("kernel", "fused")]
    assert "cannot be run again" in result.introduced[0].evidence


def test_what_differs_from_the_same_bits_beyond_rounding_is_named() -> None:
    (found,), not_proven = judged(GIVEN, GIVEN * np.float32(1.01))
    assert (found.kind, found.io, found.slot, not_proven) == ("kernel", "output", 0, set())
    assert found.score == pytest.approx(0.01 / 2**-23, rel=1e-3)


@pytest.mark.parametrize("ratio", [1 + 2e-6, 1 + 2e-5])
def test_rounding_is_benign_and_not_proven(ratio: float) -> None:
    assert judged(GIVEN, GIVEN * np.float32(ratio)) == ([], {"mine::fused"})


def test_the_same_results_are_nothing_to_report() -> None:
    with_nan = np.array([np.nan, np.inf, 1, 2], np.float32)
    assert judged(with_nan, with_nan) == ([], set())


def test_nan_and_infinities_of_one_run_are_named() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        (found,), _ = judged(GIVEN, np.array([bad, *GIVEN[1:]], np.float32))
        assert found.score == np.inf


def test_what_was_given_something_else_proves_nothing() -> None:
    assert judged(GIVEN, GIVEN * 2, given_b=GIVEN * np.float32(1.0001)) == ([], {"mine::fused"})


def test_what_cancels_to_next_to_nothing_is_noise() -> None:
    assert judged(GIVEN * np.float32(1e-8), GIVEN * np.float32(-1e-8)) == ([], {"mine::fused"})


def test_whole_numbers_and_masks_have_no_rounding() -> None:
    (found,), _ = judged(np.array([1, 2, 3]), np.array([1, 2, 4]))
    assert found.score == np.inf


def test_a_collective_depends_on_other_processes() -> None:
    assert judged(GIVEN, GIVEN * 2, kernel="c10d::allreduce_") == ([], {"c10d::allreduce_"})


def test_operators_that_can_be_run_again_are_left_to_that() -> None:
    pytest.importorskip("torch")
    assert judged(GIVEN, GIVEN * 2, kernel="aten::relu") == ([], set())
