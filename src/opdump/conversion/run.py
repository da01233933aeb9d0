"""Converts many files, one by one or in several processes, and reports the results."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdump.conversion.convert_file import convert_file
from opdump.conversion.formatted import (
    ConversionError,
    ConversionPlan,
    Failure,
    FileResult,
    Layout,
    SourceFile,
    failure,
)
from opdump.conversion.output_directory import OutputDirectory, write_all
from opdump.conversion.sources import Sources, find_sources, has_dump_name
from opdump.dump_file.names import MAPPING_NAME
from opdump.errors import OpdumpError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    from opdump.conversion.whole_dumps import RecordedRank

# Less work is done before other processes have started.
_SMALL_FILES = 2000
_SMALL_BYTES = 256 << 20
# Work for one process at a time: an interrupted run waits for it.
_BATCH_FILES = 64
_BATCH_BYTES = 64 << 20
_LARGEST_MAPPING = 100 << 20
_POLL = 0.2

_Results = Generator[FileResult, None, None]
Progress = Callable[[int, int], None]
"""Called with the number of finished files and of all files, after each file or a few."""


@dataclass(slots=True)
class Conversion:
    """The result of a run. Failures of the search for files come first."""

    output: Path
    layout: Layout = "dumps"
    sources: int = 0
    converted: int = 0
    """Files of which something was written and nothing failed."""
    tensors: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    results: list[FileResult] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    subdirectories: list[str] = field(default_factory=list)
    interrupted: bool = False
    names: set[str] = field(default_factory=set)
    """The files written, relative to `output`."""
    stopped: bool = False
    """Whether the run ended early because the output directory accepts no more."""


def convert(
    paths: Iterable[str],
    output: Path,
    plan: ConversionPlan,
    *,
    recursive: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert files and directories into `output`, which is created if missing.

    `jobs` is the number of processes; None uses one for little work and one per usable processor for much. An interrupt (Ctrl-C)
    ends the run between two files and is recorded in the result. Raises DumpPathError if the output directory cannot be used, and
    ConversionError if the plan is contradictory.
    """
    began = time.monotonic()
    _check(plan)
    with closing(OutputDirectory(output)) as directory:
        recorded: list[RecordedRank] = []
        if plan.layout == "mindspore":
            from opdump.conversion.whole_dumps import find_tree_sources

            sources = find_tree_sources(paths, directory)
        else:
            paths = list(paths)
            sources = find_sources(paths, recursive=recursive, output=directory.identity)
            recorded = _recorded(paths, sources)
        done = Conversion(
            output,
            layout=plan.layout,
            sources=len(sources.files) + len(recorded),
            failures=sources.failures,
            skipped=sources.skipped,
            subdirectories=sources.subdirectories,
        )
        if jobs is None:
            small = len(sources.files) < _SMALL_FILES and sources.size < _SMALL_BYTES
            jobs = 1 if small else len(os.sched_getaffinity(0))
        jobs = min(jobs, len(sources.files))
        if jobs > 1 and not recorded:
            results = _in_processes(sources.files, plan, directory, jobs)
        else:
            results = _in_turn(sources.files, plan, directory, recorded)
        try:
            with closing(results):
                for result in results:
                    _account(done, result)
                    if progress is not None:
                        progress(len(done.results), done.sources)
                    if result.fatal:
                        done.stopped = True
                        break
        except KeyboardInterrupt:
            done.interrupted = True
        finally:
            _write_mapping(directory, done)
    done.seconds = time.monotonic() - began
    return done


def _check(plan: ConversionPlan) -> None:
    if plan.file_type == "pt":
        from opdump.conversion.convert_file import require_torch

        require_torch()
    if plan.layout == "mindspore" and (plan.file_type != "npy" or plan.io is not None):
        raise ConversionError(
            "the mindspore layout writes npy files of all tensors: leave out --to, --input and --output"
        )
    if plan.shape is not None and not plan.format:
        raise ConversionError("--shape is the shape in the target format: also give --format")


def _account(done: Conversion, result: FileResult) -> None:
    done.results.append(result)
    for name in result.outputs:
        if name in done.names:
            replaced = ConversionError(f"its {name} replaced that of another file: convert it into another directory")
            done.failures.append(failure(result.path, replaced))
        done.names.add(name)
    done.converted += not result.failures
    done.tensors += result.tensors
    done.bytes += result.bytes
    done.failures += result.failures


def _recorded(paths: list[str], sources: Sources) -> list[RecordedRank]:
    """The records of layouts of installed packages. No search if every file has the name of a dump file."""
    if sources.files and all(has_dump_name(file.name) for file in sources.files):
        return []
    from opdump.conversion.whole_dumps import take_recorded

    return take_recorded(paths, sources)


