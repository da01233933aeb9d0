"""Reads the index of a rank, which is trusted no more than any other file. A batch is returned as a table, whose records are created on demand."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast, get_args

import numpy as np

from opdump.degradation import Degradation
from opdump.errors import CorruptDumpError
from opdump.index.opening import (
    OPERATOR_FIELDS,
    IndexFile,
    check_index,
    may_lack_summaries,
)
from opdump.index.runs import Run
from opdump.index.values import (
    Budget,
    FilePayload,
    ReadStacks,
    by_places,
    count,
    json_array,
    json_object,
    known,
    memory,
    moment,
    name,
    shape,
    shown,
    statistics,
    summary_rows,
    text,
    texts_by_places,
    whole,
    whole_numbers,
)
from opdump.records import IO, OpRecord, Payload, Phase, SkipReason, StatisticValue, TensorRecord
from opdump.step_table import OtherArguments, StepTable, StepTemplate, TemplateRun, TensorFacts, TensorSlot

_MOST_CACHED_PATTERNS = 16  # a regular training has a few; if every step differs, none is used again
_PHASES = frozenset(get_args(Phase))


_TEXTS: Final = frozenset({"op_type", "op_name", "net_name", "phase", "kernel", "forward_op", "skip"})
_OF_OPERATORS: Final = tuple(name if field in _TEXTS else whole for field in OPERATOR_FIELDS)
"""The functions that check the values of an operator."""


class FiledBatch(NamedTuple):
    """A row written by one call of the writer: its ID, run and step."""

    id: int
    run: int
    step: int


_Operator = tuple[dict[str, Any], int, int]
"""The fields of the operator's records, and the rows of its stack and its arguments."""
_Signature = tuple[tuple[IO, int, str, str], TensorFacts]
"""Io, slot, argument and source of a tensor, and its other facts."""
_Pattern = tuple[StepTemplate, OtherArguments]
"""What a batch ran, and the arguments that differ from those in the template, which may belong to an earlier pattern."""
_Tensors = Sequence[tuple[int, int]]
"""For each tensor of a pattern, the index of its operator and its signature."""
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


