"""Reads the index of a rank. Trusts it no more than any other file."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from opdump.errors import CorruptDumpError
from opdump.kernels import Summary
from opdump.layouts.mindspore_sync.index_schema import APPLICATION_ID, SCHEMA_VERSION, SUMMARY, TABLE_NAMES
from opdump.layouts.mindspore_sync.payload import FilePayload
from opdump.layouts.rank import Run
from opdump.records import IO, Frame, OpRecord, Payload, Phase, SkipReason, StatisticValue, TensorRecord
from opdump.statistics import SummaryStatistics

_PATIENCE_SECONDS = 30.0
_MOST_CACHED_PATTERNS = 16  # a regular training has a few; where every step is another, none is used again
_PHASES = frozenset(get_args(Phase))
_REASONS = frozenset(get_args(SkipReason))


class Batch(NamedTuple):
    """What one call of the writer filed: its row, its run, its step."""

    id: int
    run: int
    step: int


class BatchRecords(NamedTuple):
    """The records of a batch, and how many operators without data it only counts, by reason."""

    ops: list[OpRecord]
    tensors: list[TensorRecord]
    counted: Mapping[SkipReason, int]


class _Pattern(NamedTuple):
    """What a batch ran: the rows of its operators, and of each tensor the place of its operator and its signature."""

    operators: list[int]
    tensors: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Signature:
    io: IO
    slot: int
    dtype: str
    shape: tuple[int, ...]
    format: str
    data_size: int
    argument: str
    source: str
    skip: SkipReason


class IndexReader:
    """The index at `path`, whose files are below `root`. A connection lives as long as one call: a capture that is still
    going on is not held up.

    Raises CorruptDumpError where it is no index, is damaged, or is of another version.
    """

    def __init__(
        self, path: Path, root: Path, open_payload: Callable[[Path, str, str, tuple[int, ...]], Payload] = FilePayload
    ) -> None:
        """`open_payload` makes the elements of a tensor of the root, its file as the index has it, its dtype and shape."""
        self._path = path
        self._root = root
        self._open_payload = open_payload
        self._copy: Path | None = None
        self._operators: dict[int, tuple[Any, ...]] = {}
        self._signatures: dict[int, _Signature] = {}
        self._arguments: dict[int, dict[str, Any]] = {}
        self._stacks: dict[int, tuple[Frame, ...]] = {0: ()}
        self._patterns: dict[int, _Pattern] = {}
        with self._named(), self._database() as database:
            self._check(database)
            self.runs = tuple(_run(row) for row in database.execute("SELECT * FROM runs ORDER BY id").fetchall())
            totals = database.execute("SELECT run, name, value FROM totals").fetchall()
            self.batches = tuple(
                Batch(*(_whole(value) for value in row))
                for row in database.execute("SELECT id, run, step FROM batches ORDER BY id").fetchall()
            )
        for run in self.runs:
            cast(dict[str, int], run.totals).update(
                {_text(name): _whole(value) for number, name, value in totals if number == run.id}
            )

    def read(self, batch: Batch) -> BatchRecords:
        """The records of a batch, in the order in which they were filed."""
        with self._named():
            return self._read(batch)

    def newest_timestamp(self) -> int:
        """The latest time stamp of an operator; -1 where no batch has one."""
        with self._named(), self._database() as database:
            stamps = [_whole_numbers(text) for (text,) in database.execute("SELECT timestamps FROM batches")]
        return max((max(each, default=-1) for each in stamps), default=-1)

    def _read(self, batch: Batch) -> BatchRecords:
        with self._database() as database:
            row = database.execute(
                "SELECT pattern, timestamps, summaries, counted FROM batches WHERE id = ?", (batch.id,)
            ).fetchone()
            if row is None:
                raise CorruptDumpError(f"the index no longer holds batch {batch.id}, which it listed")
            pattern = self._pattern(database, _whole(row[0]))
            extras = self._extras(database, batch, len(pattern.tensors))
            self._load_what_is_new(database)
        times = _whole_numbers(row[1])
        if len(times) != len(pattern.operators):
            raise CorruptDumpError(
                f"batch {batch.id} of the index has {len(times)} time stamps for {len(pattern.operators)} operators"
            )
        summaries = _summaries(row[2], len(pattern.tensors))
        ops = [self._op(operator, time, batch.step) for operator, time in zip(pattern.operators, times, strict=True)]
        tensors = [
            self._tensor(ops[place], signature, summary, *extras.get(number, (None, None)))
            for number, ((place, signature), summary) in enumerate(zip(pattern.tensors, summaries, strict=True))
        ]
        return BatchRecords(ops, tensors, _counted(row[3]))

    def constants(self) -> list[tuple[int, TensorRecord]]:
        """The constants of every run, in the order in which they were filed: (run, record)."""
        with self._named():
            with self._database() as database:
                rows = database.execute(
                    "SELECT run, step, operator, timestamp, signature, summary, statistics, file FROM constants ORDER BY id"
                ).fetchall()
                self._load_what_is_new(database)
            found: list[tuple[int, TensorRecord]] = []
            for run, step, operator, time, signature, blob, statistics, file in rows:
                (summary,) = _summaries(blob, 1)
                op = self._op(operator, _whole(time), _whole(step))
                found.append((_whole(run), self._tensor(op, signature, summary, statistics, file)))
            return found

    def op_names(self, graph_id: int) -> tuple[tuple[str, str], ...]:
        """(op_type, true name) of the operators of a graph, of all runs."""
        with self._named(), self._database() as database:
            rows = database.execute("SELECT DISTINCT op_type, op_name FROM operators WHERE graph_id = ?", (graph_id,))
            return tuple((_text(op_type), _text(name)) for op_type, name in rows.fetchall())

    def _op(self, operator: Any, time: int, step: int) -> OpRecord:
        row = _known(self._operators, operator, "operator")
        (op_type, op_name, net_name, graph, rank, device, task, stream, phase, kernel, forward_op) = row[:11]
        position, occurrence, skip, stack, arguments = row[11:]
        return OpRecord(
            op_type=op_type,
            op_name=op_name,
            timestamp=time,
            step=step,
            net_name=net_name,
            graph_id=graph,
            rank_id=rank,
            device_id=device,
            task_id=task,
            stream_id=stream,
            order=position,
            occurrence=occurrence,
            phase=phase,
            kernel=kernel,
            forward_op=forward_op,
            stack=_known(self._stacks, stack, "stack"),
            arguments=dict(_known(self._arguments, arguments, "arguments")) if arguments else {},
            skip=skip,
        )

    def _tensor(self, op: OpRecord, number: Any, summary: Summary | None, statistics: Any, file: Any) -> TensorRecord:
        signature: _Signature = _known(self._signatures, number, "signature")
        values: Mapping[str, StatisticValue] = _json_object(statistics) if statistics is not None else {}
        if summary is not None:
            values = SummaryStatistics(summary, cast(Mapping[str, str], values))
        payload = None
        if file is not None:
            payload = self._open_payload(self._root, _text(file), signature.dtype, signature.shape)
        return TensorRecord(
            op=op,
            io=signature.io,
            slot=signature.slot,
            dtype=signature.dtype,
            shape=signature.shape,
            format=signature.format,
            payload=payload,
            statistics=values,
            argument=signature.argument,
            source=signature.source,
            data_size=signature.data_size,
            skip=signature.skip,
        )

    def _pattern(self, database: sqlite3.Connection, number: int) -> _Pattern:
        pattern = self._patterns.get(number)
        if pattern is not None:
            return pattern
        row = database.execute("SELECT operators, tensors FROM patterns WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise CorruptDumpError(f"the index refers to pattern {number}, which it does not hold")
        operators = _whole_numbers(row[0])
        tensors = []
        for pair in _json_array(row[1]):
            if not isinstance(pair, list) or len(pair) != 2 or not 0 <= _whole(pair[0]) < len(operators):
                raise CorruptDumpError(
                    f"pattern {number} of the index has a tensor {str(pair)[:80]!r} among {len(operators)} operators"
                )
            tensors.append((_whole(pair[0]), _whole(pair[1])))
        if len(self._patterns) >= _MOST_CACHED_PATTERNS:
            self._patterns.clear()
        pattern = self._patterns[number] = _Pattern(operators, tensors)
        return pattern

    def _extras(self, database: sqlite3.Connection, batch: Batch, tensors: int) -> dict[int, tuple[Any, Any]]:
        rows = database.execute("SELECT tensor, statistics, file FROM extras WHERE batch = ?", (batch.id,)).fetchall()
        extras = {_whole(number): (statistics, file) for number, statistics, file in rows}
        for number in extras:
            if not 0 <= number < tensors:
                raise CorruptDumpError(
                    f"batch {batch.id} of the index has {tensors} tensors and says more of tensor {number}"
                )
        return extras

    def _load_what_is_new(self, database: sqlite3.Connection) -> None:
        """Names, stacks, arguments and signatures are only ever added: read those past the last one known."""
        rows = database.execute("SELECT * FROM operators WHERE id > ?", (max(self._operators, default=0),))
        for number, *row in rows.fetchall():
            self._operators[_whole(number)] = _operator(row)
        rows = database.execute("SELECT * FROM signatures WHERE id > ?", (max(self._signatures, default=0),))
        for number, *row in rows.fetchall():
            self._signatures[_whole(number)] = _signature(row)
        rows = database.execute("SELECT id, json FROM arguments WHERE id > ?", (max(self._arguments, default=0),))
        for number, text in rows.fetchall():
            self._arguments[_whole(number)] = _json_object(text)
        frames: dict[int, list[Frame]] = {}
        rows = database.execute(
            "SELECT stack, file, line, function, code FROM frames WHERE stack > ? ORDER BY stack, position",
            (max(self._stacks),),
        )
        for stack, file, line, function, code in rows.fetchall():
            frame = Frame(_text(file), _whole(line), _text(function), _text(code))
            frames.setdefault(_whole(stack), []).append(frame)
        self._stacks.update((stack, tuple(lines)) for stack, lines in frames.items())

    def _check(self, database: sqlite3.Connection) -> None:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if application != APPLICATION_ID or version != SCHEMA_VERSION:
            if application != APPLICATION_ID:
                remedy = "another program made it"
            elif version > SCHEMA_VERSION:
                remedy = "update opdump"
            else:
                remedy = "read it with the opdump that wrote it, or capture again"
            raise CorruptDumpError(
                f"{self._path}: an index of version {version} (application {application:#x}); this opdump reads version "
                f"{SCHEMA_VERSION} of application {APPLICATION_ID:#x}: {remedy}"
            )
        # A view or a generated column in the place of a table could compute for ever.
        found = dict(database.execute("SELECT name, upper(type || ' ' || sql) FROM sqlite_master").fetchall())
        for name in TABLE_NAMES:
            definition = str(found.get(name, "none"))
            if not definition.startswith("TABLE CREATE TABLE") or "GENERATED" in definition or " AS " in definition:
                raise CorruptDumpError(f"{self._path}: the index has no plain table {name!r}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CorruptDumpError as error:
            if str(self._path) in str(error):
                raise
            raise CorruptDumpError(f"{self._path}: {error}") from error

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        try:
            database = self._connect()
            try:
                yield database
            finally:
                database.close()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise CorruptDumpError(f"{self._path}: the index cannot be read ({error})") from error

    def _connect(self) -> sqlite3.Connection:
        path = self._path if self._copy is None else self._copy / self._path.name
        try:
            return _open(path)
        except sqlite3.OperationalError:
            if self._copy is not None:
                raise
        # A killed capture leaves a journal that must be rolled back, which needs write access: do it in a copy.
        self._copy = Path(tempfile.mkdtemp(prefix="opdump-index-"))
        weakref.finalize(self, shutil.rmtree, self._copy, ignore_errors=True)
        for name in (self._path.name, self._path.name + "-journal"):
            source = self._path.with_name(name)
            if source.is_file():
                shutil.copyfile(source, self._copy / name)
        return _open(self._copy / self._path.name, mode="rw")


def _open(path: Path, mode: str = "ro") -> sqlite3.Connection:
    quoted = str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    database = sqlite3.connect(f"file:{quoted}?mode={mode}", uri=True, timeout=_PATIENCE_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()  # touches the file for the first time
    except sqlite3.Error:
        database.close()
        raise
    return database


def _run(row: tuple[Any, ...]) -> Run:
    number, started, ended, rank, target, framework, framework_version, opdump_version, process, command, plan = row
    parsed = json.loads(_text(command)) if command else []
    if not isinstance(parsed, list):
        raise CorruptDumpError(f"the index gives the command of run {number} as {parsed!r}")
    return Run(
        id=_whole(number),
        rank_id=_whole(rank),
        started=_whole(started),
        ended=None if ended is None else _whole(ended),
        device_target=_text(target),
        framework=_text(framework),
        framework_version=_text(framework_version),
        opdump_version=_text(opdump_version),
        process=_whole(process),
        command=tuple(str(part) for part in parsed),
        plan=_json_object(plan),
        totals={},
    )


def _operator(row: list[Any]) -> tuple[Any, ...]:
    texts = {0, 1, 2, 8, 9, 10, 13}
    checked = tuple(_text(value) if place in texts else _whole(value) for place, value in enumerate(row))
    if len(checked) != 16 or checked[8] not in _PHASES or checked[13] not in _REASONS:
        raise CorruptDumpError(f"the index describes an operator as {checked!r}")
    return checked


def _signature(row: list[Any]) -> _Signature:
    io, slot, dtype, shape, layout, data_size, argument, source, skip = row
    parts = _text(shape).split(",") if shape else []
    if io not in ("input", "output") or skip not in _REASONS or not all(p.isascii() and p.isdigit() for p in parts):
        raise CorruptDumpError(f"the index describes a tensor as {row!r}")
    return _Signature(
        io=io,
        slot=_whole(slot),
        dtype=_text(dtype),
        shape=tuple(int(part) for part in parts),
        format=_text(layout),
        data_size=_whole(data_size),
        argument=_text(argument),
        source=_text(source),
        skip=skip,
    )


def _summaries(blob: Any, tensors: int) -> list[Summary | None]:
    """The summary of each tensor, None where it has none."""
    if blob is None:
        return [None] * tensors
    if not isinstance(blob, bytes) or len(blob) != tensors * SUMMARY.size:
        found = f"{len(blob)} bytes" if isinstance(blob, bytes) else f"{str(blob)[:80]!r}"
        raise CorruptDumpError(
            f"the index holds {found} as the summaries of {tensors} tensors; expected {tensors * SUMMARY.size} bytes"
        )
    return [None if math.isnan(row[0]) else Summary(*row) for row in SUMMARY.iter_unpack(blob)]


def _counted(text: Any) -> dict[SkipReason, int]:
    counted = _json_object(text)
    for reason, number in counted.items():
        if reason not in _REASONS or _whole(number) < 0:
            raise CorruptDumpError(f"the index counts {str(number)[:40]} operators left out for {reason[:40]!r}")
    return cast(dict[SkipReason, int], counted)


def _json_object(text: Any) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where a JSON object was expected")
    return value


def _json_array(text: Any) -> list[Any]:
    value = _json(text)
    if not isinstance(value, list):
        raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where a JSON array was expected")
    return value


def _json(text: Any) -> Any:
    try:
        return json.loads(_text(text))
    except (ValueError, RecursionError) as error:
        raise CorruptDumpError(f"the index holds damaged JSON: {error}") from error


def _whole_numbers(text: Any) -> list[int]:
    numbers = _json_array(text)
    for number in numbers:
        _whole(number)
    return numbers


def _whole(value: Any) -> int:
    # JSON, unlike SQLite, has booleans, which Python counts as whole numbers, and numbers of any length.
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where a whole number was expected")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise CorruptDumpError(f"the index holds {str(value)[:80]!r} where text was expected")


def _known(table: Mapping[int, Any], number: Any, what: str) -> Any:
    if isinstance(number, int) and number in table:
        return table[number]
    raise CorruptDumpError(f"the index refers to {what} {str(number)[:40]!r}, which it does not hold")
