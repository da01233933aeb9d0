"""Runs `msaccucmp overflow`: finds the first overflow files of a directory tree and the dump of the operator in each, and writes
a summary.

=================================================[1]==================================================
[Add] net/add
 [AI Core][TaskId:57][StreamId:563][Status:32]
 [timestamp:1700000000000005]
 Add.net_add.57.563.1700000000000000.output.0.npy
 -[Format: ND] [Shape: (3,)] [Dtype: float16] [Max: inf] [Min: 1.0] [Mean: inf]
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from opdump.dump_file import DumpFile
from opdump.dump_file.opdebug import AcceleratorReport, OpdebugRecord
from opdump.msaccucmp.conversion import Settings, convert_opdebug, read_converted, write_plainly
from opdump.msaccucmp.dump_source import OPDEBUG_PREFIX, decode, original_shape_of, read_source
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, log
from opdump.msaccucmp.original_formats import format_of
from opdump.msaccucmp.output_folder import MAPPING_FILE, OutputFolder, make_output_folder

_DEBUG_NAME: Final = re.compile(r"Opdebug\.Node_OpDebug\.(?P<task>\d+)(?:\.(?P<stream>\d+))?\.(?P<time>\d{1,255})")
_DUMP_NAME: Final = re.compile(
    r"(?P<type>[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]+\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d{1,255})"
    r"(?:\.\d+\.(?P<context>\d+)\.(?P<thread>\d+))?(?:\.\d+)?"
)
_DEEPEST: Final = 30
_LARGEST_MAPPING: Final = 100 << 20
_RULE: Final = "=" * 49


@dataclass(frozen=True, slots=True)
class _Named:
    """A file, and its name on disk or in mapping.csv."""

    path: str
    name: str


def run_overflow(options: argparse.Namespace) -> ExitCode:
    """Write the summary of the first overflows. Raises CommandError, or AbortError if the original ends the whole run."""
    root = os.path.realpath(options.dump_path)
    if not os.path.isdir(root):
        raise CommandError(ExitCode.BAD_PATH, f"{root} is not a directory; -d must name the dump directory")
    output = os.path.realpath(options.output_path)
    make_output_folder(output)
    folder = OutputFolder(output)
    found = sorted(_debug_files(root), key=lambda pair: pair[0])
    if not found:
        log("WARNING", f"{root} holds no overflow file (Opdebug.Node_OpDebug.*)")
        return ExitCode.OK
    chosen = found[: options.top_n]
    log("INFO", f"{len(found)} overflow files were found; {len(chosen)} of them are in the summary")
    parts = [_analysed(number, timestamp, debug, folder) for number, (timestamp, debug) in enumerate(chosen, 1)]
    name = time.strftime("overflow_summary_%Y%m%d%H%M%S.txt")
    try:
        path = folder.write(name, ["".join(parts).encode("utf-8", "surrogateescape")])
    except OSError as error:
        raise CommandError(ExitCode.CANNOT_WRITE, f"{name} cannot be written ({error.strerror})") from error
    log("INFO", f"the summary is in {path}")
    return ExitCode.OK


def _debug_files(root: str) -> Iterator[tuple[int, _Named]]:
    for folder, folders, names in os.walk(root, onerror=_unreadable):
        if folder[len(root) :].count(os.sep) >= _DEEPEST:
            log("WARNING", f"{folder}: directories deeper than {_DEEPEST} levels are left out")
            folders.clear()
        for named in _named_files(folder, names):
            match = _DEBUG_NAME.match(named.name)
            if match is None:
                continue
            if match["stream"] is None:
                raise AbortError(f"{named.path}: an overflow file without a stream number in its name")
            yield int(match["time"]), named


def _unreadable(error: OSError) -> None:
    log("WARNING", f"{error.filename} cannot be read ({error.strerror}); its content is ignored")


def _named_files(folder: str, names: list[str]) -> Iterator[_Named]:
    long_names = _mapping(folder) if MAPPING_FILE in names else {}
    for name in names:
        path = os.path.join(folder, name)
        if name != MAPPING_FILE and os.path.isfile(path):
            yield _Named(path, long_names.get(name, name))


def _mapping(folder: str) -> dict[str, str]:
    """The true names in mapping.csv of a directory; invalid lines are left out."""
    path = os.path.join(folder, MAPPING_FILE)
    if not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_MAPPING:
        return {}
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        pairs = [line.rstrip("\r\n").split(",") for line in file]
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _analysed(number: int, timestamp: int, debug: _Named, folder: OutputFolder) -> str:
    """The part of the summary about one overflow file."""
    record = _record(debug, folder)
    lines = [f"{_RULE}[{number}]{_RULE}="]
    reports = _overflows(record)
    dump = _dump_of(os.path.dirname(debug.path), reports[-1])
    if dump is None:
        log("WARNING", f"no dump of the operator was found for {debug.name}")
    status = [
        f" [{report.accelerator}][TaskId:{report.task_id}][StreamId:{report.stream_id}][Status:{_printed(report)}]"
        for report in reports
    ]
    status.append(f" [timestamp:{timestamp}]")
    if dump is None:
        return "\n".join([*lines, *status]) + "\n"
    file = read_converted(dump.path)
    settings = Settings(folder)
    base = os.path.basename(dump.path)
    write_plainly(dump.path, base, file, settings)
    lines.append(f"[{dump.name.split('.')[0]}] {file.op_name}")
    return "\n".join([*lines, *status, *_tensor_lines(base, file, folder)]) + "\n"


def _record(debug: _Named, folder: OutputFolder) -> OpdebugRecord:
    name = os.path.basename(debug.path)
    try:
        file = read_source(debug.path)
        if not name.startswith(OPDEBUG_PREFIX):
            write_plainly(debug.path, name, file, Settings(folder))
            records: list[OpdebugRecord] = []
        else:
            records = convert_opdebug(debug.path, file, folder)
    except CommandError as error:
        raise CommandError(ExitCode.BAD_DEBUG_FILE, f"{name} cannot be read: {error}") from error
    if not records:
        raise CommandError(ExitCode.BAD_DEBUG_FILE, f"{name} contains no overflow record")
    if len(records) > 1:
        raise CommandError(ExitCode.SEVERAL_RECORDS, f"{name} holds {len(records)} records; one was expected")
    return records[0]


def _overflows(record: OpdebugRecord) -> list[AcceleratorReport]:
    """The reports with a nonzero status; a report of four words always counts."""
    reports = [report for report in record.reports if report.overflowed or len(report.statuses) > 1]
    if reports:
        return reports
    if record.layout == "new":
        raise CommandError(ExitCode.NO_STATUS, "the overflow record has the status 0: nothing overflowed")
    raise CommandError(
        ExitCode.BAD_ACCELERATOR, "no accelerator of the overflow record has a status: nothing overflowed"
    )


def _dump_of(folder: str, report: AcceleratorReport) -> _Named | None:
    """The oldest dump in the directory of the task that overflowed."""
    context = report.context_id
    thread = report.field("thread_id")
    found = []
    for named in _named_files(folder, os.listdir(folder)):
        match = _DUMP_NAME.match(named.name)
        if match is None or named.name.startswith(OPDEBUG_PREFIX):
            continue
        if int(match["task"]) != report.task_id or int(match["stream"]) != report.stream_id:
            continue
        if context is not None and (int(match["context"] or -1), int(match["thread"] or -1)) != (context, thread):
            continue
        found.append((int(match["time"]), named))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _printed(report: AcceleratorReport) -> str:
    return str(report.statuses[0]) if len(report.statuses) == 1 else str(list(report.statuses))


def _tensor_lines(base: str, file: DumpFile, folder: OutputFolder) -> Iterator[str]:
    if file.buffers:
        raise AbortError(f"{base} holds buffers, which the summary cannot show")
    formats = [format_of(tensor.format) for tensor in file.tensors]
    for tensor, format_name in zip(file.tensors, formats, strict=True):
        name = f"{base}.{tensor.io}.{tensor.slot}.npy"
        if not os.path.isfile(os.path.join(folder.path, name)):
            raise AbortError(f"{name} was not written, so the summary cannot show it")
        array = decode(tensor)
        shape = original_shape_of(tensor)
        array = array.reshape(shape) if shape else array
        if not array.size:
            raise CommandError(ExitCode.BAD_DUMP, f"{name} is empty: it has no largest and no smallest value")
        with np.errstate(all="ignore"):
            largest, smallest, mean = np.max(array), np.min(array), np.mean(array)
        yield f" {name}"
        yield (
            f" -[Format: {format_name}] [Shape: {array.shape}] [Dtype: {array.dtype}] "
            f"[Max: {_number(largest)}] [Min: {_number(smallest)}] [Mean: {_number(mean)}]"
        )


def _number(value: Any) -> str:
    """A value as numpy 2.4 prints it: short floats with an exponent if they are large, unlike older versions."""
    start = {"float16": 1e3, "float32": 1e6}.get(value.dtype.name)
    if start is not None and np.isfinite(value) and abs(value) >= start:
        return np.format_float_scientific(value, trim="-", exp_digits=2)
    return str(value)
