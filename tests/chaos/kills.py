"""Runs that are killed (SIGKILL) at random moments of their life, from the start of `opdump run` to interpreter exit."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from click.testing import CliRunner

import opdump
from opdump.commands import main
from opdump.errors import UnknownLayoutError
from tests.chaos.layouts import Case
from tests.chaos.reading import Contents, Found, check_damaged, check_whole, contents_of, steps_noted
from tests.chaos.training import STEPS
from tests.warm import PLAIN, ROOT, TRAINING_MODULES, Run, Warm

TRAINING: Final = str(ROOT / "tests" / "chaos" / "training.py")


def run_of(case: Case, root: Path, journal: Path, *trouble: str) -> Run:
    """A training under `opdump run` into a new directory; the config is written beside the journal."""
    root.mkdir(exist_ok=True)
    config = case.write_config(journal.with_name(f"{journal.name}.json"), root)
    return Run(arguments=["run", "-c", str(config), TRAINING, str(journal), *trouble])


@contextmanager
def warm_for(cases: Iterable[Case], folder: Path) -> Iterator[Warm]:
    """A process that has imported everything that these cases need."""
    first = [run_of(case, folder / f"{case.name}-first", folder / f"{case.name}-first.txt") for case in cases]
    with closing(Warm(folder, *first, modules=TRAINING_MODULES)) as warm:
        yield warm


@dataclass(frozen=True, slots=True)
class Place:
    """A layout under test: the contents and notes of an undisturbed run, and its duration."""

    warm: Warm
    case: Case
    folder: Path
    whole: Contents
    notes: list[str]
    life: float

    def path(self, name: str) -> Path:
        """The path of a new directory; the config contains it, so it has no spaces."""
        return self.folder / f"{self.case.name}-{name.replace(' ', '-')}"


def place_of(warm: Warm, case: Case, folder: Path) -> Place:
    """Run undisturbed twice: both dumps are equal, and the training notes the same as without opdump."""
    seconds, contents, notes = [], [], []
    for number in range(2):
        root, journal = folder / f"{case.name}-whole-{number}", folder / f"{case.name}-whole-{number}.txt"
        ended = warm.run(run_of(case, root, journal))
        assert ended.codes == (0,), ended.err
        catalog = opdump.open(root)
        contents.append(contents_of(catalog))
        assert not catalog.problems, catalog.problems
        notes.append(steps_noted(journal))
        seconds.append(ended.seconds)
        shutil.rmtree(root)
    plain = folder / f"{case.name}-plain.txt"
    assert warm.run(Run(arguments=[PLAIN, TRAINING, str(plain)])).codes == (0,)
    assert contents[0].keys() == set(range(STEPS))
    assert all(contents[0].values())
    assert contents[0] == contents[1]
    assert notes[0] == notes[1] == steps_noted(plain)
    return Place(warm, case, folder, contents[0], notes[0], min(seconds))


def kill_many(place: Place, *, kills: int, seed: int) -> Found:
    """Kill N runs, each at another moment and in its own directory, and complete the next run in that directory."""
    moments = random.Random(f"{seed} {place.case.name}")
    found = Found()
    for number in range(kills):
        root = place.path(f"kill-{number}")
        _kill(place, root, moments.uniform(0, place.life), found)
        if number % 10 == 0:
            _check_says_so(root, found)
        again = place.warm.run(run_of(place.case, root, root.with_suffix(".again")))
        if again.codes != (0,):
            found.wrong.append(f"{root}: the next run ended with {again.codes}: {again.err[0]}")
        check_whole(root, place.whole, found)
        if not any(str(root) in text for text in found.wrong):
            shutil.rmtree(root)
    return found


def _kill(place: Place, root: Path, moment: float, found: Found) -> None:
    journal = root.with_suffix(".txt")
    ended = place.warm.run(run_of(place.case, root, journal), kill_after=moment)
    found.counts["kills"] += 1
    if ended.codes == (0,):
        found.counts["too late"] += 1
    elif ended.codes != (-signal.SIGKILL,):
        found.wrong.append(f"{root}: ended with {ended.codes}: {ended.err[0]}")
    noted = steps_noted(journal)
    if noted != place.notes[: len(noted)]:
        found.wrong.append(f"{root}: the training noted {noted}")
    found.counts["before a step" if not noted else "after the last" if "end" in noted else "among the steps"] += 1
    check_damaged(root, place.whole, len([line for line in noted if line != "end"]), found)


def _check_says_so(root: Path, found: Found) -> None:
    try:
        is_whole = opdump.open(root).runs[-1].complete
    except UnknownLayoutError:
        return
    checked = CliRunner().invoke(main, ["check", str(root)], catch_exceptions=False)
    if not is_whole and "interrupted" not in checked.output:
        found.wrong.append(f"{root}: `opdump check` does not report what is missing: {checked.output}")
