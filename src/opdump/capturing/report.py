"""The report of a capture, including its child processes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from opdump import amounts
from opdump.amounts import html_facts, repr_of
from opdump.capturing.family import ChildReport, Family
from opdump.capturing.rank_assignment import failure_of, warnings_of, warnings_of_starts
from opdump.checks.nonfinite_lineage import Checked
from opdump.degradation import Degradation, told
from opdump.errors import IncompleteCaptureError
from opdump.plan import DumpPlan
from opdump.recorder import GAPS, Nothing
from opdump.recorder.program_facts import ProgramFacts, explain_empty_capture
from opdump.verdict import Verdict

_LOG = logging.getLogger("opdump")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CaptureReport:
    """The result of a capture. `skipped` counts operators by reason, `tensors_skipped` single inputs and outputs.

    `failure` is the reason why the dump is incomplete, empty if it is complete. `files_lost` is the number of files that were queued and did not
    reach the disk; operators of the interrupted step are counted in `skipped` as "not written".
    """

    path: Path
    rank_id: int
    executed: int = 0
    captured: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    tensors: int = 0
    tensors_skipped: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    steps: tuple[int, ...] = ()
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    nothing: Nothing | None = None
    """Why nothing was captured; None if something was."""
    failure: str = ""
    files_lost: int = 0
    verdict: Verdict = field(default_factory=lambda: Verdict(kind="not looked"))
    """The first NaN, infinity, overflow or failure of this process."""
    checked: Checked | None = None
    """The findings of the checks during the run; None if the plan has no checks."""
    fired: tuple[str, ...] = ()
    """The triggers that wrote steps kept in memory (`ring`): `nan in step 7`."""
    degraded: tuple[Degradation, ...] = ()
    """What was left out from a step on because a limit was reached, in chronological order."""
    capture_seconds: float | None = None
    """How long the program waited for its capture, out of `seconds`; None if the adapter cannot measure it."""
    children: tuple[ChildReport, ...] = ()
    """The processes that this one started, directly or indirectly."""

    def __repr__(self) -> str:
        ran = f"{self.captured:,} of {amounts.count(self.executed, 'operator')} captured"
        end = f"failed: {self.failure}" if self.failure else amounts.seconds(self.seconds)
        return repr_of("CaptureReport", str(self.path), ran, amounts.size(self.bytes), amounts.steps(self.steps), end)

    def _repr_html_(self) -> str:
        skipped = [(f"skipped: {reason}", f"{number:,}") for reason, number in self.skipped.items()]
        left_out = [(f"tensors left out: {reason}", f"{number:,}") for reason, number in self.tensors_skipped.items()]
        return html_facts(
            [
                ("dump", self.path),
                ("steps", amounts.steps(self.steps)),
                ("operators that ran", f"{self.executed:,}"),
                ("captured", f"{self.captured:,}"),
                *skipped,
                ("tensors", f"{self.tensors:,}"),
                *left_out,
                ("on disk", f"{amounts.count(self.files, 'file')}, {amounts.size(self.bytes)}"),
                ("time", amounts.seconds(self.seconds)),
                ("capture took", self.capture_time),
                ("fired", ", ".join(self.fired)),
                ("left out", told(self.degraded)),
                ("nothing captured", "" if self.nothing is None else self.nothing.reason),
                ("failure", self.failure),
                ("child processes", str(len(self.children) or "")),
                *(("warning", text) for text in self.warnings),
            ]
        )

    @property
    def overhead(self) -> float | None:
        """The time of the capture divided by the time of the program without it: 0.25 for a quarter more. None if unknown."""
        if self.capture_seconds is None or self.seconds <= self.capture_seconds:
            return None
        return self.capture_seconds / (self.seconds - self.capture_seconds)

    @property
    def capture_time(self) -> str:
        """`12.3 s of 61.0 s, 25 % over the program`; empty if unknown."""
        if self.capture_seconds is None:
            return ""
        over = "" if self.overhead is None else f", {100 * self.overhead:.3g} % over the program"
        return f"{amounts.seconds(self.capture_seconds)} of {amounts.seconds(self.seconds)}{over}"

    @property
    def left_data(self) -> bool:
        """Whether the dump's directory contains data of the program, or would without a failure."""
        own = self.executed and not self.is_dropped
        return bool(own or self.failure or any(child.left_data for child in self.children))

    @property
    def is_dropped(self) -> bool:
        """Whether all data stayed in memory and was dropped, because no trigger fired (`ring`)."""
        return not self.captured and "not triggered" in self.skipped

    def raise_for_gaps(self) -> None:
        """Raise IncompleteCaptureError if nothing was captured that should have been, if operators or tensors left no data that should have, or if
        the dump is incomplete (`strict`).
        """
        if self.failure:
            raise IncompleteCaptureError(f"strict: the dump is incomplete: {self.failure}")
        if self.nothing is not None and self.nothing.is_gap:
            raise IncompleteCaptureError(f"strict: nothing was captured: {self.nothing.reason}")
        lost = [child for child in self.children if child.end == "lost"]
        if lost:
            which = ", ".join(
                f"process {one.process}" if one.rank_id is None else f"rank_{one.rank_id}" for one in lost
            )
            raise IncompleteCaptureError(f"strict: child processes were cut off: {which}")
        total = Counter(self.skipped) + Counter(self.tensors_skipped)
        for child in self.children:
            total += Counter(child.skipped) + Counter(child.tensors_skipped)
        found = ", ".join(f"{count} {reason}" for reason, count in sorted(total.items()) if reason in GAPS)
        if found:
            raise IncompleteCaptureError(
                f"strict: some operators or tensors left no data ({found}); `opdump show {self.path} --skipped` lists them"
            )


def report_of_children(plan: DumpPlan, family: Family, unfollowed: Mapping[str, int]) -> CaptureReport | None:
    """Return the report for a program that captured nothing itself but started other processes. `unfollowed` counts processes that could not be
    followed, by how they were started. Return None if there were no processes at all.
    """
    found = family.reports()
    if not found and not unfollowed:
        return None
    unseen = sum(unfollowed.values()) + sum(child.end == "not captured" for child in found)
    nothing = explain_empty_capture(plan, ProgramFacts(in_children=unseen), executed=0, skipped={})
    return CaptureReport(
        path=plan.path,
        rank_id=int(family.facts["rank"]),
        warnings=(*warnings_of_starts(unfollowed), *warnings_of(found)),
        nothing=None if any(child.captured for child in found) else nothing,
        children=found,
        failure=failure_of(found),
    )


def log_report(report: CaptureReport) -> None:
    """Log the warnings of a report, and why nothing was captured if something should have been."""
    for text in report.warnings:
        _LOG.warning("%s", text)
    if report.nothing is not None and report.nothing.is_gap:
        _LOG.warning("nothing was captured: %s", report.nothing.reason)


def told_elsewhere(_: CaptureReport) -> None:
    """Do nothing: for captures whose caller prints or logs the report."""
