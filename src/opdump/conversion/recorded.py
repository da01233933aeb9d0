"""Converts dumps in layouts of installed packages, tensor by tensor, from the records of their ranks.

    {op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}.output.0.npy

is written to `rank_{rank}/{net_name}/{graph_id}/{step}` below the output directory, with the name of a device's file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opdump.conversion.convert_file import convert_tensor, failing_alone
from opdump.conversion.output_directory import OutputDirectory, OutputFullError
from opdump.conversion.plan import ConversionPlan, FileResult, SourceFile, failure
from opdump.conversion.sources import Sources, has_dump_name
from opdump.dump_file.names import DumpName, sanitise
from opdump.errors import NotInDumpError, OpdumpError
from opdump.graph import graph_word
from opdump.layouts.ascend.operator_files import operator_file
from opdump.layouts.base import Rank
from opdump.layouts.detect import detect_added
from opdump.records import OpRecord, TensorRecord


@dataclass(frozen=True, slots=True)
class RecordedRank:
    """A rank to convert, and the path under which the result lists it."""

    path: str
    rank: Rank


def take_recorded(paths: Iterable[str], sources: Sources) -> list[RecordedRank]:
    """The ranks of those paths that have a dump in a layout of a package; their files are removed from the sources.

    Paths that contain a file with the name of a dump file are not offered to the packages.
    """
    found: list[RecordedRank] = []
    for path in paths:
        below = [file for file in sources.files if _is_below(file.path, path)]
        if any(has_dump_name(file.name) for file in below):
            continue
        read = detect_added(Path(path))
        if read is None:
            continue
        sources.files = [file for file in sources.files if not _is_below(file.path, path)]
        sources.skipped = [file for file in sources.skipped if not _is_below(file, path)]
        sources.failures = [each for each in sources.failures if not _is_below(each.path, path)]
        try:
            found += [RecordedRank(f"{path} (rank {rank.rank_id})", rank) for rank in read("latest")]
        except OpdumpError as error:
            sources.failures.append(failure(path, error))
    return found


def convert_ranks(
    ranks: Sequence[RecordedRank], plan: ConversionPlan, output: OutputDirectory, is_interrupted: Callable[[], bool]
) -> Iterator[FileResult]:
    """Convert the tensors that the plan selects. Never raises for the content of a dump: the results list the failures."""
    for recorded in ranks:
        result = FileResult(recorded.path)
        rank = recorded.rank
        try:
            for step in rank.steps:
                for record in rank.step(step).tensors:
                    if is_interrupted():
                        raise KeyboardInterrupt
                    if record.payload is not None and _is_chosen(record, plan):
                        _convert(record, plan, output, result)
            if not result.tensors and not result.failures:
                raise NotInDumpError("has no such tensor with elements")
        except OutputFullError as error:
            result.fatal = True
            result.fail(error)
        except OpdumpError as error:
            result.fail(error)
        for problem in rank.problems:
            result.fail(problem)
        yield result


def _convert(record: TensorRecord, plan: ConversionPlan, output: OutputDirectory, result: FileResult) -> None:
    with failing_alone(result, f"{record.op.op_name}:{record.io}:{record.slot}"):
        file = operator_file(record.op, [record])
        source = SourceFile(result.path, _directory(record.op), _name(record.op), 0)
        for tensor in file.tensors:
            whole = record.shape if record.sample else None
            convert_tensor(replace(tensor, slot=record.slot), whole, file.op_name, source, plan, output, result)


def _is_chosen(record: TensorRecord, plan: ConversionPlan) -> bool:
    return plan.io is None or (record.io, record.slot) == (plan.io, plan.slot)


def _directory(op: OpRecord) -> str:
    net = f"{sanitise(op.net_name)}/" if op.net_name else ""
    return f"rank_{op.rank_id}/{net}{graph_word(op.graph_id)}/{op.step}"


def _name(op: OpRecord) -> str:
    return str(DumpName(sanitise(op.op_type), sanitise(op.op_name), op.task_id, op.stream_id, op.timestamp))


def _is_below(file: str, path: str) -> bool:
    return file == path or file.startswith(os.path.join(path, ""))
