"""Writes the statistic.csv of each directory of a dump: one row per tensor, appended to the existing rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from opdump.index.batch import Batch, Pattern
from opdump.layouts.mindspore_sync.files import STATISTIC_NAME
from opdump.layouts.mindspore_sync.repeated_rows import RepeatedRows, repeated_rows
from opdump.layouts.mindspore_sync.statistic_csv import StatisticEncoder, merge_statistic_csv
from opdump.plan import DumpPlan
from opdump.records import FiledTensor, OpRecord


class SupportsTables(Protocol):
    """A sink whose files can be read again, to append rows."""

    @property
    def root(self) -> Path: ...

    def read(self, relative: str) -> bytes:
        """The bytes of a file; empty if there is none."""

    def write_bytes(self, relative: str, data: bytes) -> None: ...


class StatisticFiles:
    """Writes the tables through `sink`, with the columns of the plan.

    `written_as` returns the numbers and the name in the rows of an operator. It and `directory_of` may only use attributes of an
    operator that a pattern compares, and its step.
    """

    def __init__(
        self,
        plan: DumpPlan,
        sink: SupportsTables,
        *,
        directory_of: Callable[[OpRecord], str],
        written_as: Callable[[OpRecord], tuple[OpRecord, str]],
    ) -> None:
        self._sink = sink
        self._directory_of = directory_of
        self._written_as = written_as
        self._encoder = StatisticEncoder(plan.statistic_category, trailing_comma=plan.trailing_comma)
        self._written: dict[str, bytes] = {}
        self._last: tuple[Pattern, Sequence[int]] | None = None
        self._repeated: list[RepeatedRows] | None = None
        """The fillers for a batch that repeats the last one; created when needed."""

    def write_batch(self, batch: Batch) -> None:
        """`write` for a batch. A batch that repeats the last one takes a third of the time."""
        last, self._last = self._last, form_of(batch)
        if self._last is None or self._last != last:
            self._repeated = None
            self.write(batch.tensors)
            return
        if self._repeated is None:
            self._repeated = repeated_rows(
                batch, self._encoder, directory_of=self._directory_of, written_as=self._written_as
            )
        self._append({self._directory_of(batch.ops[rows.op]): rows.text(batch) for rows in self._repeated})

    def write(self, tensors: Sequence[FiledTensor]) -> None:
        """Append the rows of tensors, grouped by operator; none for those without statistics."""
        tables: dict[str, tuple[list[str], list[FiledTensor]]] = {}
        start = self._encoder.start
        op = None
        for tensor in tensors:
            if tensor.op is not op:
                op = tensor.op
                begin = start(*self._written_as(op))
                starts, kept = tables.setdefault(self._directory_of(op), ([], []))
            if not (tensor.skip or op.skip):
                starts.append(begin)
                kept.append(tensor)
        self._append({directory: self._encoder.text(*table) for directory, table in tables.items()})

    def _append(self, texts: Mapping[str, bytes]) -> None:
        written = {}
        for directory, rows in texts.items():
            if not rows:
                continue
            path = f"{directory}/{STATISTIC_NAME}"
            earlier = self._written[path] if path in self._written else self._sink.read(path)
            where = str(self._sink.root / path)
            written[path] = merge_statistic_csv(earlier, self._encoder.header, rows, where=where)
            self._sink.write_bytes(path, written[path])
        # The next call is for the same or a later step: older texts are not needed again.
        self._written = written


def form_of(batch: Batch) -> tuple[Pattern, Sequence[int]] | None:
    """The common form of batches whose rows differ only in time stamps and statistics; None if rows must be printed one by one."""
    if batch.summaries is None or not batch.others.keys().isdisjoint(batch.bare):
        return None
    # A directory belongs to a step, and patterns have no steps.
    if not batch.is_of_one_step:
        return None
    return batch.pattern, batch.bare
