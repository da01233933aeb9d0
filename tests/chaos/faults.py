"""System faults under a dumped training, each real if this machine permits it.

For each fault: the training computes the same as without opdump; its exit code is unchanged (3 if only the dump is
incomplete); the user gets a plain message; what was written before is readable; and missing parts are reported.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.errors import OpdumpError
from tests.chaos.kills import Place, run_of
from tests.chaos.reading import Found, check_damaged, check_whole, contents_of, steps_noted
from tests.chaos.training import STRIKES
from tests.warm import Ended, Run

_INCOMPLETE: Final = 3
_RANKS: Final = 8
_QUEUE: Final = 16 << 20
"""Bytes that may wait for the slow disk."""


def _ran(found: Found, place: Place, root: Path, ended: Ended, code: int, *, to_its_end: bool = True) -> int:
    """Check a training's notes in {root}.txt and its exit code; return the number of steps it noted."""
    noted = steps_noted(root.with_suffix(".txt"))
    if noted != (place.notes if to_its_end else place.notes[: len(noted)]):
        found.wrong.append(f"{root}: the training noted {noted}, but {place.notes} without opdump")
    if ended.codes != (code,):
        found.wrong.append(f"{root}: ended with {ended.codes}, expected {code}: {ended.err[0]}")
    # At interpreter exit, PyTorch's own functions may fail for the same reason, even without opdump.
    if re.search(r'File "[^"]*/opdump/[a-z_/]+\.py"', ended.err[0]):
        found.wrong.append(f"{root}: a traceback instead of a plain message: {ended.err[0]}")
    return len([line for line in noted if line != "end"])


def _check_told(found: Found, root: Path, ended: Ended, said: str) -> None:
    """Check that the cause (containing `said`) is reported at once, and again at the end with what it cost."""
    told = [
        line for line in ended.err[0].splitlines() if re.search(r": (the index )?cannot be (written|read) \(", line)
    ]
    match told:
        case [at_once, at_the_end] if "The program continues" in at_once and "the dump is incomplete" in at_the_end:
            if said not in at_once:
                found.wrong.append(f"{root}: says {at_once}, expected {said!r}")
        case _:
            found.wrong.append(f"{root}: expected one line at once and one at the end: {ended.err[0]}")


def _check_is_cut_off(found: Found, root: Path) -> None:
    checked = CliRunner().invoke(main, ["check", str(root)], catch_exceptions=False)
    if "interrupted" not in checked.output:
        found.wrong.append(f"{root}: `opdump check` does not report what is missing: {checked.output}")


