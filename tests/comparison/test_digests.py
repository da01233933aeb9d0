"""Digests of both runs, where statistics alone were recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdump

torch = pytest.importorskip("torch")


def _dump(path: Path, numbers: list[float]) -> Path:
    with opdump.capture(path=path, saved_data="statistic", statistic_category=["max", "l2norm", "xxh3"]):
        torch.add(torch.tensor(numbers), 1.0)
    return path


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="compare reads summaries alone, and no digest (docs/compare.md)"
)
def test_what_only_a_digest_tells_apart_is_told(tmp_path: Path) -> None:
    one = _dump(tmp_path / "a", [1.0, 2.0, 3.0, 4.0])
    other = _dump(tmp_path / "b", [2.0, 1.0, 3.0, 4.0])
    assert opdump.compare(one, other).verdict != "benign"
