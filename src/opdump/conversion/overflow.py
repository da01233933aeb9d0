"""Finds the overflow files of a dump, each with the dump of the operator that overflowed.

The task in the name of an overflow file is its own. The operator is identified by the task and stream in the record, and in FFTS+
graphs by context and thread. See docs/dump-files.md#overflow-files.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from opdump.conversion.formatted import ConversionError, Failure, failure
from opdump.conversion.sources import Sources, find_sources
from opdump.dump_file import DumpTensor, read_dump_file
from opdump.dump_file.names import ConvertedName, DumpName, parse_converted_name, parse_dump_name
from opdump.dump_file.opdebug import ACCELERATORS, AcceleratorReport, decode_opdebug
from opdump.errors import CorruptDumpError, OpdumpError, UndecodableTensorError
from opdump.sink.npy import read_npy

# No directory has this device and inode.
_NOWHERE = (0, 0)


@dataclass(frozen=True, slots=True)
class TensorValues:
    """The values of a tensor of an overflowed operator. `problem` is the reason if they are unknown."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    min: float = float("nan")
    max: float = float("nan")
    nan: int = 0
    inf: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Overflow:
    """One report of one accelerator. `operator`, `op_type` and `dump` are empty if there is no dump of the operator."""

    path: str
    microseconds: int
    """Since the epoch, from the name; 0 if the name has no time."""
    report: AcceleratorReport
    dump: str = ""
    operator: str = ""
    op_type: str = ""
    tensors: tuple[TensorValues, ...] = ()


@dataclass(slots=True)
class OverflowSearch:
    """The result of a search, in the order of time. `silent` are overflow files without a status bit."""

    files: int = 0
    overflows: list[Overflow] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _NamedFile:
    path: str
    name: DumpName
    parts: tuple[tuple[ConvertedName, str], ...] = ()
    """The npy files of an operator without a dump file; `path` is the name that it would have."""


def find_overflows(paths: Iterable[str]) -> OverflowSearch:
    """Read every overflow file in the directories and below. Unreadable files are listed in the failures."""
    # One search per directory: files of the same name in two directories are different files here.
    found = [find_sources([path], recursive=True, output=_NOWHERE) for path in paths]
    search = OverflowSearch(failures=[each for sources in found for each in sources.failures])
    files = list(_files_in(found))
    overflow_files = [each for each in files if each.name.is_overflow]
    operators: dict[int, list[_NamedFile]] = {}
    for file in files:
        if not file.name.is_overflow:
            operators.setdefault(file.name.task_id, []).append(file)
    search.files = len(overflow_files)
    for file in sorted(overflow_files, key=lambda each: (each.name.microseconds, each.path)):
        failed = len(search.failures)
        reports = list(_reports_in(file.path, search.failures))
        if not reports and len(search.failures) == failed:
            search.silent.append(file.path)
        search.overflows += [_paired(search, file, report, operators) for report in reports]
    return search


def _files_in(found: Iterable[Sources]) -> Iterator[_NamedFile]:
    """The dump files, and the operators and records that MindSpore wrote as npy and JSON instead of dump files."""
    binary: set[DumpName] = set()
    for source in itertools.chain.from_iterable(sources.files for sources in found):
        name = parse_dump_name(source.name)
        if name is not None:
            binary.add(name)
            yield _NamedFile(source.path, name)
    # A copy of an overflow file, which a converter wrote, contains nothing new, wherever it is.
    parts: dict[_NamedFile, list[tuple[ConvertedName, str]]] = {}
    for path in itertools.chain.from_iterable(sources.skipped for sources in found):
        directory, text = os.path.split(path)
        part = parse_converted_name(text)
        if part is None or not isinstance(part.dump, DumpName):
            continue
        if part.dump.is_overflow:
            if part.suffix == "json" and part.dump not in binary:
                yield _NamedFile(path, part.dump)
        elif part.suffix == "npy":
            parts.setdefault(_NamedFile(os.path.join(directory, str(part.dump)), part.dump), []).append((part, path))
    for file, of_file in parts.items():
        yield replace(file, parts=tuple(sorted(of_file, key=lambda each: (each[0].part, each[0].slot))))


def _reports_in(path: str, failures: list[Failure]) -> Iterator[AcceleratorReport]:
    """The reports of an overflow file with a status bit. What cannot be read is added to the failures."""
    try:
        if path.endswith(".json"):
            yield from [report for report in read_overflow_json(path) if report.overflowed]
            return
        dumped = read_dump_file(path)
        if not dumped.outputs:
            raise ConversionError("contains no record")
    except OpdumpError as error:
        failures.append(failure(path, error))
        return
    for tensor in dumped.outputs:
        try:
            record = decode_opdebug(tensor.data.read(), path)
        except OpdumpError as error:
            failures.append(failure(path, error, tensor.name))
            continue
        failures += [
            failure(path, UndecodableTensorError(problem.removeprefix(f"{path}: ")), tensor.name)
            for problem in record.problems
        ]
        yield from record.overflows


