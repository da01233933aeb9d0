"""How accurately a comparison of two dumps names the operator that introduced a difference.

    python -m benchmarks.diagnosis [--framework NAME] [--only TEXT] [--kind KIND] [--network NAME] [--sample N] [--jobs 2]
        [--every-mode] [--json FILE [--resume]] [--verify] [--list]

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
from typing import Any

from benchmarks.diagnosis.comparison import METHODS, methods
from benchmarks.diagnosis.programs import ACROSS, FRAMEWORKS
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
    parser.add_argument("--framework", choices=(*FRAMEWORKS, ACROSS), default="torch", help="torch unless given")
    parser.add_argument("--only", action="append", default=[], help="pairs whose name contains this text")
    parser.add_argument("--kind", action="append", default=[], help="a kind of fault, or clean")
    parser.add_argument("--network", action="append", default=[])
    parser.add_argument("--method", action="append", choices=METHODS, default=[])
    parser.add_argument("--mode", action="append", choices=MODES, default=[])
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every Nth pair")
    parser.add_argument(
        "--every-mode", action="store_true", help="plant each fault in every mode of its framework, not in one of them"
    )
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every score, after each pair")
    parser.add_argument(
        "--resume", action="store_true", help="keep the scores in the file of --json, and compare only the other pairs"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep all dumps in this directory, and reuse those that exist"
    )
    parser.add_argument("--verify", action="store_true", help="check the suite itself; compare nothing")
    parser.add_argument("--list", action="store_true", help="list the pairs and exit")
    asked = parser.parse_args(arguments)
    if asked.resume and asked.json is None:
        parser.error("--resume continues the file of --json; add --json FILE")
    return asked


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
    pairs = chosen(every_pair(asked.framework, in_every_mode=asked.every_mode), asked)[:: asked.sample]
    if asked.list:
        for pair in pairs:
            print(f"{pair.kind:12} {pair.name:40} {pair.text}")
        print(f"{len(pairs)} pairs: {sum(bool(p.truth) for p in pairs)} faults of {len(KINDS)} kinds")
        return 0
    workers = Workers(asked.jobs, asked.framework)
    try:
        with tempfile.TemporaryDirectory(prefix="opdump-diagnosis-", dir=_memory()) as folder:
            dumps = Dumps(asked.cache or Path(folder), pairs, keep=asked.cache is not None)
            return _verified(workers, pairs, dumps) if asked.verify else _measured(workers, pairs, dumps, asked)
    finally:
        workers.close()


def _verified(workers: Workers, pairs: list[Pair], dumps: Dumps) -> int:
    count = 0
    for _, lines in workers.each(lambda worker, pair: complaints(worker, pair, dumps), pairs):
        count += len(lines)
        for line in lines:
            print(line, flush=True)
    print(f"{len(pairs)} pairs verified, {count} complaints")
    return 0


def _measured(workers: Workers, pairs: list[Pair], dumps: Dumps, asked: argparse.Namespace) -> int:
    used = asked.method or methods()
    modes = asked.mode or MODES
    wanted = {(method, mode) for method in used for mode in modes}
    known = _by_pair(json.loads(asked.json.read_text()) if asked.resume and asked.json.exists() else [])
    found = {
        name: scores for name, scores in known.items() if wanted <= {(score.method, score.mode) for score in scores}
    }
    left = [pair for pair in pairs if pair.name not in found]
    done = len(pairs) - len(left)
    for pair, scores in workers.each(lambda worker, pair: scores_of(worker, pair, dumps, used, modes), left):
        found[pair.name] = scores
        done += 1
        said = "; ".join(f"{score.method}, {score.mode}: {_outcome(score)}" for score in scores)
        print(f"{done} of {len(pairs)}: {pair.name}: {said}", file=sys.stderr, flush=True)
        if asked.json:
            _write(asked.json, [score.to_json() for each in found.values() for score in each])
    scores = [score for pair in pairs for score in found[pair.name] if (score.method, score.mode) in wanted]
    for method in used:
        for mode in modes:
            of_it = [score for score in scores if (score.method, score.mode) == (method, mode)]
            print(f"\n{method}, {mode}")
            print("\n".join(table(of_it)))
            if method == "opdump":
                _print_misses(of_it)
    return 0


def _by_pair(rows: list[dict[str, Any]]) -> dict[str, list[Score]]:
    """The scores of a file, by the name of their pair."""
    found: dict[str, list[Score]] = {}
    for row in rows:
        found.setdefault(row["pair"], []).append(Score.from_json(row))
    return found


def _outcome(score: Score) -> str:
    rank = f", exact at {score.rank}" if score.rank else ""
    return f"{score.verdict}{rank}{', MISSED' if score.missed else ''}, {score.seconds:.1f} s"


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a file by a whole one, so that an interrupted run leaves the scores of all finished pairs."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(rows, indent=1))
    new.replace(path)


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