class IndexReader:
    """The index at `path`, whose files are below `root`. A connection is used only during one call, so that a running capture is not blocked.

    Raises CorruptDumpError if the file is not an index, is damaged, or has an unknown version.
    """

    def __init__(
        self, path: Path, root: Path, open_payload: Callable[[Path, str, str, tuple[int, ...]], Payload] = FilePayload
    ) -> None:
        """`open_payload` creates the payload of a tensor from the root, the file as stored in the index, the dtype and the shape."""
        self._file = IndexFile(path)
        self._root = root
        self._open_payload = open_payload
        self._operators: dict[int, _Operator] = {}
        self._ops: dict[int, OpRecord] = {}
        """The records of operators that were needed so far, without time and step."""
        self._signatures: dict[int, _Signature] = {}
        self._arguments: dict[int, dict[str, Any]] = {}
        self._last_row = dict.fromkeys(("operators", "signatures", "arguments", "stacks", "lines"), 0)
        self._patterns: dict[int, _Pattern] = {}
        self._tensors: dict[tuple[Any, int], _Tensors] = {}
        """Tensors of patterns that were read, by their text and the number of operators."""
        self._templates: list[tuple[Sequence[_Operator], _Tensors, StepTemplate]] = []
        self._read_before: set[FiledBatch] = set()
        with self._named():
            check_index(self._file)
            with self._file.connect() as database:
                self._names_budget, self._batches_budget = self._budget(), self._budget()
                self._stacks = ReadStacks()
                runs = [_run(row) for row in self._rows(database, "SELECT * FROM runs ORDER BY id")]
                totals: dict[int, dict[str, int]] = {run.id: {} for run in runs}
                budget = self._budget()
                for row in database.execute("SELECT run, name, value FROM totals"):
                    budget.spend(row)
                    totals.setdefault(whole(row[0]), {})[name(row[1])] = whole(row[2])
                degraded = self._degradations(database)
                self.batches = tuple(
                    FiledBatch(*(whole(value) for value in row))
                    for row in self._rows(database, "SELECT id, run, step FROM batches ORDER BY id")
                )
        for run in runs:
            cast(dict[str, int], run.totals).update(totals[run.id])
        self.runs = tuple(replace(run, degraded=tuple(degraded.get(run.id, ()))) for run in runs)
        self._of_step: dict[int, list[FiledBatch]] = {}
        for batch in self.batches:
            self._of_step.setdefault(batch.step, []).append(batch)

    def _degradations(self, database: sqlite3.Connection) -> dict[int, list[Degradation]]:
        """Return what each run left out because a limit was reached, in chronological order."""
        found: dict[int, list[Degradation]] = {}
        budget = self._budget()
        for row in database.execute("SELECT run, step, time, bound, now, why FROM degradations ORDER BY id"):
            budget.spend(row)
            run, step, time, bound, now, why = row
            degradation = Degradation(
                step=whole(step), time=moment(time), bound=name(bound), now=name(now), why=name(why)
            )
            found.setdefault(whole(run), []).append(degradation)
        return found

    def of_step(self, step: int) -> tuple[FiledBatch, ...]:
        """Return the batches of a step, in the order in which they were written."""
        return tuple(self._of_step.get(step, ()))

    def table(self, batch: FiledBatch) -> StepTable[TensorRecord]:
        """Return the operators and tensors of a batch, in the order in which they were written. No records are created."""
        with self._named(), self._file.connect() as database:
            return self._table(database, batch)

    def newest_timestamp(self) -> int:
        """Return the latest time stamp of an operator, or -1 if no batch has one."""
        with self._named(), self._file.connect() as database:
            rows = self._rows(database, "SELECT id, timestamps FROM batches ORDER BY id")
            return max((max(whole_numbers(stamps), default=-1) for _, stamps in rows), default=-1)

    def _table(self, database: sqlite3.Connection, batch: FiledBatch) -> StepTable[TensorRecord]:
        row = database.execute(
            "SELECT pattern, timestamps, summaries, counted, arguments, files, statistics FROM batches WHERE id = ?",
            (batch.id,),
        ).fetchone()
        if row is None:
            raise CorruptDumpError(f"the index no longer holds batch {batch.id}, which it listed")
        # A batch that is read again, as a catalog does, is not counted again.
        budget = self._budget() if batch in self._read_before else self._batches_budget
        budget.size = self._file.size()
        budget.spend(row)
        self._read_before.add(batch)
        template, arguments = self._pattern(database, whole(row[0]))
        if row[4] != "[]":
            arguments = {**arguments, **self._arguments_of_batch(database, template, batch, row[4])}
        tensors, what = len(template.slots), f"batch {batch.id} of the index"
        files = texts_by_places(row[5], tensors, what)
        others = {place: statistics(each) for place, each in by_places(row[6], tensors, what).items()}
        times = whole_numbers(row[1])
        if len(times) != len(template.ops):
            raise CorruptDumpError(
                f"batch {batch.id} of the index has {len(times)} time stamps for {len(template.ops)} operators"
            )
        if row[2] is None and not may_lack_summaries(tensors, row[1], len({*files, *others})):
            raise CorruptDumpError(
                f"batch {batch.id} of the index has no data for {tensors} tensors of {len(times)} operators"
            )
        run = TemplateRun(template, batch.step, times, np.arange(tensors), arguments=arguments)
        return self._table_of(run, row[2], others, files, _counted(row[3]))

    def _table_of(
        self,
        run: TemplateRun,
        blob: Any,
        others: Mapping[int, Mapping[str, StatisticValue]],
        files: Mapping[int, str],
        counted: Mapping[SkipReason, int],
    ) -> StepTable[TensorRecord]:
        rows = summary_rows(blob, len(run.rows))
        open_file = partial(self._open_payload, self._root)
        return StepTable([run], rows, others=others, files=files, open_file=open_file, counted=counted)

    def constants(self) -> list[tuple[int, TensorRecord]]:
        """Return the constants of all runs as (run, record), in the order in which they were written."""
        found: list[tuple[int, TensorRecord]] = []
        with self._named(), self._file.connect() as database:
            self._load_what_is_new(database)
            for _, run, step, operator, time, signature, blob, others, file in self._rows(
                database,
                "SELECT id, run, step, operator, timestamp, signature, summary, statistics, file FROM constants ORDER BY id",
            ):
                op, (slot, facts) = self._op(operator), known(self._signatures, signature, "signature")
                template = StepTemplate([op], [(0, *slot, 0)], [facts])
                one = TemplateRun(template, whole(step), [whole(time)], np.arange(1))
                values = {} if others is None else {0: statistics(json_object(others))}
                table = self._table_of(one, blob, values, {0: text(file)}, {})
                found.append((whole(run), table.tensors[0]))
        return found

    def op_names(self, graph_id: int) -> tuple[tuple[str, str], ...]:
        """Return (op_type, full name) for the operators of a graph, over all runs."""
        with self._named(), self._file.connect() as database:
            self._load_what_is_new(database)
        of_graph = (fields for fields, _, _ in self._operators.values() if fields["graph_id"] == graph_id)
        return tuple(dict.fromkeys((fields["op_type"], fields["op_name"]) for fields in of_graph))

    def _op(self, number: Any) -> OpRecord:
        op = self._ops.get(number)
        if op is None:
            fields, stack, arguments = known(self._operators, number, "operator")
            op = OpRecord(
                timestamp=0,
                step=0,
                stack=self._stacks.of(stack),
                arguments=self._arguments_of(arguments),
                **fields,
            )
            self._ops[number] = op
        return op

    def _pattern(self, database: sqlite3.Connection, number: int) -> _Pattern:
        pattern = self._patterns.get(number)
        if pattern is not None:
            return pattern
        row = database.execute("SELECT operators, tensors FROM patterns WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise CorruptDumpError(f"the index refers to pattern {number}, which it does not hold")
        self._budget().spend(row)
        operators = whole_numbers(row[0])
        key = row[1], len(operators)
        tensors = self._tensors[key] if key in self._tensors else self._tensors_of(number, row[1], len(operators))
        if len(self._patterns) >= _MOST_CACHED_PATTERNS:
            self._patterns.clear()
        if len(self._tensors) >= _MOST_CACHED_PATTERNS:
            self._tensors.clear()
        self._tensors[key] = tensors
        self._load_what_is_new(database)  # the rows that a pattern refers to are written with it
        template = self._template(operators, tensors)
        others = {
            place: self._op(number).arguments
            for place, number in enumerate(operators)
            if template.ops[place].arguments is not self._op(number).arguments
        }
        self._patterns[number] = template, others
        return template, others

    def _tensors_of(self, number: int, value: Any, operators: int) -> _Tensors:
        return _by_operators(value, operators, f"pattern {number} of the index has a tensor")

    def _arguments_of(self, number: int) -> Mapping[str, Any]:
        """Return the row of `arguments`, or an empty mapping for 0."""
        return cast(Mapping[str, Any], known(self._arguments, number, "arguments")) if number else _NO_ARGUMENTS

    def _arguments_of_batch(
        self, database: sqlite3.Connection, template: StepTemplate, batch: FiledBatch, value: Any
    ) -> OtherArguments:
        """Return the arguments that a batch has for some of its operators."""
        pairs = _by_operators(value, len(template.ops), f"batch {batch.id} of the index has arguments")
        if any(number not in self._arguments for _, number in pairs):
            self._load_what_is_new(database)
        return {place: self._arguments_of(number) for place, number in pairs}

    def _template(self, operators: Sequence[int], tensors: _Tensors) -> StepTemplate:
        """Return the template of a pattern. A pattern that differs from an earlier one only in arguments has the same template."""
        rows: list[_Operator] = [known(self._operators, number, "operator") for number in operators]
        for former, others, template in reversed(self._templates):
            same = tensors is others and len(rows) == len(former)
            if same and all(one[:2] == other[:2] for one, other in zip(rows, former, strict=True)):
                return template
        facts: dict[int, int] = {}
        slots: list[TensorSlot] = []
        for place, number in tensors:
            slot, _ = known(self._signatures, number, "signature")
            slots.append((place, *slot, facts.setdefault(number, len(facts))))
        template = StepTemplate([*map(self._op, operators)], slots, [self._signatures[number][1] for number in facts])
        self._templates = [*self._templates[1 - _MOST_CACHED_PATTERNS :], (rows, tensors, template)]
        return template

    def _load_what_is_new(self, database: sqlite3.Connection) -> None:
        """Read the names, stacks, arguments and signatures that were added since the last call. Rows are never changed."""
        self._names_budget.size = self._file.size()
        used = self._names_budget.used
        try:
            self._load(database)
        except BaseException:
            self._names_budget.used = used  # rows of an interrupted call are read again
            raise

    def _load(self, database: sqlite3.Connection) -> None:
        for number, *row in self._new(database, "operators", "SELECT * FROM operators WHERE id > ? ORDER BY id"):
            self._operators[number] = _operator(row)
        for number, *row in self._new(database, "signatures", "SELECT * FROM signatures WHERE id > ? ORDER BY id"):
            self._signatures[number] = _signature(row)
        for number, value in self._new(database, "arguments", "SELECT * FROM arguments WHERE id > ? ORDER BY id"):
            self._arguments[number] = json_object(value)
        self._stacks.load(partial(self._new, database))

    def _new(self, database: sqlite3.Connection, table: str, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows after the last one read. They are marked as read only after all of them were."""
        last = self._last_row[table]
        for row in self._names_budget.each(database.execute(query, (last,))):
            last = row[0]
            yield row
        self._last_row[table] = last

    def _rows(self, database: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, whose first column is its key, one by one."""
        return self._budget().each(database.execute(query))

    def _budget(self) -> Budget:
        return Budget(self._file.size())

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CorruptDumpError as error:
            if str(self._file.path) in str(error):
                raise
            raise CorruptDumpError(f"{self._file.path}: {error}") from error
        except (sqlite3.Error, ValueError, OverflowError, MemoryError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise CorruptDumpError(f"{self._file.path}: the index cannot be read ({reason})") from error


def _by_operators(value: Any, operators: int, what: str) -> list[tuple[int, int]]:
    """Parse a JSON array of pairs: the index of an operator, below `operators`, and a row."""
    pairs = []
    for pair in json_array(value):
        if not isinstance(pair, list) or len(pair) != 2 or not 0 <= whole(pair[0]) < operators:
            raise CorruptDumpError(f"{what} {shown(pair)} among {operators} operators")
        pairs.append((whole(pair[0]), whole(pair[1])))
    return pairs


def _run(row: tuple[Any, ...]) -> Run:
    number, started, ended, rank, target, framework, framework_version, opdump_version, process, command, plan = row
    return Run(
        id=whole(number),
        rank_id=whole(rank),
        started=moment(started),
        ended=None if ended is None else moment(ended),
        device_target=name(target),
        framework=name(framework),
        framework_version=name(framework_version),
        opdump_version=name(opdump_version),
        process=whole(process),
        command=tuple(str(part) for part in json_array(command)) if command else (),
        plan=json_object(plan),
        totals={},
    )


def _operator(row: list[Any]) -> _Operator:
    *values, stack, arguments = row
    checked = [check(value) for check, value in zip(_OF_OPERATORS, values, strict=True)]
    fields: dict[str, Any] = dict(zip(OPERATOR_FIELDS, checked, strict=True))
    if fields["phase"] not in _PHASES:
        raise CorruptDumpError(f"the index describes an operator of the phase {shown(fields['phase'])}")
    fields["skip"] = _reason(fields["skip"])
    return fields, whole(stack), whole(arguments)


def _signature(row: list[Any]) -> _Signature:
    io, slot, dtype, dimensions, layout, data_size, argument, source, skip, sample, place = row
    if io not in ("input", "output"):
        raise CorruptDumpError(f"the index describes a tensor as {shown(io)}; expected 'input' or 'output'")
    sizes = shape(dimensions)
    facts = TensorFacts(
        dtype=name(dtype),
        shape=sizes,
        data_size=count(data_size),
        skip=_reason(skip),
        memory=memory(place, len(sizes)),
        format=name(layout),
        sample=count(sample),
    )
    return (io, count(slot), name(argument), name(source)), facts


def _counted(value: Any) -> dict[SkipReason, int]:
    return {_reason(reason): count(number) for reason, number in json_object(value).items()}


def _reason(value: Any) -> SkipReason:
    # A later version may have more reasons. They are only shown to the user, so unknown ones are accepted.
    return cast(SkipReason, name(value))
