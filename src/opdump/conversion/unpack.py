"""`opdump unpack`: writes the files that a packed dump would have in another layout.

The records of a run pass through the writer of that layout. In MindSpore's layouts the files are byte for byte those that the
writer would have produced during the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdump.errors import DumpPathError, NotInDumpError, OpdumpError
from opdump.index.runs import Run
from opdump.index.writer import RunFacts
from opdump.layouts.base import open_writer
from opdump.layouts.detect import read_ranks
from opdump.layouts.mindspore_sync.files import PARAMETER
from opdump.layouts.mindspore_sync.reader import RankTree
from opdump.layouts.packed import PackedRank
from opdump.plan import DumpPlan, FileFormat
from opdump.plan.layouts import facts_of
from opdump.records import TensorRecord
from opdump.step_table import StepTable

Progress = Callable[[str, int, int], None]
"""Called with what is done, the number of finished steps and of all steps."""
_OF_WRITER: Final = ("files", "bytes")
"""Totals that the writer counts itself."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The files written below `path`. `problems`: unreadable parts of the packed dump, which are left out."""

    path: Path
    layout: str
    ranks: tuple[int, ...]
    steps: int
    tensors: int
    files: int
    bytes: int
    problems: tuple[str, ...]
    interrupted: bool


class _InterruptedError(Exception):
    """Ctrl-C; the files written so far stay."""


@dataclass(slots=True)
class _Counts:
    steps: int = 0
    tensors: int = 0
    files: int = 0
    bytes: int = 0


def unpack(
    source: Path,
    out: Path,
    layout: str,
    *,
    file_format: FileFormat = "npy",
    run: int | None = None,
    progress: Progress | None = None,
) -> Unpacked:
    """Write one run of a packed dump, the last one if `run` is None, into `out` in another layout.

    Raises UnknownLayoutError if `source` is not a dump, NotInDumpError if it is not packed or has no such run, ConfigError if the
    run cannot be written in that layout, and DumpPathError if `out` is not empty or cannot be written.
    """
    ranks = _packed_ranks(source, run)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DumpPathError(f"{out}: is not empty; name a new or empty directory after -o")
    if any(rank.root in (out.resolve(), *out.resolve().parents) for rank, _ in ranks):
        raise DumpPathError(f"{out}: is inside the dump to be unpacked; name a directory outside of it")
    counts = _Counts()
    problems: list[str] = []
    total = sum(len(rank.steps) for rank, _ in ranks)
    interrupted = False
    try:
        for rank, of_rank in ranks:
            _RankUnpacking(rank, of_rank, _plan_of(of_rank, out, layout, file_format), counts, problems).run(
                lambda done: progress("unpacking", done, total) if progress is not None else None
            )
            problems += map(str, rank.problems)
    except _InterruptedError:
        interrupted = True
    return Unpacked(
        path=out,
        layout=layout,
        ranks=tuple(rank.rank_id for rank, _ in ranks),
        steps=counts.steps,
        tensors=counts.tensors,
        files=counts.files,
        bytes=counts.bytes,
        problems=tuple(dict.fromkeys(problems)),
        interrupted=interrupted,
    )


def _packed_ranks(source: Path, run: int | None) -> list[tuple[PackedRank, Run]]:
    found = [rank for rank in read_ranks(source, run="latest" if run is None else run) if rank.runs]
    chosen: list[tuple[PackedRank, Run]] = []
    for rank in found:
        known = {each.id: each for each in rank.runs}
        number = max(known) if run is None else run
        if not isinstance(rank, RankTree) or not (isinstance(rank, PackedRank) or _is_packed(known.get(number))):
            raise NotInDumpError(
                f"{source}: is not packed, so there is nothing to unpack; `opdump show` lists its tensors"
            )
        if number in known and known[number].plan:
            chosen.append((PackedRank(rank.root, rank.rank_id, run=number), known[number]))
    if not chosen:
        raise NotInDumpError(f"{source}: has no index with its plan; only opdump.open can read its tensors")
    return chosen


def _is_packed(run: Run | None) -> bool:
    """Whether a run was recorded in the packed layout; one with only statistics has no file of elements."""
    return run is not None and run.plan.get("layout") == "packed"


