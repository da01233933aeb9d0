"""Converts whole dumps: an asynchronous dump to the tree of a synchronous one, and dumps in layouts of installed packages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opdump.conversion.convert_file import convert_tensor, failing_alone
from opdump.conversion.formatted import ConversionError, ConversionPlan, FileResult, SourceFile, failure
from opdump.conversion.output_directory import OutputDirectory, OutputFullError, write_all
from opdump.conversion.sources import Sources, find_sources, has_dump_name
from opdump.dump_file.names import DumpName, parse_dump_name, sanitise
from opdump.errors import NotInDumpError, OpdumpError
from opdump.graph import graph_word
from opdump.index.runs import CONFIG_NAME, ENVIRONMENT_NAME, METADATA, environment_text
from opdump.layouts.ascend.operator_files import operator_file
from opdump.layouts.ascend.places import DevicePlaces, find_devices, find_loose
from opdump.layouts.base import Rank
from opdump.layouts.detect import detect_added
from opdump.records import OpRecord, TensorRecord

# Converts an asynchronous dump to the tree of a synchronous one, which MindSpore's tools and `opdump.open` read.
#
#     [{step_id}/]{time}/{device_id}/{model_name}/{model_id}/{iteration_id}/Conv2D.Default_conv1-op12.2.7.161243956333802
#     rank_{device_id}/.dump_metadata/data_dump.json, config.json
#     rank_{device_id}/{model_name}/{model_id}/{iteration}/Conv2D.conv1-op12.2.7.161243956333802.output.0.NCHW.npy
#
# The iteration is `step_id` if that level exists. Tensors are in the framework's format if the file has their original shape.
# Graphs and execution orders beside the dump are copied: without them Insight knows no operator.

_UNNAMED = "Net"
_BESIDE = ("graphs", "execution_order")
_LARGEST_BESIDE = 1 << 30


def find_tree_sources(paths: Iterable[str], output: OutputDirectory) -> Sources:
    """The dump files of directories, each with its place in the tree. Writes the metadata and the graphs of the tree.

    A file outside of a dump structure is listed as a failure.
    """
    found = Sources()
    for path in paths:
        part = find_sources([path], recursive=True, output=output.identity)
        found.failures += part.failures
        found.skipped += part.skipped
        if not os.path.isdir(path):
            found.failures += [failure(file.path, _NO_PLACE) for file in part.files]
            continue
        root = Path(path).resolve()
        devices = find_devices(root).devices or find_loose(root).devices
        places = {
            place.relative: f"rank_{device.rank_id}/{place.net_name or _UNNAMED}/{graph_word(place.graph_id)}/{place.step}"
            for device in devices
            for place in device.places
        }
        for file in part.files:
            place = places.get(file.directory)
            if place is not None:
                found.files.append(replace(file, directory=place))
            elif parse_dump_name(file.name) is not None or file.name.isdigit():
                found.failures.append(failure(file.path, _NO_PLACE))
            else:
                found.skipped.append(file.path)
        for device in devices:
            _describe(device, output, found)
    return found


_NO_PLACE = ConversionError(
    "is not in a directory of an asynchronous dump, [{step_id}/]{time}/{device_id}/{model_name}/{model_id}/{iteration_id}/: "
    "name a directory of one, or leave out --layout"
)


def _describe(device: DevicePlaces, output: OutputDirectory, found: Sources) -> None:
    """Write `.dump_metadata` of a rank, and copy the graphs beside the dump; failures are collected."""
    try:
        _write_metadata(device, output)
        for name in _BESIDE:
            for base in (device.base / f"rank_{device.rank_id}", device.base):
                if (base / name).is_dir() and not (base / name).is_symlink():
                    copied = _copy_files(base / name, output, f"rank_{device.rank_id}/{name}")
                    found.skipped = [path for path in found.skipped if os.path.realpath(path) not in copied]
                    break
    except (OpdumpError, OSError) as error:
        found.failures.append(failure(str(device.root), error))


def _write_metadata(device: DevicePlaces, output: OutputDirectory) -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own_version = version("opdump")
    except PackageNotFoundError:  # a source tree on the path that was never installed
        own_version = ""
    rank = f"rank_{device.rank_id}"
    # Insight reads only one: take a model rather than the single operators beside it.
    names = sorted({place.net_name for place in device.places if place.net_name})
    settings = {
        "common_dump_settings": {
            "dump_mode": 0,
            "path": str(output.root.absolute()),
            "net_name": names[0] if names else _UNNAMED,
            "iteration": "all",
            "saved_data": "tensor",
            "input_output": 0,
            "kernels": [],
            "support_device": [device.rank_id],
        },
        "e2e_dump_settings": {"enable": True, "trans_flag": True},
    }
    environment = environment_text(
        device_target="Ascend",
        framework="mindspore",
        framework_version="",
        opdump_version=own_version,
        layout="mindspore-2.3",
    )
    _write(output, f"{rank}/{METADATA}", CONFIG_NAME, json.dumps(settings, indent=2).encode() + b"\n")
    _write(output, f"{rank}/{METADATA}", ENVIRONMENT_NAME, environment.encode())


def _copy_files(source: Path, output: OutputDirectory, directory: str) -> set[str]:
    """Copy the files of graphs and execution orders; returns their real paths."""
    copied = set()
    with os.scandir(source) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            is_file = entry.name.startswith("ms_") and entry.is_file(follow_symlinks=False)
            if is_file and entry.stat().st_size <= _LARGEST_BESIDE:
                _write(output, directory, entry.name, Path(entry.path).read_bytes())
                copied.add(os.path.realpath(entry.path))
    return copied


def _write(output: OutputDirectory, directory: str, name: str, content: bytes) -> None:
    with output.new_file(directory, name) as descriptor:
        write_all(descriptor, (content,))


# Converts dumps in layouts of installed packages, tensor by tensor, from the records of their ranks.
#
#     {op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}.output.0.npy
#
# is written to `rank_{rank}/{net_name}/{graph_id}/{step}` below the output directory, with the name of a device's file.


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
