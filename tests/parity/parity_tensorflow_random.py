"""Random TensorFlow programs return the same bits plain and under capture, on both versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.parity import peers

COUNT = {"session": 8, "function": 8, "session of callbacks": 4, "function of callbacks": 4}
"""Programs per kind. Callbacks are of every kind, in branches, loops, functions, data sets and threads; their call counts are part of the answer."""
FOUND = {"session": (102,)}
"""Seeds of programs whose answers once differed under capture."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", COUNT)
# oneDNN fuses other operators; whether it is on by default depends on the processor.
@pytest.mark.parametrize(
    ("python", "onednn"), [(peers.TENSORFLOW, "1"), (peers.TENSORFLOW215, "0")], ids=["2.21", "2.15"]
)
def test_random_programs_give_the_same_bits_under_capture(kind: str, python: Path, onednn: str) -> None:
    lines = []
    for first, count in ((0, COUNT[kind]), *((seed, 1) for seed in FOUND.get(kind, ()))):
        printed = peers.run(
            python,
            [peers.SCRIPTS / "tf_random_programs.py", kind, str(first), str(count)],
            {
                "PYTHONPATH": f"{peers.ROOT / 'src'}:{peers.ROOT}",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_ENABLE_ONEDNN_OPTS": onednn,
            },
        )
        lines += [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    compared = [line for line in lines if "same" in line]
    assert len(lines) == COUNT[kind] + len(FOUND.get(kind, ()))
    assert len(compared) >= COUNT[kind] // 2, lines
    assert [line for line in compared if not line["same"]] == []
