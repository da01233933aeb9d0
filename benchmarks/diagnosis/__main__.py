"""How accurately a comparison of two dumps names the operator that introduced a difference.

    python -m benchmarks.diagnosis [--only TEXT] [--kind KIND] [--network NAME] [--sample N] [--jobs 2]
        [--json FILE] [--verify] [--list]

Every network of networks/ runs unchanged, and with one planted fault at a time, under `opdump run`. `opdump.compare`, if this opdump has
it, and two plain rules compare the dumps, once with values and once with statistics only. The output is how often the first answer is
what a careful engineer would name, how often one of the first three is, and how often pairs without a fault raise an alarm.
docs/diagnosis.md describes the suite.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.diagnosis.comparison import METHODS, methods
from benchmarks.diagnosis.running import Dumps, Workers, scores_of
from benchmarks.diagnosis.scoring import MODES, Score, table
from benchmarks.diagnosis.suite import KINDS, Pair, every_pair
from benchmarks.diagnosis.verify import complaints


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.diagnosis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], help="pairs whose name contains this text")
    parser.add_argument("--kind", action="append", default=[], help="a kind of fault, or clean")
    parser.add_argument("--network", action="append", default=[])
    parser.add_argument("--method", action="append", choices=METHODS, default=[])
    parser.add_argument("--mode", action="append", choices=MODES, default=[])
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth pair")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every score")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep all dumps in this directory, and reuse those that exist"
    )
    parser.add_argument("--verify", action="store_true", help="check the suite itself; compare nothing")
    parser.add_argument("--list", action="store_true", help="list the pairs and exit")
    return parser.parse_args(arguments)


def chosen(pairs: list[Pair], asked: argparse.Namespace) -> list[Pair]:
    return [
        pair
        for pair in pairs
        if (not asked.only or any(text in pair.name for text in asked.only))
        and (not asked.kind or pair.kind in asked.kind or ("clean" in asked.kind and not pair.truth))
        and (not asked.network or pair.network in asked.network)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    asked = options(arguments)
    pairs = chosen(every_pair(), asked)[:: asked.sample]
    if asked.list:
        for pair in pairs:
            print(f"{pair.kind:12} {pair.name:40} {pair.text}")
        print(f"{len(pairs)} pairs: {sum(bool(p.truth) for p in pairs)} faults of {len(KINDS)} kinds")
        return 0
    workers = Workers(asked.jobs)
    try:
        with tempfile.TemporaryDirectory(prefix="opdump-diagnosis-", dir=_memory()) as folder:
            dumps = Dumps(asked.cache or Path(folder), keep=asked.cache is not None)
            return _verified(workers, pairs, dumps) if asked.verify else _measured(workers, pairs, dumps, asked)
    finally:
        workers.close()


def _verified(workers: Workers, pairs: list[Pair], dumps: Dumps) -> int:
    count = 0
    for lines in workers.each(lambda worker, pair: complaints(worker, pair, dumps), pairs):
        count += len(lines)
        for line in lines:
            print(line, flush=True)
    print(f"{len(pairs)} pairs verified, {count} complaints")
    return 0


def _measured(workers: Workers, pairs: list[Pair], dumps: Dumps, asked: argparse.Namespace) -> int:
    used = asked.method or methods()
    modes = asked.mode or MODES
    scores: list[Score] = []
    for done, found in enumerate(workers.each(lambda w, pair: scores_of(w, pair, dumps, used, modes), pairs), 1):
        scores += found
        print(f"\r{done} of {len(pairs)} pairs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for method in used:
        for mode in modes:
            of_it = [score for score in scores if (score.method, score.mode) == (method, mode)]
            print(f"\n{method}, {mode}")
            print("\n".join(table(of_it)))
            if method == "opdump":
                _print_misses(of_it)
    if asked.json:
        asked.json.write_text(json.dumps([score.to_json() for score in scores], indent=1))
    return 0


def _print_misses(scores: list[Score]) -> None:
    for score in scores:
        if score.missed:
            print(f"  {score.pair} ({score.kind}): {score.verdict}, truth {score.truth or 'clean'}")
            for line in score.said[:3] or score.error.splitlines()[-1:]:
                print(f"      {line}")


def _memory() -> str | None:
    """The directory with the cheapest files: memory, if available."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    sys.exit(main())
