"""A layout: one file for each run of a rank, to which everything is appended.

    {path}/rank_0.1.appended
        {"run": {...}}
        {"op": {...}, "tensor": {...}, "stored": ["<f4", [2, 3]], "size": 24}    and 24 bytes: the values
        {"step": 0, "ops": [...], "tensors": [...], "counted": {}}              what is known at the end of a step
        {"end": {...}}

Each record is one line of JSON, followed by its data. A killed run leaves a truncated last record, which is reported; everything before it
is read. Tensors of the unfinished step are read from their own lines.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opdump.errors import CorruptDumpError, NotInDumpError
from opdump.index.runs import Run, RunChoice
from opdump.index.writer import RunFacts
from opdump.layouts.base import Rank, RankWriter, ReadRanks
from opdump.plan import DumpPlan, LayoutFacts
from opdump.records import FiledTensor, Frame, Memory, OpRecord, SkipReason, TensorRecord, record_of
from opdump.sink import DirectorySink
from opdump.step_table import StepTable

_NAME = re.compile(r"rank_([0-9]{1,9})\.([0-9]{1,9})\.appended", re.ASCII)
_TENSOR = tuple(each.name for each in fields(TensorRecord) if each.name not in ("op", "payload", "statistics"))


class Appended:
    """The layout: opens a writer for a rank, and detects files."""

    name = "appended"
    facts = LayoutFacts()

    def open_writer(self, plan: DumpPlan, run: RunFacts) -> AppendedWriter:
        """Begin a new file for a run of a rank."""
        return AppendedWriter(plan, run)

    def detect(self, path: Path) -> ReadRanks | None:
        """The files in a directory, or the given file."""
        files = sorted(path.iterdir()) if path.is_dir() else [path][: path.is_file()]
        found = [_File(file, int(match[1]), int(match[2])) for file in files if (match := _NAME.fullmatch(file.name))]
        return partial(_read_ranks, path, found) if found else None


APPENDED = Appended()


class AppendedWriter(RankWriter):
    """Appends the records of a run."""

    def __init__(self, plan: DumpPlan, run: RunFacts) -> None:
        self.sink = DirectorySink(plan.path)
        taken = [int(match[2]) for file in plan.path.iterdir() if (match := _NAME.fullmatch(file.name))]
        self._file = f"rank_{run.rank_id}.{max(taken, default=0) + 1}.appended"
        self._size = 0
        self._is_closed = False
        self._lock = threading.Lock()
        told = {name: value for name, value in run._asdict().items() if name != "rank_id"}
        self._append({"run": {**told, "plan": json.loads(run.plan), "started": _now()}})

    def write_payload(self, record: TensorRecord) -> str:
        """Append the values; returns where they begin."""
        assert record.payload is not None, "only tensors with elements are filed"
        array = np.ascontiguousarray(record.payload.to_host()).reshape(record.payload_shape)
        stored = {"stored": [array.dtype.str, array.shape], "size": array.nbytes}
        return str(self._append({"op": _op_facts(record.op), "tensor": _facts(record), **stored}, array.tobytes()))

    def write_step(
        self,
        step: int,
        ops: Sequence[OpRecord],
        tensors: Sequence[FiledTensor],
        files: Sequence[str | None],
        counted: Mapping[SkipReason, int],
    ) -> None:
        """Append the records of a step. Tensors refer to their operator by its index, and to their values by the file position."""
        places = {id(op): place for place, op in enumerate(ops)}
        rows = [
            {"op": places[id(tensor.op)], "at": file, "tensor": _facts(tensor), "statistics": dict(tensor.statistics)}
            for tensor, file in zip(tensors, files, strict=True)
        ]
        self._append({"step": step, "ops": [*map(_op_facts, ops)], "tensors": rows, "counted": dict(counted)})

    def close(self, totals: Mapping[str, int] | None) -> None:
        """Append the end, unless the run was abandoned."""
        if self._is_closed:
            return
        self._is_closed = True
        if totals is not None:
            self._append({"end": {"ended": _now(), "totals": dict(totals)}})
        self.sink.close()

    def _append(self, record: Mapping[str, Any], elements: bytes = b"") -> int:
        """Add a record; returns where the data after its line begins."""
        line = json.dumps(record).encode() + b"\n"
        with self._lock:
            self.sink.append(self._file, line + elements)
            begin = self._size + len(line)
            self._size = begin + len(elements)
        return begin


@dataclass(frozen=True, slots=True)
class AppendedElements:
    """Values that are read from a file on demand."""

    path: Path
    begin: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def file(self) -> str:
        """The path of the file, for reports."""
        return str(self.path)

    def to_host(self) -> npt.NDArray[Any]:
        """Read the values. Raises CorruptDumpError if they no longer exist."""
        try:
            count = int(np.prod(self.shape, dtype=np.int64))
            array = np.fromfile(self.path, self.dtype, count, offset=self.begin).reshape(self.shape)
        except (OSError, ValueError, TypeError) as error:
            raise CorruptDumpError(f"{self.path}: no elements at byte {self.begin} ({error})") from error
        array.flags.writeable = False
        return array


class _File(NamedTuple):
    path: Path
    rank: int
    run: int


@dataclass(slots=True)
class _Contents:
    """The content of one file."""

    run: Run
    steps: dict[int, list[StepTable[TensorRecord]]] = field(default_factory=dict)


class AppendedRank(Rank):
    """The files of a rank, one per run."""

    def __init__(self, rank_id: int, files: Sequence[_File], choice: RunChoice) -> None:
        self._rank_id = rank_id
        self._problems: list[CorruptDumpError] = []
        self._choice = choice
        self._files = [_contents(file, self._problems) for file in files]

    @property
    def rank_id(self) -> int:
        return self._rank_id

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(file.run for file in self._files)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted({step for file in self._files if self._is_chosen(file) for step in file.steps}))

    @property
    def graph_ids(self) -> tuple[int, ...]:
        parts = [part for file in self._files for parts in file.steps.values() for part in parts]
        return tuple(sorted({op.graph_id for part in parts for op in part.ops}))

    @property
    def problems(self) -> Sequence[CorruptDumpError]:
        return self._problems

    def step(self, step: int) -> StepTable[TensorRecord]:
        having = [file for file in self._files if self._is_chosen(file) and step in file.steps]
        parts = [part for file in (having[-1:] if self._choice == "latest" else having) for part in file.steps[step]]
        ops = tuple(op for part in parts for op in part.ops)
        counts = [part.counted for part in parts]
        counted = {reason: sum(each.get(reason, 0) for each in counts) for each in counts for reason in each}
        return StepTable.of(ops, tuple(tensor for part in parts for tensor in part.tensors), counted)

    def _is_chosen(self, file: _Contents) -> bool:
        return not isinstance(self._choice, int) or file.run.id == self._choice


def _read_ranks(path: Path, files: Sequence[_File], choice: RunChoice) -> tuple[AppendedRank, ...]:
    if isinstance(choice, int) and all(file.run != choice for file in files):
        raise NotInDumpError(f"{path}: holds no run {choice}")
    ranks = sorted({file.rank for file in files})
    return tuple(AppendedRank(rank, [file for file in files if file.rank == rank], choice) for rank in ranks)


def _contents(file: _File, problems: list[CorruptDumpError]) -> _Contents:
    """The content of a file, up to where it is truncated or damaged."""
    contents = _Contents(Run(id=file.run, rank_id=file.rank, started=0))
    unfinished: dict[str, dict[str, Any]] = {}
    """Tensors that no step has named yet, by where their values begin."""
    with file.path.open("rb") as stream:
        whole = 0
        """The end of the last readable record."""
        try:
            while line := stream.readline():
                if not line.endswith(b"\n"):
                    raise ValueError("it is cut off")
                record = json.loads(line)
                begin = stream.tell()
                stream.seek(record.get("size", 0), os.SEEK_CUR)
                if stream.tell() > file.path.stat().st_size:
                    raise ValueError("it is cut off")
                if "run" in record:
                    told = {**record["run"], "command": tuple(record["run"]["command"])}
                    contents.run = Run(id=file.run, rank_id=file.rank, **told)
                elif "end" in record:
                    contents.run = replace(contents.run, **record["end"])
                elif "step" in record:
                    contents.steps.setdefault(record["step"], []).append(_step(file.path, record, unfinished))
                else:
                    unfinished[str(begin)] = record
                whole = stream.tell()
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            said = f"{file.path}: the record at byte {whole} cannot be read ({error}); what comes before it is"
            problems.append(CorruptDumpError(said))
    for part in _unfinished_parts(file.path, unfinished):
        contents.steps.setdefault(part.ops[0].step, []).append(part)
    return contents


def _step(path: Path, record: Mapping[str, Any], unfinished: dict[str, dict[str, Any]]) -> StepTable[TensorRecord]:
    ops = [_op(each) for each in record["ops"]]
    tensors = []
    for row in record["tensors"]:
        filed = None if row["at"] is None else unfinished.pop(row["at"])
        elements = None if filed is None else _elements(path, row["at"], filed)
        tensors.append(_tensor(ops[row["op"]], row["tensor"], elements, row["statistics"]))
    return StepTable.of(tuple(ops), tuple(tensors), record["counted"])


def _unfinished_parts(path: Path, filed: Mapping[str, Mapping[str, Any]]) -> Iterator[StepTable[TensorRecord]]:
    """The operators of steps that never ended, each with its tensors in the file."""
    for _, group in itertools.groupby(filed.items(), lambda item: item[1]["op"]["timestamp"]):
        records = list(group)
        op = _op(records[0][1]["op"])
        tensors = [_tensor(op, record["tensor"], _elements(path, begin, record), {}) for begin, record in records]
        yield StepTable.of((op,), tuple(tensors))


def _elements(path: Path, begin: str, filed: Mapping[str, Any]) -> AppendedElements:
    dtype, shape = filed["stored"]
    return AppendedElements(path, int(begin), dtype, tuple(shape))


def _op_facts(op: OpRecord) -> dict[str, Any]:
    """The fields of an operator for JSON. Its stack, which shares frames with other stacks, becomes a list."""
    return {**asdict(replace(op, stack=())), "stack": [asdict(frame) for frame in op.stack]}


def _facts(tensor: FiledTensor) -> dict[str, Any]:
    record = record_of(tensor)
    facts = {name: getattr(record, name) for name in _TENSOR}
    return {**facts, "memory": record.memory and asdict(record.memory)}


def _op(told: Mapping[str, Any]) -> OpRecord:
    return OpRecord(**{**told, "stack": tuple(Frame(**frame) for frame in told["stack"])})


def _tensor(
    op: OpRecord, told: Mapping[str, Any], elements: AppendedElements | None, statistics: Mapping[str, Any]
) -> TensorRecord:
    lay = told["memory"]
    facts = {
        **told,
        "shape": tuple(told["shape"]),
        "memory": lay and Memory(**{**lay, "strides": tuple(lay["strides"])}),
    }
    return TensorRecord(op=op, **facts, payload=elements, statistics=statistics)


def _now() -> int:
    return time.time_ns() // 1000
