"""A sample of the faults and clean pairs of the diagnosis suite in each framework that is not PyTorch, and of two frameworks (docs/diagnosis.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from benchmarks.diagnosis.programs import ACROSS, FRAMEWORKS
from benchmarks.diagnosis.running import Dumps, Workers, scores_of
from benchmarks.diagnosis.scoring import Score
from benchmarks.diagnosis.suite import Pair, every_pair
from benchmarks.diagnosis.worker import Worker

PAIRS: Final = 8
"""Pairs of each framework, in one mode. Pairs of two modes take minutes, and are run by `python -m benchmarks.diagnosis --framework`."""


@pytest.mark.parametrize("framework", [*FRAMEWORKS[1:], ACROSS])
def test_planted_faults_are_named_and_clean_pairs_raise_no_alarm(framework: str, tmp_path: Path) -> None:
    pairs = [pair for pair in every_pair(framework) if pair.a.mode == pair.b.mode]
    workers, dumps = Workers(2, framework), Dumps(tmp_path, keep=True)

    def scores(worker: Worker, pair: Pair) -> list[Score]:
        return scores_of(worker, pair, dumps, ["opdump"], ["tensors"])

    try:
        found = [score for _, each in workers.each(scores, pairs[:: -(-len(pairs) // PAIRS)]) for score in each]
    finally:
        workers.close()
    assert {score.error for score in found} == {""}
    assert [
        (score.pair, score.mode, score.said) for score in found if not score.faulty and not score.called_clean
    ] == []
    faulty = [score for score in found if score.faulty]
    assert [(score.pair, score.mode) for score in faulty if score.called_clean] == []
    assert sum(score.exact for score in faulty) >= len(faulty) / 2
