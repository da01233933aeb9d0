"""Runs `msaccucmp convert` on one file, several, or the files of a directory."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Final

from opdump.conversion.lost_processes import NOT_TO_BE_HAD, end_processes, is_attended
from opdump.msaccucmp.conversion import Outcome, Settings, convert_file
from opdump.msaccucmp.custom_scripts import Scripts, load_scripts
from opdump.msaccucmp.dump_source import check_path
from opdump.msaccucmp.exit_codes import AbortError, CommandError, ExitCode
from opdump.msaccucmp.journal import Progress, log
from opdump.msaccucmp.original_formats import FORMATS
from opdump.msaccucmp.output_folder import MAPPING_FILE, OutputFolder, check_torch, make_output_folder

FAILED_LIST: Final = "convert_failed_file_list.txt"
_SHAPE: Final = re.compile(r"([0-9]+,)+[0-9]+")
# With fewer files than this per worker, one process finishes before others have started.
_WORTH_A_WORKER: Final = 500
_FILES_AT_ONCE: Final = 64
_POLL: Final = 0.2


def run_convert(options: argparse.Namespace) -> ExitCode:
    """Convert by the options. Raises CommandError, or AbortError if the original ends the whole run."""
    if not options.dump_path:
        raise CommandError(ExitCode.BAD_PARAMETER, "-d is empty; it names a dump file, a directory or several files")
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
        log("WARNING", "-v 1 is taken for -v 2")
    target = options.format or ""
    for option, value in (
        ("-o", options.output),
        ("-i", options.input),
        ("-s", options.shape),
        ("-c", options.custom_script_path),
    ):
        if value and not target:
            raise CommandError(ExitCode.BAD_PARAMETER, f"{option} has a meaning only together with -f")
    if target and not single:
        log("WARNING", "-d is no single file: -o, -i and -s are ignored if they are there")
    input_index = _index(options.input) if single else None
    output_index = _index(options.output) if single else None
    shape = _shape(options.shape) if single else ()
    if target and target not in FORMATS.values():
        raise CommandError(
            ExitCode.BAD_PARAMETER, f"-f {target} is no format; NCHW, NHWC, HWCN, ND, FRACTAL_Z and others are"
        )
    folder = os.path.realpath(options.custom_script_path) if options.custom_script_path else ""
    if folder:
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
        raise CommandError(ExitCode.BAD_PATH, f"{path} is not a directory; -c names one with format_convert in it")


def _shape(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if not _SHAPE.fullmatch(text):
        raise CommandError(ExitCode.BAD_SHAPE, f"-s {text!r} is no shape such as 1,3,224,224")
    shape = tuple(int(size) for size in text.split(","))
    if 0 in shape:
        raise CommandError(ExitCode.BAD_SHAPE, f"-s {text}: a dimension is 0; all must be greater")
    return shape


def _index(text: str | None) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]+", text):
        raise CommandError(ExitCode.BAD_PARAMETER, f"{text!r} is no index of a tensor; they are whole numbers from 0")
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
    failures: list[Outcome] = []
    code = ExitCode.OK
    aborted: AbortError | None = None
    for outcome in _outcomes(ordinary, workers, settings):
        progress.step()
        if isinstance(outcome, AbortError):
            aborted = aborted or outcome
        elif outcome.code:
            failures.append(outcome)
            code = code or outcome.code
    for outcome in _one_after_the_other([] if aborted else large, settings):
        progress.step()
        if isinstance(outcome, AbortError):
            aborted = outcome
            break
        if outcome.code:
            failures.append(outcome)
            code = outcome.code
    if failures:
        lines = "".join(",".join([failure.path, *failure.failed]) + "\n" for failure in failures)
        settings.output.append(FAILED_LIST, lines)
        log("INFO", f"the files that could not be converted are listed in {settings.output.path}/{FAILED_LIST}")
    if aborted is not None:
        raise aborted
    return code


def _outcomes(paths: Sequence[str], workers: int, settings: Settings) -> Iterable[Outcome | AbortError]:
    """The result for each file, in order."""
    workers = min(workers, len(paths) // _WORTH_A_WORKER)
    if workers < 2:
        yield from _one_after_the_other(paths, settings)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    others = set(multiprocessing.active_children())
    batches = [paths[first : first + _FILES_AT_ONCE] for first in range(0, len(paths), _FILES_AT_ONCE)]
    done = 0
    pool = None
    try:
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
        futures = [pool.submit(_convert_batch, batch, settings) for batch in batches]
        for future in futures:
            while not future.done() and is_attended(pool):
                wait([future], timeout=_POLL)
            if not future.done():
                raise BrokenProcessPool("the thread that attends to them ended")
            outcomes = future.result()
            done += 1
            yield from outcomes
        pool.shutdown()
    except NOT_TO_BE_HAD as error:
        # Processes, threads or memory are unavailable, or a process was killed: this process does the rest.
        end_processes(set(multiprocessing.active_children()) - others)
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
