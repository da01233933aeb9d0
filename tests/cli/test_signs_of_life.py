"""A slow command reports progress in a pipe, for every command and in every part of its work."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opdump import doing
from opdump.commands import main, progress
from opdump.commands.progress import signs_of_life, tell_until
from opdump.comparison import alignment
from opdump.index.reader import IndexReader
from opdump.plan import DumpPlan
from opdump.testing import sample_step
from tests.layouts.filing import file_steps

_PATIENCE = 60.0
"""Seconds after which a test that waits for a line fails."""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    file_steps(DumpPlan(path=tmp_path / "dump", saved_data="full"), [sample_step(0), sample_step(1)])
    return tmp_path / "dump"


class Heard:
    """The lines that were printed, and a way to wait for words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        monkeypatch.setattr(progress, "_say", self.say)
        monkeypatch.setattr(progress, "_BETWEEN_SIGNS", 0.001)

    def say(self, line: str) -> None:
        with self._more:
            self.lines.append(line)
            self._more.notify_all()

    def wait_for(self, words: str) -> None:
        with self._more:
            assert self._more.wait_for(lambda: any(words in line for line in self.lines), _PATIENCE), self.lines[-3:]


def test_a_line_comes_each_time_that_the_work_has_not_ended() -> None:
    lines: list[str] = []
    ends, clock = iter([False, False, False, True]), iter([0.0, 10.2, 20.1, 30.4])
    asked: list[float] = []

    def has_ended(seconds: float) -> bool:
        asked.append(seconds)
        doing.note("running", f"mm-op{len(asked)}", "again")
        return next(ends)

    doing.forget()
    doing.note_progress("judging steps, 1 of 3")
    tell_until("compare", has_ended, lambda: next(clock), lines.append)
    assert asked == [10.0] * 4
    assert lines == [
        f"opdump: compare has run for {seconds} s: judging steps, 1 of 3; running mm-op{number} again"
        for number, seconds in enumerate((10, 20, 30), start=1)
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("show", "DUMP"),
        ("check", "DUMP"),
        ("compare", "DUMP", "DUMP"),
        ("compare", "DUMP", "--step", "0:1"),
        ("export", "DUMP", "-o", "OUT.csv"),
        ("replay", "DUMP", "--op", "MatMul-op90", "--step", "0"),
    ],
)
def test_every_command_that_reads_a_dump_says_that_it_is_at_work(
    command: tuple[str, ...], dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(monkeypatch)
    read = IndexReader.table

    def slowly(self: IndexReader, *arguments: Any) -> Any:
        heard.wait_for(f"opdump: {command[0]} has run for ")
        return read(self, *arguments)

    monkeypatch.setattr(IndexReader, "table", slowly)
    words = [each.replace("DUMP", str(dump)).replace("OUT", str(tmp_path / "out")) for each in command]
    ended = CliRunner().invoke(main, words)
    assert heard.lines, ended.output
    assert "has run for" not in ended.output.replace("\n".join(heard.lines), "")


def test_compare_says_which_part_of_a_step_it_is_at(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    match = alignment._match_gaps

    def slowly(*arguments: Any) -> None:
        heard.wait_for("judging steps, 0 of 2; matching the operators of step 0")
        match(*arguments)

    monkeypatch.setattr(alignment, "_match_gaps", slowly)
    monkeypatch.setattr(alignment, "_in_place", lambda *_: None)
    ended = CliRunner().invoke(main, ["compare", str(dump), str(dump)])
    assert ended.exit_code == 0, ended.output
    assert any("matching the operators" in line for line in heard.lines)


def test_at_a_terminal_there_is_no_such_line(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with signs_of_life("show"):
        assert not any(thread.name == "opdump-progress" for thread in threading.enumerate())
    assert heard.lines == []


def test_a_command_that_has_ended_says_no_more(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    CliRunner().invoke(main, ["show", str(dump)])
    assert not any(thread.name == "opdump-progress" for thread in threading.enumerate())
    assert all(line.startswith("opdump: show has run for ") for line in heard.lines)
