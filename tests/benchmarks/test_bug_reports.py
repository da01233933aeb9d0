"""The programs of public bug reports: each report has a program, and an expected answer that can be judged."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.bug_reports import __main__ as bug_reports


@pytest.mark.parametrize("framework", bug_reports.REPOSITORIES)
def test_every_report_has_one_program_and_every_program_its_report(framework: str) -> None:
    path = Path(bug_reports.__file__).parent / "programs" / f"{framework}_reports.py"
    compile(path.read_text(), path.name, "exec")
    programs = Counter(map(int, re.findall(r"\b(?:el)?if number == (\d+):", path.read_text())))
    assert programs == Counter(each.number for each in bug_reports.REPORTS if each.framework == framework)


def test_expected_answers_can_be_judged() -> None:
    assert len(bug_reports.REPORTS) >= 50
    assert all(re.fullmatch(r"rounding|(origin|cause): [\w|()]+", each.expected) for each in bug_reports.REPORTS)
