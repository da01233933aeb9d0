"""The program's handle of a running capture, and its recording.

A `Recording` covers a capture from its first file to its report:

    recording = Recording(plan, rank_id, runtime)
    ...an adapter passes operators to recording.recorder...
    recording.close()
    print(recording.report(rank_id))
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from opdump import amounts
from opdump.adapters.base import Runtime, StepController, SupportsCaptureTime
from opdump.adapters.program_marks import ProgramMarks
from opdump.adapters.registry import is_used_by_program
from opdump.amounts import html_line, repr_of
from opdump.capturing.rank_assignment import RankAssignment, are_awaited
from opdump.capturing.report import CaptureReport, log_report
from opdump.errors import CaptureStateError, ConfigError
from opdump.index.writer import SPLIT_PAGES, RunFacts, own_version
from opdump.interpreter.critical_sections import not_interrupted
from opdump.layouts.base import RankWriter, open_writer
from opdump.plan import DumpPlan
from opdump.plan.dialects import words_of
from opdump.recorder import Recorder, failure_text, make_recorder
from opdump.sink import DirectorySink

_LONG_WAIT_SECONDS: Final = 1.0


class Recording:
    """A plan, a writer and a recorder for one runtime. `open_it` opens a different writer than the plan's layout."""

    def __init__(
        self,
        plan: DumpPlan,
        rank_id: int,
        runtime: Runtime,
        open_it: Callable[[DumpPlan, RunFacts], RankWriter] = open_writer,
    ) -> None:
        self.plan = plan
        is_measured = isinstance(runtime, SupportsCaptureTime) and runtime.measures_capture
        if plan.max_overhead is not None and not is_measured:
            raise ConfigError(
                f"max_overhead is {plan.max_overhead:g}, and captures of {runtime.framework} cannot measure their own time: "
                "leave it out, and record fewer steps (--every N)"
            )
        self.writer = open_it(plan, _facts(plan, rank_id, runtime))
        self.recorder: Recorder = make_recorder(plan, self.writer, runtime.reader(plan))
        self._started = time.monotonic()
        self.recorder.clock.is_measured = is_measured
        self.bytes_of_others: Callable[[], int] = int
        """Returns the bytes that other processes of the run have written."""
        self.recorder.bounds.begin(self._bytes_of_run, plan.initial_iteration, SPLIT_PAGES, lambda: self.sink)
        self.sink.room = self.recorder.bounds.room
        self.recorder.stop_at_bound()

    def own_bytes(self) -> int:
        """Return the bytes that this process has written, including those that wait for the disk."""
        return self.sink.bytes_handed + self.writer.index_bytes

    def _bytes_of_run(self) -> int:
        return self.own_bytes() + self.bytes_of_others()

    @property
    def sink(self) -> DirectorySink:
        return self.writer.sink

    def close(self) -> None:
        """Wait until everything is on disk. Errors are raised or noted, depending on the plan's `on_error`."""
        recorder = self.recorder
        with recorder.writing():
            recorder.end_run()
            tally = recorder.tally
            totals = {"executed": tally.executed, "captured": tally.captured, "tensors": tally.tensors}
            # If the capture failed for any other reason, the dump is incomplete as well.
            self.writer.close(totals if recorder.failure is None else None)

    def report(self, rank_id: int, notes: Iterable[str] = ()) -> CaptureReport:
        """Return the report, once everything is on disk. `notes` are warnings, added after those of the recorder."""
        recorder, tally = self.recorder, self.recorder.tally
        return CaptureReport(
            executed=tally.executed,
            captured=tally.captured,
            skipped=dict(tally.skipped),
            tensors=tally.tensors,
            tensors_skipped=dict(tally.tensors_skipped),
            files=self.sink.files_written,
            bytes=self.sink.bytes_written,
            steps=tuple(sorted(tally.steps)),
            path=self.plan.path,
            rank_id=rank_id,
            seconds=time.monotonic() - self._started,
            warnings=(
                *recorder.lost.in_words(),
                *recorder.unmatched_kernels(),
                *recorder.warnings,
                *_slow_disk(self.sink.seconds_waited),
                *_no_loss(recorder),
                *notes,
            ),
            nothing=recorder.explain_empty_capture() if recorder.failure is None else None,
            failure=failure_text(recorder.failure),
            files_lost=self.sink.files_lost,
            verdict=recorder.verdict,
            checked=recorder.checked(),
            fired=tuple(recorder.fired),
            degraded=tuple(recorder.bounds.degraded),
            capture_seconds=recorder.clock.seconds,
        )


def _no_loss(recorder: Recorder) -> Sequence[str]:
    """Return a warning if the trigger `loss-spike` never saw a loss."""
    if recorder.losses is None or recorder.losses.seen:
        return ()
    return ("loss-spike could not fire: no loss was seen; pass it with dump.loss(value)",)


def _slow_disk(waited: float) -> Iterator[str]:
    if waited >= _LONG_WAIT_SECONDS:
        yield (
            f"the program was blocked for {amounts.seconds(waited)} by disk writes: dump less (fewer steps, fewer operators, only statistics), "
            "or dump to a faster disk"
        )


def _facts(plan: DumpPlan, rank_id: int, runtime: Runtime) -> RunFacts:
    """Return the facts about a run that the index keeps besides its records."""
    return RunFacts(
        rank_id,
        runtime.device_target,
        runtime.framework,
        runtime.framework_version,
        own_version(),
        tuple(sys.argv),
        plan.to_json(),
    )


