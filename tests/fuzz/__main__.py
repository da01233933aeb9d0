"""Mutate files of every kind that opdump reads, and count how its readers handle them.

    python -m tests.fuzz [--inputs 1000000 | --each N | --known] [--seed 0] [--reader NAME] [--jobs 2]
                         [--kept DIRECTORY]

`make fuzz`: each input must be read, or refused with an error that opdump raises on purpose; anything else is a
finding: a traceback, a crash, more than 5 s of CPU time or 128 MiB of memory. Exits with 1 if there was a finding. The
first input of each kind of finding is minimised and kept; if it is moved to tests/fuzz/found, every `make test` reads
it again. The same seed makes the same inputs.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.bounded import start
from tests.fuzz.campaign import Found, fuzz, keep, shares
from tests.fuzz.readers import READERS, Reader


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="for all readers together")
    parser.add_argument("--each", type=int, help="inputs for each reader, instead of --inputs")
    parser.add_argument(
        "--known", action="store_true", help="read only the seeds and the inputs that found a defect before"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--reader", action="append", choices=[reader.name for reader in READERS])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kept", type=Path, help="directory for the findings; default: a new one")
    options = parser.parse_args()
    readers = [reader for reader in READERS if options.reader is None or reader.name in options.reader]
    if options.known:
        return _read_known(readers)
    kept = options.kept or Path(tempfile.mkdtemp(prefix="opdump-findings-"))
    wanted = shares(readers, options.inputs)
    if options.each is not None:
        wanted = dict.fromkeys(wanted, options.each)
    print(f"seed {options.seed}, {sum(wanted.values())} inputs, findings go to {kept}", flush=True)
    print(f"{'reader':17}{'inputs':>9}{'read':>9}{'refused':>9}{'findings':>9}{'seconds':>9}{'MiB':>6}", flush=True)
    began = time.monotonic()
    all_found = fuzz(readers, wanted=wanted, seed=options.seed, jobs=options.jobs, ended=_tell)
    findings = sum(found.findings for found in all_found)
    inputs = sum(found.inputs for found in all_found)
    print(f"{inputs} inputs in {time.monotonic() - began:.0f} s, {findings} findings", flush=True)
    for found in all_found:
        for finding, path in keep(found, options.seed, kept):
            often = found.often[finding.place]
            print(f"\n{found.reader.name}: {finding.place} ({often} inputs, the first is {finding.number}): {path}")
            print("  " + finding.text.strip().replace("\n", "\n  "), flush=True)
    return 1 if findings else 0


def _read_known(readers: Sequence[Reader]) -> int:
    """Read the seeds and the inputs in the tree, without mutations."""
    wrong = 0
    for reader in readers:
        known = [*reader.seeds().items(), *reader.found()]
        process = start(reader, [(number, place, data) for number, (place, data) in enumerate(known)])
        while process.hear():
            pass
        counts, _ = process.end()
        print(f"{reader.name:17}{len(known):9}{counts.read:9}{counts.refused:9}{len(process.findings):9}", flush=True)
        for finding in process.findings:
            print(f"{reader.name}: {known[max(0, finding.number)][0]}: {finding.place}\n{finding.text}", flush=True)
        wrong += len(process.findings)
    return 1 if wrong else 0


def _tell(found: Found) -> None:
    counts = f"{found.inputs:9}{found.read:9}{found.refused:9}{found.findings:9}"
    print(f"{found.reader.name:17}{counts}{found.seconds:9.1f}{found.kilobytes >> 10:6}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
