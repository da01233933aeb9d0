"""A capture in progress, as the program sees it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from opdump import amounts
from opdump.adapters.base import StepController
from opdump.adapters.framework_use import is_used_by_program
from opdump.adapters.program_marks import ProgramMarks
from opdump.amounts import repr_of
from opdump.capturing.children.place import Place, are_awaited
from opdump.capturing.recording import Recording
from opdump.capturing.report import CaptureReport, log_report
from opdump.errors import CaptureStateError
from opdump.html_table import html_line
from opdump.interpreter.interrupts import not_interrupted
from opdump.plan import DumpPlan
from opdump.plan.dialects import words_of

_LOG = logging.getLogger("opdump")
_PACKAGES: Final = {"PyTorch": "torch", "TensorFlow": "tensorflow", "JAX": "jax", "MindSpore": "mindspore"}


class _NotAttached:
    """The controller before an adapter is attached."""

    step = 0

    def manual_step(self) -> None:
        raise CaptureStateError("the capture has not begun; call step() inside `with opdump.capture(...) as dump`")


@dataclass(slots=True)
class CaptureParts:
    """What the one capture of a process is made of, while it runs; `Dump` is what the program sees of it."""

    recording: Recording
    place: Place
    marks: ProgramMarks
    controller: StepController = field(default_factory=_NotAttached)
    process: int = field(default_factory=os.getpid)


class Dump:
    """A capture in progress; after it ended, its report."""

    def __init__(self, parts: CaptureParts, stack: ExitStack) -> None:
        """`stack` ends the capture."""
        self.plan = parts.recording.plan
        self.report: CaptureReport | None = None
        self.when_replaced: Callable[[CaptureReport], object] = _log_replaced
        """Told how this capture ended, where the program becomes another one (`os.exec`)."""
        self.when_ended: Callable[[CaptureReport], object] = log_report
        """Says what the report warns of. Whoever prints the report itself puts `told_elsewhere` here."""
        self.may_wait = False
        """Whoever tells the report does that when the interpreter has waited for the processes of the program, and asks `look_again`."""
        self._parts = parts
        self._own_report: CaptureReport | None = None
        stack.callback(self._finish)

    def __repr__(self) -> str:
        if self.report is not None:
            return f"Dump(ended: {self.report!r})"
        done = amounts.count(self.operators, "operator")
        return repr_of(
            "Dump",
            str(self.plan.path),
            f"in step {self.current_step}",
            f"{done} so far",
            amounts.size(self.bytes_written),
        )

    def _repr_html_(self) -> str:
        return html_line(repr(self)) if self.report is None else self.report._repr_html_()

    @property
    def rank_id(self) -> int:
        """The number of this process in directories and records, as far as it is known."""
        return self._parts.place.rank

    def started_before(self, unfollowed: Mapping[str, int]) -> None:
        """So many Pythons were started before the capture in a way that nobody can follow, by that."""
        self._parts.place.starts_unfollowed.update(unfollowed)

    @not_interrupted
    def step(self) -> None:
        """Ends the current iteration here; from the first call on nothing else ends one."""
        self._parts.controller.manual_step()

    def trigger(self, why: str = "the program") -> None:
        """Has the last steps filed that are kept in memory (`ring`), and the one that runs, as soon as that has ended.

        `why` stands in the report. Raises CaptureStateError where the plan keeps no steps in memory.
        """
        if not self.plan.ring:
            raise CaptureStateError(
                "trigger() files the steps that are kept in memory, and none are: begin the capture with ring=3"
            )
        self._parts.recording.recorder.fire(why)

    def loss(self, value: float) -> None:
        """Tells the loss of the running step, of which the trigger `loss-spike` judges.

        Of PyTorch programs it is known, without this call, from what `backward` is called on; once it is told, only what is told counts. Raises
        CaptureStateError where the plan has no such trigger, or keeps no steps in memory.
        """
        losses = self._parts.recording.recorder.losses
        if losses is None:
            raise CaptureStateError(
                'loss() is for the trigger "loss-spike", which this capture has not: begin it with ring=3, triggers=["loss-spike"]'
            )
        losses.tell(self.current_step, float(value))

    @property
    def current_step(self) -> int:
        """The iteration that the program is in."""
        return self._parts.controller.step

    @property
    def operators(self) -> int:
        """How many operators were executed under capture in the steps that are complete."""
        return self._parts.recording.recorder.tally.executed

    @property
    def bytes_written(self) -> int:
        """Bytes on disk so far."""
        return self._parts.recording.sink.bytes_written

    @property
    def awaits_children(self) -> bool:
        """Whether `look_again` is to be asked: processes of the program still ran when the capture ended."""
        return self.may_wait and self.report is not None and are_awaited(self.report.children)

    def look_again(self) -> CaptureReport:
        """The report with what the children have done by now."""
        assert self._own_report is not None, "the capture has ended"
        self.may_wait = False
        self.report = self._with_children(self._own_report)
        self._parts.place.family.release()
        return self.report

    def _finish(self) -> None:
        if os.getpid() != self._parts.process:
            return  # the report is the parent's
        try:
            self._parts.recording.close()
        finally:
            self.when_ended(self._make_report())

    def _make_report(self) -> CaptureReport:
        recorder = self._parts.recording.recorder
        around = recorder.circumstances
        around.marks = bool(self._parts.marks)
        if recorder.tally.executed == 0 and around.framework:
            around.is_framework_used = is_used_by_program(_PACKAGES.get(around.framework, around.framework))
        notes = (*_marks_without_effect(self.plan, self._parts.marks), *self._parts.place.told())
        self._own_report = self._parts.recording.report(self.rank_id, notes)
        self.report = self._with_children(self._own_report, may_wait=self.may_wait)
        return self.report

    def _with_children(self, report: CaptureReport, *, may_wait: bool = False) -> CaptureReport:
        report = self._parts.place.leave(report, may_wait=may_wait)
        unseen = (
            sum(child.end == "not captured" for child in report.children) + self._parts.place.starts_unfollowed.total()
        )
        if report.nothing is None or not (report.children or unseen):
            return report
        recorder = self._parts.recording.recorder
        recorder.circumstances.in_children = unseen
        is_elsewhere = any(child.captured for child in report.children)
        return replace(report, nothing=None if is_elsewhere else recorder.why_nothing())


def _marks_without_effect(plan: DumpPlan, marks: ProgramMarks) -> Iterator[str]:
    names = [text for _, text in marks.enabled_targets()]
    if names and plan.selection != "marked":
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"set_dump has no effect in this capture, and {shown} is marked; {words_of(plan.dialect).marked}"


def _log_replaced(report: CaptureReport) -> None:
    _LOG.warning("%d operators captured in %s; %s", report.captured, report.path, report.warnings[-1])
