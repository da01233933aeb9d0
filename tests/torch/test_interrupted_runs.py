"""Ctrl-C while a step is written: the program ends or continues; either the step is complete, or the dump reports what is missing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.index.batch import Batches
from opdump.interpreter.critical_sections import compiled
from opdump.plan import DumpPlan


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many times Ctrl-C arrives while the second step is written."""
    original, calls, wanted = Batches.of, iter(range(100)), [1]

    def struck(*args: Any) -> Any:
        if next(calls) == 1:
            for _ in range(wanted[0]):
                signal.raise_signal(signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(Batches, "of", struck)
    return wanted


@pytest.mark.skipif(compiled() is None, reason="without compiled code no interrupt is deferred")
def test_an_interrupt_while_a_step_is_filed_waits_for_it(tmp_path: Path, strikes: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt), opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3")) as dump:
        _run(dump)
    report = dump.report
    assert report is not None
    assert (report.failure, report.captured, report.steps) == ("", 4, (0, 1))
    assert all(run.complete for run in opdump.open(tmp_path).runs)


@pytest.mark.skipif(compiled() is None, reason="without compiled code no interrupt is deferred")
def test_a_program_that_continues_after_an_interrupt_has_all_steps_in_the_dump(
    tmp_path: Path, strikes: list[int]
) -> None:
    caught = 0
    with opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3")) as dump:
        for _ in range(4):
            torch.ones(3).exp()
            try:
                dump.step()
            except KeyboardInterrupt:
                caught += 1
    assert caught == 1
    assert dump.report is not None
    assert (dump.report.failure, dump.report.captured) == ("", 8)
    assert opdump.open(tmp_path).steps == (0, 1, 2, 3)


def test_a_second_interrupt_loses_the_step_which_is_reported_and_counted(tmp_path: Path, strikes: list[int]) -> None:
    strikes[0] = 2
    with pytest.raises(KeyboardInterrupt), opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3")) as dump:
        _run(dump)
    report = dump.report
    assert report is not None
    assert "KeyboardInterrupt interrupted the writing of step 1" in report.failure
    assert report.executed == report.captured + sum(report.skipped.values()) == 4
    assert report.skipped["not written"] == 2
    assert not any(run.complete for run in opdump.open(tmp_path).runs)


def _run(dump: opdump.Dump) -> None:
    for _ in range(3):
        torch.ones(3).exp()
        dump.step()
