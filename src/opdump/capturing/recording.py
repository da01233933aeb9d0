"""One recording, from the opening of its first file to its report, for every interface.

recording = Recording(plan, rank_id, runtime)
...an adapter passes operators to recording.recorder...
recording.close()
print(recording.report(rank_id))
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from opdump import amounts
from opdump.adapters.base import Runtime, SupportsCaptureTime
from opdump.capturing.report import CaptureReport
from opdump.errors import ConfigError
from opdump.index.writer import SPLIT_PAGES, RunFacts, own_version
from opdump.layouts.base import RankWriter, open_writer
from opdump.plan import DumpPlan
from opdump.recorder import Recorder, failure_text, make_recorder
from opdump.recorder.writers import SupportsIndexSize
from opdump.sink import DirectorySink

_LONG_WAIT_SECONDS: Final = 1.0


class Recording:
    """A plan, a writer and a recorder for one runtime. `open_it` opens a writer other than that of the plan's layout."""

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
        reserve = SPLIT_PAGES if isinstance(self.writer, SupportsIndexSize) else 0
        self.recorder.bounds.begin(self._bytes_of_run, plan.initial_iteration, reserve, lambda: self.sink)
        self.sink.room = self.recorder.bounds.room
        self.recorder.stop_at_bound()

    def own_bytes(self) -> int:
        """Return the bytes that this process has written, including those that wait for the disk."""
        index = self.writer.index_bytes if isinstance(self.writer, SupportsIndexSize) else 0
        return self.sink.bytes_handed + index

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
            nothing=recorder.why_nothing() if recorder.failure is None else None,
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
