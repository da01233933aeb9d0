"""Nothing of a TensorFlow program that has an effect outside of its graph happens more often under capture, on both versions.

Callbacks of Python of every kind, declared to have no state or not, in functions, branches, loops, gradients, data sets, layers and sessions;
printing, queues, tables, variables, summaries. The programs are in `scripts/tf_effects.py`; each is run plainly, and in each mode.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest

from tests.parity import peers

PYTHONS = {"2.21": peers.TENSORFLOW, "2.15": peers.TENSORFLOW215}
SOURCE = (peers.SCRIPTS / "tf_effects.py").read_text(encoding="utf-8")
CASES = re.findall(r'^@case\("(\w+)"\)\ndef (\w+)', SOURCE, re.MULTILINE)
WAYS = ("statistics", "full", "one step", "overflow")


@functools.cache
def _told(version: str, script: str, *arguments: str) -> tuple[dict[str, Any], ...]:
    printed = peers.run(
        PYTHONS[version],
        [peers.SCRIPTS / script, *arguments],
        {"PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    return tuple(json.loads(line) for line in printed.splitlines() if line.startswith("{"))


def test_the_cases_are_all_there() -> None:
    assert len(CASES) >= 12


@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_effects_happen_as_often_as_without_capture(version: str, kind: str, name: str) -> None:
    (found,) = [line for line in _told(version, "tf_effects.py", kind) if line["case"] == name]
    assert "failed" not in found, found["failed"]
    ways = (*WAYS, "streams") if kind == "session" else WAYS
    for way in ways:
        assert found[way]["counts"] == found["plain"], way
        assert found[way]["same"], way
        assert found[way]["operators"] > 0 or way == "overflow" or "eager" in name, way


@pytest.mark.parametrize("version", PYTHONS)
def test_only_types_that_tensorflow_brings_along_and_that_touch_nothing_count_as_pure(version: str) -> None:
    (found,) = _told(version, "tf_pure_types.py")
    assert found["known"] > 1500
    assert found["pure"] > 600
    assert found["suspicious"] == []
    assert found["missing"] == []
