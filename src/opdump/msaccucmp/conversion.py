"""Runs `msaccucmp convert` on one file, several, or the files of a directory."""

from __future__ import annotations

import argparse
import os
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from opdump.conversion.run import NOT_TO_BE_HAD, is_attended, worker_pool
from opdump.dump_file import DumpFile, DumpTensor
from opdump.dump_file.opdebug import (
    ACCELERATORS,
    OPDEBUG_MAGIC,
    AcceleratorReport,
    OpdebugRecord,
    decode_opdebug,
    opdebug_json,
)
from opdump.errors import CorruptDumpError
from opdump.msaccucmp.dump_source import (
    FORMATS,
    OPDEBUG_PREFIX,
    Scripts,
    Stored,
    can_convert,
    check_data_type,
    check_nz_shape,
    check_path,
    convert_format,
    decode,
    dtype_in_name,
    effective_format,
    format_of,
    load_scripts,
    original_shape_of,
    read_source,
    slice_to,
    slices_of,
)
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode, Progress, log
from opdump.msaccucmp.output_folder import (
    MAPPING_FILE,
    OutputFolder,
    check_torch,
    make_output_folder,
    npy_parts,
    pt_parts,
    raw_parts,
    write_whole,
)

FAILED_LIST: Final = "convert_failed_file_list.txt"
_SHAPE: Final = re.compile(r"([0-9]+,)+[0-9]+")
# With fewer files than this per worker, one process finishes before others have started.
_WORTH_A_WORKER: Final = 500
_FILES_AT_ONCE: Final = 64
_POLL: Final = 0.2


def run_convert(options: argparse.Namespace) -> ExitCode:
    """Convert by the options. Raises CommandError, or AbortError if the original ends the whole run."""
    if not options.dump_path:
        raise CommandError(
            ExitCode.BAD_PARAMETER, "-d is empty; it must name a dump file, a directory or several files"
        )
    single = "," not in options.dump_path and not os.path.isdir(options.dump_path)
    settings = _settings(options, single=single)
    paths, total = _sources(options.dump_path)
    make_output_folder(settings.output.path)
    check_path(settings.output.path)
    if not single:
        return _convert_many(paths, total, settings)
    if not os.path.isfile(paths[0]):
        raise AbortError(f"{paths[0]} is neither a file nor a directory")
    return convert_file(paths[0], settings, _scripts(settings.script_folder)).code


def _sources(text: str) -> tuple[list[str], int]:
    """The files to convert, and the number of entries that progress counts."""
    if "," in text:
        named = [os.path.realpath(part) for part in text.split(",")]
        there = [path for path in named if _exists(path)]
        if not there:
            raise CommandError(ExitCode.BAD_PATH, f"none of the files of -d exists: {text}")
        return [path for path in there if os.path.isfile(path)], len(there)
    path = os.path.realpath(text)
    check_path(path)
    if not os.path.exists(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} does not exist")
    if not os.path.isdir(path):
        return [path], 1
    names = os.listdir(path)
    if not names:
        raise CommandError(ExitCode.BAD_PARAMETER, f"{path} is empty; there is nothing to convert")
    found = [os.path.join(path, name) for name in names if name != MAPPING_FILE]
    return [file for file in found if os.path.isfile(file)], len(names)


def _exists(path: str) -> bool:
    if os.path.exists(path):
        return True
    log("ERROR", f"{path} does not exist")
    return False


def _settings(options: argparse.Namespace, *, single: bool) -> Settings:
    if options.dump_version == 1:
        log("WARNING", "-v 1 is treated as -v 2")
    target = options.format or ""
    if not target:
        given = {"-o": options.output, "-i": options.input, "-s": options.shape, "-c": options.custom_script_path}
        for option in filter(given.get, given):
            raise CommandError(ExitCode.BAD_PARAMETER, f"{option} has an effect only with -f")
    elif not single:
        log("WARNING", "-d is not a single file: -o, -i and -s are ignored")
    input_index = _index(options.input) if single else None
    output_index = _index(options.output) if single else None
    shape = _shape(options.shape) if single else ()
    if target and target not in FORMATS.values():
        raise CommandError(
            ExitCode.BAD_PARAMETER,
            f"-f {target} is not a format; expected one such as NCHW, NHWC, HWCN, ND or FRACTAL_Z",
        )
    folder = ""
    if options.custom_script_path:
        folder = os.path.realpath(options.custom_script_path)
        _check_folder(folder)
    if options.output_file_type == "pt" and not target:
        check_torch()
    return Settings(
        output=OutputFolder(os.path.realpath(options.output_path or ".")),
        kind=options.output_file_type,
        target=target,
        shape=shape,
        input_index=input_index,
        output_index=output_index,
        script_folder=folder,
    )


