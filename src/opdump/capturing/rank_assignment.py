"""A writer that is opened when there is something to write. Until then, the rank of the process may be unknown, and it may need no writer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from opdump import amounts
from opdump.adapters.base import Adapter, SupportsGroups
from opdump.capturing.family import FAMILY_VARIABLE, ChildReport, Family, SharedBytes, awaited_processes
from opdump.checks.overflow import OverflowStatus
from opdump.degradation import Degradation
from opdump.errors import ConfigError
from opdump.graph import Graph
from opdump.index.writer import RunFacts
from opdump.interpreter.process_starts import Start
from opdump.layouts.base import RankWriter, open_writer
from opdump.plan import DumpPlan
from opdump.plan.dialects import DIALECTS, rank_variables
from opdump.recorder import Recorder
from opdump.records import FiledTensor, OpRecord, SkipReason, TensorRecord
from opdump.sink import DirectorySink
from opdump.verdict import Verdict


class DeferredWriter(RankWriter):
    """A placeholder for the writer that `open_it` returns."""

    def __init__(self, plan: DumpPlan, open_it: Callable[[], RankWriter]) -> None:
        self._has_history = plan.layout_facts.files == "tensors"
        self._open_it = open_it
        self._opened: RankWriter | None = None
        self._early: list[Callable[[RankWriter], object]] = []
        """Calls that wait until the writer is opened for another reason."""
        self._process = os.getpid()
        self.sink = DirectorySink(plan.path, lazy=True)

    @property
    def opened(self) -> RankWriter:
        """The writer. It is opened at the first access."""
        if self._opened is None:
            opened = self._open_it()
            opened.sink.room = self.sink.room
            self._opened, self.sink = opened, opened.sink
            early, self._early = self._early, []
            for call in early:
                call(opened)
        return self._opened

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def write_payload(self, record: TensorRecord) -> str:
        return self.opened.write_payload(record)

    def write_operator(self, op: OpRecord, tensors: Sequence[TensorRecord]) -> Sequence[str | None]:
        return self.opened.write_operator(op, tensors)

    def write_exception(self, op: OpRecord, tensors: Sequence[TensorRecord], message: str) -> Sequence[str | None]:
        return self.opened.write_exception(op, tensors, message)

    def write_overflow(self, op: OpRecord, status: OverflowStatus) -> None:
        self.opened.write_overflow(op, status)

    def write_constant(self, data_id: int, record: TensorRecord) -> None:
        self._when_open(lambda writer: writer.write_constant(data_id, record))

    def write_kernel_args(self, op: OpRecord) -> None:
        self._when_open(lambda writer: writer.write_kernel_args(op))

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        self.opened.write_step(step, ops, tensors, files, counted)

    def write_graph(self, graph: Graph) -> None:
        self.opened.write_graph(graph)

    def write_graph_files(self, graph: Graph, files: Mapping[str, bytes]) -> None:
        self._when_open(lambda writer: writer.write_graph_files(graph, files))

    def graphs_ran(self, step: int, graph_ids: Iterable[int]) -> None:
        if self._has_history:  # no other layout keeps it, and opening one would create a dump of nothing
            self.opened.graphs_ran(step, graph_ids)

    def write_degradation(self, degradation: Degradation) -> None:
        self._when_open(lambda writer: writer.write_degradation(degradation))

    @property
    def index_bytes(self) -> int:
        return 0 if self._opened is None else self._opened.index_bytes

    @property
    def metadata(self) -> Path | None:
        return None if self._opened is None else self._opened.metadata

    def adopt(self, file: Path) -> None:
        if self._opened is not None:
            self._opened.adopt(file)

    def flush(self) -> None:
        if self._opened is not None:
            self._opened.flush()

    def close(self, totals: Mapping[str, int] | None) -> None:
        if self._opened is not None and os.getpid() == self._process:
            self._opened.close(totals)

    def _when_open(self, call: Callable[[RankWriter], object]) -> None:
        if self._opened is None:
            self._early.append(call)
        else:
            call(self._opened)


# Finds the rank of a process in the dump, and with it the place of its writer.
#
# A process that a launcher numbered knows its rank from the start. A process that joins a process group learns it later: its files are held back
# until a network runs or a step ends. A process in no group takes an unused number.


class _Figures(Protocol):
    """The counts of a process, from a running capture or from its report."""

    @property
    def executed(self) -> int: ...
    @property
    def captured(self) -> int: ...
    @property
    def skipped(self) -> Mapping[str, int]: ...
    @property
    def tensors(self) -> int: ...
    @property
    def tensors_skipped(self) -> Mapping[str, int]: ...


@contextmanager
def family_of(plan: DumpPlan, facts: Mapping[str, Any], begun: Family | None = None) -> Iterator[Family]:
    """Keep a family open during the block. Processes started meanwhile find it in their environment. `begun`: a family that this process began before
    it knew what it captures; else a new one is created.
    """
    if begun is not None:
        yield begun.begun_again(plan, facts)
        return
    family = Family.begin(plan, facts)
    process, before = os.getpid(), os.environ.get(FAMILY_VARIABLE)
    if family.is_there:
        os.environ[FAMILY_VARIABLE] = str(family.directory)
    try:
        yield family
    finally:
        if os.getpid() == process:
            if os.environ.get(FAMILY_VARIABLE) == str(family.directory):
                if before is None:
                    del os.environ[FAMILY_VARIABLE]
                else:
                    os.environ[FAMILY_VARIABLE] = before
            family.end()


class RankAssignment:
    """The rank of this process in its family."""

    def __init__(
        self, family: Family, adapter: Adapter, rank: int | None, *, known: bool, is_first: bool, token: str = ""
    ) -> None:
        """`rank` is final if `known`, else the rank of a process without a group. The report of the first process includes all others."""
        self.family = family
        self.rank = 0 if rank is None else rank
        self.warnings: list[str] = []
        self._given = rank
        self._adapter = adapter
        self._known = known
        self._is_first = is_first
        self._token = token or new_token()
        self._opened: RankWriter | None = None
        """The writer of the first process, as long as its rank may still change."""
        self._run: RunFacts | None = None
        self._settled = False
        self._held: int | None = None
        """A number claimed before it was needed: child processes inherit the variables from which it was derived."""
        self.starts_unfollowed: Counter[str] = Counter()
        """Number of Python processes that cannot be followed, by how they were started."""

    @property
    def framework(self) -> str:
        return self._adapter.framework

    def shared_bytes(self, own: Callable[[], int]) -> SharedBytes:
        """Return the shared count of bytes that the processes of the run have written; `own` returns those of this process."""
        return SharedBytes(self.family, self._token, own)

    def starts(self, start: Start) -> None:
        self._hold()
        if start.kind == "started" and start.obstacle:
            self.starts_unfollowed[start.obstacle] += 1

    def told(self) -> tuple[str, ...]:
        return (*self.warnings, *warnings_of_starts(self.starts_unfollowed))

    def begun(self) -> None:
        """Register this child process. From now on it is reported as lost if it ends without a report."""
        self._hold()
        if not self._settled:
            self.family.note(self._token, {})

    def writer(self, plan: DumpPlan, run: RunFacts) -> RankWriter:
        """Return the writer of this process. That of the first process is opened at once, so that an unusable directory is reported early."""
        self._run = run
        if self._is_first:
            self._opened = open_writer(plan, run)
            if self._known:
                self._settle()
                return self._opened
        return DeferredWriter(plan, lambda: self._open(plan, run))

    def settled(self, writer: DeferredWriter) -> int:
        assert writer.opened is not None, "opening it settles the number"
        return self.rank

    def leave(self, report: Any, *, may_wait: bool = False) -> Any:
        """Return the report of the first process including its children. In a child, write the report into a note and return it.

        `may_wait`: if children are still running, this method is called again after their end, and the shared directory is kept until then.
        """
        if not self._is_first:
            ending = {
                "end": "ended",
                "warnings": [*report.warnings, *map(str, report.degraded), *_found_in(report)],
                "failure": report.failure,
            }
            self._note(report, report.verdict, report.steps, files=report.files, bytes=report.bytes, **ending)
            self.family.left()
            return report
        try:
            children = self.family.reports()
        except OSError as error:
            unknown = f"the reports of child processes, if there were any, cannot be read: {error.strerror}"
            return replace(report, warnings=(*report.warnings, unknown))
        noted = {child.process for child in children}
        children += tuple(ChildReport(process=id_, end="running") for id_ in sorted(awaited_processes() - noted))
        if may_wait and are_awaited(children):
            self.family.keep()
        elif not self._settled and any(child.left_data for child in children):
            self._abandon()  # it ran nothing, so it leaves no directory beside those of its children
        elif self._opened is not None:
            self._opened.close(None if report.failure else dict.fromkeys(("executed", "captured", "tensors"), 0))
        nothing = None if any(child.captured for child in children) else report.nothing
        return replace(
            report,
            children=children,
            nothing=nothing,
            warnings=(*report.warnings, *warnings_of(children)),
            failure=report.failure or failure_of(children),
        )

    def leave_out(self, reason: str) -> None:
        """Note that this child, which left no data, is not captured."""
        self.family.note(self._token, {"end": "not captured", "reason": reason})

    def filed(self, recorder: Recorder, sink: DirectorySink) -> None:
        """In a child: note what was written so far, because a killed process cannot report anything later."""
        if self._settled and recorder.failure is None:
            tally = recorder.tally
            self._note(tally, recorder.verdict, tally.steps, files=sink.files_written, bytes=sink.bytes_written)

    def _note(self, figures: _Figures, verdict: Verdict, steps: Sequence[int], **more: Any) -> None:
        note = {
            "rank_id": self.rank if self._settled else None,
            "executed": figures.executed,
            "captured": figures.captured,
            "skipped": dict(figures.skipped),
            "tensors": figures.tensors,
            "tensors_skipped": dict(figures.tensors_skipped),
            "last_step": steps[-1] if steps else None,
            "verdict": verdict.as_json(),
        }
        self.family.note(self._token, {**note, **more})

    def _open(self, plan: DumpPlan, run: RunFacts) -> RankWriter:
        if self._opened is not None:
            before = self.rank
            self._settle()
            if self.rank == before:
                return self._opened
            self._abandon()
        else:
            self._settle()
        return open_writer(plan, run._replace(rank_id=self.rank))

    def _number_said(self) -> int | None:
        if self._known:
            return self._given
        return self._adapter.group_rank if isinstance(self._adapter, SupportsGroups) else None

    def _hold(self) -> None:
        if self._settled or self._held is not None:
            return
        number = self._number_said()
        if number is not None and self.family.claim(number):
            self._held = number

    def _settle(self) -> None:
        self._settled = True
        said = self._number_said()
        wanted = self._given if said is None else said
        if wanted is not None and (wanted == self._held or self.family.claim(wanted)):
            self.rank = wanted
        else:
            self.rank = self.family.own_number()
            if said is not None and not self.family.is_of_ancestor(said):
                self.warnings.append(
                    f"process {os.getpid()} is rank {wanted} and is recorded as rank_{self.rank}: another process of this run has that number"
                )
        if not self._is_first:
            self.family.note(self._token, {"rank_id": self.rank})

    def _abandon(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.abandon()


def new_token() -> str:
    """Return an ID that distinguishes the notes of processes with the same process ID."""
    return os.urandom(4).hex()


def are_awaited(children: tuple[ChildReport, ...]) -> bool:
    return any(child.end == "running" for child in children)


def warnings_of_starts(unfollowed: Mapping[str, int]) -> Iterator[str]:
    """Return a warning for each way in which Python processes were started that cannot be followed."""
    for how, number in unfollowed.items():
        yield f"{number} Python {'process' if number == 1 else 'processes'} not captured: started {how}"


def failure_of(children: tuple[ChildReport, ...]) -> str:
    """Return why the dump of one of these processes is incomplete, which makes the whole dump incomplete, or an empty string."""
    failed = [child for child in children if child.failure]
    if not failed:
        return ""
    others = f" (and {len(failed) - 1} more of the child processes)" if len(failed) > 1 else ""
    return f"rank_{failed[0].rank_id}: {failed[0].failure}{others}"


def warnings_of(children: tuple[ChildReport, ...]) -> Iterator[str]:
    for child in children:
        where = f"process {child.process}" if child.rank_id is None else f"rank_{child.rank_id}"
        for warning in child.warnings:
            yield f"{where}: {warning}"
        number = "" if child.rank_id is None else f" (id {child.process})"
        if child.end == "lost":
            left = "nothing of it was written"
            if child.last_step is not None:
                left = f"the steps that it wrote are complete, and step {child.last_step} is the last of them"
            yield f"{where}: this child process{number} ended without a report: it was killed, crashed, or called os._exit; {left}"
        elif child.end == "running":
            yield f"{where}: this child process{number} is still running; what it writes from now on is not counted"
    for reason, count in Counter(child.reason for child in children if child.end == "not captured").items():
        yield f"{count} child {'process' if count == 1 else 'processes'} not captured: {reason}"


def rank_of(environ: Mapping[str, str]) -> int:
    """Return the logical card number: the rank that a launcher has set, else 0. Raises ConfigError if it is not a number."""
    name, _ = rank_variables(environ)
    text = environ.get(name, "0")
    if not text.isdecimal():
        raise ConfigError(f"the environment variable {name} is {text!r}, expected a number (a launcher sets it)")
    return int(text)


def rank_under(plan: DumpPlan, environ: Mapping[str, str]) -> int:
    """Return the card number by the rules for the plan's kind of configuration."""
    return (DIALECTS.load(plan.dialect).rank_of or rank_of)(environ)


def _found_in(report: Any) -> list[str]:
    """Return the findings of a child's checks in words, because only the first process prints tables."""
    checked = report.checked
    if checked is None or checked.is_clean:
        return []
    hits = sum(not hit.error_code for hit in checked.hits)
    watched = f" and {amounts.count(hits, 'hit')} of watchpoints" if hits else ""
    return [
        f"{amounts.count(len(checked.findings), 'finding')}{watched}; next: opdump check {report.path} --rank {report.rank_id}"
    ]
