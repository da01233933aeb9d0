"""The measuring of output pairs: cut by rank, step and range of operators, with the same result for every executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.comparison.pairs import Outputs, units
from opdump.records import OpRecord, TensorRecord
from tests.comparison.programs import dumped


def _pairs(rank: int, step: int, count: int, size: int = 3) -> list[Outputs]:
    ops = [OpRecord("Add", f"Default/add-op{number}", number, rank_id=rank, step=step) for number in range(count)]
    records = [TensorRecord(op, "output", 0, "float32", (size,)) for op in ops]
    return [Outputs(record, record) for record in records]


def _places(unit: Sequence[Outputs]) -> set[tuple[int, int]]:
    return {(pair.b.op.rank_id, pair.b.op.step) for pair in unit}


def test_a_unit_is_a_range_of_one_step_of_one_rank() -> None:
    pairs = [*_pairs(0, 0, 700), *_pairs(0, 1, 3), *_pairs(1, 0, 5), *_pairs(1, 1, 2)]
    cut = list(units(pairs))
    assert list(chain.from_iterable(cut)) == pairs
    assert [_places(unit) for unit in cut] == [{(0, 0)}, {(0, 0)}, {(0, 1)}, {(1, 0)}, {(1, 1)}]
    assert [len(unit) for unit in cut[2:]] == [3, 5, 2]


def test_few_large_tensors_are_a_unit() -> None:
    assert [len(unit) for unit in units(_pairs(0, 0, 5, size=1 << 25))] == [2, 2, 1]


TRAINING = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(8, 4)
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        if step == 2:
            loss = loss * 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three steps; in the last one the second program computes a different loss."""
    folder = tmp_path_factory.mktemp("trainings")
    return dumped(folder, "before", TRAINING), dumped(folder, "after", TRAINING.replace("loss * 1", "loss * 1.01"))


class Watched(ThreadPoolExecutor):
    """An executor that keeps the arguments of its work."""

    def __init__(self) -> None:
        super().__init__(2)
        self.given: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.given += args
        return super().submit(fn, *args, **kwargs)


def test_an_executor_is_given_the_steps_one_by_one_and_gives_what_one_process_does(
    trainings: tuple[Path, Path],
) -> None:
    with Watched() as executor:
        shared = opdump.compare(*trainings, executor=executor)
    assert [_places(unit) for unit in executor.given] == [{(0, 0)}, {(0, 1)}, {(0, 2)}]
    alone = opdump.compare(*trainings)
    assert shared.to_json() == alone.to_json()
    np.testing.assert_equal(shared.rows(), alone.rows())
    assert (alone.verdict, alone.to_json()["introduced"][0]["b"]["step"]) == ("divergent", 2)


def test_jobs_give_the_same_for_the_steps_of_one_rank(trainings: tuple[Path, Path], tmp_path: Path) -> None:
    runner = CliRunner()
    told = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        done = runner.invoke(main, ["compare", *map(str, trainings), "--json", "--jobs", jobs, "-o", str(out)])
        told.append((done.exit_code, done.output, (out / "compare.csv").read_text()))
    assert told[0][0] == 1
    assert told[0] == told[1]