def _in_turn(
    files: list[SourceFile], plan: ConversionPlan, output: OutputDirectory, recorded: Sequence[RecordedRank] = ()
) -> _Results:
    with _interrupts_noted() as is_interrupted:
        for file in files:
            if is_interrupted():
                raise KeyboardInterrupt
            yield convert_file(file, plan, output)
        if recorded:
            from opdump.conversion.whole_dumps import convert_ranks

            yield from convert_ranks(recorded, plan, output, is_interrupted)


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Within the block, an interrupt (Ctrl-C) is only recorded, and the yielded function returns it; a second one is raised.

    Raised immediately, it could occur between the creation of a file and the code that removes it.
    """
    asked = False

    def note(_signal: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def is_interrupted() -> bool:
        return asked

    if threading.current_thread() is not threading.main_thread():  # other threads are never interrupted
        yield is_interrupted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield is_interrupted
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)


def _in_processes(files: list[SourceFile], plan: ConversionPlan, output: OutputDirectory, jobs: int) -> _Results:
    from concurrent.futures import FIRST_COMPLETED, wait

    batches = list(_batches(files, jobs))
    waiting: dict[Future[list[FileResult]], list[SourceFile]] = {}
    with _interrupts_noted() as is_interrupted:
        with (
            suppress(*NOT_TO_BE_HAD),
            worker_pool(jobs, initializer=_start_worker, initargs=(output.root,)) as pool,
        ):
            while batches:
                waiting[pool.submit(_convert_batch, batches[0], plan)] = batches[0]
                del batches[0]
            while waiting and is_attended(pool) and not is_interrupted():
                for future in wait(waiting, timeout=_POLL, return_when=FIRST_COMPLETED).done:
                    yield from _results(future, waiting.pop(future))
        # Work in progress at the interrupt was completed.
        for future, batch in waiting.items():
            if future.done() and not future.cancelled():
                yield from _results(future, batch)
            else:
                batches.append(batch)
        if is_interrupted():
            raise KeyboardInterrupt
    # If no process, or no thread for them, can be started, this process does the rest.
    yield from _in_turn([file for batch in batches for file in batch], plan, output)


def _results(future: Future[list[FileResult]], batch: list[SourceFile]) -> list[FileResult]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool:
        ended = ConversionError(
            "the process that converted it ended, perhaps because memory was exhausted: try --jobs 1"
        )
    except Exception as error:  # noqa: BLE001  a file of the batch was the cause, and the others are converted
        ended = ConversionError(
            f"the process that converted it failed with {type(error).__name__} ({error}): try --jobs 1"
        )
    return [FileResult(file.path, failures=[failure(file.path, ended)]) for file in batch]


def _batches(files: list[SourceFile], jobs: int) -> Iterator[list[SourceFile]]:
    most = max(1, min(_BATCH_FILES, len(files) // (jobs * 4)))
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        if batch and (len(batch) == most or size + file.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield batch


class _Worker:
    """The state of a worker process, across its batches."""

    output: OutputDirectory


def _start_worker(output: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops between batches
    _Worker.output = OutputDirectory(output)


def _convert_batch(files: list[SourceFile], plan: ConversionPlan) -> list[FileResult]:
    results = []
    for file in files:
        results.append(convert_file(file, plan, _Worker.output))
        if results[-1].fatal:
            break
    return results


def _write_mapping(output: OutputDirectory, done: Conversion) -> None:
    """Add the shortened names to the mapping.csv of each directory."""
    rows: dict[str, list[bytes]] = {}
    for result in done.results:
        for directory, stored, name in result.shortened:
            line = f"{stored},{''.join(' ' if letter in chr(10) + chr(13) else letter for letter in name)}"
            rows.setdefault(directory, []).append(os.fsencode(line))
    for directory, lines in rows.items():
        _add_rows(output, done, directory, lines)


def _add_rows(output: OutputDirectory, done: Conversion, directory: str, lines: list[bytes]) -> None:
    try:
        known = output.read(directory, MAPPING_NAME, _LARGEST_MAPPING).splitlines()
        text = b"\n".join(dict.fromkeys([*known, *lines])) + b"\n"
        with output.new_file(directory, MAPPING_NAME) as descriptor:
            write_all(descriptor, (text,))
    except OpdumpError as error:
        done.failures.append(failure(str(done.output / directory / MAPPING_NAME), error))


# A pool of processes that ends even if it could not be started, or receives no more work.

NOT_TO_BE_HAD: Final = (OSError, RuntimeError, MemoryError)
"""Exceptions raised when starting a process or thread exceeds a limit of processes, open files or memory."""


def is_attended(pool: ProcessPoolExecutor) -> bool:
    """Whether the thread that assigns work to the processes is alive; without it, futures never finish and report no error."""
    thread = getattr(pool, "_executor_manager_thread", None)
    return thread is None or thread.is_alive()


@contextmanager
def worker_pool(jobs: int, **options: Any) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, without its waiting work at the end of the block. Raises NOT_TO_BE_HAD, as `submit` does."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    others = set(multiprocessing.active_children())
    # Spawned, not forked: numpy's threads do not survive a fork.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), **options)
    is_started = True
    try:
        yield pool
    except NOT_TO_BE_HAD:
        is_started = False
        raise
    finally:
        if is_started and is_attended(pool):
            pool.shutdown(cancel_futures=True)
        else:  # the processes wait for work that never comes, and the interpreter would wait for them
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
                process.join()
