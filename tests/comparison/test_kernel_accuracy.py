"""The error of a kernel on its own inputs, if the other program has no such operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from opdump.comparison.accuracy import allowed_error, own_errors
from opdump.comparison.kernel_accuracy import kernel_suspect, lone_kernel_suspect
from opdump.comparison.nodes import Node
from opdump.records import HostPayload
from tests.comparison.programs import Program, traced

pytestmark = pytest.mark.torch


def last(path: Path, program: Program, change: dict[int, float]) -> Node:
    """The last operator of a program, with these elements of its output multiplied."""
    node = traced(path, program).nodes[-1]
    values: NDArray[Any] = node.outputs[0].numpy().copy()
    for place, factor in change.items():
        values.flat[place] *= factor
    return replace(node, outputs={0: replace(node.outputs[0], payload=HostPayload(values))})


@pytest.mark.parametrize("program", [lambda x: x.exp(), lambda x: x @ x.T, lambda x: x.softmax(-1), lambda x: x / 3])
def test_what_rounding_gives_is_no_suspect(tmp_path: Path, program: Program) -> None:
    assert lone_kernel_suspect(last(tmp_path, program, {}), is_b=True) is None


@pytest.mark.parametrize("factor", [1.5, -1.0, float("inf"), float("nan")])
def test_one_element_that_is_off_is_a_suspect(tmp_path: Path, factor: float) -> None:
    node = last(tmp_path, lambda x: x.exp(), {7: factor})
    suspect = lone_kernel_suspect(node, is_b=True)
    assert suspect is not None
    assert (suspect.kind, suspect.a, suspect.b, suspect.slot) == ("kernel", None, node, 0)
    assert suspect.evidence.startswith("1 of 15 elements differ from a float64 computation")


def test_the_first_program_is_reported(tmp_path: Path) -> None:
    node = last(tmp_path, lambda x: x.exp(), {7: 1.5})
    suspect = lone_kernel_suspect(node, is_b=False)
    assert suspect is not None
    assert (suspect.a, suspect.b) == (node, None)
    assert suspect.evidence.startswith("in A: ")


def test_where_all_elements_are_off_none_is_unlike_the_others(tmp_path: Path) -> None:
    node = last(tmp_path, lambda x: x.exp(), dict.fromkeys(range(15), 1.001))
    assert lone_kernel_suspect(node, is_b=True) is None


def test_what_is_off_by_less_than_rounding_may_be_is_no_suspect(tmp_path: Path) -> None:
    node = last(tmp_path, lambda x: x.exp(), {7: 1 + 2 * np.finfo(np.float32).eps})
    assert lone_kernel_suspect(node, is_b=True) is None


@pytest.mark.parametrize(
    "program", [lambda x: (x.abs() * 8e-39).reciprocal(), lambda x: (x * 40).exp(), lambda x: (x - x[:1]).log()]
)
def test_what_leaves_the_range_of_its_type_is_no_suspect(tmp_path: Path, program: Program) -> None:
    node = last(tmp_path, program, {})
    assert not np.isfinite(node.outputs[0].numpy()).all()
    assert lone_kernel_suspect(node, is_b=True) is None


def test_an_element_that_is_off_is_found_beside_what_leaves_its_type(tmp_path: Path) -> None:
    def program(x: Any) -> None:
        (x.abs() * 45).exp()

    node = last(tmp_path, program, {})
    place = int(np.argmax(np.where(np.isfinite(node.outputs[0].numpy()), node.outputs[0].numpy(), 0)))
    suspect = lone_kernel_suspect(last(tmp_path / "off", program, {place: 0.5}), is_b=True)
    assert suspect is not None
    assert suspect.evidence.startswith("1 of 15 elements")


def test_a_kernel_that_reads_a_narrower_type_may_round_in_it(tmp_path: Path) -> None:
    def program(x: Any) -> None:
        x.bfloat16().sum(1, dtype=x.dtype)

    one, other = last(tmp_path / "a", program, {}), last(tmp_path / "b", program, {2: 1.0 + 2.0**-8})
    assert (other.inputs[0].dtype, other.outputs[0].dtype) == ("bfloat16", "float32")
    assert allowed_error(other, other.outputs[0]) == 8 * 2.0**-7
    assert kernel_suspect(one, other) is None


@pytest.mark.parametrize("narrow", ["bfloat16", "half"])
def test_a_cast_that_widens_computes_nothing_in_the_narrower_type(tmp_path: Path, narrow: str) -> None:
    node = last(tmp_path, lambda x: getattr(x, narrow)().float(), {7: 1.0 + 2.0**-8})
    assert allowed_error(node, node.outputs[0]) == 256 * 2.0**-23
    suspect = lone_kernel_suspect(node, is_b=True)
    assert suspect is not None
    assert suspect.evidence.startswith("1 of 15 elements differ from a float64 computation")


@pytest.mark.parametrize(("given", "count"), [(float("nan"), 0), (0.5, 1)])
def test_what_a_kernel_makes_of_nan_is_not_judged(tmp_path: Path, given: float, count: int) -> None:
    def program(x: Any) -> Any:
        x = x.clone()
        x[0] = given
        return x.relu()

    node = traced(tmp_path, program).nodes[-1]
    values: NDArray[Any] = node.outputs[0].numpy().copy()
    values[0] = 0.0
    changed = replace(node, outputs={0: replace(node.outputs[0], payload=HostPayload(values))})
    assert len(list(own_errors(changed))) == count
