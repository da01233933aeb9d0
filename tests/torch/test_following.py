"""Steps on the fast path are written like steps that are recorded operator by operator."""

from __future__ import annotations

import csv
import hashlib
import signal
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import opdump
from opdump.adapters.torch.following import Following
from opdump.adapters.torch.lessons import FollowedElements
from opdump.extensions import Listed
from opdump.kernels import NATIVE_FOLLOWER
from opdump.layouts.packed import PackedPayload
from opdump.recorder import Recorder
from opdump.records import OpRecord, TensorRecord
from opdump.statistics import STATISTICS
from opdump.step_table import TemplateRun
from tests.torch.answers import answer_of, differences
from tests.torch.repeating_programs import FOLLOWED, PROGRAMS, STEPS

pytestmark = pytest.mark.skipif(NATIVE_FOLLOWER is None, reason="the fast path needs the compiled kernels")


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of followed operators by kind, and of operators that were recorded normally during a followed step."""
    found: Counter[str] = Counter()
    end_step = Following.end_step

    def counting(self: Following) -> None:
        found[self.state] += 1
        end_step(self)
        found["events"] += self.followed_events

    monkeypatch.setattr(Following, "end_step", counting)
    return found


def records_of(path: Path) -> list[tuple[Any, ...]]:
    """Everything in a dump except time stamps."""
    dump = opdump.open(path)
    found: list[tuple[Any, ...]] = [_facts(each.op, "timestamp") for each in dump.ops()]
    for tensor in dump.tensors(include_skipped=True):
        op = tensor.op
        facts = _facts(tensor, "op", "statistics", "payload")
        found.append((op.step, op.order, op.op_name, *facts, repr(dict(tensor.statistics)), *_elements(tensor)))
    return found


def _elements(tensor: TensorRecord) -> tuple[Any, ...]:
    """Where the values of a tensor are, their name without the time stamp, and the values."""
    payload = tensor.payload
    if not isinstance(payload, PackedPayload):
        assert payload is None
        return ()
    name = payload.header().name.replace(str(tensor.op.timestamp), "")
    return payload.relative, payload.offset, name, payload.to_host().tobytes()


def tables_of(path: Path) -> dict[str, list[tuple[str, ...]]]:
    """The rows of each `statistic.csv` without time stamps."""
    found = {}
    for each in path.rglob("statistic.csv"):
        with each.open(newline="") as file:
            rows = [*csv.reader(file)]
        at = rows[0].index("Timestamp")
        found[str(each.relative_to(path))] = [(*row[:at], *row[at + 1 :]) for row in rows]
    return found


def _facts(record: OpRecord | TensorRecord, *without: str) -> tuple[Any, ...]:
    return tuple(repr(getattr(record, each.name)) for each in fields(record) if each.name not in without)


def captured(
    program: Any, path: Path, monkeypatch: pytest.MonkeyPatch, follow: str, **options: Any
) -> dict[str, bytes]:
    monkeypatch.setenv("OPDUMP_FOLLOW", follow)
    torch.manual_seed(11)
    with opdump.capture(path=path, **{"iteration": "all", "saved_data": "statistic", **options}) as dump:
        answer = answer_of(program)
    assert dump.report is not None
    (path / "report").write_text(
        repr((dump.report.captured, dump.report.executed, dump.report.skipped, dump.report.steps))
    )
    return answer


KINDS: dict[str, dict[str, Any]] = {
    "inputs": {"outputs": False},
    "outputs": {"inputs": False},
    "md5": {"statistic_category": ["max", "l2norm", "md5"]},
    "elements": {"saved_data": "full", "layout": "packed"},
    "digests": {"statistic_category": ["avg", "md5", "hash:sha1", "xxh3"]},
}
"""Dumps of other contents than statistics of inputs and outputs."""


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_followed_step_is_filed_as_a_recorded_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    both_are_alike(name, {}, tmp_path, monkeypatch, followed)


@pytest.mark.sampled(10, each="kind")
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_followed_step_with_other_contents_is_filed_as_a_recorded_one(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    both_are_alike(name, KINDS[kind], tmp_path, monkeypatch, followed)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_most_steps_are_followed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    captured(PROGRAMS["inference"], tmp_path, monkeypatch, "strict", **KINDS[kind])
    assert followed["following"] > STEPS / 2, followed


def test_digests_of_followed_steps_are_those_of_hashlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    captured(PROGRAMS["inference"], tmp_path, monkeypatch, "strict", **KINDS["digests"])
    assert followed["following"] > STEPS / 2, followed
    torch.manual_seed(11)
    of_last = {
        tensor.op.step: tensor.statistics
        for tensor in opdump.open(tmp_path).tensors()
        if tensor.op.op_type == "addmm" and tensor.io == "output"
    }
    for step, result in enumerate(PROGRAMS["inference"]()):
        elements = result.numpy().tobytes()
        assert of_last[step]["md5"] == hashlib.md5(elements, usedforsecurity=False).hexdigest()
        assert of_last[step]["hash:sha1"] == hashlib.sha1(elements, usedforsecurity=False).hexdigest()


def test_a_bound_leaves_out_the_same_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    both_are_alike("plain", {**KINDS["elements"], "max_disk": "1150kB"}, tmp_path, monkeypatch, followed)
    tensors = opdump.open(tmp_path / "strict").tensors()
    assert len({tensor.payload is None for tensor in tensors}) == 2


def test_what_a_package_adds_to_summaries_is_in_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text(
        "from opdump.statistics import Statistic\nSPAN = Statistic(heading='Span', of_summary=lambda s: s.max - s.min)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(STATISTICS._parts(), "span", Listed("opdump.statistics", "span", "odd:SPAN"))
    monkeypatch.setattr(STATISTICS, "_loaded", {**STATISTICS._loaded})
    captured(PROGRAMS["inference"], tmp_path / "dump", monkeypatch, "strict", statistic_category=["max", "min", "span"])
    for tensor in opdump.open(tmp_path / "dump").tensors():
        assert tensor.statistics["span"] == tensor.statistics["max"] - tensor.statistics["min"]


def both_are_alike(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, followed: Counter[str]
) -> None:
    """Compare the dumps of a program with and without the fast path."""
    program = PROGRAMS[name]
    torch.manual_seed(11)
    plain = answer_of(program)
    for follow in ("0", "strict"):  # called from one line, because records contain the line
        answer = captured(program, tmp_path / follow, monkeypatch, follow, **options)
        assert not differences(plain, answer)
        assert bool(followed) == (follow != "0")
    one, other = records_of(tmp_path / "0"), records_of(tmp_path / "strict")
    assert len(one) == len(other)
    for expected, found in zip(one, other, strict=True):
        assert found == expected
    assert tables_of(tmp_path / "0") == tables_of(tmp_path / "strict")
    assert (tmp_path / "0/report").read_text() == (tmp_path / "strict/report").read_text()
    if name in FOLLOWED:
        assert followed["events"] > len(one) / 30, followed


@pytest.mark.parametrize("io", ["input", "output"])
def test_ctrl_c_while_elements_are_filed_moves_none_to_another_tensor(
    io: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_armed = False
    original = FollowedElements._filed

    def filed(self: FollowedElements, place: int, address: int, first_event: int, step: int) -> str | None:
        nonlocal is_armed
        known = self._lesson.tensors[self._lesson.events[first_event].first_tensor + place][1]
        if is_armed and known.io == io:
            is_armed = False
            raise KeyboardInterrupt
        return original(self, place, address, first_event, step)

    monkeypatch.setattr(FollowedElements, "_filed", filed)
    monkeypatch.setenv("OPDUMP_FOLLOW", "strict")
    caught = 0

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(200, 200)

        def forward(self, values: torch.Tensor, step: int) -> torch.Tensor:
            nonlocal caught, is_armed
            values = self.linear(values)
            is_armed = step == 7
            try:
                values = values.mul(2)  # large enough to be written from where it lies in memory
            except KeyboardInterrupt:
                caught += 1
            is_armed = False
            kept = torch.arange(5.0)
            return values.square().mean() + kept[kept < (3 if step == 10 else 4)].sum()

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with opdump.capture(path=tmp_path, iteration="all", saved_data="full", layout="packed") as dump:
        for step in range(12):
            optimizer.zero_grad()
            net(torch.randn(200, 200), step).backward()
            optimizer.step()
    assert caught == 1
    assert dump.report is not None
    assert dump.report.captured
    records = [*opdump.open(tmp_path).tensors()]
    assert {record.op.step for record in records} == {*range(12)}
    bare = [record for record in records if record.payload is None]
    assert [(record.op.step, record.op.op_type, record.io) for record in bare] == [(7, "mul", io)]
    for record in records:
        if record.payload is not None:
            assert record.statistics["max"] == record.numpy().max(), record


def test_ctrl_c_while_followed_operators_are_handed_over_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Recorder.add_run
    is_armed = False
    struck = caught = 0

    def add_run(self: Recorder, run: TemplateRun) -> None:
        nonlocal is_armed, struck
        if is_armed:
            is_armed = False
            struck += 1
            signal.raise_signal(signal.SIGINT)
        original(self, run)

    monkeypatch.setattr(Recorder, "add_run", add_run)
    monkeypatch.setenv("OPDUMP_FOLLOW", "strict")
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with opdump.capture(path=tmp_path, iteration="all", saved_data="statistic") as dump:
            for step in range(12):
                optimizer.zero_grad()
                loss = net(torch.ones(4, 8)).square().mean()
                if step == 8:
                    is_armed = True
                    try:
                        loss = loss * torch.ones(3)[1:]  # in no step before: the followed operators are handed over
                    except KeyboardInterrupt:
                        caught += 1
                loss.sum().backward()
                optimizer.step()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert (struck, caught) == (1, 1)
    assert dump.report is not None
    assert dump.report.captured
    types = {step: [op.op_type for op in opdump.open(tmp_path).ops(step=step) if not op.skip] for step in range(12)}
    began = types[7].index("mean") + 1
    assert types[8][:began] == types[7][:began]
    assert types[8][-4:] == types[7][-4:]
    assert types[10] == types[7]
