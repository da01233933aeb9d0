"""Random programs against random edits of them: if their results differ, no comparison calls them benign or identical."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pytest

import opdump
from opdump.comparison.differences import difference, epsilon_of
from tests.comparison.random_programs import EDITS, Array, Program, Statement, Write, edited, random_program

pytest.importorskip("torch")

import torch
from torch import Tensor
from torch.nn import functional

Saved = Literal["statistic", "full"]
MOST: Final = 100.0 * epsilon_of("float32")
"""Results whose relative distance is larger are different results."""

MASK: Final = torch.ones(4, 4, dtype=torch.bool).tril()
OPERATORS: Final[Mapping[str, Callable[..., Tensor]]] = {
    "relu": lambda x, _: torch.relu(x),
    "gelu": lambda x, number: functional.gelu(x, approximate="tanh" if number else "none"),
    "silu": lambda x, _: functional.silu(x),
    "tanh": lambda x, _: torch.tanh(x),
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "exp": lambda x, _: torch.exp(-torch.abs(x)),
    "abs": lambda x, _: torch.abs(x),
    "softmax": lambda x, _: torch.softmax(x, -1),
    "norm": lambda x, number: functional.layer_norm(x, (4,), eps=number),
    "scale": lambda x, number: x * number,
    "shift": lambda x, number: x + number,
    "clamp": lambda x, number: torch.clamp(x, -1.0, number),
    "roll": lambda x, number: torch.roll(x, int(number), 1),
    "transpose": lambda x, _: x.t().contiguous(),
    "mean": lambda x, _: x - x.mean(-1, keepdim=True),
    "masked": lambda x, number: torch.softmax((x + number * x).masked_fill(~MASK, -1e9), -1),
    "add": lambda x, y, _: x + y,
    "sub": lambda x, y, _: x - y,
    "mul": lambda x, y, _: x * y,
    "matmul": lambda x, y, _: x @ y,
    "maximum": lambda x, y, _: torch.maximum(x, y),
}


def run(program: Program, *, is_compiled: bool = False) -> list[Tensor]:
    """The results of a program: the tensors that no statement reads, or the parameters after a step."""
    tensors = [
        torch.from_numpy(each.copy()).requires_grad_(program.trains and place > 0)
        for place, each in enumerate(program.data)
    ]
    parameters = tensors[1:]
    compute: Callable[[Program, Sequence[Tensor]], list[Tensor]] = _compute
    if is_compiled:
        torch.compiler.reset()
        compute = torch.compile(_compute, backend="aot_eager", dynamic=False)
    results = compute(program, tensors)
    if not program.trains:
        return results
    loss = sum((each.square().mean() for each in results), torch.zeros(()))
    if not loss.requires_grad:
        return [loss]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    loss.backward()
    optimizer.step()
    return [loss, *(each for each in parameters if each.grad is not None)]


def _compute(program: Program, given: Sequence[Tensor]) -> list[Tensor]:
    tensors = list(given)
    for place, statement in enumerate(program.statements):
        tensors.append(OPERATORS[statement.op](*(tensors[number] for number in statement.inputs), statement.number))
        for write in program.writes:
            if write.after == place:
                tensors[write.tensor].detach().numpy().flat[write.element] = write.value
    return [tensors[number] for number in program.results]


def dumped(program: Program, path: Path, saved: Saved, *, is_compiled: bool = False) -> list[Array]:
    with opdump.capture(path=str(path), saved_data=saved):
        results = run(program, is_compiled=is_compiled)
    return [each.detach().numpy().copy() for each in results]


def differ(before: Sequence[Array], after: Sequence[Array], saved: Saved) -> bool:
    """Whether the results differ, by their values or by their statistics.

    Statistics of values that are not finite, or are all equal in one run, do not count: those may be constants.
    """
    if len(before) != len(after):
        return False  # the edit changed the set of results
    pairs = zip(before, after, strict=True)
    return any(_is_told(one, other, saved) and _apart(one, other, saved) > MOST for one, other in pairs)


def _is_told(one: Array, other: Array, saved: Saved) -> bool:
    return saved == "full" or bool(np.isfinite(one).all() and np.ptp(one) and np.ptp(other))


def _apart(one: Array, other: Array, saved: Saved) -> float:
    if saved == "full":
        return difference(one, other).relative
    size = float(np.sqrt(np.mean(np.square(one, dtype=np.float64))))
    far = max(abs(float(of(one)) - float(of(other))) for of in (np.max, np.min, np.mean, _size))
    return far / size if size else float(far > 0) * np.inf


def _size(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _sorted(results: Sequence[Array]) -> list[Array]:
    return [np.sort(each, axis=None) for each in results]


def benign(
    folder: Path, seeds: Sequence[int], saved: Saved, *, trains: bool, compiled: tuple[bool, bool] = (False, False)
) -> list[str]:
    """The edits that a comparison calls benign or identical though the results differ; `compiled` marks the programs
    compiled to one graph.
    """
    found = []
    for seed in seeds:
        program = random_program(seed, trains=trains)
        before = dumped(program, folder / "a", saved, is_compiled=compiled[0])
        for number, kind in enumerate(EDITS):
            other = edited(program, kind, 100 * seed + number)
            if any(compiled) and other.writes:
                continue  # inside a graph, nothing can write memory between operators
            after = dumped(other, folder / "b", saved, is_compiled=compiled[1])
            results = before, after
            if kind == "order" and trains:
                # A program may treat all rows alike: then it leaves a reordered parameter reordered, and the loss is the same.
                results = _sorted(before), _sorted(after)
            if differ(*results, saved):
                result = opdump.compare(folder / "a", folder / "b")
                if result.verdict in ("benign", "identical"):
                    found.append(f"{kind}: {result.headline}\n{program}\nedited: {other}")
            shutil.rmtree(folder / "b")
        shutil.rmtree(folder / "a")
    return found


@pytest.mark.sampled(7, each="trains")
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("seed", range(7))
def test_edited_programs_whose_results_differ_are_never_benign(
    tmp_path: Path, seed: int, saved: Saved, *, trains: bool
) -> None:
    assert benign(tmp_path, [seed], saved, trains=trains) == []


@pytest.mark.parametrize(
    "added", [Statement("shift", (2,), 0.5), Statement("shift", (2,), -2.0), Statement("exp", (2,))], ids=str
)
def test_an_operator_after_an_exact_zero_is_a_difference_by_statistics(tmp_path: Path, added: Statement) -> None:
    data = [np.linspace(-1.0, 2.0, 16, dtype=np.float32).reshape(4, 4)]
    zero = [Statement("sub", (0, 0)), Statement("silu", (1,))]
    program = Program(data, [*zero, Statement("add", (2, 1)), Statement("mul", (2, 0))])
    other = Program(data, [*zero, added, Statement("add", (3, 1)), Statement("mul", (3, 0))])
    results = [dumped(program, tmp_path / "a", "statistic")[-1], dumped(other, tmp_path / "b", "statistic")[-1]]
    assert [bool(each.any()) for each in results] == [False, True]
    assert opdump.compare(tmp_path / "a", tmp_path / "b").verdict == "divergent"


@pytest.mark.xfail(strict=True, reason="a result whose elements are all equal may be a constant such as zeros_like")
def test_equal_elements_computed_from_equal_elements_are_a_difference_by_statistics(tmp_path: Path) -> None:
    data = [np.linspace(-1.0, 2.0, 16, dtype=np.float32).reshape(4, 4)]
    program, other = (
        Program(data, [Statement("sub", (0, 0)), Statement("mul", (1, 0)), end])
        for end in (Statement("relu", (1,)), Statement("shift", (1,), 0.25))
    )
    results = [dumped(program, tmp_path / "a", "statistic")[-1], dumped(other, tmp_path / "b", "statistic")[-1]]
    assert [each.flat[0] for each in results] == [0.0, 0.25]
    assert opdump.compare(tmp_path / "a", tmp_path / "b").verdict == "divergent"


@pytest.mark.xfail(strict=True, reason="no operator reads the result again, so the write is not recorded")
def test_a_write_into_a_result_after_its_last_reader_is_a_difference(tmp_path: Path) -> None:
    program = Program([np.full((4, 4), 2.0, np.float32)], [Statement("relu", (0,)), Statement("exp", (0,))])
    written = replace(program, writes=[Write(after=1, tensor=1, element=3, value=0.5)])
    assert differ(dumped(program, tmp_path / "a", "full"), dumped(written, tmp_path / "b", "full"), "full")
    assert opdump.compare(tmp_path / "a", tmp_path / "b").verdict == "divergent"


@pytest.mark.sampled(3, each="saved")
@pytest.mark.parametrize("compiled", [(False, True), (True, False), (True, True)], ids=["b", "a", "both"])
@pytest.mark.parametrize("saved", ["full", "statistic"])
def test_compiled_programs_whose_results_differ_are_never_benign(
    tmp_path: Path, saved: Saved, compiled: tuple[bool, bool]
) -> None:
    assert benign(tmp_path, range(20, 22), saved, trains=False, compiled=compiled) == []


@pytest.mark.long
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("part", range(16))
def test_thousands_of_edited_programs_whose_results_differ_are_never_benign(
    tmp_path: Path, part: int, saved: Saved, *, trains: bool
) -> None:
    assert benign(tmp_path, range(100 + 10 * part, 110 + 10 * part), saved, trains=trains) == []