def _lost(place: Place, name: str, *trouble: str, said: str, root: Path | None = None, is_there: bool = True) -> Found:
    """Check a dump that could not be written from some moment on."""
    found = Found()
    root = place.path(name) if root is None else root
    journal = place.path(name).with_suffix(".txt")
    ended = place.warm.run(run_of(place.case, root, journal, *trouble))
    ran = _ran(found, place, journal, ended, _INCOMPLETE)
    _check_told(found, root, ended, said)
    if not is_there:
        if root.exists():
            found.wrong.append(f"{root}: was removed, but exists again")
        return found
    # Everything finished before the fault is on disk; everything later is lost and reported.
    check_damaged(root, place.whole, min(ran, STRIKES if trouble else 0), found)
    _check_is_cut_off(found, root)
    if left := list(root.rglob("*.part")):
        found.wrong.append(f"{root}: {left[:3]} are left")
    return found


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[str]:
    """A file system of this size; yields a reason instead if this user may not mount one."""
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        yield "only root can mount a file system"
        return
    command = [mount, "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"no file system can be mounted: {done.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _full_disk(place: Place) -> Found:
    with small_disk(place.path("disk"), place.case.small_disk) as why_not:
        if why_not:
            found = _lost(place, "full", "file size", "3000", said="free space")
            found.counts[f"with a limit on the size of files, because {why_not}"] += 1
            return found
        root = place.path("disk") / "dump"
        found = _lost(place, "full disk", said="free space", root=root)
        shutil.rmtree(root)
        # With room again, the next run is normal.
        ended = place.warm.run(run_of(place.case, place.path("after"), place.folder / "after.txt"))
        if ended.codes != (0,):
            found.wrong.append(f"{root}: the next run ended with {ended.codes}: {ended.err[0]}")
    return found


def _full_from_the_start(place: Place) -> Found:
    """With no room at all, the run ends before the training begins or goes on without a dump; both with a plain
    message.
    """
    found = Found()
    with small_disk(place.path("none"), 64) as why_not:
        if why_not:
            found.counts[f"left out: {why_not}"] += 1
            return found
        root, journal = place.path("none") / "dump", place.path("none-journal")
        root.mkdir()
        with (place.path("none") / "filler").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        ended = place.warm.run(run_of(place.case, root, journal))
        if "Traceback" in ended.err[0] or "opdump: " not in ended.err[0]:
            found.wrong.append(f"{root}: reported {ended.err[0]}")
        noted = steps_noted(journal)
        if (ended.codes, noted) not in (((1,), []), ((_INCOMPLETE,), place.notes)):
            found.wrong.append(f"{root}: ended with {ended.codes} after {noted}: {ended.err[0]}")
    return found


def _slow_disk(place: Place) -> Found:
    """The disk is slower than the training: the queue stays below its limit, and the waiting time is reported."""
    found = Found()
    if not place.case.writes_in_python:
        found.counts["left out: native threads write the elements and cannot be slowed down"] += 1
        return found
    peaks, contents = {}, {}
    for name, per_megabyte, queue in (("quick", "0", _QUEUE), ("slow", "0.015", _QUEUE), ("unbounded", "0.015", None)):
        root = place.path(name)
        run = run_of(place.case, root, root.with_suffix(".txt"), "slow disk", per_megabyte)
        ended = place.warm.run(Run(arguments=run.arguments, queue=queue))
        _ran(found, place, root, ended, 0)
        contents[name] = contents_of(opdump.open(root))
        peaks[name] = int(ended.out[0].split()[-1]) * 1024
        told = re.search(r"warning: the program was blocked for [\d.]+ s by disk writes", ended.err[0])
        # Under other load the writer may be slower than the training even on a quick disk.
        if name != "quick" and (told is not None) != (name == "slow"):
            found.wrong.append(f"{root}: the reported waiting time is wrong: {ended.err[0]}")
        shutil.rmtree(root)
    if not contents["quick"] == contents["slow"] == contents["unbounded"]:
        found.wrong.append(f"{place.path('slow')}: differs from the dump on a quick disk")
    # Besides the queue: what the process had before, what the training works on, and freed memory that was not
    # returned.
    if peaks["slow"] - peaks["quick"] > (peaks["unbounded"] - peaks["quick"]) / 2:
        found.wrong.append(f"{place.path('slow')}: peak memory was {peaks}")
    for name, peak in peaks.items():
        found.counts[f"MB {name}"] = round(peak / 1e6)
    return found


def _two_runs(place: Place) -> Found:
    found = Found()
    root = place.path("two")
    journals = [root.with_suffix(f".{number}") for number in range(2)]
    ended = place.warm.run(*(run_of(place.case, root, journal) for journal in journals))
    if ended.codes != (0, 0):
        found.wrong.append(f"{root}: ended with {ended.codes}: {ended.err}")
    if any(steps_noted(journal) != place.notes for journal in journals):
        found.wrong.append(f"{root}: the trainings noted {[steps_noted(journal) for journal in journals]}")
    runs = opdump.open(root).runs
    if [run.complete for run in runs] != [True, True]:
        found.wrong.append(f"{root}: has the runs {runs}")
    for number in range(1, len(runs) + 1):
        if contents_of(opdump.open(root, run=number)) != place.whole:
            found.wrong.append(f"{root}: run {number} differs")
    return found


def _eight_ranks(place: Place) -> Found:
    found = Found()
    root = place.path("ranks")
    runs = []
    for rank in range(_RANKS):
        run = run_of(place.case, root, root.with_suffix(f".{rank}"))
        environ = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(_RANKS)}
        runs.append(Run(arguments=run.arguments, environ=environ))
    ended = place.warm.run(*runs)
    if ended.codes != (0,) * _RANKS:
        found.wrong.append(f"{root}: ended with {ended.codes}: {ended.err}")
    catalog = opdump.open(root)
    if catalog.ranks != tuple(range(_RANKS)) or catalog.problems:
        found.wrong.append(f"{root}: has ranks {catalog.ranks} and the problems {list(map(str, catalog.problems))}")
    for rank in catalog.ranks:
        if steps_noted(root.with_suffix(f".{rank}")) != place.notes:
            found.wrong.append(f"{root}: rank {rank} computed something else")
        if contents_of(catalog, rank=rank) != place.whole:
            found.wrong.append(f"{root}: rank {rank} differs")
    return found


def _fork(place: Place, how: str) -> Found:
    found = Found()
    root = place.path(f"fork-{how}")
    ended = place.warm.run(run_of(place.case, root, root.with_suffix(".txt"), "fork", how))
    _ran(found, place, root, ended, 0)
    catalog = opdump.open(root)
    if catalog.problems or contents_of(catalog, rank=0) != place.whole:
        found.wrong.append(f"{root}: differs; reported: {list(map(str, catalog.problems))}")
    if "ran in 2 processes" not in ended.err[0] or len(catalog.ranks) != 2:
        found.wrong.append(f"{root}: the child is missing: ranks {catalog.ranks}, {ended.err[0]}")
    return found


def _sigterm(place: Place, name: str, code: int) -> Found:
    found = Found()
    for writes in place.case.writes:
        root = place.path(f"{name}-{writes}")
        ended = place.warm.run(run_of(place.case, root, root.with_suffix(".txt"), name, str(writes)))
        ran = _ran(found, place, root, ended, code, to_its_end=False)
        if code > 0:  # the program ends through its own handler, and its dump is closed
            catalog = opdump.open(root)
            # Or the handler raised while a step was being written.
            is_told = "the dump is incomplete" in ended.err[0] and "interrupted the writing of step" in ended.err[0]
            if catalog.runs[-1].complete == is_told or set(catalog.steps) < set(range(ran)):
                found.wrong.append(f"{root}: {ran} steps ran, but the dump has {catalog.steps}; {ended.err[0]}")
            continue
        check_damaged(root, place.whole, ran, found)
        _check_is_cut_off(found, root)
        place.warm.run(run_of(place.case, root, root.with_suffix(".again")))
        check_whole(root, place.whole, found)
    return found


def _removed(place: Place) -> Found:
    root = place.path("removed")
    return _lost(place, "removed", "directory removed", str(root), said="removed or replaced", is_there=False)


FAULTS: Final[dict[str, Callable[[Place], Found]]] = {
    "full disk": _full_disk,
    "full from the start": _full_from_the_start,
    "quota": lambda place: _lost(place, "quota", "quota", said="Disk quota exceeded"),
    "file size": lambda place: _lost(place, "file size", "file size", "3000", said="free space"),
    "no descriptors": lambda place: _lost(place, "descriptors", "descriptors", said="ulimit -n"),
    "directory removed": _removed,
    "slow disk": _slow_disk,
    "two runs": _two_runs,
    "eight ranks": _eight_ranks,
    "fork, sys.exit": partial(_fork, how="exit"),
    "fork, os._exit": partial(_fork, how="leave"),
    "SIGTERM": lambda place: _sigterm(place, "SIGTERM", -signal.SIGTERM),
    "SIGTERM handled": lambda place: _sigterm(place, "SIGTERM handled", 7),
}


def meet(place: Place, name: str) -> Found:
    """Run one fault, and return what happened."""
    try:
        return FAULTS[name](place)
    except (OpdumpError, AssertionError) as error:
        return Found(wrong=[f"{place.path(name)}: {type(error).__name__}: {error}"])
