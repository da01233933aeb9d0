"""Ctrl-C in the moment in which a step is filed: the program ends by it, and the dump says what is missing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.index.batch import Batches
from opdump.plan import DumpPlan


def test_an_interrupt_while_a_step_is_filed_is_told_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Batches.of, iter(range(100))

    def interrupted(*args: Any) -> Any:
        if next(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return original(*args)

    monkeypatch.setattr(Batches, "of", interrupted)
    with pytest.raises(KeyboardInterrupt), opdump.capture(DumpPlan(path=tmp_path, layout="mindspore-2.3")) as dump:
        _run(dump)
    report = dump.report
    assert report is not None
    assert "KeyboardInterrupt came while step 1 was filed" in report.failure
    assert report.executed == report.captured + sum(report.skipped.values()) == 4
    assert report.skipped["not written"] == 2
    assert not any(run.complete for run in opdump.open(tmp_path).runs)


def _run(dump: opdump.Dump) -> None:
    for _ in range(3):
        torch.ones(3).exp()
        dump.step()
