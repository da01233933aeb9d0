"""Kill trainings at random moments, expose them to system faults, and count what happened to their dumps.

    python -m tests.chaos [--kills 200] [--seed 0] [--layout NAME] [--faults-only]

`make chaos`: half an hour. Exits with 1 if a dump or a run was wrong and prints what was; the files of such runs stay
in the directory that is printed. The same seed draws the same moments, as fractions of the duration of an undisturbed
run.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.faults import FAULTS, meet
from tests.chaos.kills import kill_many, place_of, warm_for
from tests.chaos.layouts import CASES, Case
from tests.chaos.reading import Found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills per layout")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--layout", choices=[case.name for case in CASES])
    parser.add_argument("--faults-only", action="store_true")
    options = parser.parse_args()
    cases = [case for case in CASES if options.layout in (None, case.name)]
    folder = Path(tempfile.mkdtemp(prefix="opdump-chaos-"))
    print(f"seed {options.seed}, in {folder}", flush=True)
    wrong = _chaos(cases, folder, kills=0 if options.faults_only else options.kills, seed=options.seed)
    if wrong:
        print(f"\n{len(wrong)} wrong:", *wrong, sep="\n  ")
        return 1
    shutil.rmtree(folder)
    print("\neverything is correct")
    return 0


def _chaos(cases: Sequence[Case], folder: Path, *, kills: int, seed: int) -> list[str]:
    wrong: list[str] = []
    with warm_for(cases, folder) as warm:
        places = [place_of(warm, case, folder) for case in cases]
        for place in places if kills else ():
            began = time.monotonic()
            wrong += _told(place.case, "kill -9", kill_many(place, kills=kills, seed=seed), began)
        for place in places:
            for name in FAULTS:
                began = time.monotonic()
                wrong += _told(place.case, name, meet(place, name), began)
    return wrong


def _told(case: Case, name: str, found: Found, began: float) -> list[str]:
    """Print a row; return what is wrong in it."""
    counts = ", ".join(f"{number} {what}" for what, number in found.counts.items())
    verdict = f"{len(found.wrong)} WRONG" if found.wrong else "good"
    print(f"{case.name:13} {name:20} {verdict:9} {time.monotonic() - began:6.1f} s  {counts}", flush=True)
    return found.wrong


if __name__ == "__main__":
    sys.exit(main())