def _plan_of(run: Run, out: Path, layout: str, file_format: FileFormat) -> DumpPlan:
    """The plan of the run in another layout. Raises ConfigError if the layout cannot represent the records."""
    changed = {"path": str(out.resolve()), "layout": layout}
    if "file_format" in facts_of(layout).fields:
        changed["file_format"] = file_format
    return DumpPlan.from_json(json.dumps({**run.plan, **changed}))


def _without_values(table: StepTable[TensorRecord]) -> StepTable[TensorRecord]:
    """The step without values that no operator made, for layouts without a place for them."""
    return StepTable.of(
        [op for op in table.ops if op.op_type != PARAMETER],
        [record for record in table.tensors if record.op.op_type != PARAMETER],
        table.counted,
    )


class _RankUnpacking:
    """Passes the records of one rank to the writer of another layout."""

    def __init__(self, rank: PackedRank, run: Run, plan: DumpPlan, counts: _Counts, problems: list[str]) -> None:
        self._rank = rank
        self._run = run
        self._plan = plan
        self._counts = counts
        self._problems = problems
        facts = RunFacts(
            rank.rank_id,
            run.device_target,
            run.framework,
            run.framework_version,
            run.opdump_version,
            run.command,
            plan.to_json(),
            run.started,
        )
        self._writer = open_writer(plan, facts)

    def run(self, tell: Callable[[int], None]) -> None:
        """Write the whole rank. Raises DumpPathError if it cannot be written and _InterruptedError at Ctrl-C; all files written
        are complete in both cases.
        """
        writer = self._writer
        totals = {name: number for name, number in self._run.totals.items() if name not in _OF_WRITER}
        whole = None
        try:
            self._write_constants()
            for step in self._rank.steps:
                self._write_step(step, self._rank.step(step))
                self._counts.steps += 1
                tell(self._counts.steps)
            self._write_graphs()
            whole = totals if self._run.complete and not self._problems and not self._rank.problems else None
        except KeyboardInterrupt:
            raise _InterruptedError from None
        finally:
            writer.close(whole)
            self._counts.files += writer.sink.files_written
            self._counts.bytes += writer.sink.bytes_written

    def _write_constants(self) -> None:
        if self._plan.layout_facts.files != "tensors" or not self._plan.saves_tensors:
            return
        for record in self._rank.constants():
            number = record.op.op_name.removeprefix("data-")
            if record.payload is not None and number.isdecimal() and self._is_readable(record):
                self._counts.tensors += self._writer.write_constant(int(number), record) is not None

    def _write_step(self, step: int, table: StepTable[TensorRecord]) -> None:
        writer = self._writer
        if not self._plan.layout_facts.values:
            table = _without_values(table)
        if self._plan.save_kernel_args:
            for op in {
                (op.graph_id, op.op_name): op for op in reversed(table.ops) if op.arguments and not op.skip
            }.values():
                writer.write_kernel_args(op)
        files = list(self._files(table.tensors))
        self._counts.tensors += sum(file is not None for file in files)
        writer.write_step(step, table.ops, table.tensors, files, table.counted)

    def _files(self, tensors: Sequence[TensorRecord]) -> Iterator[str | None]:
        """Pass the elements of a step to the writer; returns the path of each."""
        writer = self._writer
        if self._plan.layout_facts.files == "tensors":
            for record in tensors:
                yield writer.write_payload(record) if self._is_readable(record) else None
            return
        by_operator: dict[int, list[TensorRecord]] = {}
        for record in tensors:
            by_operator.setdefault(id(record.op), []).append(record)
        found: dict[int, str | None] = {}
        for group in by_operator.values():
            written = writer.write_operator(group[0].op, group) if self._plan.saves_tensors else [None] * len(group)
            found.update((id(record), file) for record, file in zip(group, written, strict=True))
        for record in tensors:
            yield found[id(record)]

    def _is_readable(self, record: TensorRecord) -> bool:
        if record.payload is None:
            return False
        try:
            record.payload.to_host()
        except OpdumpError as error:
            self._problems.append(str(error))
            return False
        return True

    def _write_graphs(self) -> None:
        for graph_id in self._rank.graph_ids:
            graph = self._rank.graph(graph_id)
            if graph is not None:
                self._writer.write_graph(graph)
            if len(self._rank.runs) == 1:
                for step in self._rank.history(graph_id):
                    self._writer.graphs_ran(step, [graph_id])