_LOG = logging.getLogger("opdump")
_PACKAGES: Final = {
    "PyTorch": "torch",
    "TensorFlow": "tensorflow",
    "JAX": "jax",
    "MindSpore": "mindspore",
    "ONNX Runtime": "onnxruntime",
}


class _NotAttached:
    """Stands in for the controller until an adapter is attached."""

    step = 0

    def manual_step(self) -> None:
        raise CaptureStateError("the capture has not begun; call step() inside `with opdump.capture(...) as dump`")


@dataclass(slots=True)
class CaptureParts:
    """The parts of the capture of a process while it runs. `Dump` is its public interface."""

    recording: Recording
    place: RankAssignment
    marks: ProgramMarks
    controller: StepController = field(default_factory=_NotAttached)
    process: int = field(default_factory=os.getpid)


class Dump:
    """The program's handle of a capture; after the end it has the report."""

    def __init__(self, parts: CaptureParts, stack: ExitStack) -> None:
        """`stack` ends the capture when it is closed."""
        self.plan = parts.recording.plan
        self.report: CaptureReport | None = None
        self.when_replaced: Callable[[CaptureReport], object] = _log_replaced
        """Receives the report of this capture if another program replaces this process (`os.exec`)."""
        self.when_ended: Callable[[CaptureReport], object] = log_report
        """Logs the warnings of the report. Set it to `told_elsewhere` if the report is printed in another way."""
        self.may_wait = False
        """Set if the report is printed only after the interpreter has waited for child processes; `look_again` then updates it."""
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
        """The rank of this process in directories and records. It may change until the rank is decided (`rank_assignment.py`)."""
        return self._parts.place.rank

    def started_before(self, unfollowed: Mapping[str, int]) -> None:
        """Add the Python processes that were started before the capture and cannot be followed: their number by how they were started."""
        self._parts.place.starts_unfollowed.update(unfollowed)

    @not_interrupted
    def step(self) -> None:
        """End the current iteration here. After the first call, nothing else ends an iteration."""
        self._parts.controller.manual_step()

    def trigger(self, why: str = "the program") -> None:
        """Write the last steps, which are kept in memory (`ring`), and the running step as soon as it ends.

        `why` appears in the report. Raises CaptureStateError if the plan keeps no steps in memory.
        """
        if not self.plan.ring:
            raise CaptureStateError(
                "trigger() writes the steps kept in memory, and this capture keeps none: begin it with ring=3"
            )
        self._parts.recording.recorder.fire(why)

    def loss(self, value: float) -> None:
        """Pass the loss of the running step to the trigger `loss-spike`.

        In PyTorch programs the loss is otherwise known from the tensor on which `backward` is called. After the first call only the passed losses
        count. Raises CaptureStateError if the plan does not have this trigger, or keeps no steps in memory.
        """
        losses = self._parts.recording.recorder.losses
        if losses is None:
            raise CaptureStateError(
                'loss() is for the trigger "loss-spike", which this capture does not have: begin it with ring=3, triggers=["loss-spike"]'
            )
        losses.tell(self.current_step, float(value))

    @property
    def current_step(self) -> int:
        """The current iteration of the program."""
        return self._parts.controller.step

    @property
    def operators(self) -> int:
        """Number of operators executed under capture in the completed steps."""
        return self._parts.recording.recorder.tally.executed

    @property
    def bytes_written(self) -> int:
        """Number of bytes on disk so far."""
        return self._parts.recording.sink.bytes_written

    @property
    def awaits_children(self) -> bool:
        """Whether child processes were still running when the capture ended, so that `look_again` should be called."""
        return self.may_wait and self.report is not None and are_awaited(self.report.children)

    def look_again(self) -> CaptureReport:
        """Update the report with what child processes have done by now, and return it."""
        assert self._own_report is not None, "the capture has ended"
        self.may_wait = False
        self.report = self._with_children(self._own_report)
        self._parts.place.family.release()
        return self.report

    def _finish(self) -> None:
        if os.getpid() != self._parts.process:
            return  # in a forked process: the report belongs to the parent
        try:
            self._parts.recording.close()
        finally:
            self.when_ended(self._make_report())

    def _make_report(self) -> CaptureReport:
        recorder = self._parts.recording.recorder
        around = recorder.circumstances
        around.marks = bool(self._parts.marks)
        if recorder.tally.executed == 0 and around.framework:
            own = _PACKAGES.get(around.framework, around.framework)
            around.is_framework_used = is_used_by_program(own)
            others = (name for name, package in _PACKAGES.items() if package != own and is_used_by_program(package))
            around.others_used = () if around.is_framework_used else tuple(others)
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
        return replace(report, nothing=None if is_elsewhere else recorder.explain_empty_capture())


def _marks_without_effect(plan: DumpPlan, marks: ProgramMarks) -> Iterator[str]:
    names = [text for _, text in marks.enabled_targets()]
    if names and plan.selection != "marked":
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"set_dump has no effect in this capture, and {shown} is marked; {words_of(plan.dialect).marked}"


def _log_replaced(report: CaptureReport) -> None:
    _LOG.warning("%d operators captured in %s; %s", report.captured, report.path, report.warnings[-1])
