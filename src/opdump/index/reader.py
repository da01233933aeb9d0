"""Reads the index of a rank, which is trusted no more than any other file. Records are created on demand, from stored columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from opdump.degradation import Degradation
from opdump.errors import CorruptDumpError
from opdump.index.opening import (
    OPERATOR_FIELDS,
    IndexFile,
    check_index,
    may_lack_summaries,
)
from opdump.index.payload import FilePayload
from opdump.index.runs import Run
from opdump.index.values import (
    Budget,
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
    summaries,
    summary_rows,
    text,
    texts_by_places,
    whole,
    whole_numbers,
)
from opdump.kernels import Summary
from opdump.records import IO, OpRecord, Payload, Phase, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

# The stored columns of one batch.


@dataclass(frozen=True, eq=False)
class Program:
    """What a batch ran, except for the arguments of its operators, which may change from step to step.

    Batches that ran the same share one program object.
    """

    directories: Sequence[tuple[str, int]]
    """The network and the graph of each operator."""
    slots: Sequence[tuple[int, IO, int]]
    """For each tensor, the index of its operator, and which of its inputs or outputs it is."""

    @cached_property
    def tensors_by_directory(self) -> Mapping[tuple[str, int], NDArray[np.intp]]:
        """The indices of the tensors of each network and graph."""
        found: dict[tuple[str, int], list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(self.directories[place], []).append(number)
        return {directory: np.array(numbers, np.intp) for directory, numbers in found.items()}

    @cached_property
    def tensors_by_operator(self) -> Mapping[int, Sequence[int]]:
        """The indices of the tensors of each operator that has some, by operator index."""
        found: dict[int, list[int]] = {}
        for number, (place, _, _) in enumerate(self.slots):
            found.setdefault(place, []).append(number)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What a batch ran: the rows of its operators, and for each tensor the index of its operator and its signature."""

    operators: Sequence[int]
    tensors: Sequence[tuple[int, int]]
    program: Program
    arguments: Sequence[Mapping[str, Any]]
    """The arguments of each operator."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchColumns:
    """A batch in which every tensor with statistics has a summary."""

    pattern: Pattern
    step: int
    timestamps: NDArray[np.int64]
    """The time stamp of each operator."""
    summaries: NDArray[np.float64]
    """The summary of each tensor, shape (n, 11); the count of a tensor without one is NaN."""
    counted: Mapping[SkipReason, int]
    """Number of operators without data that an earlier batch lists, by reason."""
    files: Mapping[int, str]
    """By tensor index, the file of a tensor that has one, as stored in the index."""
    statistics: Mapping[int, Mapping[str, StatisticValue]]
    """By tensor index, statistics that are not in the summary."""
    make_op: Callable[[int, int, int, Mapping[str, Any]], OpRecord]
    """Creates an operator from its row, time, step and arguments."""
    make_tensor: Callable[
        [OpRecord, int, Summary | None, Mapping[str, StatisticValue] | None, str | None], TensorRecord
    ]
    """Creates a tensor of an operator from its signature, summary, other statistics and file."""

    @property
    def with_summary(self) -> NDArray[np.bool_]:
        """Whether each tensor has a summary, shape (n,)."""
        return ~np.isnan(self.summaries[:, 0])

    def records(self) -> tuple[list[OpRecord], list[TensorRecord]]:
        """Return all operators and tensors, in the order in which they were written."""
        ops = [*map(self.op, range(len(self.pattern.operators)))]
        rows = map(Summary._make, self.summaries.tolist())
        tensors = [
            self._tensor(ops[place], number, signature, summary)
            for number, ((place, signature), summary) in enumerate(zip(self.pattern.tensors, rows, strict=True))
        ]
        return ops, tensors

    def op(self, place: int) -> OpRecord:
        """Return one operator, by index."""
        pattern = self.pattern
        return self.make_op(pattern.operators[place], int(self.timestamps[place]), self.step, pattern.arguments[place])

    def operator(self, place: int) -> tuple[OpRecord, list[TensorRecord]]:
        """Return one operator, by index, and its tensors in the order in which they were written. No other records are created."""
        op = self.op(place)
        return op, [self.tensor(op, number) for number in self.pattern.program.tensors_by_operator.get(place, ())]

    def tensor(self, op: OpRecord, number: int) -> TensorRecord:
        """Return one tensor of this operator, by tensor index."""
        return self._tensor(op, number, self.pattern.tensors[number][1], Summary._make(self.summaries[number].tolist()))

    def _tensor(self, op: OpRecord, number: int, signature: int, summary: Summary) -> TensorRecord:
        has_none = summary.count != summary.count
        return self.make_tensor(
            op, signature, None if has_none else summary, self.statistics.get(number), self.files.get(number)
        )


_Facts = TypeVar("_Facts")


class FactsByProgram(Generic[_Facts]):
    """Caches the result of `make` for a step in columns, for later steps that ran the same program with summaries for the same tensors."""

    _MOST_KNOWN = 16  # a regular training has a few programs

    def __init__(self, make: Callable[[BatchColumns], _Facts]) -> None:
        self._make = make
        self._known: dict[Program, tuple[NDArray[np.bool_], _Facts]] = {}

    def of(self, columns: BatchColumns) -> _Facts:
        program, with_summary = columns.pattern.program, columns.with_summary
        known = self._known.get(program)
        if known is None or not np.array_equal(known[0], with_summary):
            if len(self._known) >= self._MOST_KNOWN:
                self._known.clear()
            known = self._known[program] = with_summary, self._make(columns)
        return known[1]


# The index.

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


class BatchRecords(NamedTuple):
    """The records of a batch, and the number of operators without data that it only counts, by reason."""

    ops: list[OpRecord]
    tensors: list[TensorRecord]
    counted: Mapping[SkipReason, int]


class _Filed(NamedTuple):
    """A row of `batches` with the rows that it refers to."""

    pattern: Pattern
    times: list[int]
    summaries: Any
    counted: Any
    files: Mapping[int, str]
    statistics: Mapping[int, Mapping[str, StatisticValue]]
    """Both by tensor index."""


_Operator = tuple[dict[str, Any], int, int]
"""The fields of the operator's records, and the rows of its stack and its arguments."""
_Tensors = Sequence[tuple[int, int]]
"""For each tensor of a pattern, the index of its operator and its signature."""
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}
_NO_STATISTICS: Final[Mapping[str, StatisticValue]] = {}


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
        self._signatures: dict[int, dict[str, Any]] = {}
        """By row, the fields of the records."""
        self._arguments: dict[int, dict[str, Any]] = {}
        self._last_row = dict.fromkeys(("operators", "signatures", "arguments", "stacks", "lines"), 0)
        self._patterns: dict[int, Pattern] = {}
        self._tensors: dict[tuple[Any, int], _Tensors] = {}
        """Tensors of patterns that were read, by their text and the number of operators."""
        self._programs: list[tuple[Sequence[_Operator], _Tensors, Program]] = []
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

    def read(self, batch: FiledBatch) -> BatchRecords:
        """Return the records of a batch, in the order in which they were written."""
        with self._named(), self._file.connect() as database:
            return self._read(database, batch)

    def newest_timestamp(self) -> int:
        """Return the latest time stamp of an operator, or -1 if no batch has one."""
        with self._named(), self._file.connect() as database:
            rows = self._rows(database, "SELECT id, timestamps FROM batches ORDER BY id")
            return max((max(whole_numbers(stamps), default=-1) for _, stamps in rows), default=-1)

    def columns(self, batch: FiledBatch) -> BatchColumns | None:
        """Return a batch in columns, without creating records. Return None if a tensor has statistics but no summary."""
        with self._named(), self._file.connect() as database:
            pattern, times, blob, counted, files, others = self._filed(database, batch)
            if blob is None:
                return None
            rows = summary_rows(blob, len(pattern.tensors))
            if np.isnan(rows[[*others], 0]).any():  # statistics without a summary
                return None
            stamps = np.array(times, np.int64)
            return BatchColumns(
                *(pattern, batch.step, stamps, rows, _counted(counted), files, others), self._op, self._tensor
            )

    def _read(self, database: sqlite3.Connection, batch: FiledBatch) -> BatchRecords:
        filed = self._filed(database, batch)
        pattern, files, others = filed.pattern, filed.files, filed.statistics
        found = summaries(filed.summaries, len(pattern.tensors))
        executed = zip(pattern.operators, filed.times, pattern.arguments, strict=True)
        ops = [self._op(operator, time, batch.step, arguments) for operator, time, arguments in executed]
        tensors = [
            self._tensor(ops[place], signature, summary, others.get(number), files.get(number))
            for number, ((place, signature), summary) in enumerate(zip(pattern.tensors, found, strict=True))
        ]
        return BatchRecords(ops, tensors, _counted(filed.counted))

    def _filed(self, database: sqlite3.Connection, batch: FiledBatch) -> _Filed:
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
        pattern = self._pattern(database, whole(row[0]))
        if row[4] != "[]":
            pattern = self._with_arguments(database, pattern, batch, row[4])
        tensors, what = len(pattern.tensors), f"batch {batch.id} of the index"
        files = texts_by_places(row[5], tensors, what)
        others = {place: statistics(each) for place, each in by_places(row[6], tensors, what).items()}
        times = whole_numbers(row[1])
        if len(times) != len(pattern.operators):
            raise CorruptDumpError(
                f"batch {batch.id} of the index has {len(times)} time stamps for {len(pattern.operators)} operators"
            )
        if row[2] is None and not may_lack_summaries(len(pattern.tensors), row[1], len({*files, *others})):
            raise CorruptDumpError(
                f"batch {batch.id} of the index has no data for {len(pattern.tensors)} tensors of {len(times)} operators"
            )
        return _Filed(pattern, times, row[2], row[3], files, others)

    def constants(self) -> list[tuple[int, TensorRecord]]:
        """Return the constants of all runs as (run, record), in the order in which they were written."""
        found: list[tuple[int, TensorRecord]] = []
        with self._named(), self._file.connect() as database:
            self._load_what_is_new(database)
            for _, run, step, operator, time, signature, blob, others, file in self._rows(
                database,
                "SELECT id, run, step, operator, timestamp, signature, summary, statistics, file FROM constants ORDER BY id",
            ):
                (summary,) = summaries(blob, 1)
                _, _, arguments = known(self._operators, operator, "operator")
                op = self._op(operator, whole(time), whole(step), self._arguments_of(arguments))
                values = None if others is None else statistics(json_object(others))
                found.append((whole(run), self._tensor(op, signature, summary, values, text(file))))
        return found

    def op_names(self, graph_id: int) -> tuple[tuple[str, str], ...]:
        """Return (op_type, full name) for the operators of a graph, over all runs."""
        with self._named(), self._file.connect() as database:
            self._load_what_is_new(database)
        of_graph = (fields for fields, _, _ in self._operators.values() if fields["graph_id"] == graph_id)
        return tuple(dict.fromkeys((fields["op_type"], fields["op_name"]) for fields in of_graph))

    def _op(self, operator: Any, time: int, step: int, arguments: Mapping[str, Any]) -> OpRecord:
        fields, stack, _ = known(self._operators, operator, "operator")
        return OpRecord(
            timestamp=time,
            step=step,
            stack=self._stacks.of(stack),
            arguments=arguments,
            **fields,
        )

    def _tensor(
        self,
        op: OpRecord,
        number: Any,
        summary: Summary | None,
        others: Mapping[str, StatisticValue] | None,
        file: str | None,
    ) -> TensorRecord:
        signature: dict[str, Any] = known(self._signatures, number, "signature")
        values = others or _NO_STATISTICS
        if summary is not None:
            values = SummaryStatistics(summary, values)
        payload = None
        if file is not None:
            filed = (signature["sample"],) if signature["sample"] else signature["shape"]
            payload = self._open_payload(self._root, file, signature["dtype"], filed)
        return TensorRecord(op=op, payload=payload, statistics=values, **signature)

    def _pattern(self, database: sqlite3.Connection, number: int) -> Pattern:
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
        rows = [known(self._operators, operator, "operator") for operator in operators]
        arguments = [self._arguments_of(each) for _, _, each in rows]
        program = self._program(rows, tensors)
        pattern = self._patterns[number] = Pattern(operators, tensors, program, arguments)
        return pattern

    def _tensors_of(self, number: int, value: Any, operators: int) -> _Tensors:
        return _by_operators(value, operators, f"pattern {number} of the index has a tensor")

    def _arguments_of(self, number: int) -> Mapping[str, Any]:
        """Return the row of `arguments`, or an empty mapping for 0."""
        return cast(Mapping[str, Any], known(self._arguments, number, "arguments")) if number else _NO_ARGUMENTS

    def _with_arguments(self, database: sqlite3.Connection, pattern: Pattern, batch: FiledBatch, value: Any) -> Pattern:
        """Return the pattern with the arguments that a batch has for its operators."""
        pairs = _by_operators(value, len(pattern.operators), f"batch {batch.id} of the index has arguments")
        if any(number not in self._arguments for _, number in pairs):
            self._load_what_is_new(database)
        arguments = list(pattern.arguments)
        for place, number in pairs:
            arguments[place] = self._arguments_of(number)
        return replace(pattern, arguments=arguments)

    def _program(self, rows: Sequence[_Operator], tensors: _Tensors) -> Program:
        """Return the program of a pattern. A pattern that differs from an earlier one only in arguments has the same program."""
        for former, others, program in reversed(self._programs):
            same = tensors is others and len(rows) == len(former)
            if same and all(one[:2] == other[:2] for one, other in zip(rows, former, strict=True)):
                return program
        slots = ((place, known(self._signatures, signature, "signature")) for place, signature in tensors)
        program = Program(
            [(fields["net_name"], fields["graph_id"]) for fields, _, _ in rows],
            [(place, each["io"], each["slot"]) for place, each in slots],
        )
        self._programs = [*self._programs[1 - _MOST_CACHED_PATTERNS :], (rows, tensors, program)]
        return program

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


def _signature(row: list[Any]) -> dict[str, Any]:
    io, slot, dtype, dimensions, layout, data_size, argument, source, skip, sample, place = row
    if io not in ("input", "output"):
        raise CorruptDumpError(f"the index describes a tensor as {shown(io)}; expected 'input' or 'output'")
    sizes = shape(dimensions)
    return {
        "io": io,
        "slot": count(slot),
        "dtype": name(dtype),
        "shape": sizes,
        "format": name(layout),
        "data_size": count(data_size),
        "argument": name(argument),
        "source": name(source),
        "skip": _reason(skip),
        "sample": count(sample),
        "memory": memory(place, len(sizes)),
    }


def _counted(value: Any) -> dict[SkipReason, int]:
    return {_reason(reason): count(number) for reason, number in json_object(value).items()}


def _reason(value: Any) -> SkipReason:
    # A later version may have more reasons. They are only shown to the user, so unknown ones are accepted.
    return cast(SkipReason, name(value))
