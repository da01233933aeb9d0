"""Writes the statistic.csv of each directory of a dump: one row per tensor, appended to what is there."""

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
    """A sink whose files can be read again, to add rows to them."""

    @property
    def root(self) -> Path: ...

    def read(self, relative: str) -> bytes:
        """The bytes of a file; nothing where there is none."""

    def write_bytes(self, relative: str, data: bytes) -> None: ...


class StatisticFiles:
    """Writes them through `sink`, with the columns of the plan.

    `written_as` gives the numbers and the name that the rows of an operator show. It and `directory_of` may look at nothing of an operator
    but what a pattern compares, and at its step.
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
        """What fills the files of a batch that repeats the last; made when one does."""

    def write_batch(self, batch: Batch) -> None:
        """`write` for a batch. One that repeats the last takes a third of the time."""
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
        """Append the rows of tensors, those of an operator side by side; none for those without statistics."""
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
        # The next call is for the same step or for a later one: older texts are not needed again.
        self._written = written


def form_of(batch: Batch) -> tuple[Pattern, Sequence[int]] | None:
    """What two batches share whose rows differ in time stamps and statistics alone; None where rows are made one by one."""
    if batch.summaries is None or not batch.others.keys().isdisjoint(batch.bare):
        return None
    # A directory is a step's, and patterns know no steps.
    if not batch.is_of_one_step:
        return None
    return batch.pattern, batch.bare
