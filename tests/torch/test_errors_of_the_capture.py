"""Any failure in opdump itself while a program runs is reported once, is not raised as an error of the program, and obeys `on_error`.

A defect at one operator loses that operator and nothing else of the dump.

Each part is made to fail once, in the middle of the third step, as it would if memory ran out or the part had a defect.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.adapters.torch import dispatch, reader
from opdump.adapters.torch.memory import Provenance
from opdump.adapters.torch.naming import Naming
from opdump.errors import DumpPathError
from opdump.index import writer as index_writer
from opdump.index.batch import Batches
from opdump.plan import DumpPlan
from opdump.sink.directory import WriterThreads

LAYOUTS: dict[str, dict[str, Any]] = {
    "sync": {"layout": "mindspore-2.3", "saved_data": "full"},
    "async": {"layout": "mindspore-async", "file_format": "bin"},
    "acl": {"layout": "acl", "file_format": "bin", "dialect": "acl", "dump_level": "all"},
}
PARTS: dict[str, tuple[Any, str]] = {
    "naming": (Naming, "identify"),
    "sources of inputs": (Provenance, "lives"),
    "sources of outputs": (Provenance, "note"),
    "outputs": (dispatch, "tensors_returned"),
    "taking": (reader.TensorReader, "take"),
    "summaries": (reader.TensorReader, "summaries"),
    "batches of the index": (Batches, "of"),
    "the index": (index_writer.IndexWriter, "write_batch"),
    "handing over a file": (WriterThreads, "put"),
}
OF_ONE_OPERATOR = {"naming", "sources of inputs", "sources of outputs", "outputs", "taking"}
ERRORS = [MemoryError(), KeyError("a defect")]
STEPS, FAILS = 4, 2


class _Failing:
    """Fails once, at the second call after it was armed."""

    def __init__(self, patch: pytest.MonkeyPatch, part: str, error: Exception) -> None:
        owner, name = PARTS[part]
        self._calls_left = -1
        self.has_failed = False
        original = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            if self._calls_left >= 0:
                self._calls_left -= 1
                if self._calls_left < 0:
                    self.has_failed = True
                    raise error
            return original(*args, **kwargs)

        patch.setattr(owner, name, failing)

    def arm(self, step: int) -> None:
        if step == FAILS:
            self._calls_left = 1


def _train(on_step: Any = lambda step: None) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        on_step(step)
        optimizer.zero_grad()
        with suppress(RuntimeError):
            torch.ones(3, 3) @ torch.ones(2, 2)
        written = torch.zeros(3)
        written.add_(step)
        loss = model(torch.full((5, 6), 0.5)).square().mean() + written.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _facts(catalog: opdump.Catalog, step: int) -> list[object]:
    return [(each.op.op_name, each.io, each.slot, each.shape) for each in catalog.tensors(step=step)]


@pytest.mark.sampled(3, each="part")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_training_goes_on_as_it_was_and_the_cause_is_reported_once(
    layout: str,
    part: str,
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = _train()
    with monkeypatch.context() as patch:
        failing = _Failing(patch, part, error)
        with opdump.capture(DumpPlan(path=tmp_path / "dump", **LAYOUTS[layout])) as dump:
            assert _train(failing.arm) == expected
    if not failing.has_failed:
        assert (layout, part) in NOT_ASKED
        return
    report = dump.report
    assert report is not None
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1
    catalog = opdump.open(tmp_path / "dump")
    is_alone = part in OF_ONE_OPERATOR and not isinstance(error, MemoryError)
    whole = {*range(STEPS)} - {FAILS} if is_alone else {*range(FAILS)}
    if is_alone:
        assert not report.failure
        (lost,) = [text for text in report.warnings if "KeyError" in text]
        assert "1 execution not recorded" in lost
        assert lost.partition(":")[0] in told[0]
        assert all(run.complete for run in catalog.runs)
    else:
        assert report.failure in told[0]
        assert type(error).__name__ in report.failure
        assert ("memory" in report.failure) == isinstance(error, MemoryError)
        assert not any(run.complete for run in catalog.runs)
    assert report.executed == report.captured + sum(report.skipped.values())
    for step in whole:
        assert _facts(catalog, step), step
    for record in catalog.tensors():
        assert record.payload is None or record.payload.to_host().size == record.payload.to_host().size
    # The next dump in the same process is complete.
    with opdump.capture(DumpPlan(path=tmp_path / "next", **LAYOUTS[layout]), strict=True) as later:
        assert _train() == expected
    assert later.report is not None
    assert later.report.failure == ""
    again = opdump.open(tmp_path / "next")
    assert not again.problems
    for step in whole:
        assert _facts(catalog, step) == _facts(again, step)
    if is_alone:
        assert len(_facts(again, FAILS)) - len(_facts(catalog, FAILS)) < 10


NOT_ASKED = {("sync", "taking")}
"""Parts that a layout does not use."""


@pytest.mark.parametrize("part", PARTS)
def test_with_stop_it_is_raised_once_as_the_failure_of_the_dump(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = _Failing(monkeypatch, part, KeyError("a defect"))
    with (
        pytest.raises(DumpPathError, match="a defect") as raised,
        opdump.capture(DumpPlan(path=tmp_path / "dump", **LAYOUTS["async"]), strict=True) as dump,
    ):
        _train(failing.arm)
    assert failing.has_failed
    assert dump.report is not None
    assert str(raised.value) == dump.report.failure


def test_an_exception_of_the_program_stays_its_own_where_its_dump_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = DumpPlan(path=tmp_path, layout="acl", file_format="bin", dialect="acl", captures="exception")
    with opdump.capture(plan) as dump:
        torch.ones(2).exp()
        monkeypatch.setattr(Naming, "identify", _broken)
        with pytest.raises(RuntimeError, match="shape"):
            torch.ones(3, 3) @ torch.ones(2, 2)
        assert torch.ones(2).sum().item() == 2
    assert dump.report is not None
    assert not dump.report.failure
    assert any("a defect" in text for text in dump.report.warnings)


def _broken(*_: object) -> object:
    raise KeyError("a defect")