def _check_folder(path: str) -> None:
    if not os.path.exists(path):
        raise CommandError(ExitCode.BAD_PATH, f"{path} does not exist; -c names a directory with format_convert in it")
    if not os.path.isdir(path):
        raise CommandError(
            ExitCode.BAD_PATH, f"{path} is not a directory; expected one that contains format_convert (-c)"
        )


def _shape(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if not _SHAPE.fullmatch(text):
        raise CommandError(ExitCode.BAD_SHAPE, f"-s {text!r} is not a shape; expected one such as 1,3,224,224")
    shape = tuple(int(size) for size in text.split(","))
    if 0 in shape:
        raise CommandError(ExitCode.BAD_SHAPE, f"-s {text}: a dimension is 0; all must be greater")
    return shape


def _index(text: str | None) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        raise CommandError(
            ExitCode.BAD_PARAMETER, f"{text!r} is not the index of a tensor; expected a whole number, 0 or more"
        )
    return int(text)


def _convert_many(paths: Sequence[str], total: int, settings: Settings) -> ExitCode:
    """The files of ordinary size first, as in a pool, then the large ones; one that fails does not stop the others.

    The code is that of the last large file that failed, otherwise that of the first other one. A failure that the original does
    not expect is raised after all files are done, and is not in the list of failures.
    """
    workers = max(((os.cpu_count() or 1) + 1) // 2, 1)
    largest = _available_memory() // workers // 4
    ordinary = [path for path in paths if os.path.getsize(path) <= largest]
    large = [path for path in paths if os.path.getsize(path) > largest]
    progress = Progress(total)
    failures, aborted = _failures(_outcomes(ordinary, workers, settings), progress)
    code = failures[0].code if failures else ExitCode.OK
    if aborted is None:
        of_large, aborted = _failures(_one_after_the_other(large, settings), progress, stops=True)
        code = of_large[-1].code if of_large else code
        failures += of_large
    if failures:
        lines = "".join(",".join([failure.path, *failure.failed]) + "\n" for failure in failures)
        settings.output.append(FAILED_LIST, lines)
        log("INFO", f"the files that could not be converted are listed in {settings.output.path}/{FAILED_LIST}")
    if aborted is not None:
        raise aborted
    return code


def _failures(
    outcomes: Iterable[Outcome | AbortError], progress: Progress, *, stops: bool = False
) -> tuple[list[Outcome], AbortError | None]:
    """The failures, and the first one that the original does not expect, after which it `stops`."""
    failures: list[Outcome] = []
    aborted: AbortError | None = None
    for outcome in outcomes:
        progress.step()
        if not isinstance(outcome, AbortError):
            failures += [outcome] if outcome.code else []
        elif aborted is None:
            aborted = outcome
            if stops:
                break
    return failures, aborted


def _outcomes(paths: Sequence[str], workers: int, settings: Settings) -> Iterable[Outcome | AbortError]:
    """The result for each file, in order."""
    workers = min(workers, len(paths) // _WORTH_A_WORKER)
    if workers < 2:
        yield from _one_after_the_other(paths, settings)
        return
    from concurrent.futures import wait
    from concurrent.futures.process import BrokenProcessPool

    batches = [paths[first : first + _FILES_AT_ONCE] for first in range(0, len(paths), _FILES_AT_ONCE)]
    done = 0
    try:
        with worker_pool(workers) as pool:
            futures = [pool.submit(_convert_batch, batch, settings) for batch in batches]
            for future in futures:
                while not future.done() and is_attended(pool):
                    wait([future], timeout=_POLL)
                if not future.done():
                    raise BrokenProcessPool("the thread that supervises them ended")
                outcomes = future.result()
                done += 1
                yield from outcomes
    except NOT_TO_BE_HAD as error:
        # Processes, threads or memory are unavailable, or a process was killed: this process does the rest.
        log("WARNING", f"other processes cannot convert ({error}); this one converts the files that are left")
        yield from _one_after_the_other([path for batch in batches[done:] for path in batch], settings)


def _convert_batch(paths: Sequence[str], settings: Settings) -> list[Outcome | AbortError]:
    return list(_one_after_the_other(paths, settings))


def _one_after_the_other(paths: Iterable[str], settings: Settings) -> Iterator[Outcome | AbortError]:
    for path in paths:
        yield _convert_one(path, settings)


def _convert_one(path: str, settings: Settings) -> Outcome | AbortError:
    try:
        return convert_file(path, settings, _scripts(settings.script_folder))
    except AbortError as error:
        return error
    except CommandError as error:
        log("ERROR", str(error))
        return Outcome(path, error.code)


@cache
def _scripts(folder: str) -> Scripts:
    return load_scripts(folder) if folder else {}


def _available_memory() -> int:
    """Bytes still available to programs; a large number if the system is not Linux."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 1 << 40


# Converts one dump file, with and without `-f`.

OutputType = Literal["npy", "bin", "msnpy", "pt"]
_L1: Final = 0
_Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run. `script_folder` is that of `-c`; `shape` that of `-s`."""

    output: OutputFolder
    kind: OutputType = "npy"
    target: str = ""
    shape: tuple[int, ...] = ()
    input_index: int | None = None
    output_index: int | None = None
    script_folder: str = ""


@dataclass(slots=True)
class Outcome:
    """The result for one file: the code of the last failure, and the tensors that failed."""

    path: str
    code: ExitCode = ExitCode.OK
    failed: list[str] = field(default_factory=list)


def convert_file(path: str, settings: Settings, scripts: Mapping[tuple[str, str], Any]) -> Outcome:
    """Convert one file. Raises CommandError if all of it fails, AbortError if the original ends the whole run."""
    file = read_source(path)
    name = os.path.basename(path)
    if settings.target:
        return _Reformatted(path, name, _checked(name, file), settings, scripts).run()
    if name.startswith(OPDEBUG_PREFIX):
        convert_opdebug(path, file, settings.output)
        return Outcome(path)
    write_plainly(path, name, _checked(name, file), settings)
    return Outcome(path)


def read_converted(path: str) -> DumpFile:
    """The file with the shapes used for conversion. Raises CommandError and AbortError like `convert_file`."""
    return _checked(os.path.basename(path), read_source(path))


def _checked(name: str, file: DumpFile) -> DumpFile:
    for tensor in (*file.outputs, *file.inputs):
        check_data_type(tensor)
    return slices_of(name, file)


def write_plainly(path: str, name: str, file: DumpFile, settings: Settings) -> None:
    """Write the tensors, buffers and spaces of a file without `-f`. Raises AbortError."""
    decoded = [(tensor, decode(tensor)) for tensor in file.tensors]
    for io, present in (("input", file.inputs), ("output", file.outputs)):
        if not present:
            log("WARNING", f"{path} has no {io}")
        for tensor, array in decoded:
            if tensor.io == io:
                log("INFO", f"{tensor.name} of {path} is being converted")
                _save_plainly(name, file, tensor, array, settings)
    for slot, buffer in enumerate(file.buffers):
        kind = "l1" if buffer.kind == _L1 else "None"
        _save(settings.output, f"{name}.{kind}buffer.{slot}.bin", [buffer.data.read()], f"buffer:{slot}")
    if not file.buffers:
        log("WARNING", f"{path} has no buffer data")
    for slot, space in enumerate(file.spaces):
        _save(settings.output, f"{name}.space.{slot}.bin", [space.data.read()], f"space:{slot}")
    if not file.spaces:
        log("WARNING", f"{path} has no space data")


def _save_plainly(name: str, file: DumpFile, tensor: DumpTensor, array: _Array, settings: Settings) -> None:
    stem = f"{tensor.io}.{tensor.slot}"
    if settings.kind == "bin":
        counts = "_".join(str(size) for size in array.shape)
        target = f"{name}.{stem}.{counts}.{dtype_in_name(tensor.data_type)}.{format_of(tensor.format)}.bin"
    elif settings.kind == "msnpy":
        target = f"{_msnpy_base(name, file)}.{stem}.{format_of(tensor.format)}.npy"
    else:
        target = f"{name}.{stem}.{settings.kind}"
    shape = original_shape_of(tensor)
    if shape:
        try:
            array = array.reshape(shape)
        except (ValueError, OverflowError) as error:
            log("ERROR", f"{target} cannot be written: {error}")
            log("INFO", f"{tensor.name} has been converted to {os.path.join(settings.output.path, target)}")
            return
    if settings.kind == "pt":
        _save(settings.output, target, pt_parts(array), tensor.name)
    else:
        _save(settings.output, target, raw_parts(array) if settings.kind == "bin" else npy_parts(array), tensor.name)


def _save(output: OutputFolder, name: str, parts: Iterable[bytes | memoryview], what: str) -> None:
    """Write the parts. A failure is only logged, as in the original, which then reports success."""
    written = os.path.join(output.path, name)
    try:
        written = output.write(name, parts)
    except (OSError, ValueError) as error:
        log("ERROR", f"{written} cannot be written: {error}")
    log("INFO", f"{what} has been converted to {written}")


def _msnpy_base(name: str, file: DumpFile) -> str:
    """The file's name; if it has five parts, the second is replaced by the last part of the operator's true name."""
    parts = name.split(".")
    if len(parts) == 5 and file.op_name:
        parts[1] = file.op_name.split("/")[-1]
    return ".".join(parts)


class _TensorError(AbortError):
    """An exception that ends one tensor with exit code 1, but not the run."""


class _Reformatted:
    """`convert -f`: the tensors of one file, each in the target format."""

    def __init__(
        self, path: str, name: str, file: DumpFile, settings: Settings, scripts: Mapping[tuple[str, str], Any]
    ) -> None:
        self.path = path
        self.name = name
        self.file = file
        self.settings = settings
        self.scripts = scripts
        self.outcome = Outcome(path)
        self.decoded: dict[str, _Array] = {}

    def run(self) -> Outcome:
        log("INFO", f"{self.path}: converting to {self.settings.target}")
        self.decoded = {tensor.name: decode(tensor) for tensor in self.file.tensors}
        for tensor in self._chosen():
            self._attempt(tensor)
        return self.outcome

    def _attempt(self, tensor: DumpTensor) -> None:
        """Convert one tensor; a failure is recorded and does not stop the others."""
        try:
            self._convert(tensor)
        except (CommandError, _TensorError) as error:
            log("ERROR", f"{tensor.name} of {self.path} cannot be converted: {error}")
            self.outcome.code = error.code if isinstance(error, CommandError) else ExitCode.UNEXPECTED
            self.outcome.failed.append(tensor.name)
            if self.settings.kind == "msnpy":
                self._save_source(tensor)

    def _chosen(self) -> Iterable[DumpTensor]:
        for io, index, tensors in (
            ("input", self.settings.input_index, self.file.inputs),
            ("output", self.settings.output_index, self.file.outputs),
        ):
            if index is None:
                continue
            if index >= len(tensors):
                raise CommandError(
                    ExitCode.BAD_INDEX,
                    f"{self.path} has {len(tensors)} {io}s, but no {index} (counted from 0)",
                )
            return (tensors[index],)
        return self.file.tensors

    def _convert(self, tensor: DumpTensor) -> None:
        settings = self.settings
        named = format_of(tensor.format)
        shape = original_shape_of(tensor)
        source = effective_format(named, shape)
        if source != named:
            log("WARNING", f"{tensor.name} of {self.path} is {named} with the shape {shape}; it is treated as ND")
        log("INFO", f"{tensor.name} is {source}{shape} before the conversion")
        array = self.decoded[tensor.name]
        if source == settings.target:
            try:
                result = array.reshape(shape)
            except (ValueError, OverflowError) as error:
                raise CommandError(ExitCode.BAD_DUMP, f"{array.size} elements do not have the shape {shape}") from error
        else:
            wanted = settings.shape or tensor.original_shape
            result = self._converted(source, shape, wanted, tensor, array)
            try:
                result = slice_to(result, wanted)
            except CommandError as error:
                log("ERROR", f"{tensor.name} of {self.path} is left as it is: {error}")
                self._save(tensor, result, source)  # the data are in the target format all the same
                return
        self._save(tensor, result, settings.target)

    def _converted(
        self, source: str, shape: tuple[int, ...], wanted: tuple[int, ...], tensor: DumpTensor, array: _Array
    ) -> _Array:
        target = self.settings.target
        script = self.scripts.get((source, target))
        if script is None and not can_convert(source, target):
            raise CommandError(ExitCode.BAD_FORMAT_PAIR, f"there is no conversion from {source} to {target}")
        if source == "FRACTAL_NZ":
            check_nz_shape(shape, wanted)
        stored = Stored(shape, wanted, tensor.sub_format)
        try:
            if script is not None:
                from opdump.msaccucmp.dump_source import run_script

                result = run_script(script, source, target, array, stored)
            else:
                result = convert_format(source, target, array, stored)
        except CommandError:
            raise
        except Exception as error:
            raise CommandError(
                ExitCode.SCRIPT_FAILED,
                f"the conversion from {source} to {target} failed: {type(error).__name__}: {error}",
            ) from error
        log("INFO", f"{tensor.name} is {target}{result.shape} after the conversion")
        return result

    def _save(self, tensor: DumpTensor, array: _Array, format_name: str) -> None:
        kind = self.settings.kind
        stem = f"{tensor.io}.{tensor.slot}"
        if kind == "msnpy":
            name = f"{_msnpy_base(self.name, self.file)}.{stem}.{format_name}.npy"
        elif kind == "npy":
            name = f"{self.name}.{stem}.{'x'.join(map(str, array.shape))}.npy"
        else:
            try:
                dtype = dtype_in_name(tensor.data_type)
            except AbortError as error:
                raise _TensorError(str(error)) from error
            name = f"{self.name}.{stem}.{'_'.join(map(str, array.shape))}.{dtype}.{format_name}.bin"
        _save(self.settings.output, name, raw_parts(array) if kind == "bin" else npy_parts(array), tensor.name)

    def _save_source(self, tensor: DumpTensor) -> None:
        array = self.decoded[tensor.name]
        shape = original_shape_of(tensor)
        if shape and array.size == np.prod(shape, dtype=object):
            array = array.reshape(shape)
        self._save(tensor, array, format_of(tensor.format))


# Converts overflow files to JSON, one file for each output.


def convert_opdebug(path: str, file: DumpFile, output: OutputFolder) -> list[OpdebugRecord]:
    """Write `<name>.output.<i>.json` for every output; returns the records.

    Long names are not shortened. Raises CommandError if a record is not an overflow record or its file cannot be written, and
    AbortError if it is cut off.
    """
    for tensor in (*file.outputs, *file.inputs):
        check_data_type(tensor)
    records = []
    for tensor in file.outputs:
        record = read_record(decode(tensor).tobytes(), path)
        for problem in record.problems:
            log("ERROR", problem)
        target = os.path.join(output.path, f"{os.path.basename(path)}.{tensor.io}.{tensor.slot}.json")
        try:
            write_whole(target, [opdebug_json(record).encode()])
        except OSError as error:
            raise CommandError(ExitCode.CANNOT_WRITE, f"{target} cannot be written ({error.strerror})") from error
        log("INFO", f"{tensor.name} has been converted to {target}")
        records.append(record)
    return records


def read_record(payload: bytes, path: str) -> OpdebugRecord:
    """The record, with the errors of the original for an invalid one."""
    try:
        return decode_opdebug(payload, path)
    except CorruptDumpError as error:
        magic = struct.unpack_from("<I", payload)[0] if len(payload) >= 4 else None
        if magic is None:
            raise AbortError(str(error)) from error
        if magic != OPDEBUG_MAGIC:
            raise CommandError(ExitCode.BAD_DUMP, str(error)) from error
        if len(payload) >= 24 and struct.unpack_from("<I", payload, 12)[0] >= len(ACCELERATORS):
            raise CommandError(ExitCode.BAD_ACCELERATOR, str(error)) from error
        raise AbortError(str(error)) from error


# Runs `msaccucmp overflow`: finds the first overflow files of a directory tree and the dump of the operator in each, and writes
# a summary.
#
# =================================================[1]==================================================
# [Add] net/add
#  [AI Core][TaskId:57][StreamId:563][Status:32]
#  [timestamp:1700000000000005]
#  Add.net_add.57.563.1700000000000000.output.0.npy
#  -[Format: ND] [Shape: (3,)] [Dtype: float16] [Max: inf] [Min: 1.0] [Mean: inf]

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
