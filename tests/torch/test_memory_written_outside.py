"""Inputs of operators are recorded no matter what wrote them; memory that an operator only writes is not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import opdump
from opdump.catalog.catalog import Execution
from opdump.commands import main

Saved = Literal["full", "statistic"]
SAVED: tuple[Saved, ...] = ("full", "statistic")


def inputs_of(folder: Path, op_type: str) -> list[Execution]:
    return [each for each in opdump.open(folder).executions(include_skipped=True) if each.op.op_type == op_type]


@pytest.mark.parametrize("saved", SAVED)
def test_memory_that_no_operator_wrote_is_recorded_where_it_is_read(saved: Saved, tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        a = torch.empty(4)
        a.numpy()[:] = [1, 2, 3, 4]
        torch.ones(4) * a
        a + 1
    assert dump.report is not None
    assert dump.report.tensors_skipped == {}
    for op_type, slot in (("mul", 1), ("add", 0)):
        (found,) = inputs_of(tmp_path, op_type)
        record = found.inputs[slot]
        assert (record.source, record.skip, record.statistics["max"]) == ("data-0", "", 4)
        assert saved != "full" or record.numpy().tolist() == [1, 2, 3, 4]


def test_each_part_of_memory_that_no_operator_wrote_is_recorded(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        a = torch.empty(8)
        a.numpy()[:] = range(8)
        a[:4].add_(1)
        a[4:] * 2
    (added,), (doubled,) = inputs_of(tmp_path, "add_"), inputs_of(tmp_path, "mul")
    assert (added.inputs[0].source, added.inputs[0].numpy().tolist()) == ("data-0", [0, 1, 2, 3])
    assert (doubled.inputs[0].source, doubled.inputs[0].numpy().tolist()) == ("data-1", [4, 5, 6, 7])


NOT_READ: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("fill_", lambda a: a.fill_(1)),
    ("copy_", lambda a: a.copy_(torch.ones(3, 3))),
    ("normal_", lambda a: a.normal_()),
    ("uniform_", lambda a: a.uniform_()),
    ("zeros_like", torch.zeros_like),
    ("new_ones", lambda a: a.new_ones(2)),
    ("add", lambda a: torch.add(torch.ones(3, 3), 1, out=a)),
    ("addmm", lambda a: torch.addmm(a, torch.ones(3, 3), torch.ones(3, 3), beta=0)),
    ("_foreach_copy_", lambda a: torch._foreach_copy_([a], [torch.ones(3, 3)])),
]


@pytest.mark.parametrize(("op_type", "run"), NOT_READ, ids=[name for name, _ in NOT_READ])
def test_memory_that_an_operator_does_not_read_is_not_looked_at(
    op_type: str, run: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        run(torch.empty(3, 3))
    (found,) = inputs_of(tmp_path, op_type)
    assert [record.skip for record in found.inputs.values() if record.skip] == ["allocation"]
    assert not any(record.source.startswith("data-") for record in found.inputs.values())


@pytest.mark.parametrize("follow", ["0", "strict"])
@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("make", [torch.empty, torch.zeros], ids=["empty", "zeros"])
def test_what_is_written_between_operators_is_read_anew_in_each_step(
    make: Callable[..., torch.Tensor], saved: Saved, follow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPDUMP_FOLLOW", follow)
    kept = make(4)
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        for step in range(6):
            a = make(4)
            for buffer in (a, kept):
                buffer.numpy()[:] = step + 1
                buffer * torch.ones(4)
                buffer.numpy()[2] = -step
                buffer * torch.ones(4)
            torch.addmm(make(2, 2), torch.ones(2, 2), torch.ones(2, 2), beta=0)
            dump.step()
    catalog = opdump.open(tmp_path)
    for step in range(6):
        found = [each for each in catalog.ops(step=step) if each.op.op_type == "mul"]
        assert [each.inputs[0].statistics["max"] for each in found] == [step + 1] * 4
        lowest = [each.inputs[0].statistics["min"] for each in found]
        assert lowest == [step + 1, -step, step + 1, -step]
        if saved == "full":
            assert [each.inputs[0].numpy()[2] for each in found] == lowest


def test_an_operator_that_read_what_numpy_wrote_agrees_when_it_runs_again(tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data="full"):
        a = torch.empty(4)
        a.numpy()[:] = [1, 2, 3, 4]
        torch.exp(a)
    assert opdump.replay(tmp_path, "Default/exp-op2").verdict == "agrees"


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.empty, "in memory that no recorded operator wrote: data-0"),
        (torch.zeros, "in memory that was changed since Default/zeros-op0 by something other than an operator"),
    ],
    ids=["empty", "zeros"],
)
def test_a_nan_that_numpy_wrote_was_born_in_no_operator(
    make: Callable[..., torch.Tensor], words: str, saved: Saved, tmp_path: Path
) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved) as dump:
        a = make(4)
        a.numpy()[:] = [1, 2, np.nan, 4]
        a * torch.ones(4)
    assert dump.report is not None
    verdict = dump.report.verdict
    assert (verdict.kind, verdict.op_type) == ("nan", "aten::mul.Tensor")
    assert words in verdict.how


@pytest.mark.parametrize("saved", SAVED)
def test_show_says_what_wrote_an_input_and_what_did_not(saved: Saved, tmp_path: Path) -> None:
    with opdump.capture(path=str(tmp_path), saved_data=saved):
        a, b, c = torch.empty(4), torch.zeros(4), torch.ones(4)
        a.numpy()[:] = b.numpy()[:] = [1, 2, 3, 4]
        torch.addcmul(a, b, c)
    shown = CliRunner().invoke(main, ["show", str(tmp_path), "--op", "addcmul"]).output.splitlines()
    makers = {line.split()[0]: line.split("  ")[-1].strip() for line in shown if line.strip().startswith("input.")}
    assert "  input.0: data-0 was not written by any recorded operator" in shown
    assert "  input.1: changed since Default/zeros-op1 by something other than an operator" in shown
    assert [makers[f"input.{slot}"] for slot in range(3)] == [
        *("data-0", "changed since Default/zeros-op1:0", "Default/ones-op2:0")
    ]


@pytest.mark.parametrize("steps", [2, 8], ids=["recorded", "followed"])
def test_what_an_earlier_step_made_names_its_maker(steps: int, tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with opdump.capture(path=str(tmp_path)):
        for _ in range(steps):
            loss = weight.pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    reads = inputs_of(tmp_path, "_local_scalar_dense")
    assert len(reads) == steps
    assert all("mean-op" in read.inputs[0].source for read in reads)
