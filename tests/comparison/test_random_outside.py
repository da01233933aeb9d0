"""Random programs with memory that numpy writes, run twice: no comparison is benign if their end states differ."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import opdump

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

_ELEMENTS = 6
_PROGRAMS = 40


def run(seed: int, other: bool) -> list[Any]:
    """The results of the program of a seed. With `other`, numpy writes a different number in one place."""
    choose = random.Random(seed)
    kept = [torch.linspace(-1, 1, _ELEMENTS) for _ in range(2)]
    written = choose.randrange(3)
    for place in range(3):
        memory = choose.choice((torch.empty, torch.zeros, torch.ones))(_ELEMENTS)
        buffer = choose.choice((memory, memory, kept[-1]))
        held = buffer.numpy()
        held[:] = [choose.uniform(-2, 2) for _ in range(_ELEMENTS)]
        change, element = choose.uniform(0.5, 1.5), choose.randrange(_ELEMENTS)
        if other and place == written:
            held[element] += change
        for _ in range(choose.randrange(1, 4)):
            kept.append(_step(choose, buffer, choose.choice(kept)))
            buffer = kept[-1]
    return [kept[-1] * 2, torch.stack(kept).sum()]


def _step(choose: random.Random, one: Any, other: Any) -> Any:
    kind = choose.randrange(7)
    if kind == 0:
        return one * other
    if kind == 1:
        return one + other
    if kind == 2:
        return torch.tanh(one) + other * 0.5
    if kind == 3:
        return torch.where(other > 0, one, other)
    if kind == 4:
        return one.clone().mul_(other)
    if kind == 5:
        return torch.cat([one[: _ELEMENTS // 2], other[_ELEMENTS // 2 :]])
    return torch.maximum(one, other)


def _roundings_apart(one: list[Any], other: list[Any]) -> float:
    return max(
        float(np.abs(first - second).max() / max(np.abs(first).max(), 1e-30) / 2.0**-23)
        for first, second in zip((each.numpy() for each in one), (each.numpy() for each in other), strict=True)
    )


@pytest.mark.sampled(5, each="saved")
@pytest.mark.parametrize("saved", ["full", "statistic"])
@pytest.mark.parametrize("start", range(0, _PROGRAMS, 4))
def test_programs_whose_memory_numpy_writes(start: int, saved: Literal["full", "statistic"], tmp_path: Path) -> None:
    for seed in range(start, start + 4):
        left = []
        for name, other in (("a", False), ("b", True), ("again", False)):
            with opdump.capture(path=str(tmp_path / f"{seed}{name}"), saved_data=saved):
                left.append(run(seed, other))
        assert opdump.compare(tmp_path / f"{seed}a", tmp_path / f"{seed}again").verdict == "identical", seed
        found = opdump.compare(tmp_path / f"{seed}a", tmp_path / f"{seed}b")
        if _roundings_apart(left[0], left[1]) > 100:
            assert found.verdict == "divergent", seed
        else:
            assert found.verdict != "incomparable", seed
