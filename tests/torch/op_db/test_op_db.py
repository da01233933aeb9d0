"""Every operator for which PyTorch has samples, in every dtype: the same bits with and without capture.

    operators of op_db 702, pairs 6121, samples backward ..., forward ...; differing 0, failing 0

By default, each pair runs a few samples; `OPDUMP_OP_DB=all` runs all of them, and the in-place forms. With --sampled, a third of the dtypes of an eighth of the operators run.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

from tests.torch.op_db.shard import run_shard

SHARDS = 24
PARTS = 3
"""The number of parts into which the dtypes of each operator are divided."""
SAMPLES = 2

DIFFERING: dict[str, str] = {}
"""Operators with a result that differs under capture, each with the cause; at most ten."""


@pytest.mark.slow
@pytest.mark.timeout(7200 if os.environ.get("OPDUMP_OP_DB") == "all" else 600)
@pytest.mark.sampled(8 * PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("shard", range(SHARDS))
def test_operators_give_the_same_bits_under_capture(
    shard: int, part: int, record_property: Callable[[str, object], None]
) -> None:
    everything = os.environ.get("OPDUMP_OP_DB") == "all"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcome = run_shard(
            (shard, SHARDS), (part, PARTS), samples=None if everything else SAMPLES, in_place=everything
        )
    finally:
        torch.set_num_threads(threads)
    counts = outcome.counts
    counts["differing operators"] = len(outcome.differing)
    counts["failing operators"] = len(outcome.failing)
    record_property("counts", {f"op_db: {name}": count for name, count in counts.items()})
    print(f"op_db shard {shard}, part {part}:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    assert not outcome.failing
    assert not outcome.wrong_statistics, outcome.wrong_statistics[:5]
    assert {name: why for name, why in outcome.differing.items() if name not in DIFFERING} == {}


def test_at_most_ten_operators_differ_and_each_has_its_cause() -> None:
    assert len(DIFFERING) <= 10
    assert all(DIFFERING.values())