def _paired(
    search: OverflowSearch, file: _NamedFile, report: AcceleratorReport, operators: dict[int, list[_NamedFile]]
) -> Overflow:
    alone = Overflow(file.path, file.name.microseconds, report)
    candidates = [each for each in operators.get(report.task_id, ()) if _belongs(each.name, report)]
    if not candidates:
        return alone
    directory = os.path.dirname(file.path)

    def distance(each: _NamedFile) -> tuple[bool, bool, int, str]:
        elsewhere = os.path.dirname(each.path) != directory
        return elsewhere, bool(each.parts), abs(each.name.microseconds - file.name.microseconds), each.path

    nearest = min(candidates, key=distance)
    name = nearest.name
    if nearest.parts:
        values = tuple(_values_of_npy(part, path) for part, path in nearest.parts)
        first = nearest.parts[0][1]
        name = name.in_true_order()
        return replace(alone, dump=first, operator=name.op_name, op_type=name.op_type, tensors=values)
    try:
        dumped = read_dump_file(nearest.path)
    except OpdumpError as error:
        search.failures.append(failure(nearest.path, error))
        return replace(alone, dump=nearest.path, operator=name.op_name, op_type=name.op_type)
    name = name.in_true_order(dumped.op_name)
    operator, values = dumped.op_name or name.op_name, tuple(_values(tensor) for tensor in dumped.tensors)
    return replace(alone, dump=nearest.path, operator=operator, op_type=name.op_type, tensors=values)


def _belongs(name: DumpName, report: AcceleratorReport) -> bool:
    """Whether the dump of that name belongs to the task of the report, whose number is known to match."""
    if name.stream_id is not None and name.stream_id != report.stream_id:
        return False
    if name.ffts is None:
        return True
    context, thread = report.context_id, report.thread_id
    return (context is None or name.ffts.context_id == context) and (thread is None or name.ffts.thread_id == thread)


def _values(tensor: DumpTensor) -> TensorValues:
    try:
        return _summary(tensor.to_host(), tensor.name, tensor.dtype)
    except (OpdumpError, ValueError, OverflowError) as error:
        problem = str(error).removeprefix(f"{tensor.name}: ")
        return TensorValues(tensor.name, tensor.dtype, tensor.shape, problem=problem)


def _values_of_npy(part: ConvertedName, path: str) -> TensorValues:
    name = f"{part.part}:{part.slot}"
    try:
        array = read_npy(path)
        return _summary(array, name, array.dtype.name)
    except OpdumpError as error:
        return TensorValues(name, part.dtype, (), problem=str(error))


def _summary(array: npt.NDArray[Any], name: str, dtype: str) -> TensorValues:
    from opdump.kernels import summarise

    summary = summarise(array)
    return TensorValues(
        name,
        dtype,
        array.shape,
        min=summary.min,
        max=summary.max,
        nan=int(summary.nan),
        inf=int(summary.positive_inf + summary.negative_inf),
    )


# Reads overflow records in JSON, which converters derive from overflow files, and which MindSpore writes when it dumps npy.
#
# {"DHA Atomic Add": {"model_id": 0, ...}, "L2 Atomic Add": {...}, "AI Core": {"model_id": 514, ..., "status": 32}}
# {"magic": "0x5a5a5a5a", "version": 0, "acc_list": {"valid": 1, "acc_type": "AIC", ..., "data": {..., "status": 32}}}

_LARGEST = 1 << 20
_OLD = ("DHA Atomic Add", "L2 Atomic Add", "AI Core")
_FIRST = ("model_id", "stream_id", "task_id")


def read_overflow_json(path: str) -> tuple[AcceleratorReport, ...]:
    """The reports of the file. Raises CorruptDumpError for any other content."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CorruptDumpError(f"{path}: cannot be opened ({error.strerror})") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise CorruptDumpError(
                f"{path}: is not a file of at most {_LARGEST} bytes; an overflow record was expected"
            )
        text = os.pread(descriptor, status.st_size, 0)
    finally:
        os.close(descriptor)
    try:
        return _reports(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDumpError(
            f"{path}: is not an overflow record in JSON ({type(error).__name__}: {str(error)[:200]}); it was cut off, or another "
            "program wrote it"
        ) from error


def _reports(content: Any) -> tuple[AcceleratorReport, ...]:
    if "acc_list" in content:
        kind = content["acc_list"]["acc_type"]
        if kind not in ACCELERATORS:
            raise ValueError(f"accelerator {kind!r}; known are {', '.join(ACCELERATORS)}")
        return (_report(kind, content["acc_list"]["data"]),)
    return tuple(_report(name, content[name]) for name in _OLD if name in content or name == _OLD[-1])


def _report(accelerator: str, fields: dict[str, Any]) -> AcceleratorReport:
    status = fields["status"]
    statuses = tuple(_number(word) for word in (status if isinstance(status, list) else [status]))
    if not 1 <= len(statuses) <= 4:
        raise ValueError(f"{len(statuses)} status words")
    # A report has named fields for these three.
    first = tuple((name, _number(fields[name])) for name in _FIRST)
    others = tuple((name, _number(value)) for name, value in fields.items() if name not in (*_FIRST, "status"))
    return AcceleratorReport(accelerator, (*first, *others), statuses)


def _number(value: Any) -> int:
    number = int(value[:20], 0) if isinstance(value, str) else value
    if not isinstance(number, int) or not 0 <= number < 1 << 64:
        raise ValueError(f"{str(value)[:40]} is not a 64-bit number")
    return number
